"""best.ckpt, last.ckpt and the epochs that are kept: when they are written, and how."""

import logging
import shutil
import time
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import copy_file

log = logging.getLogger(__name__)

CRASH_NAME = "crash.ckpt"

Score = Literal["val/loss", "val/top1", "val/top5", "train/loss_epoch"]


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
        """Start the clock, and say which validations can not give a checkpoint."""
        self._last_save_sec = time.monotonic()
        batches: Any = trainer.val_check_batch
        window = trainer.accumulate_grad_batches
        if self.monitor is None or batches == trainer.num_training_batches:
            return
        if isinstance(batches, int) and batches % window:
            log.warning(
                "trainer.val_check_interval of %d batches is no multiple of trainer.accumulate_grad_batches=%d: a "
                "validation between two steps alone can give %s.ckpt.",
                *(batches, window, self.filename),
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save when ``every_minutes`` are over, between two windows."""
        if self.every_minutes is None or batch_idx == 0:
            return
        if batch_idx % trainer.accumulate_grad_batches or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        is_due = time.monotonic() - self._last_save_sec >= 60 * self.every_minutes
        if trainer.strategy.broadcast(is_due) and is_sound(trainer):
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

    def _should_skip_saving_checkpoint(self, trainer: Trainer) -> bool:
        """Skip also within a window: the gradients of its batches so far would be lost."""
        is_skipped: bool = super()._should_skip_saving_checkpoint(trainer)
        is_skipped = is_skipped or trainer.fit_loop._should_accumulate()
        return is_skipped or not is_sound(trainer)

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

    def _check_saved(self, trainer: Trainer, is_last: bool = False) -> None:
        """Warn of a failed save; of the run's last one it is an error, on all ranks.

        Raises:
            UserError: The run's last checkpoint could not be written.
        """
        failure = getattr(trainer.strategy.checkpoint_io, "failure", None)
        failure = trainer.strategy.broadcast(failure)
        if failure is None:
            return
        # The property "done" has effects of its own: it is asked for here alone.
        if is_last or trainer.should_stop or trainer.fit_loop.done:
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

    @property
    def path(self) -> Path:
        """Where ``last.ckpt`` is, or will be."""
        return Path(str(self.dirpath)) / "last.ckpt"

    def save_now(self, trainer: Trainer) -> Path:
        """Write ``last.ckpt`` before the run is left, between two steps; all ranks call it.

        Raises:
            UserError: It can not be written, or the weights are not finite.
        """
        if not is_sound(trainer):
            raise UserError(
                f"nothing was saved: weights are not finite{self._describe_last()}."
            )
        trainer.save_checkpoint(self.path)
        self._check_saved(trainer, is_last=True)
        return self.path

    def save_beside(self, trainer: Trainer, name: str) -> Path | None:
        """Write the state of a run on one device as another file; None, said, where that fails."""
        if not is_sound(trainer):
            return None
        path = self.path.with_name(name)
        trainer.save_checkpoint(path)
        failure = getattr(trainer.strategy.checkpoint_io, "failure", None)
        if failure is not None:
            log.error("%s.", failure)
        return None if failure is not None else path

    def _describe_last(self) -> str:
        return f"; the last good checkpoint is {str(self.path)!r}" * self.path.is_file()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, copy, and remove copies that are too many."""
        super().on_train_epoch_end(trainer, pl_module)
        last = self.path
        if trainer.is_global_zero and last.is_file():
            last.with_name(CRASH_NAME).unlink(missing_ok=True)  # last stands further
            keep_epoch(last, trainer.current_epoch + 1, self.keep)


def keep_epoch(last: Path, epochs: int, keep: int | str) -> None:
    """Copy ``last.ckpt`` at the end of an epoch, and remove the copies that are too many.

    Args:
        last: The file.
        epochs: Epochs that are over.
        keep: Newest copies that stay, or ``all``.
    """
    if keep == 0:
        return
    copy = last.with_name(f"epoch_{epochs:03d}.ckpt")
    try:
        if not copy.is_file() or copy.stat().st_mtime_ns != last.stat().st_mtime_ns:
            copy_file(last, copy)
    except OSError as error:
        log.warning("%s could not be written (%s).", copy, error)
        return
    if keep != "all":
        for old in list_epochs(last.parent)[: -int(keep)]:
            old.unlink(missing_ok=True)


@rank_zero_only
def finish_save(found: Path, progress: dict[str, int], keep: int | str) -> None:
    """Do what remains of a save in which a run was killed, in the run folder that goes on.

    Args:
        found: The checkpoint that stands furthest.
        progress: From ``read_contract``.
        keep: Newest copies of epochs that stay, or ``all``.
    """
    folder, last = found.parent, found.with_name("last.ckpt")
    for partial in (*folder.glob("*.part"), *folder.parent.glob("*.part")):
        partial.unlink(missing_ok=True)
    if found != last:  # best.ckpt is written first; or last.ckpt is damaged
        try:
            copy_file(found, last)
        except OSError as error:
            log.warning("%s could not be written (%s).", last, error)
            return
    if progress["epochs"] and not progress["batches"]:
        keep_epoch(last, progress["epochs"], keep)


def list_epochs(folder: Path) -> list[Path]:
    """Return the ``epoch_NNN.ckpt`` of a folder, oldest first; beyond 999 they have more digits."""
    found = folder.glob("epoch_*.ckpt")
    return sorted(found, key=lambda file: (len(file.name), file.name))


def find_last_checkpoint(trainer: Trainer) -> LastCheckpoint | None:
    """Return what writes ``last.ckpt``; None where the run writes no checkpoints."""
    found = (c for c in trainer.checkpoint_callbacks if isinstance(c, LastCheckpoint))
    return next(found, None)


def is_sound(trainer: Trainer) -> bool:
    """Tell whether all weights and buffers are finite; says so where they are not."""
    values = [v.detach() for v in trainer.lightning_module.state_dict().values()]
    finite = [v.isfinite().all() for v in values if v.is_floating_point()]
    is_finite = not finite or bool(torch.stack(finite).all())
    is_finite = trainer.strategy.broadcast(is_finite)
    if not is_finite:
        log.warning("no checkpoint this time: weights are not finite.")
    return is_finite


def require_space(
    pl_module: LightningModule, folder: Path, keep: int | str, max_epochs: int | None
) -> None:
    """Say what the checkpoints of a run will take, and raise where that is more than there is.

    Args:
        pl_module: The model; its weights and as much for the optimiser are what a checkpoint holds.
        folder: Run folder, or the nearest one above that exists.
        keep: As of ``build_checkpoints``.
        max_epochs: Epochs of the run, for ``keep=all``; None: unknown.

    Raises:
        UserError: They do not fit on the disk.
    """
    size = 2 * sum(p.numel() * p.element_size() for p in pl_module.parameters())
    epochs = (max_epochs or 1) if keep == "all" else int(keep)
    there = folder
    while not there.exists():
        there = there.parent
    earlier = (folder / "checkpoints").glob("*.ckpt")
    have = sum(file.stat().st_size for file in earlier)
    # best, last, and one that is being written
    needed, free = (epochs + 3) * size, shutil.disk_usage(there).free
    log.info(
        "checkpoints: best, last and %s epochs, %.0f MB each, %.1f GB in all; %.1f GB are free.",
        *(keep, size / 1e6, needed / 1e9, free / 1e9),
    )
    if free + have < needed:
        raise UserError(
            f"the checkpoints need {needed / 1e9:.1f} GB and {str(there)!r} has {free / 1e9:.1f} GB free; make room, "
            f"choose another disk with --trainer.default_root_dir DIR, or keep fewer than checkpoint.keep={keep}."
        )


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
