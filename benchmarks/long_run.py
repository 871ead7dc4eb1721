"""Whether loading stays flat over a long run, what one more worker costs, and what loading costs the training process.

python benchmarks/long_run.py [--epochs 20] [--pictures 512] [--n 1281167] [--json FILE]

A Trainer fits a network of one number on generated pictures: train and val loaders are used as in any run. In the first epoch
batches are kept until every shared one has been used. Memory is what a process has alone (USS); that of a worker for the index is
without the files that are mapped, where the system tells them apart: all processes share those, and the system may drop them.
CPU seconds are those of the training process, around the loader's ``next``.
"""

import argparse
import cProfile
import gc
import io
import json
import logging
import os
import pstats
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import psutil
import torch
from PIL import Image

from imnet_pl.core.machine import num_open_files
from imnet_pl.data.augment import TrainTransform
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.dataset import ImageDataset
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.loader import BatchLoader
from imnet_pl.data.sampler import TrainSampler
from imnet_pl.data.slots import Slots

MIB = 2**20
CLASSES = 4
FIRST_FLAT = 3  # epochs from this one on are compared
MEMORY_SLACK = 0.02
KEPT = 12  # batches, more than are shared
BATCH = 128


def make_pictures(root: Path, count: int, side: int) -> None:
    """Write class folders of JPEGs, ``count`` for training and a quarter of them for validation."""
    for split, number in (("train", count), ("val", max(CLASSES, count // 4))):
        for i in range(number):
            file = root / split / f"n{i % CLASSES:08d}" / f"n{i:08d}_{i}.JPEG"
            file.parent.mkdir(parents=True, exist_ok=True)
            rng = np.random.default_rng(i)
            small = rng.integers(0, 256, (24, 32, 3), np.uint8)
            size = (side, side * 3 // 4)
            Image.fromarray(small).resize(size).save(file, quality=90)


class OneNumber(lightning.LightningModule):
    """The least that can be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.kept: deque[torch.Tensor] = deque(maxlen=KEPT)

    def _keep(self, batch: Any) -> None:
        """Keep some batches of the first epoch."""
        if self.current_epoch == 0:
            self.kept.append(batch.images)
        else:
            self.kept.clear()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Look at the pictures."""
        self._keep(batch)
        return self.layer(batch.images.float().mean().reshape(1, 1) / 255).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Look at the pictures."""
        self._keep(batch)
        batch.images.float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def worker_processes() -> list[psutil.Process]:
    """Return this process's workers."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]


def shared_segments(process: psutil.Process) -> int:
    """Return how many pieces of shared memory a process has; 0 where the system does not say."""
    if not hasattr(process, "memory_maps"):
        return 0
    maps = process.memory_maps(grouped=False)
    return sum(m.path.startswith("/dev/shm/") for m in maps)


def memory_without_files(process: psutil.Process) -> int:
    """Return the bytes that a process has alone, where the system tells without files that it has mapped."""
    maps = process.memory_maps() if hasattr(process, "memory_maps") else []
    if maps and hasattr(maps[0], "anonymous"):
        return sum(m.anonymous for m in maps)
    return int(process.memory_full_info().uss)


def take_stock() -> dict[str, float]:
    """Return what this process and its workers have now."""
    this, workers = psutil.Process(), worker_processes()
    return {
        "main_mib": this.memory_full_info().uss / MIB,
        "worker_mib": sum(w.memory_full_info().uss for w in workers) / MIB,
        "main_files": num_open_files() or 0,
        "worker_files": sum(num_open_files(w.pid) or 0 for w in workers),
        "main_threads": this.num_threads(),
        "worker_threads": sum(w.num_threads() for w in workers),
        "main_segments": shared_segments(this),
        "worker_segments": sum(map(shared_segments, workers)),
        "processes": len(workers),
    }


class Stock(lightning.Callback):
    """Takes stock after every epoch."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Take stock; validation is over by then."""
        self.rows.append(take_stock())


def measure_epochs(root: Path, epochs: int, **options: Any) -> list[dict[str, float]]:
    """Return the stock after each epoch of a run of its own loaders."""
    data = ImageNetDataModule(str(root), **options)
    stock = Stock()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[stock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OneNumber(), data)
    return stock.rows


def find_growth(rows: list[dict[str, float]]) -> list[str]:
    """Return what is not flat from the third epoch on, in words."""
    flat, found = rows[FIRST_FLAT - 1 :], []
    for name in flat[0]:
        values = [row[name] for row in flat]
        low, high = min(values), max(values)
        slack = MEMORY_SLACK * low if name.endswith("_mib") else 0
        if high - low > slack:
            found.append(f"{name}: {low:.1f} to {high:.1f}")
    return found


def timed_batches(
    data: ImageNetDataModule, count: int
) -> Iterator[tuple[float, float]]:
    """Yield CPU seconds of (this thread, all threads of this process) for each batch after the first ten."""
    batches = iter(data.train_dataloader())
    for i in range(count + 10):
        thread, process = time.thread_time(), time.process_time()
        batch = next(batches)
        spent = time.thread_time() - thread, time.process_time() - process
        assert len(batch.targets) == BATCH
        if i >= 10:
            yield spent


def measure_main_cpu(root: Path, count: int) -> dict[str, Any]:
    """Return CPU milliseconds of the training process for a batch, and where they go."""
    data = ImageNetDataModule(str(root), batch_size=BATCH, num_workers=1)
    data.setup("fit")
    spent = list(timed_batches(data, count))
    thread, process = (
        statistics.median(1000 * s for s in t) for t in zip(*spent, strict=True)
    )
    profile = cProfile.Profile(timer=time.thread_time)
    profile.enable()
    list(timed_batches(data, count))
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(12)
    return {"thread_ms": thread, "process_ms": process, "profile": text.getvalue()}


def make_index(root: Path, folder: Path, count: int) -> ImageIndex:
    """Return a kept index of ``count`` rows, whose paths are those of the pictures again and again."""
    paths = [p.relative_to(root).as_posix() for p in sorted(root.glob("train/*/*"))]
    names = [paths[i % len(paths)] for i in range(count)]
    labels = [i * 1000 // count for i in range(count)]
    index = ImageIndex.from_rows(
        root, names, labels, [f"n{i:08d}" for i in range(1000)]
    )
    folder.mkdir()
    index.save(folder)
    return ImageIndex.open(str(folder))


def worker_mib(index: ImageIndex, threads: int, batches: int = 20) -> float:
    """Return a worker's own memory after some batches from all over an index."""
    gc.collect()  # the workers of earlier loaders end with them
    transform = TrainTransform(64, (0.08, 1.0), (0.75, 1.33), 0.5, "bilinear", False)
    slots = Slots(1, 5, BATCH, 64)
    dataset = ImageDataset(index, transform, 0, threads, slots, "error")
    sampler = TrainSampler(len(index), seed=0)
    loader = BatchLoader(dataset, sampler, BATCH, True, 1, 2, pin_memory=False)
    for _, _ in zip(range(batches), loader, strict=False):
        pass
    (worker,) = worker_processes()
    return memory_without_files(worker) / MIB


def measure_worker(root: Path, folder: Path, count: int) -> dict[str, float]:
    """Return MiB of a worker with few and with many pictures, and with few and with many threads."""
    few, many = (make_index(root, folder / str(n), n) for n in (4 * BATCH * 20, count))
    return {
        "few": statistics.median(worker_mib(few, 1) for _ in range(3)),
        "many": statistics.median(worker_mib(many, 1) for _ in range(3)),
        "many, 8 threads": statistics.median(worker_mib(many, 8) for _ in range(3)),
    }


def show(results: dict[str, Any]) -> None:
    """Print the figures as tables."""
    rows, growth = results["epochs"], results["growth"]
    heads = [name.replace("_", " ") for name in rows[0]]
    print("epoch  " + "  ".join(f"{head:>15}" for head in heads))
    for epoch, row in enumerate(rows, 1):
        print(f"{epoch:5}  " + "  ".join(f"{value:15.1f}" for value in row.values()))
    print(f"flat from epoch {FIRST_FLAT} on: {'; '.join(growth) or 'yes'}")
    if "worker" in results:
        print("\na worker's own memory, MiB")
        for name, mib in results["worker"].items():
            print(f"  {name:18}{mib:8.1f}")
    if "main" in results:
        main = results["main"]
        print(
            f"\nCPU of the training process, a batch of {BATCH}: {main['thread_ms']:.2f} ms in next(), "
            f"{main['process_ms']:.2f} ms in all threads"
        )
        print(main["profile"])


def main() -> None:
    """Measure and print; exit status 1 where it is not flat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--n", type=int, default=1_281_167, help="Rows of the index.")
    parser.add_argument("--batches", type=int, default=60, help="Of the CPU figure.")
    parser.add_argument("--json", type=Path, help="Also write the figures here.")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"load before: {load:.2f}; cores: {os.cpu_count()}")
    with tempfile.TemporaryDirectory() as folder:
        root, large = Path(folder, "small"), Path(folder, "large")
        make_pictures(root, args.pictures, 160)
        make_pictures(large, BATCH * (args.batches + 10), 250)
        options = {"batch_size": 32, "image_size": 64, "num_workers": 1}
        rows = measure_epochs(root, args.epochs, **options)
        results: dict[str, Any] = {"epochs": rows, "growth": find_growth(rows)}
        results["worker"] = measure_worker(root, Path(folder), args.n)
        results["main"] = measure_main_cpu(large, args.batches)
    show(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    raise SystemExit(bool(results["growth"]))


if __name__ == "__main__":
    main()
