"""Whole programs that load: how they end, what they may lack, and what they leave behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import REPO

from imnet_pl.data.worker_process import NO_MAIN_GUARD

pytestmark = pytest.mark.slow

SECONDS_TO_END = 15
posix_only = pytest.mark.skipif(os.name != "posix", reason="Windows has no such limits")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


def environment():
    path = os.pathsep.join((str(REPO), str(Path(__file__).parent)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


RUN = """
import sys, time
if __name__ == "__main__":
    import logging, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for jobs in the background
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


def ends_with_its_family(main, number):
    """Send a signal to a process that loads; it, its workers and what they share are soon gone."""
    for line in main.stderr:
        if "works on" in line and "still starting" not in line:
            break
    process = psutil.Process(main.pid)
    family = [process, *process.children(recursive=True)]
    names = set().union(*map(names_in_shared_memory, family))
    assert len(family) >= 3
    assert names  # semaphores
    main.send_signal(number)
    main.wait(SECONDS_TO_END)
    _, alive = psutil.wait_procs(family[1:], timeout=SECONDS_TO_END)
    assert not alive
    wait_until(lambda: not any(map(Path.exists, names)), SECONDS_TO_END)
    main.stderr.read()


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
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}  # which torch keeps
    main = subprocess.Popen(
        command,
        env={**environment(), **compiled, "TMPDIR": str(own_tmp)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with main:
        try:
            ends_with_its_family(main, number)
        finally:
            main.kill()
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
        pytest.param(160, "3 shared batches each", id="fewer slots"),
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
    assert text in done.stderr, done.stderr
    assert "Bus error" not in done.stderr
