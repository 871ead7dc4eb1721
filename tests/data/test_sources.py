"""What all layouts have in common: how one is recognised, and that all give the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO, write_classes, write_jpeg
from layouts import index, write_labels

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto


def test_missing_root_draws_the_layouts(tmp_path):
    with pytest.raises(UserError, match=r"--data\.root DIR(?s:.*)val/val_label\.txt"):
        index(tmp_path / "no", "val")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        index(tmp_path / "file", "val")


def test_missing_splits_say_what_is_there(tmp_path):
    write_classes(tmp_path, {"cats": 1})
    with pytest.raises(
        UserError, match=r"no folder 'train', which holds 1 folders \(cats\)"
    ):
        auto.train_classes(tmp_path)
    with pytest.raises(UserError, match="no pictures of split 'val'"):
        index(tmp_path, "val")


@pytest.mark.parametrize("labelled", [False, True])
def test_two_layouts_at_once_are_refused(root, labelled):
    write_jpeg(root / "val" / "loose.jpg")
    if labelled:
        write_labels(root, "loose.jpg 0\n")
    with pytest.raises(UserError, match="as folder and as flat_val"):
        index(root, "val")
    assert len(index(root, "val", source="folder")) == 9


def test_non_ascii_names(tmp_path):
    where = tmp_path / "数据" / "Ünïcode é"
    write_classes(where / "train", {"naïve": 1, "猫": 1})
    found = index(where, "train", ["naïve", "猫"])
    assert [Path(found.path(i)).is_file() for i in range(2)] == [True, True]


def test_fingerprint_is_of_names_and_classes_not_of_the_place(root, tmp_path):
    before = index(root, "val").fingerprint
    root.rename(tmp_path / "moved")
    assert index(tmp_path / "moved", "val").fingerprint == before
    (tmp_path / "moved" / "val" / "n01" / "p0.jpg").rename(
        tmp_path / "moved" / "val" / "n02" / "q.jpg"
    )
    assert index(tmp_path / "moved", "val").fingerprint != before


ASCII = """
import pathlib, sys
from imnet_pl.data.sources import auto
root = next(pathlib.Path(sys.argv[1]).iterdir())
found = auto.index_split(root, "train", auto.train_classes(root))
assert [len(pathlib.Path(found.path(i)).read_bytes()) > 0 for i in range(2)] == [True] * 2
print(found.fingerprint)
"""


def test_non_ascii_names_where_the_locale_is_ascii(tmp_path):  # S42
    where = tmp_path / "Ünïcode é"
    write_classes(where / "train", {"naïve": 1, "猫": 1})
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", ASCII, tmp_path],
        env={**os.environ, "LC_ALL": "C", "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == index(where, "train", ["naïve", "猫"]).fingerprint
