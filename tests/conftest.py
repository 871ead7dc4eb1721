"""What tests share: tiny pictures in the layouts that people have, and a short run."""

import csv
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from imnet_pl.cli import main
from imnet_pl.data.sources import auto

REPO = Path(__file__).parents[1]
CLASSES = ("n01", "n02", "n03")


def write_jpeg(file, seed=0, size=(40, 48), low=0, high=255):
    """Write a random RGB JPEG of size (height, width)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(low, high, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")


def write_classes(folder, counts, seed=0):
    """Write class folders: class name -> number of pictures, each class of its own brightness."""
    for i, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for j in range(count):
            low = min(60 * i, 190)
            write_jpeg(
                folder / name / f"p{j}.jpg", seed + 100 * i + j, low=low, high=low + 60
            )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Nothing is written to the user's cache folder."""
    monkeypatch.setenv("IMNET_PL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def root(tmp_path):
    """Class folders: 8 training and 3 validation pictures of each of three classes."""
    root = tmp_path / "pictures"
    write_classes(root / "train", dict.fromkeys(CLASSES, 8))
    write_classes(root / "val", dict.fromkeys(CLASSES, 3), seed=50)
    return root


def settle(root, then=None):
    """Let everything below a root have changed an hour ago: its index is kept from now on."""
    then = then or time.time() - 3600
    for path in (root, *root.rglob("*")):
        os.utime(path, (then, then))


@pytest.fixture
def old_root(root):
    """Class folders that did not change lately."""
    settle(root)
    return root


@pytest.fixture
def kept_in(tmp_path, monkeypatch):
    """Return the folder in which indices are kept, this test's own."""
    monkeypatch.setenv("IMNET_PL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "index"


@pytest.fixture
def scans(kept_in, monkeypatch):
    """Return a list that gets the split of every scan, with nothing kept so far."""
    seen, scan = [], auto.index_split

    def index_split(root, split, *args, **options):
        seen.append(split)
        return scan(root, split, *args, **options)

    monkeypatch.setattr(auto, "index_split", index_split)
    return seen


@pytest.fixture
def flat_root(tmp_path):
    """Three training classes and a flat val/ of six pictures, two of each class; no label file yet."""
    root = tmp_path / "flat"
    write_classes(root / "train", dict.fromkeys(CLASSES, 2))
    for i in range(6):
        write_jpeg(root / "val" / f"v{i}.JPEG", i)
    return root


@pytest.fixture
def assets():
    """Real pictures beside the checkout; a test that needs them is skipped without."""
    beside = Path(__file__).parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("IMNET_PL_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip("no real pictures: IMNET_PL_ASSETS is not set")
    return folder


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """Runs are written below the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny_network(monkeypatch):
    """A network that costs nothing and has no BatchNorm."""

    def build(arch, num_classes):
        return nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes)
        )

    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build)


@pytest.fixture
def small_network(monkeypatch):
    """A network that learns a few pictures by heart in no time."""

    def build(arch, num_classes):
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, 2),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(384, num_classes),
        )

    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build)


def fit_args(root, *more):
    """Return the arguments of a short run on the CPU; ``more`` overrides them."""
    small = ["--data.image_size=32", "--data.batch_size=8", "--data.num_workers=0"]
    return ["fit", f"--data.root={root}", *small, "--trainer.accelerator=cpu", *more]


def pack(root, to, *more):
    """Pack pictures in this process; returns the folder, or with an exit status that is not 0 fails."""
    args = [f"--data.root={root}", f"--to={to}", "--num_processes=0", *more]
    assert main(["pack", *args]) == 0
    return to


def logged(file, name):
    """Return the values of one column of a metrics.csv, blanks left out."""
    return [
        float(row[name])
        for row in csv.DictReader(file.read_text().splitlines())
        if row.get(name)
    ]
