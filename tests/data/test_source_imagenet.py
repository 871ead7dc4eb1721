"""ImageNet-1K as Kaggle and the devkits ship it, flat without labels, and still packed."""

import logging
import os
import shutil

import pytest
from conftest import write_classes, write_jpeg
from layouts import (
    DEVKIT_IDS,
    TRAIN,
    VAL,
    WNIDS,
    classes_of,
    index,
    write_devkit_2012,
    write_devkit_2015,
    write_flat_val,
    write_kaggle,
    write_kit_2012,
    write_kit_2015,
    write_mat,
    write_pool,
    write_rows,
    write_solution,
)

from imnet_pl.core.errors import UserError
from imnet_pl.core.imagenet import human_names
from imnet_pl.data.sources import auto


@pytest.fixture
def pool(tmp_path):
    return write_pool(tmp_path / "pool")


def val_of(root, **options):
    return classes_of(index(root, "val", WNIDS, **options))


def move_val_into_class_folders(folder):
    for name, wnid in VAL.items():
        (folder / wnid).mkdir(exist_ok=True)
        (folder / name).rename(folder / wnid / name)


@pytest.mark.parametrize("below", [".", "ILSVRC", "ILSVRC/Data/CLS-LOC"])
def test_kaggle_from_any_folder_of_its_tree(pool, tmp_path, below):  # B02
    root = write_kaggle(pool, tmp_path / "data") / below
    assert auto.train_classes(root) == list(WNIDS)
    assert classes_of(index(root, "train", WNIDS)) == TRAIN
    assert auto.detect_layout(root, "val") == "kaggle"
    assert val_of(root) == VAL


def test_kaggle_labels_beside_plain_folders(pool, tmp_path):
    root = write_flat_val(pool, tmp_path / "data")
    (root / "val_label.txt").unlink()
    write_solution(root / "LOC_val_solution.csv", VAL)
    assert auto.detect_layout(root, "train") == "folder"
    assert auto.detect_layout(root, "val") == "kaggle"
    assert val_of(root) == VAL


@pytest.mark.parametrize("write", [write_kaggle, write_devkit_2015])
def test_val_sorted_into_class_folders_within_the_tree(pool, tmp_path, write):
    root = write(pool, tmp_path / "data")
    move_val_into_class_folders(root / "ILSVRC" / "Data" / "CLS-LOC" / "val")
    assert val_of(root) == VAL


@pytest.mark.parametrize("write", [write_devkit_2012, write_devkit_2015])
def test_devkit_ids_are_read_through_its_table(pool, tmp_path, write):
    """The ids are not in the order of wnids: read as indices, every label would be wrong."""
    root = write(pool, tmp_path / "data")
    assert [DEVKIT_IDS[wnid] for wnid in WNIDS] != [1, 2, 3]
    assert auto.detect_layout(root, "val") == "devkit"
    assert val_of(root) == VAL
    assert auto.train_classes(root) == list(WNIDS)


@pytest.mark.parametrize(
    "place",
    [
        ".",
        "devkit/data",
        "ILSVRC2012_devkit_t12/ILSVRC2012_devkit_t12/data",
        "ILSVRC2012_devkit_t12/data",
    ],
)
def test_devkit_where_people_unpack_it(pool, tmp_path, place):
    root = write_devkit_2012(pool, tmp_path / "data")
    shutil.rmtree(root / "ILSVRC2012_devkit_t12")
    write_kit_2012(root / place)
    assert val_of(root) == VAL


def test_devkit_beside_folders_named_as_the_tars(pool, tmp_path):
    root = write_devkit_2012(pool, tmp_path / "data")
    (root / "train").rename(root / "ILSVRC2012_img_train")
    (root / "val").rename(root / "ILSVRC2012_img_val")
    assert auto.train_classes(root) == list(WNIDS)
    assert classes_of(index(root, "train", WNIDS)) == TRAIN
    assert val_of(root) == VAL


@pytest.mark.parametrize("name", ["meta.mat", "meta_clsloc.mat"])
def test_table_of_matlab_in_the_later_devkits(pool, tmp_path, name):
    root = write_devkit_2015(pool, tmp_path / "data")
    kit = root / "ILSVRC" / "devkit" / "data"
    (kit / "map_clsloc.txt").unlink()
    write_mat(kit / name, DEVKIT_IDS)
    assert val_of(root) == VAL


def test_ready_class_folders_need_neither_devkit_nor_tars(pool, tmp_path):  # B02
    root = write_devkit_2012(pool, tmp_path / "data")
    move_val_into_class_folders(root / "val")
    (root / "ILSVRC2012_img_val.tar").write_bytes(b"")
    assert auto.detect_layout(root, "val") == "folder"
    assert val_of(root) == VAL


def test_names_of_classes_are_no_keys(pool, tmp_path):
    """B36: all three have one human name in the mapping."""
    root = write_kaggle(pool, tmp_path / "data")
    assert human_names()["n03126707"] == "crane"
    found = index(root, "val", auto.train_classes(root))
    assert found.classes == WNIDS
    assert found.class_counts().tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", ["kaggle", "devkit"])
def test_classes_come_from_the_table_where_there_is_no_train(pool, tmp_path, kind):
    write = write_kaggle if kind == "kaggle" else write_devkit_2012
    root = write(pool, tmp_path / "data")
    for train in (root / "train", root / "ILSVRC" / "Data" / "CLS-LOC" / "train"):
        shutil.rmtree(train, ignore_errors=True)
    assert auto.train_classes(root, kind) == list(WNIDS)
    assert val_of(root, source=kind) == VAL
    with pytest.raises(UserError, match="no folder 'train'"):
        auto.train_classes(root)


def test_training_folders_are_held_against_the_table(pool, tmp_path, caplog):
    root = write_kaggle(pool, tmp_path / "data")
    train = root / "ILSVRC" / "Data" / "CLS-LOC" / "train"
    write_classes(train, {"n00000001": 1})
    with pytest.raises(UserError, match=r"not in LOC_synset_mapping\.txt: n00000001"):
        auto.train_classes(root)
    shutil.rmtree(train / "n00000001")
    shutil.rmtree(train / WNIDS[2])
    assert auto.train_classes(root) == list(WNIDS[:2])
    assert f"2 of the 3 classes of LOC_synset_mapping.txt; it lacks {WNIDS[2]}" in (
        caplog.text
    )


def test_a_part_of_the_classes(pool, tmp_path, caplog):
    """Rows of other classes may lack their pictures; pictures of other classes are refused."""
    root = write_kaggle(pool, tmp_path / "data")
    val = root / "ILSVRC" / "Data" / "CLS-LOC" / "val"
    with pytest.raises(UserError, match=r"2 of 6 pictures .* 1 classes that are not"):
        index(root, "val", WNIDS[:2])
    for name, wnid in VAL.items():
        if wnid == WNIDS[2]:
            (val / name).unlink()
    with caplog.at_level(logging.INFO):
        found = index(root, "val", WNIDS[:2])
    assert found.class_counts().tolist() == [2, 2]
    assert "2 of 6 rows of" in caplog.text


@pytest.mark.parametrize("write", [write_kaggle, write_devkit_2012])
def test_missing_and_unlabelled_pictures_are_refused(pool, tmp_path, write):
    root = write(pool, tmp_path / "data")
    first = next(root.rglob("val/ILSVRC2012_val_00000001.JPEG"))
    shutil.copyfile(first, first.with_name("ILSVRC2012_val_00000007.JPEG"))
    with pytest.raises(UserError, match=r"no line for 1 of 7 pictures: \S*00000007"):
        index(root, "val", WNIDS)
    first.with_name("ILSVRC2012_val_00000007.JPEG").unlink()
    first.unlink()
    with pytest.raises(UserError, match=r"1 pictures that are not in .*00000001"):
        index(root, "val", WNIDS)


def test_test_pictures_have_no_labels(pool, tmp_path):
    root = write_kaggle(pool, tmp_path / "data")
    assert not auto.has_split(root, "test")
    with pytest.raises(UserError, match=r"no labels; predict them with --input .*test"):
        index(root, "test", WNIDS, source="kaggle")


@pytest.mark.parametrize("below", ["val", "val/all"])
def test_flat_val_without_labels_names_what_is_missing(pool, tmp_path, below):  # B01
    root = write_flat_val(pool, tmp_path / "data")
    (root / "val_label.txt").unlink()
    (root / "val").rename(tmp_path / "pictures")
    (root / below).parent.mkdir(exist_ok=True)
    (tmp_path / "pictures").rename(root / below)
    (root / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match="lie flat and have no label file") as error:
        index(root, "val", WNIDS)
    for name in ("val_label.txt", "LOC_val_solution.csv", "ILSVRC2012_devkit_t12.tar"):
        assert name in str(error.value)
    write_kit_2012(root / "ILSVRC2012_devkit_t12" / "data")
    assert val_of(root) == VAL


def test_one_folder_of_a_class_is_no_flat_val(pool, tmp_path):
    root = write_flat_val(pool, tmp_path / "data")
    (root / "val_label.txt").unlink()
    shutil.rmtree(root / "val")
    name = "ILSVRC2012_val_00000002.JPEG"
    for wnid in ("n01440764", "cats"):
        write_jpeg(root / "val" / wnid / name)
        (root / "train" / wnid).mkdir(exist_ok=True)
        found = index(root, "val", sorted({*WNIDS, "cats"}))
        assert classes_of(found) == {name: wnid}
        shutil.rmtree(root / "val")


def test_numbered_labels_of_tensorflow(pool, tmp_path):
    root = write_flat_val(pool, tmp_path / "data")
    (root / "val_label.txt").unlink()
    file = root / "imagenet_2012_validation_synset_labels.txt"
    file.write_text("".join(f"{wnid}\n" for _, wnid in sorted(VAL.items())))
    assert val_of(root) == VAL


def test_tree_without_any_labels_says_what_was_looked_for(pool, tmp_path):
    root = write_kaggle(pool, tmp_path / "data")
    (root / "LOC_val_solution.csv").unlink()
    with pytest.raises(UserError, match=r"LOC_val_solution\.csv .*ILSVRC2012_devkit"):
        index(root, "val", WNIDS)


def test_labels_of_two_kinds_are_refused_until_one_is_chosen(pool, tmp_path):
    root = write_kaggle(pool, tmp_path / "data")
    write_kit_2015(root / "ILSVRC" / "devkit" / "data")
    for split in ("train", "val"):
        with pytest.raises(UserError, match=r"as kaggle and as devkit; say which"):
            index(root, split, WNIDS)
    assert val_of(root, source="kaggle") == val_of(root, source="devkit") == VAL
    write_kit_2012(root / "ILSVRC2012_devkit_t12" / "data")
    with pytest.raises(UserError, match="there are 2 ground truths"):
        index(root, "val", WNIDS, source="devkit")


def test_two_trees_are_refused(pool, tmp_path):
    root = write_kaggle(pool, tmp_path / "data")
    shutil.copytree(root / "ILSVRC", root / "ILSVRC2017")
    with pytest.raises(UserError, match="has split 'val' in 2 trees"):
        index(root, "val", WNIDS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["ILSVRC2012_val_00000001"]], "line 2 is 'ILSVRC2012_val_00000001'"),
        ([["ILSVRC2012_val_00000001", ""]], "boxes of one class are expected"),
        ([["a", "n01440764 1 2 3 4 n02012849 1 2 3 4"]], "boxes of one class"),
        ([["a", "tench 1 2 3 4"]], "boxes of one class"),
        (
            [["a", "n01440764 1 2 3 4"], ["a", "n02012849 1 2 3 4"]],
            "line 3 gives 'a' another class",
        ),
    ],
)
def test_bad_rows_of_kaggle(pool, tmp_path, rows, message):
    root = write_kaggle(pool, tmp_path / "data")
    header = ["ImageId", "PredictionString"]
    write_rows(root / "LOC_val_solution.csv", [header, *rows])
    with pytest.raises(UserError, match=message):
        index(root, "val", WNIDS)


def test_bad_devkits(pool, tmp_path):
    root = write_devkit_2012(pool, tmp_path / "data")
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    truth = kit / "ILSVRC2012_validation_ground_truth.txt"
    text = truth.read_text()
    truth.write_text(text.replace("3\n", "4\n"))
    with pytest.raises(UserError, match=r"'4', which is no id of meta\.mat"):
        index(root, "val", WNIDS)
    truth.write_text(text)
    write_mat(kit / "meta.mat", {**DEVKIT_IDS, WNIDS[0]: 1})
    with pytest.raises(UserError, match="each class one id and one wnid"):
        index(root, "val", WNIDS)
    for damaged in (b"", b"no table", bytes(range(256)) * 4):
        (kit / "meta.mat").write_bytes(damaged)
        with pytest.raises(UserError, match="not the devkit's table of classes"):
            index(root, "val", WNIDS)
    (kit / "meta.mat").unlink()
    with pytest.raises(UserError, match=r"ids of the devkit.*map_clsloc\.txt or meta"):
        index(root, "val", WNIDS)
    (kit / "map_clsloc.txt").write_text("n01440764\n")
    with pytest.raises(UserError, match="where a wnid and an id are expected"):
        index(root, "val", WNIDS)


@pytest.mark.parametrize("split", ["train", "val"])
def test_packed_data_is_recognised(tmp_path, split):  # B02
    names = ("ILSVRC2017_CLS-LOC.tar.gz", "ILSVRC2012_devkit_t12.tar.gz")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match="packed data") as error:
        index(tmp_path, split, WNIDS)
    assert "ILSVRC2017_CLS-LOC.tar.gz (ILSVRC/Data/CLS-LOC/{tr" in str(error.value)
    assert "ILSVRC2012_devkit_t12.tar.gz (the labels of" in str(error.value)
    with pytest.raises(UserError, match=r"packed data: ILSVRC2017_CLS-LOC\.tar"):
        index(tmp_path / names[0], "val", WNIDS)
    tar = tmp_path / "ILSVRC2012_img_val.tar"
    tar.write_bytes(b"")
    with pytest.raises(UserError, match="give the folder that it lies in"):
        index(tar, "val", WNIDS)


def test_classes_that_are_still_packed_are_not_lost(pool, tmp_path):
    root = write_flat_val(pool, tmp_path / "data")
    for wnid in ("n01440764", "n09999999"):
        (root / "train" / f"{wnid}.tar").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 classes .* still packed \(n09999999\)"):
        auto.train_classes(root)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_all_50000_labels_agree(assets, tmp_path):
    """Empty files, read through each form of the labels; the devkit's ids are mixed ones."""
    lines = (assets / "imagenet-val-wnids.csv").read_text().splitlines()
    truth = dict(line.split(",") for line in lines[1:])
    wnids = (assets / "imagenet-wnids.txt").read_text().split()
    (tmp_path / "val").mkdir()
    for name in truth:
        (tmp_path / "val" / name).touch()
    kaggle, flat, kit = (tmp_path / name for name in ("kaggle", "flat", "kit"))
    for folder in (kaggle / "ILSVRC" / "Data" / "CLS-LOC", flat, kit):
        folder.mkdir(parents=True)
        (folder / "val").symlink_to(tmp_path / "val")
    write_solution(kaggle / "LOC_val_solution.csv", truth)
    write_rows(flat / "val.csv", [["filename", "wnid"], *truth.items()])
    ids = {wnid: (7 * i) % 1000 + 1 for i, wnid in enumerate(wnids)}
    write_kit_2012(kit / "ILSVRC2012_devkit_t12" / "data", ids, truth)
    for root, layout in ((kaggle, "kaggle"), (flat, "flat_val"), (kit, "devkit")):
        assert auto.detect_layout(root, "val") == layout
        found = classes_of(index(root, "val", wnids))
        assert sum(found[name] == wnid for name, wnid in truth.items()) == 50_000
        assert len(found) == 50_000
