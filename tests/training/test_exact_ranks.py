"""The same figures and weights on any number of ranks (Gloo, CPU)."""

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import CLASSES, REPO, fit_args, write_classes, write_jpeg
from ranks_probe import build_normed

from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.model.classifier import ImageClassifier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the ranks are forked"),
]

PROBE = Path(__file__).with_name("ranks_probe.py")
SIX = tuple(f"n0{i}" for i in range(6))
NUMBERS = (25, 7, 5, 4, 3)


def run_ranks(folder, ranks, commands, **more):
    """Run commands on so many ranks in a folder; return what rank 0 shows of each."""
    folder.mkdir(exist_ok=True)
    strategy = ["--trainer.strategy=ddp"] if ranks > 1 else []
    place = [f"--trainer.devices={ranks}", "--trainer.accelerator=cpu", *strategy]
    job = {"ranks": ranks, "commands": [[*args, *place] for args in commands], **more}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(PROBE), "job.json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    logs = [(folder / f"rank{rank}.log").read_text() for rank in range(ranks)]
    assert done.returncode == 0, "\n".join(logs)
    return re.split(r"^== \d+\n", logs[0], flags=re.MULTILINE)[1:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Six classes, val splits of several sizes, and a checkpoint of a network with BatchNorm."""
    base = tmp_path_factory.mktemp("six")
    write_classes(base / "train", dict.fromkeys(SIX, 8))
    for number in NUMBERS:
        root = base / f"val_of_{number}"
        for i in range(number):
            name = SIX[i * 5 % 6]
            file = root / "val" / name / f"p{i}.jpg"
            write_jpeg(file, 900 + i, low=25 * (i % 7), high=25 * (i % 7) + 60)
        (root / "train").symlink_to(base / "train")
    root = base / "val_of_25"
    args = fit_args(root, "--model.base_lr=2", "--trainer.max_epochs=2")
    run_ranks(base / "fit", 1, [args], network="normed")
    return base, base / "fit/runs/run/version_0/checkpoints/last.ckpt"


def count_by_hand(root, checkpoint):
    """Return loss, Top-1, Top-5 and n, and (right, all) of each class, without a Trainer."""
    network = build_normed("", 6)
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    prefix = "backbone."
    network.load_state_dict({k.removeprefix(prefix): v for k, v in state.items()})
    network.eval()
    data = ImageNetDataModule(root=str(root), image_size=32, num_workers=0)
    data.setup("validate")
    model = ImageClassifier(num_classes=6, arch="resnet18")
    losses, ranks, labels = [], [], []
    for images, targets, _, _ in data.val_dataloader():
        with torch.no_grad():
            logits = network((images / 255 - model.mean) / model.std)
        losses += torch.nn.functional.cross_entropy(
            logits, targets, reduction="none"
        ).tolist()
        order = logits.argsort(dim=1, descending=True)
        ranks += (order == targets[:, None]).int().argmax(dim=1).tolist()
        labels += targets.tolist()
    n = len(labels)
    scores = [sum(losses) / n, *(sum(r < k for r in ranks) / n for k in (1, 5)), n]
    counts = [
        (
            sum(r == 0 for r, x in zip(ranks, labels, strict=True) if x == c),
            labels.count(c),
        )
        for c in range(6)
    ]
    return scores, counts


def scores_of(shown):
    """Return loss, Top-1, Top-5 and n of the line that validate prints."""
    return [float(x) for x in re.findall(r"\b(?:loss|top1|top5|n) ([0-9.]+)", shown)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_evaluation_equals_a_hand_count(ranks, trained, tmp_path):
    """Each picture counts once, also where a rank has none, or batches are of different sizes."""
    base, checkpoint = trained
    commands = []
    for number in NUMBERS:
        given = [f"--ckpt_path={checkpoint}", f"--data.root={base}/val_of_{number}"]
        given += ["--data.eval_batch_size=4"]
        commands.append(["validate", *given, f"--per_class=classes_{number}.csv"])
        pictures = ["--input=val", f"--output=predictions_{number}.csv"]
        commands.append(["predict", *given, *pictures])
    shown = run_ranks(tmp_path, ranks, commands, network="normed")
    for number, validated in zip(NUMBERS, shown[::2], strict=True):
        root = base / f"val_of_{number}"
        scores, counts = count_by_hand(root, checkpoint)
        assert scores_of(validated) == pytest.approx(scores, abs=1.000001e-6)
        table = _rows(tmp_path / f"classes_{number}.csv")
        found = [(int(row["right"]), int(row["num_samples"])) for row in table]
        assert found == counts
        predicted = _rows(tmp_path / f"predictions_{number}.csv")
        assert [row["path"] for row in predicted] == sorted(
            file.relative_to(root).as_posix() for file in (root / "val").rglob("*.jpg")
        )
        wrong = [
            (r["label"], r["top1_class"])
            for r in predicted
            if r["label"] != r["top1_class"]
        ]
        taken_for = {
            (row["class"], other.split(": ")[0]): int(other.split(": ")[1])
            for row in table
            for other in row["taken_for"].split("; ")
            if other
        }
        assert taken_for == Counter(wrong)
        hits = sum(row["label"] == row["top1_class"] for row in predicted)
        assert hits == sum(right for right, _ in counts)


def _rows(file):
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def weights(folder):
    file = folder / "runs/run/version_0/checkpoints/last.ckpt"
    return torch.load(file, weights_only=True)["state_dict"]


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Class folders of 150 training pictures: two batches of 64, and a rest."""
    root = tmp_path_factory.mktemp("many") / "pictures"
    write_classes(root / "train", dict.fromkeys(CLASSES, 50))
    write_classes(root / "val", dict.fromkeys(CLASSES, 3), seed=50)
    return root


def test_two_ranks_train_as_one_with_their_batches_together(many, tmp_path):
    """2 x 32 are 1 x 64, and so are 64 that are divided; the files are the same, and rank 1 writes none."""
    args = fit_args(many, "--model.base_lr=4", "--trainer.max_epochs=1")
    one = [*args, "--data.batch_size=64"]
    two = [*args, "--data.batch_size=32"]
    divided = [*one, "--data.strong_scaling=true"]
    run_ranks(tmp_path / "one", 1, [one], network="linear")
    (shown,) = run_ranks(tmp_path / "two", 2, [two], network="linear", audit=True)
    run_ranks(tmp_path / "divided", 2, [divided], network="linear")
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "divided"))
    assert "a step has 64 pictures: 32 a rank x 2 ranks x 1 accumulated" in shown
    assert _names(tmp_path / "one") == _names(tmp_path / "two")
    written = (tmp_path / "two" / "written.txt").read_text().splitlines()
    assert "0 runs/run/version_0/metrics.csv.part" in written
    assert [line for line in written if not line.startswith("0 ")] == []
    assert_only_rank_0_speaks(tmp_path / "two")


def _names(folder):
    """Return the names of all files of a run; TensorBoard's hold a time and a process."""
    files = (folder / "runs").rglob("*")
    return sorted(
        re.sub(r"(tfevents)\..*", r"\1", str(f.relative_to(folder))) for f in files
    )


def assert_only_rank_0_speaks(folder):
    said = (folder / "rank1.log").read_text().splitlines()
    assert [line for line in said if not line.startswith(("==", "[Gloo]"))] == []
    lines = (folder / "rank0.log").read_text().splitlines()
    lines = [line for line in lines if line.strip("-")]
    assert sorted(lines) == sorted(set(lines))


def test_a_bad_picture_on_one_rank_is_replaced_and_nobody_waits(many, tmp_path):
    root = tmp_path / "pictures"
    write_classes(root / "train", dict.fromkeys(CLASSES, 8))
    write_classes(root / "val", dict.fromkeys(CLASSES, 2), seed=50)
    (root / "train" / CLASSES[1] / "p3.jpg").write_bytes(b"no picture")
    args = fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=2")
    more = ["--data.on_bad_image=replace", "--data.num_workers=1"]
    (shown,) = run_ranks(tmp_path / "two", 2, [[*args, *more]], network="normed")
    assert re.findall(r"epoch (\d)/2 .* 1 replaced", shown) == ["1", "2"]
    state = torch.load(
        tmp_path / "two/runs/run/version_0/checkpoints/last.ckpt", weights_only=True
    )
    assert state["global_step"] == 6  # 24 pictures, 2 ranks with batches of 4


def test_uneven_batch_is_an_error_that_names_what_would_do(many, tmp_path):
    args = fit_args(many, "--data.batch_size=63", "--data.strong_scaling=true")
    with pytest.raises(AssertionError, match=r"data.batch_size=63 .* give 62 or 64"):
        run_ranks(tmp_path, 2, [args], network="linear")


def test_too_few_pictures_for_the_ranks_are_an_error(tmp_path):
    root = tmp_path / "pictures"
    write_classes(root / "train", dict.fromkeys(CLASSES, 1))
    write_classes(root / "val", dict.fromkeys(CLASSES, 1), seed=50)
    args = fit_args(root)
    with pytest.raises(AssertionError, match="3 training pictures for 2 devices"):
        run_ranks(tmp_path, 2, [args], network="linear")
