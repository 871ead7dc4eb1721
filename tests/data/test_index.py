"""Columns of an index: the fingerprint, and what goes to a worker process."""

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from layouts import assert_same

from imnet_pl.data import index as index_module
from imnet_pl.data.index import ImageIndex, PathColumn, split_paths


def test_an_index_of_many_classes_is_small_for_a_worker(tmp_path):
    names = [f"class_{i:04}" for i in range(1000)]
    paths = [f"{name}/{'x' * 40}_{i}.jpg" for name in names for i in range(20)]
    index = ImageIndex.from_rows(tmp_path, paths, np.repeat(range(1000), 20), names)
    index.save(tmp_path)
    kept = ImageIndex.open(str(tmp_path))
    assert len(pickle.dumps(kept)) < 10_000 < len(pickle.dumps(index))
    assert_same(pickle.loads(pickle.dumps(kept)), index)


def test_fingerprint_is_that_of_sorted_rows_in_any_order(tmp_path, monkeypatch):
    """Pinned: checkpoints hold it. By chunks, across their borders, without labels, not ASCII."""
    monkeypatch.setattr(index_module, "_CHUNK", 4)
    names = ["a", "é猫", "a-b"]
    paths = [f"train/{n}/{i}.jpg" for n in names for i in range(5)] + ["x/\udcff.jpg"]
    labels = [0] * 5 + [1] * 5 + [2] * 5 + [-1]

    def fingerprint(order):
        picked = [[column[i] for i in order] for column in (paths, labels)]
        return ImageIndex.from_rows(tmp_path, *picked, names).fingerprint

    rows = [
        os.fsencode(f"{path}\t{names[label] if label >= 0 else ''}\n")
        for path, label in zip(paths, labels, strict=True)
    ]
    expected = hashlib.sha256(b"".join(sorted(rows))).hexdigest()
    in_order = sorted(range(len(rows)), key=rows.__getitem__)
    for order in (
        range(len(rows)),
        in_order,
        in_order[::-1],
        [*in_order[8:], *in_order[:8]],
    ):
        assert fingerprint(order) == expected
    assert expected.startswith("03a256bc0618eef0")


def test_paths_are_joined_in_the_encoding_of_the_file_system():
    column, more = PathColumn(), PathColumn()
    column.extend(["a.jpg", "b/c.jpg"], prefix="train/")
    column.extend([])
    more.extend(["é.jpg", "\udcff猫.jpg", ""], prefix="ü/")
    column.join(more)
    names = ["train/a.jpg", "train/b/c.jpg", "ü/é.jpg", "ü/\udcff猫.jpg", "ü/"]
    joined, ends = column.arrays()
    assert len(column) == len(names)
    assert split_paths(joined, ends, 0, 5) == [os.fsencode(name) for name in names]
    assert split_paths(joined, ends, 3, 9) == [os.fsencode(name) for name in names[3:]]
    assert split_paths(*PathColumn().arrays(), 0, 1) == []


@pytest.mark.parametrize("root", [".", "data", "data/", "/data", "/"])
@pytest.mark.parametrize("name", ["a.jpg", "n01/a b.jpg", "/elsewhere/a.jpg"])
def test_a_path_is_joined_as_pathlib_does(root, name):
    index = ImageIndex.from_rows(root, [name], [0], ["n01"])
    assert index.path(0) == str(Path(root) / name)
