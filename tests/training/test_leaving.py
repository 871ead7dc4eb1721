"""A run that is asked to stop saves itself between two steps; one that fails says from where it goes on."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from conftest import REPO, fit_args
from test_resume import RUN, assert_same_run, network, train  # noqa: F401

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data.dataset import ImageDataset
from imnet_pl.model.classifier import ImageClassifier
from imnet_pl.training import stop_request
from imnet_pl.training.contract import read_contract
from imnet_pl.training.stop_request import StopRequest

CTRL_CLOSE_EVENT = 2


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """A job in the background, as tests may be, has some of them ignored."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    for name in names:
        is_key = name == "SIGINT"
        handler = signal.default_int_handler if is_key else signal.SIG_DFL
        signal.signal(getattr(signal, name), handler)
    yield
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.fixture
def call_at(monkeypatch):
    """Let something happen at the n-th call of a step of the model."""

    def set_call(step_name, number, act):
        step = getattr(ImageClassifier, step_name)
        calls = iter(range(10_000))

        def stepping(self, *args, **kwargs):
            if next(calls) == number:
                act()
            return step(self, *args, **kwargs)

        monkeypatch.setattr(ImageClassifier, step_name, stepping)

    return set_call


def send(name):
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def run_in(folder, monkeypatch, *more):
    folder.mkdir()
    monkeypatch.chdir(folder)
    return more


# 24 pictures in batches of 4: 6 an epoch; 9 of validation in batches of 4: 3 a validation, 2 of a sanity check.
@pytest.mark.parametrize(
    ("name", "status", "step_name", "number", "accumulate", "interval"),
    [
        ("SIGINT", 130, "training_step", 2, 1, 1.0),
        ("SIGINT", 130, "training_step", 8, 4, 1.0),
        ("SIGTERM", 143, "training_step", 5, 1, 1.0),
        ("SIGTERM", 143, "training_step", 0, 3, 1.0),
        ("SIGUSR1", 143, "training_step", 11, 3, 0.5),
        ("SIGTERM", 143, "validation_step", 2, 1, 1.0),
        ("SIGHUP", 143, "validation_step", 3, 1, 0.5),
        ("SIGINT", 130, "validation_step", 7, 4, 1.0),
        ("SIGINT", 130, "validation_step", 3, 4, 0.5),  # within a window
    ],
)
def test_a_signal_saves_and_the_run_goes_on_exactly(
    root,
    in_tmp,
    network,  # noqa: F811
    call_at,
    monkeypatch,
    capfd,
    name,
    status,
    step_name,
    number,
    accumulate,
    interval,
):
    more = [
        "--data.eval_batch_size=4",
        f"--trainer.accumulate_grad_batches={accumulate}",
        f"--trainer.val_check_interval={interval}",
        "--checkpoint.every_minutes=null",
    ]
    (in_tmp / "whole").mkdir()
    (in_tmp / "parts").mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(root, *more) == 0
    monkeypatch.chdir(in_tmp / "parts")
    call_at(step_name, number, send(name))
    capfd.readouterr()
    before = signal.getsignal(signal.SIGINT)
    assert train(root, *more) == status
    assert signal.getsignal(signal.SIGINT) is before
    said = capfd.readouterr().err
    command = re.search(r"To go on: python cli.py (fit --ckpt_path (\S+))", said)
    assert command, said
    assert command.group(2).endswith("last.ckpt")
    assert main(command.group(1).split()) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")


def test_ctrl_c_twice_leaves_at_once(monkeypatch, capfd):
    left = []
    monkeypatch.setattr(stop_request.os, "_exit", left.append)
    request = StopRequest()
    request.listen()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert (request.reason, left) == ("Ctrl-C", [])
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        request.restore()
    assert left == [130]
    assert "once more leaves at once" in capfd.readouterr().err


def test_what_the_caller_ignores_stays_ignored(monkeypatch):
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    request = StopRequest()
    try:
        request.listen()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        request.restore()
        signal.signal(signal.SIGHUP, earlier)


def test_a_terminal_that_is_gone_is_no_error(monkeypatch):
    def gone(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stop_request.os, "write", gone)
    stop_request.say("SIGHUP")


def test_a_closing_console_waits_until_the_run_has_left():
    request = StopRequest()
    assert request._on_console_event(0) == 0  # Ctrl-C goes to its own handler
    answers = []
    console = threading.Thread(
        target=lambda: answers.append(request._on_console_event(CTRL_CLOSE_EVENT))
    )
    console.start()
    console.join(timeout=0.3)
    assert console.is_alive()
    assert (request.reason, request.status) == ("a closed console", 130)
    request.restore()
    console.join(timeout=5)
    assert answers == [1]


def test_a_run_without_checkpoints_says_so(root, in_tmp, network, call_at, capfd):  # noqa: F811
    call_at("training_step", 2, send("SIGTERM"))
    assert train(root, "--trainer.enable_checkpointing=false") == 143
    assert "nothing is saved" in capfd.readouterr().err


def test_a_last_save_that_fails_is_an_error(
    root,
    in_tmp,
    network,  # noqa: F811
    call_at,
    monkeypatch,
    capfd,
):
    def full(*args):
        raise OSError("No space left on device")

    assert train(root, "--checkpoint.every_minutes=null", "--trainer.max_epochs=1") == 0
    monkeypatch.setattr("imnet_pl.training.checkpoint_io.torch.save", full)
    call_at("training_step", 2, send("SIGINT"))
    assert main(["fit", "--resume", "--trainer.max_epochs=2"]) == 1
    assert "the last checkpoint is lost" in capfd.readouterr().err


def fail():
    raise RuntimeError("something broke")


# An exception at a validation's picture, between two steps, in the middle of a step.
@pytest.mark.parametrize(
    ("where", "number", "is_saved"),
    [("validation_step", 4, True), ("training_step", 8, False)],
)
def test_a_crash_says_from_where_to_go_on(
    root,
    in_tmp,
    network,  # noqa: F811
    call_at,
    monkeypatch,
    capfd,
    where,
    number,
    is_saved,
):
    more = ["--data.eval_batch_size=4", "--checkpoint.every_minutes=null"]
    (in_tmp / "whole").mkdir()
    (in_tmp / "parts").mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    assert train(root, *more) == 0
    monkeypatch.chdir(in_tmp / "parts")
    call_at(where, number, fail)
    capfd.readouterr()
    with pytest.raises(RuntimeError, match="something broke"):
        train(root, *more)
    said = capfd.readouterr().err
    command = re.search(r"To go on: python cli.py (fit --ckpt_path (\S+))", said)
    assert command, said
    name = "crash.ckpt" if is_saved else "last.ckpt"
    assert command.group(2) == f"{RUN}/checkpoints/{name}"
    assert main(command.group(1).split()) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")
    assert not (in_tmp / "parts" / RUN / "checkpoints" / "crash.ckpt").exists()


def test_a_picture_that_is_gone_in_training_costs_no_step(
    root,
    in_tmp,
    network,  # noqa: F811
    monkeypatch,
    capfd,
):
    (in_tmp / "whole").mkdir()
    (in_tmp / "parts").mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    more = ["--checkpoint.every_minutes=null"]
    assert train(root, *more) == 0
    monkeypatch.chdir(in_tmp / "parts")
    getitems = ImageDataset.__getitems__
    calls = iter(range(1000))

    def lose_a_batch(self, request):
        if next(calls) == 12:
            raise UserError("gone")
        return getitems(self, request)

    monkeypatch.setattr(ImageDataset, "__getitems__", lose_a_batch)
    assert train(root, *more) == 1
    said = capfd.readouterr().err
    assert "crash.ckpt" in said
    assert "error: gone" in said
    assert main(["fit", "--resume"]) == 0
    assert_same_run(in_tmp / "whole", in_tmp / "parts")


def launch(root, *more, devices=2):
    """Start the program as a user does, in the current folder."""
    args = fit_args(
        root,
        "--model.arch=resnet18",
        "--model.warmup_epochs=1",
        "--data.batch_size=2",
        "--trainer.max_epochs=8",
        "--trainer.log_every_n_steps=1",
        "--checkpoint.every_minutes=null",
        f"--trainer.devices={devices}",
        "--trainer.strategy=ddp",
        *more,
    )
    command = [sys.executable, str(REPO / "cli.py"), *args]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_rows(count):
    file = Path(RUN) / "metrics.csv"
    deadline = time.monotonic() + 120
    while not file.exists() or len(file.read_text().splitlines()) <= count:
        assert time.monotonic() < deadline, "the run does not start"
        time.sleep(0.05)


@pytest.mark.slow
def test_sigterm_to_one_of_two_ranks(root, in_tmp, monkeypatch):
    (in_tmp / "whole").mkdir()
    monkeypatch.chdir(in_tmp / "whole")
    whole = launch(root)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    for rank in (0, 1):
        (in_tmp / f"parts{rank}").mkdir()
        monkeypatch.chdir(in_tmp / f"parts{rank}")
        end_one_rank(root, rank)
        resumed = launch(root, "--resume")
        resumed.communicate(timeout=300)
        assert resumed.returncode == 0
        assert_same_run(in_tmp / "whole", in_tmp / f"parts{rank}")


def end_one_rank(root, rank):
    parts = launch(root)
    wait_for_rows(6)
    ranks = [psutil.Process(parts.pid)]
    ranks += [c for c in ranks[0].children() if "cli.py" in " ".join(c.cmdline())]
    assert len(ranks) == 2
    start = time.monotonic()
    ranks[rank].send_signal(signal.SIGTERM)
    _, said = parts.communicate(timeout=60)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive
    assert time.monotonic() - start < 30
    assert parts.returncode == 143, said
    assert said.count("To go on:") == 1
    files = sorted(p.name for p in (Path(RUN) / "checkpoints").iterdir())
    assert [f for f in files if not f.startswith(("best", "epoch_"))] == ["last.ckpt"]
    progress = read_contract(f"{RUN}/checkpoints/last.ckpt")["progress"]
    assert progress["steps"] < 48
