"""A readable checkpoint remains when a save is killed, meets a full disk, a lock or another drive: the short form."""

import subprocess
import sys

from conftest import REPO


def test_a_checkpoint_survives_every_fault():
    script = REPO / "benchmarks" / "save_faults.py"
    result = subprocess.run(
        [sys.executable, str(script), "--n=12", "--mib=2"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["all", "12", "12"] in lines
    assert sum(int(line[-1]) for line in lines if line[:1] == ["killed"]) >= 3
