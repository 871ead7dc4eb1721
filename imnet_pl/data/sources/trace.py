"""What a scan looks at and says, so that its result can be kept until something there changes."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from imnet_pl.data.sources.progress import ScanProgress

ABSENT = (-1, -1)
_FOLDER_SIZE = -1
_SETTLED_NS = 2_000_000_000  # a FAT disk keeps times in steps of 2 s

_THREADS = 8

Mark = tuple[int, int]
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Trace:
    """What one scan looked at, and what it said.

    Args:
        progress: Told how far the scan is.
        marks: Absolute path of a folder, or of a file that was read -> its mark before that.
        notices: (level, text) of what was said.
    """

    progress: ScanProgress
    marks: dict[str, Mark] = field(default_factory=dict)
    notices: list[tuple[int, str]] = field(default_factory=list)
    began_ns: int = field(default_factory=time.time_ns)

    def is_settled(self) -> bool:
        """Tell whether a later change will show in the marks.

        One in the same tick of the clock as the last change would not, nor would any on a file system that
        gives its folders no time.
        """
        latest = self.began_ns - _SETTLED_NS
        times = [mark[0] for mark in self.marks.values() if mark != ABSENT]
        return all(0 < time_ns < latest for time_ns in times)


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def tracing(what: str) -> Iterator[Trace]:
    """Collect what the scan within looks at and says; ``what`` is for its progress."""
    with ScanProgress(what) as progress:
        trace = Trace(progress)
        token = _current.set(trace)
        try:
            yield trace
        finally:
            _current.reset(token)


def mark_of(path: str) -> Mark:
    """Return (time of change in ns, size in bytes) of a file; the size of a folder is always -1."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return ABSENT
    is_folder = stat.S_ISDIR(status.st_mode)
    return status.st_mtime_ns, _FOLDER_SIZE if is_folder else status.st_size


def look_at(*paths: str | os.PathLike[str]) -> None:
    """Note that folders are about to be listed, or files to be read, whether they are there or not."""
    if (trace := _current.get()) is None:
        return
    for path in paths:
        absolute = os.path.abspath(path)  # noqa: PTH100
        if absolute not in trace.marks:
            trace.marks[absolute] = mark_of(absolute)


def in_threads(read: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield what ``read`` returns for each item, in order; disks and network drives answer several threads at once."""
    contexts = [copy_context() for _ in items]  # threads do not inherit the trace
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="scan") as pool:
        yield from pool.map(lambda c, item: c.run(read, item), contexts, items)


def count_pictures(count: int) -> None:
    """Note that so many pictures more were found."""
    if (trace := _current.get()) is not None:
        trace.progress.add(count)


def note(level: int, text: str) -> None:
    """Note that something was said."""
    if (trace := _current.get()) is not None:
        trace.notices.append((level, text))
