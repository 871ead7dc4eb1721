"""Says what a loader waits for, when it waits for long."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class StallWatch:
    """Warns of a long wait, and again each time that it has lasted twice as long.

    Args:
        warn_sec: Seconds of waiting before the first warning.
        describe: Method that returns the warning, from the seconds waited. Its object is not kept alive.
    """

    def __init__(self, warn_sec: float, describe: Callable[[float], str]) -> None:
        self.warn_sec, self._describe = warn_sec, weakref.WeakMethod(describe)
        self._waiting_since: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in a thread of its own, for one pass over the loader."""
        ended = threading.Event()
        threading.Thread(target=self._watch, args=(ended,), daemon=True).start()
        try:
            yield
        finally:
            self._waiting_since = None
            ended.set()

    def wait_begins(self) -> None:
        """Count from now."""
        self._waiting_since = time.monotonic()

    def wait_ends(self) -> None:
        """Stop counting."""
        self._waiting_since = None

    def _watch(self, ended: threading.Event) -> None:
        said_of, warn_at = None, self.warn_sec
        while not ended.wait(min(1.0, self.warn_sec / 4)):
            since = self._waiting_since
            if since != said_of:
                said_of, warn_at = since, self.warn_sec
            if since is not None and (waited := time.monotonic() - since) >= warn_at:
                if describe := self._describe():
                    log.warning("%s", describe(waited))
                warn_at *= 2
