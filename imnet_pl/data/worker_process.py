"""What a worker process does beside making batches: it bears signals, and ends with the process that started it."""

import multiprocessing
import multiprocessing.util
import shutil
import signal
import sys
import warnings

import torch
from torch.utils.data import get_worker_info

from imnet_pl.core.child_process import end_with_parent

NO_MAIN_GUARD_STATUS = 79
NO_MAIN_GUARD = (
    "worker processes import the script that started them, and this one would start them again: put the lines "
    'that use the data below  if __name__ == "__main__":  or give data.num_workers=0.'
)
_SECONDS_TO_SAVE = 30


def end_if_script_is_imported() -> None:
    """End a worker process in which a script without a main guard comes to start workers of its own.

    Raises:
        SystemExit: With ``NO_MAIN_GUARD_STATUS``, by which the process that started it knows why.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stderr.write(f"{NO_MAIN_GUARD}\n")
        raise SystemExit(NO_MAIN_GUARD_STATUS)


def init_worker(worker: int) -> None:
    """Begin as worker process number ``worker``."""
    end_with_parent(_remove_sockets)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="PIL")  # of damage that it can cope with
    # Ctrl-C is for the main process, which ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGTERM, _end_soon)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    info = get_worker_info()
    assert info is not None
    info.dataset.activity.enter(worker)  # type: ignore[attr-defined]


def _end_soon(number: int, frame: object) -> None:  # noqa: ARG001
    """Live on while the main process, which got the same signal from SLURM or systemd, saves the run."""
    if sys.platform != "win32":
        signal.alarm(_SECONDS_TO_SAVE)


def _remove_sockets() -> None:
    """Remove what a process that is killed would remove at its end: the sockets of its workers."""
    shutil.rmtree(multiprocessing.util.get_temp_dir(), ignore_errors=True)
