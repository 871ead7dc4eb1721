"""Data that is still packed: recognised, so that the error says what to do."""

import os
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.sources import flat, official, scan

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_READ_AS_IT_IS = "ILSVRC2012_img_"
_WHAT_TO_DO = {
    "ILSVRC2012_devkit_t12": "the labels of a flat val/",
    "ILSVRC2017_CLS-LOC": "ILSVRC/Data/CLS-LOC/{train,val}",
    "ILSVRC2017_devkit": "the labels of a flat val/",
    "imagenet-object-localization-challenge": "ILSVRC/Data/CLS-LOC/{train,val} and the labels",
    "imagenet_object_localization_patched2019": "ILSVRC/Data/CLS-LOC/{train,val}",
}


def is_archive(name: str) -> bool:
    """Tell by its name whether a file is packed data."""
    return name.lower().endswith(SUFFIXES) and not scan.is_hidden(name)


def list_archives(folder: Path) -> list[Path]:
    """Return the packed files directly in a folder, sorted."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(
            folder / entry.name for entry in entries if is_archive(entry.name)
        )


def require_unpacked(root: Path, split: str, is_there: bool) -> None:
    """Raise if a split is still packed, wholly or some of its classes.

    Args:
        root: Data root, or a packed file.
        split: ``train``, ``val`` or ``test``.
        is_there: Some layout was recognised.

    Raises:
        UserError: It is packed.
    """
    if root.is_file():
        if root.name.startswith(_READ_AS_IT_IS):
            raise UserError(
                f"data.root={str(root)!r} is a tar of ImageNet, which is read as it is; give the folder that it lies in."
            )
        found = [root] if is_archive(root.name) else []
    else:
        _require_classes_unpacked(official.split_folder(root, split))
        found = [] if is_there else list_archives(root)
    if found:
        raise UserError(
            f"data.root={str(root)!r} has no pictures of split {split!r} yet, but packed data: {describe(found)}. "
            "Unpack it, and give the folder as data.root."
        )


def _require_classes_unpacked(where: Path) -> None:
    tars = [file.stem for file in list_archives(where) if flat.WNID.match(file.name)]
    if packed := [name for name in tars if not (where / name).is_dir()]:
        raise UserError(
            f"data.root: {len(packed)} classes in {str(where)!r} are still packed ({some_of(packed, 3)}); unpack "
            f"each into a folder of its own, such as {str(where / packed[0])!r}."
        )


def describe(archives: list[Path]) -> str:
    """Return the names of packed files, with what is in the well-known ones."""
    names = [file.name for file in archives]
    holds = {name: _WHAT_TO_DO.get(name.partition(".")[0]) for name in names}
    return some_of(f"{name} ({text})" if text else name for name, text in holds.items())
