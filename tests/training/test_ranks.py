"""Two ranks on the CPU: the figures of one, whatever the number of pictures."""

import re
import subprocess
import sys

import pytest
from conftest import CLASSES, REPO, fit_args, write_classes

from imnet_pl.cli import main

CKPT = "runs/run/version_0/checkpoints/best.ckpt"
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]


def run(*args):
    command = [sys.executable, str(REPO / "cli.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_one_picture_for_two_ranks_and_an_odd_number(root, in_tmp, capfd):
    """A rank without pictures takes part in every batch, and counts nothing."""
    write_classes(root.parent / "one" / "val", {CLASSES[0]: 1})
    (root.parent / "one" / "train").symlink_to(root / "train")
    short = ["--model.arch=resnet18", "--data.batch_size=4", "--trainer.max_epochs=1"]
    shown = run(*fit_args(root.parent / "one", *short, *TWO))
    assert re.search(r"top1 [01]\.0000 .* n 1 ", shown)
    for more in ([f"--data.root={root}", "--data.eval_batch_size=2"], []):
        capfd.readouterr()
        args = ["validate", "--ckpt_path", CKPT, *more]
        assert main(args) == 0
        alone = capfd.readouterr().out
        together = run(*args, *TWO)
        assert _scores(together) == pytest.approx(_scores(alone), abs=2e-6)


def _scores(shown):
    return [float(x) for x in re.findall(r"(?:loss|top1|n) ([0-9.]+)", shown)]
