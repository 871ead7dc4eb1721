"""Layouts on disk: what is found, how labels are read, and what is refused."""

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import CLASSES, REPO, write_classes, write_jpeg
from PIL import Image

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto, digits, scan


def index(root, split, classes=CLASSES, **options):
    return auto.index_split(root, split, classes, **options)


def labels_of(image_index):
    names = [
        image_index.relative_path(i).rpartition("/")[2] for i in range(len(image_index))
    ]
    return dict(zip(names, image_index.labels.tolist(), strict=True))


def write_labels(root, text, encoding="utf-8", where="val"):
    (root / where / "val_label.txt").write_bytes(text.encode(encoding))


def test_class_folders(root):  # S8
    train = index(root, "train")
    assert train.class_counts().tolist() == [8, 8, 8]
    assert train.relative_path(8) == "train/n02/p0.jpg"
    assert Path(train.path(23)).is_file()
    assert auto.train_classes(root) == list(CLASSES)
    assert index(root, "val").class_counts().tolist() == [3, 3, 3]


def test_pictures_at_any_depth_and_with_any_suffix(tmp_path):
    for name in ("images/a.JPEG", "b.jpg", "x/y/c.PNG", "d.webp", "e.txt", "f.JPG"):
        write_jpeg(tmp_path / "train" / "c" / name)
    found = index(tmp_path, "train", ["c"])
    assert [found.relative_path(i) for i in range(len(found))] == [
        f"train/c/{name}"
        for name in ("b.jpg", "d.webp", "f.JPG", "images/a.JPEG", "x/y/c.PNG")
    ]


def test_hidden_and_system_files_are_not_data(root):
    for folder in (".ipynb_checkpoints", "__MACOSX", "@eaDir", "$RECYCLE.BIN"):
        write_jpeg(root / "train" / folder / "a.jpg")
        write_jpeg(root / "val" / folder / "a.jpg")
        write_jpeg(root / "train" / "n01" / folder / "a.jpg")
    for name in ("._p0.jpg", ".hidden.jpg", "Thumbs.db", "desktop.ini", ".DS_Store"):
        write_jpeg(root / "train" / "n01" / name)
    assert auto.train_classes(root) == list(CLASSES)
    assert len(index(root, "train")) == 24
    assert len(index(root, "val")) == 9


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_are_followed_once(root, tmp_path):
    (root / "train" / "n01" / "loop").symlink_to(root / "train" / "n01")
    write_jpeg(tmp_path / "elsewhere" / "q.jpg")
    (root / "train" / "n01" / "more").symlink_to(tmp_path / "elsewhere")
    assert len(index(root, "train")) == 25


def test_val_class_that_train_lacks_is_refused_with_its_name(root):
    write_classes(root / "val", {"n04": 1})
    with pytest.raises(UserError, match="not among the 3 classes: n04"):
        index(root, "val")


def test_val_may_lack_a_class_and_no_label_shifts(root, caplog):  # S8
    shutil.rmtree(root / "val" / "n02")
    with caplog.at_level(logging.WARNING):
        val = index(root, "val")
    assert val.class_counts().tolist() == [3, 0, 3]
    assert [r.getMessage() for r in caplog.records] == [
        "val has no pictures of 1 classes: n02."
    ]


def test_empty_class_in_train_is_refused_and_says_what_is_there(root):
    (root / "train" / "n04").mkdir()
    (root / "train" / "n04" / "a.heic").write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"n04'? has no picture, which holds 1 files \(a\.heic\)"
    ):
        index(root, "train", (*CLASSES, "n04"))


def test_val_without_any_picture_is_refused(root):
    for file in (root / "val").rglob("*.jpg"):
        file.unlink()
    for source in ("auto", "folder"):
        with pytest.raises(UserError, match="no pictures"):
            index(root, "val", source=source)


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


ROWS = "v0.JPEG{0}0\nv1.JPEG{0}0\nv2.JPEG{0}1\nv3.JPEG{0}1\nv4.JPEG{0}2\nv5.JPEG{0}2\n"
EXPECTED = {
    "v0.JPEG": 0,
    "v1.JPEG": 0,
    "v2.JPEG": 1,
    "v3.JPEG": 1,
    "v4.JPEG": 2,
    "v5.JPEG": 2,
}


@pytest.mark.parametrize("separator", [" ", "\t", ",", ", ", "    ", " , "])
@pytest.mark.parametrize("where", ["val", "."])
def test_flat_val_with_indices(flat_root, separator, where):  # S7
    write_labels(flat_root, ROWS.format(separator), where=where)
    assert auto.detect_layout(flat_root, "val") == "flat_val"
    assert labels_of(index(flat_root, "val")) == EXPECTED


@pytest.mark.parametrize("separator", [" ", "\t", ",", ", "])
def test_flat_val_with_class_names(flat_root, separator):
    text = "".join(
        f"{name}{separator}{CLASSES[label]}\n" for name, label in EXPECTED.items()
    )
    write_labels(flat_root, text)
    assert labels_of(index(flat_root, "val")) == EXPECTED


@pytest.mark.parametrize(
    ("change", "encoding"),
    [
        (lambda t: t.replace("\n", "\r\n"), "utf-8"),
        (lambda t: t, "utf-8-sig"),
        (lambda t: "filename,label\n" + t, "utf-8"),
        (lambda t: '"filename","label"\r\n' + t, "utf-8-sig"),
        (lambda t: t + "\n\n", "utf-8"),
        (lambda t: t.replace("v", "val/v"), "utf-8"),
        (lambda t: t.replace("v", "val\\v"), "utf-8"),
        (
            lambda t: "".join(
                f'"{x}",{y}\n' for x, y in (r.split(",") for r in t.split())
            ),
            "utf-8",
        ),
    ],
    ids=[
        "crlf",
        "bom",
        "header",
        "quoted header",
        "blank",
        "folder",
        "backslash",
        "quotes",
    ],
)
def test_flat_val_as_other_programs_write_it(flat_root, change, encoding):
    write_labels(flat_root, change(ROWS.format(",")), encoding)
    assert labels_of(index(flat_root, "val")) == EXPECTED


@pytest.mark.parametrize("separator", [" ", ",", "\t"])
def test_names_may_hold_separators(flat_root, separator):
    names = ["a b.jpg", "c, d.jpg", "e  f 7.jpg"]
    for name in names:
        write_jpeg(flat_root / "val" / name)
    more = "".join(f"{name}{separator}{i}\n" for i, name in enumerate(names))
    write_labels(flat_root, ROWS.format(separator) + more)
    labels = labels_of(index(flat_root, "val"))
    assert {name: labels[name] for name in names} == {
        names[0]: 0,
        names[1]: 1,
        names[2]: 2,
    }


def test_classes_with_spaces_by_name(tmp_path):
    classes = ["black cat", "white cat"]
    write_classes(tmp_path / "train", dict.fromkeys(classes, 1))
    write_jpeg(tmp_path / "val" / "my cat.jpg")
    write_labels(tmp_path, "my cat.jpg white cat\n")
    assert index(tmp_path, "val", classes).labels.tolist() == [1]


def test_tiny_imagenet(flat_root):
    (flat_root / "val" / "images").mkdir()
    for file in (flat_root / "val").glob("*.JPEG"):
        file.rename(flat_root / "val" / "images" / file.name)
    rows = [f"v{i}.JPEG\t{CLASSES[i // 2]}\t0\t32\t44\t62\n" for i in range(6)]
    (flat_root / "val" / "val_annotations.txt").write_text("".join(rows))
    assert labels_of(index(flat_root, "val")) == EXPECTED


@pytest.mark.slow
def test_tiny_imagenet_as_it_ships(assets, tmp_path):
    with tarfile.open(assets / "tiny-imagenet-50.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    (root,) = {p.parent for p in tmp_path.rglob("train") if p.is_dir()}
    classes = auto.train_classes(root)
    assert index(root, "train", classes).class_counts().tolist() == [250] * 50
    val = index(root, "val", classes)
    assert val.class_counts().tolist() == [50] * 50
    lines = (root / "val" / "val_annotations.txt").read_text().splitlines()
    truth = {line.split("\t")[0]: line.split("\t")[1] for line in lines}
    assert labels_of(val) == {name: classes.index(wnid) for name, wnid in truth.items()}


ONE_BASED = ROWS.replace("}2", "}3").replace("}1", "}2").replace("}0", "}1").format(" ")


def test_labels_from_1_to_n_are_refused_with_both_readings(flat_root):
    write_labels(flat_root, ONE_BASED)
    with pytest.raises(
        UserError, match=r"'n01' or 'n02'.*data\.label_format: index1 or index0"
    ):
        index(flat_root, "val")
    assert labels_of(index(flat_root, "val", label_format="index1")) == EXPECTED
    with pytest.raises(
        UserError, match=r"label '3', which is not an index from 0 to 2"
    ):
        index(flat_root, "val", label_format="index0")


def test_integer_class_names_that_are_no_indices_are_refused(tmp_path):
    classes = sorted(str(i) for i in range(1, 13))
    write_classes(tmp_path / "train", dict.fromkeys(classes, 1))
    write_jpeg(tmp_path / "val" / "a.jpg")
    write_labels(tmp_path, "a.jpg 10\n")
    with pytest.raises(UserError, match="can be read in two ways"):
        index(tmp_path, "val", classes)
    assert index(tmp_path, "val", classes, label_format="name").labels.tolist() == [1]
    assert index(tmp_path, "val", classes, label_format="index0").labels.tolist() == [
        10
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ROWS.format(" ").replace("v5.JPEG 2\n", ""),
            r"no line for 1 of 6 pictures: v5\.JPEG",
        ),
        (
            ROWS.format(" ") + "v6.JPEG 2\n",
            r"names 1 pictures that are not there \(line 7: 'v6\.JPEG'",
        ),
        (ROWS.format(",") + "v 6.JPEG,2\n", r"not there \(line 7: 'v 6\.JPEG'"),
        (
            ROWS.format(" ").replace("JPEG 2", "JPEG 3"),
            "label '3', which is not an index from 0 to 2",
        ),
        (ROWS.format(" ").replace("JPEG 2", "JPEG -1"), "label '-1', which is not"),
        (
            ROWS.format(" ").replace("JPEG 2", "JPEG n04"),
            "not one of the 3 class names",
        ),
        (
            ROWS.format(" ") + "v0.JPEG 1\n",
            "gives 'v0.JPEG' the label '1', an earlier line '0'",
        ),
        (ROWS.format(" ") + "v7.JPEG\n", "line 7 is 'v7.JPEG'"),
        ("", "no line for 6 of 6 pictures"),
    ],
)
def test_label_files_that_do_not_fit(flat_root, text, message):
    write_labels(flat_root, text)
    with pytest.raises(UserError, match=message):
        index(flat_root, "val")


def test_label_file_in_another_encoding_is_named(flat_root):
    write_labels(flat_root, ROWS.format(" "), "utf-16")
    with pytest.raises(UserError, match="not UTF-8"):
        index(flat_root, "val")


def test_no_label_file_and_two_label_files(flat_root):
    with pytest.raises(UserError, match=r"no label file; looked for val_label\.txt"):
        index(flat_root, "val")
    write_labels(flat_root, ROWS.format(" "))
    write_labels(flat_root, ROWS.format(" "), where=".")
    with pytest.raises(UserError, match="has 2 label files"):
        index(flat_root, "val")


@pytest.mark.parametrize("labelled", [False, True])
def test_two_layouts_at_once_are_refused(root, labelled):
    write_jpeg(root / "val" / "loose.jpg")
    if labelled:
        write_labels(root, "loose.jpg 0\n")
    with pytest.raises(UserError, match="as folder and as flat_val"):
        index(root, "val")
    assert len(index(root, "val", source="folder")) == 9


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
