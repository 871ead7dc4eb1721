"""What counts as a picture and as a class folder; the walk through folders that every source shares."""

import os
from collections.abc import Iterator
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of

IMAGE_SUFFIXES = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
    ]
)
SYSTEM_FOLDERS = frozenset(
    {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is the system's or hidden, and so never data."""
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def is_picture(name: str) -> bool:
    """Tell by its name whether a file is a picture."""
    return not is_hidden(name) and Path(name).suffix.lower() in IMAGE_SUFFIXES


def list_folders(folder: Path) -> list[str]:
    """Return the names of the visible sub-folders, sorted."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not is_hidden(e.name))


def list_pictures(folder: Path) -> list[str]:
    """Return the names of the pictures directly in a folder, sorted."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if is_picture(e.name) and e.is_file())


def walk_pictures(folder: Path) -> list[str]:
    """Return the relative posix paths of all pictures below a folder, sorted; links are followed once."""
    return sorted(_walk(folder, "", set()))


def _walk(folder: Path, prefix: str, visited: set[str]) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in visited:
        return
    visited.add(real)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if not is_hidden(entry.name):
                    yield from _walk(
                        Path(entry.path), f"{prefix}{entry.name}/", visited
                    )
            elif is_picture(entry.name) and entry.is_file():
                yield prefix + entry.name


def describe_folder(folder: Path) -> str:
    """Return in a few words what lies directly in a folder, for error messages."""
    if not folder.exists():
        return "which does not exist"
    if not folder.is_dir():
        return "which is a file"
    folders = list_folders(folder)
    with os.scandir(folder) as entries:
        files = sorted(
            e.name for e in entries if not e.is_dir() and not is_hidden(e.name)
        )
    parts = [f"{len(folders)} folders ({some_of(folders, 3)})"] if folders else []
    parts += [f"{len(files)} files ({some_of(files, 3)})"] if files else []
    return "which holds " + (" and ".join(parts) if parts else "nothing")


def require_folder(folder: Path) -> None:
    """Raise if a folder below the data root is not there.

    Raises:
        UserError: The folder is absent or a file.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"data.root: {str(folder)!r} {what}.")
