"""Class folders.

root/
  train/n01440764/*.JPEG     one folder a class; pictures at any depth below it
  val/n01440764/*.JPEG       the same names as in train, or some of them
  test/n01440764/*.JPEG      optional
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import scan

log = logging.getLogger(__name__)


def list_classes(folder: Path) -> list[str]:
    """Return the class names of a folder of class folders, in label order.

    Raises:
        UserError: There is no class folder.
    """
    scan.require_folder(folder)
    names = scan.list_folders(folder)
    if not names:
        raise UserError(
            f"data.root: {str(folder)!r} has no class folders, {scan.describe_folder(folder)[6:]}."
        )
    return names


def index_folder(root: Path, split: str, classes: Sequence[str]) -> ImageIndex:
    """Index ``root/split/<class>/...``.

    Args:
        root: Data root.
        split: ``train``, ``val`` or ``test``: the folder below ``root``.
        classes: Class names in label order; a folder beyond them is an error.

    Raises:
        UserError: A folder is no class, a training class has no picture, or another split has none at all.
    """
    folder = root / split
    present = list_classes(folder)
    if unknown := sorted(set(present) - set(classes)):
        raise UserError(
            f"data.root: {str(folder)!r} has {len(unknown)} folders that are not among the "
            f"{len(classes)} classes: {some_of(unknown)}. Rename or remove them, or list every class in "
            "data.classes."
        )
    paths: list[str] = []
    labels: list[int] = []
    absent: list[str] = []
    for label, name in enumerate(classes):
        pictures = scan.walk_pictures(folder / name) if name in present else []
        if not pictures:
            absent.append(name)
        paths += [f"{split}/{name}/{picture}" for picture in pictures]
        labels += [label] * len(pictures)
    if not paths and split != "train":
        raise UserError(
            f"data.root: the class folders in {str(folder)!r} hold no pictures; add some."
        )
    _check_absent(folder, split, present, absent)
    return ImageIndex.from_rows(root, paths, labels, classes)


def _check_absent(
    folder: Path, split: str, present: list[str], absent: list[str]
) -> None:
    """Refuse a training class without pictures; say once which classes another split lacks."""
    if split != "train":
        if absent:
            log.warning(
                "%s has no pictures of %d classes: %s.",
                split,
                len(absent),
                some_of(absent),
            )
        return
    if empty := [name for name in absent if name in present]:
        raise UserError(
            f"data.root: class folder {str(folder / empty[0])!r} has no picture, "
            f"{scan.describe_folder(folder / empty[0])}; {len(empty)} such classes: {some_of(empty)}. "
            "Add pictures or remove the folder."
        )
    if absent:
        log.warning(
            "train has no folder for %d of data.classes: %s.",
            len(absent),
            some_of(absent),
        )
