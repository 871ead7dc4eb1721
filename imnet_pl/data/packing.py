"""What becomes of one picture in a shard: its name there, its size, and whether it is encoded anew."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray

from imnet_pl.core.errors import UserError
from imnet_pl.data import headers, pillow_formats, shards
from imnet_pl.data.augment import Interpolation, resize
from imnet_pl.data.decode import (
    BUDGET,
    DEFAULT_POLICY,
    JPEG_MAGIC,
    DecodePolicy,
    UnreadableImage,
    open_picture,
)
from imnet_pl.data.index import NO_LABEL, ImageIndex
from imnet_pl.data.reading import read_picture

SMALL_QUALITY = 95  # of a picture that is encoded at its own size
_JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
_ORIENTATION_TAG, _SHORT = 0x0112, 3
_MAX_JPEG_SIDE = 65500


@dataclass(frozen=True)
class Encoding:
    """How pictures are encoded anew.

    Args:
        short_side: Larger ones are resized to this short side in px; None: nothing is encoded anew.
        quality: Quality of JPEG, 1 to 100.
        interpolation: ``bilinear`` or ``bicubic``, antialiased.
        policy: How they become RGB. Pictures are not turned: their EXIF orientation is carried over.
    """

    short_side: int | None
    quality: int = 90
    interpolation: Interpolation = "bilinear"
    policy: DecodePolicy = DEFAULT_POLICY


@dataclass(frozen=True)
class PackJob:
    """What a process needs to pack the pictures of a split.

    Args:
        index: The pictures.
        split: ``train``, ``val`` or ``test``.
        encoding: How they are encoded.
        renamed: Row -> name in the shards, where the natural one is taken.
    """

    index: ImageIndex
    split: str
    encoding: Encoding
    renamed: dict[int, str] = field(default_factory=dict)


class PackedPicture(NamedTuple):
    """A picture as it goes into a shard.

    Args:
        name: Its name there.
        header: What stands before it in the tar file.
        data: The picture.
        width: In px as stored, 0 where it can not be read.
        height: In px.
        crc: CRC-32 of ``data``.
        is_encoded: Whether it was encoded anew.
        error: Why it can not be read, or nothing.
    """

    name: str
    header: bytes
    data: bytes
    width: int
    height: int
    crc: int
    is_encoded: bool
    error: str


class PackStep(NamedTuple):
    """How far packing or unpacking is.

    Args:
        split: The split that is under way.
        done: Its pictures that are done.
        num_bytes: Bytes that were written for them.
    """

    split: str
    done: int
    num_bytes: int


CRASHED = PackedPicture("", b"", b"", 0, 0, 0, False, "the decoder crashed on it")


def pack_picture(job: PackJob, row: int) -> PackedPicture:
    """Read, resize and encode one picture.

    Raises:
        UserError: Its file can not be read at all, as when a drive is gone.
    """
    data = read_source(job.index, row)
    name = job.renamed.get(row) or natural_name(job.index, job.split, row)
    try:
        encoded, (height, width) = encode_picture(data, job.encoding)
    except UnreadableImage as error:
        return CRASHED._replace(error=str(error))
    is_encoded = encoded is not data
    name = jpeg_name(name) if is_encoded else name
    return _finish(name, encoded, (height, width), is_encoded)


def use_one_thread() -> None:
    """Let torch resize in the thread that asks: every core has a process of its own."""
    torch.set_num_threads(1)


def pack_unreadable(job: PackJob, row: int, error: str) -> PackedPicture:
    """Return a picture that can not be decoded as it is, so that it stays in the count.

    Raises:
        UserError: Its file can not be read at all.
    """
    name = job.renamed.get(row) or natural_name(job.index, job.split, row)
    kept = _finish(name, read_source(job.index, row), (0, 0), False)
    return kept._replace(error=error)


def _finish(
    name: str, data: bytes, size: tuple[int, int], is_encoded: bool
) -> PackedPicture:
    header = shards.member_header(name, len(data))
    height, width = size
    crc = zlib.crc32(data)
    return PackedPicture(name, header, data, width, height, crc, is_encoded, "")


def read_source(index: ImageIndex, row: int) -> bytes:
    """Return the file of a picture.

    Raises:
        UserError: It can not be read.
    """
    try:
        return read_picture(index, row)
    except OSError as error:
        raise UserError(
            f"picture {index.path(row)!r} can not be read ({error.strerror or error}); make it readable or remove it, "
            "and run the same command again."
        ) from None


def encode_picture(data: bytes, encoding: Encoding) -> tuple[bytes, tuple[int, int]]:
    """Return a picture as it is packed, and its (height, width): ``data`` itself where it is small or kept.

    Raises:
        UnreadableImage: It can not be decoded.
    """
    picture = open_picture(data, encoding.policy)
    with BUDGET.hold(picture.num_pixels):
        pixels = picture.decode()
        short_side, is_jpeg = encoding.short_side, data.startswith(JPEG_MAGIC)
        if short_side is None or (is_jpeg and min(picture.size) <= short_side):
            return data, picture.size
        quality = encoding.quality
        if min(pixels.shape[:2]) > short_side:
            pixels = _shrink(pixels, short_side, encoding.interpolation)
        else:
            quality = max(quality, SMALL_QUALITY)
    height, width = pixels.shape[:2]
    if max(height, width) > _MAX_JPEG_SIDE:
        raise UnreadableImage(f"{width} x {height} px are more than a JPEG can have")
    encoded = simplejpeg.encode_jpeg(
        pixels, quality, "RGB", colorsubsampling="420", fastdct=False
    )
    return _with_orientation(encoded, _orientation_of(data, is_jpeg)), (height, width)


def _shrink(
    pixels: NDArray[np.uint8], short_side: int, interpolation: Interpolation
) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    short = min(height, width)
    size = round(height * short_side / short), round(width * short_side / short)
    small = torch.empty((*size, 3), dtype=torch.uint8)
    resize(pixels, interpolation, small.permute(2, 0, 1))
    return small.numpy()


def _orientation_of(data: bytes, is_jpeg: bool) -> int:
    return (
        headers.jpeg_orientation(data)
        if is_jpeg
        else pillow_formats.open_image(data)[1]
    )


def _with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """Return a JPEG with an EXIF block that says how it is to be turned."""
    if orientation == headers.UPRIGHT:
        return jpeg
    entry = struct.pack("<HHIHH", _ORIENTATION_TAG, _SHORT, 1, orientation, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    after_jfif = 4 + int.from_bytes(jpeg[4:6], "big")
    return jpeg[:after_jfif] + segment + jpeg[after_jfif:]


def natural_name(index: ImageIndex, split: str, row: int) -> str:
    """Return ``split/<class>/<rest of the path>``, for class folders the path itself."""
    label = int(index.labels[row])
    name = index.classes[label] if label != NO_LABEL else ""
    path = index.relative_path(row)
    folder = f"{split}/{_as_folder(name)}/"
    if path.startswith(folder):
        return path
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for above in (name, split):
        if above in parts[:-1]:
            last = len(parts) - 2 - parts[-2::-1].index(above)
            parts = parts[last + 1 :]
            break
    return folder + "/".join(parts)


def _as_folder(name: str) -> str:
    plain = name.replace("/", "_").replace("\\", "_")
    return plain if plain not in ("", ".", "..") else f"_{plain}"


def jpeg_name(name: str) -> str:
    """Return a name that ends as that of a JPEG does."""
    return name if name.lower().endswith(_JPEG_SUFFIXES) else f"{name}.jpg"


def find_renamed(
    index: ImageIndex, split: str, form: Callable[[str], str] = jpeg_name
) -> dict[int, str]:
    """Return row -> another name for those whose own an earlier picture has.

    Args:
        index: The pictures.
        split: Their split.
        form: What a name may become; neither that nor the name is given twice.
    """
    taken: set[str] = set()
    renamed: dict[int, str] = {}
    for row in range(len(index)):
        natural = name = natural_name(index, split, row)
        number = 1
        while name in taken or form(name) in taken:
            number += 1
            path = PurePosixPath(natural)
            name = str(path.with_stem(f"{path.stem}~{number}"))
        taken.update((name, form(name)))
        if name != natural:
            renamed[row] = name
    return renamed
