"""A run that was stopped and goes on is the run that was not: bit for bit, row for row."""

import csv
import logging
import shutil
from pathlib import Path

import pytest
import torch
from conftest import CLASSES, fit_args, write_classes
from torch import nn

from imnet_pl.cli import main
from imnet_pl.model.classifier import ImageClassifier
from imnet_pl.training import checkpointing
from imnet_pl.training.checkpoint_io import SafeCheckpointIO

RUN = "runs/run/version_0"


class Stopped(Exception):
    """What ends a run here, as a power cut would."""


@pytest.fixture
def network(monkeypatch):
    """A network with BatchNorm and with dropout, which draws from the global generator."""

    def build(arch, num_classes):
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, 2),
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(16, num_classes),
        )

    monkeypatch.setattr("imnet_pl.model.classifier.build_network", build)


@pytest.fixture
def stop_at(monkeypatch):
    """Let training end at the start of a batch, counted over the whole run."""
    step = ImageClassifier.training_step

    def set_batch(number):
        seen = iter(range(10_000))

        def training_step(self, batch, batch_idx):
            if next(seen) == number:
                raise Stopped
            return step(self, batch, batch_idx)

        monkeypatch.setattr(ImageClassifier, "training_step", training_step)

    return set_batch


def train(root, *more):
    small = ["--data.batch_size=4", "--trainer.max_epochs=3", "--model.warmup_epochs=1"]
    often = ["--trainer.log_every_n_steps=1", "--checkpoint.every_minutes=1e-9"]
    return main(fit_args(root, *small, *often, *more))


def read(folder):
    file = folder / RUN / "checkpoints" / "last.ckpt"
    return torch.load(file, weights_only=True)


def rows(folder):
    """Return the rows of metrics.csv, without what a clock says."""
    with (folder / RUN / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if not k.startswith(("time/", "throughput/"))}
            for row in csv.DictReader(file)
        ]


def assert_same_run(left, right):
    a, b = read(left), read(right)
    torch.testing.assert_close(a["state_dict"], b["state_dict"], rtol=0, atol=0)
    for key in ("optimizer_states", "lr_schedulers"):
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=0)
    assert a["loops"]["fit_loop"] == b["loops"]["fit_loop"]
    assert rows(left) == rows(right)


# 24 pictures in batches of 4: 6 an epoch. With accumulation 4 an epoch has windows of 4 and 2.
@pytest.mark.parametrize(
    ("stop", "accumulate", "validations"),
    [
        (3, 1, 1),
        (6, 1, 1),
        (11, 1, 1),
        (9, 1, 2),
        (10, 1, 2),
        (8, 3, 1),
        (9, 3, 2),
        (11, 4, 1),
        (17, 4, 1),
    ],
)
def test_resume_is_exact(
    root, in_tmp, network, stop_at, monkeypatch, stop, accumulate, validations
):
    more = [f"--trainer.accumulate_grad_batches={accumulate}"]
    if validations > 1:
        more.append("--trainer.val_check_interval=3")
    (in_tmp / "whole").mkdir()
    (in_tmp / "parts").mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(root, *more) == 0
    monkeypatch.chdir(in_tmp / "parts")
    stop_at(stop)
    with pytest.raises(Stopped):
        train(root, *more)
    stop_at(-1)
    assert main(["fit", "--resume"]) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
    assert [p.name for p in (in_tmp / "parts/runs/run").iterdir()] == ["version_0"]


@pytest.fixture
def always_best(monkeypatch):
    """Each validation that may give a best.ckpt does."""
    better = checkpointing.ExactCheckpoint
    monkeypatch.setattr(better, "check_monitor_top_k", lambda *_: True)


def test_no_checkpoint_is_written_within_a_window(
    root, in_tmp, network, always_best, monkeypatch, caplog
):
    save, saved = SafeCheckpointIO.save_checkpoint, []

    def save_checkpoint(self, checkpoint, path, **_):
        saved.append((Path(path).name, checkpoint["imnet_pl_resume"]["batches_done"]))
        save(self, checkpoint, path)

    monkeypatch.setattr(SafeCheckpointIO, "save_checkpoint", save_checkpoint)
    more = ["--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=1"]
    with caplog.at_level(logging.WARNING):
        assert train(root, *more, "--trainer.max_epochs=1") == 0
    # Validated after each of 6 batches; that at the end gives the checkpoint of the epoch.
    assert [done for name, done in saved if name == "best.ckpt"] == [2, 4, 0]
    assert [done for name, done in saved if name == "last.ckpt"] == [2, 4, 0]
    assert "1 batches is no multiple of trainer.accumulate_grad_batches=2" in (
        caplog.text
    )


@pytest.mark.parametrize("moment", ["last.ckpt", "epoch_003.ckpt", "removal"])
def test_a_last_save_that_was_cut_short_is_finished(
    root, in_tmp, network, always_best, monkeypatch, capsys, moment
):
    for name in ("whole", "parts"):
        (in_tmp / name).mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(root) == 0
    monkeypatch.chdir(in_tmp / "parts")
    with monkeypatch.context() as patched:
        cut_short(patched, moment)
        with pytest.raises(Stopped):
            train(root)
    folder = in_tmp / "parts" / RUN
    for name in ("curves.png.part", "checkpoints/last.ckpt.part"):
        (folder / name).write_bytes(b"half")
    assert main(["fit", "--resume"]) == 0
    assert "nothing to do: 3 of 3 epochs are done" in capsys.readouterr().err
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
    files = [path.name for path in folder.rglob("*.part")]
    files += [path.name for path in (folder / "checkpoints").iterdir()]
    assert sorted(files) == ["best.ckpt", "epoch_003.ckpt", "last.ckpt"]
    copy = folder / "checkpoints" / "epoch_003.ckpt"
    assert copy.read_bytes() == copy.with_name("last.ckpt").read_bytes()


def cut_short(monkeypatch, moment):
    """Let the save at the end of the third epoch stop before a file is written, or old ones are removed."""
    save, copy = SafeCheckpointIO.save_checkpoint, checkpointing.copy_file

    def save_checkpoint(self, checkpoint, path, **_):
        progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]
        if Path(path).name == moment and progress["processed"] == 3:
            raise Stopped
        save(self, checkpoint, path)

    def copy_file(source, target):
        if target.name == moment:
            raise Stopped
        copy(source, target)
        if moment == "removal" and target.name == "epoch_003.ckpt":
            raise Stopped

    monkeypatch.setattr(SafeCheckpointIO, "save_checkpoint", save_checkpoint)
    monkeypatch.setattr(checkpointing, "copy_file", copy_file)


def test_workers_change_nothing_on_the_way(root, in_tmp, network, stop_at, monkeypatch):
    for name in ("whole", "parts"):
        (in_tmp / name).mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(root) == 0
    monkeypatch.chdir(in_tmp / "parts")
    stop_at(10)
    with pytest.raises(Stopped):
        train(root)
    stop_at(-1)
    assert main(["fit", "--resume", "--data.num_workers=1"]) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")


def test_another_split_of_the_global_batch_goes_on_within_an_epoch(
    root, in_tmp, network, stop_at
):
    stop_at(8)
    with pytest.raises(Stopped):
        train(root)
    stop_at(-1)
    half = ["--data.batch_size=2", "--trainer.accumulate_grad_batches=2"]
    assert main(["fit", "--resume", *half]) == 0
    assert read(in_tmp)["global_step"] == 18


def test_another_global_batch_is_refused_within_an_epoch_alone(
    root, in_tmp, network, stop_at, capsys
):
    stop_at(8)
    with pytest.raises(Stopped):
        train(root)
    stop_at(-1)
    assert main(["fit", "--resume", "--data.batch_size=8"]) == 1
    error = capsys.readouterr().err
    assert "4 pictures a step, here they are 8" in error
    epoch = f"{RUN}/checkpoints/epoch_001.ckpt"
    assert f"--ckpt_path {epoch}" in error.replace("\\", "/")
    assert main(["fit", "--ckpt_path", epoch, "--data.batch_size=8"]) == 0


def test_nothing_to_do_and_a_later_end(root, in_tmp, network, capsys):
    assert train(root) == 0
    capsys.readouterr()
    assert main(["fit", "--resume"]) == 0
    assert "nothing to do: 3 of 3 epochs are done" in capsys.readouterr().err
    assert main(["fit", "--resume", "--trainer.max_epochs=4"]) == 0
    assert "is stretched to the new end" in capsys.readouterr().err
    rates = [float(row["train/lr"]) for row in rows(in_tmp) if row["train/lr"]]
    assert len(rates) == 24
    assert rates[-1] == pytest.approx(1e-6)
    assert rates[18] > rates[17]


def test_a_run_that_stopped_early_stays_stopped(root, in_tmp, network, capsys):
    early = ["--early_stopping.patience=1", "--early_stopping.min_delta=1e9"]
    assert train(root, *early) == 0
    assert "of 3 epochs" not in capsys.readouterr().err
    assert main(["fit", "--resume"]) == 0
    assert "the run stopped early after 2 epochs, 1 without gain" in (
        capsys.readouterr().err
    )
    assert main(["fit", "--resume", "--early_stopping.patience=9"]) == 0
    assert read(in_tmp)["global_step"] == 18


def test_resume_starts_where_there_is_nothing(root, in_tmp, network, capsys):
    assert train(root, "--resume") == 0
    assert "no checkpoint in" in capsys.readouterr().err


def test_best_of_the_newest_run(root, in_tmp, network, capsys):
    assert train(root, "--name=first") == 0
    assert main(["validate", "--ckpt_path", "best"]) == 0
    assert main(["validate", "--ckpt_path", "last", "--name=first"]) == 0
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", "missing.ckpt"]) == 1
    assert "the newest checkpoints are runs/first" in (
        capsys.readouterr().err.replace("\\", "/")
    )


def test_a_damaged_checkpoint_is_skipped_by_name(root, in_tmp, network, capsys):
    assert train(root, "--checkpoint.keep=all") == 0
    last = in_tmp / RUN / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-200])
    (last.parent / "epoch_003.ckpt").unlink()
    capsys.readouterr()
    assert main(["fit", "--resume"]) == 0
    error = capsys.readouterr().err
    assert "skipped: --ckpt_path=" in error
    assert "last.ckpt" in error
    assert read(in_tmp)["global_step"] == 18


def test_an_older_checkpoint_that_is_asked_for_replaces_nothing_at_once(
    root, in_tmp, network, monkeypatch
):
    assert train(root, "--checkpoint.keep=all") == 0
    folder = in_tmp / RUN / "checkpoints"
    before = (folder / "last.ckpt").read_bytes()
    monkeypatch.setattr(ImageClassifier, "on_train_start", lambda _: 1 / 0)
    older = str(folder / "epoch_001.ckpt")
    with pytest.raises(ZeroDivisionError):
        main(["fit", "--ckpt_path", older])
    assert (folder / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize("change", ["cut", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_one_sentence(root, in_tmp, network, capsys, change):
    assert train(root) == 0
    last = in_tmp / RUN / "checkpoints" / "last.ckpt"
    data = bytearray(last.read_bytes())
    at = data.index(b"state_dict")
    data[at] ^= 1
    changed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "text": b"no"}
    last.write_bytes(changed[change])
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", str(last)]) == 1
    error = capsys.readouterr().err
    assert "can not be read as a checkpoint" in error
    assert len(error.strip().splitlines()) == 1


def test_changed_data_is_refused_unless_allowed(root, in_tmp, network, capsys):
    assert train(root) == 0
    write_classes(root / "more", {CLASSES[0]: 2})
    for file in (root / "more" / CLASSES[0]).iterdir():
        shutil.move(file, root / "train" / CLASSES[0] / f"new_{file.name}")
    shutil.rmtree(root / "more")
    more = ["fit", "--resume", "--trainer.max_epochs=4"]
    assert main(more) == 1
    assert "--allow_changed_data" in capsys.readouterr().err
    assert main([*more, "--allow_changed_data", "true"]) == 0


def test_the_best_survives_in_another_folder(root, in_tmp, network, caplog):
    assert train(root) == 0
    score = _best(read(in_tmp))
    moved = in_tmp / "elsewhere" / "last.ckpt"
    moved.parent.mkdir()
    shutil.copy(in_tmp / RUN / "checkpoints" / "last.ckpt", moved)
    args = ["fit", "--ckpt_path", str(moved), "--trainer.max_epochs=4"]
    with caplog.at_level(logging.WARNING):
        assert main(args) == 0
    best = in_tmp / "runs/run/version_1/checkpoints/best.ckpt"
    assert best.is_file()
    assert _best(torch.load(best, weights_only=True)) >= score


def _best(checkpoint):
    states = checkpoint["callbacks"].items()
    (score,) = [s["best_model_score"] for key, s in states if "best" in key]
    return float(score)
