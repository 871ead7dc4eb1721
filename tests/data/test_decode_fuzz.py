"""Thousands of damaged pictures: each is a picture or an error with its path."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("mutations.py")
REPO = Path(__file__).parents[2]


def read_damaged(tmp_path, count, seed, *originals):
    """Return how many of ``count`` damaged pictures were what; a crash or a hang fails, and leaves its file."""
    command = [sys.executable, SCRIPT, count, seed, tmp_path, *originals]
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["fine"] + counts["partial"] + counts["error"] == count
    assert min(counts["fine"], counts["partial"], counts["error"]) > 0
    return counts


def test_300_damaged_pictures(tmp_path):  # S12
    read_damaged(tmp_path, 300, 1)


def test_300_damaged_odd_pictures(tmp_path, assets):  # S12
    read_damaged(tmp_path, 300, 2, assets / "odd-images", 200_000)


@pytest.mark.slow
def test_5000_damaged_pictures(tmp_path):  # S12
    read_damaged(tmp_path, 5000, 3)


@pytest.mark.slow
def test_5000_damaged_odd_pictures(tmp_path, assets):  # S12
    read_damaged(tmp_path, 5000, 4, assets / "odd-images", 2_000_000)
