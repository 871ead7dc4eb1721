"""A struct array in a MAT-file, as a devkit's meta.mat holds it.

SciPy's reader can end the process on a damaged file. Here is what of level 5 of the format (MATLAB 5 to 7) such a
table needs: elements of (type, size, content), the whole array in one that may be compressed.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator

Value = str | int | float

_HEADER_BYTES = 128
_MOST_BYTES = 2**26  # of an array; that of the devkits has 2 MB
_MATRIX, _COMPRESSED, _STRUCT, _CHAR = 14, 15, 2, 4
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d"}
_NUMBERS |= {12: "q", 13: "Q"}
_WIDE_TEXTS = {4, 17}
_ORDERS = {b"IM": "<", b"MI": ">"}


def read_structs(
    data: bytes, array: str, is_wanted: Callable[[str], bool]
) -> list[dict[str, Value]]:
    """Return the structs of an array in order, each as field name -> text or number.

    Args:
        data: The file.
        array: Name of the struct array.
        is_wanted: Tells by its name whether a field is read; each must hold one text or one number.

    Raises:
        ValueError: The file is damaged, of another kind, or lacks the array.
    """
    order = _ORDERS.get(data[126:128])
    if order is None:
        raise ValueError("it is no MAT-file of level 5")
    try:
        for kind, content in _elements(memoryview(data)[_HEADER_BYTES:], order):
            if kind == _COMPRESSED:
                kind, content = next(_elements(_inflate(content), order))
            if kind != _MATRIX:
                continue
            class_, name, rest = _open_matrix(content, order)
            if (class_, name) == (_STRUCT, array):
                return _read_structs(content, rest, order, is_wanted)
    except (struct.error, zlib.error, LookupError, StopIteration) as error:
        raise ValueError(f"it is damaged: {error or 'an element is missing'}") from None
    raise ValueError(f"it has no struct array {array!r}")


def _inflate(content: memoryview) -> memoryview:
    stream = zlib.decompressobj()
    data = stream.decompress(content, _MOST_BYTES)
    if not stream.eof:
        raise ValueError("a compressed part of it is cut off, or too large")
    return memoryview(data)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, content) of the elements that follow one another."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start, length = at + 8, size
        if kind >> 16:  # a small one, within its tag
            kind, size, start, length = kind & 0xFFFF, kind >> 16, at + 4, 4
        elif kind != _COMPRESSED:
            length = -(-size // 8) * 8
        if size > length or start + size > len(data):
            raise ValueError("an element of it is cut off")
        yield kind, data[start : start + size]
        at = start + length


def _open_matrix(content: memoryview, order: str) -> tuple[int, str, int]:
    """Return class and name of an array, and at which of its elements its values begin."""
    elements = _elements(content, order)
    _, flags = next(elements)
    next(elements)
    _, name = next(elements)
    return flags[0 if order == "<" else 3], _text(name), 3


def _read_structs(
    content: memoryview, rest: int, order: str, is_wanted: Callable[[str], bool]
) -> list[dict[str, Value]]:
    elements = list(_elements(content, order))
    shape = struct.unpack(f"{order}{len(elements[1][1]) // 4}i", elements[1][1])
    (width,) = struct.unpack(f"{order}i", elements[rest][1])
    joined = bytes(elements[rest + 1][1])
    names = [
        _text(joined[start : start + width].split(b"\0")[0])
        for start in range(0, len(joined), max(1, width))
    ]
    values = [content for kind, content in elements[rest + 2 :] if kind == _MATRIX]
    if not names or len(values) != math.prod(shape) * len(names):
        raise ValueError("it has not as many values as it says")
    starts = range(0, len(values), len(names))
    rows = [values[start : start + len(names)] for start in starts]
    return [
        {
            name: _read_value(value, order)
            for name, value in zip(names, row, strict=True)
            if is_wanted(name)
        }
        for row in rows
    ]


def _read_value(content: memoryview, order: str) -> Value:
    class_, _, rest = _open_matrix(content, order)
    kind, values = list(_elements(content, order))[rest]
    if class_ == _CHAR:
        if kind in _WIDE_TEXTS:
            return str(values, "utf-16-le" if order == "<" else "utf-16-be")
        return _text(values)
    (number,) = struct.unpack(order + _NUMBERS[kind], values)
    assert isinstance(number, int | float)
    return number


def _text(content: bytes | memoryview) -> str:
    return str(content, "utf-8")
