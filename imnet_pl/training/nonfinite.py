"""The guard that ends a run whose loss is NaN or infinite, and what it leaves to find out why."""

import json
import logging
from collections import deque
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from imnet_pl.core.errors import UserError
from imnet_pl.training.checkpointing import find_last_checkpoint
from imnet_pl.training.poll import MAX_INTERVAL, Poll
from imnet_pl.training.predictions import gather_on_first

log = logging.getLogger(__name__)

REPORT_NAME = "nonfinite_loss.json"
_KEPT_BATCHES, _KEPT_BEFORE = 32, 8


class NonFiniteLossError(UserError):
    """The loss was NaN or infinite for several steps."""


class NonFiniteLoss(Callback):
    """Ends a run after several steps in a row with a loss that is NaN or infinite on any rank.

    The losses stay on the device; with a GPU they are looked at about once a second. ``nonfinite_loss.json`` in
    the run folder then holds loss, learning rate, fp16 loss scale and pictures of the batches where it began.

    Args:
        steps: Optimiser steps in a row.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._poll = Poll()
        self._recent: deque[dict[str, Any]] = deque(maxlen=2 * MAX_INTERVAL)
        self._bad_in_a_row: Tensor | None = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count, and at times look.

        Raises:
            NonFiniteLossError: The loss was not finite for too long.
        """
        loss = outputs["loss"].detach()
        self._recent.append(
            {
                "step": trainer.global_step,
                "epoch": trainer.current_epoch,
                "batch": batch_idx,
                "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
                "loss": loss,
                "indices": batch.indices,
            }
        )
        earlier = 0 if self._bad_in_a_row is None else self._bad_in_a_row
        self._bad_in_a_row = (earlier + 1) * (~loss.isfinite()).int()
        if batch_idx + 1 >= trainer.num_training_batches:
            self._poll.restart()  # look before the epoch's checkpoint
        most = self.steps * trainer.accumulate_grad_batches
        if self._poll.ask(
            trainer,
            trainer.fit_loop.epoch_loop.total_batch_idx,
            lambda: self._count() >= most,
        ):
            self._end(trainer)

    def _count(self) -> int:
        return 0 if self._bad_in_a_row is None else int(self._bad_in_a_row)

    def _end(self, trainer: Trainer) -> None:
        rows = gather_on_first(self._rows_around_the_first(trainer.global_rank))
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        report = {
            "precision": str(trainer.precision),
            "loss_scale": scaler.get_scale() if scaler is not None else None,
            "batches": [
                {**row, "paths": _paths(trainer, row["indices"])} for row in rows
            ],
        }
        where = self._write(trainer, report)
        last = find_last_checkpoint(trainer)
        good = (
            f" The last good checkpoint is {str(last.path)!r}."
            if last and last.path.is_file()
            else ""
        )
        raise NonFiniteLossError(
            f"the loss was NaN or infinite for {self.steps} steps (guard.nonfinite_steps), until step "
            f"{trainer.global_step}; a lower model.base_lr, a longer model.warmup_epochs, "
            f"trainer.gradient_clip_val=1 or trainer.precision=bf16-mixed are the usual cures{where}.{good}"
        )

    def _rows_around_the_first(self, rank: int) -> list[dict[str, Any]]:
        """Return this rank's batches from a few before the first whose loss is not finite on."""
        recent = list(self._recent)
        is_bad = (~torch.stack([row["loss"] for row in recent]).isfinite()).tolist()
        first = is_bad.index(True) if any(is_bad) else len(recent)
        start = max(0, first - _KEPT_BEFORE)
        rows = recent[start : start + _KEPT_BATCHES]
        return [{"rank": rank, **_in_plain_types(row)} for row in rows]

    def _write(self, trainer: Trainer, report: dict[str, Any]) -> str:
        """Write the report and return where it is, in words."""
        folder = trainer.log_dir  # all ranks ask for it together
        if folder is None or not trainer.is_global_zero:
            return ""
        path = Path(folder) / REPORT_NAME
        try:
            path.write_text(json.dumps(report, indent=1), encoding="utf-8")
        except OSError as error:
            log.warning("%s could not be written (%s).", path, error)
            return ""
        return f"; the batches where it began, and their pictures, are in {str(path)!r}"


def _in_plain_types(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in row.items()}


def _paths(trainer: Trainer, indices: list[int]) -> list[str]:
    # "surrogateescape" names are no text that JSON can hold.
    paths = trainer.datamodule.paths(indices, "train")  # type: ignore[attr-defined]
    return [path.encode("utf-8", "replace").decode("utf-8") for path in paths]
