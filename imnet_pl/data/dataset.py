"""One batch read and decoded by a pool of threads. A worker process imports this and little else."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from imnet_pl.core.errors import some_of
from imnet_pl.core.status import PARTIAL, REPLACED, UNREADABLE
from imnet_pl.data.activity import Activity
from imnet_pl.data.augment import Transform
from imnet_pl.data.decode import UnreadableImage
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.keys import Key, mix
from imnet_pl.data.reading import read_picture
from imnet_pl.data.shared_memory import is_shared
from imnet_pl.data.slots import SlotPictures, Slots

OnBadImage = Literal["error", "replace", "partial"]
OnBadEvalImage = Literal["error", "wrong"]
MAX_REPLACEMENTS = 10


class Request(NamedTuple):
    """A batch to be made, and in which pass over the loader (from 1)."""

    generation: int
    keys: list[Key]


class BadPicture(NamedTuple):
    """A picture that could not be used as it is.

    Args:
        position: Its position in the ImageIndex.
        status: What became of it: a code of ``core.status``.
        reason: Why, in words.
    """

    position: int
    status: int
    reason: str


class MadeBatch(NamedTuple):
    """What a worker sends: the name of a slot, and small arrays that travel inside the message.

    Where no slot is free, the pictures are in a shared tensor, uint8 [N, 3, S, S], and where shared memory is full, they
    travel inside the message too: uint8 [N, S, S, 3].
    """

    images: SlotPictures | Tensor | NDArray[np.uint8] | None
    targets: NDArray[np.int64]
    indices: NDArray[np.int64]
    status: NDArray[np.uint8]
    error: str | None
    bad: Sequence[BadPicture]


class ImageDataset(Dataset[Any]):
    """Makes whole batches: reads, decodes and transforms the pictures of a request in threads.

    Args:
        index: The pictures.
        transform: What happens to each.
        seed: Seed of the random choices.
        num_threads: Threads in the process that makes the batch.
        slots: Shared memory to write to; None outside worker processes.
        on_bad_image: What is done with a picture that can not be read: ``error``: raise; ``wrong``: zero
            pixels and status 1; ``replace``: another one of its class is read, status 2; ``partial``: a JPEG
            that ends early is used as far as it goes, status 3, others are replaced.
    """

    def __init__(
        self,
        index: ImageIndex,
        transform: Transform,
        seed: int,
        num_threads: int,
        slots: Slots | None,
        on_bad_image: OnBadImage | OnBadEvalImage,
    ) -> None:
        self.index, self.transform, self.seed = index, transform, seed
        self.num_threads, self.slots = num_threads, slots
        self.on_bad_image = on_bad_image
        self.activity = Activity(len(slots.owners) if slots else 0, num_threads)
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
        bad: list[BadPicture] = []
        slot, memory = self._memory(request)
        images = memory.permute(0, 3, 1, 2)
        try:
            for row, used, picture in self._fill(keys, images):
                indices[row], status[row] = used, picture.status
                bad.append(picture)
        except UnreadableImage as error:
            return MadeBatch(None, indices, indices, status, str(error), bad)
        can_be_sent = get_worker_info() is None or is_shared(memory)
        sent = slot or (images if can_be_sent else memory.numpy())
        targets = self.index.labels[indices]
        return MadeBatch(sent, targets, indices, status, None, bad)

    def _memory(self, request: Request) -> tuple[SlotPictures | None, Tensor]:
        """Return the slot's name and memory: uint8 [N, S, S, 3]."""
        worker, count = get_worker_info(), len(request.keys)
        if self.slots is None or worker is None:
            size = self.transform.image_size
            return None, torch.empty((count, size, size, 3), dtype=torch.uint8)
        return self.slots.take(worker.id, request.generation, count)

    def _fill(
        self, keys: Sequence[Key], images: Tensor
    ) -> list[tuple[int, int, BadPicture]]:
        """Fill rows of uint8 ``images`` [N, 3, S, S]; each thread takes the next one that is free.

        Returns:
            (row, index that was read, what is wrong) of the pictures that could not be used as they are.
        """
        found: list[tuple[int, int, BadPicture]] = []
        rows = iter(range(len(keys)))  # of all threads

        def fill_rows() -> None:
            with torch.inference_mode():
                for row in rows:
                    if (bad := self._fill_row(keys[row], images[row])) is not None:
                        found.append((row, *bad))

        threads = min(self.num_threads, len(keys))
        if threads <= 1:
            fill_rows()
            return found
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.num_threads, thread_name_prefix="decode"
            )
        for filled in [self._pool.submit(fill_rows) for _ in range(threads)]:
            filled.result()
        return sorted(found)

    def _fill_row(self, key: Key, out: Tensor) -> tuple[int, BadPicture] | None:
        """Fill a row; return the index that was read and what is wrong where the key's can not be used."""
        try:
            self._read(key.position, key, self.transform, out)
        except (UnreadableImage, OSError) as error:
            return self._fill_bad_row(key, out, error)
        return None

    def _read(self, position: int, key: Key, transform: Transform, out: Tensor) -> None:
        """Write a picture into a row, with the random choices of a key."""
        self.activity.start(position)
        try:
            transform(read_picture(self.index, position), mix(self.seed, *key), out)
        finally:
            self.activity.end()

    def _fill_bad_row(
        self, key: Key, out: Tensor, error: Exception
    ) -> tuple[int, BadPicture]:
        """Do with a picture that can not be read what ``on_bad_image`` says.

        Raises:
            UnreadableImage: That is an error, or no other picture of its class can be read.
        """
        position, reason = key.position, str(error)
        if self.on_bad_image == "error":
            raise UnreadableImage(
                f"picture {self.index.path(position)!r} (index {position}) can not be read: {reason}. Replace or "
                "remove it."
            ) from error
        if self.on_bad_image == "wrong":
            out.zero_()
            return position, BadPicture(position, UNREADABLE, reason)
        may_be_cut = isinstance(error, UnreadableImage)
        if (
            self.on_bad_image == "partial"
            and may_be_cut
            and self._fill_partly(key, out)
        ):
            return position, BadPicture(position, PARTIAL, reason)
        used = self._fill_with_another(key, out, error)
        return used, BadPicture(position, REPLACED, reason)

    def _fill_partly(self, key: Key, out: Tensor) -> bool:
        """Write as much of a JPEG as there is; tell whether there was any."""
        policy = replace(self.transform.policy, partial=True)
        try:
            self._read(key.position, key, replace(self.transform, policy=policy), out)
        except (UnreadableImage, OSError):
            return False
        return True

    def _fill_with_another(self, key: Key, out: Tensor, error: Exception) -> int:
        """Write another picture of the same class, drawn by seed and key, and return its index.

        Raises:
            UnreadableImage: None of those that were tried can be read.
        """
        label = self.index.labels[key.position]
        others = np.flatnonzero(self.index.labels == label).tolist()
        others.remove(key.position)
        # Another generator than that of the crop, which would draw the same numbers.
        rng = random.Random(mix(~self.seed, *key))
        tried = rng.sample(others, min(MAX_REPLACEMENTS, len(others)))
        for position in tried:
            try:
                self._read(position, key, self.transform, out)
            except (UnreadableImage, OSError):
                continue
            return position
        paths = [self.index.path(position) for position in (key.position, *tried)]
        raise UnreadableImage(
            f"class {self.index.classes[label]!r} has no picture to train on: {len(paths)} of its "
            f"{len(others) + 1} were tried and can not be read ({some_of(paths, MAX_REPLACEMENTS + 1)}): {error}. Replace or remove them."
        ) from error
