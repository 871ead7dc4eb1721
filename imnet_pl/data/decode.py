"""Bytes of a picture file -> RGB uint8: the same for every stage and format; the content decides, not the name."""

import io

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from imnet_pl.core.errors import UserError

JPEG_MAGIC = b"\xff\xd8\xff"
MAX_PIXELS = 89_478_485  # Pillow's own warning limit


class UnreadableImage(UserError):
    """A file that is no picture, is damaged, or is too large."""


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a JPEG that the fast decoder takes; None for anything else."""
    if not data.startswith(JPEG_MAGIC):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return None if colorspace in ("CMYK", "YCCK") else (height, width)


def decode_jpeg(
    data: bytes, size: tuple[int, int], factor: int = 1
) -> NDArray[np.uint8]:
    """Decode a JPEG to RGB.

    Args:
        data: The file.
        size: Its (height, width), from ``jpeg_size``.
        factor: 1, 2, 4 or 8: decode at 1/factor of the size, each side rounded up.

    Returns:
        uint8 [ceil(height / factor), ceil(width / factor), 3].

    Raises:
        UnreadableImage: The file is damaged or too large.
    """
    _check_pixels(size)
    try:
        if factor == 1:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB")
        else:
            least = {
                "min_height": -(-size[0] // factor),
                "min_width": -(-size[1] // factor),
            }
            pixels = simplejpeg.decode_jpeg(data, "RGB", min_factor=factor, **least)
    except (
        ValueError
    ):  # a stricter reader than Pillow, which decides whether the file is usable
        return _decode_with_pillow(data)
    return pixels


def decode_rgb(data: bytes) -> NDArray[np.uint8]:
    """Decode a picture file of any format to RGB uint8 [height, width, 3].

    Raises:
        UnreadableImage: The file is no picture, is damaged, or is too large.
    """
    size = jpeg_size(data)
    return _decode_with_pillow(data) if size is None else decode_jpeg(data, size)


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise UnreadableImage(
            f"{size[1]} x {size[0]} px are more than the {MAX_PIXELS} that are read"
        )


def _decode_with_pillow(data: bytes) -> NDArray[np.uint8]:
    if not data:
        raise UnreadableImage("the file is empty")
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_pixels((image.height, image.width))
            image.load()
            return np.array(_to_rgb(image))  # a copy: torch wants it writable
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:  # whose text is a memory address
        raise UnreadableImage("it is no picture of a known format") from error
    except Exception as error:  # a Pillow plug-in may raise anything on damaged input
        raise UnreadableImage(f"{type(error).__name__}: {error}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB: 16 bit scaled rather than clipped, transparency on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.float64)
        # The range of I and F is not known: values up to 255 are taken for 8 bit.
        is_16_bit = image.mode.startswith("I;16") or values.max(initial=0) > 255
        scale = 1 / 257 if is_16_bit else 1.0
        return Image.fromarray(
            np.clip(np.round(values * scale), 0, 255).astype(np.uint8)
        ).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")
