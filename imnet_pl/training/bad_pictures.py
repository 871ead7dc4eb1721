"""bad_pictures.csv: which pictures of a run could not be used as they are, and why."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer

from imnet_pl.core.errors import some_of
from imnet_pl.core.files import ESCAPED
from imnet_pl.core.status import NAMES
from imnet_pl.training.predictions import gather_on_first

log = logging.getLogger(__name__)

COLUMNS = ("split", "index", "path", "what", "why")
_NAMED = 5  # in a line of the log


class BadPicture(Protocol):
    """What the data module notes of a picture: a code of ``core.status``, and why."""

    status: int
    reason: str


class ReadData(Protocol):
    """What the rows need of the data module: bad pictures by split and position, and their paths."""

    bad_pictures: Mapping[str, Mapping[int, BadPicture]]

    def relative_paths(self, indices: Sequence[int], split: str) -> list[str]:
        """Return the paths of pictures by their position in a split's index."""
        ...


class Row(NamedTuple):
    """A picture that could not be used as it is: a row of the file."""

    split: str
    position: int
    path: str
    what: str
    why: str


class BadPictures(Callback):
    """Names each picture that could not be read once: in the log, and in the run folder where there is one.

    The ranks' pictures come together after an epoch, a validation and at a checkpoint, on rank 0.
    """

    def __init__(self) -> None:
        self._num_noted: dict[str, int] = {}
        self._named: set[tuple[str, str]] = set()
        self._waiting: list[Row] = []
        self._file: Path | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the file, which a resumed run goes on with."""
        if stage != "fit" or not trainer.loggers:
            return
        folder = trainer.log_dir  # on all ranks, which agree on it
        if folder and trainer.is_global_zero:
            self._file = Path(folder) / "bad_pictures.csv"
            self._named = read_named(self._file)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name what is new."""
        self._name_new(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name what is new."""
        self._name_new(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name what is new."""
        self._name_new(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Name what is new: an epoch may take hours."""
        self._name_new(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Name what is new on rank 0, which waits for no other now."""
        has_data = trainer.datamodule is not None  # type: ignore[attr-defined]
        if trainer.is_global_zero and has_data:  # ranks may not even have started
            self._name(self._new_rows(trainer))

    def _name_new(self, trainer: Trainer) -> None:
        rows = gather_on_first(self._new_rows(trainer))
        if trainer.is_global_zero:
            self._name(rows)

    def _new_rows(self, trainer: Trainer) -> list[Row]:
        """Return the rows of this rank since the last call."""
        data: ReadData = trainer.datamodule  # type: ignore[attr-defined]
        rows = []
        for split, pictures in data.bad_pictures.items():
            if split == "predict":  # whose own table says it
                continue
            new = list(pictures.items())[self._num_noted.get(split, 0) :]
            self._num_noted[split] = len(pictures)
            for index, bad in new:
                (path,) = data.relative_paths([index], split)
                rows.append(Row(split, index, path, NAMES[bad.status], bad.reason))
        return rows

    def _name(self, rows: list[Row]) -> None:
        new = [row for row in sorted(rows) if _key(row) not in self._named]
        self._named.update(map(_key, new))
        groups: dict[tuple[str, str], list[str]] = {}
        for row in new:
            groups.setdefault((row.split, row.what), []).append(
                f"{row.path} ({row.why})"
            )
        for (split, what), named in groups.items():
            log.warning(
                "%d pictures of %s are %s: %s.",
                *(len(named), split, what, some_of(named, _NAMED)),
            )
        self._waiting += new
        if self._file is not None and self._waiting:
            self._append(self._file)

    def _append(self, file: Path) -> None:
        """Append the rows that wait; on Windows a spreadsheet that shows the file locks it."""
        try:
            append_rows(file, self._waiting)
        except OSError as error:
            log.warning("%s can not be written (%s); rows wait.", file, error)
            return
        self._waiting = []


def _key(row: Row) -> tuple[str, str]:
    # As it stands in the file, for names that are no valid Unicode.
    return row.split, row.path.encode("utf-8", ESCAPED).decode()


def append_rows(file: Path, rows: Sequence[Row]) -> None:
    """Append rows to the file, after the names of the columns where it is new.

    Raises:
        OSError: It can not be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not file.exists():
        writer.writerow(COLUMNS)
    writer.writerows(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        out.write(text.getvalue().encode("utf-8", ESCAPED))


def read_named(file: Path) -> set[tuple[str, str]]:
    """Return (split, path) of every picture that a file names; none where there is no file."""
    if not file.is_file():
        return set()
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        return {
            (row["split"], row["path"])
            for row in csv.DictReader(lines)
            if row.get("split") and row.get("path")
        }
