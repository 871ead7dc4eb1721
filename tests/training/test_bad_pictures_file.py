"""Bad pictures in a run: counted on the epoch's line, named in the log and in bad_pictures.csv."""

import csv
import logging
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPO, fit_args, logged
from PIL import Image
from test_resume import (  # noqa: F401
    RUN,
    Stopped,
    assert_same_run,
    network,
    stop_at,
    train,
)

from imnet_pl.cli import main
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.training import bad_pictures

NO_PICTURE = "it is no picture of a known format"


@pytest.fixture
def damaged(root):
    """Two bad training pictures, of which one ends early, and a bad one of val."""
    (root / "train" / "n02" / "p3.jpg").write_bytes(b"no picture")
    (root / "val" / "n02" / "p1.jpg").write_bytes(b"no picture")
    cut = root / "train" / "n03" / "p1.jpg"
    cut.write_bytes(cut.read_bytes()[:-300])
    return root


def read_named(folder):
    """Return (split, index, path, what) of each row of the file."""
    with (folder / RUN / "bad_pictures.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["why"] for row in rows)
    return [(r["split"], r["index"], r["path"], r["what"]) for r in rows]


VAL = ("val", "4", "val/n02/p1.jpg", "unreadable")
FIRST = ("train", "11", "train/n02/p3.jpg", "replaced")
CUT = ("train", "17", "train/n03/p1.jpg", "replaced")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_goes_on_and_names_each_picture_once(
    damaged, in_tmp, tiny_network, capsys, workers
):  # S12
    args = ["--trainer.max_epochs=2", f"--data.num_workers={workers}"]
    assert main(fit_args(damaged, *args)) == 0
    captured = capsys.readouterr()
    lines = [x for x in captured.out.splitlines() if x.startswith("epoch")]
    assert len(lines) == 2
    for line in lines:
        assert "2 replaced" in line
        assert "partial" not in line
        assert "n 9  1 unreadable, counted as wrong" in line
    assert sorted(read_named(in_tmp)) == sorted([VAL, FIRST, CUT])
    assert captured.err.count("2 pictures of train are replaced:") == 1
    assert captured.err.count(f"train/n02/p3.jpg ({NO_PICTURE})") == 1
    assert captured.err.count("1 pictures of val are unreadable:") == 1
    metrics = in_tmp / RUN / "metrics.csv"
    assert logged(metrics, "train/num_replaced") == [2, 2]
    assert logged(metrics, "val/num_unreadable") == [1, 1]


def test_a_jpeg_that_ends_early_may_be_used(damaged, in_tmp, tiny_network, capsys):
    args = ["--trainer.max_epochs=1", "--data.on_bad_image=partial"]
    assert main(fit_args(damaged, *args)) == 0
    assert "1 replaced  1 partial" in capsys.readouterr().out
    assert (*CUT[:3], "partial") in read_named(in_tmp)
    assert logged(in_tmp / RUN / "metrics.csv", "train/num_partial") == [1]


def test_the_first_bad_picture_may_be_an_error(damaged, in_tmp, tiny_network, capsys):
    args = ["--trainer.max_epochs=1", "--data.on_bad_image=error"]
    assert main(fit_args(damaged, *args)) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("error: picture ")
    assert "can not be read" in last_line
    args = ["--data.on_bad_eval_image=error", "--trainer.max_epochs=1"]
    assert main(fit_args(damaged, *args)) == 1
    assert "p1.jpg' (index 4) can not be read" in capsys.readouterr().err


def test_a_class_of_bad_pictures_ends_the_run(root, in_tmp, tiny_network, capsys):
    for file in (root / "train" / "n02").iterdir():
        file.write_bytes(b"no picture")
    assert main(fit_args(root, "--trainer.max_epochs=1")) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert "class 'n02' has no picture to train on: 8 of its 8" in last_line
    assert "Traceback" not in last_line


def test_validate_names_bad_pictures(damaged, in_tmp, tiny_network, capsys):
    assert main(fit_args(damaged, "--trainer.max_epochs=1")) == 0
    capsys.readouterr()
    assert main(["validate", "--ckpt_path", f"{RUN}/checkpoints/last.ckpt"]) == 0
    captured = capsys.readouterr()
    assert "n 9  1 unreadable, counted as wrong" in captured.out
    named = f"1 pictures of val are unreadable: val/n02/p1.jpg ({NO_PICTURE})."
    assert named in captured.err
    assert len(list(in_tmp.rglob("bad_pictures.csv"))) == 1


def test_a_resumed_run_appends(damaged, in_tmp, tiny_network):
    args = ["--trainer.max_epochs=1"]
    assert main(fit_args(damaged, *args)) == 0
    before = read_named(in_tmp)
    (damaged / "train" / "n01" / "p0.jpg").write_bytes(b"<html>")
    assert main(["fit", "--resume", "--trainer.max_epochs=2"]) == 0
    added = ("train", "0", "train/n01/p0.jpg", "replaced")
    assert read_named(in_tmp) == [*before, added]


def test_a_resume_within_an_epoch_is_exact(
    damaged,
    in_tmp,
    network,  # noqa: F811
    stop_at,  # noqa: F811
    monkeypatch,
):
    more = ["--data.on_bad_image=partial"]
    for name in ("whole", "parts"):
        (in_tmp / name).mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(damaged, *more) == 0
    monkeypatch.chdir(in_tmp / "parts")
    stop_at(10)
    with pytest.raises(Stopped):
        train(damaged, *more)
    stop_at(-1)
    assert main(["fit", "--resume"]) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
    named = [sorted(read_named(in_tmp / name)) for name in ("whole", "parts")]
    assert named[0] == named[1]
    for name in ("replaced", "partial"):
        column = f"train/num_{name}"
        assert logged(in_tmp / "parts" / RUN / "metrics.csv", column) == [1, 1, 1]


def test_what_was_found_before_an_error_is_named(
    damaged,
    in_tmp,
    network,  # noqa: F811
    stop_at,  # noqa: F811
):
    stop_at(5)
    with pytest.raises(Stopped):
        train(damaged)
    assert VAL in read_named(in_tmp)  # Lightning's look before the first epoch
    assert len(read_named(in_tmp)) > 1


def test_a_locked_file_ends_no_run(damaged, in_tmp, tiny_network, monkeypatch, capsys):
    append, calls = bad_pictures.append_rows, []

    def locked_once(file, rows):
        calls.append(len(rows))
        if len(calls) == 1:
            raise PermissionError(13, "open elsewhere", str(file))
        append(file, rows)

    monkeypatch.setattr(bad_pictures, "append_rows", locked_once)
    assert main(fit_args(damaged, "--trainer.max_epochs=2")) == 0
    assert "rows wait" in capsys.readouterr().err
    assert sorted(read_named(in_tmp)) == sorted([VAL, FIRST, CUT])


def test_no_run_folder_is_no_matter(damaged, in_tmp, tiny_network, capsys):
    more = ["--trainer.max_epochs=1", "--trainer.logger=false"]
    assert main(fit_args(damaged, *more)) == 0
    assert "2 pictures of train are replaced" in capsys.readouterr().err
    assert not list(in_tmp.rglob("bad_pictures.csv"))


def test_the_file_is_utf8_and_holds_any_name(tmp_path):
    rows = [
        bad_pictures.Row("train", 1, 'a/Ünï, "x".jpg', "replaced", "two\nlines"),
        bad_pictures.Row("val", 2, "a/\udcff.jpg", "unreadable", "why"),
    ]
    file = tmp_path / "run" / "bad_pictures.csv"
    bad_pictures.append_rows(file, rows[:1])
    bad_pictures.append_rows(file, rows[1:])
    assert file.read_bytes().startswith(b"split,index,path,what,why\ntrain,1,")
    assert bad_pictures.read_named(file) == {
        ("train", 'a/Ünï, "x".jpg'),
        ("val", "a/\\udcff.jpg"),
    }


@pytest.fixture
def policies(monkeypatch):
    """The decoding settings of every loader that evaluates."""
    seen = []
    make = ImageNetDataModule.eval_dataloader

    def eval_dataloader(self, split):
        loader = make(self, split)
        seen.append((loader.dataset.transform.policy, loader.dataset.on_bad_image))
        return loader

    monkeypatch.setattr(ImageNetDataModule, "eval_dataloader", eval_dataloader)
    return seen


def test_a_checkpoint_brings_its_decoding_settings(
    root, in_tmp, tiny_network, policies
):
    settings = {
        "exif_orientation": "true",
        "alpha_background": "[1,2,3]",
        "max_pixels": "5000",
        "on_bad_eval_image": "error",
    }
    args = [f"--data.{name}={value}" for name, value in settings.items()]
    assert main(fit_args(root, "--trainer.max_epochs=1", *args)) == 0
    ckpt = ["--ckpt_path", f"{RUN}/checkpoints/last.ckpt"]
    assert main(["validate", *ckpt]) == 0
    assert main(["test", *ckpt]) == 0
    assert main(["predict", *ckpt, "--input", "val"]) == 0
    assert len({policy for policy, _ in policies}) == 1
    policy = policies[0][0]
    assert (policy.exif_orientation, policy.max_pixels) == (True, 5000)
    assert policy.alpha_background == (1, 2, 3)
    assert [on_bad for _, on_bad in policies] == ["error"] * 3 + ["wrong"]
    assert main(["validate", *ckpt, "--data.exif_orientation=false"]) == 0
    assert policies[-1][0].exif_orientation is False


def test_a_prediction_turns_pictures_as_its_checkpoint_says(root, in_tmp, tiny_network):
    """One picture, upright and stored on its side with a tag: alike where the run was told to turn."""
    pixels = np.zeros((48, 64, 3), dtype=np.uint8)
    pixels[:20, :, 0] = pixels[:, :20, 1] = 200
    exif = Image.Exif()
    exif[0x0112] = 6
    (in_tmp / "in").mkdir()
    Image.fromarray(pixels).save(in_tmp / "in" / "a.png")
    Image.fromarray(np.rot90(pixels).copy()).save(in_tmp / "in" / "b.png", exif=exif)
    for version, turned in enumerate(("true", "false")):
        args = ["--trainer.max_epochs=1", f"--data.exif_orientation={turned}"]
        assert main(fit_args(root, *args)) == 0
        ckpt = f"runs/run/version_{version}/checkpoints/last.ckpt"
        assert main(["predict", "--ckpt_path", ckpt, "--input", "in"]) == 0
        with (in_tmp / "predictions.csv").open(newline="") as file:
            upright, tagged = (row["top1_prob"] for row in csv.DictReader(file))
        assert (upright == tagged) == (turned == "true")


@pytest.mark.slow
def test_two_ranks_name_all_bad_pictures(damaged, in_tmp):
    ranks = ["--trainer.strategy=ddp", "--trainer.devices=2", "--data.batch_size=4"]
    command = [sys.executable, str(REPO / "cli.py")]
    command += fit_args(damaged, "--trainer.max_epochs=2", "--model.arch=resnet18")
    done = subprocess.run([*command, *ranks], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 replaced") == 2
    assert sorted(read_named(in_tmp)) == sorted([VAL, FIRST, CUT])
    assert logged(in_tmp / RUN / "metrics.csv", "train/num_replaced") == [2, 2]


def test_nothing_is_said_of_sound_pictures(root, in_tmp, tiny_network, caplog):
    with caplog.at_level(logging.WARNING):
        assert main(fit_args(root, "--trainer.max_epochs=1")) == 0
    assert "pictures of" not in caplog.text
    assert not (in_tmp / RUN / "bad_pictures.csv").exists()
