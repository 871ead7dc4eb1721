"""Class folders.

root/
  train/n01440764/*.JPEG     one folder a class; pictures at any depth below it
  val/n01440764/*.JPEG       the same names as in train, or some of them
  test/n01440764/*.JPEG      optional
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import flat, scan
from imnet_pl.data.sources.layout import Options

log = logging.getLogger(__name__)


def matches(root: Path, split: str) -> bool:
    """Tell whether there are class folders; those of val must hold a picture."""
    return has_class_folders(root / split, empty=split == "train")


def has_class_folders(where: Path, empty: bool = False) -> bool:
    """Tell whether a folder has class folders with a picture, or with ``empty`` any."""
    if not where.is_dir():
        return False
    names = flat.class_folders(where)
    return any(empty or scan.has_picture(where / name) for name in names)


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the class names that the training folders give, in label order.

    Raises:
        UserError: There is no class folder, or one that holds pictures of all classes.
    """
    return list_class_folders(root / "train")


def list_class_folders(folder: Path) -> list[str]:
    """Return the class names of a folder of class folders, in label order.

    Raises:
        UserError: There is no class folder, or one that holds pictures of all classes.
    """
    scan.require_folder(folder)
    names = scan.list_folders(folder)
    if not names:
        raise UserError(
            f"data.root: {str(folder)!r} has no class folders, {scan.describe_folder(folder)[6:]}."
        )
    if mixed := sorted(set(names) - set(flat.class_folders(folder))):
        raise UserError(
            f"data.root: {str(folder / mixed[0])!r} is not taken for a class, since folders of that name hold "
            "pictures of all classes; put a label.csv beside it, rename it, or name every class in data.classes."
        )
    return names


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index ``root/split/<class>/...``.

    Raises:
        UserError: As ``index_class_folders``.
    """
    return index_class_folders(root, root / split, split, classes, options)


def index_class_folders(
    root: Path, folder: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index ``folder/<class>/...``.

    Args:
        root: Data root.
        folder: The folder of the split.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order; a folder of pictures beyond them is an error.
        options: A training class without a picture is an error unless the classes were given.

    Raises:
        UserError: A folder is no class, a training class has no picture, or another split has none at all.
    """
    scan.require_folder(folder)
    skipped = scan.Skipped()
    present = scan.list_folders(folder, skipped)
    _require_known(folder, present, classes)
    prefix = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
    real = {os.path.realpath(folder / name) for name in present}
    paths: list[str] = []
    labels: list[int] = []
    absent: list[str] = []
    known = set(present)
    for label, name in enumerate(classes):
        pictures = (
            scan.walk_pictures(folder / name, skipped, real) if name in known else []
        )
        if not pictures:
            absent.append(name)
        paths += [f"{prefix}{name}/{picture}" for picture in pictures]
        labels += [label] * len(pictures)
    if not paths and (split != "train" or not present):
        raise UserError(
            f"data.root: the class folders in {str(folder)!r} hold no pictures; add some."
        )
    _check_absent(folder, split, present, absent, options)
    skipped.say(folder)
    return ImageIndex.from_rows(root, paths, labels, classes)


def _require_known(folder: Path, present: list[str], classes: Sequence[str]) -> None:
    unknown = sorted(set(present) - set(classes))
    if unknown := [name for name in unknown if scan.has_picture(folder / name)]:
        raise UserError(
            f"data.root: {str(folder)!r} has {len(unknown)} folders that are not among the "
            f"{len(classes)} classes: {some_of(unknown)}. Rename or remove them, or list every class in "
            "data.classes."
        )


def _check_absent(
    folder: Path, split: str, present: list[str], absent: list[str], options: Options
) -> None:
    """Refuse a training class without pictures unless it was given; say which classes a split lacks."""
    empty = [name for name in absent if name in present]
    if split == "train" and empty and not options.classes_given:
        raise UserError(
            f"data.root: class folder {str(folder / empty[0])!r} has no picture, "
            f"{scan.describe_folder(folder / empty[0])}; {len(empty)} such classes: {some_of(empty)}. "
            "Add pictures or remove the folder; or name the classes in data.classes, with it to keep the "
            "class, without it to leave it out."
        )
    if absent:
        log.warning(
            "%s has no pictures of %d classes: %s.", split, len(absent), some_of(absent)
        )
