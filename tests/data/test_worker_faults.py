"""Workers that are killed, that hang, or that can not start: a sentence, and nothing left behind."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import CLASSES, REPO
from probe import Failing, Hanging, Slow
from test_loader import epoch, index, make_loader, same  # noqa: F401

from imnet_pl.core.cgroup import Cgroups
from imnet_pl.core.errors import UserError
from imnet_pl.data import loader_report
from imnet_pl.data.dataset import Slots
from imnet_pl.data.sources import auto
from imnet_pl.data.worker_process import NO_MAIN_GUARD

SECONDS_TO_END = 15
posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows has no signals")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def environment():
    path = os.pathsep.join((str(REPO), str(Path(__file__).parent)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


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
    next(batches)
    (worker,) = loader._pool.workers
    os.kill(worker.pid, number)
    with pytest.raises(UserError, match=rf"worker 0 \(pid {worker.pid}\).*{words}"):
        list(batches)
    if number == signal.SIGKILL:
        assert same(epoch(loader), expected)


@posix_only
def test_what_a_killed_worker_was_at_work_on_is_said(root):
    pictures = auto.index_split(root, "train", CLASSES)
    loader = make_loader(
        pictures, 1, batch_size=2, transform=Hanging(), train=False, stall_warn_sec=1
    )
    pool = loader._pool
    batches = iter(loader)
    loader._watch._describe = lambda: (
        lambda seconds: os.kill(pool.workers[0].pid, signal.SIGKILL)
    )
    with pytest.raises(UserError, match=r"at work on .*n01.p0\.jpg'\. Lower data.num"):
        next(batches)


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


def test_no_wait_is_no_stall(spawned_once, caplog):
    """The trainer, not the loader, takes its time."""
    with caplog.at_level(logging.WARNING):
        for _ in spawned_once:
            time.sleep(0.6)
    assert "delivered nothing" not in caplog.text


@pytest.fixture
def spawned_once(index):  # noqa: F811
    """A loader that has begun a pass, so that its worker has started."""
    loader = make_loader(index, 0, batch_size=16, stall_warn_sec=0.5)
    return loader


def test_batches_without_shared_memory_are_the_same(index, monkeypatch, caplog):  # noqa: F811
    """As they come through a pipe: the worker can share nothing."""
    expected = epoch(make_loader(index, 0))
    loader = make_loader(index, 1)
    loader.dataset.slots = Slots(
        1, 0, 2**16, 2**10
    )  # of 192 GiB each, which no one has
    with caplog.at_level(logging.WARNING):
        assert same(epoch(loader), expected)
    assert caplog.text.count("batches travel through a pipe") == 1


RUN = """
import sys, time
if __name__ == "__main__":
    import logging
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from imnet_pl.data.datamodule import ImageNetDataModule
    from probe import Hanging
    data = ImageNetDataModule(
        sys.argv[1], batch_size=4, image_size=32, num_workers=2, num_threads=2, stall_warn_sec=1
    )
    data.setup("fit")
    loader = data.train_dataloader()
    if sys.argv[2] == "hang":
        loader.dataset.transform = Hanging(32)
    batches = iter(loader)
    next(batches)
    print("works on", file=sys.stderr)
    for _ in range(600):
        time.sleep(0.1)
"""


def wait_until(is_so, seconds=60):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def names_in_shared_memory(process):
    """Return the files in /dev/shm that a process has mapped and that have a name."""
    paths = {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm")}
    return {Path(path) for path in paths if not path.endswith("(deleted)")}


@linux_only
@pytest.mark.parametrize("mode", ["work", "hang"])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name
)
def test_nothing_is_left_of_a_process_that_ends(root, tmp_path, mode, number):
    script, own_tmp = tmp_path / "run.py", tmp_path / "tmp"
    script.write_text(RUN)
    own_tmp.mkdir()
    command = [sys.executable, script, root, mode]
    main = subprocess.Popen(
        command,
        env={**environment(), "TMPDIR": str(own_tmp)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with main:
        for line in main.stderr:
            if "works on" in line and "still starting" not in line:
                break
        process = psutil.Process(main.pid)
        family = [process, *process.children(recursive=True)]
        names = set().union(*map(names_in_shared_memory, family))
        assert len(family) >= 3
        assert names  # semaphores
        main.send_signal(number)
        _, alive = psutil.wait_procs(family[1:], timeout=SECONDS_TO_END)
        assert not alive
        wait_until(lambda: not any(map(Path.exists, names)), SECONDS_TO_END)
        main.stderr.read()
    assert not list(own_tmp.iterdir())


UNGUARDED = """
import sys
from imnet_pl.data.datamodule import ImageNetDataModule
data = ImageNetDataModule(sys.argv[1], batch_size=8, image_size=16, num_workers=1)
data.setup("fit")
print(sum(len(batch.targets) for batch in data.train_dataloader()), "pictures")
"""


def run_script(command, **options):
    return subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


def test_a_script_without_a_main_guard_is_told_so(root, tmp_path):
    (tmp_path / "run.py").write_text(UNGUARDED)
    done = run_script([sys.executable, tmp_path / "run.py", root])
    assert done.returncode == 1
    assert f"UserError: {NO_MAIN_GUARD}" in done.stderr
    assert done.stderr.startswith(NO_MAIN_GUARD)  # the worker's own word comes first
    assert "bootstrapping" not in done.stderr


def test_a_script_from_stdin_works(root):
    done = run_script([sys.executable, "-", root], input=UNGUARDED)
    assert done.stdout.split() == ["24", "pictures"], done.stderr


GUARDED = f"if __name__ == '__main__':{UNGUARDED}".replace("\n", "\n    ")


@posix_only
@pytest.mark.parametrize("limit", [64, 32])
def test_few_open_files_are_enough_or_an_error(root, tmp_path, limit):
    (tmp_path / "run.py").write_text(GUARDED)
    command = f"ulimit -n {limit}; exec {sys.executable} {tmp_path}/run.py {root}"
    done = run_script(["sh", "-c", command])
    if done.returncode:
        assert "UserError" in done.stderr, done.stderr
        assert f"may have {limit} files open" in done.stderr
    else:
        assert done.stdout.split() == ["24", "pictures"]


FIT = """
import sys
if __name__ == "__main__":
    import logging
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    import lightning, torch
    from imnet_pl.data.datamodule import ImageNetDataModule
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
        def training_step(self, batch, batch_idx):
            return self.layer(batch.images.float().mean().reshape(1, 1)).mean()
        def validation_step(self, batch, batch_idx):
            assert int(batch.status.sum()) == 0
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)
    data = ImageNetDataModule(sys.argv[1], batch_size=8, image_size=int(sys.argv[2]), num_workers=2)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, max_epochs=2, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False,
    )
    trainer.fit(Model(), data)
    print("epochs", trainer.current_epoch)
"""


def own_mounts_are_allowed():
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@linux_only
@pytest.mark.parametrize(
    ("side", "text"),
    [
        pytest.param(224, "2 shared batches each", id="fewer slots"),
        pytest.param(600, "other batches travel through a pipe", id="no slot"),
    ],
)
def test_a_fit_with_16_mb_of_shared_memory(root, tmp_path, side, text):
    if not own_mounts_are_allowed():
        pytest.skip("a mount of its own needs root")
    (tmp_path / "run.py").write_text(FIT)
    mount = "mount -t tmpfs -o size=16m tmpfs /dev/shm"
    command = (
        f"{mount}; exec {sys.executable} -W ignore {tmp_path}/run.py {root} {side}"
    )
    done = run_script(["unshare", "-m", "sh", "-c", command], cwd=tmp_path)
    assert done.stdout.split() == ["epochs", "2"], done.stderr
    assert text in done.stderr
    assert "Bus error" not in done.stderr


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


def test_a_page_file_of_windows_that_is_too_small(index, monkeypatch):  # noqa: F811
    def fail(pool):
        error = OSError("the paging file is too small")
        error.winerror = 1455
        raise error

    monkeypatch.setattr("imnet_pl.data.worker_pool.WorkerPool._get_iterator", fail)
    monkeypatch.setattr(loader_report.os, "name", "nt")
    text = loader_report.describe_failed_start(error_of(fail), 2)
    assert "or make Windows' page file larger" in text


def error_of(fail):
    try:
        fail(None)
    except OSError as error:
        return error
    return None


def test_val_workers_start_when_they_are_needed(root):
    """Those of val do when it is iterated for the first time, and stay."""
    from imnet_pl.data.datamodule import ImageNetDataModule

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
    assert torch.is_tensor(data.eval_dataloader("val").dataset.slots.owners)
