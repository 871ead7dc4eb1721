"""Worker processes and the ring of shared slots: requests in, batches out."""

import signal
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.dataset import (
    FREE,
    BadPicture,
    ImageDataset,
    MadeBatch,
    Request,
)
from imnet_pl.data.keys import Key

_SECONDS_TO_SAVE = 30


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
        bad_pictures: dict[int, BadPicture] | None = None,
    ) -> None:
        self.stall_sec = stall_sec
        self.dataset, self.sampler, self.batch_size = dataset, sampler, batch_size
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.batch_sampler = Requests(sampler, batch_size, drop_last)
        self.last_wait_sec = 0.0
        self.bad_pictures = {} if bad_pictures is None else bad_pictures
        self._in_use: dict[tuple[int, int], StorageWeakRef] = {}
        self._loader: DataLoader[MadeBatch] | None = None
        if num_workers:
            self._loader = DataLoader(
                dataset,
                batch_sampler=self.batch_sampler,  # type: ignore[arg-type]
                num_workers=num_workers,
                collate_fn=_unchanged,  # type: ignore[arg-type]
                worker_init_fn=_init_worker,
                multiprocessing_context="spawn",
                persistent_workers=True,
                prefetch_factor=prefetch_factor,
                pin_memory=pin_memory,
                timeout=stall_sec,
                generator=torch.Generator(),
            )
            # At the interpreter's end too: workers that are killed there leave folders of sockets behind.
            weakref.finalize(self, _end_workers, self._loader)

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def batch_len(self, batch_idx: int) -> int:
        """Return how many pictures a batch of the pass has."""
        return min(self.batch_size, len(self.sampler) - batch_idx * self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one pass; nothing starts before the first is asked for."""
        batches = self._batches()
        while True:
            start = time.perf_counter()
            try:
                batch = next(batches, None)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                self._kill_workers()
                raise UserError(self._describe_stall()) from error
            self.last_wait_sec = time.perf_counter() - start
            if batch is None:
                return
            yield batch
            del batch

    def _batches(self) -> Iterator[Batch]:
        self.batch_sampler.generation += 1
        if self._loader is None:
            for request in self.batch_sampler:
                made = self.dataset.__getitems__(request)
                self.batch_sampler.open.popleft()
                yield self._receive(made)
                del made
            return
        batches = iter(
            self._loader
        )  # receives and drops what an unfinished pass left behind
        self._free_left_behind()
        for made in batches:
            self.batch_sampler.open.popleft()
            yield self._receive(made)
            del made
            self._free_unused()

    def _receive(self, made: MadeBatch) -> Batch:
        """Turn a message into a batch, and watch the memory of its slot."""
        if made.error is not None or made.images is None:
            raise UserError(made.error or "a batch without pictures")
        for bad in made.bad:
            self.bad_pictures.setdefault(bad.position, bad)
        if made.slot is not None:
            if self.pin_memory:  # what arrives is already a copy
                worker, slot = made.slot  # which the pinning thread has made a list
                self._free((worker, slot))
            else:
                storage = made.images.untyped_storage()
                self._in_use[made.slot] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        small = (torch.from_numpy(a) for a in (made.targets, made.indices, made.status))
        return Batch(made.images, *small)

    def _kill_workers(self) -> None:
        """End workers that do not answer: at the interpreter's end they would be waited for."""
        assert self._loader is not None
        workers = list(self._loader._iterator._workers)  # type: ignore[union-attr]
        _end_workers(self._loader)
        for worker in workers:
            worker.kill()

    def _describe_stall(self) -> str:
        keys = self.batch_sampler.open[0].keys
        paths = [self.dataset.index.path(index) for _, index, _ in keys]
        return (
            f"the loader has delivered nothing for {self.stall_sec:g} s (data.stall_sec); it waits for a batch of "
            f"{len(paths)} pictures ({some_of(paths, 3)}). A network drive that hangs, a full disk queue or too "
            "little memory are the usual causes; a larger data.stall_sec waits longer."
        )

    def _free_unused(self) -> None:
        for slot in [
            slot
            for slot, storage in self._in_use.items()
            if storage.expired()  # type: ignore[no-untyped-call]
        ]:
            del self._in_use[slot]
            self._free(slot)

    def _free_left_behind(self) -> None:
        """Free slots whose batch was never received: an earlier pass ended before it."""
        self._free_unused()
        slots = self.dataset.slots
        assert slots is not None
        earlier = (slots.owners != FREE) & (
            slots.owners != self.batch_sampler.generation
        )
        for worker, slot in earlier.nonzero().tolist():
            if (worker, slot) not in self._in_use:
                self._free((worker, slot))

    def _free(self, slot: tuple[int, int]) -> None:
        slots = self.dataset.slots
        assert slots is not None
        slots.owners[slot] = FREE


def _end_workers(loader: "DataLoader[MadeBatch]") -> None:
    """Let the worker processes end by themselves."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined]
        loader._iterator = None


def _unchanged(made: MadeBatch) -> MadeBatch:
    return made


def _init_worker(worker: int) -> None:  # noqa: ARG001
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="PIL")  # of damage that it can cope with
    # Ctrl-C is for the main process, which ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGTERM, _end_soon)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _end_soon(number: int, frame: object) -> None:  # noqa: ARG001
    """Live on while the main process, which got the same signal from SLURM or systemd, saves the run."""
    if sys.platform != "win32":
        signal.alarm(_SECONDS_TO_SAVE)
