"""Packed data, as the verb pack writes it.

root/
  pack.json                    what was packed, and how
  train-00000.tar, ...         tar files of pictures: train/n01440764/*.JPEG
  val-00000.tar, ...
  index/{train,val}/*.npy
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data import shards
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.sources import trace
from imnet_pl.data.sources.layout import Options
from imnet_pl.data.sources.notices import say


def matches(root: Path, split: str) -> bool:
    """Tell whether a split lies below ``root`` in this layout."""
    shards.require_finished(root)
    return shards.is_shard_set(root) and split in shards.read_facts(root)["splits"]


def list_classes(root: Path, options: Options) -> list[str]:
    """Return the classes that the training pictures had when they were packed.

    Raises:
        UserError: It is no packed data.
    """
    return list(_read_facts(root)["classes"])


def index_split(
    root: Path, split: str, classes: Sequence[str], options: Options
) -> ImageIndex:
    """Open the index of a split; with the classes that were packed it is the memory-mapped one.

    Raises:
        UserError: A shard is missing or another one than was written, or pictures are of no class.
    """
    facts = _read_facts(root)
    names = [fact["name"] for s in facts["splits"].values() for fact in s["shards"]]
    trace.look_at(root / shards.FACTS, *(root / name for name in names))
    index = _with_classes(shards.open_split(root.absolute(), split), classes, root)
    trace.count_pictures(len(index))
    if lacking := np.flatnonzero(index.class_counts() == 0).tolist():
        absent = some_of(classes[label] for label in lacking)
        say(f"{split} has no pictures of {len(lacking)} classes: {absent}.")
    return index


def _with_classes(index: ImageIndex, classes: Sequence[str], root: Path) -> ImageIndex:
    """Return an index whose labels are positions in ``classes``."""
    if index.classes == tuple(classes):
        return index
    class_to_idx = {name: label for label, name in enumerate(classes)}
    counts = index.class_counts().tolist()
    unknown = [
        name
        for name, count in zip(index.classes, counts, strict=True)
        if count and name not in class_to_idx
    ]
    if unknown:
        raise UserError(
            f"data.root={str(root)!r}: {len(unknown)} of the classes that were packed are not among the "
            f"{len(classes)} classes: {some_of(unknown)}. List every class in data.classes."
        )
    new_labels = np.array([class_to_idx.get(name, -1) for name in index.classes] + [-1])
    changed = replace(
        index, labels=new_labels[index.labels], classes=tuple(classes), folder=None
    )
    vars(changed)["fingerprint"] = index.fingerprint  # of class names, not of labels
    return changed


def _read_facts(root: Path) -> dict[str, Any]:
    shards.require_finished(root)
    if not shards.is_shard_set(root):
        raise UserError(
            f"data.root={str(root)!r} has no {shards.FACTS}, so it is no packed data; leave out data.source to let it "
            "be recognised, or pack it with 'python cli.py pack'."
        )
    return shards.read_facts(root)
