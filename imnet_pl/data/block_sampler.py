"""The block order: random enough to train on, and read from the disk almost sequentially."""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imnet_pl.data.sampler import TrainSampler, generator_of

SHUFFLE_BLOCK, SHUFFLE_WINDOW = 64, 16_384  # the defaults, in pictures
_LANES = 48  # divided by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 ranks


class _Plan(NamedTuple):
    """An epoch: where its blocks begin, and how they are divided into windows.

    Args:
        offset: Index of the picture that block 0 begins with; after the last index the first follows.
        blocks: The order of the blocks; the last one may be short.
        bounds: Window i has the blocks ``bounds[i]`` to ``bounds[i + 1]`` of that order.
    """

    offset: int
    blocks: NDArray[np.int64]
    bounds: NDArray[np.int64]


class BlockSampler(TrainSampler):
    """Blocks of pictures that lie side by side, permuted, and shuffled inside a window of many blocks.

    A drop-in for ``TrainSampler``: every picture once an epoch, a function of (seed, epoch), and the same
    pictures in the same global batch on any number of ranks. Only one window is in memory, and only the pictures
    of one window need to stay in the page cache: read block after block they cost one read of the disk.

    A window is dealt out to 48 lanes, blocks of its own for each, and picture p of the epoch is of lane
    p modulo 48. So where the number of ranks divides 48 a rank reads blocks that no other reads. The last window of an
    epoch, which is shuffled as a whole to mix the blocks left over, is the exception.

    The defaults: packed pictures of 30 KB make blocks of 2 MB, in which a hard disk spends more time on reading than on
    seeking, and windows of 0.5 GB. Where the pictures lie mixed, as ``pack`` writes them, the batches are as those
    of the full order. Where they lie by class a window of 240 blocks has a fifth of ImageNet's classes, and what is learned is
    much worse.

    Args:
        num_samples: Pictures in the training set.
        seed: Seed of the order.
        rank: This process, from 0.
        world_size: Number of processes.
        block: Pictures in a block.
        window: Pictures in a window, at most; the last one has up to 48 blocks more.
        read_ahead: Called with ranges of places that this rank will take, one window before it takes the first of
            them: those of its blocks, in their order.
        rows_at: int64 [num_samples], the index of the picture at each place, where they lie in another order than
            that of the index; None: they lie as in the index.
    """

    def __init__(
        self,
        num_samples: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        block: int = SHUFFLE_BLOCK,
        window: int = SHUFFLE_WINDOW,
        read_ahead: Callable[[range], None] | None = None,
        rows_at: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(num_samples, seed, rank, world_size)
        self.block, self.read_ahead, self.rows_at = block, read_ahead, rows_at
        self.lanes = max(1, min(_LANES, window // block))
        self.rows = max(1, window // block // self.lanes)  # blocks of each lane

    def parts(self, epoch: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's indices of an epoch but its first ``start``, a window or less at a time."""
        plan = self._plan(epoch)
        begins = plan.bounds[:-1] * self.block
        begin = start * self.world_size + self.rank
        first = int(np.searchsorted(begins, begin, side="right")) - 1
        left = len(self) - start
        self._announce(self._ranges(plan, first))
        for window in range(first, len(begins)):
            # Where a window begins may be any rank's turn.
            skip = (self.rank - int(begins[window])) % self.world_size
            if window == first:
                skip = begin - int(begins[window])
            indices = self._window(plan, epoch, window)[skip :: self.world_size][:left]
            left -= len(indices)
            ahead = self._ranges(plan, window + 1)
            pieces = np.array_split(indices, max(1, len(ahead)))
            for piece, span in zip_longest(pieces, ahead):
                self._announce([] if span is None else [span])
                yield piece if self.rows_at is None else self.rows_at[piece]

    def first_window(self) -> NDArray[np.int64]:
        """Return the indices of all ranks in the first window of epoch 0."""
        places = self._window(self._plan(0), 0, 0)
        return places if self.rows_at is None else self.rows_at[places]

    def _plan(self, epoch: int) -> _Plan:
        """Draw the blocks of an epoch; a short block is in the last window, and in each epoch another one."""
        generator = generator_of(self.seed, epoch, 0, 1)
        offset = int(generator.integers(self.num_samples))
        full, rest = divmod(self.num_samples, self.block)
        blocks = np.append(generator.permutation(full), [full] * (rest > 0))
        rounds = full // self.lanes
        windows = max(1, -(-rounds // self.rows))
        bounds = np.arange(windows + 1) * rounds // windows * self.lanes
        bounds[-1] = len(blocks)
        return _Plan(offset, blocks.astype(np.int64), bounds.astype(np.int64))

    def _window(self, plan: _Plan, epoch: int, window: int) -> NDArray[np.int64]:
        """Return the indices of a window in the order of all ranks together."""
        first, stop = plan.bounds[window : window + 2]
        generator = generator_of(self.seed, epoch, window + 1, 1)
        places = plan.blocks[first:stop, None] * self.block + np.arange(self.block)
        if window == len(plan.bounds) - 2:
            places = places[places < self.num_samples]
            order = generator.permutation(places)
        else:
            by_lane = places.reshape(-1, self.lanes, self.block).swapaxes(0, 1)
            lanes = by_lane.reshape(self.lanes, -1)
            order = generator.permuted(lanes, axis=1).T.ravel()
        return (order + plan.offset) % self.num_samples

    def _ranges(self, plan: _Plan, window: int) -> list[range]:
        """Return the ranges of indices that this rank takes from a window, in their order; none after the last."""
        if self.read_ahead is None or window > len(plan.bounds) - 2:
            return []
        first, stop = plan.bounds[window : window + 2]
        blocks, count = plan.blocks[first:stop], self.num_samples
        if self.lanes % self.world_size == 0 and window < len(plan.bounds) - 2:
            blocks = blocks[self.rank :: self.world_size]
        ranges = []
        for place in (blocks * self.block).tolist():
            begin = (place + plan.offset) % count
            end = begin + min(self.block, count - place)
            ranges.append(range(begin, min(end, count)))
            if end > count:
                ranges.append(range(end - count))
        return sorted(ranges, key=lambda span: span.start)

    def _announce(self, ranges: list[range]) -> None:
        if self.read_ahead is not None:
            for span in ranges:
                self.read_ahead(span)
