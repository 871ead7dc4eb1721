"""Does a readable checkpoint remain when a save is disturbed?

python benchmarks/save_faults.py [--n 200] [--seed 0] [--mib 4]

Each trial has a good checkpoint of step k, and disturbs a save of step k + 1: kill -9 at a random moment of a
process that saves again and again, a full disk, a locked file, another drive. Afterwards the checkpoint must be
whole and not older than the last good save; where the fault can be overcome, it must be the new one. Exit status 1
unless all survive. Killing a process shows nothing about a power cut, against which the save is flushed.
"""

import argparse
import contextlib
import errno
import logging
import mmap
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from imnet_pl.core import files
from imnet_pl.core.errors import UserError
from imnet_pl.training import checkpoint_io
from imnet_pl.training.checkpoint_io import SafeCheckpointIO
from imnet_pl.training.runs import read_checkpoint

PHASES = ("write", "fsync", "verify", "replace")
ROOM_MIB = 16  # that a save wants to stay free
_DONE_AT = 8  # where the marker of a process that saves has its last finished step


@dataclass(frozen=True)
class Setup:
    """Where trials take place, and how large their checkpoints are."""

    here: Path
    small_disk: Path | None  # a drive of its own that can be filled
    other_drive: Path | None
    mib: int
    draw: random.Random


@dataclass(frozen=True)
class Trial:
    """What came of a trial: what went wrong, or None; and where a process was killed."""

    problem: str | None
    phase: str = ""


def content_of(step: int, mib: int) -> dict[str, Any]:
    """Return a checkpoint in which every number is its step."""
    weights = torch.full((mib * 2**18,), float(step))
    return {"global_step": step, "state_dict": {"weights": weights}}


def save(target: Path, step: int, mib: int) -> str | None:
    """Save as a run does; return why it failed, or None."""
    writer = SafeCheckpointIO()
    writer.save_checkpoint(content_of(step, mib), target)
    return writer.failure


def start(setup: Setup, folder: Path) -> tuple[Path, int]:
    """Return a good checkpoint in an empty folder, and its step."""
    shutil.rmtree(folder, ignore_errors=True)
    target, step = folder / "last.ckpt", setup.draw.randrange(1, 1000)
    assert save(target, step, setup.mib) is None
    return target, step


def find_problem(target: Path, least: int) -> str | None:
    """Return what is wrong with a checkpoint that must be whole and at least of a step."""
    try:
        content = read_checkpoint(target)
    except UserError as error:
        return str(error)
    step = content["global_step"]
    if not bool((content["state_dict"]["weights"] == step).all()):
        return f"step {step} holds numbers of another step"
    return f"step {step} is left, not {least}" if step < least else None


def marked(
    marker: mmap.mmap, place: int, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that says in a byte of the marker when it runs."""

    def run(*args: Any, **kwargs: Any) -> Any:
        marker[place] = 1
        try:
            return function(*args, **kwargs)
        finally:
            marker[place] = 0

    return run


def open_marker(path: Path) -> mmap.mmap:
    """Return memory that outlives a killed process."""
    with path.open("rb+") as file:
        return mmap.mmap(file.fileno(), 0)


def save_forever(target: Path, marker_path: Path, step: int, mib: int) -> None:
    """Save one step after the other until this process is killed."""
    marker = open_marker(marker_path)
    functions = (
        (torch, "save"),
        (os, "fsync"),
        (checkpoint_io, "verify_archive"),
        (checkpoint_io, "replace_file"),
    )
    for i, (module, name) in enumerate(functions):
        setattr(module, name, marked(marker, i, getattr(module, name)))
    for number in count(step + 1):
        assert save(target, number, mib) is None
        struct.pack_into("q", marker, _DONE_AT, number)


def kill_while_saving(setup: Setup) -> Trial:
    """Kill a process that saves: at any moment, or soon after a phase of a save began."""
    target, step = start(setup, setup.here / "kill")
    marker_path = setup.here / "marker"
    marker_path.write_bytes(struct.pack("qq", 0, step))
    marker = open_marker(marker_path)
    # A forked process has torch already.
    has_fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if has_fork else "spawn")
    process = context.Process(  # type: ignore[attr-defined]
        target=save_forever, args=(target, marker_path, step, setup.mib), daemon=True
    )
    process.start()
    phase = setup.draw.choice((None, *PHASES))
    first = step + setup.draw.randrange(1, 4)
    wait_until(lambda: last_done(marker) >= first, process)
    if phase is None:
        time.sleep(setup.draw.uniform(0, 0.1))
    else:
        wait_until(lambda: bool(marker[PHASES.index(phase)]), process)
        time.sleep(setup.draw.choice((0, setup.draw.uniform(0, 0.004))))
    process.kill()
    process.join()
    running = [name for name, byte in zip(PHASES, marker[:4], strict=True) if byte]
    # The folder is flushed too, within the phase that replaces.
    hit = "replace" if "replace" in running else " + ".join(running)
    done = last_done(marker)
    marker.close()
    # What the killed process left must not disturb the next save.
    problem = find_problem(target, done) or save(target, done + 2, setup.mib)
    return Trial(problem or find_problem(target, done + 2), hit or "no save")


def last_done(marker: mmap.mmap) -> int:
    """Return the last step that a process says it has saved."""
    return int(struct.unpack_from("q", marker, _DONE_AT)[0])


def wait_until(is_so: Callable[[], bool], process: Any) -> None:
    """Wait for what a process does; raise if it ends or takes more than a minute."""
    end = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > end or not process.is_alive():
            raise RuntimeError("the process that saves does not go on")
        time.sleep(0)


@contextlib.contextmanager
def filled(disk: Path, free: int) -> Iterator[None]:
    """Fill a drive but for some bytes."""
    filler = disk / "filler"
    try:
        left = shutil.disk_usage(disk).free - free
        with filler.open("wb") as file:
            while left > 0:
                left -= file.write(bytes(min(left, 2**20)))
        yield
    finally:
        filler.unlink()


class FullDisk:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: Any, free: int) -> None:
        self.file, self.free = file, free

    def write(self, data: Any) -> int:
        """Write, or raise as a full disk does."""
        self.free -= len(data)
        if self.free < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data))


def full_before(setup: Setup) -> Trial:
    """Let the disk have too little room, which the save sees before it writes."""
    target, step = start(setup, (setup.small_disk or setup.here) / "full")
    free = setup.draw.randrange((setup.mib + ROOM_MIB) * 2**20)
    with contextlib.ExitStack() as stack:
        if setup.small_disk:
            stack.enter_context(filled(setup.small_disk, free))
        else:
            usage = shutil.disk_usage(setup.here)._replace(free=free)
            stack.enter_context(mock.patch("shutil.disk_usage", return_value=usage))
        failure = save(target, step + 1, setup.mib)
    return judge(target, step, failure, "are needed")


def full_within(setup: Setup) -> Trial:
    """Let the disk be full at a random byte of the save, after the check for room."""
    target, step = start(setup, (setup.small_disk or setup.here) / "full")
    free = setup.draw.randrange(setup.mib * 2**20)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(checkpoint_io, "require_space"))
        if setup.small_disk:
            stack.enter_context(filled(setup.small_disk, free))
        else:
            write = torch.save
            stack.enter_context(
                mock.patch("torch.save", lambda c, f: write(c, FullDisk(f, free)))
            )
        failure = save(target, step + 1, setup.mib)
    return judge(target, step, failure, "could not be written")


def judge(target: Path, step: int, failure: str | None, expected: str) -> Trial:
    """Return a trial's outcome where the save must fail, say why, and leave nothing behind."""
    if expected not in (failure or ""):
        return Trial(f"the save did not fail as it should: {failure}")
    if len(list(target.parent.iterdir())) > 1:
        return Trial("a part of the failed save is left")
    return Trial(find_problem(target, step))


def locked(setup: Setup, times: int) -> Trial:
    """Let the checkpoint be locked, as by a virus scanner."""
    target, step = start(setup, setup.here / "locked")
    calls, replace = count(), Path.replace

    def replace_or_not(self: Path, other: Path) -> Path:
        if next(calls) < times:
            raise PermissionError(errno.EACCES, "used by another process")
        return replace(self, other)

    with (
        mock.patch.object(Path, "replace", replace_or_not),
        mock.patch.object(files, "_RETRY_SECS", [0.001] * len(files._RETRY_SECS)),
    ):
        failure = save(target, step + 1, setup.mib)
    tried = next(calls)
    if times == 1:
        problem = failure or find_problem(target, step + 1)
        return Trial(problem if tried == 2 else "the file was not locked")
    return judge(target, step, failure, "used by another process")


def on_other_drive(setup: Setup, is_link: bool) -> Trial:
    """Save to another drive than the temporary and the working folder's, maybe by a link to it."""
    assert setup.other_drive
    folder = setup.other_drive / "drive"
    start(setup, folder)
    if is_link:
        link = setup.here / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(folder, target_is_directory=True)
        folder = link
    target = folder / "last.ckpt"
    step = read_checkpoint(target)["global_step"]
    failure = save(target, step + 1, setup.mib)
    return Trial(failure or find_problem(target, step + 1))


KINDS: dict[str, Callable[[Setup], Trial]] = {
    "kill -9": kill_while_saving,
    "disk full, seen before": full_before,
    "locked once": lambda setup: locked(setup, 1),
    "other drive": lambda setup: on_other_drive(setup, is_link=False),
    "disk full, while writing": full_within,
    "locked always": lambda setup: locked(setup, 10**6),
    "other drive, by a link": lambda setup: on_other_drive(setup, is_link=True),
}
# As many of each kind of fault: kills stand here twice, since the other kinds come in two forms.
ROTATION = (*list(KINDS)[:4], "kill -9", *list(KINDS)[4:])


@contextlib.contextmanager
def mounted_disk(folder: Path, mib: int) -> Iterator[Path | None]:
    """Mount a small drive in memory where this user may; else give None."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    is_root = sys.platform == "linux" and os.geteuid() == 0
    if not is_root or subprocess.run(["mount", *options], check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def prepared(mib: int, seed: int) -> Iterator[Setup]:
    """Give the places of the trials, and remove them."""
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        size = 3 * (mib + 1) + ROOM_MIB
        disk = stack.enter_context(mounted_disk(here / "disk", size))
        used = {here.stat().st_dev, Path.cwd().stat().st_dev}
        other, memory = disk, Path("/dev/shm")
        if other is None and memory.is_dir() and memory.stat().st_dev not in used:
            other = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        yield Setup(here, disk, other, mib, random.Random(seed))


def run_trials(setup: Setup, n: int) -> dict[str, list[Trial]]:
    """Return the trials by kind."""
    names = [x for x in ROTATION if setup.other_drive or "drive" not in x]
    trials: dict[str, list[Trial]] = {name: [] for name in KINDS if name in names}
    for i, name in enumerate(islice(cycle(names), n)):
        trial = KINDS[name](setup)
        trials[name].append(trial)
        if trial.problem:
            print(f"trial {i}, {name} {trial.phase}: {trial.problem}")
    return trials


def main() -> int:
    """Print a table of the trials; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=200, help="Trials of all kinds.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mib", type=int, default=4, help="Size of a checkpoint.")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # threads do not live on in a forked process
    with prepared(args.mib, args.seed) as setup:
        print(f"disk full: {'a small tmpfs' if setup.small_disk else 'simulated'}")
        print(f"other drive: {setup.other_drive or 'none here, left out'}")
        trials = run_trials(setup, args.n)
    survived = {
        name: sum(trial.problem is None for trial in found)
        for name, found in trials.items()
    }
    print(f"\n{'fault':26} trials  survived")
    for name, found in trials.items():
        print(f"{name:26} {len(found):6}  {survived[name]:8}")
    total = sum(survived.values())
    print(f"{'all':26} {args.n:6}  {total:8}\n")
    hits = Counter(trial.phase for trial in trials["kill -9"])
    for phase, number in sorted(hits.items()):
        print(f"killed in {phase:16} {number:6}")
    return int(total < args.n)


if __name__ == "__main__":
    sys.exit(main())
