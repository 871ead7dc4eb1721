"""What is wrong or worth a look in a data set, from the facts of its pictures."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from imnet_pl.core.errors import some_of
from imnet_pl.data.duplicates import (
    NEAR_BITS,
    Place,
    exact_duplicates,
    near_duplicates,
)
from imnet_pl.data.inspection import Inspection
from imnet_pl.data.sources import scan
from imnet_pl.data.splits import crossing_groups

Severity = Literal["fix", "look", "note"]

_MAX_IMBALANCE = 10.0


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Args:
        kind: A word for the kind, such as ``unreadable``.
        severity: ``fix``: training on it is wrong; ``look``: it may be; ``note``: unusual, and handled.
        text: What it is.
        split: Split of the picture, or nothing.
        path: The picture relative to the data root, or another thing's name, or nothing.
        other_split: Split of the second picture of a pair.
        other_path: The second picture of a pair.
    """

    kind: str
    severity: Severity
    text: str
    split: str = ""
    path: str = ""
    other_split: str = ""
    other_path: str = ""


def find_all(
    inspections: Mapping[str, Inspection], group: str | None, near: bool
) -> Iterator[Finding]:
    """Yield all findings about pictures and classes.

    Args:
        inspections: By split.
        group: As of ``splits.groups_of``.
        near: Also look for nearly equal pictures in different splits.
    """
    for split, seen in inspections.items():
        yield from _pictures(split, seen)
        yield from _classes(split, seen)
    yield from _missing_classes(inspections)
    yield from _duplicates(inspections)
    for a, b in combinations(inspections, 2):
        for name in crossing_groups(inspections[a].index, inspections[b].index, group):
            text = f"group {name} is in {a} and in {b}"
            yield Finding("crossing_group", "fix", text, a, name, b, name)
        if near:
            yield from _near(inspections, a, b)


def _pictures(split: str, seen: Inspection) -> Iterator[Finding]:
    for row, error in seen.errors.items():
        path = seen.index.relative_path(row)
        yield Finding("unreadable", "fix", error, split, path)
    for row, odd in seen.odd.items():
        yield Finding("odd", "note", odd, split, seen.index.relative_path(row))


def _classes(split: str, seen: Inspection) -> Iterator[Finding]:
    counts = seen.index.class_counts()
    present = counts[counts > 0]
    if split != "train" or not len(present):
        return
    names = seen.index.classes
    ratio = present.max() / present.min()
    if ratio > _MAX_IMBALANCE:
        most, least = (
            int(counts.argmax()),
            int(np.where(counts, counts, counts.max()).argmin()),
        )
        yield Finding(
            "imbalance",
            "look",
            f"{names[most]} has {counts[most]} training pictures, {names[least]} has {counts[least]}",
            split,
        )
    for label in np.flatnonzero(counts == 1).tolist():
        yield Finding(
            "one_picture",
            "look",
            f"class {names[label]} has one training picture",
            split,
        )


def _missing_classes(inspections: Mapping[str, Inspection]) -> Iterator[Finding]:
    counts = {split: seen.index.class_counts() for split, seen in inspections.items()}
    for split, here in counts.items():
        if split == "train" or "train" not in counts:
            continue
        names = inspections[split].index.classes
        bare = np.flatnonzero((counts["train"] == 0) & (here > 0)).tolist()
        lacking = np.flatnonzero((counts["train"] > 0) & (here == 0)).tolist()
        for label in bare:
            text = f"class {names[label]} has pictures in {split} and none in train"
            yield Finding("class_without_train", "fix", text, split)
        if lacking:
            text = f"{len(lacking)} classes have no picture in {split} ({some_of(names[i] for i in lacking)})"
            yield Finding("class_without_pictures", "look", text, split)


def _duplicates(inspections: Mapping[str, Inspection]) -> Iterator[Finding]:
    for places in exact_duplicates(inspections):
        first = places[0]
        for other in places[1:]:
            labels = [_label(inspections, place) for place in (first, other)]
            if labels[0] != labels[1]:
                text = f"the same picture as {labels[0]} and as {labels[1]}"
                yield _pair(
                    "conflicting_duplicate", "fix", text, inspections, first, other
                )
            elif first.split != other.split:
                text = f"the same picture in {first.split} and in {other.split}"
                yield _pair("leaked_duplicate", "fix", text, inspections, first, other)
            else:
                text = "the same picture twice"
                yield _pair("duplicate", "look", text, inspections, first, other)


def _near(inspections: Mapping[str, Inspection], a: str, b: str) -> Iterator[Finding]:
    left, right = inspections[a], inspections[b]
    for i, j, bits in near_duplicates(left, right, NEAR_BITS):
        if bytes(left.thumbnail_digests[i]) == bytes(right.thumbnail_digests[j]):
            continue  # named as exact ones, if their pixels are equal
        text = f"nearly the same picture ({bits} of 64 bits differ)"
        yield _pair(
            "near_duplicate", "look", text, inspections, Place(a, i), Place(b, j)
        )


def _label(inspections: Mapping[str, Inspection], place: Place) -> str:
    index = inspections[place.split].index
    label = int(index.labels[place.row])
    return index.classes[label] if label >= 0 else "no class"


def _pair(
    kind: str,
    severity: Severity,
    text: str,
    inspections: Mapping[str, Inspection],
    first: Place,
    other: Place,
) -> Finding:
    paths = [inspections[p.split].index.relative_path(p.row) for p in (first, other)]
    return Finding(kind, severity, text, first.split, paths[0], other.split, paths[1])


def find_side_files(root: Path) -> Iterator[Finding]:
    """Yield the files below a folder that are not taken for pictures."""
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            is_hidden = scan.is_hidden(name)
            if is_hidden or not scan.has_image_suffix(name):
                path = (Path(folder) / name).relative_to(root).as_posix()
                what = (
                    "a hidden or system file"
                    if is_hidden
                    else "not a picture by its name"
                )
                yield Finding("side_file", "note", what, path=path)
