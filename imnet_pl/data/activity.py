"""What each thread of each worker process does now, for whoever waits for them."""

import threading
import time
from typing import Any, NamedTuple

import torch

from imnet_pl.data.shared_memory import new_shared

_IDLE = -1
_NOT_STARTED = -2


class Work(NamedTuple):
    """A picture that a thread reads or decodes.

    Args:
        position: Its position in the ImageIndex.
        seconds: For how long.
    """

    position: int
    seconds: float


class Activity:
    """A table that threads write to and another process reads: int64 [worker, thread, (position, since when)].

    Args:
        num_workers: Worker processes; 0: the threads are of this process.
        num_threads: Threads in each.
    """

    def __init__(self, num_workers: int, num_threads: int) -> None:
        # One row more: a batch of one picture is made in the main thread.
        shape = (max(1, num_workers), num_threads + 1, 2)
        self.table = (
            new_shared(shape, torch.int64)
            if num_workers
            else torch.empty(shape, dtype=torch.int64)
        )
        self.reset()
        self._begin(worker=0)

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.table = state["table"]
        self._begin(worker=0)

    def _begin(self, worker: int) -> None:
        self.worker = worker
        self._lock = threading.Lock()
        self._rows: dict[int, memoryview] = {}

    def reset(self) -> None:
        """Note that no worker process has started."""
        self.table.fill_(_NOT_STARTED)

    def enter(self, worker: int) -> None:
        """Say in a worker process that it has started, and which it is."""
        self._begin(worker)
        self.table[worker, :, 0] = _IDLE

    def start(self, position: int) -> None:
        """Note that this thread begins a picture; takes half a microsecond."""
        row = self._rows.get(threading.get_ident()) or self._claim_row()
        row[1] = time.monotonic_ns()
        row[0] = position

    def end(self) -> None:
        """Note that this thread has ended its picture."""
        self._rows[threading.get_ident()][0] = _IDLE

    def _claim_row(self) -> memoryview:
        """Return the row of a thread that has none yet."""
        with self._lock:
            # A loader may be used from one thread after another: rows of those that are gone are used again.
            number = len(self._rows) % self.table.shape[1]
            row = self.table[self.worker, number].numpy().data
            self._rows[threading.get_ident()] = row
        return row

    def has_started(self, worker: int) -> bool:
        """Tell whether a worker process has come so far that it can make batches."""
        return bool((self.table[worker, :, 0] != _NOT_STARTED).any())

    def under_way(self, worker: int) -> list[Work]:
        """Return what the threads of a worker process do, the oldest first."""
        now = time.monotonic_ns()
        rows = self.table[worker].tolist()
        work = [Work(at, (now - since) / 1e9) for at, since in rows if at >= 0]
        return sorted(work, key=lambda one: -one.seconds)
