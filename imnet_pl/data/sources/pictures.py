"""Pictures without labels: a folder, one picture, or a list file.

::

    DIR/                 every picture at any depth, sorted
    x.jpg                one picture
    list.txt             a path a line, relative to the list or absolute; blank and # lines are skipped
    list.csv, list.tsv   a header with a column path or filename
"""

import csv
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import NO_LABEL, ImageIndex
from imnet_pl.data.sources import scan

_COLUMNS = ("path", "filename")


def index_pictures(path: str | Path, classes: Sequence[str]) -> ImageIndex:
    """Index pictures without labels; each path stays as the folder or the list gives it.

    Args:
        path: Folder, picture or list file.
        classes: Class names in label order.

    Raises:
        UserError: There is no picture, or a list can not be read or names a file that is not there.
    """
    given = Path(path).expanduser()
    if given.is_dir():
        folder, names = given, _pictures_below(given, str(path))
    elif not given.is_file():
        raise UserError(
            f"--input={str(path)!r} does not exist; give a folder, a picture or a list file, or a split of "
            "the data: train, val or test."
        )
    elif given.suffix.lower() in scan.IMAGE_SUFFIXES:
        folder, names = given.parent, [given.name]
    else:
        folder, names = given.parent, _listed_pictures(given, str(path))
    labels = [NO_LABEL] * len(names)
    return ImageIndex.from_rows(folder.absolute(), names, labels, classes)


def _pictures_below(folder: Path, shown: str) -> list[str]:
    names = scan.walk_pictures(folder)
    if not names:
        raise UserError(
            f"--input={shown!r} is a folder without pictures, {scan.describe_folder(folder)}; give one with "
            "files such as .jpg or .png."
        )
    return names


def _listed_pictures(file: Path, shown: str) -> list[str]:
    """Return the paths of a list file, all of which exist."""
    written = _read_list(file, shown)
    if not written:
        raise UserError(
            f"--input={shown!r} is a list without paths; name one picture a line."
        )
    found = [_existing(file.parent, name) for name in written]
    missing = [name for name, path in zip(written, found, strict=True) if path is None]
    if missing:
        raise UserError(
            f"--input={shown!r} names {len(missing)} files that are not there ({some_of(missing, 3)}); "
            f"correct the paths, which are absolute or relative to {str(file.parent)!r}."
        )
    return [path for path in found if path is not None]


def _existing(folder: Path, name: str) -> str | None:
    """Return the path of a file as written, else with slashes for backslashes; None if neither is there."""
    for path in (name, name.replace("\\", "/")):
        if os.path.isfile(os.path.join(folder, path)):  # noqa: PTH113, PTH118
            return path
    return None


def _read_list(file: Path, shown: str) -> list[str]:
    """Return the paths that a list file names."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            if file.suffix.lower() in (".csv", ".tsv"):
                return _read_table(text, shown)
            lines = (line.strip() for line in text)
            return [line for line in lines if line and not line.startswith("#")]
    except UnicodeDecodeError:
        raise UserError(
            f"--input={shown!r} is no picture by its suffix and no list in UTF-8; save the list as UTF-8, or "
            "rename the picture."
        ) from None
    except csv.Error as error:
        raise UserError(
            f"--input={shown!r} can not be read as a table ({error}); correct it, or give a .txt list."
        ) from None


def _read_table(text: TextIO, shown: str) -> list[str]:
    """Return the column ``path`` or ``filename`` of a table, or the only column of one without a header."""
    header = text.readline()
    # A spreadsheet writes semicolons where the comma is the decimal sign.
    delimiter = next((mark for mark in "\t,;" if mark in header), ",")
    names = [
        name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])
    ]
    lowered = [name.lower() for name in names]
    known = [lowered.index(name) for name in _COLUMNS if name in lowered]
    if not known and len(names) > 1:
        raise UserError(
            f"--input={shown!r} has no column {' or '.join(_COLUMNS)}, but {some_of(names)}; rename the one "
            "with the paths."
        )
    column = known[0] if known else 0
    lines = text if known else chain([header], text)
    rows = csv.reader(lines, delimiter=delimiter)
    paths = [row[column].strip() for row in rows if len(row) > column]
    return [path for path in paths if path]
