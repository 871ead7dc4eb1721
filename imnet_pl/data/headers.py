"""What the head of a picture file says, read without a decoder; damage is never an error here."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UPRIGHT = 1
# Orientation by EXIF -> (transpose first, then flip vertically, flip horizontally).
_TURNS = {
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
_ORIENTATION_TAG, _SHORT = 0x0112, 3

END_OF_IMAGE = b"\xff\xd9"
_APP1, _START_OF_SCAN = 0xE1, 0xDA
_ANY_MARKER = re.compile(rb"\xff[^\x00]")
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
_SEQUENTIAL_FRAMES, _PROGRESSIVE_FRAME = {0xC0, 0xC1}, 0xC2  # of Huffman codes

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_PIXEL_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (marker, where its content starts, content) of a JPEG up to and with the first start of scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in _WITHOUT_LENGTH:
            at += 1 if marker == 0xFF else 2
            continue
        length = max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        yield marker, at + 4, data[at + 4 : at + 2 + length]
        if marker == _START_OF_SCAN:
            return
        at += 2 + length


def jpeg_orientation(data: bytes) -> int:
    """Return the orientation that a JPEG's EXIF gives, 1 to 8; 1 where there is none."""
    for marker, _, content in jpeg_segments(data):
        if marker == _APP1 and content.startswith(b"Exif\0"):
            return exif_orientation(content)
    return UPRIGHT


class _Frame(NamedTuple):
    """Where the pixels of a JPEG are, and how they are stored.

    Args:
        marker: Of the kind of frame.
        height_at: Where its height stands, in two bytes.
        in_one_scan: Whether the first scan has all components.
        scan_at: Where the pixels of that scan start.
    """

    marker: int
    height_at: int
    in_one_scan: bool
    scan_at: int

    @property
    def row_by_row(self) -> bool:
        """Whether rows of blocks stand one after another."""
        return self.in_one_scan and self.marker in _SEQUENTIAL_FRAMES


def _jpeg_frame(data: bytes) -> _Frame | None:
    """Return the frame of a JPEG with Huffman codes; None of any other."""
    marker = height_at = num_components = 0
    for found, at, content in jpeg_segments(data):
        if found in (*_SEQUENTIAL_FRAMES, _PROGRESSIVE_FRAME) and len(content) > 5:
            marker, height_at, num_components = found, at + 1, content[5]
        if found == _START_OF_SCAN and marker:
            has_all = content[:1] == bytes([num_components])
            return _Frame(marker, height_at, has_all, at + len(content))
    return None


def jpeg_min_bits(data: bytes) -> int:
    """Return how many bits a block of 8 x 8 pixels takes at least in a JPEG.

    Returns:
        2: sequential, in one scan: it is decoded row by row, while any other is held in memory whole, also
        when it is scaled. 1: several scans of Huffman codes. 0: not known.
    """
    frame = _jpeg_frame(data)
    return 0 if frame is None else 1 + frame.row_by_row


def cut_jpeg(data: bytes, num_rows: int) -> bytes | None:
    """Return a JPEG that says that it has only its first rows, so that a decoder stops there.

    What follows them stays in the file, and the decoder remarks upon it. None where rows do not stand one after
    another, or where any marker stands between the header and the end, the last two bytes: what is
    damaged or missing must be found, and among restart markers a stray one is not seen.
    """
    frame = _jpeg_frame(data)
    if frame is None or not frame.row_by_row:
        return None
    marker = _ANY_MARKER.search(data, frame.scan_at)
    if marker is None or data[marker.start() :] != END_OF_IMAGE:
        return None
    at = frame.height_at
    return b"".join((data[:at], num_rows.to_bytes(2, "big"), data[at + 2 :]))


def exif_orientation(exif: bytes) -> int:
    """Return the orientation in an EXIF block, 1 to 8; 1 where it is absent or the block is broken."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return UPRIGHT

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    table = number(4, 4)
    for at in range(table + 2, table + 2 + 12 * number(table, 2), 12):
        if at + 12 > len(tiff):
            break
        if (number(at, 2), number(at + 2, 2)) == (_ORIENTATION_TAG, _SHORT):
            value = number(at + 8, 2)
            return value if value in _TURNS else UPRIGHT
    return UPRIGHT


def swaps_sides(orientation: int) -> bool:
    """Tell whether height and width change places when a picture is turned upright."""
    return orientation in _TURNS and _TURNS[orientation][0]


def turn_upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return pixels [H, W, 3] as they are to be looked at."""
    if orientation == UPRIGHT:
        return pixels
    transposed, flip_y, flip_x = _TURNS[orientation]
    if transposed:
        pixels = pixels.transpose(1, 0, 2)
    return np.ascontiguousarray(
        pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1]  # torch takes no views
    )


def split_png(data: bytes) -> tuple[bytes, bytes]:
    """Return a PNG without what is not its pixels, and its EXIF block.

    A broken text, time or colour chunk can then not keep a reader from the pixels; an animated PNG becomes
    its first picture.
    """
    parts, exif, at = [_PNG_MAGIC], b"", len(_PNG_MAGIC)
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        name = data[at + 4 : at + 8]
        if name in _PNG_PIXEL_CHUNKS:
            parts.append(data[at:end])
        elif name == b"eXIf":
            exif = data[at + 8 : end - 4]
        at = end
    return b"".join(parts), exif


def is_png(data: bytes) -> bool:
    """Tell whether a file starts as a PNG."""
    return data.startswith(_PNG_MAGIC)


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a WebP, or of its canvas; None for any other file, and where that is damaged."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None

    def number(start: int, end: int) -> int:
        return int.from_bytes(data[start:end], "little")

    match data[12:16]:
        case b"VP8X":
            return number(27, 30) + 1, number(24, 27) + 1
        case b"VP8L" if data[20] == 0x2F:
            sides = number(21, 25)
            return (sides >> 14 & 0x3FFF) + 1, (sides & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            return number(28, 30) & 0x3FFF, number(26, 28) & 0x3FFF
    return None


def name_other_kind(data: bytes) -> str | None:
    """Return what a file is that is often found in the place of a picture; None where that is not known."""
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"<"):
        return "HTML or XML"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, whose file git lfs pull fetches"
    if start.startswith(b"%PDF"):
        return "PDF"
    if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"mif1", b"msf1"):
        return "HEIC, which can be converted to JPEG"
    return None
