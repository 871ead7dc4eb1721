"""Pictures a second from disk to batch: our loader, the usual DataLoader, and bare decoding.

python benchmarks/loading.py [--pictures DIR] [--repeats 5] [--json FILE]

All sides run in turn in one run; the ratios count, since machines drift. Needs an idle machine.
"""

import gc
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import jpegs_in, loader_arguments, machine_facts

BATCH = 128
WARM_UP = 4  # batches that are not counted
SHORT_SIDE, QUALITY = 256, 90  # of the shrunk pictures


def make_root(pictures: Path, root: Path, least: int) -> None:
    """Fill class folders below ``root`` with links to the pictures, again and again until there are enough."""
    files = jpegs_in(pictures)
    for split in ("train", "val"):
        for i in range(least):
            source = files[i % len(files)].resolve()
            target = root / split / f"class_{i % 10}" / f"{i:06d}.JPEG"
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.symlink_to(source)
            except OSError:  # Windows without the privilege
                target.write_bytes(source.read_bytes())
    for file in files:
        file.read_bytes()  # into the page cache


def shrink(pictures: Path, folder: Path) -> Path:
    """Write the pictures with a short side of 256 px at quality 90, as they are packed, and return the folder."""
    from PIL import Image

    for file in jpegs_in(pictures):
        with Image.open(file) as image:
            scale = min(1.0, SHORT_SIDE / min(image.size))
            size = [round(side * scale) for side in image.size]
            small = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
        folder.mkdir(exist_ok=True)
        small.save(folder / file.name, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return folder


def time_batches(batches: Iterable[Any], count: int) -> tuple[float, float]:
    """Return (seconds to the first batch, pictures a second after the warm-up)."""
    start = time.perf_counter()
    first = counted_from = 0.0
    for i, batch in enumerate(batches):
        now = time.perf_counter()
        first = first or now - start
        if i == WARM_UP - 1:
            counted_from = now
        if i == WARM_UP + count - 1:
            assert len(batch[0]) == BATCH
            return first, count * BATCH / (now - counted_from)
    raise SystemExit("too few pictures for the batches asked for")


def measure_seed(data: Any, split: str, count: int) -> tuple[float, float]:
    """Time the usual DataLoader."""
    from seed_loader import PillowDataset, seed_loader

    index = data.indices[split]
    paths = [index.path(i) for i in range(len(index))]
    train = split == "train"
    dataset = PillowDataset(paths, index.labels.tolist(), train)
    loader = seed_loader(dataset, train, BATCH)
    return time_batches(loader, count)


def measure_ours(data: Any, split: str, count: int) -> tuple[float, float]:
    """Time the data module's loader with its defaults."""
    loader = data.train_dataloader() if split == "train" else data.val_dataloader()
    return time_batches(loader, count)


def measure_bare(data: Any, split: str, count: int) -> tuple[float, float]:
    """Time the same transform in as many processes as cores, without a loader; seconds are the start."""
    from imnet_pl.core.machine import usable_cores

    loader = data.train_dataloader() if split == "train" else data.val_dataloader()
    total = (WARM_UP + count) * BATCH
    spawn = multiprocessing.get_context("spawn")
    cores, results = usable_cores(), spawn.Queue()
    ready = spawn.Barrier(cores)
    arguments = [
        (
            data.indices[split],
            range(i, total, cores),
            loader.dataset.transform,
            ready,
            results,
        )
        for i in range(cores)
    ]
    start = time.perf_counter()
    processes = [spawn.Process(target=decode_all, args=row) for row in arguments]
    for process in processes:
        process.start()
    spans = [results.get() for _ in processes]
    for process in processes:
        process.join()
    began = min(span[0] for span in spans)
    return began - start, total / (max(span[1] for span in spans) - began)


def decode_all(
    index: Any, rows: range, transform: Any, ready: Any, results: Any
) -> None:
    """Decode and transform pictures in this process; send when it began and ended."""
    import torch

    from imnet_pl.data.reading import read_picture

    torch.set_num_threads(1)
    size = transform.image_size
    out = torch.empty((size, size, 3), dtype=torch.uint8).permute(2, 0, 1)
    ready.wait()
    start = time.perf_counter()
    with torch.inference_mode():
        for row in rows:
            transform(read_picture(index, row), row, out)
    results.put((start, time.perf_counter()))


def stage_costs(data: Any, rounds: int = 2) -> dict[str, float]:
    """Return CPU milliseconds a picture of each stage of training, in one thread."""
    import random

    import torch

    from imnet_pl.data import augment, decode
    from imnet_pl.data.reading import read_file

    torch.set_num_threads(1)
    transform = data.train_dataloader().dataset.transform
    size = transform.image_size
    out = torch.empty((size, size, 3), dtype=torch.uint8).permute(2, 0, 1)
    spent = dict.fromkeys(("read", "header", "decode", "crop, resize", "flip"), 0.0)
    paths = [data.indices["train"].path(i) for i in range(250)] * rounds

    def add(stage: str, since: float) -> float:
        now = time.thread_time()
        spent[stage] += (now - since) * 1000 / len(paths)
        return now

    for key, path in enumerate(paths):
        rng = random.Random(key)
        clock = time.thread_time()
        content = read_file(path)
        clock = add("read", clock)
        picture = decode.open_picture(content, transform.policy)
        clock = add("header", clock)
        top, left, height, width = augment.draw_crop(
            *picture.size, transform.scale, transform.ratio, rng
        )
        clock = add("crop, resize", clock)
        pixels = picture.decode(num_rows=top + height)
        clock = add("decode", clock)
        crop = pixels[top : top + height, left : left + width]
        augment.resize(crop, transform.interpolation, out)
        clock = add("crop, resize", clock)
        if rng.random() < transform.hflip:
            out.copy_(out.flip(-1))
        add("flip", clock)
    return spent


def cost_of_decoding(data: Any, rounds: int = 7) -> float:
    """Return CPU of reading and transforming / CPU of decoding the same files whole; a median of rounds."""
    import simplejpeg
    import torch

    from imnet_pl.data.reading import read_file

    transform = data.train_dataloader().dataset.transform
    size = transform.image_size
    out = torch.empty((size, size, 3), dtype=torch.uint8).permute(2, 0, 1)
    paths = [data.indices["train"].path(i) for i in range(250)]
    contents = [read_file(path) for path in paths]
    ratios = []
    for key in range(rounds):
        start = time.thread_time()
        with torch.inference_mode():
            for i, path in enumerate(paths):
                transform(read_file(path), 1000 * key + i, out)
        between = time.thread_time()
        for content in contents:
            simplejpeg.decode_jpeg(content, "RGB")
        ratios.append((between - start) / (time.thread_time() - between))
    return statistics.median(ratios)


# side: (what is timed, which data, which split)
SIDES = {
    "train: DataLoader, 2 workers, PIL": (measure_seed, "raw", "train"),
    "train: ours": (measure_ours, "raw", "train"),
    "train: bare": (measure_bare, "raw", "train"),
    "train, reduced decode: ours": (measure_ours, "reduced", "train"),
    "train, shrunk to 256: ours": (measure_ours, "shrunk", "train"),
    "train, shrunk to 256: bare": (measure_bare, "shrunk", "train"),
    "val: ours": (measure_ours, "raw", "val"),
    "val: bare": (measure_bare, "raw", "val"),
}
_SEED = "train: DataLoader, 2 workers, PIL"
# (side, beside which, at least)
RATIOS = (
    ("train: ours", _SEED, 2.0),
    ("train: ours", "train: bare", 0.9),
    ("train, reduced decode: ours", _SEED, 2.3),
    ("train, shrunk to 256: ours", _SEED, 4.2),
    ("train, shrunk to 256: ours", "train, shrunk to 256: bare", 0.9),
    ("val: ours", "val: bare", 0.9),
)


def open_data(folder: Path, pictures: Path, least: int) -> dict[str, Any]:
    """Return data modules on the pictures as they are, with reduced decoding, and on shrunk ones."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    make_root(pictures, folder / "raw", least)
    make_root(shrink(pictures, folder / "small"), folder / "shrunk", least)

    def build(name: str, reduced: bool = False) -> Any:
        data = ImageNetDataModule(
            str(folder / name),
            batch_size=BATCH,
            eval_batch_size=BATCH,
            reduced_decode=reduced,
        )
        data.setup("fit")
        return data

    return {
        "raw": build("raw"),
        "reduced": build("raw", reduced=True),
        "shrunk": build("shrunk"),
    }


def measure(data: dict[str, Any], repeats: int, count: int) -> dict[str, Any]:
    """Run every side in turn, ``repeats`` times, and return all figures."""
    from imnet_pl.core.machine import workers_and_threads

    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for _ in range(repeats):
        for name, (side, which, split) in SIDES.items():
            runs[name].append(side(data[which], split, count))
            gc.collect()  # the side's worker processes end with its loader
    workers, threads = workers_and_threads(None, None, 1)
    return {
        "workers": workers,
        "threads": threads,
        "pictures_per_sec": {
            name: [rate for _, rate in run] for name, run in runs.items()
        },
        "first_batch_sec": {
            name: [first for first, _ in run] for name, run in runs.items()
        },
        "cpu_ms_per_picture": stage_costs(data["raw"]),
        "cpu_by_decoding": cost_of_decoding(data["raw"]),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print(f"load before: {figures['load_before']:.2f}; cores: {figures['cores']}")
    print(
        f"ours: {figures['workers']} worker, {figures['threads']} threads; batch {BATCH}, 224 px\n"
    )
    print(f"{'':36}{'pictures/s':>11}{'min - max':>16}{'first batch':>13}")
    rates, firsts = figures["pictures_per_sec"], figures["first_batch_sec"]
    for name, rate in rates.items():
        spread = f"{min(rate):.0f} - {max(rate):.0f}"
        first = f"{statistics.median(firsts[name]):.1f} s"
        print(f"{name:36}{statistics.median(rate):11.0f}{spread:>16}{first:>13}")
    print()
    for left, right, least in RATIOS:
        pairs = [a / b for a, b in zip(rates[left], rates[right], strict=True)]
        print(
            f"{left} / {right.partition(': ')[2]}: {statistics.median(pairs):.2f} (median of {len(pairs)} "
            f"pairs; at least {least} is wanted)"
        )
    print("\nCPU ms a picture in training, one thread")
    for stage, cost in figures["cpu_ms_per_picture"].items():
        print(f"  {stage:14}{cost:7.3f}")
    print(f"  {'sum':14}{sum(figures['cpu_ms_per_picture'].values()):7.3f}")
    by = figures["cpu_by_decoding"]
    print(f"all of it / decoding whole pictures: {by:.2f} (at most 1.32 is wanted)")


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = loader_arguments(__doc__)
    args = parser.parse_args()
    jpegs_in(args.pictures)  # or the end, before anything is made
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        least = (WARM_UP + args.batches) * BATCH
        data = open_data(Path(folder), args.pictures, least)
        figures = measure(data, args.repeats, args.batches)
    figures |= facts
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
