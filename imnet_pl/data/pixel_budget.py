"""How many pixels the threads of a process may hold decoded at once."""

import threading
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

_NOTHING = nullcontext()


class PixelBudget:
    """A semaphore that counts pixels.

    Args:
        total: Pixels that may be held at once.
        uncounted: Pictures of up to so many are not counted: locking would cost each of them 1 % more.
    """

    def __init__(self, total: int, uncounted: int) -> None:
        self.total, self.uncounted = total, uncounted
        self.held = 0
        self._freed = threading.Condition()

    def hold(self, num_pixels: int) -> AbstractContextManager[None]:
        """Return a context that waits until there is room for so many pixels, and keeps it.

        More than the total are held when nothing else is.
        """
        if num_pixels <= self.uncounted:
            return _NOTHING
        return _Held(self, min(num_pixels, self.total))

    def take(self, num_pixels: int) -> None:
        """Wait for room and keep it."""
        with self._freed:
            while self.held + num_pixels > self.total:
                self._freed.wait()
            self.held += num_pixels

    def free(self, num_pixels: int) -> None:
        """Give back what was taken."""
        with self._freed:
            self.held -= num_pixels
            self._freed.notify_all()


class _Held(AbstractContextManager[None]):
    def __init__(self, budget: PixelBudget, num_pixels: int) -> None:
        self.budget, self.num_pixels = budget, num_pixels

    def __enter__(self) -> None:
        self.budget.take(self.num_pixels)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.budget.free(self.num_pixels)
