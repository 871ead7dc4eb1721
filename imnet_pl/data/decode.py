"""Bytes of a picture file -> RGB uint8: the same for every stage and format; the content decides, not the name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from imnet_pl.core.errors import UserError
from imnet_pl.data import headers, pillow_formats
from imnet_pl.data.pixel_budget import PixelBudget

JPEG_MAGIC = b"\xff\xd8\xff"
MAX_PIXELS = 89_478_485  # Pillow's own warning limit
# 128 million in a process: large pictures, and beside them small ones in sixteen threads.
BUDGET = PixelBudget(112_000_000, uncounted=1_000_000)
_LARGE = 2**24  # pixels; of damaged headers above it something is asked first
_MISSING, _LEAST_PART = (
    128,
    0.01,
)  # the grey of what a JPEG lacks, and how much there must be
# Rows beyond the last one that is needed: enlarging the colours looks at a few of them.
_ROWS_BELOW = 16


class UnreadableImage(UserError):
    """A file that is no picture, is damaged, or is too large."""


@dataclass(frozen=True)
class DecodePolicy:
    """How every picture becomes RGB, in all stages.

    Args:
        alpha_background: RGB colour behind what is transparent.
        exif_orientation: Turn a picture as its EXIF says.
        max_pixels: Larger pictures are refused; a JPEG is decoded at 1/2, 1/4 or 1/8 instead.
        partial: Use a JPEG that ends early as far as it goes.

    Raises:
        UserError: A value can not work.
    """

    alpha_background: tuple[int, int, int] = (255, 255, 255)
    exif_orientation: bool = False
    max_pixels: int = MAX_PIXELS
    partial: bool = False

    def __post_init__(self) -> None:
        background = self.alpha_background
        if len(background) != 3 or not all(0 <= value <= 255 for value in background):
            raise UserError(
                f"data.alpha_background={list(background)} must be three values from 0 to 255."
            )
        if self.max_pixels < 1:
            raise UserError(f"data.max_pixels={self.max_pixels} must be at least 1.")


DEFAULT_POLICY = DecodePolicy()


class Picture:
    """A picture of which the header was read. Whoever decodes it holds ``num_pixels`` of ``BUDGET``.

    Args:
        data: The file.
        size: (height, width) as it is stored.
        orientation: By EXIF, 1 to 8, if that is to be applied, else 1.
        policy: How it becomes RGB.
        image: Opened by Pillow; None for a JPEG that the fast decoder takes.

    Attributes:
        size: (height, width) as it will be looked at.
        num_pixels: How many are in memory when it is decoded; more where a decoder takes more for each.
        can_shrink: Whether ``decode`` takes a factor.

    Raises:
        UnreadableImage: It is too large, or empty.
    """

    # One class with slots and few calls: what is done to each picture counts.
    __slots__ = (
        "can_shrink",
        "data",
        "image",
        "least_factor",
        "num_pixels",
        "orientation",
        "policy",
        "size",
        "stored",
    )

    def __init__(
        self,
        data: bytes,
        size: tuple[int, int],
        orientation: int,
        policy: DecodePolicy,
        image: ImageFile | None,
    ) -> None:
        self.data, self.stored, self.orientation = data, size, orientation
        self.policy, self.image = policy, image
        self.can_shrink = image is None
        self.least_factor = 1
        self.num_pixels = size[0] * size[1]
        if not 0 < self.num_pixels <= min(policy.max_pixels, _LARGE):
            kind = image.format if image is not None else None
            self.least_factor = _least_factor(data, size, policy.max_pixels, kind)
            self.num_pixels //= self.least_factor**2
        if image is not None:
            self.num_pixels = pillow_formats.weigh(image.format, self.num_pixels)
        self.size = size[::-1] if headers.swaps_sides(orientation) else size

    def decode(self, factor: int = 1, num_rows: int | None = None) -> NDArray[np.uint8]:
        """Decode to RGB, once.

        Args:
            factor: 1, or where it ``can_shrink`` 2, 4 or 8: decode at 1/factor, each side rounded up. A
                picture that is too large is decoded smaller in any case.
            num_rows: How many rows from the top are needed, at factor 1; None: all.

        Returns:
            uint8 [ceil(height / factor), ceil(width / factor), 3]; of rows that are not needed some may be
            absent, the others are the same as those of the whole picture.

        Raises:
            UnreadableImage: The file is damaged.
        """
        if self.image is None:
            pixels = self._decode_jpeg(max(factor, self.least_factor), num_rows)
        else:
            pixels = self._decode_with_pillow(self.image)
        if self.orientation == headers.UPRIGHT:
            return pixels
        return headers.turn_upright(pixels, self.orientation)

    def _decode_jpeg(self, factor: int, num_rows: int | None) -> NDArray[np.uint8]:
        try:
            if factor == 1 and (cut := self._cut(num_rows)) is not None:
                # It is not strict: what follows the rows is not expected there.
                pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                    cut, "RGB", strict=False
                )
            elif factor == 1:
                pixels = simplejpeg.decode_jpeg(self.data, "RGB")
            else:
                least = {
                    "min_height": -(-self.stored[0] // factor),
                    "min_width": -(-self.stored[1] // factor),
                }
                pixels = simplejpeg.decode_jpeg(
                    self.data, "RGB", min_factor=factor, **least
                )
        # A stricter reader than Pillow, which decides whether the file is usable.
        except ValueError:
            image, _ = _open_image(self.data, self.policy)
            return self._decode_with_pillow(image)
        return pixels

    def _cut(self, num_rows: int | None) -> bytes | None:
        """Return the file with the rows that are needed and a few more; None where all must be decoded."""
        if num_rows is None or self.orientation != headers.UPRIGHT:
            return None
        num_rows += _ROWS_BELOW
        if num_rows + _ROWS_BELOW > self.stored[0]:  # it would save nothing
            return None
        return headers.cut_jpeg(self.data, num_rows)

    def _decode_with_pillow(self, image: ImageFile) -> NDArray[np.uint8]:
        with _unreadable(self.data):
            if self.least_factor > 1:
                height, width = (side // self.least_factor for side in self.stored)
                image.draft(image.mode, (width, height))
            image.load()
            pixels = pillow_formats.to_rgb(image, self.policy.alpha_background)
        image.close()  # frees its pixels
        if self.policy.partial and (pixels != _MISSING).mean() < _LEAST_PART:
            raise UnreadableImage("it ends with its first pixels")
        return pixels


def open_picture(data: bytes, policy: DecodePolicy) -> Picture:
    """Read the header of a picture file of any format.

    Raises:
        UnreadableImage: The file is no picture, has a damaged header, or is too large.
    """
    size = _fast_jpeg_size(data) if data.startswith(JPEG_MAGIC) else None
    if size is None:
        image, turn = _open_image(data, policy)
        turn = turn if policy.exif_orientation else headers.UPRIGHT
        return Picture(data, (image.height, image.width), turn, policy, image)
    turn = headers.jpeg_orientation(data) if policy.exif_orientation else 1
    return Picture(data, size, turn, policy, None)


def _fast_jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG that the fast decoder takes; None for any other."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return None if colorspace in ("CMYK", "YCCK") else (height, width)


def _open_image(data: bytes, policy: DecodePolicy) -> tuple[ImageFile, int]:
    """Return the picture opened by Pillow, and its orientation by EXIF."""
    if policy.partial and data.startswith(JPEG_MAGIC):
        data += headers.END_OF_IMAGE  # as Pillow's global LOAD_TRUNCATED_IMAGES does
    with _unreadable(data):
        return pillow_formats.open_image(data)


def decode_rgb(data: bytes, policy: DecodePolicy = DEFAULT_POLICY) -> NDArray[np.uint8]:
    """Decode a picture file of any format to RGB uint8 [height, width, 3].

    Raises:
        UnreadableImage: The file is no picture, is damaged, or is too large.
    """
    picture = open_picture(data, policy)
    with BUDGET.hold(picture.num_pixels):
        return picture.decode()


def _least_factor(
    data: bytes, size: tuple[int, int], max_pixels: int, kind: str | None
) -> int:
    """Return by how much a large picture must be shrunk: 1, 2, 4 or 8.

    Args:
        data: The file.
        size: (height, width) as it is stored.
        max_pixels: By the settings.
        kind: Its format, if it needs Pillow.

    Raises:
        UnreadableImage: It can not be shrunk so far, or its header says more pixels than it can have, or none.
    """
    height, width = size
    if height * width == 0:
        raise UnreadableImage(f"its header says {width} x {height} px")
    is_jpeg = data.startswith(JPEG_MAGIC)
    min_bits = headers.jpeg_min_bits(data) if is_jpeg else 0
    if height * width > _LARGE and len(data) * 8 < min_bits * (height * width // 64):
        raise UnreadableImage(
            f"its header says {width} x {height} px, it has not as many"
        )
    too_large = f"{width} x {height} px are more than data.max_pixels={max_pixels}"
    if kind is not None and max_pixels > pillow_formats.max_pixels(kind):
        max_pixels = pillow_formats.max_pixels(kind)
        too_large = pillow_formats.describe_too_large(kind, height, width)
    if height * width > max_pixels and not is_jpeg:
        raise UnreadableImage(too_large)
    if height * width > max_pixels and min_bits < 2:
        raise UnreadableImage(f"{too_large}, and it is no baseline JPEG in one scan")
    for factor in (1, 2, 4, 8):
        if -(-height // factor) * -(-width // factor) <= max_pixels:
            return factor
    raise UnreadableImage(f"{too_large} at 1/8 of its size too")


@contextmanager
def _unreadable(data: bytes) -> Iterator[None]:
    """Turn what Pillow raises into UnreadableImage."""
    try:
        yield
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:  # whose text is a memory address
        if not data:
            raise UnreadableImage("the file is empty") from error
        other = headers.name_other_kind(data)
        but = f" but {other}" if other else ""
        raise UnreadableImage(f"it is no picture of a known format{but}") from error
    except Image.DecompressionBombError as error:
        raise UnreadableImage(
            f"it is larger than Pillow decodes ({error}); save it as a baseline JPEG, or smaller"
        ) from error
    except Exception as error:  # a Pillow plug-in may raise anything on damaged input
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise UnreadableImage(kind + " ".join(str(error).split())[:300]) from error
