"""How a disk is read in block order and in full order, and how random the block order is.

python benchmarks/order.py [--gb 0.6] [--folder DIR] [--json FILE]

Reading: Linux, on a disk (no tmpfs). One file of random bytes as long as packed pictures is read once in each order, as worker
processes read shards. The page cache is limited by dropping the least recently used megabytes of the file (``posix_fadvise``).
What is read from the disk is what the kernel counts for this process (``/proc/self/io``).

Randomness: classes in a batch where the pictures lie in the order of the classes, as ImageNet's folders do, or mixed, the correlation of a picture's
places in two epochs, and how far apart two neighbours of the index come in an epoch.
"""

import argparse
import ctypes
import json
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEAN_BYTES = 30_000  # a picture of short side 256 at quality 90
CACHE = 4  # the page cache holds one part in so many
WINDOW = 10  # and a window is one part in so many
BLOCK = 64
ENOUGH = 5  # an epoch that has read the file so many times is not read to its end
CHUNK = 2**20
SHARD = "shard"
PAGE = mmap.PAGESIZE


class PageCache:
    """Lets the page cache hold no more of a file than a limit.

    Args:
        path: The file.
        limit: Bytes that may be in memory.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.file = path.open("rb")
        self.size, self.limit = path.stat().st_size, limit
        # Only to ask what is in memory: what is mapped and was looked at would stay there.
        self.map = mmap.mmap(self.file.fileno(), self.size, prot=mmap.PROT_READ)
        pages = np.frombuffer(self.map, np.uint8)
        self.address = ctypes.c_void_p(pages.ctypes.data)
        del pages
        self.used = np.zeros(-(-self.size // CHUNK))  # when each chunk was last in use
        self.clock, self.most = 0, 0
        self._drop(0, self.size)

    def note_use(self, start: int, stop: int) -> None:
        """Note that bytes are in use now; now and then drop those that were not for long."""
        self.clock += 1
        self.used[start // CHUNK : -(-stop // CHUNK)] = self.clock
        if self.clock % BLOCK == 0:
            self._keep_limit()

    def _resident(self) -> NDArray[np.int64]:
        """Return how many bytes of each chunk are in memory."""
        pages = np.zeros(-(-self.size // PAGE), np.uint8)
        size, out = ctypes.c_size_t(self.size), ctypes.c_void_p(pages.ctypes.data)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mincore(self.address, size, out):
            raise OSError(ctypes.get_errno(), "mincore fails")
        per_chunk = CHUNK // PAGE
        pages = np.append(pages & 1, np.zeros(-len(pages) % per_chunk, np.uint8))
        return pages.reshape(-1, per_chunk).sum(axis=1, dtype=np.int64) * PAGE

    def _keep_limit(self) -> None:
        resident = self._resident()
        fresh = (resident > 0) & (self.used == 0)  # which nobody asked for
        self.used[fresh] = self.clock
        self.most = max(self.most, int(resident.sum()))
        too_many = int(resident.sum()) - self.limit
        for chunk in np.argsort(self.used, kind="stable").tolist():
            if too_many <= 0:
                break
            if resident[chunk]:
                self._drop(chunk * CHUNK, min((chunk + 1) * CHUNK, self.size))
                self.used[chunk] = 0
                too_many -= int(resident[chunk])

    def _drop(self, start: int, stop: int) -> None:
        os.posix_fadvise(
            self.file.fileno(), start, stop - start, os.POSIX_FADV_DONTNEED
        )

    def close(self) -> None:
        """Drop all of the file."""
        self._drop(0, self.size)
        self.map.close()
        self.file.close()


def write_shard(folder: Path, size: int) -> Any:
    """Write a file of random bytes, and return the places of pictures in it, one after another."""
    from imnet_pl.data.members import Members

    rng = np.random.default_rng(0)
    count = size // MEAN_BYTES
    lengths = rng.lognormal(0, 0.5, count)
    ends = np.cumsum(lengths * (size / lengths.sum())).astype(np.int64)
    with (folder / SHARD).open("wb") as file:
        for start in range(0, int(ends[-1]), CHUNK):
            file.write(rng.bytes(min(CHUNK, int(ends[-1]) - start)))
        file.flush()
        os.fsync(file.fileno())
    starts = np.append(0, ends[:-1])
    int32 = np.zeros(count, np.int32)
    places = int32, starts, (ends - starts).astype(np.int32)
    return Members((SHARD,), *places, int32, int32, int32.astype(np.uint32))


def bytes_read() -> int:
    """Return how many bytes this process has let the disk read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("read_bytes"))


def order_of(members: Any, order: str, read_ahead: Any) -> Any:
    """Return the sampler of an order."""
    from imnet_pl.data.block_sampler import BlockSampler
    from imnet_pl.data.sampler import TrainSampler

    count = len(members.offset)
    if order == "full":
        return TrainSampler(count, 0)
    window = count // WINDOW
    return BlockSampler(count, 0, block=BLOCK, window=window, read_ahead=read_ahead)


def read_epoch(
    folder: Path, members: Any, order: str, is_ahead: bool
) -> dict[str, float]:
    """Read every picture once as a worker process does.

    Args:
        folder: Where the file is.
        members: The pictures in it.
        order: ``block`` or ``full``.
        is_ahead: The blocks of the next window are read ahead, as in training in block order.

    Returns:
        What was read from the disk / needed, the bytes that lie side by side in what is asked for, and the
        most that was in memory / the limit.
    """
    from imnet_pl.data.read_ahead import byte_ranges, let_read

    file, needed = folder / SHARD, int(members.length.sum())
    cache = PageCache(file, needed // CACHE)
    asked: list[tuple[int, int]] = []

    def read_ahead(span: range) -> None:
        for _, start, stop in byte_ranges(members, np.arange(span.start, span.stop)):
            asked.append((start, stop))
            let_read(file, start, stop)
            cache.note_use(start, stop)

    taken, before = 0, bytes_read()
    sampler = order_of(members, order, read_ahead if is_ahead else None)
    for number, key in enumerate(sampler):
        start = int(members.offset[key.position])
        stop = start + len(members.read(str(folder), key.position))
        cache.note_use(start, stop)
        if not is_ahead:
            asked.append((start, stop))
        taken += stop - start
        if number % BLOCK == 0 and bytes_read() - before > ENOUGH * needed:
            break
    read = bytes_read() - before
    cache.close()
    spans = np.array(asked)
    runs = 1 + np.count_nonzero(spans[1:, 0] != spans[:-1, 1])
    return {
        "read_per_needed": read / taken,
        "bytes_in_a_row": taken / runs,
        "memory_per_limit": cache.most / cache.limit,
    }


CASES = (("block", True), ("block", False), ("full", False))


def measure_reading(folder: Path | None, size: int) -> list[dict[str, Any]]:
    """Read a file of ``size`` bytes in each order."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        members = write_shard(Path(temporary), size)
        return [
            {
                "order": order,
                "is_ahead": is_ahead,
                **read_epoch(Path(temporary), members, order, is_ahead),
            }
            for order, is_ahead in CASES
        ]


def imagenet_labels() -> NDArray[np.int64]:
    """Return the labels of ImageNet's folders in their order: 895 classes of 1,300, and 105 of 732 to 1,299."""
    rest = 1_281_167 - 895 * 1300
    small = np.linspace(732, 1299, 105)
    small = np.diff(np.round(np.cumsum([0, *(small * (rest / small.sum()))])))
    counts = np.append(np.full(895, 1300), small.astype(int))
    return np.repeat(np.arange(1000), np.random.default_rng(0).permutation(counts))


def measure_mix(
    labels: NDArray[np.int64],
    block: int,
    window: int,
    is_mixed: bool = False,
    batch: int = 256,
) -> dict[str, float]:
    """Measure how random an order is; ``block`` 0: the full one.

    Args:
        labels: int64 [N], in the order of the classes.
        block: Pictures in a block.
        window: Pictures in a window.
        is_mixed: The pictures lie mixed, as they are packed.
        batch: Pictures in a batch.
    """
    from imnet_pl.data.block_sampler import BlockSampler
    from imnet_pl.data.sampler import TrainSampler

    count = len(labels)
    if is_mixed:
        labels = np.random.default_rng(1).permutation(labels)
    sampler = (
        BlockSampler(count, 0, block=block, window=window)
        if block
        else TrainSampler(count, 0)
    )
    places = np.empty((2, count), np.int64)  # of each picture in two epochs
    for epoch in (0, 1):
        order = np.concatenate(list(sampler.parts(epoch, 0)))
        places[epoch, order] = np.arange(count)
    batches = labels[order[: count // batch * batch]].reshape(-1, batch)
    ranked = np.sort(batches, axis=1)
    classes = (np.diff(ranked, axis=1) != 0).sum(axis=1) + 1
    most = [np.bincount(row).max() for row in batches[:: max(1, len(batches) // 500)]]
    apart = np.abs(np.diff(places[0]))
    return {
        "block": block,
        "window": window,
        "is_mixed": is_mixed,
        "classes_per_batch": float(classes.mean()),
        "least_classes_per_batch": int(classes.min()),
        "most_of_a_class_in_a_batch": float(np.mean(most)),
        "epochs_correlation": float(np.corrcoef(places)[0, 1]),
        "neighbours_apart": float(np.median(apart)),
    }


ORDERS = (
    *((0, 0), (64, 16_384, True), (64, 16_384), (32, 16_384), (64, 8_192)),
    *((64, 32_768), (128, 16_384), (16, 4_096)),
)


def show(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    if figures["reading"]:
        print(
            f"{figures['gb']:g} GB in pictures of {MEAN_BYTES} bytes; the page cache holds 1/{CACHE} of it, a window is "
            f"1/{WINDOW}, a block {BLOCK} pictures\n"
        )
        print(
            f"{'order':8}{'read ahead':>12}{'read / needed':>15}{'in a row':>12}{'most in memory':>16}"
        )
        for row in figures["reading"]:
            ahead = "yes" if row["is_ahead"] else "no"
            in_a_row = f"{row['bytes_in_a_row'] / 1e3:.0f} kB"
            print(
                f"{row['order']:8}{ahead:>12}{row['read_per_needed']:15.3f}{in_a_row:>12}"
                f"{row['memory_per_limit']:14.2f} x"
            )
    print(
        "\n1,281,167 pictures of 1,000 classes in the order of the classes, batches of 256"
    )
    print(
        f"{'order':24}{'classes in a batch':>20}{'least':>7}{'most of one':>13}{'correlation':>13}"
        f"{'neighbours apart':>18}"
    )
    for row in figures["mix"]:
        name = f"block {row['block']}, {row['window']}" if row["block"] else "full"
        name += " mixed" if row["is_mixed"] else ""
        print(
            f"{name:24}{row['classes_per_batch']:20.0f}{row['least_classes_per_batch']:7d}"
            f"{row['most_of_a_class_in_a_batch']:13.1f}{row['epochs_correlation']:13.4f}"
            f"{row['neighbours_apart']:18.0f}"
        )


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=0.6, help="size; 0: mix alone")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    if args.gb and not hasattr(os, "posix_fadvise"):
        sys.exit("only Linux counts what is read: --gb 0 measures the mix alone")
    folder = args.folder or Path(tempfile.gettempdir())
    figures: dict[str, Any] = {"gb": args.gb, "reading": []}
    if args.gb:
        figures["reading"] = measure_reading(folder, int(args.gb * 1e9))
    labels = imagenet_labels()
    figures["mix"] = [measure_mix(labels, *order) for order in ORDERS]
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
