"""Notices about the data, which a scan that is not repeated says again."""

import logging
from functools import lru_cache

from imnet_pl.data.sources import trace

log = logging.getLogger(__name__)


def say(text: str, level: int = logging.WARNING) -> None:
    """Log a text."""
    trace.note(level, text)
    log.log(level, "%s", text)


def say_once(text: str, level: int = logging.WARNING) -> None:
    """Log a text unless this process has logged it before, however often the data is read."""
    trace.note(level, text)
    _log_once(text, level)


@lru_cache(maxsize=256)
def _log_once(text: str, level: int) -> None:
    log.log(level, "%s", text)
