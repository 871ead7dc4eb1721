"""The wish that a run should stop: signals, and the end of Windows' console."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from imnet_pl.core.ranks import is_first_rank

INTERRUPTED, TERMINATED = 130, 143
# signal: (what a person calls it, exit status). Windows has the first and the last two.
_SIGNALS = {
    "SIGINT": ("Ctrl-C", INTERRUPTED),
    "SIGTERM": ("SIGTERM", TERMINATED),
    "SIGUSR1": ("SIGUSR1, the sign that SLURM's time is nearly over", TERMINATED),
    "SIGHUP": ("a closed terminal", TERMINATED),
    "SIGBREAK": ("Ctrl-Break", INTERRUPTED),
}
# Windows' console events CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT and CTRL_SHUTDOWN_EVENT
_CONSOLE_ENDS = {2: "a closed console", 5: "logging off", 6: "shutting down"}


class StopRequest:
    """Whether somebody asked the run to stop: by a signal, or by closing Windows' console."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.status = TERMINATED
        self._earlier: dict[int, Any] = {}
        self._has_left = threading.Event()
        self._console_handler: Any = None

    def __reduce__(self) -> tuple[type["StopRequest"], tuple[()]]:
        """Go to spawned ranks as new: signals are a process's own."""
        return StopRequest, ()

    def listen(self) -> None:
        """Take the signals over, if this is the main thread; what the caller ignores (nohup) stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) in (
                signal.SIG_IGN,
                self._on_signal,
            ):
                continue
            self._earlier[number] = signal.signal(number, self._on_signal)
        if sys.platform == "win32" and self._console_handler is None:
            self._console_handler = _watch_console(self._on_console_event)

    def restore(self) -> None:
        """Give the signals back."""
        self._has_left.set()
        for number, handler in self._earlier.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)
        self._earlier = {}

    def _on_signal(self, number: int, frame: Any) -> None:
        reason, status = _SIGNALS[signal.Signals(number).name]
        is_again = self.reason is not None and status == INTERRUPTED
        if is_again and self.status == INTERRUPTED:
            leave_at_once()
        self.reason, self.status = reason, status
        if is_first_rank():
            again = "; once more leaves at once" if status == INTERRUPTED else ""
            say(f"{reason}: finishing the step, then saving{again}.")

    def _on_console_event(self, event: int) -> int:
        """Windows calls this in a thread of its own, and ends the process as soon as it returns."""
        if event not in _CONSOLE_ENDS:
            return 0
        self.reason, self.status = _CONSOLE_ENDS[event], INTERRUPTED
        self._has_left.wait()
        return 1


def _watch_console(handler: Callable[[int], int]) -> Any:
    """Let Windows call ``handler`` when the console closes; what is returned must be kept."""
    import ctypes

    kind = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)  # type: ignore[attr-defined,unused-ignore]
    wrapped = kind(handler)
    ctypes.windll.kernel32.SetConsoleCtrlHandler(wrapped, 1)  # type: ignore[attr-defined,unused-ignore]
    return wrapped


def say(line: str) -> None:
    """Write a line to stderr past Python's buffers, which a signal may have interrupted."""
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"\n{line}\n".encode())


def leave_at_once() -> None:
    """End this process and its workers without saving; files are whole at any moment."""
    for child in multiprocessing.active_children():
        child.kill()
    if is_first_rank():
        say("left at once; 'python cli.py fit --resume' goes on from the last save.")
    os._exit(INTERRUPTED)
