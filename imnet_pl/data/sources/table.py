"""Tables of text as spreadsheets write them: encoding, separator and header are found, not asked for."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.sources import scan, trace
from imnet_pl.data.sources.notices import say_once

_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SEPARATORS = {
    ",": "commas",
    ";": "semicolons",
    "\t": "tabs",
    "|": "bars",
    " ": "spaces",
}
_CELL = re.compile(r"[^,;|\t\r\n]*[^\x00-\x7f][^,;|\t\r\n]*")
_EXAMPLE_CHARS = 40


@dataclass(frozen=True)
class Table:
    """Columns of a table, all cells without spaces around them.

    Args:
        file: Where it was read.
        columns: Name of a column -> its cells.
        lines: The line of each row in the file, from 1.
    """

    file: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def where(self, row: int) -> str:
        """Return the line of a row, for messages."""
        return f"line {self.lines[row]}"

    def require_filled(self, name: str) -> list[str]:
        """Return a column.

        Raises:
            UserError: A cell is blank.
        """
        cells = self.columns[name]
        if blank := [self.where(row) for row, cell in enumerate(cells) if not cell]:
            raise UserError(
                f"{str(self.file)!r} has {len(blank)} rows without a {name} ({some_of(blank)}); fill the cells "
                "or remove the rows."
            )
        return cells


def read_table(
    file: Path, wanted: Mapping[str, Sequence[str]], required: Sequence[str]
) -> Table:
    """Read the columns of a table that are wanted.

    Args:
        file: The table; separated by commas, semicolons, tabs, bars or spaces.
        wanted: Name of a column -> what else it may be called.
        required: Columns that must be there; the first differs from row to row.

    Raises:
        UserError: It is no text, has no header with the required columns, or a row has too few or too many cells.
    """
    text = io.StringIO(read_text(file), newline="")
    try:
        header, first_line = _read_header(text)
        separator, position = _find_columns(file, header, wanted, required)
        width = len(_cells(header, separator))
        columns: dict[str, list[str]] = {name: [] for name in position}
        lines: list[int] = []
        equal: dict[str, str] = {}  # cells of few texts need few objects
        for number, row in _rows(text, separator):
            lines.append(number + first_line)
            if len(row) < width or any(row[width:]):
                raise UserError(
                    f"{str(file)!r} line {lines[-1]} has {len(row)} cells, the header has {width}; put cells that "
                    f"hold {_SEPARATORS[separator]} into quotes, and leave out none."
                )
            for name, i in position.items():
                cell = (
                    row[i] if name == required[0] else equal.setdefault(row[i], row[i])
                )
                columns[name].append(cell)
    except csv.Error as error:
        raise UserError(
            f"{str(file)!r} can not be read as a table ({error}); correct it."
        ) from None
    return Table(file, columns, lines)


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8, UTF-16 with its mark, or else GBK or cp1252 with a notice.

    Raises:
        UserError: It is in none of these.
    """
    trace.look_at(file)
    data = file.read_bytes()
    encoding = _BOMS.get(data[:2], "utf-8-sig")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        text = _decode_legacy(file, data, error)
    if "\0" in text:
        raise UserError(f"{str(file)!r} is no text; save the table as CSV in UTF-8.")
    return text


def _decode_legacy(file: Path, data: bytes, error: UnicodeDecodeError) -> str:
    encoding = "gbk" if _is_gbk(data) else "cp1252"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{str(file)!r} line {line} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); save the "
            "table as CSV in UTF-8."
        ) from None
    found = _CELL.search(text)
    example = found.group().strip()[:_EXAMPLE_CHARS] if found else ""
    say_once(
        f"{str(file)!r} is not UTF-8 and is read as {encoding}, with cells such as {example!r}; if that is wrong, "
        "save it as CSV in UTF-8."
    )
    return text


def _is_gbk(data: bytes) -> bool:
    """Tell Chinese text from Western text, in which two accented letters seldom stand side by side.

    A character of GB 2312, the common part of GBK, is two bytes from 0xa1 on; Western bytes of that range
    that are taken for the first half of a character mostly have an ASCII letter for the second.
    """
    try:
        text = data.decode("gbk")
    except UnicodeDecodeError:
        return False
    wide = [char for char in text if not char.isascii()]
    common = sum(1 for char in wide if min(char.encode("gbk")) >= 0xA1)
    return 2 * common > len(wide)


def _read_header(text: io.StringIO) -> tuple[str, int]:
    """Return the first line that is not blank nor Excel's ``sep=;``, and its number."""
    number = 0
    for line in iter(text.readline, ""):
        number += 1
        if line.strip() and not re.fullmatch(r'"?sep=.\s*"?\s*', line):
            return line.strip("\r\n"), number
    return "", number


def _cells(line: str, separator: str) -> list[str]:
    line = line.strip() if separator == " " else line
    reader = csv.reader([line], delimiter=separator, skipinitialspace=True)
    return [cell.strip() for cell in next(reader, [])]


def _rows(text: io.StringIO, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the row's last line, its cells), blank rows left out."""
    lines = (line.strip() for line in text) if separator == " " else text
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield reader.line_num, cells


def _find_columns(
    file: Path,
    header: str,
    wanted: Mapping[str, Sequence[str]],
    required: Sequence[str],
) -> tuple[str, dict[str, int]]:
    """Return the separator with which a header has the required columns, and where each wanted column is."""
    for separator in _SEPARATORS:
        seen = [cell.lower().replace(" ", "_") for cell in _cells(header, separator)]
        position = {
            name: seen.index(found)
            for name, others in wanted.items()
            if (found := _column_called(file, seen, name, others))
        }
        if set(required) <= set(position):
            return separator, position
    seen = max((_cells(header, separator) for separator in _SEPARATORS), key=len)
    raise UserError(_describe_header(file, seen, wanted, required))


def _column_called(
    file: Path, seen: list[str], name: str, others: Sequence[str]
) -> str | None:
    """Return the column's own name if a header has it, else the other one that it has."""
    found = [other for other in others if other in seen]
    found = [name] if name in seen else found
    if len(found) > 1 or (found and seen.count(found[0]) > 1):
        raise UserError(
            f"{str(file)!r} has more than one column for the {name}: {some_of(c for c in seen if c in found)}; call "
            f"the right one {name}."
        )
    return found[0] if found else None


def _describe_header(
    file: Path,
    seen: list[str],
    wanted: Mapping[str, Sequence[str]],
    required: Sequence[str],
) -> str:
    names = ",".join(required)
    if not any(seen):
        return f"{str(file)!r} is empty; its first line must be the header {names}."
    columns = some_of(map(repr, seen))
    is_picture = [scan.has_image_suffix(cell) for cell in seen]
    if is_picture == [True]:
        return (
            f"{str(file)!r} is a list of pictures without labels (its first line is {columns}), which is for "
            f"predict --input alone; to train, give a table with the header {names}."
        )
    if any(is_picture):
        return f"{str(file)!r} has no header: its first line has the columns {columns}; put {names} before it."
    also = [f"{name} ({' or '.join(wanted[name])})" for name in required]
    return (
        f"{str(file)!r} has the columns {columns} in its first line, and needs {' and '.join(also)}; rename them, "
        "or put a header there."
    )
