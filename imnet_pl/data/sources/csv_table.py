"""A table that names each picture and its class: CSV or TSV, given as data.root.

data.csv                     filename,label[,group][,time][,split]
images/0001.jpg              paths are relative to the table, to images/ beside it, or to data.image_root

or a table for each split, which auto knows by exactly these names:

root/
  train/label.csv            filename,label
  train/images/*.jpg
  val/label.csv              or a column split in train/label.csv: train, val or test
  val/images/*.jpg
"""

import math
import posixpath
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from imnet_pl.core.errors import UserError
from imnet_pl.data.index import Codes, ImageIndex
from imnet_pl.data.sources import flat, labels
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.notices import say_once
from imnet_pl.data.sources.picture_paths import PictureFinder
from imnet_pl.data.sources.table import Table, read_table

SUFFIXES = (".csv", ".tsv", ".txt")
_COLUMNS = {
    "filename": ("file", "path", "image", "file_name", "filepath", "image_path"),
    "label": ("class", "wnid", "target", "category", "class_name"),
    "group": (),
    "time": ("date", "timestamp"),
    "split": (),
}
_SPLITS = {
    name: split
    for split, names in {
        "train": ("train", "training"),
        "val": ("val", "valid", "validation"),
        "test": ("test", "testing"),
    }.items()
    for name in names
}


def is_table(file: Path) -> bool:
    """Tell by its name whether a file is a table."""
    return file.suffix.lower() in SUFFIXES


def matches(root: Path, split: str) -> bool:
    """Tell whether ``root`` is a table, or holds ``label.csv`` and ``images`` for a split."""
    if root.is_file():
        return is_table(root)
    if _is_labelled(root / split):
        return True
    if split == "train" or (root / split).exists() or not _is_labelled(root / "train"):
        return False
    return has_rows(root / "train" / "label.csv", split)


def _is_labelled(folder: Path) -> bool:
    return (folder / "label.csv").is_file() and (folder / "images").is_dir()


def has_rows(file: Path, split: str) -> bool:
    """Tell whether a table has a column that puts some of its rows into a split."""
    splits = _read(file).columns.get("split", [])
    return any(_SPLITS.get(text.lower()) == split for text in set(splits))


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the labels of the training rows, sorted as text.

    Raises:
        UserError: The table is not usable, or its labels are indices.
    """
    if options.label_format in ("index0", "index1"):
        raise UserError(
            f"data.label_format={options.label_format!r} reads the labels of a table as indices into data.classes, "
            "which is missing; name the classes."
        )
    file, is_of_split = _find_table(root, "train")
    table = _read(file)
    texts = _label_texts(table)
    names = sorted({texts[row] for row in _rows_of(table, "train", is_of_split)})
    labels.require_distinct(file, names)
    return names


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index the rows of a split.

    Args:
        root: The table, or a folder with one for each split.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order.
        options: Labels are class names unless ``label_format`` is ``index0`` or ``index1``.

    Raises:
        UserError: The table is not usable, a picture is not there, or a label is no class.
    """
    file, is_of_split = _find_table(root, split)
    table = _read(file)
    texts = _label_texts(table)
    finder = _finder(root.parent if root.is_file() else root, file, options)
    rows = _rows_of(table, split, is_of_split)
    rows, paths = _each_once(table, rows, finder.find_all(table, rows), texts)
    label_format = "name" if options.label_format == "auto" else options.label_format
    to_label = labels.LabelReader(file, classes, label_format)
    written = table.columns["filename"]
    example = {texts[row]: written[row] for row in reversed(rows)}
    label_of = {text: to_label(name, text) for text, name in example.items()}
    targets = [label_of[texts[row]] for row in rows]
    flat.say_lacking(split, targets, classes)
    return ImageIndex.from_rows(
        finder.root,
        paths,
        targets,
        classes,
        groups=_codes(table, "group", rows),
        times=_codes(table, "time", rows, _time_value(table)),
    )


def _find_table(root: Path, split: str) -> tuple[Path, bool]:
    """Return the table with the rows of a split, and whether it is named for this split alone."""
    if root.is_file():
        return root, False
    own = _tables_named(root, split)
    shared = [] if split == "train" else _tables_named(root, "train")
    for found in (own, shared):
        if len(found) > 1:
            raise UserError(
                f"data.root: there are {len(found)} tables, {', '.join(map(str, found))}; keep one, or give one as "
                "data.root."
            )
        if found:
            return found[0], found == own
    raise UserError(
        f"data.root={str(root)!r} has no table of split {split!r}; looked for {split}/label.csv, {split}.csv and "
        f"{split}.tsv. Give the table itself as data.root, or make one of these."
    )


def _tables_named(root: Path, split: str) -> list[Path]:
    names = (f"{split}/label.csv", f"{split}.csv", f"{split}.tsv")
    return [root / name for name in names if (root / name).is_file()]


def _read(file: Path) -> Table:
    return read_table(file, _COLUMNS, ("filename", "label"))


def read_labels(file: Path) -> dict[str, str]:
    """Return what a table says: file name -> label.

    Raises:
        UserError: It has no such columns.
    """
    table = _read(file)
    return dict(zip(table.columns["filename"], _label_texts(table), strict=True))


def _label_texts(table: Table) -> list[str]:
    """Return the label of each row as the name of its class."""
    written = table.require_filled("label")
    texts = labels.drop_decimals(written)
    if texts != written:
        say_once(
            f"{str(table.file)!r} has whole numbers such as 3.0 for labels, which are read as 3 (01 stays 01)."
        )
    return texts


def _rows_of(table: Table, split: str, is_of_split: bool) -> list[int]:
    """Return the rows of a split: all, unless the table has a column for it."""
    table.require_filled("filename")
    if "split" in table.columns:
        rows = [row for row, name in enumerate(_split_names(table)) if name == split]
    elif is_of_split or split == "train":
        rows = list(range(len(table.lines)))
    else:
        raise UserError(
            f"{str(table.file)!r} has no column split, so that all its rows are of train and none is of {split}; add "
            "the column, with train, val or test in each row."
        )
    if not rows:
        there = ", ".join(sorted(set(table.columns.get("split", [])))) or "no rows"
        raise UserError(
            f"{str(table.file)!r} has no row of split {split!r}, but {there}; add rows."
        )
    return rows


def _split_names(table: Table) -> list[str]:
    """Return the split of each row; no picture is in two."""
    splits: list[str] = []
    row_of: dict[str, int] = {}
    for row, text in enumerate(table.require_filled("split")):
        if text.lower() not in _SPLITS:
            raise UserError(
                f"{str(table.file)!r} {table.where(row)} has the split {text!r}; write train, val or test."
            )
        splits.append(_SPLITS[text.lower()])
        written = table.columns["filename"][row]
        other = row_of.setdefault(posixpath.normpath(written.replace("\\", "/")), row)
        if splits[other] != splits[row]:
            raise UserError(
                f"{str(table.file)!r} has {written!r} in {splits[other]} ({table.where(other)}) and in {splits[row]} "
                f"({table.where(row)}); keep one."
            )
    return splits


def _finder(folder: Path, file: Path, options: Options) -> PictureFinder:
    if options.image_root is None:
        beside = file.parent.relative_to(folder).as_posix()
        return PictureFinder(folder, [beside, f"{beside}/images", "."])
    if not options.image_root.is_dir():
        raise UserError(
            f"data.image_root={str(options.image_root)!r} is no folder; give the one that the paths of "
            f"{str(file)!r} are relative to."
        )
    return PictureFinder(options.image_root.absolute(), ["."])


def _each_once(
    table: Table, rows: list[int], paths: list[str], texts: list[str]
) -> tuple[list[int], list[str]]:
    """Return rows and paths without repeated pictures."""
    row_of: dict[str, int] = {}
    for row, path in zip(rows, paths, strict=True):
        other = row_of.setdefault(path, row)
        if texts[other] != texts[row]:
            raise UserError(
                f"{str(table.file)!r} gives {path!r} the label {texts[other]!r} ({table.where(other)}) and "
                f"{texts[row]!r} ({table.where(row)}); keep one."
            )
    if repeated := len(rows) - len(row_of):
        say_once(
            f"{str(table.file)!r}: {repeated} rows name a picture of an earlier row again; each is used once."
        )
    return list(row_of.values()), list(row_of)


def _codes(
    table: Table, name: str, rows: list[int], value: Callable[[str], Any] = str
) -> Codes | None:
    if name not in table.columns:
        return None
    return Codes.from_texts([table.columns[name][row] for row in rows], value)


def _time_value(table: Table) -> Callable[[str], Any]:
    """Return what turns a time into something with an order: a number, or a date."""
    texts = table.columns.get("time", [])
    if all(_is_number(text) for text in set(texts) if text):
        return float
    zones = set()
    for row, text in enumerate(texts):
        try:
            zones.update([datetime.fromisoformat(text).tzinfo is None] if text else [])
        except ValueError:
            raise UserError(
                f"{str(table.file)!r} {table.where(row)} has the time {text!r}; write all as numbers, or as ISO dates "
                "such as 2026-03-31 or 2026-03-31T14:05."
            ) from None
    if len(zones) > 1:
        raise UserError(
            f"{str(table.file)!r} has times with and without a time zone; write all in one way."
        )
    return datetime.fromisoformat


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
