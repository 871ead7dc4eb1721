"""The verb predict through the real entry point: which rows it writes, and what it refuses."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CLASSES, REPO, fit_args, write_classes, write_jpeg

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.core.imagenet import human_name, human_names
from imnet_pl.data.sources import scan
from imnet_pl.training import predictions

WNIDS = tuple(human_names())[::100]
FIELDS = ("class", "wnid", "prob")


def train(root, in_tmp):
    """Return the checkpoint of a short run of the tiny network."""
    assert main(fit_args(root, "--trainer.max_epochs", "1")) == 0
    return str(in_tmp / "runs" / "run" / "version_0" / "checkpoints" / "best.ckpt")


@pytest.fixture
def ckpt(root, in_tmp, tiny_network):
    return train(root, in_tmp)


@pytest.fixture
def wnid_ckpt(in_tmp, tiny_network):
    """A model of ten of ImageNet's classes, whose data is gone."""
    root = in_tmp / "gone"
    write_classes(root / "train", dict.fromkeys(WNIDS, 2))
    write_classes(root / "val", dict.fromkeys(WNIDS, 1))
    path = train(root, in_tmp)
    shutil.rmtree(root)
    return path


def predict(ckpt_path, source, *more):
    return main(["predict", "--ckpt_path", ckpt_path, "--input", str(source), *more])


def read_rows(file="predictions.csv"):
    with Path(file).open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_folder(root, in_tmp, ckpt, capsys):
    assert predict(ckpt, root / "val") == 0
    assert capsys.readouterr().out == "9 pictures, 0 unreadable: predictions.csv\n"
    rows = read_rows()
    assert [row["path"] for row in rows] == scan.walk_pictures(root / "val")
    columns = [f"top{k}_{field}" for k in (1, 2, 3) for field in FIELDS]
    assert list(rows[0]) == ["path", "status", "label", *columns]  # 3 classes, not 5
    for row in rows:
        assert (row["status"], row["label"], row["top1_wnid"]) == ("ok", "", "")
        assert {row[f"top{k}_class"] for k in (1, 2, 3)} == set(CLASSES)
        probs = [row[f"top{k}_prob"] for k in (1, 2, 3)]
        assert all(re.fullmatch(r"[01]\.\d{6}", prob) for prob in probs)
        assert probs == sorted(probs, reverse=True)
        assert sum(map(float, probs)) == pytest.approx(1, abs=2e-6)
    assert sorted(p.name for p in in_tmp.iterdir()) == [
        "pictures",
        "predictions.csv",
        "runs",
    ]
    assert [p.name for p in (in_tmp / "runs" / "run").iterdir()] == ["version_0"]


def test_one_picture_and_a_list_agree_with_the_folder(root, in_tmp, ckpt):
    assert predict(ckpt, root / "val") == 0
    whole = {row.pop("path"): row for row in read_rows()}
    name = "n02/p1.jpg"
    assert predict(ckpt, root / "val" / name, "--output=one.csv") == 0
    assert read_rows("one.csv") == [{"path": "p1.jpg", **whole[name]}]
    listed = [f"./{name}", str(root / "val" / "n03" / "p0.jpg")]
    (root / "val" / "list.txt").write_text("\n".join(listed), encoding="utf-8")
    more = ["--output=list.csv", "--top_k=1", "--data.eval_batch_size=1"]
    assert predict(ckpt, root / "val" / "list.txt", *more) == 0
    rows = read_rows("list.csv")
    assert [row["path"] for row in rows] == listed
    assert rows[0]["top1_prob"] == whole[name]["top1_prob"]
    assert list(rows[0])[-1] == "top1_prob"


def test_split_has_labels_and_agrees_with_validate(root, in_tmp, ckpt, capsys):
    (root / "val" / "n02" / "p1.jpg").write_bytes(b"no picture")
    assert predict(ckpt, "val") == 0
    assert capsys.readouterr().out == "9 pictures, 1 unreadable: predictions.csv\n"
    rows = read_rows()
    assert [row["path"] for row in rows] == [
        f"val/{path}" for path in scan.walk_pictures(root / "val")
    ]
    broken = rows.pop(4)
    assert (broken["path"], broken["status"]) == ("val/n02/p1.jpg", "unreadable")
    assert set(list(broken.values())[2:]) == {""}
    assert [row["label"] for row in rows] == ["n01"] * 3 + ["n02"] * 2 + ["n03"] * 3
    right = sum(row["label"] == row["top1_class"] for row in rows)
    assert main(["validate", "--ckpt_path", ckpt]) == 0
    assert f"top1 {right / 9:.6f}" in capsys.readouterr().out


def test_rows_are_the_same_with_worker_processes(root, in_tmp, ckpt):
    assert predict(ckpt, root / "train", "--data.eval_batch_size=5") == 0
    more = ["--output=b.csv", "--data.num_workers=2", "--data.eval_batch_size=5"]
    assert predict(ckpt, root / "train", *more) == 0
    assert (in_tmp / "b.csv").read_bytes() == (in_tmp / "predictions.csv").read_bytes()


def test_names_that_are_not_ascii(in_tmp, ckpt):
    folder, output = in_tmp / "Bilder ü", in_tmp / "Ergebnis 猫.csv"
    names = ['a, "b".jpg', "Süd/猫.jpg"]
    if os.name != "nt":
        names[0] = 'a,\n"b".jpg'
    for name in sorted(names):
        write_jpeg(folder / name)
    assert predict(ckpt, folder, "--output", str(output)) == 0
    assert [row["path"] for row in read_rows(output)] == sorted(names)


@pytest.mark.skipif(sys.platform != "linux", reason="names there are valid Unicode")
def test_a_name_that_is_no_unicode(in_tmp, ckpt):
    write_jpeg(in_tmp / "in" / "x.jpg")
    (in_tmp / "in" / "x.jpg").rename(in_tmp / "in" / os.fsdecode(b"\xff.jpg"))
    assert predict(ckpt, in_tmp / "in") == 0
    assert [row["path"] for row in read_rows()] == [r"\udcff.jpg"]


def test_wnids_have_human_names(in_tmp, wnid_ckpt, assets):
    folder = assets / "imagenet-labelled-20"
    assert predict(wnid_ckpt, folder, "--top_k=20") == 0
    rows = read_rows()
    assert [row["path"] for row in rows] == sorted(p.name for p in folder.iterdir())
    assert len(rows) == 20
    assert "top10_prob" in rows[0]
    assert "top11_prob" not in rows[0]
    for row in rows:
        tops = [(row[f"top{k}_class"], row[f"top{k}_wnid"]) for k in range(1, 11)]
        assert sorted(wnid for _, wnid in tops) == list(WNIDS)
        assert all(name == human_name(wnid) for name, wnid in tops)


def test_odd_images(in_tmp, wnid_ckpt, assets):
    manifest = (assets / "odd-images" / "manifest.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in manifest.splitlines()[1:]]
    broken = {name for name, _, expected, _ in rows if "named in report" in expected}
    broken.add("bomb_4GP.png")
    may_be_broken = {name for name, _, expected, _ in rows if " or " in expected}
    assert predict(wnid_ckpt, assets / "odd-images") == 0
    written = read_rows()
    assert [row["path"] for row in written] == scan.list_pictures(assets / "odd-images")
    unreadable = {row["path"] for row in written if row["status"] == "unreadable"}
    assert broken <= unreadable <= broken | may_be_broken


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (["--input=no"], 1, "--input='no' does not exist"),
        (["--input=runs/run/version_0/checkpoints"], 1, "is a folder without pictures"),
        ([], 2, "predict needs --input PATH"),
        (["--input="], 2, "predict needs --input PATH"),
        (["--inptu=a"], 2, "'inptu' is no argument. Did you mean 'input'?"),
        (["--input=val", "--top_k=0"], 1, "--top_k=0 must be at least 1."),
        (["--input=val", "--top_k=many"], 2, "top_k: "),
        (["--input=val", "--output=runs"], 1, "--output='runs' is a folder"),
        (["--input=val", "--output=no/a.csv"], 1, "the folder 'no' does not exist"),
    ],
)
def test_bad_arguments_are_one_sentence(ckpt, capsys, flags, status, sentence):
    capsys.readouterr()
    assert main(["predict", "--ckpt_path", ckpt, *flags]) == status
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert sentence in error


def test_split_of_data_that_is_gone(root, ckpt, capsys):
    assert predict(ckpt, "test") == 1
    assert "no pictures of split 'test'" in capsys.readouterr().err
    root.rename(root.parent / "moved")
    assert predict(ckpt, "val") == 1
    assert "--data.root DIR" in capsys.readouterr().err
    assert predict(ckpt, "val", f"--data.root={root.parent / 'moved'}") == 0
    assert predict(ckpt, root.parent / "moved" / "val") == 0


def test_checkpoint_is_needed(root, in_tmp, capsys):
    assert main(["predict", "--input", str(root)]) == 2
    assert "predict needs --ckpt_path FILE" in capsys.readouterr().err
    torch.save({"state_dict": {}}, in_tmp / "x.ckpt")
    assert predict("x.ckpt", root) == 1
    assert "was not written by this program" in capsys.readouterr().err


def test_input_may_stand_in_a_config(root, in_tmp, ckpt):
    (in_tmp / "c.yaml").write_text("input: val\ntop_k: 1\n")
    args = ["predict", "--ckpt_path", ckpt, "--config", "c.yaml"]
    assert main([*args, "--output=a.csv"]) == 0
    assert read_rows("a.csv")[0]["label"] == "n01"


def test_only_predict_has_its_flags(root, capsys):
    assert main(["validate", "--input", str(root)]) == 2
    assert "'input' is no argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "n"),
    [
        ("--trainer.barebones=true", 9),
        ("--trainer.fast_dev_run=1", 2),
        ("--trainer.limit_predict_batches=2", 4),
        ("--trainer.limit_predict_batches=0", 0),
        ("--trainer.enable_progress_bar=false", 9),
        ("--trainer.callbacks+=TQDMProgressBar", 9),
    ],
)
def test_trainer_switches_work(root, in_tmp, ckpt, capsys, flag, n):
    assert predict(ckpt, root / "val", flag, "--data.eval_batch_size=2") == 0
    paths = [row["path"] for row in read_rows()]
    assert paths == scan.walk_pictures(root / "val")[:n]
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line == f"{n} pictures, 0 unreadable: predictions.csv"


def test_output_is_replaced_when_complete(in_tmp, monkeypatch):
    output = in_tmp / "p.csv"
    output.write_text("old")
    predictions.PredictionWriter(str(output))
    assert output.read_text() == "old"

    def lines():
        yield ["a"]
        raise OSError("disk full")

    with pytest.raises(UserError, match=r"--output='.*p\.csv'.*disk full"):
        predictions.write_csv(output, lines())
    assert output.read_text() == "old"
    assert list(in_tmp.iterdir()) == [output]
    predictions.write_csv(output, [["ü", "1"]])
    assert output.read_bytes() == "ü,1\n".encode()


def test_a_file_that_can_not_be_replaced_keeps_the_predictions(in_tmp):
    (in_tmp / "p.csv").mkdir()  # made while the prediction ran
    with pytest.raises(UserError, match=r"the predictions are in '.*\.tmp'"):
        predictions.write_csv(in_tmp / "p.csv", [["a"]])
    (kept,) = in_tmp.glob("*.tmp")
    assert kept.read_text() == "a\n"


def test_a_locked_output_is_known_early(in_tmp, monkeypatch):
    (in_tmp / "p.csv").write_text("old")
    monkeypatch.setattr(predictions, "_opens", lambda _: False)
    with pytest.raises(UserError, match="read-only or open elsewhere"):
        predictions.PredictionWriter("p.csv")


def test_best_classes():
    class Batch:
        indices, status = torch.tensor([7, 3]), torch.zeros(2, dtype=torch.uint8)

    probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])
    best = predictions.best_classes(probs, Batch, top_k=2)
    assert best.classes.tolist() == [[1, 2], [0, 2]]
    assert best.indices.tolist() == [7, 3]
    assert best.probs.dtype == np.float32


def test_names_of_classes():
    assert predictions.name_classes(WNIDS[:1]) == [("tench", "n01440764")]
    mixed = [WNIDS[0], "other"]
    assert predictions.name_classes(mixed) == [(WNIDS[0], ""), ("other", "")]


@pytest.mark.slow
def test_two_ranks_write_each_picture_once(root, in_tmp):
    """ResNet-18, since the ranks are processes that know nothing of a patched network."""
    (root / "val" / "n02" / "p1.jpg").write_bytes(b"no picture")
    args = ["--trainer.max_epochs", "1", "--model.arch", "resnet18"]
    assert main(fit_args(root, *args)) == 0
    ckpt_path = "runs/run/version_0/checkpoints/best.ckpt"
    small = ["--data.eval_batch_size=2", "--output=one.csv"]
    assert predict(ckpt_path, "val", *small) == 0
    assert predict(ckpt_path, root / "val" / "n01" / "p0.jpg", "--output=p1.csv") == 0
    ranks = ["--trainer.strategy=ddp", "--trainer.devices=2"]
    ranks += ["--trainer.accelerator=cpu", "--data.eval_batch_size=2"]
    picture = str(root / "val" / "n01" / "p0.jpg")
    for source, output, alone in (
        ("val", "two.csv", "one.csv"),
        (picture, "p2.csv", "p1.csv"),  # fewer pictures than ranks
    ):
        command = [sys.executable, str(REPO / "cli.py"), "predict"]
        command += ["--ckpt_path", ckpt_path, "--input", source, "--output", output]
        done = subprocess.run(
            [*command, *ranks], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" unreadable: ") == 1
        rows, expected = read_rows(output), read_rows(alone)
        assert len(rows) == len(expected)
        for row, other in zip(rows, expected, strict=True):
            close(row, other)


def close(row, other):
    """Equal but for the last digits of probabilities, which depend on the batch."""
    for name in row:
        if name.endswith("_prob") and row[name]:
            assert float(row[name]) == pytest.approx(float(other[name]), abs=2e-6)
        else:
            assert row[name] == other[name]
