"""torch's DataLoader, with workers that end soon and whose end is noticed while they are waited for."""

import multiprocessing.connection
import multiprocessing.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from imnet_pl.data.dataset import ImageDataset, MadeBatch
from imnet_pl.data.worker_process import init_worker

_POLL_SEC = 0.5
_SECONDS_TO_END = 2


class Stalled(RuntimeError):
    """The workers have delivered nothing for too long."""


class WorkerDied(RuntimeError):
    """A worker process is gone."""


class WorkerPool(DataLoader[MadeBatch]):
    """Worker processes that start at the first batch and stay until ``end``.

    Args:
        dataset: Makes the batches.
        requests: The batches of a pass.
        num_workers: Worker processes.
        prefetch_factor: Batches that each prepares ahead.
        pin_memory: Copy batches to page-locked memory.
        stall_sec: Seconds of waiting after which ``Stalled`` is raised.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        requests: Any,
        num_workers: int,
        prefetch_factor: int,
        pin_memory: bool,
        stall_sec: float,
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=requests,
            num_workers=num_workers,
            collate_fn=_unchanged,  # type: ignore[arg-type]
            worker_init_fn=init_worker,
            multiprocessing_context="spawn",
            persistent_workers=True,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            generator=torch.Generator(),
        )
        self.stall_sec = stall_sec

    def check_worker_number_rationality(self) -> None:
        """Say nothing, where torch warns of more workers than cores: the loader's plan has said so."""

    def _get_iterator(self) -> "_WatchedIterator":
        # Made here, this folder holds the sockets of all workers, also of those that are killed.
        multiprocessing.util.get_temp_dir()
        with _no_main_without_file():
            return _WatchedIterator(self)

    @property
    def workers(self) -> list[BaseProcess]:
        """The processes, none before the first batch."""
        return [] if self._iterator is None else list(self._iterator._workers)  # type: ignore[attr-defined]

    @property
    def num_ready(self) -> int:
        """Batches that have come before their turn."""
        if self._iterator is None:
            return 0
        return self._iterator.num_ready()  # type: ignore[attr-defined, no-any-return]

    def dead_workers(self, wait_sec: float = 0) -> list[int]:
        """Return the numbers of the workers that are gone, waiting so long for the first."""
        by_sentinel = {worker.sentinel: worker for worker in self.workers}
        if by_sentinel:
            for ended in multiprocessing.connection.wait(list(by_sentinel), wait_sec):
                # Its files are closed, by which this is known, before its status is there.
                by_sentinel[ended].join(timeout=_SECONDS_TO_END)  # type: ignore[index]
        return [i for i, w in enumerate(self.workers) if w.exitcode is not None]

    def end(self, at_once: bool = False) -> None:
        """Let the worker processes end by themselves, and kill those that do not within two seconds."""
        if self._iterator is not None:
            if at_once:
                for worker in self.workers:
                    worker.kill()
            self._iterator._shutdown_workers()  # type: ignore[attr-defined]
            self._iterator = None


class _WatchedIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator; raises for a dead worker only while it waits, not in the middle of a training step."""

    def __init__(self, loader: WorkerPool) -> None:
        self._stall_sec = loader.stall_sec
        super().__init__(loader)
        _remove_worker_pids(id(self))
        self._worker_pids_set = False

    def num_ready(self) -> int:
        """Return how many batches have come before their turn."""
        return sum(len(task) == 2 for task in list(self._task_info.values()))

    def _get_data(self) -> tuple[int, MadeBatch]:
        started = time.monotonic()
        with self._deaths_raise():
            while True:
                found, data = self._try_get_data(_POLL_SEC)  # type: ignore[no-untyped-call]
                if found:
                    return data  # type: ignore[no-any-return]
                if time.monotonic() - started >= self._stall_sec:
                    raise Stalled

    @contextmanager
    def _deaths_raise(self) -> Iterator[None]:
        """Let the end of a worker raise, even while a message of it is half read."""
        pids = tuple(worker.pid for worker in self._workers if worker.pid)
        _set_worker_pids(id(self), pids)
        try:
            if any(worker.exitcode is not None for worker in self._workers):
                raise WorkerDied
            yield
        finally:
            _remove_worker_pids(id(self))

    def _shutdown_workers(self) -> None:
        """Tell all workers at once to end; torch tells and awaits one after another, up to ten seconds each."""
        workers = getattr(self, "_workers", [])
        if workers and not self._shutdown:
            self._workers_done_event.set()
            for queue in self._index_queues:
                queue.put(None)
            deadline = time.monotonic() + _SECONDS_TO_END
            alive = {worker.sentinel: worker for worker in workers}
            while alive and (left := deadline - time.monotonic()) > 0:
                for sentinel in multiprocessing.connection.wait(list(alive), left):
                    del alive[sentinel]
            for worker in alive.values():
                worker.kill()
        super()._shutdown_workers()


@contextmanager
def _no_main_without_file() -> Iterator[None]:
    """Hide the name of a script that is no file, as one read from stdin: a worker process would look for it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def _unchanged(made: MadeBatch) -> MadeBatch:
    return made
