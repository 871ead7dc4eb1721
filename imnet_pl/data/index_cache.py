"""The index of a split, kept in the user's cache folder until something that its scan looked at changes.

index/<what was asked for>/<what the scan looked at>/
  path_bytes.npy, path_ends.npy, labels.npy, ...   columns of the index, memory-mapped by every process that uses it
  looked_at.npy, looked_at_ends.npy, marks.npy     folders and files with their times of change
  kept.json                                        checksums, and what the scan said

A folder appears whole, and never changes: a process that was given its name can open it at any time. The data's
own folder is never written to. Nothing is kept where a change would not show: where something changed less than two
seconds before the scan, and on file systems whose folders have no reliable time. Where the cache can not be written,
every process scans.
"""

import hashlib
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imnet_pl.core.files import (
    cache_dir,
    create_dir_atomically,
    flush_file,
    notes_folder_changes,
)
from imnet_pl.core.version import VERSION
from imnet_pl.data.index import ImageIndex, PathColumn, split_paths
from imnet_pl.data.sources import auto, trace
from imnet_pl.data.sources.notices import say_once

log = logging.getLogger(__name__)

_FORMAT = 1  # of the files here; another one makes all caches anew
_FACTS = "kept.json"
_LOOKED_AT = ("looked_at", "looked_at_ends", "marks")
_BLOCK_BYTES = 1 << 20
_UNUSED_DAYS = 30
_Kept = tuple[ImageIndex, list[tuple[int, str]]]  # and what its scan said
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def index_split(
    root: Path, split: str, classes: Sequence[str], **options: Any
) -> ImageIndex:
    """Index a split as ``auto.index_split`` does with the same arguments, or load what an earlier scan found.

    The index's root is absolute.

    Raises:
        UserError: As ``auto.index_split``.
    """
    place = _place_of(root, split, classes, options)
    if (kept := _find(place)) is not None:
        index, notices = kept
        for level, text in notices:
            say_once(text, level)
        return index
    with trace.tracing(f"{split} in {str(root)!r}") as seen:
        index = auto.index_split(root, split, classes, **options)
        seen.progress.count = len(index)
    if index.folder is not None:  # of packed data, kept beside it
        return index
    index = replace(index, root=os.path.abspath(index.root))  # noqa: PTH100
    if not seen.is_settled():
        return index
    if not notes_folder_changes(root):
        say_once(
            f"{str(root)!r} lies on a file system that does not note when a folder changes: it is scanned at every "
            "start.",
            logging.INFO,
        )
        return index
    return _keep(place, index, seen)


def _place_of(
    root: Path, split: str, classes: Sequence[str], options: dict[str, Any]
) -> Path:
    """Return the folder of all versions of what is asked for."""
    key = {
        **options,
        "image_root": _absolute(options.get("image_root")),
        "root": [_absolute(root), os.path.realpath(root)],
        "split": split,
        "classes": list(classes),
        "format": [_FORMAT, VERSION],
    }
    text = json.dumps(key, sort_keys=True)
    return cache_dir() / "index" / hashlib.sha256(text.encode()).hexdigest()[:24]


def _absolute(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)  # noqa: PTH100


def _find(place: Path) -> _Kept | None:
    """Return the version in which nothing has changed, if there is one; a damaged one is removed."""
    with suppress(OSError):
        for folder in sorted(place.iterdir()):
            if folder.name.startswith("."):  # not finished
                continue
            try:
                if (kept := _open_current(folder)) is not None:
                    return kept
            except _DAMAGE as error:
                log.warning(
                    "the kept index %s is damaged (%s); it is made anew.", folder, error
                )
                shutil.rmtree(folder, ignore_errors=True)
    return None


def _open_current(folder: Path) -> _Kept | None:
    """Return a version's index, and what its scan said; None if something has changed since.

    Raises:
        OSError: A file can not be read.
        ValueError: One is not as it was written.
    """
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    checksums = facts["checksums"]
    looked_at = {name: checksums.pop(f"{name}.npy") for name in _LOOKED_AT}
    for name, checksum in looked_at.items():
        _require_whole(folder / f"{name}.npy", checksum)
    joined, ends, marks = (np.load(folder / f"{name}.npy") for name in _LOOKED_AT)
    paths = map(os.fsdecode, split_paths(joined, ends, 0, len(ends)))
    for path, mark in zip(paths, marks.tolist(), strict=True):
        if trace.mark_of(path) != tuple(mark):
            return None
    for name, checksum in checksums.items():
        _require_whole(folder / name, checksum)
    with suppress(OSError):
        os.utime(folder)  # was used now
    return ImageIndex.open(str(folder)), facts["notices"]


def _require_whole(file: Path, checksum: int) -> None:
    if _checksum(file) != checksum:
        raise ValueError(f"{file.name} is not as it was written")


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as content:
        while block := content.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _keep(place: Path, index: ImageIndex, seen: trace.Trace) -> ImageIndex:
    """Write an index and return it memory-mapped; as it is, with a notice, where it can not be written."""
    paths = sorted(seen.marks)
    marks = np.array([seen.marks[path] for path in paths], dtype=np.int64)
    column = PathColumn()
    column.extend(paths)
    joined, ends = column.arrays()
    arrays: tuple[NDArray[Any], ...] = (joined, ends, marks)
    version = hashlib.sha256(b"".join(array.tobytes() for array in arrays))

    def fill(folder: Path) -> None:
        index.save(folder)
        for name, array in zip(_LOOKED_AT, arrays, strict=True):
            np.save(folder / f"{name}.npy", array)
        files = sorted(folder.iterdir())
        checksums = {file.name: _checksum(file) for file in files}
        facts = {"checksums": checksums, "notices": seen.notices}
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        for file in (*files, folder / _FACTS):
            flush_file(file)

    target = place / version.hexdigest()[:24]
    try:
        create_dir_atomically(target, fill)
        _remove_unused(place.parent)
        kept = _open_current(target)  # it may be another process's
        return index if kept is None else kept[0]
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error  # without a name made up
        say_once(
            f"the index of {index.root!r} can not be kept in {str(place.parent)!r} ({reason}): every process scans "
            "the data at every start. Set IMNET_PL_CACHE to a folder that can be written."
        )
        return index


def _remove_unused(folder: Path) -> None:
    """Remove versions, whole or not finished, that no process has used for a month."""
    latest = time.time() - _UNUSED_DAYS * 86_400
    with suppress(OSError):
        for version in folder.glob("*/*"):
            if version.stat().st_mtime < latest:
                shutil.rmtree(version, ignore_errors=True)
