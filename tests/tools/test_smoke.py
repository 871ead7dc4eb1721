"""fit --smoke: what is sound passes, and each fault fails at its own line."""

import re

import numpy as np
import pytest
from conftest import REPO
from torch import nn

from imnet_pl.cli import main
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources.digits import ensure_digits
from imnet_pl.tools.smoke import describe_order, nearest_labels

LINES = [
    "data found",
    "batch decoded",
    "labels in range",
    "class order",
    "first loss",
    "loss falls on one batch",
    "checkpoint saved",
    "resumed",
    "validated",
]


class Silent(nn.Module):
    """A network whose output is all zeros."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(3, num_classes)

    def forward(self, images):
        return self.linear(images.mean((2, 3))) * 0


@pytest.fixture
def digits(tmp_path):
    ensure_digits(tmp_path / "digits")
    return tmp_path / "digits"


def smoke(root):
    config = str(REPO / "configs" / "quickstart.yaml")
    place = [f"--data.root={root}", "--data.num_workers=0"]
    return main(["fit", "--config", config, *place, "--smoke"])


def marks(out):
    """Return name -> did it pass, of the lines of a checklist."""
    rows = [line.split(":")[0].split(None, 1) for line in out.splitlines()]
    return {row[1]: row[0] == "ok" for row in rows if row[0] in ("ok", "FAIL")}


def test_all_is_well(digits, in_tmp, small_network, capsys):
    assert smoke(digits) == 0
    out = capsys.readouterr().out
    assert list(marks(out)) == LINES
    assert all(marks(out).values())
    assert "100 of train and 100 of val, 10 classes" in out
    assert out.endswith("smoke run: fine\n")
    assert not (in_tmp / "runs").exists()


def test_an_unknown_class_in_the_label_file(digits, in_tmp, small_network, capsys):
    file = digits / "val" / "val_label.txt"
    file = file if file.exists() else digits / "val_label.txt"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0].split()[0] + " n99999999", *lines[1:]]) + "\n")
    assert smoke(digits) == 1
    out = capsys.readouterr().out
    assert marks(out) == {"data found": False}
    assert "n99999999" in out


def test_val_labels_shifted_by_one(digits, in_tmp, small_network, capsys):
    file = digits / "val" / "val_label.txt"
    file = file if file.exists() else digits / "val_label.txt"
    rows = [line.split() for line in file.read_text().splitlines()]
    names = sorted({name for _, name in rows})
    shifted = [f"{f} {names[(names.index(n) + 1) % len(names)]}" for f, n in rows]
    file.write_text("\n".join(shifted) + "\n")
    assert smoke(digits) == 1
    out = capsys.readouterr().out
    assert [name for name, good in marks(out).items() if not good] == ["class order"]
    assert "when labels are shifted by -1" in out


def test_pictures_that_can_not_be_read_are_named(digits, in_tmp, small_network, capsys):
    for file in (digits / "val").glob("*.JPEG"):
        file.write_bytes(b"no picture")
    assert smoke(digits) == 1
    out = capsys.readouterr().out
    assert marks(out)["batch decoded"] is False
    assert re.search(r"100 pictures can not be read: val/\S+\.JPEG, .*and 95 more", out)


def test_a_model_whose_output_is_all_zeros(digits, in_tmp, monkeypatch, capsys):
    monkeypatch.setattr(
        "imnet_pl.model.classifier.build_network", lambda _, n: Silent(n)
    )
    assert smoke(digits) == 1
    out = capsys.readouterr().out
    failed = [name for name, good in marks(out).items() if not good]
    assert failed == ["loss falls on one batch"]
    assert "the same for all pictures" in out


@pytest.mark.slow
def test_with_the_real_network_and_workers(in_tmp, capsys):
    config = str(REPO / "configs" / "quickstart.yaml")
    assert main(["fit", "--config", config, "--smoke"]) == 0
    assert list(marks(capsys.readouterr().out)) == LINES


def test_order_is_told_from_chance():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, 10_000)
    hits = rng.random(10_000) < 0.01  # ten times chance
    noise = rng.integers(0, 1000, 10_000)
    right = describe_order(np.where(hits, labels, noise), labels, 1000)
    shifted = describe_order(np.where(hits, labels, noise), (labels + 1) % 1000, 1000)
    unknown = describe_order(noise, labels, 1000)
    assert (right[0], shifted[0], unknown[0]) == (True, False, True)
    assert "shifted by -1" in shifted[1]
    assert "too few or too varied" in unknown[1]


def test_nearest_labels_in_chunks():
    train = np.eye(4, dtype=np.float32)
    guesses = nearest_labels(train, np.array([5, 6, 7, 8]), train[[2, 0, 3]], chunk=2)
    assert guesses.tolist() == [7, 5, 8]


def test_pictures_of_each_class_are_drawn_with_the_seed(tmp_path):
    labels = [0] * 20 + [1] * 3 + [2] * 7
    paths = [f"{i}.jpg" for i in range(30)]
    index = ImageIndex.from_rows(tmp_path, paths, labels, ("a", "b", "c"))
    drawn = index.draw_per_class(5, seed=1)
    assert drawn.class_counts().tolist() == [5, 3, 5]
    names = [drawn.relative_path(i) for i in range(len(drawn))]
    assert names == sorted(names, key=lambda name: int(name[:-4]))
    again = index.draw_per_class(5, seed=1)
    other = index.draw_per_class(5, seed=2)
    assert again.fingerprint == drawn.fingerprint != other.fingerprint
