"""Class names that the user gives: a list, or a text file with one a line."""

import re
from collections import Counter
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of

_WNID_AND_MORE = re.compile(r"n\d{8}[\s,;:]+\S")
_NUM_WITH_BACKGROUND = 1001
_BACKGROUND = ("background", "dummy")


def read_classes(classes: list[str] | str) -> list[str]:
    """Return class names from a list or a text file, one a line.

    Raises:
        UserError: The file is absent, not UTF-8 or no list of names, or a name is blank or occurs twice.
    """
    names = _read_file(classes) if isinstance(classes, str) else classes
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise UserError(
            f"data.classes names {some_of(twice)} more than once; class names are unique: where two classes share a "
            "human name, as crane in ImageNet, use wnids."
        )
    if not names:
        raise UserError("data.classes is empty; name one class a line.")
    if not all(name.strip() for name in names):
        raise UserError("data.classes has a blank name; name every class.")
    return names


def _read_file(given: str) -> list[str]:
    file = Path(given).expanduser()
    if not file.is_file():
        raise UserError(
            f"data.classes={given!r} is no file; give a text file, one class a line."
        )
    try:
        lines = file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError:
        raise UserError(
            f"data.classes={given!r} is not UTF-8 text; save it as UTF-8."
        ) from None
    names = [line.strip() for line in lines]
    if "" in names:
        raise UserError(
            f"data.classes={given!r} has a blank line, {names.index('') + 1}, which would be a class without a name; "
            "remove it, or name the class."
        )
    if len(names) == _NUM_WITH_BACKGROUND and names[0].lower() in _BACKGROUND:
        raise UserError(
            f"data.classes={given!r} has {len(names)} lines and begins with {names[0]!r}: it is a list of TensorFlow, "
            "by which every label would be one too high; remove the first line, so that 1,000 are left."
        )
    if more := [name for name in names if _WNID_AND_MORE.match(name)]:
        raise UserError(
            f"data.classes={given!r} has more than one name in a line, such as {more[0]!r}; keep the wnids alone."
        )
    return names
