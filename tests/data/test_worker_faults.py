"""Workers that are killed, that hang, or that can not start: a sentence, and nothing left behind."""

import logging
import os
import signal
import threading
import time

import pytest
import torch
from conftest import CLASSES
from probe import Failing, Hanging, NothingShared, Slow
from test_loader import epoch, index, make_loader, same  # noqa: F401

from imnet_pl.core.cgroup import Cgroups
from imnet_pl.core.errors import UserError
from imnet_pl.data import loader_report
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.data.slots import FREE
from imnet_pl.data.sources import auto

posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows has no signals")


@posix_only
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, r"was killed \(SIGKILL\), as the kernel does where memory"),
        (signal.SIGSEGV, r"was ended by SIGSEGV.*check-data finds pictures that crash"),
        (signal.SIGBUS, r"bus error \(SIGBUS\): shared memory"),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else "",
)
def test_a_worker_that_is_killed_is_named_and_the_next_pass_has_a_new_one(
    index,  # noqa: F811
    number,
    words,
):
    loader = make_loader(index, 1, batch_size=4)
    expected = epoch(make_loader(index, 0, batch_size=4))
    batches = iter(loader)
    kept = next(batches).images
    before = kept.clone()
    (worker,) = loader._pool.workers
    os.kill(worker.pid, number)
    with pytest.raises(UserError, match=rf"worker 0 \(pid {worker.pid}\).*{words}"):
        list(batches)
    if number == signal.SIGKILL:
        assert same(epoch(loader), expected)
        assert same(epoch(loader), expected)
    assert torch.equal(kept, before)
    loader._free_unused()
    (slot,) = (loader.dataset.slots.owners != FREE).nonzero().tolist()
    assert kept.data_ptr() == loader.dataset.slots.memory[tuple(slot)].data_ptr()


@posix_only
def test_what_a_killed_worker_was_at_work_on_is_said(root):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(pictures, 1, batch_size=2, transform=Hanging(), train=False)

    def kill():
        while not loader.dataset.activity.under_way(0):
            time.sleep(0.1)
        os.kill(loader._pool.workers[0].pid, signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(UserError, match=r"at work on .*n01.p0\.jpg'\. Lower data.num"):
        next(iter(loader))


def test_the_kernel_s_count_tells_that_memory_ran_out(index, monkeypatch):  # noqa: F811
    loader = make_loader(index, 1, batch_size=4)
    next(iter(loader))
    loader._pool.workers[0].kill()
    loader._pool.workers[0].join()
    monkeypatch.setattr(Cgroups, "oom_kills", lambda self: 5)
    text = loader_report.describe_death(loader.dataset, loader._pool, [0], 4)
    assert "was killed by the kernel: memory ran out" in text
    text = loader_report.describe_death(loader.dataset, loader._pool, [0], 5)
    assert "memory ran out" not in text


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_thread_that_raises_ends_the_pass_with_its_own_error(root, workers, threads):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(pictures, workers, threads, transform=Failing(), train=False)
    with pytest.raises(ZeroDivisionError, match="of its own"):
        next(iter(loader))


def test_a_long_wait_is_said_before_it_is_an_error(root, caplog):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(
        pictures,
        *(2, 2),
        batch_size=2,
        transform=Hanging(),
        train=False,
        stall_sec=12,
        stall_warn_sec=1,
    )
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            UserError, match=r"nothing for 12 s \(data.stall_sec\)"
        ) as caught,
    ):
        next(iter(loader))
    warning = caplog.messages[-1]
    assert "(data.stall_warn_sec); it waits for a batch of 2 pictures" in warning
    for text in (warning, str(caught.value)):
        for worker, pictures in enumerate((("p0", "p1"), ("p2", "p3"))):
            part = text.split(f"worker {worker} (pid ")[1].split("worker ")[0]
            assert all(f"{picture}.jpg' for " in part for picture in pictures), text
        assert "MiB of memory are free" in text
        assert "files open" in text
    assert 1 <= len(caplog.messages) <= 4  # each is twice as long after the start


def test_a_long_wait_without_workers_is_said(root, caplog):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(
        pictures, 0, 2, batch_size=2, transform=Slow(), train=False, stall_warn_sec=1
    )
    with caplog.at_level(logging.WARNING):
        next(iter(loader))
    assert "this process works on" in caplog.text
    assert "p0.jpg' for " in caplog.text


def test_a_training_step_that_takes_long_is_no_wait(index, caplog):  # noqa: F811
    loader = make_loader(index, batch_size=20, stall_warn_sec=1)
    with caplog.at_level(logging.WARNING):
        for _ in loader:
            time.sleep(2)
    assert "delivered nothing" not in caplog.text


def test_batches_without_shared_memory_are_the_same(index, monkeypatch, caplog):  # noqa: F811
    """They come through a pipe."""
    expected = epoch(make_loader(index, 0))
    loader = make_loader(index, 1)
    loader.dataset.slots = NothingShared(1, 2, 8, 16)
    with caplog.at_level(logging.WARNING):
        assert same(epoch(loader), expected)
    assert caplog.text.count("batches travel through a pipe") == 1


def page_file_error():
    """Return the error of Windows when memory that nothing backs is asked for."""
    error = OSError("the paging file is too small")
    error.winerror = 1455
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(24, "Too many open files"), "ulimit -n 4096"),
        (
            OSError(12, "Cannot allocate memory"),
            "MiB of memory are free. Lower data.num",
        ),
        (OSError(28, "No space left on device"), "give data.num_workers=0; docker run"),
        (RuntimeError("unable to allocate shared memory(shm)"), "data.num_workers=0"),
        (page_file_error(), "or make the page file larger"),
        (BrokenPipeError(), "its own error is above. It may be that worker processes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_workers_that_can_not_start(index, monkeypatch, error, words):  # noqa: F811
    def fail(pool):
        raise error

    monkeypatch.setattr("imnet_pl.data.worker_pool.WorkerPool._get_iterator", fail)
    with pytest.raises(UserError, match=words) as caught:
        next(iter(make_loader(index, 3)))
    assert str(caught.value).startswith("3 worker processes could not be started")


def test_val_workers_start_when_they_are_needed(root):
    """Those of val do when it is iterated for the first time, and stay."""
    data = ImageNetDataModule(str(root), batch_size=8, image_size=16, num_workers=1)
    data.setup("fit")
    train, val = data.train_dataloader(), data.val_dataloader()
    assert (train._pool.workers, val._pool.workers) == ([], [])
    next(iter(train))
    assert (len(train._pool.workers), val._pool.workers) == (1, [])
    iter(val)
    assert val._pool.workers == []
    list(val)
    (worker,) = val._pool.workers
    list(val)
    assert val._pool.workers == [worker]
