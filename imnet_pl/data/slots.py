"""Shared memory for batches: slots of each worker process, which both sides map once and use again and again."""

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from imnet_pl.data.shared_memory import new_shared

FREE = 0
_numbers = itertools.count()


class Slots:
    """Slots that worker processes write batches to.

    Args:
        num_workers: Worker processes.
        num_slots: Slots of each.
        capacity: Pictures that a slot holds.
        image_size: Side of a picture in px.
    """

    def __init__(
        self, num_workers: int, num_slots: int, capacity: int, image_size: int
    ) -> None:
        self.shape = (num_workers, num_slots, capacity, image_size, image_size, 3)
        # Who uses a slot: FREE, or the generation of the batch in it. A worker takes free ones only, the
        # main process frees taken ones only, so that no lock is needed.
        self.owners = new_shared((num_workers, num_slots), torch.int64).fill_(FREE)
        self.memory: Tensor | None = None
        self.number = next(_numbers)
        _made_here[self.number] = self

    def allocate(self) -> None:
        """Take the memory before the workers start; where shared memory is full, there is none."""
        if self.memory is None and self.owners.numel():
            try:
                self.memory = self._new(self.shape)
            except RuntimeError:
                return

    def take(
        self, worker: int, generation: int, count: int
    ) -> tuple["SlotPictures | None", Tensor]:
        """Return (what names ``count`` pictures in a free slot, uint8 [count, S, S, 3]), or fresh memory without a name.

        Where shared memory is full, the fresh one is ordinary memory.
        """
        if self.memory is not None:
            for slot in range(self.owners.shape[1]):
                if self.owners[worker, slot] == FREE:
                    self.owners[worker, slot] = generation
                    named = SlotPictures(self.number, worker, slot, count)
                    return named, self.memory[worker, slot, :count]
        fresh = count, *self.shape[3:]
        try:
            return None, self._new(fresh)
        except RuntimeError:
            return None, torch.empty(fresh, dtype=torch.uint8)

    def free(self, worker: int, slot: int) -> None:
        """Let the worker use a slot again."""
        self.owners[worker, slot] = FREE

    def _new(self, shape: tuple[int, ...]) -> Tensor:
        return new_shared(shape, torch.uint8)


_made_here: "weakref.WeakValueDictionary[int, Slots]" = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class SlotPictures:
    """The pictures in a slot, as a worker process names them: no memory is mapped anew for a batch.

    Args:
        slots: Number of the ``Slots``, in the process that made them.
        worker: Whose slot it is.
        slot: Which.
        count: Pictures in it.
    """

    slots: int
    worker: int
    slot: int
    count: int

    def tensor(self) -> Tensor:
        """Return uint8 [count, 3, S, S] on the slot's memory, of a storage of its own: it is gone with its tensors."""
        memory = self._slots().memory
        assert memory is not None
        rows: Any = memory[self.worker, self.slot, : self.count].numpy()
        return torch.from_numpy(rows).permute(0, 3, 1, 2)

    def pin_memory(self) -> Tensor:
        """Return a copy in page-locked memory, and free the slot; called by the pinning thread of torch's DataLoader."""
        pinned = self.tensor().pin_memory()
        self._slots().free(self.worker, self.slot)
        return pinned

    def _slots(self) -> Slots:
        return _made_here[self.slots]
