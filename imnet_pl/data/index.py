"""ImageIndex: which pictures there are and what their labels are, as columns."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The pictures of one split as NumPy columns: no Python object for each picture.

    Args:
        root: Folder that the paths are relative to.
        path_bytes: All relative posix paths joined, uint8 [sum of lengths], file-system encoding.
        path_ends: int64 [N], where each path ends in ``path_bytes``.
        labels: int64 [N], position in ``classes``, or -1 for no label.
        classes: Class names in the order of their labels.
    """

    root: str
    path_bytes: NDArray[np.uint8]
    path_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    @classmethod
    def from_rows(
        cls,
        root: Path,
        paths: Iterable[str],
        labels: Iterable[int],
        classes: Sequence[str],
    ) -> "ImageIndex":
        """Build an index from relative posix paths and their labels, in the order given."""
        encoded = [os.fsencode(path) for path in paths]
        return cls(
            root=str(root),
            path_bytes=np.frombuffer(b"".join(encoded), dtype=np.uint8),
            path_ends=np.cumsum([len(path) for path in encoded], dtype=np.int64),
            labels=np.asarray(list(labels), dtype=np.int64),
            classes=tuple(classes),
        )

    def __len__(self) -> int:
        return len(self.path_ends)

    def draw_per_class(self, count: int, seed: int) -> "ImageIndex":
        """Return an index of ``count`` pictures of each class, drawn with a seed, all where there are fewer."""
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(self.labels[order], kind="stable")]
        labels = self.labels[order]
        nth = np.arange(len(self)) - np.searchsorted(labels, labels)
        kept = np.sort(order[nth < count]).tolist()
        paths = [self.relative_path(i) for i in kept]
        root, labels_kept = Path(self.root), self.labels[kept]
        return ImageIndex.from_rows(root, paths, labels_kept, self.classes)

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
