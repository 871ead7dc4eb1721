"""Files and folders of this program's own: the cache folder, folders that appear whole or not at all."""

import codecs
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

# A virus scanner or a syncing folder on Windows holds a new file for a moment.
_READ_BYTES = 1 << 20
_RETRY_SECS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)


# For writing names of files as UTF-8: one that is no valid Unicode stays readable.
ESCAPED = "imnet_pl_escaped"


def _escape(error: UnicodeError) -> tuple[bytes, int]:
    """Return UTF-8 for characters that Python has no encoding for.

    Where the locale is ASCII, each byte of a name that is not is such a character, although all are UTF-8.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    with suppress(UnicodeEncodeError):  # of Windows, which has no such bytes
        text = text.encode("ascii", "surrogateescape").decode(
            "utf-8", "surrogateescape"
        )
    return text.encode("utf-8", "backslashreplace"), error.end


codecs.register_error(ESCAPED, _escape)


def cache_dir() -> Path:
    """Return the user's cache folder of this program (``IMNET_PL_CACHE`` overrides it)."""
    if override := os.environ.get("IMNET_PL_CACHE"):
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("imnet_pl", appauthor=False))


def is_url(name: str) -> bool:
    """Return whether a name is a URL such as ``https://host/file``."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", name) is not None


def create_dir_atomically(target: Path, fill: Callable[[Path], None]) -> None:
    """Make ``target`` through a temporary neighbour, so that it is complete as soon as it exists.

    When another process makes the same folder first, its result stays.

    Args:
        target: Folder to make; it must be absent or empty.
        fill: Writes the content into the folder that it is given.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(staging)
        staging.chmod(0o755)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        staging.rename(target)
    except OSError:
        if not (target.is_dir() and any(target.iterdir())):
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def replace_file(source: Path, target: Path) -> None:
    """Put ``source`` in the place of ``target`` at once, and onto the disk; a locked file is tried again.

    Raises:
        OSError: The target stayed locked for some eight seconds, or can not be replaced.
    """
    for wait_sec in _RETRY_SECS:
        try:
            source.replace(target)
            break
        except PermissionError as error:
            log.warning("%s is locked (%s), trying again.", target, error)
            time.sleep(wait_sec)
    else:
        source.replace(target)
    if os.name == "posix":  # the new name itself is safe when its folder is
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def flush_file(file: Path) -> None:
    """Bring a file that was written onto the disk."""
    with file.open("rb+") as content:
        os.fsync(content.fileno())


def file_crc(file: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with file.open("rb") as content:
        while block := content.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
    return crc


@contextmanager
def hold_lock(file: Path) -> Iterator[bool]:
    """Hold a lock that ends with the process, and tell whether it was free; the file stays.

    Args:
        file: The lock's own file; it is made where it is absent.
    """
    with file.open("ab") as content:
        try:
            _lock(content.fileno())
        except OSError:
            yield False
            return
        yield True


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_file(file: Path, text: str) -> None:
    """Write a text file through a temporary neighbour, onto the disk: it is whole as soon as it is there."""
    partial = file.with_name(f"{file.name}.part")
    partial.write_text(text, encoding="utf-8")
    flush_file(partial)
    replace_file(partial, file)


def notes_folder_changes(folder: Path) -> bool:
    """Tell whether the time of a folder changes with its entries, by the kind of file system.

    It does not on FAT and exFAT under Windows, and not reliably on what a program mounts (FUSE), such as an
    object store.
    """
    real = os.path.realpath(folder)
    # All drives of Windows include those of a network that may not answer.
    disks = psutil.disk_partitions(all=os.name != "nt")
    over = [disk for disk in disks if Path(real).is_relative_to(disk.mountpoint)]
    if not over:
        return True
    kind = max(over, key=lambda disk: len(disk.mountpoint)).fstype.lower()
    if os.name == "nt":
        return "fat" not in kind
    return kind != "fuse" and not kind.startswith("fuse.")


def copy_file(source: Path, target: Path) -> None:
    """Copy a file through a temporary neighbour: the target is whole as soon as it is there, and as old."""
    partial = target.with_name(f"{target.name}.part")
    try:
        shutil.copyfile(source, partial)
        flush_file(partial)
        status = source.stat()
        os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
        replace_file(partial, target)
    finally:
        partial.unlink(missing_ok=True)
