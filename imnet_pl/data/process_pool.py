"""Work on many pictures in spawned processes, one a core, that a decoder may crash."""

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from imnet_pl.core.child_process import end_with_parent
from imnet_pl.core.machine import usable_cores

CHUNK = 64  # rows that a process takes at a time
_CHUNKS_AHEAD = 3  # of each process: its own, and what waits for it or for its turn

R = TypeVar("R")


@dataclass(frozen=True)
class Job(Generic[R]):
    """What is done with each row; it goes to every process once.

    Args:
        work: A function of a module: (shared, row) -> result.
        shared: What it needs, such as an index.
        crashed: The result of a row that ends its process.
        prepare: Is called once in each process.
    """

    work: Callable[[Any, int], R]
    shared: Any
    crashed: R
    prepare: Callable[[], None] | None = None


def map_rows(
    job: Job[R],
    rows: Sequence[int],
    num_processes: int | None = None,
    in_order: bool = False,
    chunk: int = CHUNK,
) -> Iterator[tuple[Sequence[int], list[R]]]:
    """Yield (some rows, their results) until all rows are done.

    Args:
        job: What is done.
        rows: The rows.
        num_processes: Default: one for each core that this process may use. 0: none but this.
        in_order: Yield them in order, else as they come.
        chunk: Rows that a process takes at a time; one that ends its process is then tried alone.
    """
    chunks = (rows[start : start + chunk] for start in range(0, len(rows), chunk))
    if num_processes is None:
        num_processes = min(usable_cores(), -(-len(rows) // chunk))
    if num_processes < 2:
        for some in chunks:
            yield some, [job.work(job.shared, row) for row in some]
        return
    while True:
        under_way: list[Sequence[int]] = []
        try:
            yield from _map_in_pool(job, chunks, num_processes, in_order, under_way)
            return
        except BrokenProcessPool:
            lost = under_way
        for some in lost:
            yield some, [_work_alone(job, row) for row in some]


def _map_in_pool(
    job: Job[R],
    chunks: Iterator[Sequence[int]],
    num_processes: int,
    in_order: bool,
    under_way: list[Sequence[int]],
) -> Iterator[tuple[Sequence[int], list[R]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, _keep, (job,)) as pool:
        waiting: dict[Future[list[R]], Sequence[int]] = {}
        while True:
            for rows in islice(chunks, _CHUNKS_AHEAD * num_processes - len(waiting)):
                under_way.append(rows)
                waiting[pool.submit(_work_on, rows)] = rows
            if not waiting:
                return
            done = {next(iter(waiting))}
            if not in_order:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                results = future.result()
                rows = waiting.pop(future)
                under_way.remove(rows)
                yield rows, results


_job: Job[Any] | None = None  # of a worker process


def _keep(job: Job[Any]) -> None:
    global _job
    _job = job
    # Ctrl-C is for the main process; without it, even killed, nothing would end this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    warnings.filterwarnings("ignore", module="PIL")  # of damage that it can cope with
    if job.prepare is not None:
        job.prepare()


def _work_on(rows: Sequence[int]) -> list[Any]:
    assert _job is not None
    return [_job.work(_job.shared, row) for row in rows]


def _work_alone(job: Job[R], row: int) -> R:
    """Work on a row in a process of its own, which it may end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(job.work, job.shared, row).result()
        except BrokenProcessPool:
            return job.crashed
