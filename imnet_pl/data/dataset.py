"""One batch read and decoded by a pool of threads. A worker process imports this and little else."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from imnet_pl.core.status import FINE, UNREADABLE
from imnet_pl.data.augment import Transform
from imnet_pl.data.decode import UnreadableImage
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.keys import Key, mix

FREE = 0


class Request(NamedTuple):
    """A batch to be made, and in which pass over the loader (from 1)."""

    generation: int
    keys: list[Key]


class MadeBatch(NamedTuple):
    """What a worker sends: one shared tensor, and small arrays that travel inside the message."""

    images: Tensor | None
    targets: NDArray[np.int64]
    indices: NDArray[np.int64]
    status: NDArray[np.uint8]
    slot: tuple[int, int] | None
    error: str | None


class Slots:
    """Shared memory for batches that each worker uses again and again.

    Args:
        num_workers: Worker processes.
        num_slots: Slots of each.
        capacity: Pictures that a slot holds.
        image_size: Side of a picture in px.
    """

    def __init__(
        self, num_workers: int, num_slots: int, capacity: int, image_size: int
    ) -> None:
        self.shape = (capacity, image_size, image_size, 3)
        # Who uses a slot: FREE, or the generation of the batch in it. A worker takes free ones only, the
        # main process frees taken ones only, so that no lock is needed.
        self.owners = _shared(torch.full((num_workers, num_slots), FREE))
        self._mine: dict[int, Tensor] = {}

    def take(
        self, worker: int, generation: int
    ) -> tuple[tuple[int, int] | None, Tensor]:
        """Return (its name, uint8 [capacity, S, S, 3]) of a free slot, or a fresh tensor without a name."""
        for slot in range(self.owners.shape[1]):
            if self.owners[worker, slot] == FREE:
                self.owners[worker, slot] = generation
                if slot not in self._mine:
                    self._mine[slot] = self._new()
                return (worker, slot), self._mine[slot]
        return None, self._new()

    def _new(self) -> Tensor:
        return _shared(torch.empty(self.shape, dtype=torch.uint8))


def _shared(tensor: Tensor) -> Tensor:
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


class ImageDataset(Dataset[Any]):
    """Makes whole batches: reads, decodes and transforms the pictures of a request in threads.

    Args:
        index: The pictures.
        transform: What happens to each.
        seed: Seed of the random choices.
        num_threads: Threads in the process that makes the batch.
        slots: Shared memory to write to; None outside worker processes.
        bad_image_error: Raise for an unreadable picture, rather than give zero pixels and status 1.
    """

    def __init__(
        self,
        index: ImageIndex,
        transform: Transform,
        seed: int,
        num_threads: int,
        slots: Slots | None,
        bad_image_error: bool,
    ) -> None:
        self.index, self.transform, self.seed = index, transform, seed
        self.num_threads, self.slots, self.bad_image_error = (
            num_threads,
            slots,
            bad_image_error,
        )
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __len__(self) -> int:
        return len(self.index)

    def __getitems__(self, request: Request) -> MadeBatch:
        """Make the batch of a request; a problem that the user can cure comes back as text."""
        keys = request.keys
        indices = np.fromiter(
            (key.position for key in keys), dtype=np.int64, count=len(keys)
        )
        status = np.zeros(len(keys), dtype=np.uint8)
        slot, memory = self._memory(request)
        images = memory[: len(keys)].permute(0, 3, 1, 2)
        try:
            self._fill(keys, images, status)
        except UnreadableImage as error:
            return MadeBatch(None, indices, indices, status, slot, str(error))
        return MadeBatch(
            images, self.index.labels[indices], indices, status, slot, None
        )

    def _memory(self, request: Request) -> tuple[tuple[int, int] | None, Tensor]:
        """Return the slot's name and memory: uint8 [at least the batch, S, S, 3]."""
        worker = get_worker_info()
        if self.slots is None or worker is None:
            size = self.transform.image_size
            return None, torch.empty(
                (len(request.keys), size, size, 3), dtype=torch.uint8
            )
        return self.slots.take(worker.id, request.generation)

    def _fill(
        self, keys: Sequence[Key], images: Tensor, status: NDArray[np.uint8]
    ) -> None:
        """Fill rows of uint8 ``images`` [N, 3, S, S] and ``status`` [N]; each thread takes a slice."""

        def fill_rows(rows: range) -> None:
            with torch.inference_mode():
                for row in rows:
                    status[row] = self._fill_row(keys[row], images[row])

        threads = min(self.num_threads, len(keys))
        if threads <= 1:
            fill_rows(range(len(keys)))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.num_threads, thread_name_prefix="decode"
            )
        for _ in self._pool.map(
            fill_rows, [range(t, len(keys), threads) for t in range(threads)]
        ):
            pass

    def _fill_row(self, key: Key, out: Tensor) -> int:
        path = self.index.path(key.position)
        try:
            data = Path(path).read_bytes()
            self.transform(data, mix(self.seed, *key), out)
        except (UnreadableImage, OSError) as error:
            if self.bad_image_error:
                raise UnreadableImage(
                    f"picture {path!r} (index {key.position}) can not be read: {error}. Replace or remove it."
                ) from error
            out.zero_()
            return UNREADABLE
        return FINE
