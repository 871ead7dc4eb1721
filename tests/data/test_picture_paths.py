"""Which file a table means by a path: relative, with backslashes, or of another machine."""

import os

import pytest
from conftest import write_jpeg
from layouts import index, paths_of, write_rows

from imnet_pl.core.errors import UserError

NAMES = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg")


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(NAMES):
        write_jpeg(tmp_path / "data" / name, seed)
    return tmp_path / "data"


def table(file, *paths):
    write_rows(file, [["filename", "label"], *([path, "x"] for path in paths)])
    return file


def found(file, *paths, **options):
    return paths_of(index(table(file, *paths), "train", ["x"], **options))


@pytest.mark.parametrize(
    "form", ["{}", "./{}", "cat/../{}", "../data/{}", "\\{}", "{0}"]
)
def test_paths_relative_to_the_table(folder, form):
    if form.startswith("\\"):
        paths = [name.replace("/", "\\") for name in NAMES]
    else:
        paths = [form.format(name) for name in NAMES]
    read = found(folder / "t.csv", *paths)
    assert [os.path.normpath(folder / path) for path in read] == [
        str(folder / name) for name in NAMES
    ]


def test_paths_relative_to_images_beside_the_table(folder, tmp_path):
    folder.rename(tmp_path / "images")
    read = found(tmp_path / "t.csv", *NAMES)
    assert read == [f"images/{name}" for name in NAMES]


def test_paths_relative_to_image_root(folder, tmp_path):
    file = tmp_path / "elsewhere" / "t.csv"
    assert found(file, *NAMES, image_root=folder) == list(NAMES)
    with pytest.raises(UserError, match=r"data\.image_root='.*gone' is no folder"):
        found(file, *NAMES, image_root=folder / "gone")
    with pytest.raises(UserError, match=r"3 pictures of 3 .* data\.image_root which"):
        found(file, *NAMES)


def test_image_root_is_ignored_with_a_notice_where_there_is_no_table(root, caplog):
    index(root, "train", ("n01", "n02", "n03"), image_root=root)
    assert "is ignored: it is for tables" in caplog.text


def test_absolute_paths_that_are_here(folder, tmp_path):
    paths = [str(folder / name) for name in NAMES]
    assert found(folder / "t.csv", *paths) == list(NAMES)
    elsewhere = found(tmp_path / "tables" / "t.csv", *paths)
    assert elsewhere == paths


@pytest.mark.parametrize(
    "before",
    ["C:\\Users\\ana\\data\\", "D:/data/", "/home/ana/x/", "\\\\server\\share\\"],
)
def test_absolute_paths_of_another_machine(folder, caplog, before):  # B17
    mark = "\\" if "\\" in before else "/"
    paths = [before + name.replace("/", mark) for name in NAMES]
    assert found(folder / "t.csv", *paths, "cat/2.jpg") == list(NAMES)
    (said,) = [
        r.getMessage() for r in caplog.records if "have absolute" in r.getMessage()
    ]
    assert "3 of 4 pictures have absolute paths that are not here" in said
    assert f"{paths[0]!r} as 'cat/1.jpg'" in said


def test_the_longest_end_counts(folder):
    write_jpeg(folder / "1.jpg")
    write_jpeg(folder / "images" / "cat" / "1.jpg")
    write_jpeg(folder / "images" / "data" / "cat" / "1.jpg")
    read = found(folder / "t.csv", "E:\\data\\cat\\1.jpg", "E:\\x\\dog\\1.jpg")
    assert read == ["images/data/cat/1.jpg", "dog/1.jpg"]


def test_two_paths_with_one_end_are_refused(folder):
    with pytest.raises(UserError, match=r"end in the same picture 'cat/1\.jpg'"):
        found(folder / "t.csv", "C:\\a\\cat\\1.jpg", "C:\\b\\cat\\1.jpg")


def test_missing_pictures_are_counted_with_the_paths_that_were_tried(folder):
    paths = [*NAMES, *(f"cat/no{i}.jpg" for i in range(6)), "Z:\\no.jpg"]
    with pytest.raises(UserError, match="names 7 pictures of 10 that") as error:
        found(folder / "t.csv", *paths)
    text = str(error.value)
    assert f"line 5: 'cat/no0.jpg', tried {folder / 'cat' / 'no0.jpg'}" in text
    assert str(folder / "images" / "cat" / "no0.jpg") in text
    assert text.count("tried") == 5
    assert "and 2 more" in text


@pytest.mark.skipif(os.name == "nt", reason="there case does not matter")
@pytest.mark.parametrize(
    ("written", "there"),
    [("cat/1.JPG", "1.jpg"), ("cat/1", "1.jpg"), ("cat/e\u0301.jpg", "é.jpg")],
)
def test_a_file_of_nearly_that_name_is_shown(folder, written, there):  # B17
    write_jpeg(folder / "cat" / "é.jpg")
    with pytest.raises(UserError, match="1 pictures of 1") as error:
        found(folder / "t.csv", written)
    assert f"where {there!r} is" in str(error.value)


@pytest.mark.skipif(os.name == "nt", reason="a backslash is no part of a name there")
def test_a_backslash_in_a_real_name(folder):
    write_jpeg(folder / "a\\b.jpg")
    assert found(folder / "t.csv", "a\\b.jpg") == ["a\\b.jpg"]


@pytest.mark.parametrize("written", ["cat", "cat/", "..", "cat/1.jpg/x", "a\0b", "x" * 400])  # fmt: skip
def test_what_is_no_file_is_missing(folder, written):
    with pytest.raises(UserError):
        found(folder / "t.csv", written)
