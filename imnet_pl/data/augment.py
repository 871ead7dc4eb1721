"""What happens to one picture, from the bytes of its file to its row in the batch."""

import math
import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imnet_pl.data import decode
from imnet_pl.data.decode import DEFAULT_POLICY, DecodePolicy

Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # top, left, height, width

# What torch.nn.functional.interpolate calls, which can not write to given memory: its own result is in planes
# for a single picture, and copying that into a row of the batch costs as much as the resizing.
_RESIZE = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}


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


def resize(pixels: NDArray[np.uint8], interpolation: str, out: Tensor) -> None:
    """Resize with antialiasing, in integers as Pillow does.

    Args:
        pixels: uint8 [H, W, 3].
        interpolation: ``bilinear`` or ``bicubic``.
        out: Where to write: uint8 [3, height, width], in channels_last memory.
    """
    chw = torch.from_numpy(pixels).permute(2, 0, 1)
    size = list(out.shape[1:])
    if size == list(chw.shape[1:]):
        out.copy_(chw)
    else:
        _RESIZE[interpolation](chw[None], size, False, None, None, out=out[None])


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
        policy: How a file becomes RGB.
    """

    image_size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    hflip: float
    interpolation: Interpolation
    reduced_decode: bool
    policy: DecodePolicy = DEFAULT_POLICY

    def __call__(self, data: bytes, key: int, out: Tensor) -> None:
        """Write the picture into ``out``, uint8 [3, S, S]; ``key`` seeds its random choices.

        Raises:
            UnreadableImage: The file can not be decoded.
        """
        rng = random.Random(key)
        picture = decode.open_picture(data, self.policy)
        with decode.BUDGET.hold(picture.num_pixels):
            pixels, box = self._decode_crop(picture, rng)
            top, left, height, width = box
            crop = pixels[top : top + height, left : left + width]
            resize(crop, self.interpolation, out)
        if rng.random() < self.hflip:
            out.copy_(out.flip(-1))

    def _decode_crop(
        self, picture: decode.Picture, rng: random.Random
    ) -> tuple[NDArray[np.uint8], Box]:
        """Return a decoded picture, and the box to crop from it, which is drawn before decoding."""
        box = draw_crop(*picture.size, self.scale, self.ratio, rng)
        shrinks = self.reduced_decode and picture.can_shrink
        factor = reduction_factor(box, self.image_size) if shrinks else 1
        if factor == picture.least_factor == 1:
            return picture.decode(num_rows=box[0] + box[2]), box
        pixels = picture.decode(factor)
        return pixels, _scale_box(box, picture.size, pixels.shape[:2])


def _scale_box(box: Box, size: tuple[int, int], decoded: tuple[int, ...]) -> Box:
    """Return the box in a picture that was decoded smaller than its size says."""
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
        policy: How a file becomes RGB.
    """

    image_size: int
    resize: int
    interpolation: Interpolation
    policy: DecodePolicy = DEFAULT_POLICY

    def __call__(self, data: bytes, key: int, out: Tensor) -> None:
        """Write the picture into ``out``, uint8 [3, S, S].

        Raises:
            UnreadableImage: The file can not be decoded, or is so narrow that resizing makes it huge.
        """
        picture = decode.open_picture(data, self.policy)
        size = self._resized(*picture.size)
        with decode.BUDGET.hold(picture.num_pixels + math.prod(size)):
            resized = torch.empty((*size, 3), dtype=torch.uint8).permute(2, 0, 1)
            resize(picture.decode(), self.interpolation, resized)
            # Both roundings as in torchvision's Resize and CenterCrop, so that accuracies compare.
            top, left = (round((side - self.image_size) / 2.0) for side in size)
            out.copy_(
                resized[:, top : top + self.image_size, left : left + self.image_size]
            )

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) after the short side is resized.

        Raises:
            UnreadableImage: They would be huge.
        """
        short = min(height, width)
        size = int(self.resize * height / short), int(self.resize * width / short)
        if math.prod(size) > self.policy.max_pixels:
            raise decode.UnreadableImage(
                f"{width} x {height} px are too narrow: a short side of {self.resize} px would make them "
                f"{size[1]} x {size[0]}"
            )
        return size


Transform = TrainTransform | EvalTransform
