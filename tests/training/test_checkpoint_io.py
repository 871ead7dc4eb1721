"""A readable checkpoint remains, whatever happens while one is written."""

import errno
import logging
import shutil
import zipfile

import pytest
import torch
from conftest import fit_args

from imnet_pl.cli import main
from imnet_pl.core import files
from imnet_pl.training import checkpoint_io
from imnet_pl.training.checkpoint_io import SafeCheckpointIO

OLD, NEW = {"x": torch.zeros(1000)}, {"x": torch.ones(1000)}


@pytest.fixture
def target(tmp_path):
    file = tmp_path / "last.ckpt"
    SafeCheckpointIO().save_checkpoint(OLD, file)
    return file


def value(file):
    return float(torch.load(file, weights_only=True)["x"][0])


def test_a_save_replaces_the_old_one(target):
    io = SafeCheckpointIO()
    io.save_checkpoint(NEW, target)
    assert io.failure is None
    assert value(target) == 1
    assert [file.name for file in target.parent.iterdir()] == ["last.ckpt"]


def raise_full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (torch, "save", raise_full),
        (checkpoint_io, "replace_file", raise_full),
        (checkpoint_io.os, "fsync", raise_full),
        (zipfile.ZipFile, "testzip", lambda self: "data/0"),
    ],
)
def test_a_fault_leaves_the_old_one(target, monkeypatch, module, name, fault):
    io = SafeCheckpointIO()
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fault)
        io.save_checkpoint(NEW, target)
    assert io.failure is not None
    assert "last.ckpt" in io.failure
    assert value(target) == 0
    assert [file.name for file in target.parent.iterdir()] == ["last.ckpt"]


def test_room_is_looked_for_first(target, monkeypatch):
    usage = shutil.disk_usage(target.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    io = SafeCheckpointIO()
    io.save_checkpoint(NEW, target)
    assert "MiB are needed" in (io.failure or "")
    assert value(target) == 0


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_locked_file_is_tried_again_within_bounds(target, monkeypatch, times):
    replace, locked = type(target).replace, iter(range(times))

    def sometimes(self, other):
        if next(locked, None) is not None:
            raise PermissionError("used by another process")
        return replace(self, other)

    monkeypatch.setattr(type(target), "replace", sometimes)
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    io = SafeCheckpointIO()
    io.save_checkpoint(NEW, target)
    assert (io.failure is None) is (times < 1000)
    assert value(target) == (times < 1000)


def test_a_failed_save_is_a_warning_and_the_last_one_an_error(
    root, in_tmp, tiny_network, monkeypatch, caplog, capsys
):
    monkeypatch.setattr(torch, "save", raise_full)
    with caplog.at_level(logging.WARNING):
        assert main(fit_args(root, "--trainer.max_epochs=2")) == 1
    assert "no checkpoint this time, training goes on" in caplog.text
    assert "epoch 2/2" in capsys.readouterr().out
    assert not list(in_tmp.rglob("*.ckpt"))
    assert not list(in_tmp.rglob("*.part"))


@pytest.mark.parametrize(
    ("keep", "left"), [("0", []), ("2", [2, 3]), ("all", [1, 2, 3])]
)
def test_epochs_that_are_kept(root, in_tmp, tiny_network, keep, left):
    args = fit_args(root, "--trainer.max_epochs=3", f"--checkpoint.keep={keep}")
    assert main(args) == 0
    folder = in_tmp / "runs/run/version_0/checkpoints"
    assert sorted(file.name for file in folder.glob("epoch*")) == [
        f"epoch_{n:03d}.ckpt" for n in left
    ]
    assert not (folder / "last.ckpt").is_symlink()
