"""Pictures in one flat folder, joined by their names with labels from elsewhere."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import scan
from imnet_pl.data.sources.notices import say, say_once

WNID = re.compile(r"n\d{8}")
VAL_STEM = re.compile(r"ILSVRC2012_val_(\d{8})")


def picture_folder(where: Path) -> Path | None:
    """Return the folder in which the pictures of a split lie flat; None if there is none.

    That is ``where``, its folder ``images``, or the one folder into which someone moved the whole of
    ImageNet's validation set.
    """
    for folder in (where, where / "images"):
        if folder.is_dir() and scan.list_pictures(folder):
            return folder
    return _moved_val(where) if where.is_dir() else None


def _moved_val(where: Path) -> Path | None:
    names = scan.list_folders(where)
    if len(names) != 1 or WNID.fullmatch(names[0]):
        return None
    if (where.parent / "train" / names[0]).is_dir():
        return None
    pictures = scan.list_pictures(where / names[0])
    is_val = pictures and VAL_STEM.fullmatch(Path(pictures[0]).stem)
    return where / names[0] if is_val else None


def class_folders(where: Path, names: Sequence[str]) -> list[str]:
    """Return which folders in that of a split can be classes: one of flat pictures is none."""
    moved = _moved_val(where)
    return [n for n in names if n.lower() != "images" and where / n != moved]


def index_flat(
    root: Path,
    split: str,
    folder: Path,
    wnids: Mapping[str, str],
    truth: Path,
    classes: Sequence[str],
) -> ImageIndex:
    """Index a flat folder through a table of all its pictures.

    Rows of classes that are not among ``classes`` may lack their pictures, the others may not.

    Args:
        root: Data root.
        split: For messages.
        folder: Where the pictures lie.
        wnids: Picture name without suffix -> class name.
        truth: The file that ``wnids`` come from, for messages.
        classes: Class names in label order.

    Raises:
        UserError: A picture has no row or its class is unknown, or a row has no picture.
    """
    skipped = scan.Skipped()
    pictures = scan.list_pictures(folder, skipped)
    stems = [name.rpartition(".")[0] for name in pictures]
    require_rows(truth, pictures, [stem for stem in stems if stem not in wnids])
    class_to_idx = {name: i for i, name in enumerate(classes)}
    found = [wnids[stem] for stem in stems]
    if unknown := sorted(set(found) - set(classes)):
        count = sum(name in set(unknown) for name in found)
        raise UserError(
            f"data.root: {count} of {len(pictures)} pictures in {str(folder)!r} are of {len(unknown)} classes "
            f"that are not among the {len(classes)} classes: {some_of(unknown)}. Add them to train or "
            "data.classes, or move those pictures away."
        )
    absent = wnids.keys() - set(stems)
    if missing := sorted(stem for stem in absent if wnids[stem] in class_to_idx):
        raise UserError(
            f"{str(truth)!r} names {len(missing)} pictures that are not in {str(folder)!r} "
            f"({some_of(missing, 3)}); restore them."
        )
    if absent:
        say_once(
            f"{len(absent)} of {len(wnids)} rows of {str(truth)!r} are of other classes than the "
            f"{len(classes)} here.",
            logging.INFO,
        )
    skipped.say(folder)
    labels = [class_to_idx[name] for name in found]
    return index_labelled(root, split, folder, pictures, labels, classes)


def require_rows(truth: Path, pictures: Sequence[str], unlabelled: list[str]) -> None:
    """Raise if there are pictures without a label.

    Raises:
        UserError: There are some.
    """
    if unlabelled:
        raise UserError(
            f"label file {str(truth)!r} has no line for {len(unlabelled)} of {len(pictures)} pictures: "
            f"{some_of(unlabelled, 3)}; add the lines or remove the pictures."
        )


def index_labelled(
    root: Path,
    split: str,
    folder: Path,
    pictures: Sequence[str],
    labels: Sequence[int],
    classes: Sequence[str],
) -> ImageIndex:
    """Return the index of pictures of one folder, and say which classes have none."""
    say_lacking(split, labels, classes)
    prefix = folder.relative_to(root).as_posix()
    paths = [name if prefix == "." else f"{prefix}/{name}" for name in pictures]
    return ImageIndex.from_rows(root, paths, labels, classes)


def say_lacking(split: str, labels: Sequence[int], classes: Sequence[str]) -> None:
    """Say which classes have no pictures."""
    if lacking := sorted(set(range(len(classes))) - set(labels)):
        names = some_of([classes[i] for i in lacking])
        say(f"{split} has no pictures of {len(lacking)} classes: {names}.")
