"""Class folders.

root/
  train/n01440764/*.JPEG     one folder a class; pictures at any depth below it
  val/n01440764/*.JPEG       the same names as in train, or some of them
  test/n01440764/*.JPEG      optional
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex, PathColumn
from imnet_pl.data.sources import flat, scan, trace
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.notices import say


def matches(root: Path, split: str) -> bool:
    """Tell whether there are class folders; those of val must hold a picture."""
    return has_class_folders(root / split, empty=split == "train")


def has_class_folders(where: Path, empty: bool = False) -> bool:
    """Tell whether a folder has class folders with a picture, or with ``empty`` any."""
    if not where.is_dir():
        return False
    names = flat.class_folders(where, scan.list_folders(where))
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
    classes = set(flat.class_folders(folder, names))
    if mixed := [name for name in names if name not in classes]:
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
    paths, counts = _read_classes(root, folder, present, classes, skipped)
    if not any(counts) and (split != "train" or not present):
        raise UserError(
            f"data.root: the class folders in {str(folder)!r} hold no pictures; add some."
        )
    absent = [name for name, count in zip(classes, counts, strict=True) if not count]
    _check_absent(folder, split, present, absent, options)
    skipped.say(folder)
    labels = np.repeat(np.arange(len(classes)), counts)
    return ImageIndex(str(root), *paths.arrays(), labels, tuple(classes))


def _read_classes(
    root: Path,
    folder: Path,
    present: list[str],
    classes: Sequence[str],
    skipped: scan.Skipped,
) -> tuple[PathColumn, list[int]]:
    """Return the paths of all classes, and how many each has."""
    prefix = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
    real = {os.path.realpath(folder / name) for name in present}

    def read(name: str) -> tuple[PathColumn, scan.Skipped]:
        column, left_out = PathColumn(), scan.Skipped()
        if name in known:
            pictures = scan.walk_pictures(folder / name, left_out, real)
            column.extend(pictures, prefix=f"{prefix}{name}/")
        return column, left_out

    known, paths = set(present), PathColumn()
    counts: list[int] = []
    for column, left_out in trace.in_threads(read, classes):
        paths.join(column)
        skipped.add(left_out)
        counts.append(len(column))
        trace.count_pictures(len(column))
    return paths, counts


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
        names = some_of(absent)
        say(f"{split} has no pictures of {len(absent)} classes: {names}.")
