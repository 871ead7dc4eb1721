"""The blocks of shards that come next are asked for in one piece each, before their pictures are."""

import gc
import threading

import numpy as np
import pytest
import torch
from conftest import CLASSES, pack, write_classes

from imnet_pl.data import read_ahead
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.members import Members
from imnet_pl.data.read_ahead import byte_ranges, let_read
from imnet_pl.data.sources import auto

BLOCK = ("shuffle_block", 4), ("shuffle_window", 16)


@pytest.fixture(params=["mixed", "source"])
def packed(tmp_path, request):
    """Three classes of 30 pictures in shards of a few pictures."""
    write_classes(tmp_path / "in" / "train", dict.fromkeys(CLASSES, 30))
    write_classes(tmp_path / "in" / "val", dict.fromkeys(CLASSES, 2), seed=50)
    return pack(
        *(tmp_path / "in", tmp_path / "packed", "--keep_originals=true"),
        *("--shard_gb=2e-5", f"--order={request.param}"),
    )


@pytest.fixture
def asked(monkeypatch):
    """Collects what the system is asked to read."""
    ranges = []
    monkeypatch.setattr(
        read_ahead, "let_read", lambda file, *span: ranges.append((file.name, *span))
    )
    return ranges


def threads():
    return [t for t in threading.enumerate() if t.name == "read-ahead"]


def epoch(root, **more):
    data = ImageNetDataModule(
        str(root), image_size=16, batch_size=8, num_workers=0, seed=3, **more
    )
    data.setup("fit")
    return data, list(data.train_dataloader())


def test_each_block_is_asked_for_before_its_pictures_and_the_batches_are_the_same(
    packed, tmp_path, asked, request
):
    data, batches = epoch(packed, shuffle="block", **dict(BLOCK))
    _, from_files = epoch(tmp_path / "in", shuffle="block", **dict(BLOCK))
    if request.node.callspec.params["packed"] == "source":
        for batch, expected in zip(batches, from_files, strict=True):
            assert torch.equal(batch.images, expected.images)
            assert torch.equal(batch.indices, expected.indices)
    taken = [row for batch in batches for row in batch.indices.tolist()]
    assert len(set(taken)) == len(taken) == 88
    for thread in threads():
        thread.join(timeout=0.2)
    members = data.indices["train"].members
    for row in range(90):
        shard = members.shards[members.shard[row]]
        start = int(members.offset[row])
        stop = start + int(members.length[row])
        covering = [
            r for r in asked if r[0] == shard and r[1] <= start and stop <= r[2]
        ]
        assert len(covering) >= 1
    # One range is a block, but where a shard ends in it or the epoch begins within.
    assert len(asked) <= 90 // 4 + 2 + len(members.shards)


def test_the_thread_ends_with_its_loader(packed):
    data, _ = epoch(packed, shuffle="block", **dict(BLOCK))
    assert threads()
    ending = threads()
    del data
    gc.collect()
    for thread in ending:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_full_order_and_files_need_none(packed, tmp_path):
    epoch(packed)
    epoch(tmp_path / "in", shuffle="block", **dict(BLOCK))
    assert not threads()


def test_pieces_of_several_shards_in_any_order_and_with_a_gap():
    shard = np.array([1, 0, 0, 1, 0], np.int32)
    offset = np.array([5000, 900, 512, 10_000_000, 300_000], np.int64)
    length = np.array([100, 50, 300, 7, 10], np.int32)
    none = np.zeros(5, np.int32)
    members = Members(("a", "b"), shard, offset, length, none, none, none)
    assert list(byte_ranges(members, np.arange(5))) == [
        *(("a", 512, 950), ("a", 300_000, 300_010)),
        *(("b", 5000, 5100), ("b", 10_000_000, 10_000_007)),
    ]
    assert list(byte_ranges(members, np.arange(1, 3))) == [("a", 512, 950)]


@pytest.mark.parametrize("has_advice", [True, False])
def test_what_is_read_ends_with_the_file(tmp_path, has_advice, monkeypatch):
    if not has_advice:  # as on Windows
        monkeypatch.delattr("os.posix_fadvise", raising=False)
    (tmp_path / "a").write_bytes(bytes(3_000_000))
    let_read(tmp_path / "a", 1000, 2_500_000)
    let_read(tmp_path / "a", 2_900_000, 9_000_000)
    with pytest.raises(FileNotFoundError):
        let_read(tmp_path / "b", 0, 1)


def test_a_shard_that_is_gone_is_an_error_of_the_picture_alone(packed):
    index = auto.index_split(packed, "train", CLASSES)
    ahead = read_ahead.ReadAhead(index)
    (packed / "train-00000.tar").unlink()
    for start in (0, 60):
        ahead(range(start, start + 10))
    (thread,) = threads()
    del ahead
    thread.join(timeout=10)
    assert not thread.is_alive()
