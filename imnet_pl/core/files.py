"""Files and folders of this program's own: the cache folder, folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """Return the user's cache folder of this program (``IMNET_PL_CACHE`` overrides it)."""
    if override := os.environ.get("IMNET_PL_CACHE"):
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("imnet_pl", appauthor=False))


def create_dir_atomically(target: Path, fill: Callable[[Path], None]) -> None:
    """Make ``target`` through a temporary neighbour, so that it is complete as soon as it exists.

    When another process makes the same folder first, its result stays.

    Args:
        target: Folder to make; it must be absent or empty.
        fill: Writes the content into the folder that it is given.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(staging)
        staging.chmod(0o755)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        staging.rename(target)
    except OSError:
        if not (target.is_dir() and any(target.iterdir())):
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
