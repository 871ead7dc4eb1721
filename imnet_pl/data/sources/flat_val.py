"""Class folders for training, a flat folder with a label file for validation.

::

    root/
      train/n01440764/*.JPEG              as in class folders; train/<wnid>/images/*.JPEG as well
      val/ILSVRC2012_val_00000001.JPEG    all pictures in one folder (or in val/images/, as Tiny-ImageNet)
      val/val_label.txt                   inside val/ or beside it: a file name and a label a line

A line is ``name label``, separated by a comma, a semicolon, a tab or spaces. The label is a class name
(wnid), or its index counted from 0 in the sorted order of class names. ``val_annotations.txt`` of
Tiny-ImageNet is read as well: its columns after the second are boxes.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import archives, flat, folder, official, scan, trace
from imnet_pl.data.sources.labels import LabelReader, guess_format
from imnet_pl.data.sources.layout import Options

# One wnid a line, in the order of the pictures' numbers; comes with TensorFlow's scripts.
_NUMBERED = "imagenet_2012_validation_synset_labels.txt"
_ENDINGS = ("_label", "_labels", "_annotations", "")
_SUFFIXES = (".txt", ".csv", ".tsv")
_SEPARATOR = re.compile(r"\s*[,;\t]\s*|\s+")
_HEADER_NAMES = frozenset(
    ["file", "filename", "image", "image_id", "imageid", "name", "path"]
)


def matches(root: Path, split: str) -> bool:
    """Tell whether pictures lie flat with a label file, or with no labels of any kind."""
    where = root / split
    pictures = flat.picture_folder(where)
    if split == "train" or pictures is None:
        return False
    if find_label_files(root, split):
        return True
    return pictures != where / "images" and not official.has_labels(root)


def find_label_files(root: Path, split: str) -> list[Path]:
    """Return the label files of a split: inside its folder or beside it."""
    names = [split + end + suffix for suffix in _SUFFIXES for end in _ENDINGS]
    names += [_NUMBERED] if split == "val" else []
    files = [folder / name for folder in (root / split, root) for name in names]
    return [file for file in files if file.is_file()]


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the class names that the training folders give, in label order.

    Raises:
        UserError: There is no class folder.
    """
    return folder.list_classes(root, options)


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Index class folders for training, else a flat folder through its label file.

    Args:
        root: Data root.
        split: ``train``, ``val`` or ``test``.
        classes: Class names in label order.
        options: ``label_format`` is ``index0`` (index from 0 in ``classes``), ``index1`` (from 1), ``name``
            (class name) or ``auto``, which refuses a file that can be read in two ways.

    Raises:
        UserError: No or two label files, or a picture, line or label that does not fit.
    """
    if split == "train":
        return folder.index_split(root, split, classes, options)
    where = flat.picture_folder(root / split)
    if where is None:
        raise UserError(f"data.root: {str(root / split)!r} holds no pictures.")
    label_file = _the_label_file(root, split)
    if label_file.name == _NUMBERED:
        lines = enumerate(official.read_lines(label_file), start=1)
        wnids = {f"ILSVRC2012_val_{n:08d}": line.strip() for n, line in lines}
        return flat.index_flat(root, split, where, wnids, label_file, classes)
    skipped = scan.Skipped()
    pictures = scan.list_pictures(where, skipped)
    tokens = _read_label_file(label_file, set(pictures))
    flat.require_rows(label_file, pictures, [p for p in pictures if p not in tokens])
    label_format: str = options.label_format
    if label_format == "auto":
        label_format = guess_format(label_file, tokens, classes)
    to_label = LabelReader(label_file, classes, label_format)
    skipped.say(where)
    labels = [to_label(name, tokens[name]) for name in pictures]
    return flat.index_labelled(root, split, where, pictures, labels, classes)


def _the_label_file(root: Path, split: str) -> Path:
    """Return the one label file of a split."""
    found = find_label_files(root, split)
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"data.root: {split} has {len(found)} label files, {', '.join(str(f) for f in found)}; keep one."
        )
    looked_for = ", ".join(f"{split}{end}.txt" for end in _ENDINGS)
    packed = archives.list_archives(root)
    there = f" (Packed data lies there: {archives.describe(packed)}.)" if packed else ""
    raise UserError(
        f"data.root: the pictures in {str(root / split)!r} lie flat and have no label file; looked for "
        f"{looked_for} (or .csv, .tsv) in {str(root / split)!r} and {str(root)!r}, and in the latter for "
        f"{official.SOLUTION} of Kaggle and the unpacked devkit of ImageNet.{there}"
    )


def _read_label_file(label_file: Path, pictures: set[str]) -> dict[str, str]:
    """Return picture name -> label text as the file gives it."""
    trace.look_at(label_file)
    try:
        lines = label_file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"label file {str(label_file)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from None
    tokens: dict[str, str] = {}
    missing: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, token = _split_line(label_file, number, line, pictures)
        if name not in pictures:
            if number > 1 or name.lower() not in _HEADER_NAMES:
                missing.append(f"line {number}: {name!r}")
        elif tokens.setdefault(name, token) != token:
            raise UserError(
                f"label file {str(label_file)!r} line {number} gives {name!r} the label {token!r}, an "
                f"earlier line {tokens[name]!r}; keep one."
            )
    if missing:
        raise UserError(
            f"label file {str(label_file)!r} names {len(missing)} pictures that are not there "
            f"({some_of(missing, 3)}); restore the pictures or remove the lines."
        )
    return tokens


def _split_line(
    label_file: Path, number: int, line: str, pictures: set[str]
) -> tuple[str, str]:
    """Return (picture name, label text) of a line; the name may hold separators and a folder."""
    line = line.strip()
    separators = list(_SEPARATOR.finditer(line))
    if not separators:
        raise UserError(
            f"label file {str(label_file)!r} line {number} is {line!r}; a picture name, a comma, semicolon, "
            "tab or space, and a label are expected."
        )
    for separator in reversed(separators):
        name = (
            line[: separator.start()].strip("\"'").replace("\\", "/").rpartition("/")[2]
        )
        if name in pictures:
            return name, _first_field(line[separator.end() :])
    # For messages about a name that is not there: a tab, comma or semicolon ends the name, else the last space does.
    marked = [s for s in separators if s.group().strip(" ")]
    cut = marked[0] if marked else separators[-1]
    return line[: cut.start()].strip("\"'"), _first_field(line[cut.end() :])


def _first_field(text: str) -> str:
    """Return the label without the columns that follow it after a tab, comma or semicolon."""
    return re.split(r"[,;\t]", text, maxsplit=1)[0].strip().strip("\"'")
