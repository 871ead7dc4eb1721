"""Which file a table means by a path, on whichever machine it was written."""

import os
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from imnet_pl.core.errors import UserError
from imnet_pl.data.sources.notices import say_once
from imnet_pl.data.sources.table import Table

_DRIVE = re.compile(r"[A-Za-z]:/")
_EXAMPLES = 5


class PictureFinder:
    """Finds pictures by what a table calls them.

    Args:
        root: Folder that the paths found are relative to.
        places: Folders below ``root`` that the table's paths may be relative to, as relative posix paths; the
            first one that has the picture counts.
    """

    def __init__(self, root: Path, places: Sequence[str]) -> None:
        self.root, self.places = root, list(dict.fromkeys(places))
        self._names: dict[str, frozenset[str]] = {}
        self.tails: list[tuple[str, str]] = []

    def find_all(self, table: Table, rows: Sequence[int]) -> list[str]:
        """Return the path of the picture in each of some rows, relative to ``root`` or absolute.

        Raises:
            UserError: Pictures are not there, or two paths of another machine end alike.
        """
        written = table.columns["filename"]
        found = {row: self.find(written[row]) for row in rows}
        missing = [row for row, path in found.items() if path is None]
        if missing:
            self._refuse_missing(table, missing, len(rows))
        self._say_tails(table, len(rows))
        return [path for path in found.values() if path is not None]

    def find(self, written: str) -> str | None:
        """Return the path of a picture: as written, with backslashes as slashes, else by its longest tail."""
        for text in dict.fromkeys((written, written.replace("\\", "/"))):
            if (path := self._first(posixpath.normpath(text))) is not None:
                return path
        text = written.replace("\\", "/")
        if not _is_absolute(text):
            return None
        parts = [part for part in _DRIVE.sub("", text, count=1).split("/") if part]
        for start in range(len(parts)):
            if (path := self._first("/".join(parts[start:]))) is not None:
                self.tails.append((written, path))
                return path
        return None

    def _first(self, path: str) -> str | None:
        if _is_absolute(path):
            if not self._exists(path):
                return None
            inside = posixpath.relpath(path, self.root.absolute().as_posix())
            return path if inside.startswith("..") else inside
        for place in self.places:
            candidate = posixpath.normpath(posixpath.join(place, path))
            if self._exists(candidate):
                return candidate
        return None

    def _exists(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        folder = f"{folder}/" if path.startswith("/") else folder
        return os.path.normcase(name) in self._names_in(folder)

    def _names_in(self, folder: str) -> frozenset[str]:
        """Return the files of a folder; a table of a million rows lists each folder once."""
        if folder not in self._names:
            try:
                with os.scandir(self.root / folder) as entries:
                    names = [os.path.normcase(e.name) for e in entries if e.is_file()]
            except PermissionError:
                raise
            except OSError:  # absent, a file, or a name that this system can not have
                names = []
            self._names[folder] = frozenset(names)
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
        text = posixpath.normpath(written.replace("\\", "/"))
        if _is_absolute(text):
            return f"it and every end of it below {str(self.root)!r}"
        paths = [
            posixpath.normpath(posixpath.join(place, text)) for place in self.places
        ]
        tried = " and ".join(str(self.root / path) for path in paths)
        for path in paths:
            folder, _, name = path.rpartition("/")
            alike = [
                other for other in self._names_in(folder) if _is_alike(other, name)
            ]
            if alike:
                return f"{tried}, where {min(alike)!r} is"
        return tried

    def _say_tails(self, table: Table, count: int) -> None:
        if not self.tails:
            return
        written_as: dict[str, str] = {}
        for written, path in self.tails:
            other = written_as.setdefault(path, written)
            if other != written:
                raise UserError(
                    f"{str(table.file)!r} has paths of another machine, and two of them, {other!r} and {written!r}, "
                    f"end in the same picture {path!r}; write paths that are relative to {str(table.file.parent)!r}."
                )
        written, path = self.tails[0]
        say_once(
            f"{str(table.file)!r}: {len(self.tails)} of {count} pictures have absolute paths that are not here; "
            f"their longest ends that are there are taken, such as {written!r} as {path!r} below {str(self.root)!r}."
        )


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or _DRIVE.match(path) is not None


def _is_alike(name: str, other: str) -> bool:
    """Tell whether two file names differ only in case, accents' encoding, or the suffix."""
    forms = [unicodedata.normalize("NFKC", text).casefold() for text in (name, other)]
    stems = [form.rpartition(".")[0] or form for form in forms]
    return forms[0] == forms[1] or stems[0] == stems[1]
