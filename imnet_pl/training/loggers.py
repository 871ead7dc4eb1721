"""metrics.csv and TensorBoard: one folder for both, and no row lost or doubled by a resume."""

import csv
import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.logger import _convert_params
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import replace_file

log = logging.getLogger(__name__)


class MetricsFile:
    """A CSV file that grows by rows and columns. A row is on the disk as soon as it is added.

    Args:
        folder: Run folder; it is made.

    Raises:
        UserError: The folder can not be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.csv"
        self.hparams: dict[str, Any] = {}
        self._fields: list[str] = []
        self._waiting: list[dict[str, Any]] = []
        self._has_written = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            rows = self._read() if self.path.exists() else []
        except OSError as error:
            raise UserError(
                f"the run folder {str(folder)!r} can not be written ({error}); choose another with "
                "--trainer.default_root_dir DIR."
            ) from error
        self.num_rows = len(rows)

    def _read(self) -> list[dict[str, Any]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if None not in row]
        self._fields = list(reader.fieldnames or [])
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row.

        Raises:
            UserError: The very first row can not be written. Later, a full disk is a warning, and rows wait.
        """
        values = {
            name: value.item() if isinstance(value, Tensor) else value
            for name, value in row.items()
        }
        self._waiting.append(values)
        self.num_rows += 1
        self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        try:
            self._write(self._waiting)
        except OSError as error:
            if not self._has_written:
                raise UserError(
                    f"{str(self.path)!r} can not be written ({error}); make room, or choose another folder with "
                    "--trainer.default_root_dir DIR."
                ) from error
            if len(self._waiting) == 1:
                log.warning("%s can not be written (%s); rows wait.", self.path, error)
            return
        self._waiting, self._has_written = [], True

    def _write(self, rows: list[dict[str, Any]]) -> None:
        names = dict.fromkeys(name for row in rows for name in row)
        added = [name for name in names if name not in self._fields]
        if added:
            earlier = self._read() if self.path.exists() else []
            self._rewrite([*earlier, *rows], [*self._fields, *added])
            return
        text = io.StringIO()
        csv.DictWriter(text, self._fields).writerows(rows)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(text.getvalue())

    def _rewrite(self, rows: list[dict[str, Any]], fields: list[str]) -> None:
        partial = self.path.with_name("metrics.csv.part")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(rows)
        replace_file(partial, self.path)
        self._fields = fields

    def keep_rows(self, count: int) -> None:
        """Drop all rows after the first ``count``: they are about to be made again."""
        rows = self._read() if self.path.exists() else []
        if len(rows) < count:
            log.warning(
                "%s has %d rows, the checkpoint was made after %d: some are lost.",
                *(self.path, len(rows), count),
            )
        if rows:
            self._rewrite(rows[:count], self._fields)
        self.num_rows = min(count, len(rows))

    def log_hparams(self, params: dict[str, Any]) -> None:
        """Write the hyper-parameters beside the metrics."""
        self.hparams.update(params)
        save_hparams_to_yaml(str(self.path.with_name("hparams.yaml")), self.hparams)


class RunCSVLogger(CSVLogger):
    """CSVLogger that goes on in an existing ``metrics.csv``; Lightning's (2.6) deletes it."""

    @property
    def experiment(self) -> Any:
        """Return the file, on rank 0."""
        if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return None
        if self._experiment is None:
            self._experiment = MetricsFile(Path(self.log_dir))  # type: ignore[assignment]
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add a row: epoch and step first."""
        metrics = dict(metrics)
        first = {"epoch": metrics.pop("epoch", None), "step": step}
        self.experiment.append({**first, **metrics})

    @rank_zero_only
    def log_hyperparams(self, params: Any = None) -> None:
        """Write ``hparams.yaml``."""
        self.experiment.log_hparams(_convert_params(params))

    @rank_zero_only
    def save(self) -> None:
        """Write what could not be written before."""
        self.experiment.flush()


class RunTensorBoardLogger(TensorBoardLogger):
    """TensorBoardLogger that never ends a run: when it can not write, it says so and stays silent."""

    _is_broken = False

    @property
    def experiment(self) -> Any:
        """Return the writer; None when it can not write."""
        try:
            return None if self._is_broken else super().experiment
        except OSError as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._is_broken = True
        log.warning(
            "TensorBoard logging stops, training goes on (%s: %s).",
            *(type(error).__name__, error),
        )

    def _try(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self._is_broken or rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            return
        try:
            act(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - its writer thread passes on whatever went wrong in it
            if not self._is_broken:
                self._give_up(error)

    def log_metrics(
        self, metrics: Mapping[str, float], step: int | None = None
    ) -> None:
        """Log scalars."""
        self._try(super().log_metrics, metrics, step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log hyper-parameters."""
        self._try(super().log_hyperparams, *args, **kwargs)

    def log_text(self, name: str, text: str) -> None:
        """Log a text, shown as it is."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._try(lambda: self.experiment.add_text(name, indented))

    def save(self) -> None:
        """Flush."""
        self._try(super().save)

    def finalize(self, status: str) -> None:
        """Close."""
        self._try(super().finalize, status)


def build_loggers(
    save_dir: Path, name: str, version: str | None = None, first_step: int | None = None
) -> list[Logger]:
    """Return the CSV logger and, where it can be imported, TensorBoard's, in one run folder.

    Args:
        save_dir: Folder of all runs.
        name: Name of the run.
        version: Run folder below it that is continued; default: the next ``version_N``.
        first_step: Step from which the continued run logs anew; TensorBoard hides what it had from there on.
    """
    to_csv = RunCSVLogger(str(save_dir), name=name, version=version)
    try:
        import tensorboard  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
    except ImportError as error:
        log.warning("no TensorBoard logs: it can not be imported (%s).", error)
        return [to_csv]
    to_tensorboard = RunTensorBoardLogger(
        str(save_dir),
        name=name,
        version=to_csv.version,
        default_hp_metric=False,
        purge_step=first_step,
    )
    return [to_csv, to_tensorboard]


class LogHistory(Callback):
    """Lets ``metrics.csv`` of a resumed run go on right after the checkpoint's last row."""

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Note how many rows there are."""
        for file in _metrics_files(trainer):
            checkpoint["imnet_pl_rows"] = file.num_rows

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Drop the rows that will be made again."""
        if trainer.state.fn == "fit" and "imnet_pl_rows" in checkpoint:
            for file in _metrics_files(trainer):
                if file.path.exists():
                    file.keep_rows(checkpoint["imnet_pl_rows"])


def _metrics_files(trainer: Trainer) -> list[MetricsFile]:
    files = [l.experiment for l in trainer.loggers if isinstance(l, RunCSVLogger)]
    return [file for file in files if file is not None]


def log_row(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Log a row for the last step that was made, before a checkpoint of the epoch's end is written."""
    row = {**metrics, "epoch": trainer.current_epoch}
    for logger in trainer.loggers:
        logger.log_metrics(row, step=max(0, trainer.global_step - 1))
