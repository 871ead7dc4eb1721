"""What predict reads: a folder, one picture, a list, a split."""

import os
from pathlib import Path

import pytest
from conftest import CLASSES, write_jpeg

from imnet_pl.core.errors import UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.sources import pictures, scan


def index(path):
    return pictures.index_pictures(str(path), CLASSES)


def paths_of(image_index):
    assert set(image_index.labels.tolist()) == {-1}
    assert image_index.classes == CLASSES
    assert all(Path(image_index.path(i)).is_file() for i in range(len(image_index)))
    return [image_index.relative_path(i) for i in range(len(image_index))]


@pytest.fixture
def folder(tmp_path):
    """Three pictures, one of them below a sub-folder with a name that is not ASCII."""
    for name in ("b.JPG", "a b.png", "Süd/猫.jpeg", ".hidden.jpg", "notes.txt"):
        write_jpeg(tmp_path / "in" / name)
    return tmp_path / "in"


ALL = ["Süd/猫.jpeg", "a b.png", "b.JPG"]


def write_list(folder, text, name="list.txt", encoding="utf-8"):
    file = folder / name
    file.write_bytes(text.encode(encoding))
    return file


def test_folder(folder):
    assert paths_of(index(folder)) == ALL
    assert paths_of(index(f"{folder}/")) == ALL


def test_relative_input_does_not_depend_on_a_later_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    found = index("in")
    monkeypatch.chdir("/")
    assert paths_of(found) == ALL


@pytest.mark.parametrize("name", ["Süd/猫.jpeg", ".hidden.jpg"])
def test_one_picture(folder, name):
    assert paths_of(index(folder / name)) == [Path(name).name]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_list_file(folder, encoding, newline):
    lines = ["# mine", "b.JPG", "", "  ./a b.png  ", "Süd/猫.jpeg", "b.JPG", " # end"]
    file = write_list(folder, newline.join(lines), encoding=encoding)
    assert paths_of(index(file)) == ["b.JPG", "./a b.png", "Süd/猫.jpeg", "b.JPG"]


def test_list_with_absolute_paths_lies_anywhere(folder, tmp_path):
    file = write_list(tmp_path, f"{folder / 'b.JPG'}\n", "list.lst")
    assert paths_of(index(file)) == [str(folder / "b.JPG")]


@pytest.mark.skipif(os.name == "nt", reason="a backslash is no part of a name there")
def test_backslashes(folder):
    write_jpeg(folder / "a\\b.jpg")
    file = write_list(folder, "Süd\\猫.jpeg\na\\b.jpg")
    assert paths_of(index(file)) == ["Süd/猫.jpeg", "a\\b.jpg"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "path\nb.JPG\n"),
        ("l.csv", "\ufefflabel,Filename\n1,b.JPG\n,\n"),
        ("l.csv", 'label;path\n1;"b.JPG"\n'),
        ("l.csv", "filename,path\nno,b.JPG\n"),
        ("l.TSV", "label\tpath\n1\tb.JPG\n"),
        ("l.csv", "b.JPG\n"),
        ("l.csv", '"b.JPG"\n'),
    ],
)
def test_tables(folder, name, text):
    assert paths_of(index(write_list(folder, text, name))) == ["b.JPG"]


def test_quoted_cells_of_a_table(folder):
    write_jpeg(folder / "x, y.jpg")
    file = write_list(folder, 'path,note\n"x, y.jpg","two\nlines"\nb.JPG,\n', "l.csv")
    assert paths_of(index(file)) == ["x, y.jpg", "b.JPG"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", b"b.JPG\nno.jpg\nSued/no.jpg", r"names 2 files .*no\.jpg, Sued/no"),
        ("l.txt", "Süd".encode(), "names 1 files that are not there"),
        ("l.txt", b"a\x00b.jpg", "names 1 files that are not there"),
        ("l.txt", b"", "list without paths"),
        ("l.txt", b"# nothing\n\n", "list without paths"),
        ("l.csv", b"", "list without paths"),
        ("l.csv", b"path,label\n", "list without paths"),
        ("l.csv", b"image,label\nb.JPG,1\n", "no column path or filename, but image"),
        ("l.csv", b"path\n" + b"x" * 200_000, "can not be read as a table"),
        ("l.txt", "Süd/a.jpg".encode("latin-1"), "UTF-8"),
        ("l.txt", "b.JPG".encode("utf-16"), "UTF-8"),
        ("best.ckpt", bytes(range(256)), "UTF-8"),
    ],
)
def test_bad_lists_are_one_sentence(folder, name, content, message):
    file = folder / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        index(file)
    assert str(caught.value).startswith(f"--input={str(file)!r} ")
    assert "\n" not in str(caught.value)


def test_absent_or_empty(tmp_path):
    with pytest.raises(UserError, match=r"--input='.*no' does not exist"):
        index(tmp_path / "no")
    write_list(tmp_path, "x", "notes.txt")
    with pytest.raises(UserError, match=r"without pictures, which holds 1 files"):
        index(tmp_path)


def predict_module(root, predict_input, **options):
    data = ImageNetDataModule(
        root,
        image_size=16,
        num_workers=0,
        predict_input=predict_input,
        **{"classes": list(CLASSES), **options},
    )
    data.prepare_data()
    data.setup("predict")
    return data


def test_unreadable_pictures_are_marked(folder):
    (folder / "a b.png").write_bytes(b"no picture")
    data = predict_module(None, str(folder))
    (batch,) = data.predict_dataloader()
    assert batch.status.tolist() == [0, 1, 0]
    assert batch.indices.tolist() == [0, 1, 2]
    assert batch.images[1].max() == 0
    assert data.relative_paths(batch.indices, "predict") == ALL
    assert data.labels(batch.indices, "predict") == [-1, -1, -1]


@pytest.mark.parametrize("source", ["auto", "digits"])
def test_pictures_outside_the_data_leave_root_alone(folder, tmp_path, source):
    data = predict_module(str(tmp_path / "gone"), str(folder), source=source)
    assert len(next(iter(data.predict_dataloader())).targets) == 3
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(("split", "n"), [("train", 24), ("val", 9)])
def test_splits_have_labels(root, split, n):
    data = predict_module(str(root), split, classes=None)
    (batch,) = data.predict_dataloader()
    assert sorted(batch.targets.tolist()) == sorted([0, 1, 2] * (n // 3))
    first = data.relative_paths([0], "predict")
    assert first == [f"{split}/n01/p0.jpg"]


def test_unreadable_training_picture_ends_no_prediction(root):
    (root / "train" / "n02" / "p1.jpg").write_bytes(b"no picture")
    (batch,) = predict_module(str(root), "train").predict_dataloader()
    assert batch.status.nonzero().tolist() == [[9]]


def test_a_folder_named_val_is_given_with_a_dot(folder, tmp_path, monkeypatch):
    folder.rename(tmp_path / "val")
    monkeypatch.chdir(tmp_path)
    data = predict_module(None, "./val")
    assert data.relative_paths(range(3), "predict") == ALL
    with pytest.raises(UserError, match=r"data\.root is missing"):
        predict_module(None, "val")


def test_missing_split_or_input(root, tmp_path):
    with pytest.raises(UserError, match="no pictures of split 'test'"):
        predict_module(str(root), "test")
    with pytest.raises(UserError, match="does not exist; say where the pictures lie"):
        predict_module(str(tmp_path / "gone"), "val")
    with pytest.raises(UserError, match=r"data\.predict_input is missing"):
        predict_module(str(root), None)


def test_only_real_files_of_the_odd_ones(assets):
    found = index(assets / "odd-images")
    names = {found.relative_path(i) for i in range(len(found))}
    assert names == set(scan.list_pictures(assets / "odd-images"))
    assert "manifest.tsv" not in names
