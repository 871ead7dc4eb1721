"""What counts as a picture and as a class folder; the walk through folders that every source shares."""

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.sources import trace
from imnet_pl.data.sources.notices import say_once

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
SYSTEM_NAMES = frozenset(
    {
        *("__macosx", "@eadir", "$recycle.bin", "system volume information"),
        *("lost+found", "thumbs.db", "desktop.ini"),
    }
)


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is the system's or hidden, and so never data."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def has_image_suffix(name: str) -> bool:
    """Tell whether a file is named as a picture is, hidden or not."""
    dot = name.rfind(".")  # os.path.splitext takes three times as long
    return dot > 0 and name[dot:].lower() in IMAGE_SUFFIXES


@dataclass
class Skipped:
    """What a scan left out, as names and relative paths."""

    folders: list[str] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)

    def add(self, other: "Skipped") -> None:
        """Add what another scan left out."""
        self.folders += other.folders
        self.pictures += other.pictures
        self.links += other.links

    def say(self, folder: Path) -> None:
        """Say once how many there are of each kind in the folder of a split."""
        kinds = {
            "hidden or system folders": self.folders,
            "hidden pictures": self.pictures,
            "links to folders that are read anyway": self.links,
        }
        if parts := [
            f"{len(names)} {kind} ({some_of(names, 3)})"
            for kind, names in kinds.items()
            if names
        ]:
            say_once(f"{str(folder)!r}: left out {', '.join(parts)}.", logging.INFO)


def list_folders(folder: Path, skipped: Skipped | None = None) -> list[str]:
    """Return the names of the visible sub-folders, sorted."""
    trace.look_at(folder)
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    if skipped is not None:
        skipped.folders += sorted(filter(is_hidden, names))
    return sorted(name for name in names if not is_hidden(name))


def list_pictures(folder: Path, skipped: Skipped | None = None) -> list[str]:
    """Return the names of the pictures directly in a folder, sorted."""
    trace.look_at(folder)
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if has_image_suffix(e.name) and e.is_file()]
    if skipped is not None:
        skipped.pictures += sorted(filter(is_hidden, names))
    return sorted(name for name in names if not is_hidden(name))


def has_picture(folder: Path) -> bool:
    """Tell whether there is a picture at any depth below a folder."""
    walk = _Walk(folder, Skipped(), frozenset())
    return any(walk.pictures())


def walk_pictures(
    folder: Path,
    skipped: Skipped | None = None,
    elsewhere: Collection[str] = frozenset(),
) -> list[str]:
    """Return the relative posix paths of all pictures below a folder, sorted.

    Links are followed, but into no folder twice, and to no folder that holds this one.

    Args:
        folder: Where to start.
        skipped: Takes what is left out.
        elsewhere: Real paths of folders that are read on their own; no link into them is followed.
    """
    walk = _Walk(folder, Skipped() if skipped is None else skipped, elsewhere)
    return sorted(chain.from_iterable(walk.pictures()))


class _Walk:
    """One pass over what lies below a folder: real folders first, so that a link to one changes no path."""

    def __init__(
        self, folder: Path, skipped: Skipped, elsewhere: Collection[str]
    ) -> None:
        self.folder, self.real = folder, os.path.realpath(folder)
        self.skipped, self.elsewhere = skipped, elsewhere
        self.visited = set(map(str, Path(self.real).parents))
        self.links: list[tuple[str, str]] = []

    def pictures(self) -> Iterator[list[str]]:
        """Yield relative posix paths, folder by folder."""
        yield from self._below(self.real, "")
        while self.links:
            links, self.links = sorted(self.links), []
            for path, real in links:
                if real in self.visited or real in self.elsewhere:
                    self.skipped.links.append(path)
                else:
                    yield from self._below(real, f"{path}/")

    def _below(self, real: str, prefix: str) -> Iterator[list[str]]:
        self.visited.add(real)
        trace.look_at(self.folder / prefix)
        pictures: list[str] = []
        folders: list[os.DirEntry[str]] = []
        with os.scandir(real) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir():
                    folders.append(entry)
                elif has_image_suffix(name) and entry.is_file():
                    found = self.skipped.pictures if name[0] == "." else pictures
                    found.append(prefix + name)
        yield pictures
        for entry in folders:
            path = prefix + entry.name
            if is_hidden(entry.name):
                self.skipped.folders.append(path)
            elif (target := os.path.realpath(entry.path)) == entry.path:
                yield from self._below(target, f"{path}/")
            else:
                self.links.append((path, target))


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
