"""Bytes to RGB."""

import io
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from imnet_pl.data.augment import EvalTransform, TrainTransform
from imnet_pl.data.decode import (
    DEFAULT_POLICY,
    UnreadableImage,
    decode_rgb,
    open_picture,
)


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient(height=40, width=60):
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 4, x * 4, (x + y) * 2], axis=-1).astype(np.uint8)


def noise(height, width):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF"])
def test_formats_by_content(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = gradient() if kind != "GIF" else np.full((8, 8, 3), 255, dtype=np.uint8)
    assert np.array_equal(
        decode_rgb(encode(Image.fromarray(pixels), kind, **options)), pixels
    )


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_jpeg_modes_become_rgb(mode):  # S11
    image = Image.fromarray(gradient()).convert(mode)
    data = encode(image, "JPEG", quality=95)
    with Image.open(io.BytesIO(data)) as decoded:
        expected = np.asarray(decoded.convert("RGB")).astype(int)
    assert np.abs(decode_rgb(data).astype(int) - expected).max() <= 3


def test_16_bit_is_scaled_not_clipped():  # S11
    ramp = np.linspace(0, 65535, 256 * 16).astype(np.uint16).reshape(16, 256)
    rgb = decode_rgb(encode(Image.fromarray(ramp), "PNG"))
    assert len(np.unique(rgb)) == 256
    assert rgb.shape == (16, 256, 3)


def test_16_bit_scale_does_not_depend_on_the_picture():  # S11
    dark = [np.full((4, 4), value, dtype=np.uint16) for value in (100, 255, 257, 514)]
    rgb = [decode_rgb(encode(Image.fromarray(pixels), "PNG")).max() for pixels in dark]
    assert rgb == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", ["<u2", ">u2", "<i4"])
def test_16_bit_tiff(kind):  # S11
    ramp = np.linspace(0, 65535, 4096).astype(kind).reshape(16, 256)
    assert len(np.unique(decode_rgb(encode(Image.fromarray(ramp), "TIFF")))) == 256


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_is_white(mode):  # S11
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0)).convert(mode)
    options = {"transparency": 0} if mode == "P" else {}
    if mode == "P":
        image = Image.new("P", (4, 4), 0)
    assert decode_rgb(encode(image, "PNG", **options)).min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_other_modes(mode):
    rgb = decode_rgb(encode(Image.fromarray(gradient()).convert(mode), "PNG"))
    assert (rgb.shape, rgb.dtype) == ((40, 60, 3), np.uint8)


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(64, 96), (65, 97), (333, 500)])
def test_reduced_sizes(size, factor):
    data = encode(Image.fromarray(gradient(*size)), "JPEG")
    expected = tuple(-(-side // factor) for side in size)
    picture = open_picture(data, DEFAULT_POLICY)
    assert (picture.size, picture.can_shrink) == (size, True)
    assert picture.decode(factor).shape[:2] == expected


SAVED = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "restart": {"subsampling": "4:2:0", "restart_marker_blocks": 3},
    "progressive": {"progressive": True},
}


@pytest.mark.parametrize("kind", [*SAVED, "gray"])
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 100, 180, 233])
def test_decoding_the_first_rows_gives_those_of_the_whole(kind, num_rows):
    image = Image.fromarray(noise(233, 150))
    image = image.convert("L") if kind == "gray" else image
    data = encode(image, "JPEG", **SAVED.get(kind, {}))
    whole = decode_rgb(data)
    rows = open_picture(data, DEFAULT_POLICY).decode(num_rows=num_rows)
    assert len(rows) >= num_rows
    np.testing.assert_array_equal(rows[:num_rows], whole[:num_rows])
    stops_early = kind not in ("progressive", "restart") and num_rows <= 180
    assert (len(rows) < len(whole)) == stops_early


def damage(data, rng):
    """Return a JPEG of which some bytes are others, or absent, but not the header or the end."""
    at = data.index(b"\xff\xda") + 14
    start = rng.randrange(at, len(data) - 2)
    stop = min(start + rng.randrange(1, 200), len(data) - 2)
    others = rng.choice([b"", rng.randbytes(stop - start)])
    return data[:start] + others + data[stop:]


@pytest.mark.parametrize("kind", SAVED)
def test_damage_is_found_wherever_decoding_would_stop(kind):
    """A picture is unreadable, or its rows are the same, whether it is decoded whole or not."""
    original = encode(Image.fromarray(gradient(240, 300)), "JPEG", **SAVED[kind])
    rng = random.Random(0)
    num_unreadable = 0
    for _ in range(200):
        data = damage(original, rng)
        try:
            whole = decode_rgb(data)
        except UnreadableImage:
            num_unreadable += 1
            with pytest.raises(UnreadableImage):
                open_picture(data, DEFAULT_POLICY).decode(num_rows=60)
        else:
            rows = open_picture(data, DEFAULT_POLICY).decode(num_rows=60)
            np.testing.assert_array_equal(rows[:60], whole[:60])
    assert 0 < num_unreadable < 200


@pytest.mark.parametrize("num_rows", [1, 100, 200])
def test_first_rows_of_real_jpegs(assets, num_rows):
    for file in sorted((assets / "imagenet-samples").iterdir())[::10]:
        data = file.read_bytes()
        rows = open_picture(data, DEFAULT_POLICY).decode(num_rows=num_rows)
        np.testing.assert_array_equal(rows[:num_rows], decode_rgb(data)[:num_rows])


def test_first_rows_of_a_jpeg_that_ends_early_are_not_enough():
    data = encode(Image.fromarray(noise(200, 300)), "JPEG")
    with pytest.raises(UnreadableImage):
        open_picture(data[:-500], DEFAULT_POLICY).decode(num_rows=10)


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_no_picture_is_refused(data):
    with pytest.raises(UnreadableImage):
        decode_rgb(data)


def test_a_jpeg_that_ends_early_is_refused():  # S12
    data = encode(Image.fromarray(gradient(200, 300)), "JPEG")
    for share in (0.3, 0.6, 0.95):
        with pytest.raises(UnreadableImage):
            decode_rgb(data[: int(len(data) * share)])


# Rows of the manifest that hold no usable picture.
UNREADABLE = {
    "truncated.jpg",
    "truncated_half.jpg",
    "truncated.png",
    "corrupt_header.jpg",
    "zero_byte.jpg",
    "html_named.jpg",
    "bomb_4GP.png",
    "._apple_double.jpg",
    "Thumbs.db",
    "desktop.ini",
}


def test_odd_images(assets):  # S11
    rows = (assets / "odd-images" / "manifest.tsv").read_text().splitlines()[1:]
    names = [row.split("\t")[0] for row in rows]
    failed = set()
    for name in names:
        try:
            rgb = decode_rgb((assets / "odd-images" / name).read_bytes())
        except UnreadableImage:
            failed.add(name)
        else:
            assert rgb.dtype == np.uint8
            assert rgb.shape[2] == 3
    assert failed == UNREADABLE


def test_odd_colours(assets):
    def read(name):
        return decode_rgb((assets / "odd-images" / name).read_bytes())

    assert read("transparent_red.png").min() == 255
    assert len(np.unique(read("ramp16.png"))) > 200
    assert read("grey16.png").max() == 5  # its values are 1024 to 1284 of 65535
    means = read("cmyk_noprofile.jpg").mean((0, 1))
    assert np.abs(means - (109, 132, 110)).max() < 4
    difference = read("cmyk_pillow.jpg").astype(int) - read("rgb_pillow.jpg")
    assert np.abs(difference).mean() < 10


def test_real_jpegs_are_pillows(assets):
    files = sorted((assets / "imagenet-samples").iterdir())[::10]
    differences = []
    for file in files:
        with Image.open(file) as image:
            expected = np.asarray(image.convert("RGB")).astype(int)
        differences.append(
            np.abs(decode_rgb(Path(file).read_bytes()) - expected).mean()
        )
    assert np.mean(differences) < 0.1


def with_size(jpeg, height, width):
    """Return a JPEG whose header says another size."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


def huge_jpeg():
    """A JPEG whose header says 20,000 x 14,000."""
    return with_size(encode(Image.fromarray(gradient()), "JPEG"), 14_000, 20_000)


def huge_png():
    """A PNG whose header says 40,000 x 40,000."""
    data = encode(Image.fromarray(gradient()), "PNG")
    header = b"IHDR" + struct.pack(">II", 40_000, 40_000) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("huge", [huge_jpeg, huge_png])
def test_giants_are_refused_before_they_are_decoded(huge, monkeypatch):  # S12
    monkeypatch.setattr("simplejpeg.decode_jpeg", None)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    tracemalloc.start()
    with pytest.raises(
        UnreadableImage, match=r"20000 x 14000 px, it has not|40000 px are more than"
    ):
        decode_rgb(huge())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20


def test_a_message_holds_no_memory_address():
    with pytest.raises(UnreadableImage, match="no picture of a known format"):
        decode_rgb(b"<html>not found</html>")


@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_exif_orientation_is_left_alone(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(gradient(40, 60)), "JPEG", exif=exif)
    assert decode_rgb(data).shape == (40, 60, 3)


@pytest.mark.parametrize("transform", ["train", "eval"])
def test_odd_images_reach_the_batch(assets, transform):  # S11
    make = {
        "train": TrainTransform(
            64, (0.08, 1.0), (0.75, 1.33), 0.5, "bilinear", reduced_decode=True
        ),
        "eval": EvalTransform(64, 73, "bilinear"),
    }[transform]
    rows = (assets / "odd-images" / "manifest.tsv").read_text().splitlines()[1:]
    for name in {row.split("\t")[0] for row in rows} - UNREADABLE:
        out = torch.empty((64, 64, 3), dtype=torch.uint8).permute(2, 0, 1)
        make((assets / "odd-images" / name).read_bytes(), 1, out)
