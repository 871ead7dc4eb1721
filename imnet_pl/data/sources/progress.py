"""How far a long scan is: a line that is rewritten on a terminal, else a log line now and then."""

import logging
import shutil
import sys
import time
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)

_QUIET_SECS = 2.0  # a scan that takes less is not worth a word
_TERMINAL_SECS = 0.2
_LOG_SECS = 30.0


class ScanProgress:
    """Counts the pictures that a scan has found, and says how many from 2 s on.

    Args:
        what: What is scanned, for the line.
    """

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0
        self._on_terminal = sys.stderr.isatty()
        self._shown = ""
        self._began = time.monotonic()
        self._next = self._began + _QUIET_SECS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown:
            self._rewrite("")
        if error is None and time.monotonic() >= self._began + _QUIET_SECS:
            log.info("indexed %s.", self._text())

    def add(self, count: int) -> None:
        """Count pictures, and say how many there are so far if it is time to."""
        self.count += count
        now = time.monotonic()
        if now < self._next or not log.isEnabledFor(logging.INFO):
            return
        self._next = now + (_TERMINAL_SECS if self._on_terminal else _LOG_SECS)
        if self._on_terminal:
            width = shutil.get_terminal_size().columns - 1  # a longer line would wrap
            self._rewrite(f"indexing {self._text()}"[-width:])
        else:
            log.info("indexing %s so far.", self._text())

    def _rewrite(self, text: str) -> None:
        blank = " " * len(self._shown)
        sys.stderr.write(f"\r{blank}\r{text}")
        sys.stderr.flush()
        self._shown = text

    def _text(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self.what}: {self.count:,} pictures in {seconds:.1f} s"
