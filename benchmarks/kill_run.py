"""A run of ``benchmarks/kill.py``: the real command line in forked processes, one a rank."""

import atexit
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kill_marker import Marker, mark

HANGS_SEC = 120.0
STRETCH_SEC = 0.005


@dataclass
class Run:
    """One start of the command line: its processes, and the marker of each rank."""

    pids: list[int]
    markers: list[Marker]
    status: dict[int, int] = field(default_factory=dict)

    def poll(self) -> bool:
        """Collect the processes that have ended; tell whether all have."""
        for pid in self.pids:
            if pid not in self.status and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                self.status[pid] = os.waitstatus_to_exitcode(ended[1])
        return len(self.status) == len(self.pids)

    def wait(self, limit_sec: float) -> bool:
        """Wait for the end of all processes; tell whether it came in time."""
        end = time.monotonic() + limit_sec
        while not self.poll():
            if time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def kill(self, ranks: tuple[int, ...]) -> None:
        """End processes as a power cut does."""
        alive = [
            self.pids[rank] for rank in ranks if self.pids[rank] not in self.status
        ]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        for pid in alive:
            self.status[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start_run(args: list[str], folder: Path, ranks: int, stretched: str = "") -> Run:
    """Start the command line in a folder; a phase that is wanted and short is stretched."""
    number = len(list(folder.glob("start_*_rank0.log")))
    port = free_port() if ranks > 1 else 0
    run = Run([], [])
    for rank in range(ranks):
        name = f"start_{number}_rank{rank}"
        marker = Marker(folder / f"{name}.marker")
        prepare = partial(mark, marker, stretched, STRETCH_SEC)
        place = (rank, ranks, port)
        run.pids.append(fork_run(args, folder, folder / f"{name}.log", place, prepare))
        run.markers.append(marker)
    return run


def wait_until(run: Run, is_there: Callable[[Marker], bool]) -> bool:
    """Wait until the first rank is somewhere; tell whether it came there before it ended."""
    marker, polls = run.markers[0], 0
    while not is_there(marker):
        polls += 1
        if polls % 50 == 0 and run.poll():
            return False
        time.sleep(0.0001)
    return True


def finish_run(run: Run, folder: Path) -> None:
    """Wait for a run that is not killed.

    Raises:
        RuntimeError: It fails or hangs.
    """
    is_over = run.wait(HANGS_SEC)
    if not is_over:
        run.kill(tuple(range(len(run.pids))))
    if not is_over or any(run.status.values()):
        logs = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        tail = "\n".join(logs[-1].read_text(encoding="utf-8").splitlines()[-15:])
        what = "fails" if is_over else "hangs"
        raise RuntimeError(f"a run that should end well {what}, {logs[-1]}:\n{tail}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fork_run(
    args: list[str],
    folder: Path,
    log: Path,
    place: tuple[int, int, int],
    prepare: Callable[[], None],
) -> int:
    """Start the command line in a forked process and return the process's id.

    Args:
        args: The command line.
        folder: Its working folder.
        log: File for what it prints; it is added to.
        place: (rank, number of ranks, port of the first).
        prepare: Called in the process before.
    """
    if pid := os.fork():
        return pid
    status = 70
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.chdir(folder)
        if place[1] > 1:
            _be_rank(*place)
        prepare()
        from imnet_pl.cli import main

        status = main(args)
    except BaseException:  # noqa: BLE001 - nothing may get back into the code that forked
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # workers of loaders end there
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _be_rank(rank: int, world_size: int, port: int) -> None:
    """Set what Lightning asks the environment for where it does not start the ranks itself."""
    from lightning.pytorch.utilities import rank_zero_only

    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "NODE_RANK": "0",
        "LOCAL_RANK": str(rank),
        "RANK": str(rank),
    }
    rank_zero_only.rank = rank  # type: ignore[attr-defined]
