"""Worker processes and the ring of shared slots: requests in, batches out."""

import logging
import multiprocessing.util
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from imnet_pl.core.cgroup import Cgroups
from imnet_pl.core.errors import UserError
from imnet_pl.data.dataset import BadPicture, ImageDataset, MadeBatch, Request
from imnet_pl.data.keys import Key
from imnet_pl.data.loader_report import (
    describe_death,
    describe_failed_start,
    describe_full_shared_memory,
    describe_stall,
)
from imnet_pl.data.slots import FREE, SlotPictures, Slots
from imnet_pl.data.stall_watch import StallWatch
from imnet_pl.data.worker_pool import Stalled, WorkerPool
from imnet_pl.data.worker_process import end_if_script_is_imported

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """A batch of pictures.

    Args:
        images: uint8 [N, 3, H, W], in channels_last memory.
        targets: int64 [N], label, or -1 for none.
        indices: int64 [N], position in the ImageIndex of the picture that was really read.
        status: uint8 [N]: 0 fine, 1 unreadable (zero pixels), 2 replaced by the picture of ``indices``, 3 a
            JPEG that ends early.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
    status: Tensor


class KeySampler(Protocol):
    """The keys of one pass, in order."""

    def __iter__(self) -> Iterator[Key]: ...

    def __len__(self) -> int: ...

    @property
    def longest(self) -> int:
        """How many keys the rank with most of them has."""


class Requests:
    """Cuts a sampler's keys into requests; what torch's DataLoader calls a batch sampler.

    Every rank makes as many: what a rank does in a batch, the others must do too. One that has no pictures
    left makes an empty batch.
    """

    def __init__(self, sampler: KeySampler, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.generation = 0
        self.open: deque[Request] = deque()

    def __iter__(self) -> Iterator[Request]:
        self.open.clear()
        keys: list[Key] = []
        for key in self.sampler:
            keys.append(key)
            if len(keys) == self.batch_size:
                yield self._request(keys)
                keys = []
        if keys and not self.drop_last:
            yield self._request(keys)
        if self._count(len(self.sampler)) < len(self):
            yield self._request([])

    def _request(self, keys: list[Key]) -> Request:
        """Return a request, which stays in ``open`` until its batch has come."""
        self.open.append(Request(self.generation, keys))
        return self.open[-1]

    def __len__(self) -> int:
        return self._count(self.sampler.longest)

    def _count(self, num_samples: int) -> int:
        full, rest = divmod(num_samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)


class BatchLoader:
    """Yields ``Batch``. Worker processes start at the first batch and stay for the loader's life.

    A batch's pictures lie in memory that a worker uses again as soon as the last tensor on it is gone, and
    not before. ``last_wait_sec`` says how long the last batch was waited for, ``bad_pictures`` which pictures
    of the batches so far could not be used as they are, by index.

    Args:
        dataset: Makes the batches; its slots decide how many batches lie ready.
        sampler: Which pictures, in which order.
        batch_size: Pictures in a batch.
        drop_last: Leave out a last short batch.
        num_workers: Worker processes; 0 makes the batches in this process.
        prefetch_factor: Batches that each worker prepares ahead.
        pin_memory: Copy batches to page-locked memory, for CUDA.
        stall_sec: Seconds after which a batch that does not come from a worker is an error.
        stall_warn_sec: Seconds after which a warning says what is waited for.
        bad_pictures: Where bad pictures are noted; default: a dictionary of its own.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        sampler: KeySampler,
        batch_size: int,
        drop_last: bool,
        num_workers: int,
        prefetch_factor: int,
        pin_memory: bool,
        stall_sec: float = 600,
        stall_warn_sec: float = 30,
        bad_pictures: dict[int, BadPicture] | None = None,
    ) -> None:
        self.stall_sec = stall_sec
        self.dataset, self.sampler, self.batch_size = dataset, sampler, batch_size
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.batch_sampler = Requests(sampler, batch_size, drop_last)
        self.last_wait_sec = 0.0
        self.bad_pictures = {} if bad_pictures is None else bad_pictures
        self._in_use: dict[tuple[int, int], StorageWeakRef] = {}
        self._watch = StallWatch(stall_warn_sec, self._describe_stall)
        self._shared_memory_was_full = False
        self._oom_kills = Cgroups().oom_kills()
        self._pool: WorkerPool | None = None
        if num_workers:
            self._pool = WorkerPool(
                dataset,
                self.batch_sampler,
                num_workers,
                prefetch_factor,
                pin_memory,
                stall_sec,
            )
            # At the interpreter's end too, before multiprocessing waits for those that are alive.
            multiprocessing.util.Finalize(self, self._pool.end, exitpriority=10)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def batch_len(self, batch_idx: int) -> int:
        """Return how many pictures a batch of the pass has."""
        return min(self.batch_size, len(self.sampler) - batch_idx * self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one pass; nothing starts before the first is asked for.

        Raises:
            UserError: The workers can not be started, are gone or have delivered nothing for ``stall_sec``.
        """
        if self._pool is not None:
            end_if_script_is_imported()
        batches = self._batches()
        with self._watch.watching():
            while True:
                start = time.perf_counter()
                self._watch.wait_begins()
                with self._faults_explained():
                    batch = next(batches, None)
                self._watch.wait_ends()
                self.last_wait_sec = time.perf_counter() - start
                if batch is None:
                    return
                yield batch
                del batch

    def _batches(self) -> Iterator[Batch]:
        self.batch_sampler.generation += 1
        if self._pool is None:
            for request in self.batch_sampler:
                made = self.dataset.__getitems__(request)
                self.batch_sampler.open.popleft()
                yield self._receive(made)
                del made
            return
        if not self._pool.workers:  # which get it when they start
            self._slots.allocate()
        # Receives and drops what an unfinished pass left behind.
        batches = iter(self._pool)
        self._free_left_behind(before=self.batch_sampler.generation)
        for made in batches:
            self.batch_sampler.open.popleft()
            yield self._receive(made)
            del made
            self._free_unused()

    @contextmanager
    def _faults_explained(self) -> Iterator[None]:
        """Turn what has become of the workers into a sentence, and end them: the next pass has new ones."""
        try:
            yield
        except Stalled as error:
            text = self._describe_stall(self.stall_sec)
            self._end_workers()
            raise UserError(text) from error
        except (RuntimeError, OSError, EOFError) as error:
            if (reason := self._explain(error)) is None:
                raise
            self._end_workers()
            raise UserError(reason) from error

    def _explain(self, error: Exception) -> str | None:
        """Return what an error means if it comes from workers that are gone or did not start."""
        if self._pool is None:
            return None
        # One whose connection is gone may write its memory to the disk before it is.
        wait_sec = 20 if isinstance(error, OSError | EOFError) else 1
        if dead := self._pool.dead_workers(wait_sec):
            return describe_death(self.dataset, self._pool, dead, self._oom_kills)
        if self._pool.workers:
            return None
        return describe_failed_start(error, self.num_workers)

    def _receive(self, made: MadeBatch) -> Batch:
        """Turn a message into a batch, and watch the memory of its slot."""
        if made.error is not None or made.images is None:
            raise UserError(made.error or "a batch without pictures")
        for bad in made.bad:
            self.bad_pictures.setdefault(bad.position, bad)
        images = made.images
        if isinstance(images, SlotPictures):
            slot = images.worker, images.slot
            images = images.tensor()
            storage = images.untyped_storage()
            self._in_use[slot] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        elif not isinstance(images, Tensor):
            images = torch.from_numpy(images).permute(0, 3, 1, 2)
            self._say_shared_memory_is_full()
        small = (torch.from_numpy(a) for a in (made.targets, made.indices, made.status))
        return Batch(images, *small)

    def _end_workers(self) -> None:
        """End workers of which one does not answer, and give up their slots."""
        assert self._pool is not None
        self._pool.end(at_once=True)
        self._free_left_behind()
        self.dataset.activity.reset()

    def _say_shared_memory_is_full(self) -> None:
        if not self._shared_memory_was_full:
            log.warning("%s", describe_full_shared_memory())
        self._shared_memory_was_full = True

    def _describe_stall(self, seconds: float) -> str:
        """Return what is waited for; the argument named is the one that says for how long."""
        of = "stall_sec" if seconds >= self.stall_sec else "stall_warn_sec"
        request = self.batch_sampler.open[0] if self.batch_sampler.open else None
        return describe_stall(
            self.dataset,
            self._pool,
            f"{seconds:.0f} s (data.{of})",
            len(request.keys) if request else self.batch_size,
        )

    def _free_unused(self) -> None:
        for slot in [
            slot
            for slot, storage in self._in_use.items()
            if storage.expired()  # type: ignore[no-untyped-call]
        ]:
            del self._in_use[slot]
            self._slots.free(*slot)

    def _free_left_behind(self, before: int | None = None) -> None:
        """Free the slots of batches that were never received.

        Args:
            before: Those of passes before this one; None: all.
        """
        self._free_unused()
        owners = self._slots.owners
        left_behind = (
            owners != FREE if before is None else (owners != FREE) & (owners < before)
        )
        for worker, slot in left_behind.nonzero().tolist():
            if (worker, slot) not in self._in_use:
                self._slots.free(worker, slot)

    @property
    def _slots(self) -> Slots:
        """Those of the worker processes."""
        assert self.dataset.slots is not None
        return self.dataset.slots
