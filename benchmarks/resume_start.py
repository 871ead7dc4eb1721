"""Does a run that goes on late in an epoch of ImageNet-1K start as fast as one at its beginning?

python benchmarks/resume_start.py [--repeats 5]

Makes the training loader and fetches its first batch, from batch 0 and from batch 5,000 of 5,004, in turn in one
run; the index has 1,281,167 entries, which name a few pictures again and again. Loads in the training process,
so that no start of workers hides a difference. Exit status 1 when the medians are more than 0.5 s apart.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NUM_SAMPLES, BATCH, LATE_BATCH = 1_281_167, 256, 5_000
NUM_PICTURES, NUM_CLASSES = 64, 1_000
LIMIT_SEC = 0.5


def write_pictures(folder: Path) -> list[str]:
    """Write noise as JPEGs of ImageNet's usual size and return their names, all of one length."""
    rng = np.random.default_rng(0)
    names = [f"{i:04d}.JPEG" for i in range(NUM_PICTURES)]
    for name in names:
        coarse = rng.integers(0, 256, (38, 50, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375)).save(folder / name)
    return names


def build_data(folder: Path) -> Any:
    """Return a data module whose training split is as long as ImageNet's."""
    from imnet_pl.data.datamodule import ImageNetDataModule
    from imnet_pl.data.index import ImageIndex

    names = write_pictures(folder)
    repeats = -(-NUM_SAMPLES // len(names))
    length = len(names[0])
    joined = np.frombuffer("".join(names).encode(), dtype=np.uint8)
    index = ImageIndex(
        root=str(folder),
        path_bytes=np.tile(joined, repeats)[: NUM_SAMPLES * length],
        path_ends=np.arange(1, NUM_SAMPLES + 1, dtype=np.int64) * length,
        labels=np.arange(NUM_SAMPLES, dtype=np.int64) % NUM_CLASSES,
        classes=tuple(map(str, range(NUM_CLASSES))),
    )
    data = ImageNetDataModule(root=str(folder), batch_size=BATCH, num_workers=0)
    data.indices["train"] = index
    return data


def time_start(data: Any, batch: int) -> float:
    """Return the seconds until the first batch of an epoch that goes on at a batch."""
    start = time.perf_counter()
    loader = data.train_dataloader()
    loader.sampler.start = batch * BATCH
    first = next(iter(loader))
    seconds = time.perf_counter() - start
    assert len(first.targets) == BATCH
    return seconds


def main() -> int:
    """Print both times and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        data = build_data(Path(folder))
        num_batches = len(data.train_dataloader())
        time_start(data, 0)  # imports, threads and files
        pairs = [
            (time_start(data, 0), time_start(data, LATE_BATCH)) for _ in range(repeats)
        ]
    early, late = (statistics.median(side) for side in zip(*pairs, strict=True))
    apart = statistics.median(b - a for a, b in pairs)
    print(f"epoch of {num_batches} batches of {BATCH}; medians of {repeats}")
    print(f"first batch from batch 0: {early:.3f} s, from {LATE_BATCH}: {late:.3f} s")
    print(f"difference {apart:+.3f} s (at most {LIMIT_SEC} s)")
    return int(apart > LIMIT_SEC)


if __name__ == "__main__":
    sys.exit(main())
