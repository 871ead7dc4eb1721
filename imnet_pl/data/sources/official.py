"""Where ImageNet-1K's own pictures and label files lie, as it is shipped; what kaggle and devkit share."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import flat, folder, trace
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.notices import say_once

SOLUTION = "LOC_val_solution.csv"
GROUND_TRUTH = "ILSVRC20??*_validation_ground_truth.txt"
_TRUTH_NAME = re.compile(r"ILSVRC20\d\d(_clsloc)?_validation_ground_truth\.txt")
_TREES = ("ILSVRC*/Data/CLS-LOC", "Data/CLS-LOC")
_KITS = (
    *("", "data/", "*devkit*/", "*devkit*/data/", "*devkit*/*devkit*/data/"),
    *("ILSVRC*/*devkit*/", "ILSVRC*/*devkit*/data/"),
)


def split_folder(root: Path, split: str) -> Path:
    """Return where the pictures of a split are: in ImageNet's own tree if there is one, else ``root/split``.

    Raises:
        UserError: There are two trees.
    """
    if not root.is_dir():
        return root / split
    trees = [tree for pattern in _TREES for tree in sorted(root.glob(pattern))]
    places = [*(tree / split for tree in trees), root / f"ILSVRC2012_img_{split}"]
    places = [place for place in places if place.is_dir()]
    if len(places) > 1:
        raise UserError(
            f"data.root={str(root)!r} has split {split!r} in {len(places)} trees, {', '.join(map(str, places))}; "
            "give one of them, or the folder that holds it alone."
        )
    return places[0] if places else root / split


def has_split(root: Path, split: str) -> bool:
    """Tell whether ImageNet's own tree holds labelled pictures of a split, in class folders or flat."""
    where = split_folder(root, split)
    if where == root / split or split == "test":
        return False
    is_flat = split == "val" and flat.picture_folder(where) is not None
    return is_flat or folder.has_class_folders(where)


def has_flat_val(root: Path, split: str) -> bool:
    """Tell whether ``root/val`` holds pictures without class folders."""
    return split == "val" and flat.picture_folder(root / split) is not None


def find_beside(root: Path, name: str) -> Path | None:
    """Return a file of Kaggle's: in ``root``, or where the tree begins when ``root`` lies within it."""
    trace.look_at(*_above(root))
    files = (folder / name for folder in _above(root))
    return next((file for file in files if file.is_file()), None)


def find_ground_truths(root: Path) -> list[Path]:
    """Return the ground truths of unpacked devkits, for classification."""
    found = [
        file
        for folder in _above(root)
        for kit in _KITS
        for file in sorted(folder.glob(kit + GROUND_TRUTH))
        if _TRUTH_NAME.fullmatch(file.name)
    ]
    trace.look_at(*_above(root), *(file.parent for file in found))
    return list(dict.fromkeys(found))


def has_labels(root: Path) -> bool:
    """Tell whether Kaggle's or a devkit's labels of val are there."""
    return find_beside(root, SOLUTION) is not None or bool(find_ground_truths(root))


def _above(root: Path) -> list[Path]:
    """Return ``root`` and the folders above it that are of the same tree."""
    if not root.is_dir():
        return []
    root = root.absolute()
    if root.name == "CLS-LOC":
        return [root, *root.parents[:3]]
    return [root, root.parent] if root.name.startswith("ILSVRC") else [root]


def list_classes(root: Path, table: Sequence[str], file: Path | None) -> list[str]:
    """Return the class names of the training folders, else of a class table, in sorted order.

    Args:
        root: Data root.
        table: Class names of the table; empty: there is none.
        file: The table's file.

    Raises:
        UserError: There is neither, or a training folder is not in the table.
    """
    train = split_folder(root, "train")
    if not train.is_dir() and table:
        return sorted(table)
    names = folder.list_class_folders(train)
    if file is None:
        return names
    if unknown := sorted(set(names) - set(table)):
        raise UserError(
            f"data.root: {str(train)!r} has {len(unknown)} folders that are not in {file.name}: "
            f"{some_of(unknown)}. Remove them, or name every class in data.classes."
        )
    if lacking := sorted(set(table) - set(names)):
        say_once(
            f"train has {len(names)} of the {len(table)} classes of {file.name}; it lacks {some_of(lacking, 3)}.",
            logging.WARNING,
        )
    return names


def index_split(
    root: Path,
    split: str,
    classes: Sequence[str],
    options: Options,
    wnids: Mapping[str, str] | None,
    truth: Path | None,
) -> ImageIndex:
    """Index class folders, or the flat folder of val through its truth.

    Args:
        root: Data root.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order.
        options: See ``folder.index_class_folders``.
        wnids: Picture name without suffix -> wnid; not needed for class folders.
        truth: The file that ``wnids`` come from.

    Raises:
        UserError: The split is not there, has no labels, or does not fit the classes.
    """
    where = split_folder(root, split)
    if split == "test":
        raise UserError(
            f"data.root: the test pictures of ImageNet have no labels; predict them with --input {where}."
        )
    pictures = flat.picture_folder(where) if split == "val" else None
    if pictures is None:
        return folder.index_class_folders(root, where, split, classes, options)
    if wnids is None or truth is None:
        raise UserError(
            f"data.root: the pictures in {str(pictures)!r} lie flat and their labels are missing; looked for "
            f"{SOLUTION} of Kaggle in {some_of(map(str, _above(root)))}, and there and in the folders devkit/data "
            f"and ILSVRC2012_devkit_t12/data for {GROUND_TRUTH}."
        )
    return flat.index_flat(root, split, pictures, wnids, truth, classes)


def read_lines(file: Path) -> list[str]:
    """Return the lines of an official text file.

    Raises:
        UserError: It is no text.
    """
    trace.look_at(file)
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{str(file)!r} is not UTF-8 text (byte {error.start}); unpack it again."
        ) from None
