"""Formats whose decoder holds a picture several times are refused by their header before a process takes 1 GiB."""

import io
import subprocess
import sys

import pytest
from conftest import REPO
from PIL import Image

from imnet_pl.data import headers, pillow_formats
from imnet_pl.data.decode import (
    BUDGET,
    DEFAULT_POLICY,
    DecodePolicy,
    UnreadableImage,
    decode_rgb,
    open_picture,
)
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.inspection import inspect_picture

HEAVY = ("WEBP", "JPEG2000", "TIFF")
LIMIT_KIB = 2**20


def encode(kind, size=(70, 40), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, size, 7).save(file, kind, **options)
    return file.getvalue()


def with_webp_size(data, width, height):
    """Return a WebP whose header says another size."""
    changed = bytearray(data)
    if data[12:16] == b"VP8X":
        changed[24:27] = (width - 1).to_bytes(3, "little")
        changed[27:30] = (height - 1).to_bytes(3, "little")
    elif data[12:16] == b"VP8L":
        bits = (width - 1) | (height - 1) << 14 | data[24] >> 4 << 28
        changed[21:25] = bits.to_bytes(4, "little")
    else:
        changed[26:28] = width.to_bytes(2, "little")
        changed[28:30] = height.to_bytes(2, "little")
    return bytes(changed)


WEBPS = {
    "lossy": encode("WEBP"),
    "lossless": encode("WEBP", lossless=True),
    "extended": encode("WEBP", exif=b"Exif\0\0II*\0"),
}


@pytest.mark.parametrize("kind", WEBPS)
def test_the_size_of_a_webp(kind):
    data = WEBPS[kind]
    chunk = {"lossy": b"VP8 ", "lossless": b"VP8L", "extended": b"VP8X"}[kind]
    assert data[12:16] == chunk
    assert headers.webp_size(data) == (40, 70)
    assert headers.webp_size(with_webp_size(data, 9000, 7000)) == (7000, 9000)
    assert headers.webp_size(data[:29]) is None


@pytest.mark.parametrize("kind", WEBPS)
@pytest.mark.parametrize("size", [(9400, 9400), (16000, 16000)])
def test_a_large_webp_is_refused_before_its_decoder_starts(kind, size, monkeypatch):
    monkeypatch.setattr("PIL.WebPImagePlugin.WebPImageFile", None)
    data = with_webp_size(WEBPS[kind], *size)
    with pytest.raises(UnreadableImage) as error:
        decode_rgb(data, DecodePolicy(max_pixels=10**9))
    text = str(error.value)
    assert f"{size[0]} x {size[1]} px are more than the 58823529 of WEBP" in text
    assert "save it as a baseline JPEG, or smaller" in text


@pytest.mark.parametrize("kind", HEAVY)
def test_the_limit_of_a_format(kind, monkeypatch):
    monkeypatch.setattr("imnet_pl.data.decode._LARGE", 100)
    monkeypatch.setattr("imnet_pl.data.pillow_formats._MOST_BYTES", 38_000)
    with pytest.raises(UnreadableImage, match=f"70 x 40 px are more .* of {kind}"):
        decode_rgb(encode(kind))
    with pytest.raises(UnreadableImage, match=r"more than data\.max_pixels=99"):
        decode_rgb(encode(kind, (10, 10)), DecodePolicy(max_pixels=99))
    assert decode_rgb(encode(kind, (10, 10))).shape == (10, 10, 3)
    assert decode_rgb(encode("PNG", (60, 60))).shape == (60, 60, 3)


def test_a_cmyk_jpeg_above_its_limit_is_decoded_smaller(monkeypatch):
    monkeypatch.setattr("imnet_pl.data.decode._LARGE", 100)
    monkeypatch.setattr("imnet_pl.data.pillow_formats._MOST_BYTES", 13_000)
    assert decode_rgb(encode("JPEG", (60, 40), "CMYK")).shape == (20, 30, 3)


def test_threads_share_memory_and_not_pixels():
    """Two pictures at the limit of their format are not decoded at once."""
    for kind in (*HEAVY, "PNG"):
        held = pillow_formats.weigh(kind, pillow_formats.max_pixels(kind))
        assert BUDGET.total * 0.98 < held <= BUDGET.total
    assert open_picture(encode("WEBP"), DEFAULT_POLICY).num_pixels == 70 * 40 * 17 // 9


def test_pillows_own_refusal_is_told_with_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    (tmp_path / "p.webp").write_bytes(encode("WEBP"))
    index = ImageIndex.from_rows(tmp_path, ["p.webp"], [0], ["any"])
    facts = inspect_picture(index, 0)
    assert facts.error.startswith("it is larger than Pillow decodes (Image size (2800")
    assert facts.error.endswith("save it as a baseline JPEG, or smaller")


READ = """
import sys
from pathlib import Path
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.inspection import inspect_picture
facts = inspect_picture(ImageIndex.from_rows(sys.argv[1], ["large.bin"], [0], ["any"]), 0)
lines = Path("/proc/self/status").read_text().splitlines()
print(facts.height, next(line.split()[1] for line in lines if "VmHWM" in line))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("options", [("WEBP", "RGBA"), ("TIFF", "F"), ("PNG", "RGBA")])
def test_a_process_stays_below_1_gib(tmp_path, options):
    kind, mode = options
    most = min(pillow_formats.max_pixels(kind), DEFAULT_POLICY.max_pixels)
    size = (8000, most // 8000)
    file = tmp_path / "large.bin"
    more = {"WEBP": {"method": 0, "quality": 0}, "PNG": {"compress_level": 1}}
    file.write_bytes(encode(kind, size, mode, **more.get(kind, {})))
    done = subprocess.run(
        [sys.executable, "-c", READ, tmp_path],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    height, peak_kib = map(int, done.stdout.split())
    assert height == size[1]
    assert peak_kib < LIMIT_KIB
