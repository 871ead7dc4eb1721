"""A pack that is killed again and again ends with the bytes of one that was not."""

import os
import random
import subprocess
import sys
import time

import psutil
import pytest
from conftest import REPO, write_jpeg

KILLS = 5


def start(root, to):
    """Start packing in processes of its own."""
    args = [f"--data.root={root}", f"--to={to}", "--short_side=64", "--shard_gb=5e-5"]
    command = [sys.executable, str(REPO / "cli.py"), "pack", *args, "--num_processes=2"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def size_of(folder):
    """Return the bytes of the tar files, finished or not, of a folder that changes."""
    total = 0
    for file in folder.glob("*.tar*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def tree(folder):
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in files}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kill -9 is a POSIX signal")
def test_packing_that_is_killed_at_random_ends_with_the_same_bytes(tmp_path):
    root = tmp_path / "in"
    for i in range(600):
        split = "val" if i % 6 == 5 else "train"
        write_jpeg(root / split / f"n{i % 3}" / f"{i}.jpg", i, (90, 120))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(root, whole)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    draw = random.Random(0)
    for point in sorted(draw.sample(range(size_of(whole)), KILLS)):
        process = start(root, broken)
        while size_of(broken) < point:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=60)
        psutil.wait_procs(workers, timeout=60)  # they end by themselves
        assert not any(worker.is_running() for worker in workers)
        assert not (broken / "pack.json").exists()
    process = start(root, broken)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert tree(broken) == tree(whole)
