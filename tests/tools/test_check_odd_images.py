"""The data check on real odd files: each is told as what their manifest says it is."""

import csv
import json
import shutil

import pytest
from conftest import write_classes

from imnet_pl.cli import main

# What is said of a file beside its being readable; the others are plain.
ODD = {
    "cmyk_noprofile.jpg": "mode CMYK",
    "cmyk_pillow.jpg": "mode CMYK",
    "ycck.jpg": "mode CMYK",
    "png_named.JPEG": "is PNG, named .jpeg, mode RGBA, smaller than 32 px",
    "grey_alpha.png": "mode LA",
    "grey16.png": "mode I;16",
    "ramp16.png": "mode I;16",
    "palette_transparent.png": "mode P",
    "palette_trns_bytes.png": "mode P",
    "bilevel_large.png": "mode 1",
    "animated.gif": "mode P, 30 frames",
    "animated.webp": "mode RGBA, 9 frames",
    "apng_single.png": "mode RGBA",
    "transparent_red.png": "mode RGBA",
    **{f"exif_{i}.jpg": f"EXIF orientation {i}" for i in (2, 3, 4, 5, 6, 8)},
    "giant_280MP.jpg": "above data.max_pixels, decoded at 1/2 of its size",
    "grey_1000x1.jpg": "smaller than 32 px, more than 5 times as long as wide",
    "rgb_1x1.jpg": "smaller than 32 px",
    "tall_193x31237.jpg": "more than 5 times as long as wide",
}
# Why it can not be read, in part.
UNREADABLE = {
    "truncated.jpg": "truncated",
    "truncated_half.jpg": "truncated",
    "truncated.png": "truncated",
    "corrupt_header.jpg": "Truncated",
    "bomb_4GP.png": "65536 x 65536 px are more than data.max_pixels",
    "zero_byte.jpg": "the file is empty",
    "html_named.jpg": "HTML",
}


@pytest.fixture
def manifest(assets):
    """Return name -> what should become of it."""
    text = (assets / "odd-images" / "manifest.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t")
    return {row["file"]: row["expected"] for row in rows}


def told(assets, tmp_path, *flags):
    """Check a folder of the odd files; returns file name -> (kind, text), and the facts of the split."""
    root, file = tmp_path / "data", tmp_path / "findings.json"
    write_classes(root / "train", {"plain": 3})
    shutil.copytree(assets / "odd-images", root / "train" / "odd")
    args = [f"--data.root={root}", "--num_processes=0", f"--json_file={file}"]
    assert main(["check-data", *args, *flags]) == 1
    facts = json.loads(file.read_text(encoding="utf-8"))
    kinds = ("unreadable", "odd", "side_file")
    by_name = {
        f["path"].removeprefix("train/odd/"): (f["kind"], f["text"])
        for f in reversed(facts["findings"])  # unreadable before odd
        if f["kind"] in kinds
    }
    return by_name, facts["splits"]["train"]


def test_every_row_of_the_manifest(assets, manifest, tmp_path, capsys):
    found, facts = told(assets, tmp_path)
    is_bad = {n for n, text in manifest.items() if text.startswith(("named", "refuse"))}
    is_side = {n for n, text in manifest.items() if text.startswith("ignored")}
    is_read = manifest.keys() - is_bad - is_side
    assert is_bad == UNREADABLE.keys()
    assert len(is_read) == 29
    assert ODD.keys() < is_read
    for name in is_bad:
        kind, text = found[name]
        assert kind == "unreadable"
        assert UNREADABLE[name] in text
    for name in is_side:
        assert found[name] == ("side_file", "a hidden or system file")
    for name in is_read:
        assert found.get(name) == (("odd", ODD[name]) if name in ODD else None), name
    assert facts["num_samples"] == 3 + len(is_read) + len(is_bad)
    assert facts["num_unreadable"] == len(is_bad)


def test_a_lower_limit_names_what_is_above_it(assets, tmp_path, capsys):
    found, _ = told(assets, tmp_path, "--data.max_pixels=4000000")
    assert found["giant_280MP.jpg"][1].endswith("at 1/8 of its size too")
    assert found["tall_193x31237.jpg"][1].endswith("no baseline JPEG in one scan")
    assert found["bilevel_large.png"][0] == "unreadable"
