"""Top-1 of training in block order beside the full order, over several seeds.

python benchmarks/order_training.py --root DIR [--block 13] [--window 520] [--epochs 6] [--seeds 3] [--to DIR]

``DIR`` holds Tiny-ImageNet, or some of its classes. With 250 pictures in a class a block of 13 is the part of a class that the
default is of ImageNet's, and of 50 classes a window of 520 brings a smaller part into a batch than the default does.
Trains a small network with BatchNorm at 64 px on the CPU, one run after the other.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CLI = Path(__file__).parents[1] / "cli.py"
BATCH = 64


def train(root: Path, folder: Path, name: str, seed: int, more: list[str]) -> float:
    """Train in a process of its own, and return the Top-1 of the last epoch."""
    given = {
        "--data.root": root.resolve(),
        "--data.source": "flat_val",
        "--data.image_size": 64,
        "--data.eval_resize": 64,
        "--data.train_scale": "[0.25,1.0]",
        "--data.batch_size": BATCH,
        "--model.arch": "shufflenet_v2_x0_5",
        "--model.base_lr": 0.1,
        "--model.warmup_epochs": 1,
        "--trainer.accelerator": "cpu",
        "--trainer.enable_progress_bar": "false",
        "--seed_everything": seed,
        "--name": name,
    }
    words = [f"{key}={value}" for key, value in given.items()]
    subprocess.run(
        [sys.executable, str(CLI), "fit", *words, *more], cwd=folder, check=True
    )
    rows = folder / "runs" / name / "version_0" / "metrics.csv"
    with rows.open(newline="", encoding="utf-8") as file:
        return [float(r["val/top1"]) for r in csv.DictReader(file) if r["val/top1"]][-1]


def classes_in_a_batch(root: Path, block: int, window: int) -> float:
    """Return how many classes a batch has on average; ``block`` 0: in the full order."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    blocks: dict[str, Any] = {"shuffle_block": block, "shuffle_window": window}
    order: dict[str, Any] = {"shuffle": "block", **blocks} if block else {}
    data = ImageNetDataModule(str(root), source="flat_val", **order)
    data.setup("fit")
    sampler = data.train_dataloader().sampler
    labels = data.indices["train"].labels[[key.position for key in sampler]]
    batches = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(set(batch)) for batch in batches.tolist()]))


def main() -> None:
    """Parse the arguments, train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="Tiny-ImageNet")
    parser.add_argument("--block", type=int, default=13)
    parser.add_argument("--window", type=int, default=520)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--to", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    blocks = [f"--data.shuffle_block={args.block}"]
    blocks += [f"--data.shuffle_window={args.window}", "--data.shuffle=block"]
    orders: dict[str, list[str]] = {"full": [], "block": blocks}
    found: dict[str, list[float]] = {name: [] for name in orders}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.to or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(args.seeds):
            for name, more in orders.items():
                more = [*more, f"--trainer.max_epochs={args.epochs}"]
                found[name].append(
                    train(args.root, folder, f"{name}_{seed}", seed, more)
                )
    print(
        f"\n{'order':12}{'classes in a batch':>20}{'Top-1':>9}{'spread':>9}  each seed"
    )
    sizes = {"full": (0, 0), "block": (args.block, args.window)}
    for name, values in found.items():
        mix = classes_in_a_batch(args.root, *sizes[name])
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        each = " ".join(f"{value:.4f}" for value in values)
        print(
            f"{name:12}{mix:20.1f}{statistics.mean(values):9.4f}{spread:9.4f}  {each}"
        )
    gap = [b - a for a, b in zip(found["full"], found["block"], strict=True)]
    print(f"block - full, by seed: {' '.join(f'{value:+.4f}' for value in gap)}")
    if args.json:
        args.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
