"""What packing costs: size, grey levels and Top-1 by short side and quality, against the original files.

python benchmarks/effect.py [--pictures DIR] [--ckpt_path FILE --root DIR] [--json FILE]

Grey levels are compared where the model sees them: after resizing the short side to 256 px and cropping 224 px. The size is that
of ImageNet's 1,281,167 + 50,000 pictures if they are as the pictures given. Top-1 is that of a checkpoint on the val of its
data, of which the short sides are the same multiples of the checkpoint's ``eval_resize``.
"""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import jpegs_in, picture_arguments
from numpy.typing import NDArray

IMAGENET = 1_281_167 + 50_000
SIZE, RESIZE = 224, 256
SIDES = (1.0, 1.25, 1.5625)  # of the resized short side: 256, 320, 400
QUALITIES = (85, 90, 95)


def reencode(content: bytes, short_side: int, quality: int) -> bytes:
    """Return a picture as it is packed; one that is small enough is returned as it is.

    Args:
        content: The file.
        short_side: Length of the short side in px.
        quality: Of the JPEG, 1 to 100.
    """
    from imnet_pl.data.packing import Encoding, encode_picture

    return encode_picture(content, Encoding(short_side, quality))[0]


def as_seen(content: bytes) -> NDArray[np.int16]:
    """Return what the model sees of a picture, int16 [3, S, S]."""
    from imnet_pl.data.augment import EvalTransform

    out = torch.empty((SIZE, SIZE, 3), dtype=torch.uint8).permute(2, 0, 1)
    EvalTransform(SIZE, RESIZE, "bilinear")(content, 0, out)
    return out.numpy().astype(np.int16)


def settings(resized: int) -> list[tuple[int, int]]:
    """Return (short side, quality) of each row, for a short side that evaluation resizes to."""
    sides = [round(k * resized) for k in SIDES]
    return [(side, quality) for side in sides for quality in QUALITIES]


def measure_pictures(files: Iterable[Path]) -> dict[str, Any]:
    """Return the mean bytes of the originals and, of each setting, mean bytes and grey-level differences."""
    rows = settings(RESIZE)
    sizes: list[list[int]] = [[] for _ in rows]
    means: list[list[float]] = [[] for _ in rows]
    originals = []
    for file in files:
        content = file.read_bytes()
        originals.append(len(content))
        seen = as_seen(content)
        for i, row in enumerate(rows):
            packed = reencode(content, *row)
            sizes[i].append(len(packed))
            means[i].append(float(np.abs(as_seen(packed) - seen).mean()))
    return {
        "num_pictures": len(originals),
        "original_bytes": float(np.mean(originals)),
        "rows": [
            {
                "short_side": side,
                "quality": quality,
                "bytes": float(np.mean(sizes[i])),
                "grey_levels": float(np.mean(means[i])),
                "worst_picture": float(np.max(means[i])),
            }
            for i, (side, quality) in enumerate(rows)
        ],
    }


def measure_accuracy(checkpoint: Path, root: Path) -> dict[str, Any]:
    """Return Top-1 of a checkpoint on the original val of a root, and on it packed with each setting."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    known = torch.load(checkpoint, weights_only=True)["imnet_pl"]
    data = ImageNetDataModule(str(root), classes=list(known["classes"]))
    data.setup("validate")
    rows = settings(known["eval_resize"])
    figures = {"original": validate(checkpoint, data.indices["val"], None), "rows": []}
    for side, quality in rows:
        top1, count = validate(checkpoint, data.indices["val"], (side, quality))
        figures["rows"].append(
            {"short_side": side, "quality": quality, "top1": top1, "n": count}
        )
    return figures


def validate(
    checkpoint: Path, index: Any, setting: tuple[int, int] | None
) -> tuple[float, int]:
    """Return Top-1 and n on the pictures of an index, packed with a setting or as they are."""
    from imnet_pl.cli import main

    with tempfile.TemporaryDirectory() as folder:
        for i in range(len(index)):
            content = Path(index.path(i)).read_bytes()
            if setting is not None:
                content = reencode(content, *setting)
            file = Path(folder, "val", index.classes[index.labels[i]], f"{i}.jpg")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        args = ["validate", "--ckpt_path", str(checkpoint), "--data.root", folder]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            status = main([*args, "--data.source", "folder"])
    found = re.search(r"top1 ([0-9.]+) .*?\bn (\d+)", shown.getvalue())
    if status or found is None:
        raise SystemExit(f"validate fails: {shown.getvalue()}")
    return float(found.group(1)), int(found.group(2))


def show(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    pictures = figures["pictures"]
    original = pictures["original_bytes"] * IMAGENET / 1e9
    print(
        f"{pictures['num_pictures']} pictures; ImageNet as they are: {original:.0f} GB\n"
    )
    print(
        f"{'short side':12}{'quality':>8}{'ImageNet':>11}{'grey levels':>13}{'worst':>8}"
    )
    for row in pictures["rows"]:
        side = row["short_side"]
        size = f"{row['bytes'] * IMAGENET / 1e9:.0f} GB"
        print(
            f"{side:<12}{row['quality']:8d}{size:>11}{row['grey_levels']:13.2f}{row['worst_picture']:8.2f}"
        )
    if "accuracy" in figures:
        top1, count = figures["accuracy"]["original"]
        print(f"\nTop-1 of the checkpoint on {count} original pictures: {top1:.4f}\n")
        print(f"{'short side':12}{'quality':>8}{'Top-1':>9}{'difference':>12}")
        for row in figures["accuracy"]["rows"]:
            side = row["short_side"]
            print(
                f"{side:<12}{row['quality']:8d}{row['top1']:9.4f}{row['top1'] - top1:+12.4f}"
            )


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = picture_arguments(__doc__)
    parser.add_argument("--ckpt_path", type=Path, help="a checkpoint of this program")
    parser.add_argument("--root", type=Path, help="the data of the checkpoint")
    args = parser.parse_args()
    if (args.ckpt_path is None) != (args.root is None):
        raise SystemExit("--ckpt_path and --root go together")
    files = jpegs_in(args.pictures)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"pictures": measure_pictures(files)}
    if args.ckpt_path is not None:
        figures["accuracy"] = measure_accuracy(args.ckpt_path, args.root)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
