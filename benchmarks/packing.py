"""What packing brings: loading from shards beside the usual DataLoader on the originals, and how fast it goes.

python benchmarks/packing.py [--pictures DIR] [--repeats 5] [--entries 1281167] [--json FILE]

All sides run in turn in one run; the ratios count, since machines drift. Needs an idle machine.
"""

import gc
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import jpegs_in, loader_arguments, machine_facts
from loading import (
    BATCH,
    WARM_UP,
    make_root,
    measure_bare,
    measure_ours,
    measure_seed,
)

SIDES = (256, 320)
NUM_SHARDS, MEMBER_BYTES = 100, 30_000
OPEN = """
import sys, time
from pathlib import Path
import imnet_pl.data.shards
def peak():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
before, start = peak(), time.perf_counter()
index = imnet_pl.data.shards.open_split(Path(sys.argv[1]), "train")
print(len(index), time.perf_counter() - start, peak() - before)
"""


def plan_of(target: Path, short_side: int) -> Any:
    """Return what is packed: everything, at quality 90."""
    from imnet_pl.data.packer import PackPlan
    from imnet_pl.data.packing import Encoding

    return PackPlan(target, {}, Encoding(short_side, 90), "pack", 10**9)


def time_packing(indices: dict[str, Any], target: Path, short_side: int) -> float:
    """Return pictures a second of packing train, from the first that are done on: starting processes is left out."""
    from imnet_pl.data.packer import pack_set

    steps = [
        (time.perf_counter(), step.done)
        for step in pack_set(plan_of(target, short_side), indices)
        if step.split == "train" and step.done
    ]
    (began, first), (ended, last) = steps[0], steps[-1]
    return (last - first) / (ended - began)


def encode_all(index: Any, rows: range, short_side: int) -> float:
    """Read, resize and encode pictures, and return the seconds that it took."""
    from imnet_pl.data.packing import Encoding, encode_picture, use_one_thread
    from imnet_pl.data.reading import read_picture

    use_one_thread()
    encoding = Encoding(short_side, 90)
    start = time.perf_counter()
    for row in rows:
        encode_picture(read_picture(index, row), encoding)
    return time.perf_counter() - start


def time_encoding(index: Any, short_side: int) -> float:
    """Return pictures a second of bare encoding in as many processes as cores, which are started already."""
    from imnet_pl.core.machine import usable_cores

    cores, total = usable_cores(), len(index)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context) as pool:
        for job in [
            pool.submit(encode_all, index, range(8), 256) for _ in range(cores)
        ]:
            job.result()
        jobs = [
            pool.submit(encode_all, index, range(i, total, cores), short_side)
            for i in range(cores)
        ]
        return total / max(job.result() for job in jobs)


def write_large_set(root: Path, entries: int) -> None:
    """Write an index of many pictures in 100 shards, of which the disk holds the places that are looked at alone."""
    from imnet_pl.data import shards
    from imnet_pl.data.index import ImageIndex
    from imnet_pl.data.members import Members

    per_shard = -(-entries // NUM_SHARDS)
    rows = np.arange(entries)
    # Where each lies: mixed, as train is packed.
    number, place = np.divmod(np.random.default_rng(0).permutation(entries), per_shard)
    step = shards.BLOCK + MEMBER_BYTES + len(shards.padding(MEMBER_BYTES))
    names = [shards.shard_name("train", i) for i in range(NUM_SHARDS)]
    int32 = np.full(entries, 256, np.int32)
    index = ImageIndex.from_rows(
        root,
        [
            f"train/n{row % 1000:08d}/n{row % 1000:08d}_{row}.JPEG"
            for row in range(entries)
        ],
        (rows % 1000).tolist(),
        [f"n{i:08d}" for i in range(1000)],
        members=Members(
            tuple(names),
            number.astype(np.int32),
            place * step + shards.BLOCK,
            np.full(entries, MEMBER_BYTES, np.int32),
            *(int32, int32, rows.astype(np.uint32)),
        ),
    )
    folder = shards.index_folder(root, "train")
    folder.mkdir(parents=True)
    index.save(folder)
    facts = []
    for i, name in enumerate(names):
        count = int((number == i).sum())
        looked_at = np.linspace(0, count - 1, 4).astype(int)
        with (root / name).open("wb") as file:
            for at in looked_at.tolist():
                file.seek(at * step)
                file.write(shards.member_header("x", MEMBER_BYTES))
            file.truncate(count * step)
        facts.append({"name": name, "size": count * step, "crc": 0})
    split = {"num_samples": entries, "shards": facts}
    text = json.dumps({"format": shards.FORMAT, "splits": {"train": split}})
    (root / shards.FACTS).write_text(text, encoding="utf-8")


def measure_opening(folder: Path, entries: int) -> dict[str, float]:
    """Return seconds and MiB of opening a large set in a process of its own, where the system counts them."""
    if not Path("/proc/self/status").exists():
        return {}
    write_large_set(folder, entries)
    command = [sys.executable, "-c", OPEN, str(folder)]
    runs = []
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(word) for word in done.stdout.split()])
    number, seconds, mib = runs[-1]
    return {"entries": number, "sec": seconds, "mib": mib}


def measure(folder: Path, pictures: Path, repeats: int, count: int) -> dict[str, Any]:
    """Pack, and run every side in turn, ``repeats`` times."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    def build(name: str) -> Any:
        data = ImageNetDataModule(
            str(folder / name), batch_size=BATCH, eval_batch_size=BATCH
        )
        data.setup("fit")
        return data

    make_root(pictures, folder / "raw", (WARM_UP + count) * BATCH)
    data = {"raw": build("raw")}
    raw = dict(data["raw"].indices)
    raw["val"] = raw["val"].take(np.arange(8))  # loading needs one
    rates: dict[str, list[float]] = {}
    for i in range(repeats):
        for side in SIDES:
            target = folder / f"packed_{side}" if i == 0 else folder / f"{i}_{side}"
            rates.setdefault(f"bare encode to {side}", []).append(
                time_encoding(raw["train"], side)
            )
            rates.setdefault(f"pack to {side}", []).append(
                time_packing(raw, target, side)
            )
    data |= {str(side): build(f"packed_{side}") for side in SIDES}
    sides = {"seed loader on the originals": (measure_seed, "raw")}
    for side in SIDES:
        sides[f"loader on shards of {side}"] = (measure_ours, str(side))
        sides[f"bare on shards of {side}"] = (measure_bare, str(side))
    for _ in range(repeats):
        for name, (run, which) in sides.items():
            rates.setdefault(name, []).append(run(data[which], "train", count)[1])
            gc.collect()  # the side's worker processes end with its loader
    return {"pictures_per_sec": rates}


# (side, beside which, at least)
RATIOS = (
    ("loader on shards of 256", "seed loader on the originals", 4.2),
    ("loader on shards of 256", "bare on shards of 256", 0.9),
    ("loader on shards of 320", "seed loader on the originals", None),
    ("loader on shards of 320", "bare on shards of 320", 0.9),
    ("pack to 256", "bare encode to 256", 0.85),
    ("pack to 320", "bare encode to 320", None),
)


def show(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print(f"load before: {figures['load_before']:.2f}; cores: {figures['cores']}\n")
    rates = figures["pictures_per_sec"]
    for name, rate in rates.items():
        spread = f"{min(rate):.0f} - {max(rate):.0f}"
        print(f"{name:34}{statistics.median(rate):8.0f} pictures/s{spread:>16}")
    print()
    for left, right, least in RATIOS:
        pairs = [a / b for a, b in zip(rates[left], rates[right], strict=True)]
        wanted = f"; at least {least} is wanted" if least else ""
        print(f"{left} / {right}: {statistics.median(pairs):.2f}{wanted}")
    if opened := figures["opening"]:
        print(
            f"opening {opened['entries']:,.0f} entries in {NUM_SHARDS} shards: {opened['sec']:.2f} s, "
            f"{opened['mib']:.0f} MiB; at most 0.3 s and 100 MB are wanted"
        )


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = loader_arguments(__doc__)
    parser.add_argument("--entries", type=int, default=1_281_167)
    args = parser.parse_args()
    jpegs_in(args.pictures)  # or the end, before anything is made
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        figures = measure(folder, args.pictures, args.repeats, args.batches)
        (folder / "large").mkdir()
        figures["opening"] = measure_opening(folder / "large", args.entries)
    figures |= facts
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
