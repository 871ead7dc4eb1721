"""Geometry of training and evaluation."""

import io
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from imnet_pl.data.augment import (
    EvalTransform,
    TrainTransform,
    _scale_box,
    draw_crop,
    reduction_factor,
    resize,
)
from imnet_pl.data.decode import UnreadableImage


def jpeg(height, width, seed=0, smooth=False):
    pixels = np.random.default_rng(seed).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
    if smooth:
        pixels = np.asarray(Image.fromarray(pixels[:3, :3]).resize((width, height)))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def slot(size):
    return torch.empty((size, size, 3), dtype=torch.uint8).permute(2, 0, 1)


def train(
    size=32, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), hflip=0.5, reduced_decode=False
):
    return TrainTransform(size, scale, ratio, hflip, "bilinear", reduced_decode)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_crop_lies_inside(height, width, key):
    top, left, h, w = draw_crop(
        height, width, (0.08, 1.0), (3 / 4, 4 / 3), random.Random(key)
    )
    assert top >= 0
    assert left >= 0
    assert 1 <= h <= height - top
    assert 1 <= w <= width - left


@given(
    st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    st.sampled_from([2, 4, 8]),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=300, deadline=None)
def test_crop_lies_inside_a_reduced_picture(size, factor, key):
    box = draw_crop(*size, (0.08, 1.0), (3 / 4, 4 / 3), random.Random(key))
    decoded = tuple(-(-side // factor) for side in size)
    top, left, h, w = _scale_box(box, size, decoded)
    assert top >= 0
    assert left >= 0
    assert 1 <= h <= decoded[0] - top
    assert 1 <= w <= decoded[1] - left


def test_crop_has_the_areas_and_ratios_asked_for():  # S10
    boxes = [
        draw_crop(1000, 1000, (0.2, 0.5), (0.8, 1.25), random.Random(i))
        for i in range(2000)
    ]
    areas = np.array([h * w for _, _, h, w in boxes]) / 1e6
    ratios = np.array([w / h for _, _, h, w in boxes])
    assert 0.19 < areas.min() < 0.21
    assert 0.49 < areas.max() < 0.51
    assert areas.mean() == pytest.approx(0.35, abs=0.01)
    assert 0.79 < ratios.min() < 0.81
    assert 1.24 < ratios.max() < 1.26
    assert np.log(ratios).mean() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    "size", [(40, 50), (50, 40), (333, 500), (64, 64), (31, 97), (1, 1000)]
)
@pytest.mark.parametrize(("image_size", "resize"), [(32, 32), (32, 37), (24, 48)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_torchvisions_pixel_for_pixel(
    size, image_size, resize, interpolation
):  # S10
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    out = slot(image_size)
    EvalTransform(image_size, resize, interpolation)(png(pixels), 0, out)
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    mode = tv.InterpolationMode(interpolation)
    expected = tv.resize(expected, [resize], interpolation=mode, antialias=True)
    assert torch.equal(out, tv.center_crop(expected, [image_size, image_size]))


def test_training_is_crop_then_resize_then_flip():
    pixels = np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    flips = 0
    for key in range(40):
        out = slot(32)
        train()(png(pixels), key, out)
        rng = random.Random(key)
        top, left, h, w = draw_crop(60, 80, (0.08, 1.0), (3 / 4, 4 / 3), rng)
        expected = torch.from_numpy(pixels).permute(2, 0, 1)
        expected = tv.resized_crop(expected, top, left, h, w, [32, 32], antialias=True)
        flipped = rng.random() < 0.5
        flips += flipped
        assert torch.equal(out, expected.flip(-1) if flipped else expected)
    assert 10 < flips < 30


@pytest.mark.parametrize(("hflip", "mirrored"), [(0.0, False), (1.0, True)])
def test_flip_is_an_argument(hflip, mirrored):
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:, :16] = 255
    out = slot(32)
    for key in range(20):
        train(scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=hflip)(png(pixels), key, out)
        assert bool(out[0, 16, 31] == 255) is mirrored


@pytest.mark.parametrize(
    ("side", "factor"),
    [(223, 1), (224, 1), (447, 1), (448, 2), (896, 4), (1792, 8), (9999, 8)],
)
def test_reduction_keeps_the_crop_large_enough(side, factor):
    assert reduction_factor((0, 0, side, side + 5), 224) == factor


@pytest.mark.parametrize("size", [(512, 700), (333, 501), (1025, 263)])
def test_reduced_decode_gives_nearly_the_same_pixels(size):
    data = jpeg(*size, smooth=True)
    differences = []
    for key in range(20):
        full, reduced = slot(32), slot(32)
        train()(data, key, full)
        train(reduced_decode=True)(data, key, reduced)
        differences.append((full.float() - reduced.float()).abs().mean().item())
    assert 0 < np.mean(differences) < 3


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "side", [(1, 1), (1, 2), (2, 1), (5, 1), (3, 3), (40, 50), (1, 999)]
)
def test_resize_writes_what_interpolate_gives_and_nothing_beside_it(side, mode):
    picture = np.random.default_rng(0).integers(
        0, 256, (side[0] + 1, side[1] + 1, 3), dtype=np.uint8
    )
    crop = picture[1:, :-1]
    planes = torch.from_numpy(crop.copy()).permute(2, 0, 1).contiguous()
    for size in ((1, 7), (7, 1), (2, 2), (32, 32), side):
        batch = torch.full((3, *size, 3), 99, dtype=torch.uint8)
        out = batch.permute(0, 3, 1, 2)[1]
        resize(crop, mode, out)
        expected = torch.nn.functional.interpolate(
            planes[None], size, mode=mode, antialias=True
        )
        assert torch.equal(out, expected[0])
        assert (batch[[0, 2]] == 99).all()


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1)])
def test_a_ribbon_that_resizing_would_make_huge_is_unreadable_in_evaluation(size):
    data = png(np.zeros((*size, 3), dtype=np.uint8))
    with pytest.raises(UnreadableImage, match="too narrow"):
        EvalTransform(224, 256, "bilinear")(data, 0, slot(224))
    train()(data, 0, slot(32))
