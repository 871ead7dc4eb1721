"""Where pictures lie in a few large files, and reading one of them."""

import contextlib
import mmap
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("shard", "offset", "length", "width", "height", "crc")
# Of a cold shard mapped into memory Linux reads nine times what a picture takes, and all threads wait; a shard that
# becomes shorter ends the process. Windows has no read at an offset.
_MAPS_FILES = not hasattr(os, "pread")

_FAR_BYTES = 4 << 20  # threads that read one after the other come less out of order


class DamagedMember(OSError):
    """A picture whose bytes in a shard are not those that were written."""


@dataclass(eq=False)
class Members:
    """Columns of an index whose pictures lie in shards; the files are opened when they are first read.

    Args:
        shards: File names, relative to the root of the index.
        shard: int32 [N], position in ``shards``.
        offset: int64 [N], where the bytes of a picture begin in its shard.
        length: int32 [N], how many there are.
        width: int32 [N] in px as stored; 0: not known, or the picture can not be read.
        height: int32 [N] in px.
        crc: uint32 [N], CRC-32 of the bytes; all 0 where it is not known.
        packed: How pictures were encoded anew, in plain types; None: they are the original files.
        verify_crc: Compare the CRC of every picture that is read.
    """

    shards: tuple[str, ...]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    crc: NDArray[np.uint32]
    packed: Mapping[str, Any] | None = None
    verify_crc: bool = False
    _open: dict[int, "_OpenShard"] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name."""
        return {name: getattr(self, name) for name in COLUMNS}

    def take(self, rows: NDArray[np.int64]) -> "Members":
        """Return the columns of some rows."""
        some: dict[str, Any] = {n: column[rows] for n, column in self.columns().items()}
        return replace(self, **some)

    def read(self, root: str, position: int) -> bytes:
        """Return the bytes of a picture.

        Raises:
            DamagedMember: The shard ends before it, or the CRC is wrong and ``verify_crc`` is set.
            OSError: The shard is absent or can not be read.
        """
        number = int(self.shard[position])
        shard = self._open.get(number)
        if shard is None:
            opened = _OpenShard(Path(root) / self.shards[number])
            shard = self._open.setdefault(
                number, opened
            )  # another thread's, if it was first
        length = int(self.length[position])
        data = shard.read(length, int(self.offset[position]))
        if len(data) != length:
            raise DamagedMember(self._describe(number, "ends before this picture"))
        if self.verify_crc and zlib.crc32(data) != int(self.crc[position]):
            raise DamagedMember(
                self._describe(number, "holds other bytes here than were packed (CRC)")
            )
        return data

    def _describe(self, number: int, what: str) -> str:
        return f"shard {self.shards[number]} {what}; 'pack --verify' names all that are damaged"


class _OpenShard:
    """A file that any thread may read at any place."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._last, self._is_random = 0, not hasattr(os, "posix_fadvise")
        if _MAPS_FILES:
            try:
                self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(self._file)

    def read(self, length: int, offset: int) -> bytes:
        if self._map is not None:
            return self._map[offset : offset + length]
        if not self._is_random and offset < self._last - _FAR_BYTES:
            self._say_random()
        self._last = offset
        return os.pread(self._file, length, offset)

    def _say_random(self) -> None:
        """Have Linux read what it is asked for alone, where it would read up to three times as much."""
        self._is_random = True
        with contextlib.suppress(OSError):  # of a file system that takes no advice
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if self._map is not None:
            self._map.close()
        elif hasattr(self, "_file"):
            os.close(self._file)
