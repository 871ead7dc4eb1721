"""The index of a split and the classes of a table, kept in the user's cache folder until something they come of changes.

index/<what was asked for>/<what the scan looked at>/
  path_bytes.npy, path_ends.npy, labels.npy, ...   columns of the index, memory-mapped by every process that uses it
  looked_at.npy, looked_at_ends.npy, marks.npy     folders and files with their times of change
  kept.json                                        checksums, and what the scan said
index/parts/<their content>/                       columns of the parts into which a split was divided

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from imnet_pl.core.files import (
    cache_dir,
    create_dir_atomically,
    file_crc,
    flush_file,
    notes_folder_changes,
)
from imnet_pl.core.version import VERSION
from imnet_pl.data.index import ImageIndex, PathColumn, split_paths
from imnet_pl.data.sources import auto, trace
from imnet_pl.data.sources.notices import say_once

log = logging.getLogger(__name__)

_FORMAT = 1  # of the files here; another one makes all caches anew
_FACTS, _CLASSES = "kept.json", "classes.json"
_LOOKED_AT = ("looked_at", "looked_at_ends", "marks")
_UNUSED_DAYS = 30
T = TypeVar("T")
_Kept = tuple[T, list[tuple[int, str]]]  # and what its scan said
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def index_split(
    root: Path, split: str, classes: Sequence[str], **options: Any
) -> ImageIndex:
    """Index a split as ``auto.index_split`` does with the same arguments, or load what an earlier scan found.

    The index's root is absolute.

    Raises:
        UserError: As ``auto.index_split``.
    """
    asked = {
        **options,
        "image_root": _absolute(options.get("image_root")),
        "split": split,
        "classes": list(classes),
    }
    place = _place_of(root, asked)
    if (kept := _find(place, _open_index)) is not None:
        return kept
    with trace.tracing(f"{split} in {str(root)!r}") as seen:
        index = auto.index_split(root, split, classes, **options)
        seen.progress.count = len(index)
    if index.folder is not None:  # of packed data, kept beside it
        return index
    index = replace(index, root=os.path.abspath(index.root))  # noqa: PTH100
    if not _can_be_kept(root, seen):
        return index
    return _keep(place, index, index.save, _open_index, seen)


def train_classes(root: Path, *arguments: Any) -> Sequence[str]:
    """List the classes as ``auto.train_classes`` does with the same arguments, or load what an earlier look found.

    Only those of a table are kept, which has to be read for them.

    Raises:
        UserError: As ``auto.train_classes``.
    """
    if not root.is_file():
        return auto.train_classes(root, *arguments)
    place = _place_of(root, {"classes by": arguments})
    if (kept := _find(place, _read_classes)) is not None:
        return kept
    with trace.tracing(f"classes in {str(root)!r}") as seen:
        classes = auto.train_classes(root, *arguments)

    def write(folder: Path) -> None:
        text = json.dumps(classes)
        (folder / _CLASSES).write_text(text, encoding="utf-8")

    if not _can_be_kept(root, seen):
        return classes
    return _keep(place, classes, write, _read_classes, seen)


def keep_part(part: ImageIndex, whole: ImageIndex) -> ImageIndex:
    """Return a part of a memory-mapped index memory-mapped too, so that worker processes need no copy of it.

    As it is, where the whole is none or the part can not be written.
    """
    if whole.folder is None:
        return part
    columns = part.columns()
    texts = {name: column.names for name, column in part.named_columns().items()}
    known = json.dumps([_FORMAT, VERSION, part.root, part.classes, texts])
    name = hashlib.sha256(known.encode())
    for array in columns.values():
        name.update(np.ascontiguousarray(array).data)
    target = cache_dir() / "index" / "parts" / name.hexdigest()[:24]
    verify_crc = part.members is not None and part.members.verify_crc
    try:
        create_dir_atomically(target, part.save)
        os.utime(target)
        kept = ImageIndex.open(str(target), part.root, verify_crc)
        there = kept.columns()
        if all(np.array_equal(there[name], columns[name]) for name in columns):
            return kept
    except _DAMAGE as error:
        log.info("a part of the index can not be kept in %s (%s).", target, error)
    shutil.rmtree(target, ignore_errors=True)
    return part


def _can_be_kept(root: Path, seen: trace.Trace) -> bool:
    if not seen.is_settled():
        return False
    is_noted = notes_folder_changes(root)
    if not is_noted:
        say_once(
            f"{str(root)!r} lies on a file system that does not note when a folder changes: it is scanned at every "
            "start.",
            logging.INFO,
        )
    return is_noted


def _open_index(folder: Path) -> ImageIndex:
    return ImageIndex.open(str(folder))


def _read_classes(folder: Path) -> list[str]:
    classes: list[str] = json.loads((folder / _CLASSES).read_text(encoding="utf-8"))
    return classes


def _place_of(root: Path, asked: dict[str, Any]) -> Path:
    """Return the folder of all versions of what is asked for."""
    key = {
        **asked,
        "root": [_absolute(root), os.path.realpath(root)],
        "format": [_FORMAT, VERSION],
    }
    text = json.dumps(key, sort_keys=True)
    return cache_dir() / "index" / hashlib.sha256(text.encode()).hexdigest()[:24]


def _absolute(path: Path | None) -> str | None:
    return None if path is None else os.path.abspath(path)  # noqa: PTH100


def _find(place: Path, read: Callable[[Path], T]) -> T | None:
    """Return the version in which nothing has changed, if there is one, and say what its scan said.

    A damaged one is removed.
    """
    with suppress(OSError):
        for folder in sorted(place.iterdir()):
            if folder.name.startswith("."):  # not finished
                continue
            try:
                if (kept := _open_current(folder, read)) is not None:
                    found, notices = kept
                    for level, text in notices:
                        say_once(text, level)
                    return found
            except _DAMAGE as error:
                log.warning(
                    "the kept index %s is damaged (%s); it is made anew.", folder, error
                )
                shutil.rmtree(folder, ignore_errors=True)
    return None


def _open_current(folder: Path, read: Callable[[Path], T]) -> _Kept[T] | None:
    """Return what a version holds, and what its scan said; None if something has changed since.

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
    return read(folder), facts["notices"]


def _require_whole(file: Path, checksum: int) -> None:
    if file_crc(file) != checksum:
        raise ValueError(f"{file.name} is not as it was written")


def _keep(
    place: Path,
    found: T,
    write: Callable[[Path], None],
    read: Callable[[Path], T],
    seen: trace.Trace,
) -> T:
    """Write what was found and return it as it is read; as it is, with a notice, where it can not be written."""
    paths = sorted(seen.marks)
    marks = np.array([seen.marks[path] for path in paths], dtype=np.int64)
    column = PathColumn()
    column.extend(paths)
    joined, ends = column.arrays()
    arrays: tuple[NDArray[Any], ...] = (joined, ends, marks)
    version = hashlib.sha256(b"".join(array.tobytes() for array in arrays))

    def fill(folder: Path) -> None:
        write(folder)
        for name, array in zip(_LOOKED_AT, arrays, strict=True):
            np.save(folder / f"{name}.npy", array)
        files = sorted(folder.iterdir())
        checksums = {file.name: file_crc(file) for file in files}
        facts = {"checksums": checksums, "notices": seen.notices}
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
        for file in (*files, folder / _FACTS):
            flush_file(file)

    target = place / version.hexdigest()[:24]
    try:
        create_dir_atomically(target, fill)
        _remove_unused(place.parent)
        kept = _open_current(target, read)  # it may be another process's
        return found if kept is None else kept[0]
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error  # without a name made up
        say_once(
            f"the index of the data can not be kept in {str(place.parent)!r} ({reason}): every process scans "
            "the data at every start. Set IMNET_PL_CACHE to a folder that can be written."
        )
        return found


def _remove_unused(folder: Path) -> None:
    """Remove versions, whole or not finished, that no process has used for a month."""
    latest = time.time() - _UNUSED_DAYS * 86_400
    with suppress(OSError):
        for version in folder.glob("*/*"):
            if version.stat().st_mtime < latest:
                shutil.rmtree(version, ignore_errors=True)
