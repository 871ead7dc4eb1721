"""The digits write themselves once."""

import multiprocessing

import pytest
from layouts import index
from PIL import Image

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto, digits, scan


def test_digits(tmp_path):
    target = tmp_path / "deep" / "digits"
    auto.ensure_source(target, "digits")
    train, val = (
        index(target, s, digits.CLASSES, source="digits") for s in ("train", "val")
    )
    assert (len(train), len(val)) == (1437, 360)
    shares = train.class_counts() / (train.class_counts() + val.class_counts())
    assert abs(shares - 0.8).max() < 0.01
    assert auto.detect_layout(target, "val") == "flat_val"
    with Image.open(train.path(0)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (32, 32))
    before = {file: file.stat().st_mtime_ns for file in target.rglob("*")}
    auto.ensure_source(target, "digits")
    assert before == {file: file.stat().st_mtime_ns for file in target.rglob("*")}


def test_digits_do_not_overwrite_something_else(root, tmp_path):
    with pytest.raises(UserError, match="is something else"):
        auto.ensure_source(root, "digits")
    (tmp_path / "empty").mkdir()
    auto.ensure_source(tmp_path / "empty", "digits")
    assert (tmp_path / "empty" / "val" / "val_label.txt").is_file()


def test_two_processes_write_the_digits_at_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    both = [
        spawn.Process(target=digits.ensure_digits, args=(tmp_path / "d",))
        for _ in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    assert len(scan.walk_pictures(tmp_path / "d")) == 1797
