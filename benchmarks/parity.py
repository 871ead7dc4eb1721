"""Does training through this program equal a plain PyTorch loop?

python benchmarks/parity.py [--tiny TAR_OR_DIR] [--image_size 64] [--seeds 3] [--epochs 5]

1. The same initial weights and the same uint8 batches (ResNet-18): the losses of 50 optimiser steps,
   also with an accumulation of 4, differ by less than 1e-5; exit status 1 otherwise.
2. For information: Top-1 after some epochs of configs/resnet18.yaml, and of a plain loop over a DataLoader of
   PIL and torchvision transforms.
"""

import argparse
import csv
import math
import os
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
STEPS, LIMIT = 50, 1e-5
BATCH = 256


def tiny_imagenet(source: Path, folder: Path) -> Path:
    """Return the root of Tiny-ImageNet, unpacked to ``folder`` if it is a tar."""
    if source.is_file():
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
        source = folder
    return next(p.parent for p in source.rglob("train") if p.is_dir())


def open_data(root: Path, batch_size: int, size: int) -> Any:
    """Return the data module of Tiny-ImageNet, ready to be iterated."""
    from imnet_pl.data.datamodule import ImageNetDataModule

    data = ImageNetDataModule(
        str(root),
        batch_size=batch_size,
        image_size=size,
        eval_resize=size,
        train_scale=(0.25, 1.0),
    )
    data.setup("fit")
    return data


class Replay:
    """A training loader that gives batches from memory."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.batch_size = batches, len(batches[0].targets)

    def __len__(self) -> int:
        return len(self.batches)

    def batch_len(self, batch_idx: int) -> int:
        """Return the number of pictures in a batch."""
        return len(self.batches[batch_idx].targets)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def losses_of_lightning(model: Any, batches: list[Any], accumulate: int) -> list[float]:
    """Train through Trainer.fit and return the loss of every batch."""
    from lightning.pytorch import Callback, Trainer

    losses: list[float] = []

    class Record(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            losses.append(float(trainer.callback_metrics["train/loss"]))

    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        callbacks=[Record()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(model, Replay(batches))
    return losses


def rate_of(
    step: int, total: int, warmup: int, peak: float, least: float = 1e-6
) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, total - 1 - warmup)
    return least + (peak - least) * (1 + math.cos(math.pi * done)) / 2


def losses_of_plain_loop(
    network: Any, batches: list[Any], accumulate: int
) -> list[float]:
    """Train in a plain loop and return the loss of every batch."""
    import torch
    from seed_loader import MEAN, STD
    from torch.nn.functional import cross_entropy

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    network.train().to(memory_format=torch.channels_last)
    peak = 0.1 * len(batches[0].targets) * accumulate / 256
    optimizer = torch.optim.SGD(
        network.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4
    )
    losses = []
    for i, batch in enumerate(batches):
        pixels = (batch.images.float() / 255 - mean) / std
        loss = cross_entropy(network(pixels), batch.targets)
        losses.append(loss.item())
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            for group in optimizer.param_groups:
                group["lr"] = rate_of(
                    i // accumulate, len(batches) // accumulate, 10, peak
                )
            optimizer.step()
            optimizer.zero_grad()
    return losses


def compare_losses(root: Path, size: int) -> bool:
    """Print the largest difference of the losses with and without accumulation; tell if both are small."""
    import torch
    from torchvision.models import resnet18

    from imnet_pl.model.classifier import ImageClassifier

    good = True
    for accumulate, batch_size in ((1, 64), (4, 16)):
        loader = open_data(root, batch_size, size).train_dataloader()
        count = STEPS * accumulate
        batches = [
            b._replace(images=b.images.clone())
            for b, _ in zip(loader, range(count), strict=False)
        ]
        torch.manual_seed(0)
        network = resnet18(num_classes=50)
        model = ImageClassifier("resnet18", 50, base_lr=0.1, warmup_epochs=10 / STEPS)
        model.backbone.load_state_dict(network.state_dict())
        ours = losses_of_lightning(model, batches, accumulate)
        plain = losses_of_plain_loop(network, batches, accumulate)
        worst = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
        good &= worst < LIMIT
        print(
            f"{STEPS} steps, batch {batch_size}, accumulation {accumulate}: loss {ours[0]:.4f} -> {ours[-1]:.4f}, "
            f"largest difference {worst:.1e}",
            flush=True,
        )
    return good


def top1_of_program(
    root: Path, size: int, epochs: int, seed: int, folder: Path
) -> float:
    """Return the last epoch's Top-1 of configs/resnet18.yaml."""
    from imnet_pl.cli import main as run

    configs = ("configs/resnet18.yaml", "configs/data/tiny_imagenet.yaml")
    arguments = [word for name in configs for word in ("--config", str(REPO / name))]
    arguments += ["--data.root", str(root), "--seed_everything", str(seed)]
    arguments += ["--data.image_size", str(size), "--data.eval_resize", str(size)]
    arguments += ["--trainer.max_epochs", str(epochs), "--model.warmup_epochs", "1"]
    arguments += ["--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
    arguments += ["--trainer.default_root_dir", str(folder), "--name", f"seed{seed}"]
    assert run(["fit", *arguments]) == 0
    with (folder / f"seed{seed}" / "version_0" / "metrics.csv").open(
        newline=""
    ) as file:
        return [
            float(row["val/top1"]) for row in csv.DictReader(file) if row["val/top1"]
        ][-1]


def top1_of_plain_loop(root: Path, size: int, epochs: int, seed: int) -> float:
    """Return the last epoch's Top-1 of a plain loop over PIL and torchvision transforms."""
    import torch
    from seed_loader import PillowDataset, seed_loader
    from torch.nn.functional import cross_entropy
    from torchvision.models import resnet18

    torch.manual_seed(seed)
    indices = open_data(root, BATCH, size).indices
    loaders = {}
    for split, index in indices.items():
        paths, train = [index.path(i) for i in range(len(index))], split == "train"
        dataset = PillowDataset(
            paths, index.labels.tolist(), train, size, size, (0.25, 1.0)
        )
        loaders[split] = seed_loader(dataset, train, BATCH)
    network = resnet18(num_classes=50).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    steps = len(loaders["train"])
    for step, (images, targets) in enumerate(
        b for _ in range(epochs) for b in loaders["train"]
    ):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step, epochs * steps, steps, 0.1)
        logits = network(images.to(memory_format=torch.channels_last))
        optimizer.zero_grad()
        cross_entropy(logits, targets).backward()
        optimizer.step()
    network.eval()
    right = 0
    with torch.inference_mode():
        for images, targets in loaders["val"]:
            right += int((network(images).argmax(1) == targets).sum())
    return right / len(indices["val"])


def compare_top1(root: Path, size: int, epochs: int, seeds: int, folder: Path) -> None:
    """Print Top-1 of both, seed by seed."""
    scores: dict[str, list[float]] = {"this program": [], "plain loop": []}
    for seed in range(seeds):
        scores["this program"].append(top1_of_program(root, size, epochs, seed, folder))
        scores["plain loop"].append(top1_of_plain_loop(root, size, epochs, seed))
        row = "  ".join(f"{name} {values[-1]:.4f}" for name, values in scores.items())
        print(f"seed {seed}, {epochs} epochs, Top-1: {row}", flush=True)
    for name, values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(
            f"{name}: mean {statistics.mean(values):.4f}, standard deviation {spread:.4f}"
        )


def main() -> int:
    """Run both parts and return the exit status."""
    beside = Path(__file__).parents[2] / "shared" / "assets"
    assets = Path(os.environ.get("IMNET_PL_ASSETS", beside))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=Path, default=assets / "tiny-imagenet-50.tar")
    parser.add_argument("--image_size", type=int, default=64)
    parser.add_argument(
        "--seeds", type=int, default=3, help="0 leaves the second part out"
    )
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = tiny_imagenet(args.tiny, Path(folder) / "tiny")
        good = compare_losses(root, args.image_size)
        if args.seeds:
            compare_top1(
                root, args.image_size, args.epochs, args.seeds, Path(folder) / "runs"
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
