"""The same few pictures in each layout: one run, one class order, the same tensors."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPO, fit_args
from layouts import LAYOUTS, TRAIN, VAL, WNIDS, classes_of, write_pool

from imnet_pl.cli import main
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.sources import auto
from imnet_pl.training.contract import read_contract

LAST = Path("runs/run/version_0/checkpoints/last.ckpt")


@pytest.fixture
def pool(in_tmp):
    return write_pool(in_tmp / "pool")


def write(layout, pool, folder):
    folder.mkdir()
    return LAYOUTS[layout][0](pool, folder)


def module(root, **options):
    data = ImageNetDataModule(str(root), image_size=32, num_workers=0, **options)
    data.setup("fit")
    return data


def tensors_of(data, split):
    """Return picture name -> (its tensor, the class that its target is)."""
    (batch,) = data.eval_dataloader(split)
    names = [Path(path).name for path in data.paths(batch.indices, split)]
    targets = [data.classes[int(target)] for target in batch.targets]
    return dict(zip(names, zip(batch.images, targets, strict=True), strict=True))


def predicted():
    with Path("predictions.csv").open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_recognised_and_gives_the_same(pool, in_tmp, layout):
    root = write(layout, pool, in_tmp / "data")
    assert auto.detect_layout(root, "val") == LAYOUTS[layout][1]
    data, other = module(root), module(write("folder", pool, in_tmp / "other"))
    assert data.classes == other.classes == WNIDS
    for split, wnid_of in (("train", TRAIN), ("val", VAL)):
        assert classes_of(data.indices[split]) == wnid_of
        here, there = tensors_of(data, split), tensors_of(other, split)
        assert here.keys() == there.keys() == wnid_of.keys()
        for name, (image, wnid) in here.items():
            assert torch.equal(image, there[name][0])
            assert wnid == wnid_of[name]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fit_stores_one_class_order(pool, in_tmp, tiny_network, layout):
    root = write(layout, pool, in_tmp / "data")
    assert main(fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=1")) == 0
    contract = read_contract(str(LAST))
    assert contract["classes"] == list(WNIDS)
    sizes = {split: facts["num_samples"] for split, facts in contract["data"].items()}
    assert sizes == {"train": len(TRAIN), "val": len(VAL)}


def test_all_verbs_on_a_table(pool, in_tmp, tiny_network, capsys):
    root = write("csv", pool, in_tmp / "data")
    args = fit_args(root, "--data.source=csv", "--data.batch_size=4")
    assert main([*args, "--trainer.max_epochs=1"]) == 0
    assert main(["fit", "--resume", "--trainer.max_epochs=2"]) == 0
    for verb in ("validate", "test"):  # without a row of test it is val
        assert main([verb, "--ckpt_path", str(LAST)]) == 0
    assert main(["predict", "--ckpt_path", str(LAST), "--input", "val"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("6 pictures, 0 unreadable: predictions.csv\n")
    rows = predicted()
    assert {Path(row["path"]).name: row["label"] for row in rows} == VAL


def test_predictions_name_the_wnid_where_two_classes_share_a_name(
    pool, in_tmp, tiny_network
):
    """B36: the crane that lifts and the crane that flies are two rows."""
    root = write("kaggle", pool, in_tmp / "data")
    assert main(fit_args(root, "--data.batch_size=4", "--trainer.max_epochs=1")) == 0
    assert main(["predict", "--ckpt_path", str(LAST), "--input", "val"]) == 0
    ranks = [[row[f"top{k}_wnid"] for k in (1, 2, 3)] for row in predicted()]
    assert all(sorted(wnids) == list(WNIDS) for wnids in ranks)


def test_a_class_list_decides_the_order_in_every_layout(pool, in_tmp):
    names = list(reversed(WNIDS))
    for i, layout in enumerate(LAYOUTS):
        data = module(write(layout, pool, in_tmp / f"d{i}"), classes=names)
        assert data.classes == tuple(names)
        assert classes_of(data.indices["val"]) == VAL
        assert data.indices["train"].labels.max() == 2


def test_smoke_run_on_a_table(pool, in_tmp, tiny_network, capsys):
    root = write("csv", pool, in_tmp / "data")
    main(
        fit_args(root, "--data.batch_size=4", "--smoke")
    )  # random pictures can not be learned: the lines before are looked at
    out = capsys.readouterr().out
    for line in ("data found: 12 of train and 6 of val, 3 classes", "labels in range"):
        assert f"ok    {line}" in out


@pytest.mark.parametrize("flag", ["--data.image_root=data/images", "--data.seed=1"])
def test_relative_paths_are_absolute_in_the_run(pool, in_tmp, tiny_network, flag):
    root = write("csv", pool, in_tmp / "data")
    args = fit_args(root.relative_to(in_tmp), "--data.batch_size=4", flag)
    assert main([*args, "--trainer.max_epochs=1"]) == 0
    text = read_contract(str(LAST))["config"]
    assert f"root: {root}\n" in text
    if "image_root" in flag:
        assert f"image_root: {in_tmp / 'data' / 'images'}\n" in text


@pytest.mark.slow
def test_two_ranks_and_a_resume_on_a_table(pool, in_tmp):
    root = write("csv", pool, in_tmp / "data")
    ranks = ["--trainer.strategy=ddp", "--trainer.devices=2", "--data.batch_size=2"]
    args = [*fit_args(root, *ranks), "--model.arch=resnet18", "--data.num_workers=1"]
    for epochs, more in ((1, []), (2, ["--resume"])):
        command = [sys.executable, str(REPO / "cli.py"), *args, *more]
        done = subprocess.run(
            [*command, f"--trainer.max_epochs={epochs}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert read_contract(str(LAST))["classes"] == list(WNIDS)
    assert read_contract(str(LAST))["progress"]["epochs"] == 2
