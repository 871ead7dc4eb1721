"""Ranks that the program starts itself: by each of its names, and what becomes of them when one dies."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import REPO, fit_args
from nodes import PROBE, wait_until_held

from imnet_pl.training.launcher import FIRST_RANK_PID, GRACE_SEC

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="signals of POSIX"),
]

TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]
LIMIT_SEC = 240
CONSOLE_SCRIPT = """import sys
from imnet_pl.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


def start(command, folder, **env):
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_started_by(process):
    """Return the ranks that a process has started, when they are there."""
    end = time.monotonic() + LIMIT_SEC
    while time.monotonic() < end and process.poll() is None:
        ranks = [x for x in psutil.Process(process.pid).children() if is_rank(x)]
        if ranks:
            return ranks
        time.sleep(0.05)
    raise AssertionError(process.communicate())


def is_rank(process):
    try:
        return FIRST_RANK_PID in process.environ()
    except psutil.Error:
        return False


@pytest.fixture
def console_script(tmp_path):
    """What pip makes of the program's name on Linux."""
    script = tmp_path / "imnet-pl"
    script.write_text(CONSOLE_SCRIPT)
    return script


@pytest.mark.parametrize("name", ["cli.py", "module", "console script", "spawn"])
def test_every_name_of_the_program_starts_two_ranks(name, root, in_tmp, console_script):
    names = {"cli.py": [str(REPO / "cli.py")], "module": ["-m", "imnet_pl"]}
    command = names.get(name, [str(console_script)])
    more = ["--trainer.strategy=ddp_spawn"] if name == "spawn" else []
    short = ["--model.arch=resnet18", "--trainer.max_epochs=1", "--data.batch_size=4"]
    process = start([*command, *fit_args(root, *short, *TWO, *more)], in_tmp)
    shown = process.communicate(timeout=LIMIT_SEC)[0]
    assert process.returncode == 0, shown
    assert "a step has 8 pictures: 4 a rank x 2 ranks" in shown
    assert len(re.findall(r"^epoch 1/1", shown, re.MULTILINE)) == 1
    assert "Grad strides do not match" not in shown
    assert Path("runs/run/version_0/checkpoints/last.ckpt").is_file()


def start_held(root, folder):
    """Start two ranks that stand before their second step; return the process and its other rank."""
    args = fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=1", *TWO)
    process = start([str(PROBE), *args], folder, PROBE_HOLD="1")
    (rank,) = ranks_started_by(process)
    wait_until_held([process], [folder])
    return process, rank


def test_the_first_rank_says_that_another_was_killed_and_ends(root, in_tmp):
    process, rank = start_held(root, in_tmp)
    rank.kill()
    Path("go").touch()
    shown = process.communicate(timeout=LIMIT_SEC)[0]
    assert process.returncode == 1
    assert f"local rank 1 (process {rank.pid}) was killed by SIGKILL" in shown
    assert "error: rank 1 " in shown


def test_a_first_rank_that_waits_in_vain_is_ended(root, in_tmp):
    process, rank = start_held(root, in_tmp)
    rank.kill()  # the first one stays before its step
    shown = process.communicate(timeout=LIMIT_SEC)[0]
    assert process.returncode == 1
    assert f"end in {GRACE_SEC:g} s at the latest" in shown


@pytest.mark.parametrize("when", ["starting", "training"])
def test_other_ranks_end_when_the_first_is_killed(when, root, in_tmp):
    if when == "training":
        process, rank = start_held(root, in_tmp)
    else:
        args = fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=1", *TWO)
        process = start([str(PROBE), *args], in_tmp)
        (rank,) = ranks_started_by(process)
    process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs([rank], timeout=LIMIT_SEC)
    assert gone == [rank]
    assert alive == []
    shown = process.communicate(timeout=LIMIT_SEC)[0]
    assert f"local rank 1 (process {rank.pid}) ends: the first rank" in shown
