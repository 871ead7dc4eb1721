"""Notices about the data that are said once, however often it is read."""

import logging
from functools import lru_cache

log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def say_once(text: str, level: int = logging.WARNING) -> None:
    """Log a text unless this process has logged it before."""
    log.log(level, "%s", text)
