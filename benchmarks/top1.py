"""Top-1 with the block order and with reduced decoding beside the defaults, over several seeds.

python benchmarks/top1.py --root DIR [--epochs 8] [--seeds 3] [--to DIR] [--json FILE]

``DIR`` holds Tiny-ImageNet, or some of its classes. Its pictures of 64 px are enlarged to 192 px first, so that they are as
much larger than the network's 56 px as ImageNet's are than 224. With 250 pictures in a class a block of 13 is the part of a class
that the default is of ImageNet's, and of 50 classes a window of 520 brings a smaller part into a batch than the default
does. Packed, the pictures are the same files, and lie mixed. Trains a small network with BatchNorm on the CPU, one run
after the other.
"""

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLI = Path(__file__).parents[1] / "cli.py"
BATCH, ENLARGED = 64, 192
GEOMETRY: dict[str, Any] = {
    "image_size": 56,
    "eval_resize": 64,
    "train_scale": (0.25, 1.0),
}
BLOCKS = {"shuffle": "block", "shuffle_block": 13, "shuffle_window": 520}
# setting: (which data, what is given beside the arguments of all runs)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("enlarged", {}),
    "block order, by class": ("enlarged", BLOCKS),
    "reduced decoding": ("enlarged", {"reduced_decode": True}),
    "block order, packed": ("packed", BLOCKS),
}


def enlarge(source: Path, target: Path) -> Path:
    """Write class folders of enlarged pictures, and return the folder."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    data = ImageNetDataModule(str(source), source="flat_val")
    data.setup("fit")
    for split in ("train", "val"):
        index = data.indices[split]
        for i in range(len(index)):
            path = Path(index.path(i))
            folder = target / split / index.classes[index.labels[i]]
            folder.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as image:
                large = image.convert("RGB").resize(
                    (ENLARGED, ENLARGED), Image.Resampling.BICUBIC
                )
            large.save(folder / f"{path.stem}.jpg", quality=95)
    return target


def pack(source: Path, target: Path) -> None:
    """Pack the files as they are."""
    words = ["--keep_originals=true", "--shard_gb=0.02"]
    command = [sys.executable, str(CLI), "pack", f"--data.root={source}"]
    subprocess.run([*command, f"--to={target}", *words], check=True)


def train(root: Path, folder: Path, name: str, seed: int, **more: Any) -> float:
    """Train in a process of its own, and return the Top-1 of the last epoch."""
    given = {
        "--data.root": root.resolve(),
        **{f"--data.{key}": json.dumps(value) for key, value in GEOMETRY.items()},
        "--data.batch_size": BATCH,
        "--model.arch": "shufflenet_v2_x0_5",
        "--model.base_lr": 0.1,
        "--model.warmup_epochs": 1,
        "--trainer.accelerator": "cpu",
        "--trainer.enable_progress_bar": "false",
        "--seed_everything": seed,
        "--name": name,
        **more,
    }
    words = [f"{key}={value}" for key, value in given.items()]
    subprocess.run([sys.executable, str(CLI), "fit", *words], cwd=folder, check=True)
    rows = folder / "runs" / name / "version_0" / "metrics.csv"
    with rows.open(newline="", encoding="utf-8") as file:
        return [float(r["val/top1"]) for r in csv.DictReader(file) if r["val/top1"]][-1]


def classes_in_a_batch(root: Path, setting: dict[str, Any]) -> float:
    """Return how many classes a batch has on average."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    data = ImageNetDataModule(str(root), **setting)
    data.setup("fit")
    sampler = data.train_dataloader().sampler
    labels = data.indices["train"].labels[[key.position for key in sampler]]
    batches = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    return float(np.mean([len(set(batch)) for batch in batches.tolist()]))


def part_reduced(root: Path) -> float:
    """Return which part of the training pictures is decoded smaller in an epoch."""
    from imnet_pl.data.augment import draw_crop, reduction_factor
    from imnet_pl.data.datamodule import ImageNetDataModule
    from imnet_pl.data.keys import mix

    data = ImageNetDataModule(str(root), **GEOMETRY)
    data.setup("fit")
    use = data.train_dataloader().dataset.transform
    factors = []
    for i in range(len(data.indices["train"])):
        rng = random.Random(mix(data.seed, 0, i, 0))
        box = draw_crop(ENLARGED, ENLARGED, use.scale, use.ratio, rng)
        factors.append(reduction_factor(box, use.image_size))
    return float(np.mean([factor > 1 for factor in factors]))


def show(folder: Path, found: dict[str, list[float]]) -> None:
    """Print the figures as a table."""
    part = part_reduced(folder / "enlarged")
    print(f"\npictures that reduced decoding reduces: {part:.0%}\n")
    print(
        f"{'setting':24}{'classes in a batch':>20}{'Top-1':>9}{'spread':>9}  each seed; difference from the defaults"
    )
    for name, values in found.items():
        which, setting = SETTINGS[name]
        mix = classes_in_a_batch(folder / which, setting)
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        each = " ".join(f"{value:.4f}" for value in values)
        gap = [b - a for a, b in zip(found["defaults"], values, strict=True)]
        print(
            f"{name:24}{mix:20.1f}{statistics.mean(values):9.4f}{spread:9.4f}  {each}; {statistics.mean(gap):+.4f}"
        )


def main() -> None:
    """Parse the arguments, train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="Tiny-ImageNet")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--to", type=Path, help="keep pictures and runs in this folder")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.to or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "enlarged").exists():
            enlarge(args.root, folder / "enlarged")
        pack(folder / "enlarged", folder / "packed")  # goes on, or is done already
        for seed in range(args.seeds):
            for name, (which, setting) in SETTINGS.items():
                more = {f"--data.{key}": value for key, value in setting.items()}
                more["--trainer.max_epochs"] = args.epochs
                run = f"{name.replace(',', '').replace(' ', '_')}_{seed}"
                top1 = train(folder / which, folder, run, seed, **more)
                found[name].append(top1)
        show(folder, found)
    if args.json:
        args.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
