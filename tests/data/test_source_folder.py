"""Class folders: what counts as a class and as a picture, and what is refused."""

import logging
import os
import shutil
from pathlib import Path

import pytest
from conftest import CLASSES, write_classes, write_jpeg
from layouts import index, paths_of

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto


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


def test_what_is_left_out_is_counted_and_said_once(root, caplog):
    for name in (".ipynb_checkpoints/a.jpg", "@eaDir/b.jpg", "n01/.thumbs/c.jpg"):
        write_jpeg(root / "train" / name)
    for name in ("._p0.jpg", "._p1.jpg", ".DS_Store", "Thumbs.db"):
        write_jpeg(root / "train" / "n01" / name)
    with caplog.at_level(logging.INFO):
        index(root, "train")
        index(root, "train")
    (said,) = [r.getMessage() for r in caplog.records]
    assert "left out 3 hidden or system folders (.ipynb_checkpoints, @eaDir" in said
    assert "2 hidden pictures (._p0.jpg, ._p1.jpg)" in said


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_mislabel_nothing(root, caplog):
    """To the folder above, to another class, to a real folder of the same class, to nowhere."""
    train = root / "train"
    (train / "n01" / "up").symlink_to(train)
    (train / "n01" / "other").symlink_to(train / "n02")
    write_jpeg(train / "n01" / "z" / "own.jpg")
    (train / "n01" / "a").symlink_to(train / "n01" / "z")
    (train / "n01" / "nowhere").symlink_to(root / "gone")
    (train / "n01" / "nothing.jpg").symlink_to(root / "gone.jpg")
    with caplog.at_level(logging.INFO):
        found = index(root, "train")
    assert found.class_counts().tolist() == [9, 8, 8]
    assert "train/n01/z/own.jpg" in paths_of(found)
    assert "3 links to folders that are read anyway (a, other, up)" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_class_folder_may_be_a_link(root, tmp_path):
    (root / "train" / "n02").rename(tmp_path / "elsewhere")
    (root / "train" / "n02").symlink_to(tmp_path / "elsewhere")
    assert index(root, "train").class_counts().tolist() == [8, 8, 8]


def test_an_empty_class_is_kept_or_left_out_by_the_class_list(root, caplog):
    """B06: the list is the choice, and it is what a checkpoint stores."""
    (root / "train" / "n04").mkdir()
    (root / "train" / "n04" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"name the classes in data\.classes"):
        index(root, "train", auto.train_classes(root))
    kept = index(root, "train", (*CLASSES, "n04"), classes_given=True)
    assert kept.class_counts().tolist() == [8, 8, 8, 0]
    assert "train has no pictures of 1 classes: n04." in caplog.text
    left = index(root, "train", CLASSES, classes_given=True)
    assert left.class_counts().tolist() == [8, 8, 8]


def test_val_class_missing_empty_or_unknown(root, caplog):
    """B05: the labels are those of train, whatever val lacks."""
    shutil.rmtree(root / "val" / "n01")
    for expected in ([0, 3, 3], [0, 3, 3]):
        assert index(root, "val").class_counts().tolist() == expected
        (root / "val" / "n01").mkdir(exist_ok=True)
    assert caplog.text.count("val has no pictures of 1 classes: n01.") == 2
    (root / "val" / "e").mkdir()
    assert len(index(root, "val")) == 6
    write_jpeg(root / "val" / "e" / "x.jpg")
    with pytest.raises(UserError, match="1 folders that are not among the 3"):
        index(root, "val")


def test_integer_class_names_sort_as_text_and_it_is_said_once(tmp_path, caplog):
    """B03."""
    write_classes(tmp_path / "train", {str(i): 1 for i in range(12)})
    for _ in range(2):
        classes = auto.train_classes(tmp_path)
    assert classes[:4] == ["0", "1", "10", "11"]
    (said,) = [r.getMessage() for r in caplog.records]
    assert "0 '0', 1 '1', 2 '10', 3 '11', 4 '2'" in said
    assert "data.classes" in said
    caplog.clear()
    write_classes(tmp_path / "other" / "train", {str(i): 1 for i in range(9)})
    auto.train_classes(tmp_path / "other")
    assert caplog.records == []


@pytest.mark.parametrize("beside", [(), ("cats", "dogs")])
def test_a_folder_called_images_is_no_class(tmp_path, beside):
    for name in ("images", *beside):
        write_jpeg(tmp_path / "train" / name / "a.jpg")
    message = "is not taken for a class" if beside else r"holds 1 folders \(images\)"
    with pytest.raises(UserError, match=message):
        auto.train_classes(tmp_path)
    if beside:
        names = ["cats", "dogs", "images"]
        assert len(index(tmp_path, "train", names)) == 3


def test_system_files_of_a_real_folder(assets):
    """B08: ants and bees as they are, with .DS_Store files."""
    root = assets / "hymenoptera-mini"
    assert list(root.rglob(".DS_Store"))
    classes = auto.train_classes(root)
    assert classes == ["ants", "bees"]
    names = paths_of(index(root, "train", classes))
    assert names
    assert not any(".DS_Store" in name for name in names)
