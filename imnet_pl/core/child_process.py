"""What a process that this program spawns does beside its work."""

import multiprocessing
import os
import threading
from collections.abc import Callable


def end_with_parent(clean_up: Callable[[], None] | None = None) -> None:
    """Let this process end at once when the one that started it is gone, whatever it does then.

    Args:
        clean_up: Is called before.
    """
    threading.Thread(target=_wait_and_end, args=(clean_up,), daemon=True).start()


def _wait_and_end(clean_up: Callable[[], None] | None) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if clean_up is not None:
        clean_up()
    os._exit(1)
