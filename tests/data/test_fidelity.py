"""Evaluation sees what Pillow's decode, antialiased resize and crop give, so that published accuracies compare."""

import numpy as np
import pytest
import torch
from PIL import Image

from imnet_pl.data.augment import EvalTransform


def as_pillow(file, resize, crop, resample):
    """Return int [crop, crop, 3] by Pillow alone, with torchvision's roundings."""
    with Image.open(file) as image:
        width, height = image.size
        short = min(width, height)
        size = int(resize * width / short), int(resize * height / short)
        resized = image.convert("RGB").resize(size, resample)
    left, top = (round((side - crop) / 2.0) for side in size)
    return np.asarray(resized.crop((left, top, left + crop, top + crop))).astype(int)


@pytest.mark.parametrize(
    "interpolation", ["bilinear", pytest.param("bicubic", marks=pytest.mark.slow)]
)
def test_evaluation_is_pillows_to_a_tenth_of_a_grey_level(assets, interpolation):
    files = sorted((assets / "imagenet-samples").iterdir())
    transform = EvalTransform(224, 256, interpolation)
    means, largest = [], 0
    for file in files:
        out = torch.empty((224, 224, 3), dtype=torch.uint8)
        transform(file.read_bytes(), 0, out.permute(2, 0, 1))
        expected = as_pillow(file, 256, 224, Image.Resampling[interpolation.upper()])
        difference = np.abs(out.numpy().astype(int) - expected)
        means.append(difference.mean())
        largest = max(largest, int(difference.max()))
    assert np.mean(means) < 0.1
    assert largest <= 3
