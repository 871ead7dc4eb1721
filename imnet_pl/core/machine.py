"""What this process may use of the machine."""

import math
import os
from pathlib import Path

import psutil

CORES_PER_WORKER = 8


def usable_cores() -> int:
    """Return how many CPU cores this process may use: its affinity, lowered by a cgroup quota."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        cores = len(process.cpu_affinity() or []) or 1
    else:
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return min(cores, quota) if quota else cores


def _cgroup_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Return the cores that the cgroup's quota allows, at least 1; None where there is no quota."""
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, math.floor(int(quota) / int(period)))


def loader_defaults(cores: int, ranks_on_node: int = 1) -> tuple[int, int]:
    """Return (worker processes, threads in each) for a loader on ``cores`` shared by the node's ranks."""
    share = max(1, cores // max(1, ranks_on_node))
    workers = max(1, share // CORES_PER_WORKER)
    return workers, max(1, share // workers)


def workers_and_threads(
    num_workers: int | None, num_threads: int | None, ranks_on_node: int
) -> tuple[int, int]:
    """Return what the user asked for; the rest by the cores that this process may use."""
    cores = usable_cores()
    workers, threads = loader_defaults(cores, ranks_on_node)
    if num_workers is not None:
        workers = num_workers
        threads = max(1, cores // ranks_on_node // max(1, workers))
    return workers, threads if num_threads is None else num_threads
