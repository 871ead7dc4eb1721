"""What the settings of decoding do, and that odd files keep their colours."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from imnet_pl.data import headers
from imnet_pl.data.augment import EvalTransform, TrainTransform
from imnet_pl.data.decode import (
    DEFAULT_POLICY,
    DecodePolicy,
    UnreadableImage,
    decode_rgb,
    open_picture,
)

UPRIGHT = DecodePolicy(exif_orientation=True)


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def gradient(height=40, width=60):
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 4, x * 4, (x + y) * 2], axis=-1).astype(np.uint8)


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def photo(height=400, width=600):
    """Pixels that a JPEG keeps well."""
    y, x = np.mgrid[:height, :width]
    planes = [np.sin(y / 40), np.cos(x / 50), np.sin((x + 2 * y) / 60)]
    return np.stack([127 + 100 * plane for plane in planes], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1-key", "16-bit"])
def test_transparency_lies_on_the_chosen_colour(mode):
    options = {"transparency": 0}
    if mode == "P":
        image = Image.new("P", (4, 4), 0)
    elif mode == "1-key":
        image = Image.new("L", (4, 4), 0)
    elif mode == "16-bit":
        image = Image.fromarray(np.full((4, 4), 7, dtype=np.uint16))
        options = {"transparency": 7}
    else:
        image, options = Image.new("RGBA", (4, 4), (255, 0, 0, 0)).convert(mode), {}
    data = encode(image, "PNG", **options)
    policy = DecodePolicy(alpha_background=(10, 20, 30))
    assert np.unique(decode_rgb(data, policy).reshape(-1, 3), axis=0).tolist() == [
        [10, 20, 30]
    ]
    assert decode_rgb(data).min() == 255


def test_half_transparent_is_mixed():
    data = encode(Image.new("RGBA", (4, 4), (200, 0, 0, 128)), "PNG")
    assert decode_rgb(data)[0, 0].tolist() == [227, 127, 127]


# The stored picture that looks like the upright one, by orientation.
STORED = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p),
    7: lambda p: np.rot90(p.transpose(1, 0, 2), 2),
    8: lambda p: np.rot90(p, -1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", STORED)
def test_exif_orientation_when_it_is_asked_for(kind, value):
    upright = photo(40, 60)
    stored = np.ascontiguousarray(STORED[value](upright))
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    data = encode(
        Image.fromarray(stored),
        kind,
        exif=orientation(value),
        **options.get(kind, {}),
    )
    turned = decode_rgb(data, UPRIGHT).astype(int)
    assert np.abs(turned - upright).max() <= 4
    if kind != "TIFF":  # Pillow turns it in any case
        assert np.abs(decode_rgb(data).astype(int) - stored).max() <= 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("make", ["train", "reduced", "eval"])
def test_orientation_is_the_same_in_all_stages(kind, make):
    upright, outs = photo(), []
    for value in (1, 6):
        stored = Image.fromarray(np.ascontiguousarray(STORED[value](upright)))
        data = encode(stored, kind, exif=orientation(value))
        out = torch.empty((32, 32, 3), dtype=torch.uint8).permute(2, 0, 1)
        if make == "eval":
            EvalTransform(32, 36, "bilinear", UPRIGHT)(data, 7, out)
        else:
            ranges, is_reduced = ((0.5, 1.0), (0.75, 1.33)), make == "reduced"
            TrainTransform(32, *ranges, 0.5, "bilinear", is_reduced, UPRIGHT)(
                data, 7, out
            )
        outs.append(out.int())
    assert (outs[0] - outs[1]).abs().max() <= 6


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x06\0\0\0",
        b"garbage",
    ],
)
def test_broken_exif_is_no_matter(exif):
    assert headers.exif_orientation(exif) == 1
    image = Image.fromarray(gradient())
    for kind in ("JPEG", "PNG", "WEBP"):
        data = encode(image, kind, exif=exif)
        assert decode_rgb(data, UPRIGHT).shape == (40, 60, 3)


def png_chunk(name, content, crc_error=0):
    crc = zlib.crc32(name + content) ^ crc_error
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"tEXt", b"a\0b", crc_error=1),
        png_chunk(b"zTXt", b"a\0\0garbage"),
        png_chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 2**26)),
        png_chunk(b"iTXt", b"\xff"),
        png_chunk(b"eXIf", b"II*\0garbage", crc_error=1),
        png_chunk(b"iCCP", b"name\0\0garbage"),
        png_chunk(b"acTL", b"\0\0"),
        png_chunk(b"pHYs", b""),
    ],
)
def test_a_broken_text_or_colour_chunk_is_no_matter(chunk, late):
    data = encode(Image.fromarray(gradient()), "PNG")
    at = len(data) - 12 if late else 33  # before the end, or after the header
    damaged = data[:at] + chunk + data[at:]
    for policy in (DEFAULT_POLICY, UPRIGHT):
        assert np.array_equal(decode_rgb(damaged, policy), gradient())


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_of_several_pictures_is_read(kind):
    first, second = (Image.new("RGB", (8, 8), c) for c in ((255, 0, 0), (0, 0, 255)))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(first, kind, save_all=True, append_images=[second], **options)
    assert decode_rgb(data)[4, 4].tolist() == [255, 0, 0]


def test_a_float_picture_of_0_to_1_is_not_black():
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    assert len(np.unique(decode_rgb(encode(Image.fromarray(ramp), "TIFF")))) == 256
    ramp[0, 0] = np.nan
    assert decode_rgb(encode(Image.fromarray(ramp), "TIFF"))[0, 0, 0] == 0


def test_values_beyond_16_bit_are_not_white():
    ramp = np.linspace(0, 10**6, 256).astype(np.int32).reshape(16, 16)
    assert len(np.unique(decode_rgb(encode(Image.fromarray(ramp), "TIFF")))) == 256


def test_a_dark_16_bit_pgm_is_not_taken_for_8_bit():
    pgm = b"P5 2 1 65535\n" + struct.pack(">HH", 0, 255)
    assert decode_rgb(pgm).max() == 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "CMYK", "1", "P", "L", "RGB"])
def test_large_pictures_are_converted_in_parts(mode, monkeypatch):
    kind = "TIFF" if mode == "CMYK" else "PNG"
    image = Image.fromarray(photo(70, 50))
    if "A" in mode:
        image.putalpha(Image.fromarray(gradient(70, 50)[..., 1]))
    data = encode(image.convert(mode), kind)
    whole = decode_rgb(data)
    monkeypatch.setattr("imnet_pl.data.pillow_formats._BAND_PIXELS", 512)
    assert np.array_equal(decode_rgb(data), whole)


@pytest.mark.parametrize(
    ("max_pixels", "shape"),
    [
        (10**6, (400, 600)),
        (6 * 10**4, (200, 300)),
        (6 * 10**4 - 1, (100, 150)),
        (4000, (50, 75)),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_above_the_limit_is_decoded_smaller(mode, max_pixels, shape):
    image = Image.fromarray(photo()).convert(mode)
    data = encode(image, "JPEG", quality=95)
    small = decode_rgb(data, DecodePolicy(max_pixels=max_pixels))
    assert small.shape == (*shape, 3)
    expected = image.convert("RGB").resize(shape[::-1], Image.Resampling.BOX)
    assert np.abs(small.astype(int) - np.asarray(expected)).mean() < 4


@pytest.mark.parametrize("make", ["train", "eval"])
def test_a_jpeg_above_the_limit_looks_the_same_in_the_batch(make):
    data, outs = encode(Image.fromarray(photo(800, 1200)), "JPEG", quality=95), []
    for policy in (DEFAULT_POLICY, DecodePolicy(max_pixels=10**5)):
        out = torch.empty((32, 32, 3), dtype=torch.uint8).permute(2, 0, 1)
        if make == "eval":
            EvalTransform(32, 36, "bilinear", policy)(data, 7, out)
        else:
            ranges = ((0.5, 1.0), (0.75, 1.33))
            TrainTransform(32, *ranges, 0.5, "bilinear", False, policy)(data, 7, out)
        outs.append(out.float())
    assert (outs[0] - outs[1]).abs().mean() < 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("JPEG", {"progressive": True}), "600 x 400 px .* no baseline JPEG"),
        (("PNG", {}), "600 x 400 px are more than data.max_pixels=100000"),
        (("GIF", {}), "more than data.max_pixels"),
        (("WEBP", {}), "more than data.max_pixels"),
    ],
)
def test_what_can_not_be_decoded_smaller_is_refused_by_its_header(
    options, message, monkeypatch
):
    kind, more = options
    data = encode(Image.fromarray(photo()), kind, **more)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    with pytest.raises(UnreadableImage, match=message):
        decode_rgb(data, DecodePolicy(max_pixels=10**5))


def test_too_large_at_an_eighth():
    data = encode(Image.fromarray(photo()), "JPEG")
    with pytest.raises(UnreadableImage, match="at 1/8 of its size too"):
        decode_rgb(data, DecodePolicy(max_pixels=50 * 75 - 1))


def test_a_limit_above_pillows_own_holds(monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 30)
    for kind in ("PNG", "GIF", "BMP"):
        assert decode_rgb(encode(Image.fromarray(photo(8, 9)), kind)).shape == (8, 9, 3)


def test_a_giant_jpeg_takes_little_memory(assets):
    data = (assets / "odd-images" / "giant_280MP.jpg").read_bytes()
    picture = open_picture(data, DEFAULT_POLICY)
    assert (picture.size, picture.num_pixels) == ((14000, 20000), 70_000_000)
    out = torch.empty((32, 32, 3), dtype=torch.uint8).permute(2, 0, 1)
    EvalTransform(32, 36, "bilinear", DecodePolicy(max_pixels=10**7))(data, 0, out)
    assert out.float().std() >= 0


def test_a_file_of_another_format_than_its_name(tmp_path):
    for kind in ("PNG", "GIF", "WEBP", "BMP"):
        file = tmp_path / "x.JPEG"
        file.write_bytes(encode(Image.fromarray(photo()), kind))
        assert decode_rgb(file.read_bytes()).shape == (400, 600, 3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<!DOCTYPE html>", "but HTML or XML"),
        (b"\xef\xbb\xbf <svg/>", "but HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"%PDF-1.7", "but PDF"),
        (b"\0\0\0\x18ftypheic\0\0", "HEIC, which can be converted"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "no picture of a known format"),
        (b"P", "no picture of a known format"),
        (b"\0" * 100, "no picture of a known format"),
        (b"", "the file is empty"),
    ],
)
def test_what_is_no_picture_is_named(data, message):
    with pytest.raises(UnreadableImage, match=message):
        decode_rgb(data)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("more", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_jpeg_that_ends_early_can_be_used_as_far_as_it_goes(share, more):
    whole = encode(Image.fromarray(photo()), "JPEG", **more)
    policy = DecodePolicy(partial=True)
    part = decode_rgb(whole[: int(len(whole) * share)], policy).astype(int)
    full = decode_rgb(whole).astype(int)
    assert part.shape == full.shape
    if not more.get("progressive"):
        rows = int(400 * share) - 60
        assert np.abs(part[:rows] - full[:rows]).max() == 0
    assert np.array_equal(decode_rgb(whole, policy), full)


def test_a_jpeg_that_ends_before_its_pixels_is_no_part():
    data = encode(Image.fromarray(photo()), "JPEG")
    for end in (3, 100, data.index(b"\xff\xda") + 14):
        with pytest.raises(UnreadableImage):
            decode_rgb(data[:end], DecodePolicy(partial=True))


def test_other_formats_are_never_used_in_part():
    for kind in ("PNG", "GIF"):
        data = encode(Image.fromarray(photo()), kind)
        with pytest.raises(UnreadableImage):
            decode_rgb(data[: len(data) // 2], DecodePolicy(partial=True))


def plain(file):
    """Decode as plain Pillow does."""
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB")).astype(int)


PLAIN = [
    *("cmyk_noprofile.jpg", "ycck.jpg", "cmyk_pillow.jpg", "rgb_pillow.jpg"),
    *("bilevel_large.png", "bad_exif.jpg", "grey8_lossless.jpg", "grey_1000x1.jpg"),
    *("rgb_1x1.jpg", "tall_193x31237.jpg", "UPPER.JPG", "exif_1.jpg", "exif_6.jpg"),
]


@pytest.mark.parametrize("name", PLAIN)
def test_no_odd_picture_has_a_cast(assets, name):
    file = assets / "odd-images" / name
    difference = decode_rgb(file.read_bytes()) - plain(file)
    assert np.abs(difference.mean((0, 1))).max() < 0.1
    assert np.abs(difference).max() <= 3


def test_odd_pictures_of_one_motif_have_its_colours(assets):
    def mean(name, policy=DEFAULT_POLICY):
        return decode_rgb((assets / "odd-images" / name).read_bytes(), policy).mean(
            (0, 1)
        )

    for name in ("cmyk_noprofile.jpg", "ycck.jpg"):
        assert np.abs(mean(name) - (109, 132, 110)).max() < 1
    assert np.abs(mean("cmyk_pillow.jpg") - mean("rgb_pillow.jpg")).max() < 5
    for name in ("palette_transparent.png", "transparent_red.png"):
        assert mean(name).min() == 255
    first = mean("exif_2.jpg", UPRIGHT)
    for number in (3, 4, 5, 6, 8):
        assert np.abs(mean(f"exif_{number}.jpg", UPRIGHT) - first).max() < 1


def test_odd_exif_pictures_are_upright_and_alike(assets):
    pictures = []
    for number in (2, 3, 4, 5, 6, 8):
        data = (assets / "odd-images" / f"exif_{number}.jpg").read_bytes()
        pictures.append(decode_rgb(data, UPRIGHT).astype(int))
    assert {picture.shape for picture in pictures} == {(450, 600, 3)}
    for picture in pictures:
        assert np.abs(picture - pictures[0]).mean() < 5
