"""Which picture comes when: seeded, sharded by rank, and able to start anywhere."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from imnet_pl.data.keys import Key, mix

Shuffle = Literal["full", "block"]


def generator_of(seed: int, epoch: int, index: int, repeat: int) -> np.random.Generator:
    """Return a generator of its own for four numbers, the same on every system."""
    return np.random.Generator(np.random.PCG64(mix(seed, epoch, index, repeat)))


class TrainSampler(Sampler[Key]):
    """A permutation by (seed, epoch), dealt out to the ranks in turn; every rank gets the same number.

    Args:
        num_samples: Pictures in the training set.
        seed: Seed of the order.
        rank: This process, from 0.
        world_size: Number of processes.
    """

    def __init__(
        self, num_samples: int, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.num_samples, self.seed, self.rank, self.world_size = (
            num_samples,
            seed,
            rank,
            world_size,
        )
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; another one starts at its first picture."""
        if epoch != self.epoch:
            self.start = 0
        self.epoch = epoch

    def parts(self, epoch: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's indices of an epoch but its first ``start``, in parts that follow one another."""
        permutation = generator_of(self.seed, epoch, 0, 0).permutation(self.num_samples)
        yield permutation[self.rank :: self.world_size][start : len(self)]

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys of the epoch, once without its first ``start``."""
        epoch, start = self.epoch, self.start
        self.start = 0
        for part in self.parts(epoch, start):
            for index in part.tolist():
                yield Key(epoch, index, 0)

    def __len__(self) -> int:
        return self.num_samples // self.world_size

    @property
    def longest(self) -> int:
        """Pictures of the rank that has most: as many as every other."""
        return len(self)


class EvalSampler(Sampler[Key]):
    """Every ``world_size``-th picture from ``rank`` on: each exactly once, none repeated to even things out.

    Args:
        num_samples: Pictures in the split.
        rank: This process, from 0.
        world_size: Number of processes.

    Attributes:
        longest: Pictures of the rank that has most.
    """

    def __init__(self, num_samples: int, rank: int = 0, world_size: int = 1) -> None:
        self.indices = range(rank, num_samples, world_size)
        self.longest = -(-num_samples // world_size)

    def __iter__(self) -> Iterator[Key]:
        return (Key(0, index, 0) for index in self.indices)

    def __len__(self) -> int:
        return len(self.indices)
