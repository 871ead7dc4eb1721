"""What this process may use of the machine."""

import ctypes
import os
import sys
from pathlib import Path

import psutil

from imnet_pl.core.cgroup import Cgroups

# Threads of one process wait for each other at the interpreter's lock, processes take memory and time to start.
CORES_PER_WORKER = 4
LEAST_WORKERS = 2
_SHARED_MEMORY = Path("/dev/shm")


def usable_cores() -> int:
    """Return how many CPU cores this process may use: its affinity, lowered by a quota of its control groups.

    Windows puts more than 64 cores into processor groups. A process with threads in several has no affinity
    there, and may use all cores.
    """
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else []
    cores = len(allowed or []) or os.cpu_count() or 1
    quota = Cgroups().cores()
    return min(cores, quota) if quota else cores


def free_memory() -> int:
    """Return the bytes of memory that this process can still get.

    The least of what the machine has, what its control groups leave, and, under Windows, what the page file
    still backs: there nothing is promised that is not backed.
    """
    bounds = [psutil.virtual_memory().available]
    if (left := Cgroups().free_memory()) is not None:
        bounds.append(left)
    if (commit := _free_commit()) is not None:
        bounds.append(commit)
    return int(min(bounds))


def free_shared_memory() -> int | None:
    """Return the bytes left for memory shared between processes; None where only memory itself bounds it."""
    if not hasattr(os, "statvfs") or not _SHARED_MEMORY.is_dir():
        return None
    status = os.statvfs(_SHARED_MEMORY)
    return status.f_bavail * status.f_frsize


def open_file_limit() -> int | None:
    """Return how many files this process may have open; None where there is no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def num_open_files(pid: int | None = None) -> int | None:
    """Return the open files of a process, under Windows its handles; None where they can not be counted."""
    try:
        process = psutil.Process(pid)
        if sys.platform == "win32":
            return int(process.num_handles())
        return int(process.num_fds())
    except psutil.Error:
        return None


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("dwLength", ctypes.c_uint32),
        ("dwMemoryLoad", ctypes.c_uint32),
        ("ullTotalPhys", ctypes.c_uint64),
        ("ullAvailPhys", ctypes.c_uint64),
        ("ullTotalPageFile", ctypes.c_uint64),
        ("ullAvailPageFile", ctypes.c_uint64),
        ("ullTotalVirtual", ctypes.c_uint64),
        ("ullAvailVirtual", ctypes.c_uint64),
        ("ullAvailExtendedVirtual", ctypes.c_uint64),
    )


def _free_commit() -> int | None:
    """Return the bytes that Windows can still promise this process; None elsewhere."""
    if sys.platform != "win32":
        return None
    status = _MemoryStatus(dwLength=ctypes.sizeof(_MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.ullAvailPageFile)


def loader_defaults(
    cores: int, ranks_on_node: int = 1, num_batches: int | None = None
) -> tuple[int, int]:
    """Return (worker processes, threads in each) for a loader on ``cores`` shared by the node's ranks.

    Args:
        cores: Those of all ranks.
        ranks_on_node: How many share them.
        num_batches: No more workers than batches; None: there are many.
    """
    share = max(1, cores // max(1, ranks_on_node))
    workers = max(share // CORES_PER_WORKER, min(share, LEAST_WORKERS))
    if num_batches is not None:
        workers = max(1, min(workers, num_batches))
    return workers, threads_of_each(share, workers)


def threads_of_each(cores: int, workers: int) -> int:
    """Return how many threads each worker has, so that no core is left idle; 0 workers: this process."""
    return -(-cores // max(1, workers))


def workers_and_threads(
    num_workers: int | None,
    num_threads: int | None,
    ranks_on_node: int,
    num_batches: int | None = None,
) -> tuple[int, int]:
    """Return what the user asked for; the rest by the cores that this process may use."""
    cores = usable_cores()
    workers, threads = loader_defaults(cores, ranks_on_node, num_batches)
    if num_workers is not None:
        workers = num_workers
        threads = threads_of_each(max(1, cores // ranks_on_node), workers)
    return workers, threads if num_threads is None else num_threads
