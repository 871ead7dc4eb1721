"""Class folders for training, a flat folder with a label file for validation.

::

    root/
      train/n01440764/*.JPEG              as in class folders; train/<wnid>/images/*.JPEG as well
      val/ILSVRC2012_val_00000001.JPEG    all pictures in one folder (or in val/images/, as Tiny-ImageNet)
      val/val_label.txt                   inside val/ or beside it: a file name and a label a line

A line is ``name label``, separated by a comma, a tab or spaces. The label is a class name (wnid), or its
index counted from 0 in the sorted order of class names. ``val_annotations.txt`` of Tiny-ImageNet is read
as well: its columns after the second are boxes.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import scan

log = logging.getLogger(__name__)

LabelFormat = Literal["auto", "index0", "index1", "name"]
_INTEGER = re.compile(r"-?\d+")
_HEADER_NAMES = frozenset(
    ["file", "filename", "image", "image_id", "imageid", "name", "path"]
)


def label_file_names(split: str) -> tuple[str, ...]:
    """Return the names that a label file of a split may have."""
    return tuple(
        f"{split}{ending}.txt" for ending in ("_label", "_labels", "_annotations", "")
    )


def find_label_files(root: Path, split: str) -> list[Path]:
    """Return the label files of a split: inside its folder or beside it."""
    folders = (root / split, root)
    return [
        f / name
        for f in folders
        for name in label_file_names(split)
        if (f / name).is_file()
    ]


def picture_folder(root: Path, split: str) -> Path | None:
    """Return the flat folder of pictures, ``root/split`` or ``root/split/images``; None if neither is one."""
    for folder in (root / split, root / split / "images"):
        if folder.is_dir() and scan.list_pictures(folder):
            return folder
    return None


def index_flat_val(
    root: Path, split: str, classes: Sequence[str], label_format: str = "auto"
) -> ImageIndex:
    """Index a flat folder through its label file.

    Args:
        root: Data root.
        split: ``val`` or ``test``.
        classes: Class names in label order.
        label_format: ``index0`` (index from 0 in ``classes``), ``index1`` (from 1), ``name`` (class name)
            or ``auto``, which refuses a file that can be read in two ways.

    Raises:
        UserError: No or two label files, or a picture, line or label that does not fit.
    """
    folder = picture_folder(root, split)
    if folder is None:
        raise UserError(f"data.root: {str(root / split)!r} holds no pictures.")
    label_file = _the_label_file(root, split)
    pictures = scan.list_pictures(folder)
    tokens = _read_label_file(label_file, set(pictures))
    _check_complete(label_file, pictures, tokens)
    to_label = _label_reader(label_file, tokens, classes, label_format)
    prefix = folder.relative_to(root).as_posix()
    labels = [to_label(name, tokens[name]) for name in pictures]
    if lacking := sorted(set(range(len(classes))) - set(labels)):
        names = some_of([classes[i] for i in lacking])
        log.warning("%s has no pictures of %d classes: %s.", split, len(lacking), names)
    return ImageIndex.from_rows(
        root, [f"{prefix}/{name}" for name in pictures], labels, classes
    )


def _the_label_file(root: Path, split: str) -> Path:
    """Return the one label file of a split."""
    found = find_label_files(root, split)
    if len(found) == 1:
        return found[0]
    if not found:
        looked_for = ", ".join(label_file_names(split))
        raise UserError(
            f"data.root: the pictures in {str(root / split)!r} lie flat and have no label file; looked for "
            f"{looked_for} in {str(root / split)!r} and {str(root)!r}."
        )
    raise UserError(
        f"data.root: {split} has {len(found)} label files, {', '.join(str(f) for f in found)}; keep one."
    )


def _read_label_file(label_file: Path, pictures: set[str]) -> dict[str, str]:
    """Return picture name -> label text as the file gives it."""
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
    separators = list(re.finditer(r"\s*[,\t]\s*|\s+", line))
    if not separators:
        raise UserError(
            f"label file {str(label_file)!r} line {number} is {line!r}; a picture name, a comma, tab or "
            "space, and a label are expected."
        )
    for separator in reversed(separators):
        name = (
            line[: separator.start()].strip("\"'").replace("\\", "/").rpartition("/")[2]
        )
        if name in pictures:
            return name, _first_field(line[separator.end() :])
    # For messages about a name that is not there: a tab or comma ends the name, else the last space does.
    marked = [s for s in separators if s.group().strip(" ")]
    cut = marked[0] if marked else separators[-1]
    return line[: cut.start()].strip("\"'"), _first_field(line[cut.end() :])


def _first_field(text: str) -> str:
    """Return the label without the columns that follow it after a tab or comma."""
    return re.split(r"[,\t]", text, maxsplit=1)[0].strip().strip("\"'")


def _check_complete(
    label_file: Path, pictures: list[str], tokens: dict[str, str]
) -> None:
    if unlabelled := [name for name in pictures if name not in tokens]:
        raise UserError(
            f"label file {str(label_file)!r} has no line for {len(unlabelled)} of {len(pictures)} pictures: "
            f"{some_of(unlabelled, 3)}; add the lines or remove the pictures."
        )


class _LabelReader:
    """Turns the label text of a picture into its label."""

    def __init__(
        self, label_file: Path, classes: Sequence[str], label_format: str
    ) -> None:
        self.label_file, self.classes, self.label_format = (
            label_file,
            classes,
            label_format,
        )
        self.class_to_idx = {name: i for i, name in enumerate(classes)}

    def __call__(self, name: str, token: str) -> int:
        if self.label_format == "name":
            label = self.class_to_idx.get(token, -1)
            allowed = f"one of the {len(self.classes)} class names ({some_of(self.classes, 3)})"
        else:
            first = int(self.label_format[-1])
            label = int(token) - first if _INTEGER.fullmatch(token) else -1
            allowed = f"an index from {first} to {len(self.classes) - 1 + first}"
        if not 0 <= label < len(self.classes):
            raise UserError(
                f"label file {str(self.label_file)!r} gives {name!r} the label {token!r}, which is not "
                f"{allowed}; correct the file, or data.label_format={self.label_format!r}."
            )
        return label


def _label_reader(
    label_file: Path, tokens: dict[str, str], classes: Sequence[str], label_format: str
) -> _LabelReader:
    """Decide how labels are written, and refuse where two readings differ."""
    if label_format == "auto":
        label_format = _guess_format(label_file, tokens, classes)
    return _LabelReader(label_file, classes, label_format)


def _guess_format(
    label_file: Path, tokens: dict[str, str], classes: Sequence[str]
) -> str:
    texts = set(tokens.values())
    as_names = texts <= set(classes)
    if not all(_INTEGER.fullmatch(text) for text in texts):
        return "name"
    indices = {int(text) for text in texts}
    if as_names and any(
        int(text) >= len(classes) or classes[int(text)] != text for text in texts
    ):
        reading = "a class name, or an index into the sorted class names (as text: '10' before '2')"
        raise _two_readings(label_file, tokens, classes, reading, "name or index0")
    if as_names:
        return "name"
    if len(classes) in indices and 0 not in indices:
        reading = f"an index from 1 to {len(classes)}, or from 0, where {len(classes)} does not exist"
        raise _two_readings(label_file, tokens, classes, reading, "index1 or index0")
    return "index0"


def _two_readings(
    label_file: Path,
    tokens: dict[str, str],
    classes: Sequence[str],
    reading: str,
    choices: str,
) -> UserError:
    name, text = min(tokens.items(), key=lambda row: int(row[1]))
    index = int(text)
    from_0 = classes[index] if index < len(classes) else "no class"
    other = text if text in classes else classes[index - 1]
    return UserError(
        f"label file {str(label_file)!r} can be read in two ways, each label being {reading}: {name!r} with "
        f"label {text} is of class {other!r} or {from_0!r}. Say which with data.label_format: {choices}. (The "
        "ids of the official devkit also run from 1, but not in the sorted order of wnids.)"
    )
