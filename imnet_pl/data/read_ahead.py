"""Has the system read the blocks of shards that come next, each in one piece, before their pictures are asked for."""

import os
import queue
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imnet_pl.data.index import ImageIndex
from imnet_pl.data.members import Members

_GAP_BYTES = 128 * 1024  # less is read along: it takes less time than to move the head
_PIECE_BYTES = 1 << 20

_Queue = queue.SimpleQueue[range | None]


class ReadAhead:
    """Called with a range of rows, has their bytes read into the page cache by a thread of its own.

    The thread ends with this object.

    Args:
        index: Its pictures lie in shards.
        rows: The rows in the order that the ranges are of; None: that of the index.
    """

    def __init__(
        self, index: ImageIndex, rows: NDArray[np.int64] | None = None
    ) -> None:
        assert index.members is not None
        self._queue: _Queue = queue.SimpleQueue()
        arguments = self._queue, index.root, index.members, rows
        threading.Thread(
            target=_work, args=arguments, daemon=True, name="read-ahead"
        ).start()
        weakref.finalize(self, self._queue.put, None)

    def __call__(self, span: range) -> None:
        """Note that these rows are needed soon."""
        self._queue.put(span)


def _work(
    spans: _Queue, root: str, members: Members, order: NDArray[np.int64] | None
) -> None:
    while (span := spans.get()) is not None:
        part = slice(span.start, span.stop)
        rows = np.arange(span.start, span.stop) if order is None else order[part]
        for shard, start, stop in byte_ranges(members, rows):
            try:
                let_read(Path(root) / shard, start, stop)
            except OSError:  # who reads the picture says what is wrong
                continue


def byte_ranges(
    members: Members, rows: NDArray[np.int64]
) -> Iterator[tuple[str, int, int]]:
    """Yield (shard, first byte, byte after the last) of the pieces that hold the pictures of rows, int64 [N]."""
    shard, start = members.shard[rows], members.offset[rows]
    order = np.lexsort((start, shard))
    shard, start = shard[order], start[order]
    stop = start + members.length[rows][order]
    is_new = (np.diff(shard) != 0) | (start[1:] - stop[:-1] > _GAP_BYTES)
    for part in np.split(np.arange(len(order)), np.flatnonzero(is_new) + 1):
        first, last = int(part[0]), int(part[-1])
        yield members.shards[shard[first]], int(start[first]), int(stop[last])


def let_read(file: Path, start: int, stop: int) -> None:
    """Have a part of a file in the page cache soon.

    Raises:
        OSError: The file can not be read.
    """
    with file.open("rb") as content:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(
                content.fileno(), start, stop - start, os.POSIX_FADV_WILLNEED
            )
            return
        content.seek(start)
        while (left := stop - content.tell()) > 0:
            if not content.read(min(left, _PIECE_BYTES)):
                return
