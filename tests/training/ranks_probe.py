"""Several ranks of the command line on the CPU, forked from one process: what they import is loaded once.

``python ranks_probe.py JOB.json``, where a job is ``{"ranks": 2, "commands": [[...], ...]}``: every rank runs the commands
in turn, in the working folder. Its lines go to ``rank0.log`` and so on, under ``== 0``, ``== 1``, ..; the exit status is 1
if a command fails. More keys: ``network`` is a name from below, ``audit`` notes in ``written.txt`` which rank opens which
file of the folder for writing.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path

from torch import nn

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def build_linear(arch, num_classes):
    """Return a network without BatchNorm."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes)
    )


def build_normed(arch, num_classes):
    """Return a small network with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


def note_files(folder, notes, rank):
    """Note every file in a folder that this process opens for writing."""

    def hook(event, args):
        if event != "open" or not isinstance(args[0], str | bytes | os.PathLike):
            return
        path = Path(os.fsdecode(args[0])).absolute()
        is_written = bool(args[2] & WRITING) or set(args[1] or "") & set("wax+")
        if is_written and path.is_relative_to(folder):
            os.write(notes, f"{rank} {path.relative_to(folder)}\n".encode())

    sys.addaudithook(hook)


def run_rank(rank, job, port):
    """Run the commands as a rank; return the exit status."""
    from lightning.pytorch.utilities import rank_zero_only

    from imnet_pl.cli import main
    from imnet_pl.model import classifier

    log = os.open(f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    notes = os.open("written.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    if job["ranks"] > 1:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= place | {"NODE_RANK": "0", "LOCAL_RANK": str(rank)}
        rank_zero_only.rank = rank
    if name := job.get("network"):
        classifier.build_network = globals()[f"build_{name}"]
    if job.get("audit"):
        note_files(Path.cwd(), notes, rank)
    status = 0
    for i, args in enumerate(job["commands"]):
        os.write(log, f"== {i}\n".encode())
        status = status or main(args)
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def fork_rank(rank, job, port):
    """Start a rank and return its process."""
    if pid := os.fork():
        return pid
    status = 70
    try:
        status = run_rank(rank, job, port)
    except BaseException:  # noqa: BLE001 - nothing may get back into the code that forked
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    import imnet_pl.lightning_cli  # noqa: F401 - loaded once for all ranks

    description = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()[1]
    pids = [fork_rank(rank, description, at) for rank in range(description["ranks"])]
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(any(ended))
