"""ImageIndex: which pictures there are and what their labels are, as columns."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1


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


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The pictures of one split as NumPy columns: no Python object for each picture.

    Args:
        root: Folder that the paths are relative to.
        path_bytes: All relative posix paths joined, uint8 [sum of lengths], file-system encoding.
        path_ends: int64 [N], where each path ends in ``path_bytes``.
        labels: int64 [N], position in ``classes``, or -1 for no label.
        classes: Class names in the order of their labels.
        groups: What must not be on both sides of a split, such as a patient; None: not known.
        times: When a picture was taken, names in the order of time; None: not known.
    """

    root: str
    path_bytes: NDArray[np.uint8]
    path_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    groups: Codes | None = None
    times: Codes | None = None

    @classmethod
    def from_rows(
        cls,
        root: Path,
        paths: Iterable[str],
        labels: Iterable[int],
        classes: Sequence[str],
        groups: Codes | None = None,
        times: Codes | None = None,
    ) -> "ImageIndex":
        """Build an index from relative posix paths and their labels, in the order given."""
        encoded = [os.fsencode(path) for path in paths]
        return cls(
            root=str(root),
            path_bytes=np.frombuffer(b"".join(encoded), dtype=np.uint8),
            path_ends=np.cumsum([len(path) for path in encoded], dtype=np.int64),
            labels=np.asarray(list(labels), dtype=np.int64),
            classes=tuple(classes),
            groups=groups,
            times=times,
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
        )

    def relative_path(self, index: int) -> str:
        """Return the posix path of a picture relative to ``root``."""
        start = int(self.path_ends[index - 1]) if index else 0
        return os.fsdecode(
            self.path_bytes[start : int(self.path_ends[index])].tobytes()
        )

    def path(self, index: int) -> str:
        """Return the path of a picture."""
        return str(Path(self.root) / self.relative_path(index))

    def class_counts(self) -> NDArray[np.int64]:
        """Return how many pictures each class has, int64 [len(classes)]."""
        labelled = self.labels[self.labels >= 0]
        return np.bincount(labelled, minlength=len(self.classes)).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the sorted (relative posix path, class name) rows, without the root."""
        names = [os.fsencode(name) for name in self.classes]
        rows = sorted(
            os.fsencode(self.relative_path(i))
            + b"\t"
            + (names[label] if label >= 0 else b"")
            for i, label in enumerate(self.labels.tolist())
        )
        digest = hashlib.sha256()
        for row in rows:
            digest.update(row + b"\n")
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return facts about the data in plain types: number of pictures and fingerprint."""
        return {"num_samples": len(self), "fingerprint": self.fingerprint}
