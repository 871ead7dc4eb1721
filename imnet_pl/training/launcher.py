"""The ranks of one machine: the first starts the others, and when one is gone, all end."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import (
    _MultiProcessingLauncher,
    _SubprocessScriptLauncher,
)
from torch.multiprocessing.spawn import ProcessRaisedException

from imnet_pl.core.errors import UserError
from imnet_pl.training.stop_request import say

# A rank whose neighbour is gone has so long to notice it, say why and end by itself.
GRACE_SEC = 20.0
_LOOK_SEC = 1.0
# In the environment of the ranks that the first one started: its process.
FIRST_RANK_PID = "IMNET_PL_FIRST_RANK_PID"


class RankLauncher(_SubprocessScriptLauncher):
    """Starts this program again for each further device of the machine, and watches the processes.

    Lightning's (2.6) can not start the program again that pip makes of a console script on Windows, kills the
    first rank in the middle of its words when another one fails, and leaves the others waiting for the first.
    """

    _is_ending = False
    _is_watching = False

    def launch(
        self,
        function: Callable[..., Any],
        *args: Any,
        trainer: Trainer | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start the other ranks, unless somebody else did, and call the function.

        Raises:
            UserError: The port that was asked for is in use.
        """
        environment = self.cluster_environment
        environment.validate_settings(
            num_devices=self.num_processes, num_nodes=self.num_nodes
        )
        if not environment.creates_processes_externally:
            self._start_ranks()
            self._watch_with(self._watch_ranks)
        elif FIRST_RANK_PID in os.environ and not self._is_watching:
            self._watch_with(_watch_first_rank)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def kill(self, signum: Any) -> None:
        """End the other ranks."""
        self._is_ending = True
        super().kill(signum)

    def _start_ranks(self) -> None:
        self._check_can_spawn_children()
        environment = self.cluster_environment
        if environment.node_rank() == 0 and "MASTER_PORT" in os.environ:
            require_free_port(environment.main_port)
        os.environ |= {
            "MASTER_ADDR": environment.main_address,
            "MASTER_PORT": str(environment.main_port),
            "NODE_RANK": str(environment.node_rank()),
            "LOCAL_RANK": str(environment.local_rank()),
            "WORLD_SIZE": str(self.num_processes * self.num_nodes),
        }
        spec = sys.modules["__main__"].__spec__
        command = rank_command(sys.argv, None if spec is None else spec.name)
        for local_rank in range(1, self.num_processes):
            own = {"LOCAL_RANK": str(local_rank), FIRST_RANK_PID: str(os.getpid())}
            self.procs.append(subprocess.Popen(command, env={**os.environ, **own}))

    def _watch_with(self, watch: Callable[[], None]) -> None:
        self._is_watching = True
        threading.Thread(target=watch, daemon=True, name="watch-ranks").start()

    def _watch_ranks(self) -> None:
        """End this rank and the others when one has failed."""
        failed: dict[int, int] = {}
        while not failed:
            time.sleep(_LOOK_SEC)
            ended = {rank: proc.poll() for rank, proc in enumerate(self.procs, 1)}
            if self._is_ending or not any(status != 0 for status in ended.values()):
                return
            failed = {rank: status for rank, status in ended.items() if status}
        for rank, status in failed.items():
            pid = self.procs[rank - 1].pid
            say(
                f"local rank {rank} (process {pid}) {describe_status(status)}; the other ranks of this machine end "
                f"in {GRACE_SEC:g} s at the latest."
            )
        time.sleep(GRACE_SEC)
        for proc in self.procs:
            proc.kill()
        _end_this_process()


class SpawnLauncher(_MultiProcessingLauncher):
    """Lets Python start the ranks, and says as one sentence what ended one of them.

    Args:
        strategy: Lightning's argument.
        start_method: Lightning's argument.
        prepare_rank: Called in each rank before its run; a function of a module.
    """

    def __init__(
        self, strategy: Any, start_method: Any, prepare_rank: Callable[[], None] | None
    ) -> None:
        super().__init__(strategy, start_method)
        self._prepare_rank = prepare_rank

    def launch(self, *args: Any, **kwargs: Any) -> Any:
        """Start the ranks and wait for their end.

        Raises:
            UserError: It was raised in a rank.
        """
        try:
            return super().launch(*args, **kwargs)
        except ProcessRaisedException as error:
            if sentence := user_error_in(str(error)):
                raise UserError(sentence) from error
            raise

    def _wrapping_function(self, process_idx: int, *args: Any, **kwargs: Any) -> None:
        """Run in a rank."""
        os.environ["LOCAL_RANK"] = str(process_idx)
        if self._prepare_rank is not None:
            self._prepare_rank()
        super()._wrapping_function(process_idx, *args, **kwargs)


def user_error_in(trace: str) -> str:
    """Return the sentence of this program's error at the end of a traceback; nothing of another error."""
    found = re.search(r"^imnet_pl\.[\w.]*Error: (.+)", trace, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def _watch_first_rank() -> None:
    """End this rank when the one that started it is gone: it may wait for it in vain."""
    pid = int(os.environ[FIRST_RANK_PID])
    while _is_alive(pid):
        time.sleep(_LOOK_SEC)
    time.sleep(GRACE_SEC)
    say(
        f"local rank {os.environ['LOCAL_RANK']} (process {os.getpid()}) ends: the first rank of this machine "
        f"(process {pid}) has been gone for {GRACE_SEC:g} s."
    )
    _end_this_process()


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _end_this_process() -> None:
    """End, with the workers of the loaders, whatever the main thread waits for."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(1)


def rank_command(argv: Sequence[str], main_name: str | None) -> list[str]:
    """Return the command that starts this program again.

    Args:
        argv: ``sys.argv``.
        main_name: Name of the module that runs as ``__main__``; None for a script.
    """
    if main_name not in (None, "__main__"):  # python -m imnet_pl
        return [sys.executable, "-m", str(main_name), *argv[1:]]
    script = Path(argv[0])
    if main_name is None and script.is_file() and script.suffix.lower() != ".exe":
        return [sys.executable, str(script.absolute()), *argv[1:]]
    # On Windows a console script is an .exe, whose name has lost its end in argv.
    return [sys.executable, "-m", "imnet_pl", *argv[1:]]


def require_free_port(port: int) -> None:
    """Raise if somebody listens on a port of this machine.

    Raises:
        UserError: The port is taken, or not allowed.
    """
    with socket.socket() as probe:
        if sys.platform != "win32":  # there it would let two listen on one port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            raise UserError(describe_taken(port, str(error))) from error


def describe_taken(port: int | str, reason: str) -> str:
    """Return in a sentence that the ranks can not meet at a port."""
    return (
        f"MASTER_PORT={port} can not be used on this machine ({reason}); on one machine leave it out, and a free "
        "one is taken, else give one that is free."
    )


def describe_status(status: int) -> str:
    """Return in words how a process ended."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
