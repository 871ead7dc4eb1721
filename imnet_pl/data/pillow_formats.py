"""Pictures of any format through Pillow: opened by content, converted to RGB in bounded memory."""

import io
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from imnet_pl.data import headers

# Those with a signature: Pillow takes any bytes for some others, and starts a program for EPS.
FORMATS = ("PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
_BAND_PIXELS = 2**20
# What decoding takes at its peak, with the RGB that is made of it: some decoders hold a picture several times.
# Measured with Pillow 13 on 16 to 20 million pixels; JPEG is for those that need Pillow.
_BYTES_PER_PIXEL = {"WEBP": 17, "AVIF": 14, "JPEG2000": 25, "TIFF": 14, "JPEG": 13}
_USUAL_BYTES = 9
_MOST_BYTES = 1_000_000_000  # so that a process stays below 1 GiB

Convert = Callable[[Image.Image], Image.Image]


def _bytes_per_pixel(kind: str | None) -> int:
    """Return how much memory decoding a picture of a format takes."""
    return _BYTES_PER_PIXEL.get(kind or "", _USUAL_BYTES)


def weigh(kind: str | None, num_pixels: int) -> int:
    """Return how many usual pixels take as much memory as so many of a format."""
    return num_pixels * _bytes_per_pixel(kind) // _USUAL_BYTES


def max_pixels(kind: str | None) -> int:
    """Return how many pixels of a format a process of 1 GiB can decode."""
    return _MOST_BYTES // _bytes_per_pixel(kind)


def describe_too_large(kind: str | None, height: int, width: int) -> str:
    """Return why a picture is not decoded, and what helps."""
    return (
        f"{width} x {height} px are more than the {max_pixels(kind)} of {kind} that 1 GiB of memory is enough for; "
        "save it as a baseline JPEG, or smaller"
    )


@lru_cache(maxsize=1)
def _openers() -> list[tuple[Any, Any]]:
    """Return (tells by the first bytes, opens) of each format that this Pillow reads."""
    Image.init()
    from PIL.JpegImagePlugin import JpegImageFile

    # Not Pillow's own opener of JPEGs, which follows links to further pictures in the file.
    jpeg = (lambda prefix: prefix.startswith(b"\xff\xd8\xff"), JpegImageFile)
    known = [Image.OPEN[name] for name in FORMATS if name in Image.OPEN]
    return [jpeg, *((accept, opener) for opener, accept in known)]


def open_image(data: bytes) -> tuple[ImageFile.ImageFile, int]:
    """Open a picture, reading its header alone; the first one of several.

    Pillow's own limit of the size is not applied: it is a global, and only warns at first.

    Returns:
        The picture, and its orientation by EXIF, which is not applied.

    Raises:
        UnidentifiedImageError: The content is of no known format.
        Exception: A plug-in may raise anything on damaged input.
    """
    size = headers.webp_size(data)
    if size is not None and size[0] * size[1] > max_pixels("WEBP"):
        # Before its decoder makes room for it.
        raise ValueError(describe_too_large("WEBP", *size))
    exif = b""
    if headers.is_png(data):
        data, exif = headers.split_png(data)
    for accept, opener in _openers():
        try:
            if accept(data[:16]) is not True:  # a text says that support is missing
                continue
            image: ImageFile.ImageFile = opener(io.BytesIO(data), "")
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            raise ValueError(f"its header is broken ({error})") from error
        return image, _orientation(image, data, exif)
    raise UnidentifiedImageError


def _orientation(image: ImageFile.ImageFile, data: bytes, exif: bytes) -> int:
    if image.format == "JPEG":
        return headers.jpeg_orientation(data)
    if image.format == "TIFF":  # which Pillow turns itself
        return headers.UPRIGHT
    return headers.exif_orientation(exif or image.info.get("exif", b""))


def to_rgb(image: Image.Image, background: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Convert to RGB uint8 [height, width, 3]: 16 bit scaled rather than clipped, transparency on a colour.

    Args:
        image: A picture in memory.
        background: RGB colour behind what is transparent.
    """
    convert = _converter(image, background)
    width, height = image.size
    rows = max(1, _BAND_PIXELS // width)
    if rows >= height:
        return np.array(convert(image))  # a copy: torch wants it writable
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = np.asarray(convert(band))
    return pixels


def _converter(image: Image.Image, background: tuple[int, int, int]) -> Convert:
    """Return what converts any band of a picture."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        scale = _scale_to_8_bit(image)
        return lambda band: _scale_grey(band, scale, background)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return lambda band: _lay_on(band, background)
    return lambda band: band if band.mode == "RGB" else band.convert("RGB")


def _scale_to_8_bit(image: Image.Image) -> float:
    """Return the factor from a grey picture's values to 0-255."""
    if image.mode.startswith("I;16") or image.format == "PPM":
        return 1 / 257
    # The range of I and F is not known: the least usual one that holds the values is taken.
    highest = float(np.nan_to_num(image.getextrema()[1]))
    if image.mode == "F" and highest <= 1:
        return 255.0
    if highest <= 255:
        return 1.0
    return 1 / 257 if highest <= 65535 else 255 / highest


def _scale_grey(
    band: Image.Image, scale: float, background: tuple[int, int, int]
) -> Image.Image:
    values = np.nan_to_num(np.asarray(band).astype(np.float64))
    scaled = np.clip(np.round(values * scale), 0, 255).astype(np.uint8)
    rgb = Image.fromarray(scaled).convert("RGB")
    if isinstance(clear := band.info.get("transparency"), int):
        rgb.paste(background, mask=Image.fromarray(values == clear))
    return rgb


def _lay_on(band: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    rgba = band.convert("RGBA")
    behind = Image.new("RGBA", rgba.size, (*background, 255))
    return Image.alpha_composite(behind, rgba).convert("RGB")
