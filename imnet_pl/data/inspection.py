"""What each picture of a set is like: decoded once, on all cores, told as columns."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imnet_pl.data import headers
from imnet_pl.data.decode import (
    BUDGET,
    DEFAULT_POLICY,
    DecodePolicy,
    Picture,
    UnreadableImage,
    decode_rgb,
    open_picture,
)
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.process_pool import Job, map_rows
from imnet_pl.data.reading import read_picture
from imnet_pl.data.thumbnail import contrast_of, grey_thumbnail, perceptual_hash

_DIGEST_BYTES = 16
_FORMATS = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif"},
    "PNG": {".png"},
    "GIF": {".gif"},
    "BMP": {".bmp"},
    "WEBP": {".webp"},
    "TIFF": {".tif", ".tiff"},
    "MPO": {".jpg", ".jpeg", ".jpe", ".jfif"},
}
_PLAIN_MODES = {"RGB", "L"}


class Facts(NamedTuple):
    """What is known of one picture.

    Args:
        height: In px as it is looked at, 0 where it can not be read.
        width: In px.
        file_digest: Of all bytes of the file.
        thumbnail_digest: Of a small grey copy; equal pixels have equal ones.
        perceptual: 64 bits that change little when a picture is resized or encoded anew.
        contrast: Standard deviation of the grey thumbnail, in grey levels.
        odd: What is unusual, comma separated.
        error: Why it can not be read, or nothing.
    """

    height: int
    width: int
    file_digest: bytes
    thumbnail_digest: bytes
    perceptual: int
    contrast: float
    odd: str
    error: str


Inspect = Callable[[ImageIndex, int], Facts]


@dataclass(frozen=True, eq=False)
class Inspection:
    """Facts of all pictures of a split, as columns.

    Args:
        index: The pictures.
        heights: int32 [N] in px, 0 where unreadable.
        widths: int32 [N] in px.
        file_digests: bytes16 [N].
        thumbnail_digests: bytes16 [N].
        perceptual: uint64 [N].
        contrast: float32 [N].
        odd: What is unusual, by row.
        errors: Why it can not be read, by row.
        policy: How they were decoded.
    """

    index: ImageIndex
    heights: NDArray[np.int32]
    widths: NDArray[np.int32]
    file_digests: NDArray[np.void]
    thumbnail_digests: NDArray[np.void]
    perceptual: NDArray[np.uint64]
    contrast: NDArray[np.float32]
    odd: dict[int, str]
    errors: dict[int, str]
    policy: DecodePolicy = DEFAULT_POLICY


def inspect_index(
    index: ImageIndex,
    num_processes: int | None = None,
    inspect: Inspect | None = None,
    policy: DecodePolicy = DEFAULT_POLICY,
) -> Iterator[int | Inspection]:
    """Decode every picture; yields how many are done, now and then, and at the end the result.

    Args:
        index: The pictures.
        num_processes: Processes; default: one for each core that this process may use. 0: none but this.
        inspect: What is done with each row; default ``inspect_picture`` by the policy.
        policy: How pictures are decoded.
    """
    inspect = inspect or partial(inspect_picture, policy=policy)
    columns = _Columns(len(index))
    crashed = _unreadable("the decoder crashed on it")
    job = Job(_inspect_row, (index, inspect), crashed)
    done = 0
    for rows, facts in map_rows(job, range(len(index)), num_processes):
        columns.fill(rows, facts)
        done += len(rows)
        yield done
    yield columns.finish(index, policy)


def _inspect_row(shared: tuple[ImageIndex, Inspect], row: int) -> Facts:
    index, inspect = shared
    return inspect(index, row)


def _unreadable(error: str, file_digest: bytes = b"", odd: str = "") -> Facts:
    return Facts(0, 0, file_digest, b"", 0, 0.0, odd, error)


def inspect_picture(
    index: ImageIndex, row: int, policy: DecodePolicy = DEFAULT_POLICY
) -> Facts:
    """Read and decode one picture."""
    path = index.relative_path(row)
    try:
        data = read_picture(index, row)
    except OSError as error:
        return _unreadable(f"it can not be opened ({error.strerror or error})")
    file_digest = _digest(data)
    picture = None
    try:
        picture = open_picture(data, policy)
        with BUDGET.hold(picture.num_pixels):
            pixels = picture.decode()
    except UnreadableImage as error:
        odd = describe_oddities(data, path, picture)
        return _unreadable(str(error), file_digest, odd)
    small = grey_thumbnail(pixels)
    return Facts(
        height=picture.size[0],
        width=picture.size[1],
        file_digest=file_digest,
        thumbnail_digest=_digest(small.tobytes()),
        perceptual=perceptual_hash(small),
        contrast=contrast_of(small),
        odd=describe_oddities(data, path, picture),
        error="",
    )


def _digest(data: bytes) -> bytes:
    # Processors have instructions for SHA-256: three times as fast as BLAKE2.
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def pixel_digest(
    index: ImageIndex, row: int, policy: DecodePolicy = DEFAULT_POLICY
) -> bytes:
    """Return a digest of all pixels of a readable picture."""
    pixels = decode_rgb(read_picture(index, row), policy)
    return _digest(repr(pixels.shape).encode() + pixels.tobytes())


def describe_oddities(data: bytes, path: str, picture: Picture | None) -> str:
    """Return what is unusual about a file by its header, comma separated; nothing for a plain picture.

    Args:
        data: The file.
        path: Its name is compared with its content.
        picture: As it was decoded; None where its header is damaged, or it is too large.
    """
    found: dict[str, bool] = {}
    if picture is not None and picture.image is None:  # a JPEG of the usual modes
        turn = headers.jpeg_orientation(data)
        found = _oddities("JPEG", "RGB", 1, turn, picture.stored, path)
    else:
        try:
            with Image.open(io.BytesIO(data)) as image:
                found = _oddities_of(image, path)
        except Exception:  # noqa: BLE001 - a plug-in may raise anything; decoding says what is wrong
            found = {}
    if picture is not None and picture.least_factor > 1:
        factor = picture.least_factor
        found[f"above data.max_pixels, decoded at 1/{factor} of its size"] = True
    return ", ".join(text for text, is_so in found.items() if is_so)


def _oddities_of(image: Image.Image, path: str) -> dict[str, bool]:
    kind = image.format or "unknown"
    frames = int(getattr(image, "n_frames", 1)) if kind != "MPO" else 1
    turn = image.getexif().get(0x0112, headers.UPRIGHT)
    size = image.height, image.width
    return _oddities(kind, image.mode, frames, turn, size, path)


def _oddities(
    kind: str, mode: str, frames: int, turn: int, size: tuple[int, int], path: str
) -> dict[str, bool]:
    suffix = PurePosixPath(path).suffix.lower()
    short, long = sorted(size)
    return {
        f"is {kind}, named {suffix}": suffix not in _FORMATS.get(kind, {suffix}),
        f"mode {mode}": mode not in _PLAIN_MODES,
        f"{frames} frames": frames > 1,
        f"EXIF orientation {turn}": turn not in (0, headers.UPRIGHT),
        "smaller than 32 px": short < 32,
        "more than 5 times as long as wide": long > 5 * short,
    }


class _Columns:
    """Collects facts of chunks in any order."""

    def __init__(self, num_samples: int) -> None:
        self.sizes = np.zeros((2, num_samples), dtype=np.int32)
        kind = np.dtype((np.void, _DIGEST_BYTES))
        self.digests = np.zeros((2, num_samples), dtype=kind)
        self.perceptual = np.zeros(num_samples, dtype=np.uint64)
        self.contrast = np.zeros(num_samples, dtype=np.float32)
        self.odd: dict[int, str] = {}
        self.errors: dict[int, str] = {}

    def fill(self, rows: Sequence[int], facts: list[Facts]) -> None:
        for row, fact in zip(rows, facts, strict=True):
            self.sizes[:, row] = fact.height, fact.width
            for i, digest in enumerate((fact.file_digest, fact.thumbnail_digest)):
                self.digests[i, row] = np.void(digest.ljust(_DIGEST_BYTES, b"\0"))
            self.perceptual[row], self.contrast[row] = fact.perceptual, fact.contrast
            if fact.odd:
                self.odd[row] = fact.odd
            if fact.error:
                self.errors[row] = fact.error

    def finish(self, index: ImageIndex, policy: DecodePolicy) -> Inspection:
        return Inspection(
            index=index,
            heights=self.sizes[0],
            widths=self.sizes[1],
            file_digests=self.digests[0],
            thumbnail_digests=self.digests[1],
            perceptual=self.perceptual,
            contrast=self.contrast,
            odd=dict(sorted(self.odd.items())),
            errors=dict(sorted(self.errors.items())),
            policy=policy,
        )
