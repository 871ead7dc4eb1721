"""kill -9 at random moments, 1 and 2 ranks: the short form of benchmarks/kill.py."""

import os
import subprocess
import sys

import pytest
from conftest import REPO


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the trials are forked")
def test_killed_runs_go_on_as_if_nothing_had_been(tmp_path):
    command = [sys.executable, str(REPO / "benchmarks" / "kill.py"), "--n", "10"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert "10 of 10 bitwise equal" in done.stdout, done.stdout + done.stderr
    assert "2 ranks" in done.stdout
    assert done.returncode == 0
