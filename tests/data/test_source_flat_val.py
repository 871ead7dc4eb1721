"""A flat val with a label file: how labels are written, and what is refused."""

import tarfile

import pytest
from conftest import CLASSES, write_classes, write_jpeg
from layouts import index, labels_of, write_labels

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto

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
