"""Which file a table means by a path, on whichever machine it was written."""

import os
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources import trace
from imnet_pl.data.sources.notices import say_once
from imnet_pl.data.sources.table import Table

_ABSOLUTE = re.compile(r"/+|[A-Za-z]:(/+|$)")
_EXAMPLES = 5


class _Place(NamedTuple):
    """A folder in which a written path may lie: its path, and whether another machine's was cut to get there."""

    folder: str
    is_cut: bool


class PictureFinder:
    """Finds pictures by what a table calls them.

    A written folder is looked for once, however many pictures it holds.

    Args:
        root: Folder that the paths found are relative to.
        places: Folders below ``root`` that the table's paths may be relative to, as relative posix paths; the
            first one that has the picture counts.
    """

    def __init__(self, root: Path, places: Sequence[str]) -> None:
        self.root, self.places = root, list(dict.fromkeys(places))
        self._names: dict[str, frozenset[str]] = {}
        self._places: dict[str, list[_Place]] = {}
        self.cut: list[tuple[str, str]] = []

    def find_all(self, table: Table, rows: Sequence[int]) -> list[str]:
        """Return the path of the picture in each of some rows, relative to ``root`` or absolute.

        Raises:
            UserError: Pictures are not there, or two paths of another machine end alike.
        """
        written = table.columns["filename"]
        found = [self.find(written[row]) for row in rows]
        paths = [path for path in found if path is not None]
        if len(paths) < len(found):
            missing = [
                row for row, path in zip(rows, found, strict=True) if path is None
            ]
            self._refuse_missing(table, missing, len(rows))
        self._say_cut(table, len(rows))
        return paths

    def find(self, written: str) -> str | None:
        """Return the path of a picture: as written, with backslashes as slashes, else by its longest end."""
        slashed = written.replace("\\", "/")
        for text in (written,) if written == slashed else (written, slashed):
            folder, slash, name = text.rpartition("/")
            for place in self._places_of(folder or slash):
                if os.path.normcase(name) in self._names_in(place.folder):
                    is_top = place.folder == "."
                    path = name if is_top else posixpath.join(place.folder, name)
                    if place.is_cut:
                        self.cut.append((written, path))
                    return path
        return None

    def _places_of(self, folder: str) -> list[_Place]:
        """Return the folders that a written folder may be, those that hold files alone, best first."""
        if folder not in self._places:
            self._places[folder] = [
                place
                for place in self._all_places(folder)
                if self._names_in(place.folder)
            ]
        return self._places[folder]

    def _all_places(self, folder: str) -> list[_Place]:
        if not _ABSOLUTE.match(folder):
            return [_Place(path, False) for path in self._below(folder)]
        here = posixpath.normpath(folder)
        inside = posixpath.relpath(here, self.root.absolute().as_posix())
        places = [_Place(here if inside.startswith("..") else inside, False)]
        parts = _ABSOLUTE.sub("", here, count=1).split("/")
        ends = ["/".join(parts[start:]) for start in range(len(parts) + 1)]
        return places + [
            _Place(path, True) for end in ends for path in self._below(end)
        ]

    def _below(self, folder: str) -> list[str]:
        """Return the path of a relative folder in each place."""
        return [
            posixpath.normpath(posixpath.join(place, folder)) for place in self.places
        ]

    def _names_in(self, folder: str) -> frozenset[str]:
        """Return the files of a folder."""
        if folder not in self._names:
            trace.look_at(self.root / folder)
            try:
                with os.scandir(self.root / folder) as entries:
                    names = [os.path.normcase(e.name) for e in entries if e.is_file()]
            except PermissionError:
                raise
            except (OSError, ValueError):  # absent, a file, or no name on this system
                names = []
            self._names[folder] = frozenset(names)
            trace.count_pictures(len(names))
        return self._names[folder]

    def _refuse_missing(self, table: Table, missing: list[int], count: int) -> None:
        written = table.columns["filename"]
        examples = [
            f"{table.where(row)}: {written[row]!r}, tried {self._tried(written[row])}"
            for row in missing[:_EXAMPLES]
        ]
        more = len(missing) - len(examples)
        rest = f"; and {more} more" if more else ""
        raise UserError(
            f"{str(table.file)!r} names {len(missing)} pictures of {count} that are not there ({'; '.join(examples)}"
            f"{rest}). Restore them, correct the paths, or say with data.image_root which folder they are relative to."
        )

    def _tried(self, written: str) -> str:
        """Return the full paths that were tried, and a file there that is called nearly so."""
        folder, slash, name = written.replace("\\", "/").rpartition("/")
        if _ABSOLUTE.match(folder or slash):
            return f"it and every end of it below {str(self.root)!r}"
        folders = self._below(folder)
        tried = " and ".join(str(self.root / folder / name) for folder in folders)
        there = [other for folder in folders for other in self._names_in(folder)]
        alike = [other for other in there if _is_alike(other, name)]
        return f"{tried}, where {min(alike)!r} is" if alike else tried

    def _say_cut(self, table: Table, count: int) -> None:
        if not self.cut:
            return
        written_as: dict[str, str] = {}
        for written, path in self.cut:
            other = written_as.setdefault(path, written)
            if other != written:
                raise UserError(
                    f"{str(table.file)!r} has paths of another machine, and two of them, {other!r} and {written!r}, "
                    f"end in the same picture {path!r}; write paths that are relative to {str(table.file.parent)!r}."
                )
        written, path = self.cut[0]
        say_once(
            f"{str(table.file)!r}: {len(self.cut)} of {count} pictures have absolute paths that are not here; "
            f"their longest ends that are there are taken, such as {written!r} as {path!r} below {str(self.root)!r}."
        )


def _is_alike(name: str, other: str) -> bool:
    """Tell whether two file names differ only in case, accents' encoding, or the suffix."""
    forms = [unicodedata.normalize("NFKC", text).casefold() for text in (name, other)]
    stems = [form.rpartition(".")[0] or form for form in forms]
    return forms[0] == forms[1] or stems[0] == stems[1]
