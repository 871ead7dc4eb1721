"""An inspection that ends its process on a file that takes too long, and notes time and memory; workers import it."""

import faulthandler
import os
import time
from pathlib import Path

from mutations import peak_rss_bytes

from imnet_pl.data.inspection import inspect_picture

HANG_SEC = 120  # by the clock, on a machine that does other work too


def inspect_and_note(index, row, notes):
    """Inspect a picture; a line of notes/PID has the seconds of CPU that it took, and the process's peak in bytes."""
    faulthandler.dump_traceback_later(HANG_SEC, exit=True)
    start = time.process_time()
    facts = inspect_picture(index, row)
    used = time.process_time() - start
    faulthandler.cancel_dump_traceback_later()
    with (Path(notes) / str(os.getpid())).open("a") as note:
        note.write(f"{used} {peak_rss_bytes()} {Path(index.path(row)).name}\n")
    return facts
