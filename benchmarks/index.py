"""How long a large data set takes to index and to load from the cache, and what each worker process costs.

python benchmarks/index.py [--n 1281167] [--classes 1000] [--workers 8] [--folder DIR] [--json FILE]

Makes class folders of hard links to a few pictures in a temporary folder (``--folder`` says on which disk) and
removes them. Each figure is from a process of its own, with the file names in memory from the one before. The
other side is ``torchvision.datasets.ImageFolder`` in a DataLoader with spawned workers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BATCH = 64
NUM_PICTURES = 50
MIB = 2**20


def make_pictures(folder: Path) -> list[Path]:
    """Write JPEGs of the usual size."""
    from PIL import Image

    folder.mkdir()
    files = [folder / f"{i}.JPEG" for i in range(NUM_PICTURES)]
    for seed, file in enumerate(files):
        small = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(small).resize((500, 375)).save(file, quality=90)
    return files


def make_links(root: Path, files: list[Path], count: int, classes: int) -> None:
    """Fill class folders with hard links; a file system allows a file 1,023 (NTFS) to 65,000 (ext4) or more."""
    targets = list(map(str, files))
    for label in range(classes):
        name = f"n{label:08d}"
        folder = root / name
        folder.mkdir(parents=True)
        for i in range(label, count, classes):
            link, k = f"{folder}/{name}_{i}.JPEG", i % len(targets)
            try:
                os.link(targets[k], link)
            except OSError:
                shutil.copyfile(targets[k], link)
                targets[k] = link


def make_old(root: Path) -> None:
    """Set the folders back by an hour: what has just changed is not kept."""
    then = time.time() - 3600
    for folder in (root, *root.glob("*"), *root.glob("*/*")):
        os.utime(folder, (then, then))


def peak_mib() -> float:
    """Return the most memory that this process ever had."""
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):
        return float(memory.peak_wset / MIB)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    # Rather than ru_maxrss, which counts the process that started this one as well.
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_scan(root: str, _workers: int) -> dict[str, Any]:
    """Scan without the cache."""
    from imnet_pl.data.sources import auto

    start = time.perf_counter()
    classes = auto.train_classes(Path(root))
    index = auto.index_split(Path(root), "train", classes)
    indexed = time.perf_counter()
    _ = index.fingerprint
    return {
        "num_samples": len(index),
        "seconds": indexed - start,
        "fingerprint_seconds": time.perf_counter() - indexed,
    }


def measure_catalog(root: str, _workers: int) -> dict[str, Any]:
    """Index as a run does: scan and keep the first time, load the second time."""
    import pickle

    from imnet_pl.data.catalog import Catalog

    catalog = Catalog(root)
    start = time.perf_counter()
    index = catalog.index("train")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "pickle_bytes": len(pickle.dumps(index))}


def measure_loader(root: str, workers: int) -> dict[str, Any]:
    """Wait for this program's first batch."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    start = time.perf_counter()
    data = ImageNetDataModule(root, batch_size=BATCH, num_workers=workers, seed=1)
    data.setup("fit")
    indexed = time.perf_counter()
    batches = iter(data.train_dataloader())
    next(batches)
    return timed(start, indexed) | workers_mib()


def measure_image_folder(root: str, workers: int) -> dict[str, Any]:
    """Wait for the first batch of ImageFolder."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.ToTensor()]
    )
    start = time.perf_counter()
    dataset = ImageFolder(f"{root}/train", transform)
    indexed = time.perf_counter()
    spawn = {"multiprocessing_context": "spawn", "num_workers": workers}
    batches = iter(DataLoader(dataset, BATCH, shuffle=True, **spawn))
    next(batches)
    return timed(start, indexed) | workers_mib()


def timed(start: float, indexed: float) -> dict[str, float]:
    """Return seconds to the index, and from the start to now, when the first batch is there."""
    return {"seconds": indexed - start, "first_batch": time.perf_counter() - start}


def workers_mib() -> dict[str, float]:
    """Return the memory of a worker process, of which some may be shared, and what is its own alone."""
    memory = [
        child.memory_full_info()
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]
    return {
        "num_processes": len(memory),
        "worker_rss_mib": float(np.median([m.rss for m in memory])) / MIB,
        "worker_own_mib": float(np.median([m.uss for m in memory])) / MIB,
    }


MEASURES: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "scan": measure_scan,
    "catalog": measure_catalog,
    "loader": measure_loader,
    "image_folder": measure_image_folder,
}


def measure(name: str, root: Path, cache: Path, workers: int = 0) -> dict[str, Any]:
    """Run a measurement in a process of its own; adds by how much its memory grew at most."""
    command = [sys.executable, __file__, "--measure", name, "--folder", str(root)]
    done = subprocess.run(
        [*command, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "IMNET_PL_CACHE": str(cache)},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure_here(name: str, root: str, workers: int) -> None:
    """Print a measurement of this process as JSON."""
    import imnet_pl.data.datamodule  # so that imports do not count

    assert imnet_pl.data.datamodule
    before = peak_mib()
    result = MEASURES[name](root, workers)
    print(json.dumps(result | {"growth_mib": peak_mib() - before}))


def run_all(folder: Path, count: int, classes: int, workers: int) -> dict[str, Any]:
    """Make the data and measure everything."""
    root, cache = folder / "data", folder / "cache"
    start = time.perf_counter()
    files = make_pictures(folder / "pictures")
    make_links(root / "train", files, count, classes)
    make_links(root / "val", files, classes, classes)
    make_old(root)
    print(f"made {count:,} links in {time.perf_counter() - start:.0f} s", flush=True)
    measure("scan", root, cache)  # names into memory
    return {
        "scan": measure("scan", root, cache),
        "first": measure("catalog", root, cache),
        "again": measure("catalog", root, cache),
        "loader, 1 worker": measure("loader", root, cache, 1),
        f"loader, {workers} workers": measure("loader", root, cache, workers),
        f"ImageFolder, {workers} workers": measure(
            "image_folder", root, cache, workers
        ),
    }


def show(results: dict[str, Any]) -> None:
    """Print the figures as text."""
    scan, first, again = results["scan"], results["first"], results["again"]
    print(f"{scan['num_samples']:,} pictures")
    print(f"scan           {scan['seconds']:6.2f} s, {scan['growth_mib']:4.0f} MiB")
    print(f"fingerprint    {scan['fingerprint_seconds']:6.2f} s")
    print(f"scan and keep  {first['seconds']:6.2f} s, {first['growth_mib']:4.0f} MiB")
    print(f"load           {again['seconds']:6.2f} s, {again['growth_mib']:4.0f} MiB")
    print(f"pickled        {again['pickle_bytes']} bytes")
    print(f"{'':24} index    first batch  worker     of its own")
    for name, result in list(results.items())[3:]:
        print(
            f"{name:22} {result['seconds']:6.2f} s {result['first_batch']:11.1f} s "
            f"{result['worker_rss_mib']:7.0f} MiB {result['worker_own_mib']:7.0f} MiB"
        )


def main() -> None:
    """Measure, print, and clean up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_281_167, help="Pictures.")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--folder", help="Where to write; default: the temporary one.")
    parser.add_argument("--json", type=Path, help="Also write the figures here.")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure_here(args.measure, args.folder, args.workers)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = run_all(Path(folder), args.n, args.classes, args.workers)
    show(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
