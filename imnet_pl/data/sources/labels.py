"""From the text of a label to its number: names or indices, never by a guess between two readings."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError, nearest_hint, some_of
from imnet_pl.data.sources.notices import say_once

_INTEGER = re.compile(r"-?\d+")
_WHOLE_NUMBER = re.compile(r"(-?\d+)(\.0*)?")
_TABLE_ROWS = 12


class LabelReader:
    """Turns the label text of a picture into its label.

    Args:
        label_file: For messages.
        classes: Class names in label order.
        label_format: ``name``, ``index0`` or ``index1``.
    """

    def __init__(
        self, label_file: Path, classes: Sequence[str], label_format: str
    ) -> None:
        self.label_file, self.classes = label_file, classes
        self.label_format = label_format
        self.class_to_idx = {name: i for i, name in enumerate(classes)}

    def __call__(self, name: str, token: str) -> int:
        """Return the label of the picture ``name``, of which the file says ``token``.

        Raises:
            UserError: It is no class.
        """
        hint = ""
        if self.label_format == "name":
            label = self.class_to_idx.get(token, -1)
            allowed = f"one of the {len(self.classes)} class names ({some_of(self.classes, 3)})"
            hint = nearest_hint(token, self.classes) if label < 0 else ""
        else:
            first = int(self.label_format[-1])
            label = int(token) - first if _INTEGER.fullmatch(token) else -1
            allowed = f"an index from {first} to {len(self.classes) - 1 + first}"
        if not 0 <= label < len(self.classes):
            raise UserError(
                f"label file {str(self.label_file)!r} gives {name!r} the label {token!r}, which is not "
                f"{allowed}; correct the file, data.classes, or data.label_format={self.label_format!r}.{hint}"
            )
        return label


def guess_format(
    label_file: Path, tokens: Mapping[str, str], classes: Sequence[str]
) -> str:
    """Return how a label file writes labels: ``name`` or ``index0``.

    Args:
        label_file: For messages.
        tokens: Picture name -> label text.
        classes: Class names in label order.

    Raises:
        UserError: It can be read in two ways.
    """
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
    tokens: Mapping[str, str],
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


def say_integer_order(classes: Sequence[str]) -> None:
    """Say once, with a table, when the order of class names is not that of the numbers that they are."""
    if not all(_INTEGER.fullmatch(name) for name in classes):
        return
    if list(classes) == sorted(classes, key=int):
        return
    rows = [f"{label} {name!r}" for label, name in enumerate(classes)]
    say_once(
        f"the class names are numbers and sort as text ('10' before '2'): label and class are "
        f"{some_of(rows, _TABLE_ROWS)}. A network whose outputs are in the order of the numbers needs "
        "data.classes, a file with one class a line in that order."
    )


def drop_decimals(labels: Sequence[str]) -> list[str]:
    """Return labels with 3.0 as 3 if all are whole numbers, as a table with a gap writes them.

    Zeros in front stay: 01 is another text than 1.
    """
    distinct = {text: _WHOLE_NUMBER.fullmatch(text) for text in set(labels)}
    if not all(distinct.values()):
        return list(labels)
    whole = {text: match[1] for text, match in distinct.items() if match}
    return [whole[text] for text in labels]


def require_distinct(file: Path, names: Sequence[str]) -> None:
    """Raise if two class names of a table look like one that was typed in two ways.

    Raises:
        UserError: They differ only in case, in how accents are encoded, or in zeros of a number.
    """
    seen: dict[str, str] = {}
    for name in names:
        is_number = _INTEGER.fullmatch(name)
        key = unicodedata.normalize("NFKC", name).casefold()
        other = seen.setdefault(str(int(name)) if is_number else key, name)
        if other != name:
            raise UserError(
                f"label file {str(file)!r} has the labels {other!r} and {name!r}, which look like one class "
                "written in two ways; write it in one way, or name both in data.classes."
            )
