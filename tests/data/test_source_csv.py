"""A table as data.root: how it is written, what its columns mean, and what is refused."""

import logging
import re

import numpy as np
import pytest
from conftest import write_jpeg
from layouts import classes_of, index, paths_of, write_rows

from imnet_pl.core.errors import UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.sources import auto

CLASSES = ["café", "dog"]
ROWS = {f"{name}/{i}.jpg": name for name in CLASSES for i in range(3)}


@pytest.fixture
def folder(tmp_path):
    """Six pictures of two classes, in folders beside the table that a test writes."""
    for seed, name in enumerate(ROWS):
        write_jpeg(tmp_path / "csv" / name, seed)
    return tmp_path / "csv"


def write_text(folder, text, encoding="utf-8", name="data.csv"):
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def table_of(rows=None, header="filename,label", mark=","):
    rows = ROWS.items() if rows is None else rows
    lines = [header.replace(",", mark), *(mark.join(row) for row in rows)]
    return "\n".join(lines) + "\n"


def read(file, classes=CLASSES, **options):
    """Return path -> class name of the training rows."""
    found = index(file, "train", classes, **options)
    names = [found.classes[label] for label in found.labels]
    return dict(zip(paths_of(found), names, strict=True))


def refused(file, message, split="train"):
    with pytest.raises(UserError, match=message) as error:
        index(file, split, auto.train_classes(file))
    assert str(file) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        table_of(),
        table_of(mark=";"),
        table_of(mark="\t"),
        table_of(mark="|"),
        table_of(mark="   "),
        table_of(header="label,filename", rows=[(b, a) for a, b in ROWS.items()]),
        table_of(header=" Filename , LABEL "),
        table_of(header="path,class"),
        table_of(mark=" ; "),
        table_of(header='"filename","label"', rows=[(f'"{a}"', b) for a, b in ROWS.items()]),
        "sep=;\n" + table_of(mark=";"),
        "\n\n" + table_of().replace("\n", "\r\n") + ",\r\n,\r\n",
        table_of().replace("\n", ",,\n"),
        table_of(header="filename,note,label", rows=[(a, '"x, ""y""\nz"', b) for a, b in ROWS.items()]),
        table_of(header="filename,class_name,label", rows=[(a, "x", b) for a, b in ROWS.items()]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_forms_that_people_have(folder, text, encoding):  # B15
    file = write_text(folder, text, encoding)
    assert auto.detect_layout(file, "train") == "csv"
    assert auto.train_classes(file) == CLASSES
    assert read(file) == ROWS


def test_a_tsv_and_a_text_file_are_tables_too(folder):
    for name in ("data.tsv", "data.TXT"):
        assert read(write_text(folder, table_of(mark="\t"), name=name)) == ROWS


@pytest.mark.parametrize(
    ("encoding", "names"),
    [
        ("cp1252", ("café", "Zoë, naïve", "Müller", "ÄÖ")),
        ("gbk", ("猫", "小狗", "镕基猫狗", "caf猫")),
    ],
)
def test_other_encodings_are_read_with_a_notice(tmp_path, caplog, encoding, names):
    rows = []
    for name in names:
        write_jpeg(tmp_path / "images" / f"{name}.jpg")
        rows.append((f'"{name}.jpg"', f'"{name}"'))
    file = write_text(tmp_path, table_of(rows), encoding)
    assert auto.train_classes(file) == sorted(names)
    found = read(file, sorted(names))
    assert found == {f"images/{name}.jpg": name for name in names}
    (said,) = [r.getMessage() for r in caplog.records if "UTF-8" in r.getMessage()]
    assert f"is read as {encoding}" in said
    assert names[0] in said


def test_bytes_that_fit_no_encoding_name_line_and_byte(folder):
    (folder / "data.csv").write_bytes(b"filename,label\na.jpg,x\x81\n")
    refused(folder / "data.csv", r"line 2 is not UTF-8 \(byte 22 is 0x81\)")
    (folder / "data.csv").write_bytes(table_of().encode("utf-16-le"))
    refused(folder / "data.csv", "is no text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (table_of(header="id,breed"), "has the columns 'id', 'breed' in its first"),
        (table_of(header="filename,breed"), r"needs filename .* and label \(class or"),
        (table_of(header=next(iter(ROWS)) + ",dog"), "has no header: its first line"),
        ("a.jpg\nb.jpg\n", "list of pictures without labels"),
        ("filename\na.jpg\n", "has the columns 'filename'"),
        (table_of(header="filename,label,label"), "more than one column for the label"),
        ("image,path,label\na,b,c\n", "more than one column for the filename: image, p"),
        ("filename,label\n", "no row of split 'train', but no rows"),
        ("filename,label\na.jpg\n", "line 2 has 1 cells, the header has 2"),
        ("filename,label\na, b.jpg,dog\n", "line 2 has 3 cells, the header has 2"),
        ("filename,label\n,dog\n", r"1 rows without a filename \(line 2\)"),
        ("filename,label\n" + "x" * 200_000 + ",a\n", "can not be read as a table"),
        ("x" * 200_000, "can not be read as a table"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(folder, text, message):
    refused(write_text(folder, text), message)


@pytest.mark.parametrize("name", ["data.xlsx", "data.json", "data"])
def test_other_files_are_no_tables(folder, name):
    file = write_text(folder, table_of(), name=name)
    refused(file, r"is not a folder or a table \(\.csv, \.tsv\)")


# Labels


def labelled(folder, *labels):
    rows = zip(ROWS, labels, strict=False)
    return write_text(folder, table_of(rows))


def test_labels_are_sorted_as_text_whatever_they_are(folder, caplog):  # B16
    file = labelled(folder, "853", "2", "0", "2")
    assert auto.train_classes(file) == ["0", "2", "853"]
    found = index(file, "train", ["0", "2", "853"])
    assert found.labels.tolist() == [2, 1, 0, 1]
    assert "sort as text" not in caplog.text
    assert auto.train_classes(labelled(folder, "10", "9", "853")) == ["10", "853", "9"]
    assert "0 '10', 1 '853', 2 '9'" in caplog.text


def test_whole_numbers_with_a_point_are_whole_numbers_and_it_is_said(folder, caplog):
    file = labelled(folder, "1.0", "2.0", "3.0")
    assert auto.train_classes(file) == ["1", "2", "3"]
    assert "such as 3.0 for labels, which are read as 3" in caplog.text
    file = labelled(folder, "1.0", "1.5")
    assert auto.train_classes(file) == ["1.0", "1.5"]


@pytest.mark.parametrize(
    "labels",
    [("cat", "dog", "Cat "), ("1", "01"), ("café", "cafe\u0301"), ("01", "1.0")],
)
def test_one_class_written_in_two_ways_is_refused(folder, labels):
    file = labelled(folder, *labels)
    refused(file, "look like one class written in two ways")


def test_blank_labels_are_refused_with_their_lines(folder):
    file = labelled(folder, "1", " ", "", "3")
    refused(file, r"has 2 rows without a label \(line 3, line 4\)")


def test_given_classes_decide_the_order_and_what_is_known(folder):
    file = write_text(folder, table_of())
    assert index(file, "train", ["dog", "café"]).labels.tolist() == [1, 1, 1, 0, 0, 0]
    with pytest.raises(
        UserError, match=r"'dog', which is not one of .*Did you mean 'd"
    ):
        index(file, "train", ["café", "dogs"])


@pytest.mark.parametrize("first", [0, 1])
def test_indices_are_read_only_where_they_are_asked_for(folder, first):
    file = labelled(folder, *(str(i + first) for i in (1, 0, 2)))
    fmt = f"index{first}"
    found = index(file, "train", ["a", "b", "c"], label_format=fmt)
    assert found.labels.tolist() == [1, 0, 2]
    with pytest.raises(UserError, match="not one of the 3 class names"):
        index(file, "train", ["a", "b", "c"])
    with pytest.raises(UserError, match="not an index from"):
        index(file, "train", ["a", "b"], label_format=fmt)
    with pytest.raises(UserError, match=r"indices into data\.classes, which is miss"):
        auto.train_classes(file, label_format=fmt)


# Splits, groups, times


def test_split_column(folder):
    splits = ("train", "Training", "val", "VALID", "validation", "test")
    rows = [(*row, s) for row, s in zip(ROWS.items(), splits, strict=True)]
    file = write_text(folder, table_of(rows, "filename,label,split"))
    sizes = [len(index(file, s, CLASSES)) for s in ("train", "val", "test")]
    assert sizes == [2, 3, 1]
    assert auto.train_classes(file) == ["café"]
    assert auto.has_split(file, "test")
    with pytest.raises(UserError, match="'dog', which is not one of the 1"):
        index(file, "val", ["café"])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("dev", "line 7 has the split 'dev'; write train, val or test"),
        ("", r"1 rows without a split \(line 7\)"),
        ("val", "no row of split 'test', but train, val"),
    ],
)
def test_bad_splits(folder, split, message):
    rows = [(*row, "train") for row in ROWS.items()]
    rows[-1] = (*rows[-1][:2], split)
    file = write_text(folder, table_of(rows, "filename,label,split"))
    assert split != "val" or not auto.has_split(file, "test")
    with pytest.raises(UserError, match=message):
        index(file, "test", CLASSES)


@pytest.mark.parametrize("form", ["café/0.jpg", "./café/0.jpg", "café\\0.jpg"])
def test_a_picture_in_two_splits_is_refused(folder, form):  # B35
    rows = [(*row, "train") for row in ROWS.items()]
    rows.append((form, "café", "val"))
    file = write_text(folder, table_of(rows, "filename,label,split"))
    message = r" in train \(line 2\) and in val \(line 8\)"
    refused(file, re.escape(repr(form)) + message)


def test_without_a_split_column_all_rows_are_of_train(folder):
    file = write_text(folder, table_of())
    assert len(index(file, "train", CLASSES)) == 6
    with pytest.raises(UserError, match="has no column split, so that all its rows"):
        index(file, "val", CLASSES)


def test_repeated_rows(folder, caplog):
    rows = [*ROWS.items(), ("./café/0.jpg", "café"), ("café/1.jpg", "café")]
    assert read(write_text(folder, table_of(rows))) == ROWS
    assert "2 rows name a picture of an earlier row again" in caplog.text
    rows.append(("café\\0.jpg", "dog"))
    refused(
        write_text(folder, table_of(rows)),
        r"'café/0.jpg' the label 'café' \(line 2\) and 'dog' \(line 10\)",
    )


def test_groups_and_times_are_columns_of_the_index(folder):
    groups = ("p2", "p1", "", "p2", "p10", "p1")
    times = ("10", "9.5", "100", "", "9.50", "-1")
    rows = [(*r, g, t) for r, g, t in zip(ROWS.items(), groups, times, strict=True)]
    file = write_text(folder, table_of(rows, "filename,label,group,time"))
    found = index(file, "train", CLASSES)
    assert found.groups.names == ("p1", "p10", "p2")
    assert found.groups.codes.tolist() == [2, 0, -1, 2, 1, 0]
    assert found.times.names == ("-1", "9.5", "10", "100")
    assert found.times.codes.tolist() == [2, 1, 3, -1, 1, 0]
    assert found.groups.codes.dtype == np.int64
    few = found.take(np.array([5, 1]))
    assert few.groups.codes.tolist() == [0, 0]
    assert few.times.codes.tolist() == [0, 1]
    assert paths_of(few) == ["dog/2.jpg", "café/1.jpg"]
    assert found.draw_per_class(1, seed=0).groups is not None


def test_times_are_sorted_as_dates(folder):
    times = ("2026-03-31", "2026-03-31T14:05", "2025-12-01 09:00:00")
    rows = [(*r, t) for r, t in zip(ROWS.items(), times, strict=False)]
    file = write_text(folder, table_of(rows, "filename,label,date"))
    assert index(file, "train", CLASSES).times.codes.tolist() == [1, 2, 0]
    rows[0] = (*rows[0][:2], "31.3.2026")
    file = write_text(folder, table_of(rows, "filename,label,time"))
    refused(file, "line 2 has the time '31.3.2026'; write all as numbers, or as ISO")
    rows[0] = (*rows[0][:2], "2026-03-31T12:00+02:00")
    file = write_text(folder, table_of(rows, "filename,label,time"))
    refused(file, "with and without a time zone")


def test_other_layouts_have_neither_groups_nor_times(root):
    found = index(root, "train", ("n01", "n02", "n03"))
    assert found.groups is None
    assert found.take(np.array([3])).times is None


# label.csv and images/ in the folder of a split


def write_split(root, split, rows):
    for seed, row in enumerate(rows):
        write_jpeg(root / split / "images" / row[0], seed)
    header = ["filename", "label", "split"][: len(rows[0])]
    write_rows(root / split / "label.csv", [header, *rows])


def test_label_csv_and_images_are_recognised(tmp_path, caplog):
    write_split(tmp_path, "train", [("a.jpg", "x"), ("b.jpg", "y")])
    write_split(tmp_path, "val", [("c.jpg", "y")])
    with caplog.at_level(logging.INFO):
        assert auto.train_classes(tmp_path) == ["x", "y"]
    train = index(tmp_path, "train", ["x", "y"])
    assert paths_of(train) == ["train/images/a.jpg", "train/images/b.jpg"]
    assert classes_of(index(tmp_path, "val", ["x", "y"])) == {"c.jpg": "y"}
    (tmp_path / "train" / "images" / "a.jpg").unlink()
    with pytest.raises(UserError, match="1 pictures of 2 that are not there"):
        index(tmp_path, "train", ["x", "y"])


def test_a_split_column_in_the_label_csv_of_train(tmp_path):
    rows = [("a.jpg", "x", "train"), ("b.jpg", "y", "train"), ("c.jpg", "y", "val")]
    write_split(tmp_path, "train", rows)
    assert len(index(tmp_path, "train", ["x", "y"])) == 2
    assert auto.detect_layout(tmp_path, "val") == "csv"
    assert paths_of(index(tmp_path, "val", ["x", "y"])) == ["train/images/c.jpg"]
    assert not auto.has_split(tmp_path, "test")


def test_no_other_name_is_taken_for_the_table(tmp_path):
    """Of a folder called images no class is made, whatever lies beside it."""
    write_split(tmp_path, "train", [("a.jpg", "x"), ("b.jpg", "y")])
    (tmp_path / "train" / "label.csv").rename(tmp_path / "train" / "train.csv")
    with pytest.raises(UserError, match=r"holds 1 folders \(images\) and 1 files"):
        auto.train_classes(tmp_path)


def test_class_folders_beside_label_csv_are_two_layouts(tmp_path):
    write_split(tmp_path, "train", [("a.jpg", "x"), ("b.jpg", "y")])
    write_jpeg(tmp_path / "train" / "cats" / "c.jpg")
    with pytest.raises(UserError, match="as folder and as csv; say which"):
        auto.train_classes(tmp_path)
    assert auto.train_classes(tmp_path, "csv") == ["x", "y"]


def test_a_table_for_each_split_by_name_where_csv_is_said(tmp_path):
    for split, name in (("train", "a.jpg"), ("val", "b.jpg")):
        write_jpeg(tmp_path / name)
        write_rows(tmp_path / f"{split}.csv", [["filename", "label"], [name, "x"]])
        assert paths_of(index(tmp_path, split, ["x"], source="csv")) == [name]
    with pytest.raises(
        UserError, match=r"no table of split 'train'; looked for train/"
    ):
        index(tmp_path / "..", "train", ["x"], source="csv")
    write_rows(tmp_path / "val.tsv", [["filename", "label"], ["b.jpg", "x"]])
    with pytest.raises(UserError, match="there are 2 tables"):
        index(tmp_path, "val", ["x"], source="csv")


def test_a_table_is_for_the_csv_source_alone(folder):
    file = write_text(folder, table_of())
    with pytest.raises(UserError, match=r"is a table, but data\.source='folder'"):
        ImageNetDataModule(str(file), source="folder").setup("fit")
