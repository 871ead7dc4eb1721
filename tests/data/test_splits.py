"""Splitting a set that has no val: groups stay whole, classes keep their shares, the choice is the same everywhere."""

import csv
import hashlib
from pathlib import Path

import numpy as np
import pytest
from conftest import CLASSES, fit_args, write_classes, write_jpeg

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.index import Codes, ImageIndex
from imnet_pl.data.splits import SplitRule, crossing_groups, split_index


def make_index(labels, groups=None, times=None, names=None):
    names = names or [f"p{i:05}.jpg" for i in range(len(labels))]
    classes = [f"c{i}" for i in range(max(labels) + 1)]
    columns = [None if c is None else Codes.from_texts(c) for c in (groups, times)]
    return ImageIndex.from_rows(Path("root"), names, labels, classes, *columns)


@pytest.fixture(scope="module")
def large():
    """Ten thousand pictures of five classes in 500 groups; a group has three classes at most."""
    draw = np.random.default_rng(3)
    own = draw.integers(0, 5, (500, 3))
    group = np.repeat(np.arange(500), 20)
    labels = own[group, draw.integers(0, 3, 10_000)].tolist()
    return make_index(labels, [f"patient{g}" for g in group])


def shares(index, rows):
    return np.bincount(index.labels[rows], minlength=len(index.classes)) / len(rows)


def test_groups_stay_whole_and_classes_keep_their_shares(large):
    train, val = split_index(large, SplitRule("group", 0.2))
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(10_000))
    codes = large.groups.codes
    assert not set(codes[train].tolist()) & set(codes[val].tolist())
    assert len(val) == pytest.approx(2000, abs=100)
    assert np.abs(shares(large, train) - shares(large, val)).max() < 0.01


@pytest.mark.parametrize("frac", [0.01, 0.07, 0.15, 0.5])
def test_the_share_of_val_is_met_with_groups_too(large, frac):
    _, val = split_index(large, SplitRule("group", frac))
    assert len(val) / len(large) == pytest.approx(frac, abs=0.012)


# The right values: a change of order, system, Python or library must not change a split.
@pytest.mark.parametrize(
    ("by", "digest"),
    [
        ("stratified", "f5c662a9cb947673"),
        ("group", "3828ee450e3083df"),
        ("kfold", "3828ee450e3083df"),
    ],
)
def test_a_seed_gives_the_same_split_everywhere(large, by, digest):
    _, val = split_index(large, SplitRule(by, 0.2, seed=7))
    assert hashlib.sha256(val.astype("<i8").tobytes()).hexdigest()[:16] == digest
    _, other = split_index(large, SplitRule(by, 0.2, seed=8))
    assert not np.array_equal(val, other)


def test_the_order_of_rows_has_no_influence(large):
    order = np.random.default_rng(0).permutation(len(large))
    turned = large.take(order)
    _, val = split_index(large, SplitRule("group", 0.2))
    _, turned_val = split_index(turned, SplitRule("group", 0.2))
    paths = {large.relative_path(i) for i in val.tolist()}
    assert {turned.relative_path(i) for i in turned_val.tolist()} == paths


@pytest.mark.parametrize("grouped", [True, False])
def test_folds_cover_everything_once(large, grouped):
    index = large if grouped else make_index(large.labels.tolist())
    folds = [
        split_index(index, SplitRule("kfold", num_folds=4, fold=f))[1] for f in range(4)
    ]
    assert sorted(np.concatenate(folds).tolist()) == list(range(10_000))
    assert np.abs(shares(index, folds[0]) - shares(index, folds[1])).max() < 0.02


def test_the_last_part_in_time_is_val():
    times = [f"2024-01-{1 + i % 10:02}" for i in range(100)]
    index = make_index([i % 2 for i in range(100)], times=times)
    train, val = split_index(index, SplitRule("time", 0.25))
    days = index.times.codes
    assert days[train].max() < days[val].min()
    assert len(val) == 30  # pictures of one time stay together


def test_groups_by_a_regular_expression_on_the_path():
    names = [f"site{i % 7}/scan_{i}.jpg" for i in range(140)]
    index = make_index([i % 2 for i in range(140)], names=names)
    train, val = split_index(index, SplitRule("group", 0.3, group=r"(site\d+)/"))
    sites = [{names[i].split("/")[0] for i in rows.tolist()} for rows in (train, val)]
    assert not sites[0] & sites[1]
    assert len(sites[1]) == 2


def test_pictures_without_a_group_stand_alone():
    index = make_index([i % 2 for i in range(100)], ["a", "b", "", "", ""] * 20)
    train, val = split_index(index, SplitRule("group", 0.2))
    codes = index.groups.codes
    assert not (set(codes[train].tolist()) & set(codes[val].tolist())) - {-1}


@pytest.mark.parametrize(
    ("index", "rule", "sentence"),
    [
        (([0, 1] * 10,), {"by": "group"}, "needs groups"),
        (([0, 1] * 10,), {"by": "time"}, "needs a column time"),
        (
            ([0, 1] * 10, None, ["1", ""] * 10),
            {"by": "time"},
            "10 of 20 rows have no time",
        ),
        (([0, 1] * 10, None, ["1"] * 20), {"by": "time"}, "no time lies before"),
        (([0, 1] * 10,), {"by": "group", "group": "x(.)"}, "matches 0 of 20 paths"),
        (
            ([0] * 19 + [1],),
            {"by": "stratified"},
            "can not split 20 pictures of 2 classes",
        ),
        (
            ([0] * 18 + [1, 1], None, [f"{i:02}" for i in range(20)]),
            {"by": "time"},
            "leaves 1 classes without a training picture (c1)",
        ),
        (([0, 1] * 10, ["a"] * 20), {"by": "group"}, "can not split"),
    ],
)
def test_what_can_not_be_split_is_one_sentence(index, rule, sentence):
    with pytest.raises(UserError) as error:
        split_index(make_index(*index), SplitRule(**rule))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "rule",
    [
        {"by": "groups"},
        {"by": "group", "val_frac": 1.0},
        {"by": "kfold", "fold": 5},
        {"by": "group", "group": "("},
    ],
)
def test_a_rule_that_can_not_work_names_its_argument(rule):
    with pytest.raises(UserError, match=r"data\.\w+="):
        SplitRule(**rule)


@pytest.fixture
def table(tmp_path):
    """A table of 60 pictures in 12 groups, without a column split."""
    rows = [(f"images/p{i}.jpg", CLASSES[i % 3], f"g{i // 5}") for i in range(60)]
    for i, (name, _, _) in enumerate(rows):
        write_jpeg(tmp_path / name, i, low=60 * (i % 3), high=60 * (i % 3) + 60)
    file = tmp_path / "rows.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("filename", "label", "group"), *rows])
    return file


def read_rows(file):
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def test_verb_and_training_make_the_same_split(table, in_tmp, tiny_network, capsys):
    args = ["--by", "group", "--val_frac", "0.25", "--to", "out/made.csv"]
    assert main(["split", f"--data.root={table}", *args]) == 0
    command = capsys.readouterr().out.split("python cli.py ")[1].split()
    made = read_rows(in_tmp / "out" / "made.csv")
    groups = [{r["group"] for r in made if r["split"] == s} for s in ("train", "val")]
    assert [len(g) for g in groups] == [9, 3]
    assert not groups[0] & groups[1]
    assert main([*command, *fit_args(table)[2:], "--trainer.max_epochs=1"]) == 0
    by = ["--data.split_by=group", "--data.val_frac=0.25", "--trainer.max_epochs=1"]
    assert main(fit_args(table, *by)) == 0
    saved = in_tmp / "runs/run/version_1/split.csv"
    assert read_rows(saved) == made
    assert not (in_tmp / "runs/run/version_0/split.csv").exists()
    assert main(["validate", "--ckpt_path", "best"]) == 0
    assert "n 15" in capsys.readouterr().out


def test_class_folders_without_train_and_val(tmp_path, in_tmp, tiny_network, capsys):
    write_classes(tmp_path / "flowers", dict.fromkeys(CLASSES, 10))
    root = tmp_path / "flowers"
    assert (
        main(fit_args(root, "--data.split_by=stratified", "--trainer.max_epochs=1"))
        == 0
    )
    assert "n 6" in capsys.readouterr().out
    data = ImageNetDataModule(root=str(root), split_by="stratified")
    data.setup("fit")
    assert data.paths([0], "train")[0].startswith(str(root / "n01"))


def test_crossing_groups_are_refused_unless_allowed(
    table, in_tmp, tiny_network, capsys
):
    rows = list(csv.reader(table.read_text(encoding="utf-8").splitlines()))
    split = [[*rows[0], "split"]]
    split += [
        [*row, "val" if i % 4 == 0 else "train"] for i, row in enumerate(rows[1:])
    ]
    with table.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(split)
    one = "--trainer.max_epochs=1"
    assert main(fit_args(table, one)) == 1
    error = capsys.readouterr().err
    assert (
        "12 groups are in train and in val (g0, g1, g10, g11, g2 and 7 more)" in error
    )
    assert "--data.split_by group" in error
    assert main(fit_args(table, one, "--data.allow_group_overlap=true")) == 0


def test_groups_of_two_tables_are_compared_by_name():
    left = make_index([0, 1], ["a", "b"])
    right = make_index([0, 1], ["b", "c"])
    assert crossing_groups(left, right, None) == ["b"]
    assert crossing_groups(left, make_index([0, 1]), None) == []


def test_a_table_that_can_not_be_written(table, in_tmp, capsys):
    (in_tmp / "folder").mkdir()
    assert main(["split", f"--data.root={table}", "--to", "folder"]) == 1
    assert "--to='folder' can not be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--bye=group"], "'bye' is no argument. Did you mean 'by'?"),
        (["--by=grop"], "by: Expected"),
    ],
)
def test_arguments_of_the_verb(capsys, args, sentence):
    assert main(["split", *args]) == 2
    assert sentence in capsys.readouterr().err


def test_help_of_the_verb(capsys):
    assert main(["split", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--by" in shown
    assert "--data.root" in shown
