"""What ``data.reduced_decode`` changes: how many training crops, their pixels, and the time that they take.

python benchmarks/reduced_decode.py [--pictures DIR] [--crops 20] [--json FILE]

The same crops of the same pictures are made with and without, at 224 px. Beside them, for scale, stands the difference between
bilinear and bicubic resizing. ``benchmarks/top1.py`` trains with it.
"""

import json
import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common import jpegs_in, picture_arguments
from numpy.typing import NDArray

SIZE = 224


def crop(transform: Any, content: bytes, key: int) -> tuple[NDArray[np.int16], float]:
    """Return a training crop, int16 [3, S, S], and the CPU milliseconds that it took."""
    out = torch.empty((SIZE, SIZE, 3), dtype=torch.uint8).permute(2, 0, 1)
    start = time.thread_time()
    transform(content, key, out)
    return out.numpy().astype(np.int16), 1000 * (time.thread_time() - start)


def factor_of(transform: Any, content: bytes, key: int) -> int:
    """Return by how much the crop of a key lets its picture be decoded smaller."""
    from imnet_pl.data import augment, decode

    picture = decode.open_picture(content, transform.policy)
    rng = random.Random(key)
    box = augment.draw_crop(*picture.size, transform.scale, transform.ratio, rng)
    return augment.reduction_factor(box, SIZE)


def measure(contents: list[bytes], crops: int) -> dict[str, Any]:
    """Make crops of every picture with and without."""
    from imnet_pl.data.augment import TrainTransform

    full = TrainTransform(SIZE, (0.08, 1.0), (3 / 4, 4 / 3), 0.5, "bilinear", False)
    reduced = replace(full, reduced_decode=True)
    bicubic = replace(full, interpolation="bicubic")
    found: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    other, spent = [], {"full": 0.0, "reduced": 0.0}
    with torch.inference_mode():
        for number, content in enumerate(contents):
            for key in range(number * crops, (number + 1) * crops):
                factor = factor_of(full, content, key)
                pixels, full_ms = crop(full, content, key)
                smaller, reduced_ms = crop(reduced, content, key)
                found[factor].append(float(np.abs(smaller - pixels).mean()))
                spent["full"] += full_ms
                spent["reduced"] += reduced_ms
                if factor > 1:
                    again = crop(bicubic, content, key)[0]
                    other.append(float(np.abs(again - pixels).mean()))
    total = len(contents) * crops
    rows = [
        {
            "factor": factor,
            "part": len(values) / total,
            "grey_levels": float(np.mean(values)),
            "worst_crop": float(np.max(values)),
        }
        for factor, values in found.items()
        if values
    ]
    return {
        "num_crops": total,
        "rows": rows,
        "bicubic_grey_levels": float(np.mean(other)) if other else None,
        "cpu_by_full": spent["reduced"] / spent["full"],
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{figures['num_crops']} crops\n")
    print(f"{'decoded at':12}{'of the crops':>14}{'grey levels':>13}{'worst':>8}")
    for row in figures["rows"]:
        at = f"1/{row['factor']}"
        print(
            f"{at:12}{row['part']:14.1%}{row['grey_levels']:13.2f}{row['worst_crop']:8.2f}"
        )
    if figures["bicubic_grey_levels"] is not None:
        print(
            f"bicubic instead of bilinear changes the reduced ones by {figures['bicubic_grey_levels']:.2f}"
        )
    print(f"CPU, reduced / full: {figures['cpu_by_full']:.2f}")


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = picture_arguments(__doc__)
    parser.add_argument("--crops", type=int, default=20, help="of each picture")
    args = parser.parse_args()
    files = jpegs_in(args.pictures)
    torch.set_num_threads(1)
    figures = measure([file.read_bytes() for file in files], args.crops)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
