"""metrics.csv, TensorBoard, timers and curves, through real runs."""

import csv
import errno
import logging

import pytest
import yaml
from conftest import fit_args, logged
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.training import curves
from imnet_pl.training.loggers import MetricsFile
from imnet_pl.training.monitors import describe_speed, spread, summarise_steps

RUN = "runs/run/version_0"


def train(root, *more):
    steps = ["--data.batch_size=4", "--trainer.log_every_n_steps=2"]
    return main(fit_args(root, *steps, "--trainer.max_epochs=2", *more))


def test_a_run_leaves_all_its_logs_in_one_folder(root, in_tmp, tiny_network, capsys):
    assert train(root) == 0
    run = in_tmp / RUN
    events = list(run.glob("events.out.tfevents.*"))
    assert len(events) == 1
    assert "arch: resnet50" in (run / "hparams.yaml").read_text()
    with Image.open(run / "curves.png") as picture:
        assert picture.width >= 600
    out = capsys.readouterr().out
    assert out.count("waits for data") == 2
    assert "pictures/s" in out


def test_columns_of_a_run(root, in_tmp, tiny_network):
    assert train(root) == 0
    file = in_tmp / RUN / "metrics.csv"
    assert len(logged(file, "train/loss")) == 6  # 2 epochs of 6 steps, every second
    assert len(logged(file, "train/lr")) == 6
    assert len(logged(file, "val/top1")) == 2
    assert len(logged(file, "train/loss_epoch")) == 2
    assert all(sec > 0 for sec in logged(file, "time/epoch_sec"))
    for name in ("time/step_sec", "time/data_wait_sec"):
        assert len(logged(file, name)) == 4  # the first two steps are dropped
        p50, p95, most = (logged(file, f"{name}_{k}") for k in ("p50", "p95", "max"))
        assert all(a <= b <= c for a, b, c in zip(p50, p95, most, strict=True))
    assert all(0 <= frac <= 1 for frac in logged(file, "time/data_wait_frac"))
    assert all(rate > 0 for rate in logged(file, "throughput/samples_per_sec"))
    steps = logged(file, "step")
    assert steps == sorted(steps)


def test_tensorboard_that_is_absent_or_fails_is_a_notice(
    root, in_tmp, tiny_network, monkeypatch, capsys
):
    def fail(self):
        raise OSError("no space")

    monkeypatch.setattr(TensorBoardLogger, "experiment", property(fail))
    assert train(root) == 0
    assert capsys.readouterr().err.count("TensorBoard logging stops") == 1
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    assert train(root) == 0
    assert "no TensorBoard logs" in capsys.readouterr().err


def test_other_loggers_from_yaml(root, in_tmp, tiny_network):
    file = in_tmp / "c.yaml"
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": "own", "name": "x"}}
    file.write_text(yaml.safe_dump({"trainer": {"logger": logger}}))
    assert train(root, "--config", str(file)) == 0
    assert (in_tmp / "own" / "x" / "version_0" / "metrics.csv").is_file()
    assert not (in_tmp / "runs").exists()


def test_a_run_folder_that_can_not_be_made(root, in_tmp, tiny_network, capsys):
    (in_tmp / "runs").write_text("a file")
    assert train(root) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "the run folder" in error
    assert "--trainer.default_root_dir" in error


def test_the_file_grows_by_rows_and_columns(tmp_path):
    file = MetricsFile(tmp_path)
    file.append({"step": 0, "a": 1.5})
    file.append({"step": 1, "b": 2.0})
    file.append({"step": 2, "a": 3.0})
    again = MetricsFile(tmp_path)
    assert again.num_rows == 3
    again.append({"step": 3, "c": 4.0})
    again.keep_rows(2)
    again.append({"step": 2, "a": 5.0})
    with (tmp_path / "metrics.csv").open(newline="") as text:
        rows = list(csv.reader(text))
    assert rows == [
        ["step", "a", "b", "c"],
        ["0", "1.5", "", ""],
        ["1", "", "2.0", ""],
        ["2", "5.0", "", ""],
    ]


def test_a_full_disk_ends_a_run_at_its_first_row_only(tmp_path, monkeypatch, caplog):
    def full(self, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    write = MetricsFile._write
    monkeypatch.setattr(MetricsFile, "_write", full)
    with pytest.raises(UserError, match=r"No space left.*make room"):
        MetricsFile(tmp_path).append({"step": 0})
    monkeypatch.setattr(MetricsFile, "_write", write)
    file = MetricsFile(tmp_path)
    file.append({"step": 0})
    monkeypatch.setattr(MetricsFile, "_write", full)
    with caplog.at_level(logging.WARNING):
        file.append({"step": 1})
        file.append({"step": 2})
    assert len(caplog.records) == 1
    monkeypatch.setattr(MetricsFile, "_write", write)
    file.append({"step": 3})
    assert MetricsFile(tmp_path).num_rows == 4


def test_times_of_steps():
    steps = [(0.5, 0.1, 8), (0.3, 0.1, 8)]
    assert summarise_steps(steps, 2) == {
        "time/step_sec": 0.4,
        "time/data_wait_sec": 0.1,
        "time/data_wait_frac": 0.25,
        "throughput/samples_per_sec": 40.0,
    }
    assert summarise_steps([], 2) == {}
    assert spread([1.0, 2.0, 3.0]) == {"p50": 2.0, "p95": 2.9, "max": 3.0}
    assert spread([]) == {}


@pytest.mark.parametrize(("frac", "is_bound"), [(0.02, False), (0.4, True)])
def test_a_data_bound_run_is_said(frac, is_bound):
    epoch = {
        "time/epoch_sec": 10.0,
        "time/data_wait_frac_epoch": frac,
        "throughput/samples_per_sec_epoch": 500.0,
    }
    assert ("data-bound" in describe_speed(epoch)) is is_bound


def test_curves_of_short_epochs_are_drawn_less_often(
    root, in_tmp, tiny_network, monkeypatch
):
    drawn = []
    monkeypatch.setattr(curves, "draw_curves", lambda *_: drawn.append(1))
    monkeypatch.setattr(curves.time, "thread_time", iter(range(100)).__next__)
    assert train(root, "--trainer.max_epochs=4") == 0
    assert len(drawn) == 2  # the first epoch, and the end


def test_a_drawing_that_fails_is_a_notice(
    root, in_tmp, tiny_network, monkeypatch, capsys
):
    def fail(*_):
        raise ValueError("no font")

    monkeypatch.setattr(curves, "draw_curves", fail)
    assert train(root) == 0
    assert "curves.png could not be drawn (no font)" in capsys.readouterr().err


def test_the_speed_of_several_devices_is_in_all_and_of_each():
    epoch = {
        "time/epoch_sec": 10.0,
        "time/data_wait_frac_epoch": 0.0,
        "throughput/samples_per_sec_epoch": 500.0,
    }
    said = "500 pictures/s (125 on each of 4 devices)"
    assert said in describe_speed(epoch, num_devices=4)
    assert "devices" not in describe_speed(epoch)
