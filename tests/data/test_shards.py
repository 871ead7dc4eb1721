"""Packed data is read as the pictures that it was made from; what is damaged or missing is named."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from conftest import CLASSES, fit_args, pack, write_classes
from layouts import assert_same, paths_of

from imnet_pl.cli import main
from imnet_pl.core.errors import UserError
from imnet_pl.data import members
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.order import rows_by_place
from imnet_pl.data.reading import read_picture
from imnet_pl.data.sources import auto

LAST = "runs/run/version_0/checkpoints/last.ckpt"


@pytest.fixture
def packed(root, tmp_path):
    """The pictures of ``root`` as they are, in shards of a few pictures."""
    return pack(root, tmp_path / "packed", "--keep_originals=true", "--shard_gb=1e-5")


def opened(root, split="train", classes=CLASSES):
    return auto.index_split(root, split, classes)


def contents(index):
    return [read_picture(index, row) for row in range(len(index))]


def flip(file, place):
    """Change a bit of a byte."""
    with file.open("rb+") as content:
        content.seek(place)
        byte = content.read(1)[0]
        content.seek(place)
        content.write(bytes([byte ^ 1]))


def weights(folder):
    return torch.load(folder / LAST, weights_only=True)["state_dict"]


def test_packed_originals_are_the_same_data(root, packed):
    assert auto.detect_layout(packed, "val") == "shards"
    for split, count in (("train", 24), ("val", 9)):
        here, there = opened(packed, split), opened(root, split)
        assert paths_of(here) == paths_of(there)
        assert here.labels.tolist() == there.labels.tolist()
        assert here.summary() == there.summary()
        assert contents(here) == contents(there)
        assert (len(here), here.classes) == (count, there.classes)
    assert here.path(0) == f"{packed / 'val-00000.tar'}: val/n01/p0.jpg"
    assert here.members.width.tolist() == [48] * 9
    assert here.members.height.tolist() == [40] * 9


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_epoch_on_shards_gives_the_weights_of_one_on_files(
    root, packed, in_tmp, tiny_network, workers, monkeypatch
):
    found = []
    for name, data in (("files", root), ("shards", packed)):
        (in_tmp / name).mkdir()
        monkeypatch.chdir(in_tmp / name)
        more = ["--trainer.max_epochs=1", f"--data.num_workers={workers}"]
        assert main(fit_args(data, *more)) == 0
        found.append(weights(in_tmp / name))
    files, shards = found
    assert files.keys() == shards.keys()
    assert all(torch.equal(files[name], shards[name]) for name in files)


def test_a_run_on_files_goes_on_with_the_same_pictures_in_shards(
    root, packed, in_tmp, tiny_network, tmp_path, capsys
):
    assert main(fit_args(root, "--trainer.max_epochs=1")) == 0
    shrunk = pack(root, tmp_path / "shrunk", "--short_side=24")
    go_on = [f"--ckpt_path={LAST}", "--trainer.max_epochs=2"]
    assert main(fit_args(shrunk, *go_on)) == 1
    assert "or other names or classes" in capsys.readouterr().err
    assert main(fit_args(packed, *go_on)) == 0


def test_a_checkpoint_knows_how_val_was_packed(root, in_tmp, tiny_network):
    whole = pack(root, in_tmp / "whole", "--short_side=24", "--quality=80")
    kept = pack(root, in_tmp / "kept", "--short_side=24", "--val=keep")
    for data, is_packed in ((whole, True), (kept, False)):
        shutil.rmtree("runs", ignore_errors=True)
        assert main(fit_args(data, "--trainer.max_epochs=1")) == 0
        facts = torch.load(LAST, weights_only=True)["imnet_pl"]["data"]
        assert facts["train"]["packed"]["short_side"] == 24
        assert ("packed" in facts["val"]) == is_packed
    assert contents(opened(kept, "val")) == contents(opened(root, "val"))


def test_the_folder_can_be_moved(packed, tmp_path):
    before = contents(opened(packed))
    moved = shutil.move(packed, tmp_path / "else where")
    assert contents(opened(moved)) == before


def test_an_index_is_mapped_from_where_it_lies(packed, kept_in):
    data = ImageNetDataModule(str(packed), image_size=16, verify_crc=True)
    data.setup("fit")
    index = data.indices["train"]
    assert index.folder == str(packed / "index" / "train")
    assert not kept_in.exists()
    again = pickle.loads(pickle.dumps(index))
    assert len(pickle.dumps(index)) < 1000
    assert again.members.verify_crc
    assert contents(again) == contents(index)
    assert_same(again, index)


def test_rows_are_taken_with_their_places(packed):
    index = opened(packed)
    rows = np.array([20, 3, 3])
    some = pickle.loads(pickle.dumps(index.take(rows)))
    assert contents(some) == [read_picture(index, row) for row in rows.tolist()]


@pytest.mark.parametrize("order", ["mixed", "source"])
def test_train_lies_mixed_and_its_index_is_in_the_order_of_the_source(
    root, tmp_path, order
):
    (root / "train/n02/bad.jpg").write_bytes(b"no picture")
    packed = pack(
        *(root, tmp_path / "packed", "--shard_gb=1e-5", "--short_side=30"),
        *(f"--order={order}", "--num_processes=2"),
    )
    for split in ("train", "val"):
        here, there = opened(packed, split), opened(root, split)
        sound = [row for row in range(len(there)) if "bad" not in there.path(row)]
        assert paths_of(here) == paths_of(there.take(np.array(sound)))
        assert here.labels.tolist() == there.labels[sound].tolist()
        as_source = pack(
            root, tmp_path / split / order, "--short_side=30", "--order=source"
        )
        assert contents(here) == contents(opened(as_source, split))
        lies_mixed = rows_by_place(here) is not None
        assert lies_mixed == (order == "mixed" and split == "train")
    assert json.loads((packed / "pack.json").read_text())["options"]["order"] == order


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes none")
@pytest.mark.parametrize("works", [True, False])
def test_the_system_is_told_of_a_random_order_once(packed, monkeypatch, works):
    index, told = opened(packed), []
    expected = contents(index)

    def advise(*args):
        told.append(args[1:])
        if not works:
            raise OSError(22, "no advice is taken")

    monkeypatch.setattr(members, "_FAR_BYTES", 2000)
    monkeypatch.setattr(members.os, "posix_fadvise", advise)
    index = opened(packed)
    rows = [
        row for row in rows_by_place(index).tolist() if index.members.shard[row] == 0
    ]
    assert [read_picture(index, row) for row in rows] == [expected[r] for r in rows]
    assert told == []
    for row in (*reversed(rows), *rows):
        assert read_picture(index, row) == expected[row]
    assert told == [(0, 0, os.POSIX_FADV_RANDOM)]


def test_shards_are_mapped_where_there_is_no_read_at_a_place(packed, monkeypatch):
    expected = contents(opened(packed))
    monkeypatch.setattr(members, "_MAPS_FILES", True)
    assert contents(opened(packed)) == expected


def test_other_classes_and_their_order(packed):
    classes = ["n03", "n00", "n02", "n01"]
    index = opened(packed, classes=classes)
    names = [classes[label] for label in index.labels]
    assert names == [path.split("/")[1] for path in paths_of(index)]
    assert index.fingerprint == opened(packed).fingerprint
    with pytest.raises(UserError, match=r"1 of the classes that were packed .* n03"):
        opened(packed, classes=["n01", "n02"])


def test_groups_are_carried_over(tmp_path):
    write_classes(tmp_path / "images", {"a": 4, "b": 4})
    rows = [f"{c}/p{i}.jpg,{c},{c}{i % 2}" for c in "ab" for i in range(4)]
    table = tmp_path / "data.csv"
    table.write_text("\n".join(["filename,label,group", *rows]), encoding="utf-8")
    index = opened(pack(table, tmp_path / "packed"), classes=("a", "b"))
    assert [index.groups.names[code] for code in index.groups.codes] == [
        row.rpartition(",")[2] for row in rows
    ]
    assert paths_of(index)[0] == "train/a/p0.jpg"


SPOILED = {
    "has 4,096 bytes instead of 20,480": lambda file: file.open("rb+").truncate(4096),
    "train-00001.tar is missing": lambda file: file.unlink(),
    "has 20,490 bytes": lambda file: file.open("ab").write(b"more bytes"),
    "holds other data": lambda file: file.write_bytes(bytes(20_480)),
}


@pytest.mark.parametrize("text", SPOILED)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_shard_that_is_not_as_it_was_is_named_at_start(packed, text):
    SPOILED[text](packed / "train-00001.tar")
    data = ImageNetDataModule(str(packed), image_size=16)
    with pytest.raises(UserError, match=r"train-00001.tar .*Copy them again") as error:
        data.setup("fit")
    assert text in str(error.value)


def test_what_is_no_finished_shard_set_is_told(packed, root):
    with pytest.raises(UserError, match="without split 'test', it has train, val"):
        opened(packed, "test")
    (packed / "index" / "val" / "offset.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"index .* is damaged"):
        opened(packed, "val")
    facts = json.loads((packed / "pack.json").read_text(encoding="utf-8"))
    (packed / "pack.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(UserError, match="format 2, this version reads 1"):
        opened(packed)
    (packed / "pack.json").write_text("{")
    with pytest.raises(UserError, match=r"pack.json' is damaged"):
        opened(packed)
    (packed / "pack.json").unlink()
    (packed / ".packing").mkdir()
    with pytest.raises(UserError, match="not finished; run the same pack command"):
        opened(packed)
    with pytest.raises(UserError, match=r"no pack\.json"):
        auto.index_split(root, "train", CLASSES, source="shards")


def test_a_changed_byte_is_found_by_verify_and_when_asked_for_at_run_time(
    packed, capsys
):
    index = opened(packed)
    row = paths_of(index).index("train/n02/p1.jpg")
    shard = packed / index.members.shards[index.members.shard[row]]
    flip(shard, int(index.members.offset[row]) + 300)
    assert main(["pack", f"--verify={packed}", "--num_processes=0"]) == 1
    shown = capsys.readouterr().out
    assert f"damaged: {shard.name}: train/n02/p1.jpg\n" in shown
    assert "1 damaged" in shown
    read_picture(opened(packed), row)
    checked = opened(packed)
    checked.members.verify_crc = True
    with pytest.raises(OSError, match=r"holds other bytes .* 'pack --verify'"):
        read_picture(checked, row)
    data = ImageNetDataModule(
        str(packed), image_size=16, num_workers=0, batch_size=24, verify_crc=True
    )
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch.status.tolist().count(2) == 1
    assert "holds other bytes" in data.bad_pictures["train"][row].reason


def test_verify_finds_changes_beside_pictures(packed, capsys):
    flip(packed / "train-00001.tar", 100)  # the mode of the first header
    flip(packed / "index" / "val" / "crc.npy", 130)
    (packed / "val-00000.tar").unlink()
    assert main(["pack", f"--verify={packed}", "--num_processes=0"]) == 1
    shown = capsys.readouterr().out
    assert "damaged: index/val/crc.npy has other bytes" in shown
    assert "damaged: train-00001.tar has other bytes" in shown
    assert "damaged: val-00000.tar can not be read" in shown


def test_a_shard_that_becomes_shorter_is_no_crash(packed):
    index = opened(packed)
    first, second = rows_by_place(index)[:2].tolist()
    whole = read_picture(index, first)
    with (packed / "train-00000.tar").open("rb+") as shard:
        shard.truncate(2048)
    with pytest.raises(OSError, match=r"train-00000.tar ends before this picture"):
        read_picture(index, second)
    assert len(whole) > 1000


def test_the_check_of_data_reads_shards(packed, capsys):
    assert main(["check-data", f"--data.root={packed}", "--num_processes=0"]) == 0
    assert "33 pictures: 0 findings to fix, 0 to look at, 0 notes" in (
        capsys.readouterr().out
    )


def test_verify_crc_is_only_for_packed_data(root, caplog):
    ImageNetDataModule(str(root), image_size=16, verify_crc=True).setup("fit")
    assert "data.verify_crc=True is ignored" in caplog.text
