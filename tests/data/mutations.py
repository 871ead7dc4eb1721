"""Decodes damaged pictures in a process of its own: python mutations.py COUNT SEED FOLDER [ORIGINALS LARGEST].

Prints what became of them as JSON. A file that takes more than 5 s, or a crash, ends the process, and leaves
the file in FOLDER.
"""

import faulthandler
import io
import json
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from imnet_pl.data.augment import EvalTransform, TrainTransform
from imnet_pl.data.dataset import ImageDataset, Request
from imnet_pl.data.decode import DecodePolicy
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.keys import Key

try:
    import resource
except ImportError:  # Windows
    resource = None

LIMIT_SEC = 5
LIMIT_BYTES = 2**30
SIZE = 32


def generate():
    """Return pictures in the formats that people have, by name."""
    y, x = np.mgrid[:60, :80]
    pixels = np.stack([y * 4, x * 3, (x + y) * 2], axis=-1).astype(np.uint8)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = image.convert("RGBA")
    clear.putalpha(Image.fromarray(pixels[..., 0]))
    frames = [image.rotate(angle).convert("P") for angle in (0, 30, 60)]
    options = {
        "base.jpg": (image, "JPEG", {"exif": exif, "quality": 90}),
        "progressive.jpg": (image, "JPEG", {"progressive": True}),
        "restarts.jpg": (image, "JPEG", {"restart_marker_blocks": 4}),
        "cmyk.jpg": (image.convert("CMYK"), "JPEG", {}),
        "grey.jpg": (image.convert("L"), "JPEG", {"comment": b"c" * 40}),
        "rgb.png": (image, "PNG", {"exif": exif}),
        "rgba.png": (clear, "PNG", {}),
        "palette.png": (image.convert("P"), "PNG", {"transparency": 3}),
        "bits.png": (image.convert("1"), "PNG", {}),
        "grey16.png": (Image.fromarray(x.astype(np.uint16) * 800), "PNG", {}),
        "still.gif": (frames[0], "GIF", {"transparency": 3}),
        "moving.gif": (frames[0], "GIF", {"save_all": True, "append_images": frames}),
        "lossy.webp": (image, "WEBP", {"exif": exif}),
        "lossless.webp": (clear, "WEBP", {"lossless": True}),
        "moving.webp": (image, "WEBP", {"save_all": True, "append_images": [clear]}),
        "grey.bmp": (image.convert("L"), "BMP", {}),
        "rgb.tif": (image, "TIFF", {"compression": "tiff_lzw"}),
    }
    made = {}
    for name, (picture, kind, more) in options.items():
        file = io.BytesIO()
        picture.save(file, kind, **more)
        made[name] = file.getvalue()
    return made


def mutate(data, others, rng):
    """Return a damaged copy: bits flipped anywhere or in the head, cut, a piece lost, overwritten, spliced."""
    changed = bytearray(data)
    kind = rng.choice(("flip", "head", "cut", "lose", "overwrite", "splice"))
    at = rng.randrange(len(data) + 1)
    if kind in ("flip", "head"):
        end = len(data) if kind == "flip" else min(len(data), 64)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "lose":
        del changed[at : at + rng.randrange(1, 200)]
    elif kind == "overwrite":
        length = len(changed[at : at + rng.randrange(1, 200)])
        changed[at : at + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
    else:
        other = rng.choice(others)
        changed[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(changed)


def peak_rss_bytes():
    """Return the most memory that this process has used; 0 where that is not counted."""
    status = Path("/proc/self/status")
    if (
        status.exists()
    ):  # where ru_maxrss counts the process that started this one as well
        peak = status.read_text().split("VmHWM:")[1].split()[0]
        return int(peak) * 1024
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_memory():
    """Let the process have 2 GiB more than now, where the system can count."""
    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2 * LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def make_dataset(number, index):
    """Return a data set of one picture, with the settings in turn."""
    policy = DecodePolicy(exif_orientation=number % 2 == 1)
    if number % 4 < 2:
        transform = EvalTransform(SIZE, SIZE, "bilinear", policy)
        return ImageDataset(index, transform, 0, 1, None, "error")
    ranges = ((0.08, 1.0), (0.75, 1.33))
    transform = TrainTransform(SIZE, *ranges, 0.5, "bilinear", True, policy)
    return ImageDataset(
        index, transform, 0, 1, None, "partial" if number % 8 < 4 else "error"
    )


def read_one(number, file):
    """Return ``fine``, ``partial`` or why the file can not be read.

    Raises:
        AssertionError: The error does not name the file.
    """
    index = ImageIndex.from_rows(file.parent, [file.name], [0], ["class"])
    dataset = make_dataset(number, index)
    made = dataset.__getitems__(Request(1, [Key(0, 0, 0)]))
    if made.error is not None:
        assert str(file) in made.error, made.error
        return made.error
    assert made.images.shape == (1, 3, SIZE, SIZE)
    return "partial" if made.bad else "fine"


def main(count, seed, folder, originals=None, largest=0):
    """Damage and read pictures, and print how many were what."""
    sources = generate()
    for path in sorted(Path(originals).iterdir()) if originals else ():
        if path.suffix != ".tsv" and 0 < path.stat().st_size <= int(largest):
            sources[path.name] = path.read_bytes()
    names, contents = list(sources), list(sources.values())
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow's of damage that it can cope with
    file = Path(folder) / "picture.bin"
    outcomes = Counter()
    file.write_bytes(contents[0])
    read_one(0, file)
    limit_memory()
    before = peak_rss_bytes()
    for number in range(int(count)):
        rng = random.Random(int(seed) * 1_000_003 + number)
        name = rng.choice(names)
        file.write_bytes(mutate(sources[name], contents, rng))
        faulthandler.dump_traceback_later(LIMIT_SEC, exit=True)
        outcome = read_one(number, file)
        faulthandler.cancel_dump_traceback_later()
        assert "MemoryError" not in outcome, (name, outcome)
        is_error = outcome not in ("fine", "partial")
        outcomes["error" if is_error else outcome] += 1
    used = peak_rss_bytes() - before
    assert used < LIMIT_BYTES, used
    sys.stdout.write(json.dumps({**outcomes, "mib": used >> 20}))


if __name__ == "__main__":
    main(*sys.argv[1:])
