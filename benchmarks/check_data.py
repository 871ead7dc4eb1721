"""The speed of check-data beside bare decoding in as many processes as cores, in one run.

python benchmarks/check_data.py [--folder DIR] [--repeat 8] [--runs 5]
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO))

from imnet_pl.core.machine import usable_cores
from imnet_pl.data.decode import decode_rgb
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.inspection import inspect_index


def decode_all(paths: list[str]) -> float:
    """Read and decode pictures, and return the seconds that it took."""
    start = time.perf_counter()
    for path in paths:
        decode_rgb(Path(path).read_bytes())
    return time.perf_counter() - start


def decode_in_processes(paths: list[str], num_processes: int) -> float:
    """Return the seconds of bare decoding in processes that are started already."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context) as pool:
        list(pool.map(decode_all, [paths[:1]] * num_processes))
        start = time.perf_counter()
        list(
            pool.map(
                decode_all, [paths[i::num_processes] for i in range(num_processes)]
            )
        )
        return time.perf_counter() - start


def check(index: ImageIndex, num_processes: int) -> float:
    """Return the seconds from the first pictures that are done to the last; starting processes is left out."""
    start, first = 0.0, 0
    for step in inspect_index(index, num_processes):
        if isinstance(step, int) and not start:
            start, first = time.perf_counter(), step
        elif isinstance(step, int):
            last, done = time.perf_counter(), step
    return (last - start) * len(index) / (done - first)


def main() -> None:
    """Print pictures/s of both, and the ratio."""
    assets = Path(os.environ.get("IMNET_PL_ASSETS", REPO.parent / "shared" / "assets"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=assets / "imagenet-samples")
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    names = sorted(
        p.name for p in args.folder.iterdir() if p.suffix.lower() in (".jpg", ".jpeg")
    )
    index = ImageIndex.from_rows(
        args.folder,
        names * args.repeat,
        np.zeros(len(names) * args.repeat, dtype=np.int64),
        ["any"],
    )
    paths = [index.path(i) for i in range(len(index))]
    cores = usable_cores()
    pairs = [
        (decode_in_processes(paths, cores), check(index, cores))
        for _ in range(args.runs)
    ]
    bare, checked = (
        len(index) / statistics.median(side) for side in zip(*pairs, strict=True)
    )
    ratio = statistics.median(b / c for b, c in pairs)
    print(
        f"{len(index)} pictures, {cores} processes, medians of {args.runs} paired runs"
    )
    print(
        f"bare decode {bare:7.0f} pictures/s\ncheck-data  {checked:7.0f} pictures/s: {100 * ratio:.0f} %"
    )


if __name__ == "__main__":
    main()
