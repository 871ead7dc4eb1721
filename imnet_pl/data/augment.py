"""What happens to one picture, from the bytes of its file to its row in the batch."""

import math
import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from imnet_pl.data import decode

Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # top, left, height, width


def draw_crop(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: random.Random,
) -> Box:
    """Draw the box of a random resized crop (Szegedy et al. 2015; as torchvision's RandomResizedCrop).

    Args:
        height: Picture height in px.
        width: Picture width in px.
        scale: Least and largest share of the area.
        ratio: Least and largest width / height.
        rng: Generator of this picture.

    Returns:
        (top, left, height, width) in px, inside the picture.
    """
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*log_ratio))
        crop_w, crop_h = (
            round(math.sqrt(area * aspect)),
            round(math.sqrt(area / aspect)),
        )
        if 0 < crop_w <= width and 0 < crop_h <= height:
            return (
                rng.randint(0, height - crop_h),
                rng.randint(0, width - crop_w),
                crop_h,
                crop_w,
            )
    crop_h, crop_w = height, width
    if width / height < ratio[0]:
        crop_h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        crop_w = max(1, round(height * ratio[1]))
    return (height - crop_h) // 2, (width - crop_w) // 2, crop_h, crop_w


def reduction_factor(box: Box, image_size: int) -> int:
    """Return the largest of 8, 4, 2, 1 by which the crop can shrink and stay at least ``image_size``."""
    smaller = min(box[2], box[3])
    return next((f for f in (8, 4, 2) if smaller >= f * image_size), 1)


def resize(
    pixels: NDArray[np.uint8], size: tuple[int, int], interpolation: str
) -> Tensor:
    """Resize with antialiasing, in integers as Pillow does.

    Args:
        pixels: uint8 [H, W, 3].
        size: (height, width) in px.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 [3, height, width], in the memory order of ``pixels``.
    """
    chw = torch.from_numpy(pixels).permute(2, 0, 1)
    if size == chw.shape[1:]:
        return chw
    return functional.interpolate(chw[None], size, mode=interpolation, antialias=True)[
        0
    ]


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop and horizontal flip.

    Args:
        image_size: Side of the result in px.
        scale: Least and largest share of the area that is cropped.
        ratio: Least and largest width / height of the crop.
        hflip: Probability of a horizontal flip.
        interpolation: ``bilinear`` or ``bicubic``.
        reduced_decode: Decode a JPEG at 1/2, 1/4 or 1/8 when the crop stays at least ``image_size``.
    """

    image_size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    hflip: float
    interpolation: Interpolation
    reduced_decode: bool

    def __call__(self, data: bytes, key: int, out: Tensor) -> None:
        """Write the picture into ``out``, uint8 [3, S, S]; ``key`` seeds its random choices.

        Raises:
            UnreadableImage: The file can not be decoded.
        """
        rng = random.Random(key)
        size = decode.jpeg_size(data)
        pixels = decode.decode_rgb(data) if size is None else None
        height, width = size if pixels is None and size else pixels.shape[:2]  # type: ignore[union-attr]
        box = draw_crop(height, width, self.scale, self.ratio, rng)
        if pixels is None and size is not None:
            factor = (
                reduction_factor(box, self.image_size) if self.reduced_decode else 1
            )
            pixels = decode.decode_jpeg(data, size, factor)
            box = _scale_box(box, size, pixels.shape[:2])
        assert pixels is not None
        top, left, crop_h, crop_w = box
        crop = pixels[top : top + crop_h, left : left + crop_w]
        result = resize(crop, (self.image_size, self.image_size), self.interpolation)
        out.copy_(result.flip(-1) if rng.random() < self.hflip else result)


def _scale_box(box: Box, size: tuple[int, int], decoded: tuple[int, ...]) -> Box:
    """Return the box in a picture that was decoded smaller than its size says."""
    if decoded == size:
        return box
    top, left, height, width = box
    y, x = decoded[0] / size[0], decoded[1] / size[1]
    new_h, new_w = max(1, round(height * y)), max(1, round(width * x))
    return (
        min(round(top * y), decoded[0] - new_h),
        min(round(left * x), decoded[1] - new_w),
        new_h,
        new_w,
    )


@dataclass(frozen=True)
class EvalTransform:
    """Resize the short side, then crop the centre: nothing random, always decoded in full.

    Args:
        image_size: Side of the crop in px.
        resize: Length of the short side before the crop in px, at least ``image_size``.
        interpolation: ``bilinear`` or ``bicubic``.
    """

    image_size: int
    resize: int
    interpolation: Interpolation

    def __call__(self, data: bytes, key: int, out: Tensor) -> None:
        """Write the picture into ``out``, uint8 [3, S, S].

        Raises:
            UnreadableImage: The file can not be decoded.
        """
        pixels = decode.decode_rgb(data)
        height, width = pixels.shape[:2]
        short = min(height, width)
        size = int(self.resize * height / short), int(self.resize * width / short)
        resized = resize(pixels, size, self.interpolation)
        # Both roundings as in torchvision's Resize and CenterCrop, so that accuracies compare.
        top, left = (round((side - self.image_size) / 2.0) for side in size)
        out.copy_(
            resized[:, top : top + self.image_size, left : left + self.image_size]
        )


Transform = TrainTransform | EvalTransform
