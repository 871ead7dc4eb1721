"""best.ckpt, last.ckpt and the epochs that are kept: when they are written, and how."""

import logging
import time
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import copy_file
from imnet_pl.training.guards import Score

log = logging.getLogger(__name__)


class ExactCheckpoint(ModelCheckpoint):
    """ModelCheckpoint that writes only where a run can go on exactly: between two optimiser steps.

    Lightning's (2.6) also writes within an accumulation window, and before a validation that is due, which a
    resumed run then skips. Here a checkpoint is written at the end of an epoch, after a validation within one,
    and, every ``every_minutes``, before the first batch of a window.
    """

    def __init__(self, every_minutes: float | None = None, **kwargs: Any) -> None:
        super().__init__(enable_version_counter=False, **kwargs)
        self.every_minutes = every_minutes
        self._last_save_sec = time.monotonic()

    @property
    def state_key(self) -> str:
        """Several of this class have their own state, by file name."""
        return (
            f"{type(self).__qualname__}{{{self.filename},{self.monitor},{self.mode}}}"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._last_save_sec = time.monotonic()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save when ``every_minutes`` are over, between two windows."""
        if self.every_minutes is None or batch_idx == 0:
            return
        if batch_idx % trainer.accumulate_grad_batches or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        is_due = time.monotonic() - self._last_save_sec >= 60 * self.every_minutes
        if trainer.strategy.broadcast(is_due):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Save nothing: the window may be open, or a validation due."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after a validation within an epoch; after that at its end the epoch's end follows."""
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        if self.monitor is None or batches.processed >= trainer.num_training_batches:
            return
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def _should_save_on_train_epoch_end(self, trainer: Trainer) -> bool:
        return self.monitor is None or self.monitor in trainer.callback_metrics

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take score and file over, into whatever folder the run continues."""
        folder, earlier = Path(str(self.dirpath)), Path(str(state_dict["dirpath"]))
        # The checkpoint may come from Windows.
        names = {
            path: PureWindowsPath(path).name for path in state_dict["best_k_models"]
        }
        for name in names.values():
            if not (folder / name).exists() and (earlier / name).is_file():
                folder.mkdir(parents=True, exist_ok=True)
                copy_file(earlier / name, folder / name)
            if not (folder / name).is_file():
                log.warning(
                    "%s is gone: the best epoch is sought anew.", earlier / name
                )
                return
        moved = {path: str(folder / name) for path, name in names.items()}
        moved[""] = ""
        scores = {moved[p]: score for p, score in state_dict["best_k_models"].items()}
        paths = {
            key: moved.get(state_dict[key], str(folder / f"{self.filename}.ckpt"))
            for key in ("best_model_path", "kth_best_model_path", "last_model_path")
        }
        super().load_state_dict(
            {**state_dict, **paths, "best_k_models": scores, "dirpath": self.dirpath}
        )

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)
        self._last_save_sec = time.monotonic()
        self._check_saved(trainer)

    def _check_saved(self, trainer: Trainer) -> None:
        """Warn of a failed save; at the end of the run it is an error, on all ranks.

        Raises:
            UserError: The run's last checkpoint could not be written.
        """
        failure = getattr(trainer.strategy.checkpoint_io, "failure", None)
        failure = trainer.strategy.broadcast(failure)
        if failure is None:
            return
        if trainer.should_stop or trainer.fit_loop.done:
            raise UserError(f"the last checkpoint is lost: {failure}.")
        log.warning("no checkpoint this time, training goes on: %s.", failure)


class LastCheckpoint(ExactCheckpoint):
    """``last.ckpt``, and a copy of it as ``epoch_NNN.ckpt`` at the end of an epoch.

    Args:
        every_minutes: Save also within an epoch when so many minutes are over.
        keep: Newest copies that stay, or ``all``.
    """

    def __init__(self, every_minutes: float | None, keep: int | str) -> None:
        super().__init__(every_minutes, filename="last")
        self.keep = keep

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, copy, and remove copies that are too many."""
        super().on_train_epoch_end(trainer, pl_module)
        last = Path(str(self.dirpath)) / "last.ckpt"
        if self.keep == 0 or not trainer.is_global_zero or not last.is_file():
            return
        copy = last.with_name(f"epoch_{trainer.current_epoch + 1:03d}.ckpt")
        try:
            copy_file(last, copy)
        except OSError as error:
            log.warning("%s could not be written (%s).", copy, error)
            return
        if self.keep != "all":
            for old in sorted(last.parent.glob("epoch_*.ckpt"))[: -int(self.keep)]:
                old.unlink(missing_ok=True)


def build_checkpoints(
    monitor: Score = "val/top1",
    mode: Literal["min", "max"] = "max",
    every_minutes: float | None = 15,
    keep: int | Literal["all"] = 1,
) -> list[ModelCheckpoint]:
    """Return the callbacks that write into ``checkpoints``: ``best.ckpt``, ``last.ckpt``, ``epoch_NNN.ckpt``.

    Args:
        monitor: Score by which the best epoch is chosen.
        mode: Whether more (``max``) or less (``min``) of the score is better.
        every_minutes: Write ``last.ckpt`` also within an epoch when so many minutes are over; null: never.
        keep: Newest ``epoch_NNN.ckpt`` that stay, or ``all``; 0: none.

    Raises:
        UserError: A value can not work.
    """
    if every_minutes is not None and every_minutes <= 0:
        raise UserError(
            f"checkpoint.every_minutes={every_minutes} must be above 0, or null for never."
        )
    if keep != "all" and keep < 0:
        raise UserError(f"checkpoint.keep={keep} must be 0 or more, or all.")
    # Several of Lightning's, since save_last of one writes only in epochs that make a new best.
    best = ExactCheckpoint(filename="best", monitor=monitor, mode=mode)
    last = LastCheckpoint(every_minutes, keep)
    return [best, last]
