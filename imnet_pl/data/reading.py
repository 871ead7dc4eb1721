"""Reading a picture that another program, a virus scanner or a network may hold for a moment."""

import errno
import os
import stat
import time
from collections.abc import Callable

from imnet_pl.data.index import ImageIndex

# Without O_NONBLOCK opening a pipe waits for its writer; without O_BINARY Windows changes line ends.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

RETRY_SECS = (0.3, 0.6, 1.1)
_PASSING_ERRNOS = {errno.EIO, errno.EBUSY}
# Sharing and lock violation; network busy, gone or timed out.
_PASSING_WINERRORS = {32, 33, 54, 59, 64, 121}


def read_picture(index: ImageIndex, position: int) -> bytes:
    """Return the file of a picture of an index, from its own file or from a shard.

    Raises:
        OSError: It is absent, or can still not be read, or its shard is damaged.
    """
    members = index.members
    if members is None:
        return read_file(index.path(position))
    return _try_again(lambda: members.read(index.root, position))


def read_file(path: str) -> bytes:
    """Return the content of a file; where it is locked or timed out, it is tried three times more in two seconds.

    Raises:
        OSError: It is absent, or can still not be read.
    """
    return _try_again(lambda: _read(path))


def _try_again(read: Callable[[], bytes]) -> bytes:
    for wait_sec in RETRY_SECS:
        try:
            return read()
        except OSError as error:
            if not _may_pass(error):
                raise
        time.sleep(wait_sec)
    return read()


def _read(path: str) -> bytes:
    """Return the content of a regular file; a pipe or a device is refused rather than waited for."""
    # By few system calls: a loader does this for every picture.
    file = os.open(path, _OPEN_FLAGS)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        data = os.read(file, status.st_size)
        while len(data) < status.st_size and (
            more := os.read(file, status.st_size - len(data))
        ):
            data += more
        return data
    finally:
        os.close(file)


def _may_pass(error: OSError) -> bool:
    """Tell whether an error may be gone in a moment."""
    if isinstance(error, PermissionError | TimeoutError):
        return True
    winerror = getattr(error, "winerror", None)
    return error.errno in _PASSING_ERRNOS or winerror in _PASSING_WINERRORS
