"""A loss that is NaN ends the run, says why, and leaves the last good checkpoint good."""

import json

import pytest
import torch
from conftest import fit_args

from imnet_pl.cli import main
from imnet_pl.model.classifier import ImageClassifier

RUN = "runs/run/version_0"


@pytest.fixture
def nan_from(monkeypatch):
    """Make the loss NaN from a batch on, or in some batches alone."""
    step = ImageClassifier.training_step

    def set_batches(is_nan):
        seen = iter(range(10_000))

        def training_step(self, batch, batch_idx):
            loss = step(self, batch, batch_idx)
            return loss * float("nan") if is_nan(next(seen)) else loss

        monkeypatch.setattr(ImageClassifier, "training_step", training_step)

    return set_batches


def train(root, *more):
    return main(fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=3", *more))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_nan_ends_the_run_with_a_report(
    root, in_tmp, tiny_network, nan_from, capsys, accumulate
):
    nan_from(lambda batch: batch >= 8)
    often = "--checkpoint.every_minutes=1e-9"
    steps = f"--trainer.accumulate_grad_batches={accumulate}"
    assert train(root, often, steps, "--guard.nonfinite_steps=2") == 1
    error = capsys.readouterr().err
    assert "the loss was NaN or infinite for 2 steps (guard.nonfinite_steps)" in error
    assert f"last good checkpoint is '{in_tmp}" in error or "last.ckpt" in error
    report = json.loads((in_tmp / RUN / "nonfinite_loss.json").read_text())
    assert len(report["batches"]) == 8 + 2 * accumulate
    last = report["batches"][-1]
    assert last["loss"] != last["loss"]
    assert (last["epoch"], last["batch"]) == (1, 1 + 2 * accumulate)
    assert last["learning_rate"] > 0
    assert len(last["paths"]) == len(last["indices"]) == 4
    assert all(path.endswith(".jpg") for path in last["paths"])
    good = torch.load(in_tmp / RUN / "checkpoints/last.ckpt", weights_only=True)
    assert all(v.isfinite().all() for v in good["state_dict"].values())
    assert good["global_step"] == 8 // accumulate
    assert not (in_tmp / RUN / "checkpoints/crash.ckpt").exists()


def test_the_report_begins_shortly_before_the_first_nan(
    root, in_tmp, tiny_network, nan_from
):
    nan_from(lambda batch: batch >= 14)
    assert train(root, "--guard.nonfinite_steps=3") == 1
    report = json.loads((in_tmp / RUN / "nonfinite_loss.json").read_text())
    is_finite = [row["loss"] == row["loss"] for row in report["batches"]]
    assert is_finite == [True] * 8 + [False] * 3
    assert [row["step"] for row in report["batches"]] == list(range(7, 18))


def test_fewer_steps_than_asked_for_go_on(root, in_tmp, tiny_network, monkeypatch):
    step = ImageClassifier.training_step
    seen = iter(range(10_000))

    def training_step(self, batch, batch_idx):
        # infinite without a gradient: the weights stay as they are
        loss = step(self, batch, batch_idx)
        return loss * 0 + float("inf") if next(seen) in (3, 4, 7, 9) else loss

    monkeypatch.setattr(ImageClassifier, "training_step", training_step)
    assert train(root, "--guard.nonfinite_steps=3") == 0
    assert not (in_tmp / RUN / "nonfinite_loss.json").exists()


def test_the_guard_can_be_left_out(root, in_tmp, tiny_network, nan_from, capsys):
    nan_from(lambda batch: batch >= 8)
    assert train(root, "--guard.nonfinite_steps=null") == 0
    assert "no checkpoint this time: weights are not finite" in capsys.readouterr().err
    good = torch.load(in_tmp / RUN / "checkpoints/last.ckpt", weights_only=True)
    assert good["global_step"] == 6


def test_a_count_that_can_not_work_is_named(root, in_tmp, tiny_network, capsys):
    assert train(root, "--guard.nonfinite_steps=0") == 1
    assert "guard.nonfinite_steps=0 must be 1 or more" in capsys.readouterr().err


def test_room_for_the_checkpoints_is_checked_at_start(
    root, in_tmp, tiny_network, monkeypatch, capsys
):
    monkeypatch.setattr(
        "imnet_pl.training.checkpointing.shutil.disk_usage",
        lambda _: type("Usage", (), {"free": 100})(),
    )
    assert train(root) == 1
    error = capsys.readouterr().err
    assert "the checkpoints need 0.0 GB" in error
    assert "--trainer.default_root_dir" in error
    assert not (in_tmp / RUN / "checkpoints").exists()
