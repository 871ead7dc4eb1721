"""Reading a file that another program, a virus scanner or a network may hold for a moment."""

import errno
import time
from pathlib import Path

RETRY_SECS = (0.3, 0.6, 1.1)
_PASSING_ERRNOS = {errno.EIO, errno.EBUSY}
# Sharing and lock violation; network busy, gone or timed out.
_PASSING_WINERRORS = {32, 33, 54, 59, 64, 121}


def read_file(path: str) -> bytes:
    """Return the content of a file; where it is locked or timed out, it is tried three times more in two seconds.

    Raises:
        OSError: It is absent, or can still not be read.
    """
    for wait_sec in RETRY_SECS:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            if not _may_pass(error):
                raise
        time.sleep(wait_sec)
    return Path(path).read_bytes()


def _may_pass(error: OSError) -> bool:
    """Tell whether an error may be gone in a moment."""
    if isinstance(error, PermissionError | TimeoutError):
        return True
    winerror = getattr(error, "winerror", None)
    return error.errno in _PASSING_ERRNOS or winerror in _PASSING_WINERRORS
