"""ImageIndex: which pictures there are and what their labels are, as columns."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from imnet_pl.data.members import COLUMNS, Members

NO_LABEL = -1

_FACTS = "index.json"
_CHUNK = 16_384  # paths that are objects at once


@dataclass(frozen=True, eq=False)
class Codes:
    """A column of texts as numbers: which group a picture is of, or when it was taken.

    Args:
        codes: int64 [N], position in ``names``, or -1 where the cell is blank.
        names: The distinct texts, in their order.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], value: Callable[[str], Any] = str
    ) -> "Codes":
        """Build a column; texts of equal ``value`` are one, and the names are sorted by it."""
        name_of: dict[Any, str] = {}
        values = {text: value(text) for text in set(texts) if text}
        for text in sorted(values):
            name_of.setdefault(values[text], text)
        ordered = sorted(name_of)
        code_of = {key: code for code, key in enumerate(ordered)}
        to_code = {text: code_of[key] for text, key in values.items()} | {"": -1}
        codes = np.fromiter((to_code[text] for text in texts), np.int64, len(texts))
        return cls(codes, tuple(name_of[key] for key in ordered))

    def take(self, rows: NDArray[np.int64]) -> "Codes":
        """Return the column of some rows."""
        return Codes(self.codes[rows], self.names)


class PathColumn:
    """Joins paths as they come, so that those of a large set are never Python objects all at once."""

    def __init__(self) -> None:
        self.joined = bytearray()  # in the file system's encoding
        self.lengths = [np.empty(0, np.int32)]

    def extend(self, paths: Sequence[str], prefix: str = "") -> None:
        """Add paths, each with a prefix."""
        if not paths:
            return
        text = prefix + prefix.join(paths)
        encoded = os.fsencode(text)
        self.joined += encoded
        if len(encoded) == len(text):  # ASCII
            lengths = [len(prefix) + len(path) for path in paths]
        else:
            lengths = [len(os.fsencode(prefix + path)) for path in paths]
        self.lengths.append(np.asarray(lengths, dtype=np.int32))

    def __len__(self) -> int:
        return sum(map(len, self.lengths))

    def join(self, other: "PathColumn") -> None:
        """Add the paths of another column."""
        self.joined += other.joined
        self.lengths += other.lengths

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the joined paths, uint8 [sum of lengths], and where each ends, int64 [N]."""
        joined = np.frombuffer(self.joined, dtype=np.uint8)
        joined.flags.writeable = False
        return joined, np.cumsum(np.concatenate(self.lengths), dtype=np.int64)


def split_paths(
    joined: NDArray[np.uint8], ends: NDArray[np.int64], start: int, stop: int
) -> list[bytes]:
    """Return some of the paths that a ``PathColumn`` joined."""
    first = int(ends[start - 1]) if start else 0
    stops = ends[start:stop].tolist()
    text = joined[first : stops[-1] if stops else first].tobytes()
    return [text[a - first : b - first] for a, b in pairwise([first, *stops])]


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The pictures of one split as NumPy columns: no Python object for each picture.

    One that was opened from a folder is memory-mapped and pickled as the name of that folder, so that a worker
    process gets it at no cost.

    Args:
        root: Folder that the paths are relative to.
        path_bytes: All relative posix paths joined, uint8 [sum of lengths], file-system encoding.
        path_ends: int64 [N], where each path ends in ``path_bytes``.
        labels: int64 [N], position in ``classes``, or -1 for no label.
        classes: Class names in the order of their labels.
        groups: What must not be on both sides of a split, such as a patient; None: not known.
        times: When a picture was taken, names in the order of time; None: not known.
        members: Where the pictures lie in shards; None: each is a file.
        folder: Where it was opened from; None: it is in memory.
    """

    root: str
    path_bytes: NDArray[np.uint8]
    path_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    groups: Codes | None = None
    times: Codes | None = None
    members: Members | None = None
    folder: str | None = None

    @classmethod
    def from_rows(
        cls,
        root: Path,
        paths: Iterable[str],
        labels: Iterable[int],
        classes: Sequence[str],
        groups: Codes | None = None,
        times: Codes | None = None,
        members: Members | None = None,
    ) -> "ImageIndex":
        """Build an index from relative posix paths and their labels, in the order given."""
        column = PathColumn()
        column.extend(list(paths))
        path_bytes, path_ends = column.arrays()
        return cls(
            root=str(root),
            path_bytes=path_bytes,
            path_ends=path_ends,
            labels=np.asarray(list(labels), dtype=np.int64),
            classes=tuple(classes),
            groups=groups,
            times=times,
            members=members,
        )

    def __len__(self) -> int:
        return len(self.path_ends)

    def draw_per_class(self, count: int, seed: int) -> "ImageIndex":
        """Return an index of ``count`` pictures of each class, drawn with a seed, all where there are fewer."""
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(self.labels[order], kind="stable")]
        labels = self.labels[order]
        nth = np.arange(len(self)) - np.searchsorted(labels, labels)
        return self.take(np.sort(order[nth < count]))

    def take(self, rows: NDArray[np.int64]) -> "ImageIndex":
        """Return an index of some pictures, by their positions, int64 [M]."""
        return ImageIndex.from_rows(
            Path(self.root),
            [self.relative_path(i) for i in rows.tolist()],
            self.labels[rows],
            self.classes,
            groups=self.groups and self.groups.take(rows),
            times=self.times and self.times.take(rows),
            members=self.members and self.members.take(rows),
        )

    def relative_path(self, index: int) -> str:
        """Return the posix path of a picture relative to ``root``."""
        start = int(self.path_ends[index - 1]) if index else 0
        return os.fsdecode(
            self.path_bytes[start : int(self.path_ends[index])].tobytes()
        )

    def path(self, index: int) -> str:
        """Return the path of a picture; of one in a shard that of the shard, a colon, and its name there."""
        path = self.relative_path(index)
        # Not by pathlib, which takes ten times as long; a path may be absolute.
        if self.members is None:
            return os.path.join(self._base, path.replace("/", os.sep))  # noqa: PTH118
        shard = self.members.shards[int(self.members.shard[index])]
        return f"{os.path.join(self._base, shard)}: {path}"  # noqa: PTH118

    @cached_property
    def _base(self) -> str:
        base = str(Path(self.root))
        return "" if base == "." else base

    def class_counts(self) -> NDArray[np.int64]:
        """Return how many pictures each class has, int64 [len(classes)]."""
        labelled = self.labels[self.labels >= 0]
        return np.bincount(labelled, minlength=len(self.classes)).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the sorted (relative posix path, class name) rows, without the root."""
        digest, last = hashlib.sha256(), b""
        for rows in self._rows():
            # Class folders mostly are in order: then no more than a chunk is in memory.
            if rows[0] < last or rows != sorted(rows):
                return _digest_sorted(chain.from_iterable(self._rows()))
            digest.update(b"\n".join(rows) + b"\n")
            last = rows[-1]
        return digest.hexdigest()

    def _rows(self) -> Iterator[list[bytes]]:
        """Yield chunks of path, tab and class name of each picture."""
        endings = [b"\t" + os.fsencode(name) for name in self.classes]
        endings.append(b"\t")  # found by NO_LABEL
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            paths = split_paths(self.path_bytes, self.path_ends, part.start, part.stop)
            labels = self.labels[part].tolist()
            yield [p + endings[i] for p, i in zip(paths, labels, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Return facts about the data in plain types: number of pictures, fingerprint, how they were encoded anew."""
        facts: dict[str, Any] = {
            "num_samples": len(self),
            "fingerprint": self.fingerprint,
        }
        if self.members is not None and self.members.packed is not None:
            facts["packed"] = dict(self.members.packed)
        return facts

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all columns by name, each [N] or, ``path_bytes``, longer."""
        columns: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in ("path_bytes", "path_ends", "labels")
        }
        columns |= {name: column.codes for name, column in self.named_columns().items()}
        return columns | (self.members.columns() if self.members is not None else {})

    def named_columns(self) -> dict[str, Codes]:
        """Return groups and times, as far as there are any."""
        codes = {"groups": self.groups, "times": self.times}
        return {name: column for name, column in codes.items() if column is not None}

    def save(self, folder: Path) -> None:
        """Write the columns as .npy files, and the rest as JSON, into a folder."""
        for name, array in self.columns().items():
            np.save(folder / f"{name}.npy", array)
        facts: dict[str, Any] = {
            "root": self.root,
            "classes": self.classes,
            "names": {
                name: column.names for name, column in self.named_columns().items()
            },
            "fingerprint": self.fingerprint,
        }
        if self.members is not None:
            facts["shards"] = self.members.shards
            facts["packed"] = self.members.packed
        (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def open(
        cls, folder: str, root: str | None = None, verify_crc: bool = False
    ) -> "ImageIndex":
        """Return an index that was saved, memory-mapped.

        Args:
            folder: Where it was saved.
            root: Another folder that the paths are relative to.
            verify_crc: Compare the CRC of every picture that is read from a shard.
        """

        def column(name: str) -> NDArray[Any]:
            # A slice of a plain array takes a fifth of the time of one of a memmap.
            return np.asarray(np.load(Path(folder) / f"{name}.npy", mmap_mode="r"))

        facts = json.loads((Path(folder) / _FACTS).read_text(encoding="utf-8"))
        codes = {n: Codes(column(n), tuple(t)) for n, t in facts["names"].items()}
        members = None
        if shards := facts.get("shards"):
            places: dict[str, Any] = {name: column(name) for name in COLUMNS}
            members = Members(tuple(shards), **places, packed=facts["packed"])
            members.verify_crc = verify_crc
        index = cls(
            root=facts["root"] if root is None else root,
            path_bytes=column("path_bytes"),
            path_ends=column("path_ends"),
            labels=column("labels"),
            classes=tuple(facts["classes"]),
            folder=folder,
            members=members,
            **codes,
        )
        vars(index)["fingerprint"] = facts["fingerprint"]  # as cached_property does
        return index

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self.folder is None:
            return super().__reduce_ex__(protocol)
        verify_crc = self.members is not None and self.members.verify_crc
        return ImageIndex.open, (self.folder, self.root, verify_crc)


def _digest_sorted(rows: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for row in sorted(rows):
        digest.update(row + b"\n")
    return digest.hexdigest()
