"""The data check finds what spoils a training: each kind of finding planted, and told as what it is."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import CLASSES, REPO, write_classes, write_jpeg
from crash_probe import inspect_or_crash
from PIL import Image

from imnet_pl.cli import main
from imnet_pl.data.decode import DecodePolicy
from imnet_pl.data.duplicates import exact_duplicates, near_duplicates
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.inspection import Inspection, inspect_index, inspect_picture
from imnet_pl.data.sources import auto


def check(root, *more):
    """Run the verb in this process; returns the exit status and the findings."""
    file = root.parent / "findings.json"
    args = [f"--data.root={root}", "--num_processes=0", f"--json_file={file}", *more]
    status = main(["check-data", *args])
    return status, json.loads(file.read_text(encoding="utf-8"))["findings"]


def kinds(findings, severity=None):
    return sorted(
        (f["kind"], f["path"], f["other_path"])
        for f in findings
        if severity in (None, f["severity"])
    )


def smooth(seed, size=(384, 512)):
    """Return a picture with large forms, such as photographs have."""
    draw = np.random.default_rng(seed)
    small = draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC)


def test_clean_data_has_nothing_to_fix(root, in_tmp, capsys):
    status, findings = check(root)
    assert (status, kinds(findings)) == (0, [])
    shown = capsys.readouterr().out
    assert "3 classes" in shown
    assert "48x40" in shown
    assert "33 pictures: 0 findings to fix" in shown


def test_duplicates_are_told_by_split_and_label(root, in_tmp, capsys):
    first = root / "train/n01/p0.jpg"
    shutil.copy(first, root / "train/n01/again.jpg")
    shutil.copy(root / "train/n02/p1.jpg", root / "val/n02/leaked.jpg")
    shutil.copy(root / "train/n02/p2.jpg", root / "train/n03/other.jpg")
    # The same pixels in another file.
    Image.open(root / "train/n03/p3.jpg").save(root / "val/n03/pixels.png")
    status, findings = check(root)
    assert status == 1
    assert kinds(findings, "fix") == [
        ("conflicting_duplicate", "train/n02/p2.jpg", "train/n03/other.jpg"),
        ("leaked_duplicate", "train/n02/p1.jpg", "val/n02/leaked.jpg"),
        ("leaked_duplicate", "train/n03/p3.jpg", "val/n03/pixels.png"),
    ]
    assert kinds(findings, "look") == [
        ("duplicate", "train/n01/again.jpg", "train/n01/p0.jpg")
    ]
    shown = capsys.readouterr().out
    assert "fix: conflicting duplicate, 1" in shown
    assert "the same picture as n02 and as n03" in shown


def test_nearly_equal_pictures_in_two_splits(root, in_tmp):
    for i in range(6):
        smooth(i).save(root / f"train/n01/s{i}.png")
    smooth(3).save(root / "val/n01/anew.jpg", quality=60)
    smooth(4).resize((256, 192)).save(root / "val/n02/half.png")
    status, findings = check(root)
    assert status == 0
    assert kinds(findings, "look") == [
        ("near_duplicate", "train/n01/s3.png", "val/n01/anew.jpg"),
        ("near_duplicate", "train/n01/s4.png", "val/n02/half.png"),
    ]
    _, findings = check(root, "--near=false")
    assert kinds(findings) == []


def test_unreadable_and_odd_files(root, in_tmp):
    (root / "train/n01/empty.jpg").write_bytes(b"")
    (root / "train/n01/page.jpg").write_bytes(b"<html>not found</html>")
    whole = (root / "train/n01/p0.jpg").read_bytes()
    (root / "val/n01/cut.jpg").write_bytes(whole[: len(whole) // 2])
    Image.new("CMYK", (40, 40), (9, 90, 9, 9)).save(root / "train/n02/cmyk.jpg")
    Image.new("L", (300, 40), 7).save(root / "train/n02/ribbon.png")
    frames = [smooth(i).convert("P") for i in range(3)]
    frames[0].save(
        root / "train/n03/moving.gif", save_all=True, append_images=frames[1:]
    )
    shutil.copy(root / "train/n03/moving.gif", root / "val/n03/named.jpg")
    (root / "val/n03/.DS_Store").write_bytes(b"x")
    (root / "labels.txt").write_text("x")
    status, findings = check(root)
    assert status == 1
    assert kinds(findings, "fix") == [
        ("leaked_duplicate", "train/n03/moving.gif", "val/n03/named.jpg"),
        ("unreadable", "train/n01/empty.jpg", ""),
        ("unreadable", "train/n01/page.jpg", ""),
        ("unreadable", "val/n01/cut.jpg", ""),
    ]
    odd = {f["path"]: f["text"] for f in findings if f["kind"] == "odd"}
    assert odd == {
        "train/n02/cmyk.jpg": "mode CMYK",
        "train/n02/ribbon.png": "more than 5 times as long as wide",
        "train/n03/moving.gif": "mode P, 3 frames",
        "val/n03/named.jpg": "is GIF, named .jpg, mode P, 3 frames",
    }
    side = {f["path"]: f["text"] for f in findings if f["kind"] == "side_file"}
    assert side == {
        "val/n03/.DS_Store": "a hidden or system file",
        "labels.txt": "not a picture by its name",
    }


def test_counts_of_classes(root, in_tmp):
    for i in range(1, 8):
        (root / f"train/n02/p{i}.jpg").unlink()
    for i in range(4):
        write_jpeg(root / f"train/n01/more{i}.jpg", 900 + i)
    for i in range(3):
        (root / f"val/n03/p{i}.jpg").unlink()
    status, findings = check(root)
    assert status == 0
    texts = {f["kind"]: f["text"] for f in findings}
    assert texts == {
        "imbalance": "n01 has 12 training pictures, n02 has 1",
        "one_picture": "class n02 has one training picture",
        "class_without_pictures": "1 classes have no picture in val (n03)",
    }


def test_a_split_that_does_not_fit_the_classes_is_a_finding(root, in_tmp):
    write_jpeg(root / "val/n09/p0.jpg")
    status, findings = check(root)
    assert status == 1
    assert [f["kind"] for f in findings] == ["layout"]
    assert "n09" in findings[0]["text"]


def test_groups_that_cross(root, in_tmp):
    rows = [("filename", "label", "group", "split")]
    for split, count in (("train", 8), ("val", 3)):
        rows += [
            (f"{split}/{name}/p{i}.jpg", name, f"{name}-{i}", split)
            for name in CLASSES
            for i in range(count)
        ]
    table = root / "rows.csv"
    with table.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(rows)
    args = [f"--data.root={table}", "--num_processes=0", "--csv_file=f.csv"]
    assert main(["check-data", *args]) == 1
    found = list(csv.DictReader((in_tmp / "f.csv").read_text().splitlines()))
    crossing = [f for f in found if f["kind"] == "crossing_group"]
    assert len(crossing) == 9
    assert crossing[0]["text"] == "group n01-0 is in train and in val"


def test_processes_give_the_same_facts_and_survive_a_decoder_that_crashes(root):
    write_jpeg(root / "train/n02/crash.jpg", 77)
    index = auto.index_split(root, "train", CLASSES)
    results = [
        list(inspect_index(index, n, inspect))[-1]
        for n, inspect in ((0, None), (2, inspect_or_crash))
    ]
    alone, in_processes = results
    assert isinstance(alone, Inspection)
    bad = [i for i in range(len(index)) if "crash" in index.path(i)]
    assert in_processes.errors == dict.fromkeys(bad, "the decoder crashed on it")
    good = np.setdiff1d(np.arange(len(index)), bad)
    for name in ("heights", "widths", "file_digests", "perceptual", "contrast"):
        left, right = (getattr(r, name)[good] for r in results)
        assert np.array_equal(left, right), name


def test_near_duplicates_compares_all_pairs_that_can_match(root):
    draw = np.random.default_rng(0)
    index = auto.index_split(root, "train", CLASSES)

    def made(hashes):
        n = len(hashes)
        ones = np.ones(n, dtype=np.int32)
        digests = np.zeros(n, dtype=np.dtype((np.void, 16)))
        contrast = np.full(n, 50, dtype=np.float32)
        return Inspection(index, ones, ones, digests, digests, hashes, contrast, {}, {})

    left = draw.integers(0, 2**63, 300, dtype=np.uint64)
    right = left[:200].copy()
    for i in range(200):
        for bit in draw.choice(64, i % 10, replace=False).tolist():
            right[i] ^= np.uint64(1 << bit)
    bits = np.bitwise_count(left[:, None] ^ right[None])
    truth = sorted((i, j, int(bits[i, j])) for i, j in np.argwhere(bits <= 6).tolist())
    assert near_duplicates(made(left), made(right), 6) == truth
    assert len(truth) >= 140


def test_a_picture_that_is_gone_after_it_was_inspected_equals_none(tmp_path):
    write_jpeg(tmp_path / "p.jpg")
    for name in ("p.png", "p.bmp"):
        Image.open(tmp_path / "p.jpg").save(tmp_path / name)
    names = ["p.bmp", "p.jpg", "p.png"]
    index = ImageIndex.from_rows(tmp_path, names, [0] * 3, ["any"])
    *_, seen = inspect_index(index, 0)
    assert [len(same) for same in exact_duplicates({"train": seen})] == [3]
    (tmp_path / "p.jpg").unlink()
    (same,) = exact_duplicates({"train": seen})
    assert [names[place.row] for place in same] == ["p.bmp", "p.png"]


def test_a_real_messy_folder(assets, in_tmp, capsys):
    args = [f"--data.root={assets / 'hymenoptera-mini'}", "--num_processes=0"]
    assert main(["check-data", *args]) == 0
    shown = capsys.readouterr().out
    assert "train/ants/imageNotFound.gif: mode P" in shown
    assert "train/.DS_Store: a hidden or system file" in shown


@pytest.mark.parametrize("flag", ["json", "csv"])
def test_a_file_that_can_not_be_written_is_known_before_the_work(
    root, in_tmp, capsys, flag
):
    args = [f"--data.root={root}", f"--{flag}_file=missing/f"]
    assert main(["check-data", *args]) == 1
    assert f"--{flag}_file='missing/f' can not be written" in capsys.readouterr().err


def test_data_that_is_not_there(in_tmp, capsys):
    assert main(["check-data", "--data.root=nowhere"]) == 1
    assert "data.root='nowhere' does not exist" in capsys.readouterr().err


def test_sizes_are_those_of_the_file_and_not_of_a_reduced_picture(tmp_path):
    write_jpeg(tmp_path / "p.jpg", size=(101, 200))
    index = ImageIndex.from_rows(tmp_path, ["p.jpg"], [0], ["a"])
    policy = DecodePolicy(max_pixels=6000)
    facts = inspect_picture(index, 0, policy)
    assert (facts.height, facts.width, facts.error) == (101, 200, "")
    assert facts.odd == "above data.max_pixels, decoded at 1/2 of its size"


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},  # as of a file on Windows
    ],
)
def test_names_that_the_console_lacks(tmp_path, environment):
    """B22: the report ends, and its files are UTF-8."""
    where = tmp_path / "数据"
    write_classes(where / "train", {"naïve": 2, "猫": 2})
    (where / "train" / "猫" / "é.jpg").write_bytes(b"")
    files = [f"--{kind}_file={tmp_path}/ü.{kind}" for kind in ("json", "csv")]
    args = ["check-data", "--data.root=数据", "--num_processes=0", *files]
    done = subprocess.run(
        [sys.executable, REPO / "cli.py", *args],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"5 pictures: 1 findings to fix" in done.stdout
    facts = json.loads((tmp_path / "ü.json").read_text(encoding="utf-8"))
    assert [f["path"] for f in facts["findings"]][:1] == ["train/猫/é.jpg"]
    assert facts["classes"] == ["naïve", "猫"]
    assert "train/猫/é.jpg" in (tmp_path / "ü.csv").read_text(encoding="utf-8")
