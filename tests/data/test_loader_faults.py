"""Workers that hang, and signals that are meant for the main process."""

import multiprocessing
import os
import signal

import pytest
from conftest import write_classes
from test_loader import index, make_loader  # noqa: F401

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import auto


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a file that hangs")
def test_a_file_that_hangs_is_named_and_its_worker_ended(tmp_path):
    root = tmp_path / "hanging"
    write_classes(root / "train", {"n01": 1, "n02": 1})
    two = auto.index_split(root, "train", ("n01", "n02"))
    (root / "train" / "n01" / "p0.jpg").unlink()
    os.mkfifo(root / "train" / "n01" / "p0.jpg")
    loader = make_loader(two, 1, batch_size=2, train=False, stall_sec=8)
    before = set(multiprocessing.active_children())
    with pytest.raises(UserError, match=r"nothing for 8 s.*n01.p0\.jpg"):
        next(iter(loader))
    started = set(multiprocessing.active_children()) - before
    for worker in started:
        worker.join(timeout=5)
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_workers_outlive_a_signal_to_the_whole_group(index):  # noqa: F811
    loader = make_loader(index, 1, batch_size=4, train=False)
    batches = iter(loader)
    next(batches)
    (worker,) = loader._loader._iterator._workers
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(worker.pid, number)
    assert len(list(batches)) == 9
