"""Pictures that can not be read, workers that hang, and signals that are meant for the main process."""

import multiprocessing
import os
import signal

import pytest
import torch
from conftest import CLASSES
from probe import Hanging
from test_loader import index, make_loader  # noqa: F401

from imnet_pl.core.errors import UserError
from imnet_pl.data.loader import Batch
from imnet_pl.data.sources import auto


def test_a_file_that_hangs_is_named_and_its_worker_ended(root):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(
        pictures, 1, batch_size=2, transform=Hanging(), train=False, stall_sec=8
    )
    before = set(multiprocessing.active_children())
    with pytest.raises(UserError, match=r"nothing for 8 s.*n01.p0\.jpg"):
        next(iter(loader))
    started = set(multiprocessing.active_children()) - before
    for worker in started:
        worker.join(timeout=5)
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pipe_in_the_place_of_a_picture_is_a_bad_picture(root, workers):
    pictures = auto.index_split(root, "train", CLASSES)
    (root / "train" / "n02" / "p3.jpg").unlink()
    os.mkfifo(root / "train" / "n02" / "p3.jpg")
    loader = make_loader(pictures, workers, train=False)
    status = torch.cat([batch.status for batch in loader])
    assert status.nonzero().flatten().tolist() == [11]
    assert "no regular file" in loader.bad_pictures[11].reason


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_workers_outlive_a_signal_to_the_whole_group(index):  # noqa: F811
    loader = make_loader(index, 1, batch_size=4, train=False)
    batches = iter(loader)
    next(batches)
    (worker,) = loader._pool.workers
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(worker.pid, number)
    assert len(list(batches)) == 9


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_training_picture_is_named(root, workers):  # S12
    (root / "train" / "n02" / "p3.jpg").write_bytes(b"no picture")
    pictures = auto.index_split(root, "train", CLASSES)
    with pytest.raises(
        UserError, match=r"n02.p3\.jpg' \(index 11\) can not be read"
    ) as caught:
        list(make_loader(pictures, workers, 2))
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("damage", ["bytes", "gone"])
def test_unreadable_evaluation_picture_has_zero_pixels_and_a_status(root, damage):
    pictures = auto.index_split(root, "train", CLASSES)
    file = root / "train" / "n02" / "p3.jpg"
    file.write_bytes(b"no picture") if damage == "bytes" else file.unlink()
    batches = list(make_loader(pictures, 0, 2, train=False))
    status = torch.cat([batch.status for batch in batches])
    assert status.nonzero().flatten().tolist() == [11]
    assert torch.cat([batch.images for batch in batches])[11].max() == 0
    assert torch.cat([batch.targets for batch in batches])[11] == 1


def test_unreadable_evaluation_picture_in_memory_that_was_used_before(root):
    (root / "train" / "n02" / "p3.jpg").write_bytes(b"no picture")
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(pictures, 1, 2, batch_size=4, train=False)
    for _ in range(3):
        batches = [Batch(*(t.clone() for t in batch)) for batch in loader]
        assert [int(batch.status.sum()) for batch in batches] == [0, 0, 1, 0, 0, 0]
        assert batches[2].images[3].max() == 0
        assert batches[2].images[:3].amax((1, 2, 3)).min() > 0
