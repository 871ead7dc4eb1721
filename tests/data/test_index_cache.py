"""The kept index: the same as a scan's, and made anew when the data changes."""

import csv
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import CLASSES, fit_args, settle, write_classes, write_jpeg
from layouts import LAYOUTS, VAL, WNIDS, assert_same, classes_of, paths_of, write_pool
from lightning.pytorch.trainer.states import TrainerFn

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data import index_cache
from imnet_pl.data.catalog import Catalog
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.sources import auto, csv_table
from imnet_pl.training.contract import read_contract


def train(root, **options):
    return Catalog(str(root), **options).index("train")


def test_the_second_time_nothing_is_scanned_and_the_index_is_the_same(old_root, scans):
    for split in ("train", "val"):
        scanned = auto.index_split(old_root, split, CLASSES)
        scans.clear()
        for _ in range(3):
            kept = Catalog(str(old_root)).index(split)
            assert_same(kept, scanned)
            assert isinstance(kept.path_bytes.base, np.memmap)
        assert scans == [split]
        assert kept.fingerprint == scanned.fingerprint


def test_a_relative_root_is_the_same_data(old_root, scans, monkeypatch):
    train(old_root)
    monkeypatch.chdir(old_root.parent)
    assert train(old_root.name).path(0) == str(old_root / "train" / "n01" / "p0.jpg")
    assert scans == ["train"]


def add_file(root):
    write_jpeg(root / "train" / "n02" / "q.jpg")


def remove_file(root):
    (root / "train" / "n02" / "p3.jpg").unlink()


def rename_file(root):
    (root / "train" / "n02" / "p3.jpg").rename(root / "train" / "n02" / "z.jpg")


def add_class(root):
    write_jpeg(root / "train" / "n04" / "p.jpg")


def add_file_deeper(root):
    write_jpeg(root / "train" / "n02" / "deep" / "er" / "q.jpg")


@pytest.mark.parametrize(
    "change", [add_file, remove_file, rename_file, add_class, add_file_deeper]
)
def test_a_change_of_a_folder_is_seen(old_root, scans, change):
    before = train(old_root)
    change(old_root)
    for _ in range(2):
        after = train(old_root)
        assert after.fingerprint != before.fingerprint
        assert sorted(paths_of(after)) == sorted(
            path.relative_to(old_root).as_posix()
            for path in (old_root / "train").rglob("*.jpg")
        )
    assert scans == ["train"] * 3  # what has just changed is not kept
    settle(old_root)
    for _ in range(2):
        assert_same(train(old_root), after)
    assert len(scans) == 4


def test_a_change_deep_below_a_class_is_seen(old_root, scans):
    add_file_deeper(old_root)
    settle(old_root)
    assert len(train(old_root)) == 25
    write_jpeg(old_root / "train" / "n02" / "deep" / "er" / "r.jpg")
    assert len(train(old_root)) == 26


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_another_target_of_a_link_is_seen(old_root, tmp_path):
    """Also one whose split folder is as old, as a copy that keeps the times is."""
    other = shutil.copytree(old_root, tmp_path / "other")
    add_file(other)
    then = time.time() - 3600
    settle(other, then)
    settle(old_root, then)
    link = tmp_path / "link"
    for target, count in ((old_root, 24), (other, 25)):
        link.symlink_to(target)
        assert len(train(link)) == count
        link.unlink()


@pytest.fixture
def old_table(old_root):
    """A table of the training pictures, which has not changed for an hour."""
    table = old_root / "data.csv"
    rows = [f"train/{name}/p{i}.jpg,{name}" for name in CLASSES for i in range(4)]
    table.write_text("filename,label\n" + "\n".join(rows))
    settle(old_root)
    return table


def test_a_table_is_read_again_only_when_it_has_changed(old_table, monkeypatch):
    reads = []
    read_table = csv_table.read_table

    def count(*args, **options):
        reads.append(args)
        return read_table(*args, **options)

    monkeypatch.setattr(csv_table, "read_table", count)
    assert Catalog(str(old_table)).classes == CLASSES
    train(old_table)
    reads.clear()
    for _ in range(2):
        catalog = Catalog(str(old_table))
        assert catalog.classes == CLASSES
        assert len(catalog.index("train")) == 12
    assert reads == []
    text = old_table.read_text()
    old_table.write_text(text.replace(",n02", ",new"))
    assert Catalog(str(old_table)).classes == ("n01", "n03", "new")
    settle(old_table.parent)
    for _ in range(2):
        assert Catalog(str(old_table)).classes == ("n01", "n03", "new")


def test_a_part_of_an_index_is_mapped_too(old_table):
    """A worker process gets its name alone."""
    whole = train(old_table)
    catalog = Catalog(str(old_table), split_by="stratified", val_frac=0.25)
    for split, count in (("train", 9), ("val", 3)):
        part = catalog.index(split)
        rows = [paths_of(whole).index(path) for path in paths_of(part)]
        assert_same(part, whole.take(np.array(rows)))
        assert len(part) == count
        assert isinstance(part.labels.base, np.memmap)
        assert len(pickle.dumps(part)) < 500
        assert_same(pickle.loads(pickle.dumps(part)), part)
        # A kept one that is damaged is not believed.
        labels = Path(part.folder) / "labels.npy"
        labels.write_bytes(labels.read_bytes()[:-8] + bytes([1] * 8))
    again = Catalog(str(old_table), split_by="stratified", val_frac=0.25).index("val")
    assert again.labels.tolist() == [0, 1, 2]


def test_a_changed_label_file_is_seen(flat_root):
    file = flat_root / "val" / "val_label.txt"
    rows = [(f"v{i}.JPEG", CLASSES[i // 2]) for i in range(6)]
    file.write_text("".join(f"{name} {wnid}\n" for name, wnid in rows))
    settle(flat_root)
    catalog = Catalog(str(flat_root))
    assert classes_of(catalog.index("val")) == dict(rows)
    swapped = [(f"v{i}.JPEG", CLASSES[2 - i // 2]) for i in range(6)]
    file.write_text("".join(f"{name} {wnid}\n" for name, wnid in swapped))
    assert classes_of(catalog.index("val")) == dict(swapped)
    settle(flat_root)
    catalog.index("val")
    shutil.copyfile(file, flat_root / "val_labels.txt")
    with pytest.raises(UserError, match="val has 2 label files"):
        catalog.index("val")


# What the labels of val come from.
LABELS = {
    "folder": [],
    "flat_val": ["val_label.txt"],
    "kaggle": ["LOC_val_solution.csv"],
    "devkit_2012": ["meta.mat", "ILSVRC2012_validation_ground_truth.txt"],
    "devkit_2015": ["map_clsloc.txt", "ILSVRC2015_clsloc_validation_ground_truth.txt"],
    "csv": ["data.csv"],
    "tsv": ["data.tsv"],
    "label_csv": ["val/label.csv"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_kept_until_its_labels_or_pictures_change(
    tmp_path, scans, layout
):
    folder = tmp_path / "data"
    folder.mkdir()
    root = LAYOUTS[layout][0](write_pool(tmp_path / "pool"), folder)
    settle(folder)
    catalog = Catalog(str(root), classes=list(WNIDS))
    kept = catalog.index("val")
    assert_same(catalog.index("val"), kept)
    assert scans == ["val"]
    picture = folder / kept.relative_path(2)
    for name in [*LABELS[layout], picture.relative_to(folder).as_posix()]:
        (file,) = folder.rglob(name)
        scans.clear()
        (file.parent if file == picture else file).touch()
        assert_same(catalog.index("val"), kept)
        assert scans == ["val"], file
        settle(folder)
        catalog.index("val")
    shutil.copyfile(picture, picture.with_name("another.JPEG"))
    if layout in ("folder", "csv", "tsv", "label_csv"):
        assert len(catalog.index("val")) == len(VAL) + (layout == "folder")
    else:
        with pytest.raises(UserError, match=r"no line for 1 of 7 .*another"):
            catalog.index("val")


def test_groups_and_times_of_a_table_are_kept(tmp_path, scans):
    write_classes(tmp_path / "data" / "images", {"a": 3, "b": 2})
    table = tmp_path / "data" / "data.csv"

    def write(times):
        with table.open("w", newline="", encoding="utf-8") as text:
            writer = csv.writer(text)
            writer.writerow(["filename", "label", "group", "time"])
            for i, time_text in enumerate(times):
                name = f"a/p{i}.jpg" if i < 3 else f"b/p{i - 3}.jpg"
                writer.writerow([name, name[0], ["x", "é", ""][i % 3], time_text])

    write(["2024-01-02", "2024-01-01", "", "2023-05-05", "2024-01-01"])
    settle(tmp_path / "data")
    scanned = auto.index_split(table, "train", ["a", "b"])
    for _ in range(2):
        assert_same(train(table), scanned)
    assert scans == ["train"] * 2
    assert scanned.times.names == ("2023-05-05", "2024-01-01", "2024-01-02")
    assert train(table).path(0) == str(tmp_path / "data" / "images" / "a" / "p0.jpg")
    write(["2024-01-02", "2024-01-01", "", "2023-05-05", "2024-01-09"])
    assert train(table).times.names[-1] == "2024-01-09"
    (tmp_path / "data" / "images" / "b" / "p1.jpg").unlink()
    with pytest.raises(ValueError, match="1 pictures of 5 that are not there"):
        train(table)


def test_what_is_asked_for_is_part_of_the_key(old_root, scans):
    assert train(old_root).labels[0] == 0
    reverse = list(reversed(CLASSES))
    for _ in range(2):
        assert train(old_root, classes=reverse).labels[0] == 0
        assert train(old_root, classes=reverse).relative_path(0) == "train/n03/p0.jpg"
        train(old_root, source="folder")
        train(old_root, label_format="name")
    assert scans == ["train"] * 4
    shutil.rmtree(old_root / "val")
    unsplit = old_root / "train"
    settle(old_root)
    assert len(train(unsplit, split_by="stratified")) == 19
    assert len(train(unsplit, split_by="stratified")) == 19
    assert len(scans) == 5


def test_a_hit_says_what_the_scan_said(old_root, caplog):
    """A class that val lacks is not silent from the second run on."""
    shutil.rmtree(old_root / "val" / "n02")
    write_jpeg(old_root / "val" / "n01" / ".hidden.jpg")
    settle(old_root)
    Catalog(str(old_root)).index("val")
    caplog.clear()
    code = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from imnet_pl.data.catalog import Catalog\n"
        f"for _ in range(2): Catalog({str(old_root)!r}).index('val')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("val has no pictures of 1 classes: n02.") == 1
    assert done.stderr.count("left out 1 hidden pictures (.hidden.jpg)") == 1


def test_a_kept_index_is_pickled_as_its_folder(old_root):
    kept = train(old_root)
    message = pickle.dumps(kept)
    assert len(message) < 1000
    again = pickle.loads(message)
    assert_same(again, kept)
    assert isinstance(again.labels.base, np.memmap)
    assert not again.labels.flags.writeable
    part = pickle.loads(pickle.dumps(kept.take(np.array([3, 9]))))
    assert paths_of(part) == ["train/n01/p3.jpg", "train/n02/p1.jpg"]


def test_a_worker_makes_the_same_batches_from_a_kept_index(old_root):
    def batches(num_workers):
        data = ImageNetDataModule(
            str(old_root), image_size=16, batch_size=8, num_workers=num_workers
        )
        data.setup("fit")
        return data.indices["train"].folder, list(data.train_dataloader())

    folder, kept = batches(num_workers=1)
    (old_root / "train" / "n01").touch()
    no_folder, scanned = batches(num_workers=0)
    assert (folder is None, no_folder) == (False, None)
    assert len(kept) == len(scanned) == 3
    for ours, theirs in zip(kept, scanned, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_a_checkpoint_of_a_scanned_index_goes_on_with_a_kept_one(
    old_root, in_tmp, tiny_network, scans
):
    """What it says of the data is the same."""
    last = "runs/run/version_0/checkpoints/last.ckpt"
    (old_root / "train" / "n01").touch()
    assert main(fit_args(old_root, "--trainer.max_epochs=1")) == 0
    before = read_contract(last)["data"]
    settle(old_root)
    for split in ("train", "val"):
        Catalog(str(old_root)).index(split)
    scans.clear()
    assert main(fit_args(old_root, "--trainer.max_epochs=2", "--resume")) == 0
    assert scans == []
    assert read_contract(last)["data"] == before


def test_the_first_rank_indexes_before_the_others(old_root, scans):
    """As Lightning calls the hooks: prepare_data on local rank 0, then setup on every rank."""
    for stage, inputs, splits in (
        ("fit", None, ["train", "val"]),
        ("validate", None, ["val"]),
        ("predict", "train", ["train"]),
        ("predict", str(old_root / "val"), []),
    ):
        shutil.rmtree(index_cache.cache_dir(), ignore_errors=True)
        ranks = [
            ImageNetDataModule(str(old_root), predict_input=inputs) for _ in range(2)
        ]
        for data in ranks:
            data.trainer = SimpleNamespace(
                state=SimpleNamespace(fn=TrainerFn(stage)),
                global_rank=0,
                world_size=2,
            )
        scans.clear()
        ranks[0].prepare_data()
        assert scans == splits
        for data in ranks:
            data.setup(stage)
        assert scans == splits
