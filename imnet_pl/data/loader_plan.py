"""How many processes, threads and shared batches a loader gets, and what they cost."""

import logging
import os
from typing import Any, NamedTuple

from imnet_pl.core.machine import (
    free_memory,
    free_shared_memory,
    threads_of_each,
    usable_cores,
    workers_and_threads,
)
from imnet_pl.data.decode import BUDGET
from imnet_pl.data.slots import Slots

log = logging.getLogger(__name__)

# Beside the batches that lie ready, one is in the training step, one may be held by the trainer's
# look-ahead or by the pinning thread, and one is being made.
SLOTS_BESIDE_PREFETCH = 3
_LEAST_SLOTS = 2  # one is used while one is made
_WORKER_BYTES = 350 * 2**20  # a process that has imported torch and no CUDA library
_USABLE_PART = 0.8  # of the memory that is free at the start
_MIB = 2**20


class LoaderPlan(NamedTuple):
    """What a loader is made of.

    Args:
        num_workers: Worker processes; 0: this process decodes.
        num_threads: Decoding threads in each.
        prefetch_factor: Batches that each prepares ahead.
        num_slots: Shared batches of each.
        capacity: Pictures in a shared batch.
        image_size: Side of a picture in px.
    """

    num_workers: int
    num_threads: int
    prefetch_factor: int
    num_slots: int
    capacity: int
    image_size: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of a shared batch."""
        return 3 * self.capacity * self.image_size**2

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory."""
        return self.num_workers * self.num_slots * self.slot_bytes

    @property
    def most_decoded_bytes(self) -> int:
        """Bytes of decoded pictures that all threads may hold at once; usual ones take a hundredth."""
        budget = BUDGET.total + self.num_threads * BUDGET.uncounted
        return 3 * budget * max(1, self.num_workers)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the loader takes with pictures of usual size."""
        threads = self.num_threads * 3 * BUDGET.uncounted
        return self.shared_bytes + self.num_workers * (_WORKER_BYTES + threads)

    def make_slots(self) -> Slots | None:
        """Return the shared memory of the workers; None where there are none."""
        if not self.num_workers:
            return None
        return Slots(self.num_workers, self.num_slots, self.capacity, self.image_size)

    def __str__(self) -> str:
        if not self.num_workers:
            return f"this process decodes in {self.num_threads} threads"
        return (
            f"{self.num_workers} worker processes of {self.num_threads} threads, {self.num_slots} shared batches of "
            f"{self.slot_bytes / _MIB:,.0f} MiB each, {self.memory_bytes / _MIB:,.0f} MiB in all; very large pictures "
            f"may take {self.most_decoded_bytes / _MIB:,.0f} MiB more"
        )


def plan_loader(data: Any, split: str, batch_size: int) -> LoaderPlan:
    """Return what a loader of the data module is made of, and say what it costs.

    The cores are shared by the node's ranks, not by the loaders of train and val, which work in turn: while one
    is iterated, the other's workers have at most the batches to make that lie ready. The memory is shared by all.

    Args:
        data: The data module.
        split: Whose loader it is.
        batch_size: Pictures in a batch.
    """
    ranks = ranks_on_node(data.trainer)
    sharing = _ranks_on_cores(ranks)
    world_size = getattr(data.trainer, "world_size", 1)
    num_batches = -(-len(data.indices[split]) // (batch_size * world_size))
    workers, threads = workers_and_threads(
        data.num_workers, data.num_threads, sharing, num_batches
    )
    cores = max(1, usable_cores() // sharing)
    if data.num_workers and data.num_workers > cores:
        log.warning(
            "data.num_workers=%d is more than the %d cores that this process may use; %d would do.",
            *(data.num_workers, cores, workers_and_threads(None, None, sharing)[0]),
        )
    num_slots = data.prefetch_factor + SLOTS_BESIDE_PREFETCH
    wanted = LoaderPlan(
        workers,
        threads,
        data.prefetch_factor,
        num_slots if workers else 0,
        batch_size,
        data.image_size,
    )
    part = _part_of_memory(data, batch_size) / ranks
    shared = free_shared_memory()
    plan = fit_memory(
        wanted,
        int(_USABLE_PART * part * free_memory()),
        None if shared is None else int(_USABLE_PART * part * shared),
        num_threads=workers * threads if data.num_threads is None else 0,
    )
    log.info("loader of %s: %s.", split, plan)
    return plan


def ranks_on_node(trainer: Any) -> int:
    """Return how many processes of the run are on this machine."""
    return int(getattr(trainer.strategy, "num_processes", 1)) if trainer else 1


def _ranks_on_cores(ranks: int) -> int:
    """Return how many of a node's ranks share the cores of this process: one where srun has given it its own."""
    own = os.environ.get("SLURM_CPUS_PER_TASK", "")
    bound = "SLURM_PROCID" in os.environ and own.isdecimal()
    return 1 if bound and usable_cores() <= int(own) else ranks


def _part_of_memory(data: Any, batch_size: int) -> float:
    """Return which part of the memory is this loader's: in training that of val stays alive beside it."""
    if not {"train", "val"} <= set(data.indices):
        return 1.0
    return float(batch_size / (data.batch_size + data.eval_batch_size))


def fit_memory(
    wanted: LoaderPlan, memory: int, shared: int | None, num_threads: int = 0
) -> LoaderPlan:
    """Return a plan that fits, and say so where it is not the one wanted.

    First fewer batches lie ready, then fewer are shared, then there are fewer workers. Too little shared memory
    takes no worker away: a batch that finds none travels through a pipe.

    Args:
        wanted: What the arguments and the cores ask for.
        memory: Bytes that the loader may take.
        shared: Bytes of them that may be shared; None where only ``memory`` bounds it.
        num_threads: Of all workers, however few there are; 0: each keeps as many as it has.
    """
    if not wanted.num_workers:
        return wanted
    plan = _fit_shared(wanted, memory if shared is None else shared)
    while plan.memory_bytes > memory and (less := _smaller(plan)) is not None:
        threads = threads_of_each(num_threads, less.num_workers)
        plan = less._replace(num_threads=max(less.num_threads, threads))
    if plan != wanted:
        _say_smaller(wanted, plan, memory, shared)
    return plan


def _fit_shared(plan: LoaderPlan, shared: int) -> LoaderPlan:
    """Return a plan whose shared batches fit, at last none of them."""
    while plan.shared_bytes > shared:
        less = _smaller(plan)
        if less is None or less.num_workers < plan.num_workers:
            less = plan._replace(num_slots=plan.num_slots - 1)
        plan = less
    return plan


def _smaller(plan: LoaderPlan) -> LoaderPlan | None:
    """Return the next smaller plan; None where there is none."""
    if plan.prefetch_factor > 1:
        prefetch = plan.prefetch_factor - 1
        num_slots = min(plan.num_slots, prefetch + SLOTS_BESIDE_PREFETCH)
        return plan._replace(prefetch_factor=prefetch, num_slots=num_slots)
    if plan.num_slots > _LEAST_SLOTS:
        return plan._replace(num_slots=plan.num_slots - 1)
    if plan.num_workers > 1:
        return plan._replace(num_workers=plan.num_workers - 1)
    return None


def _say_smaller(
    wanted: LoaderPlan, plan: LoaderPlan, memory: int, shared: int | None
) -> None:
    """Say which bound does not allow the plan that is wanted, what fits, and what helps."""
    bounds, more = [], ""
    if shared is not None and wanted.shared_bytes > shared:
        bounds.append(f"{shared // _MIB:,} MiB of the shared memory in /dev/shm")
        more = "; docker run --shm-size 8g gives a container more"
    if wanted.memory_bytes > memory:
        bounds.append(f"{memory // _MIB:,} MiB of the memory that is free")
    result = (
        f"{plan.num_workers} workers of {plan.num_threads} threads, data.prefetch_factor={plan.prefetch_factor}, {plan.num_slots} shared batches "
        f"each ({plan.memory_bytes / _MIB:,.0f} MiB, {plan.shared_bytes / _MIB:,.0f} of them shared)"
    )
    if plan.num_slots < _LEAST_SLOTS:
        result += "; other batches travel through a pipe, which takes longer"
    if plan.memory_bytes > memory:
        result += "; that is still too much"
    log.warning(
        "a loader may take %s, and would take %.0f MiB, %.0f of them shared, with %d workers, data.prefetch_factor=%d "
        "and batches of %d pictures; it gets %s. Lower data.num_workers, then data.prefetch_factor, then "
        "data.batch_size%s.",
        " and ".join(bounds),
        *(wanted.memory_bytes / _MIB, wanted.shared_bytes / _MIB, wanted.num_workers),
        *(wanted.prefetch_factor, wanted.capacity, result, more),
    )
