"""The shards of one split written in order, each whole or not at all, so that a restart goes on after the last.

A finished shard has a record beside it in the folder ``.packing``: the rows that are in it and their columns.
"""

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import (
    create_dir_atomically,
    file_crc,
    flush_file,
    replace_file,
)
from imnet_pl.data import shards
from imnet_pl.data.index import ImageIndex, PathColumn
from imnet_pl.data.members import COLUMNS, Members
from imnet_pl.data.packing import PackedPicture

_DTYPES = {"offset": np.int64, "crc": np.uint32}


@dataclass
class ShardRecord:
    """What is in one shard.

    Args:
        number: Which shard of the split.
        stop: How many pictures of the split were looked at, from the first shard on.
        rows: Rows of the source that are in it.
        names: Their names.
        places: Their (shard, offset, length, width, height, crc).
        bad: (row, reason) of pictures that can not be read.
        num_encoded: How many were encoded anew.
        size: Bytes of the file.
        crc: CRC-32 of the file.
    """

    number: int
    stop: int
    rows: list[int] = field(default_factory=list)
    names: PathColumn = field(default_factory=PathColumn)
    places: list[tuple[int, ...]] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    num_encoded: int = 0
    size: int = 0
    crc: int = 0

    def facts(self) -> dict[str, Any]:
        """Return what is neither a row nor a column."""
        names = ("number", "stop", "bad", "num_encoded", "size", "crc")
        return {name: getattr(self, name) for name in names}


class ShardWriter:
    """Writes pictures of a split one after the other.

    Args:
        root: Folder of the shard set.
        split: ``train``, ``val`` or ``test``.
        shard_bytes: A shard is closed when it has so many.

    Attributes:
        records: Of the finished shards, those of an earlier process too.
    """

    def __init__(self, root: Path, split: str, shard_bytes: int) -> None:
        self.root, self.split, self.shard_bytes = root, split, shard_bytes
        self.records = list(_read_records(root, split))
        self._file: BinaryIO | None = None
        self._record: ShardRecord | None = None

    @property
    def start(self) -> int:
        """How many pictures, in the order of packing, are in finished shards or were left out of them."""
        return self.records[-1].stop if self.records else 0

    @property
    def _partial(self) -> Path:
        number = len(self.records)
        return self.root / f"{shards.shard_name(self.split, number)}.part"

    def add(self, place: int, row: int, picture: PackedPicture) -> None:
        """Write a picture; one without a name is left out, and its error noted.

        Args:
            place: How many were looked at before it.
            row: Its row of the source.
            picture: What is written.

        Raises:
            OSError: The disk is full or fails.
        """
        # Not as soon as it is full: pictures that are left out go with those before them.
        is_full = self._record is not None and self._record.size >= self.shard_bytes
        if is_full and picture.name:
            self.close_shard()
        record = self._record
        if record is None:
            record = self._record = ShardRecord(len(self.records), place)
        record.stop = place + 1
        if picture.error:
            record.bad.append((row, picture.error))
        if not picture.name:
            return
        offset = record.size + len(picture.header)
        self._write(picture.header, picture.data, shards.padding(len(picture.data)))
        record.rows.append(row)
        record.names.extend([picture.name])
        member = (record.number, offset, len(picture.data), picture.width)
        record.places.append((*member, picture.height, picture.crc))
        record.num_encoded += picture.is_encoded

    def _write(self, *parts: bytes) -> None:
        assert self._record is not None
        if self._file is None:
            self._file = self._partial.open("wb")
        for part in parts:
            self._file.write(part)
            self._record.crc = zlib.crc32(part, self._record.crc)
            self._record.size += len(part)

    def close_shard(self) -> None:
        """Finish the shard that is being written, if there is one: the file first, then its record.

        Raises:
            OSError: The disk is full or fails.
        """
        if self._record is None or self._file is None:
            return
        self._write(shards.end_of_archive(self._record.size))
        self._file.close()
        flush_file(self._partial)
        name = shards.shard_name(self.split, self._record.number)
        replace_file(self._partial, self.root / name)
        _write_record(
            _record_file(self.root, self.split, self._record.number), self._record
        )
        self.records.append(self._record)
        self._file = self._record = None

    def abandon(self) -> None:
        """Remove the shard that is not finished."""
        if self._file is not None:
            with suppress(
                OSError
            ):  # it writes what is left, for which a full disk has no room
                self._file.close()
            self._partial.unlink(missing_ok=True)

    def finish(
        self, source: ImageIndex, packed: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Close the last shard and write the index of the split; return its facts for ``pack.json``.

        The index has the rows in the order of the source, wherever the pictures lie.

        Args:
            source: The pictures that were packed.
            packed: How pictures were encoded anew, if any were.

        Raises:
            UserError: No picture can be read.
            OSError: The disk is full or fails.
        """
        self.close_shard()
        bad = sorted(item for record in self.records for item in record.bad)
        if not self.records:
            raise UserError(
                f"data.root={source.root!r}: none of the {len(source)} pictures of {self.split} can be read "
                f"({self._record.bad[0][1] if self._record else 'there are none'}); run 'check-data' to see why."
            )
        num_encoded = sum(record.num_encoded for record in self.records)
        index = self._build_index(source, packed if num_encoded else None)
        folder = shards.index_folder(self.root, self.split)
        shutil.rmtree(folder, ignore_errors=True)
        create_dir_atomically(folder, lambda staging: _save_flushed(index, staging))
        return {
            "num_samples": len(index),
            "num_encoded": num_encoded,
            "fingerprint": index.fingerprint,
            "bad": [[source.relative_path(row), reason] for row, reason in bad],
            "shards": [
                {"name": name, "size": record.size, "crc": record.crc}
                for name, record in zip(
                    index.members.shards if index.members else (),
                    self.records,
                    strict=True,
                )
            ],
            "index": {file.name: file_crc(file) for file in sorted(folder.iterdir())},
        }

    def _build_index(
        self, source: ImageIndex, packed: Mapping[str, Any] | None
    ) -> ImageIndex:
        rows = np.array([row for r in self.records for row in r.rows], dtype=np.int64)
        paths = PathColumn()
        for record in self.records:
            paths.join(record.names)
        places = np.array([p for r in self.records for p in r.places], dtype=np.int64)
        columns: dict[str, Any] = {
            name: places[:, i].astype(_DTYPES.get(name, np.int32))
            for i, name in enumerate(COLUMNS)
        }
        names = tuple(shards.shard_name(self.split, r.number) for r in self.records)
        path_bytes, path_ends = paths.arrays()
        index = ImageIndex(
            root=".",
            path_bytes=path_bytes,
            path_ends=path_ends,
            labels=source.labels[rows],
            classes=source.classes,
            groups=source.groups and source.groups.take(rows),
            times=source.times and source.times.take(rows),
            members=Members(names, **columns, packed=packed),
        )
        by_row = np.argsort(rows, kind="stable")
        is_sorted = bool((np.diff(by_row) == 1).all())
        return index if is_sorted else index.take(by_row)


def _save_flushed(index: ImageIndex, folder: Path) -> None:
    index.save(folder)
    for file in folder.iterdir():
        flush_file(file)


def _record_file(root: Path, split: str, number: int) -> Path:
    return root / shards.UNFINISHED / f"{split}-{number:05d}.npz"


def _write_record(file: Path, record: ShardRecord) -> None:
    joined, ends = record.names.arrays()
    facts = np.frombuffer(json.dumps(record.facts()).encode(), dtype=np.uint8)
    partial = file.with_name(f"{file.name}.part")
    with partial.open("wb") as out:
        np.savez(
            out,
            facts=facts,
            rows=np.array(record.rows, dtype=np.int64),
            places=np.array(record.places, dtype=np.int64),
            path_bytes=joined,
            path_ends=ends,
        )
    flush_file(partial)
    replace_file(partial, file)


def _read_records(root: Path, split: str) -> Iterator[ShardRecord]:
    """Yield the records of the finished shards."""
    for number in count():
        file = _record_file(root, split, number)
        if not file.is_file():
            return
        with np.load(file) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            names = PathColumn()
            names.joined += arrays["path_bytes"].tobytes()
            names.lengths.append(np.diff(arrays["path_ends"], prepend=0))
            rows, places = arrays["rows"].tolist(), arrays["places"].tolist()
        bad = [(row, reason) for row, reason in facts.pop("bad")]
        yield ShardRecord(**facts, rows=rows, names=names, places=places, bad=bad)
