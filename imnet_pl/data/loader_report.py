"""What is said when worker processes deliver nothing, can not be started, or are gone."""

import errno
import signal

from imnet_pl.core.cgroup import Cgroups
from imnet_pl.core.errors import some_of
from imnet_pl.core.machine import (
    free_memory,
    free_shared_memory,
    num_open_files,
    open_file_limit,
)
from imnet_pl.data.dataset import ImageDataset
from imnet_pl.data.worker_pool import WorkerPool
from imnet_pl.data.worker_process import NO_MAIN_GUARD, NO_MAIN_GUARD_STATUS

_MOST_WORKERS = 4
_MOST_PICTURES = 3
_MIB = 2**20
_NO_PAGE_FILE = 1455  # Windows: the page file is too small
_CURES = "Lower data.num_workers first, then data.prefetch_factor, then data.batch_size"


def describe_stall(
    dataset: ImageDataset, pool: WorkerPool | None, waited: str, num_pictures: int
) -> str:
    """Return what a loader waits for, and in which state it is.

    Args:
        dataset: Whose pictures are loaded.
        pool: The worker processes; None where there are none.
        waited: For how long, and which argument sets that.
        num_pictures: Pictures of the batch that is waited for.
    """
    return (
        f"the loader has delivered nothing for {waited}; it waits for a batch of {num_pictures} pictures. "
        f"{_describe_work(dataset, pool)}. {_describe_state(pool)}. A network drive that hangs, a full disk queue "
        "or too little memory are the usual causes; a larger data.stall_sec waits longer."
    )


def _describe_work(dataset: ImageDataset, pool: WorkerPool | None) -> str:
    if pool is None:
        return _describe_worker(dataset, 0, "this process")
    workers = pool.workers
    parts = [
        _describe_worker(dataset, i, f"worker {i} (pid {worker.pid})")
        for i, worker in enumerate(workers)
    ]
    return some_of(parts, _MOST_WORKERS) or "no worker has started yet"


def _describe_worker(dataset: ImageDataset, worker: int, name: str) -> str:
    work = dataset.activity.under_way(worker)
    if work:
        parts = [
            f"{dataset.index.path(one.position)!r} for {one.seconds:.0f} s"
            for one in work
        ]
        return f"{name} works on {some_of(parts, _MOST_PICTURES)}"
    if dataset.activity.has_started(worker):
        return f"{name} works on no picture"
    return f"{name} is still starting"


def _describe_state(pool: WorkerPool | None) -> str:
    pids = [None, *(worker.pid for worker in pool.workers)] if pool else [None]
    counts = [count for pid in pids if (count := num_open_files(pid)) is not None]
    limit = open_file_limit()
    ready = pool.num_ready if pool else 0
    return (
        f"{ready} later batches lie ready, {free_memory() // _MIB:,} MiB of memory are free, and the processes "
        f"have {', '.join(map(str, counts)) or 'unknown numbers of'} files open"
        + (f" (each may have {limit})" if limit else "")
    )


def describe_death(
    dataset: ImageDataset, pool: WorkerPool, dead: list[int], oom_kills: int | None
) -> str:
    """Return how workers ended, what they worked on, and what helps.

    Args:
        dataset: Whose pictures are loaded.
        pool: The worker processes.
        dead: Numbers of those that are gone.
        oom_kills: What the kernel's count of processes that it ended for want of memory was before.
    """
    workers = pool.workers
    statuses = [workers[i].exitcode for i in dead]
    if NO_MAIN_GUARD_STATUS in statuses:
        return NO_MAIN_GUARD
    status = statuses[0] or 0
    now = Cgroups().oom_kills()
    ran_out = None not in (now, oom_kills) and now > oom_kills  # type: ignore[operator]
    positions = [one.position for i in dead for one in dataset.activity.under_way(i)]
    paths = [repr(dataset.index.path(position)) for position in positions]
    names = [f"worker {i} (pid {workers[i].pid})" for i in dead]
    begun = all(map(dataset.activity.has_started, dead))
    return (
        f"{some_of(names, _MOST_WORKERS)} of the loader {_describe_end(status, ran_out)}, "
        + (f"at work on {some_of(paths, _MOST_PICTURES)}" if paths else "")
        + ("at work on no picture" if begun and not paths else "")
        + ("" if begun else "while it started")
        + f". {_cure(status)}"
    )


def _describe_end(status: int, ran_out: bool) -> str:
    """Return an exit status in words."""
    if ran_out:
        return "was killed by the kernel: memory ran out"
    if status >= 0:
        shown = f"0x{status:08X}" if status > 0xFFFF else str(status)
        return f"ended with exit status {shown} (its own error, if any, is above)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    words = {
        "SIGKILL": "was killed (SIGKILL), as the kernel does where memory runs out",
        "SIGBUS": "met a bus error (SIGBUS): shared memory, or the disk of a file that is read, is full or gone",
    }
    return words.get(name, f"was ended by {name}")


def _cure(status: int) -> str:
    native = {-int(signal.SIGSEGV), -int(signal.SIGABRT), -int(signal.SIGILL)}
    # Windows: access violation, stack overrun.
    if status in native | {0xC0000005, 0xC0000409}:
        return "python cli.py check-data finds pictures that crash a decoder."
    if 0 < status <= 0xFFFF:
        return (
            "Where there is no error above, the script that iterates the data may lack its main guard: "
            f"{NO_MAIN_GUARD}"
        )
    return f"{_CURES}; {free_memory() // _MIB:,} MiB are free now."


def describe_failed_start(error: BaseException, num_workers: int) -> str | None:
    """Return why worker processes could not be started; None for an error of another kind."""
    number = getattr(error, "winerror", None) or getattr(error, "errno", None)
    told = f"{num_workers} worker processes could not be started ({error})"
    if number == errno.EMFILE or "Too many open files" in str(error):
        return (
            f"{told}: this process may have {open_file_limit()} files open, and a worker takes some 10 of them. "
            "Raise the limit (ulimit -n 4096), or lower data.num_workers."
        )
    if number in (errno.ENOMEM, errno.EAGAIN, _NO_PAGE_FILE):
        page_file = ", or make the page file larger" if number == _NO_PAGE_FILE else ""
        return f"{told}: {free_memory() // _MIB:,} MiB of memory are free. {_CURES}{page_file}."
    if number == errno.ENOSPC or "shared memory" in str(error):
        return (
            f"{told}: {(free_shared_memory() or 0) // _MIB:,} MiB of shared memory are free. {_CURES}, or give "
            "data.num_workers=0; docker run --shm-size 8g gives a container more."
        )
    if isinstance(error, BrokenPipeError | EOFError):
        return f"{told}: one ended while it started, and its own error is above. It may be that {NO_MAIN_GUARD}"
    return None


def describe_full_shared_memory() -> str:
    """Return what it means that a batch came without shared memory."""
    return (
        f"shared memory is full ({(free_shared_memory() or 0) // _MIB:,} MiB are free): batches travel through a "
        f"pipe, which takes longer. {_CURES}; docker run --shm-size 8g gives a container more."
    )
