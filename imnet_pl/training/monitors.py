"""Where the time of a run goes: a step's seconds, the wait for data, pictures a second."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from imnet_pl.training.loggers import log_row

DATA_BOUND_FRAC = 0.1
_DROPPED_STEPS = 2


class StepTimer(Callback):
    """Times optimiser steps without waiting for the device.

    Logs every ``log_every_n_steps``, over the steps since: ``time/step_sec``, ``time/data_wait_sec`` (means of
    a step), ``time/data_wait_frac``, ``throughput/samples_per_sec`` (all devices), and under fp16
    ``train/loss_scale``. At the end of an epoch: ``train/loss_epoch``, ``train/num_replaced``,
    ``train/num_partial``, ``time/epoch_sec``,
    ``time/step_sec_{p50,p95,max}``, ``time/data_wait_sec_{p50,p95,max}``, ``time/data_wait_frac_epoch``,
    ``throughput/samples_per_sec_epoch``. The first two steps of an epoch, and steps with a validation or a
    checkpoint in them, are left out.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, int]] = []
        self._num_logged = 0
        self.epoch: dict[str, float] = {}
        self.num_devices = 1
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._epoch_start = time.perf_counter()
        self._steps, self._num_logged = [], 0
        self._num_seen = 0
        self._step_start: float | None = None
        self._open: list[Any] = [0.0, 0.0, 0]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock: a run that goes on within an epoch has no start of the epoch."""
        self._start_epoch()

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Start the epoch's clock."""
        self._start_epoch()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Take the time between the starts of two batches as that of the earlier one."""
        now = time.perf_counter()
        wait = float(getattr(trainer.train_dataloader, "last_wait_sec", 0.0))
        if self._step_start is not None:
            self._open[0] += now - self._step_start
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._close_step()
        self._open[1] += wait
        self._open[2] += len(batch.targets)
        self._step_start = now

    def _close_step(self) -> None:
        seconds, wait, samples = self._open
        if seconds > 0:
            self._num_seen += 1
            if self._num_seen > _DROPPED_STEPS:
                self._steps.append((seconds, min(wait, seconds), samples))
        self._open = [0.0, 0.0, 0]

    def on_validation_end(self, *args: Any) -> None:
        """Leave out the step that a validation came after."""
        self._step_start, self._open = None, [0.0, 0.0, 0]

    def on_save_checkpoint(self, *args: Any) -> None:
        """Leave out the step that a checkpoint came after."""
        self._step_start, self._open = None, [0.0, 0.0, 0]

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the times of the steps since the last log, in the row of the loss."""
        if trainer.fit_loop._should_accumulate():
            return
        # The step that Lightning logs is the one that was just made.
        if trainer.global_step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        metrics = summarise_steps(self._steps[self._num_logged :], trainer.world_size)
        self._num_logged = len(self._steps)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            metrics["train/loss_scale"] = scaler.get_scale()
        if metrics:
            pl_module.log_dict(metrics, batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's row, before a checkpoint is written that counts on it."""
        self._close_step()
        mean = summarise_steps(self._steps, trainer.world_size)
        row = {
            **train_figures(pl_module),
            "time/epoch_sec": time.perf_counter() - self._epoch_start,
        }
        for name, column in (("step_sec", 0), ("data_wait_sec", 1)):
            values = [step[column] for step in self._steps]
            row |= {f"time/{name}_{key}": v for key, v in spread(values).items()}
        for name in ("time/data_wait_frac", "throughput/samples_per_sec"):
            if name in mean:
                row[f"{name}_epoch"] = mean[name]
        self.epoch = row
        self.num_devices = trainer.num_nodes * trainer.num_devices
        log_row(trainer, row)


def train_figures(pl_module: LightningModule) -> dict[str, float]:
    """Return the epoch's mean loss, and how many pictures could not be read, over all devices."""
    metrics = {
        "train/loss_epoch": pl_module.train_loss,
        "train/num_replaced": pl_module.train_replaced,
        "train/num_partial": pl_module.train_partial,
    }
    return {name: float(metric.compute()) for name, metric in metrics.items()}  # type: ignore[operator, union-attr]


def summarise_steps(
    steps: Sequence[tuple[float, float, int]], world_size: int
) -> dict[str, float]:
    """Return means over steps of (seconds, of which waited for data, pictures of a device); none of none."""
    if not steps:
        return {}
    seconds, waits, samples = (sum(column) for column in zip(*steps, strict=True))
    return {
        "time/step_sec": seconds / len(steps),
        "time/data_wait_sec": waits / len(steps),
        "time/data_wait_frac": waits / seconds,
        "throughput/samples_per_sec": samples * world_size / seconds,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum; nothing of nothing."""
    if not values:
        return {}
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "max": max(values)}


def describe_speed(epoch: dict[str, float], num_devices: int = 1) -> str:
    """Return an epoch's speed in words, also that of one of several devices, and whether the run waits for data."""
    if "time/data_wait_frac_epoch" not in epoch:
        return f"{epoch['time/epoch_sec']:.1f} s"
    frac = epoch["time/data_wait_frac_epoch"]
    rate = epoch["throughput/samples_per_sec_epoch"]
    each = f" ({rate / num_devices:.0f} on each of {num_devices} devices)"
    text = (
        f"{epoch['time/epoch_sec']:.1f} s  {rate:.0f} pictures/s{each * (num_devices > 1)}  "
        f"waits for data {100 * frac:.0f} %"
    )
    return text + (
        " (data-bound: loading is slower than the model)"
        if frac > DATA_BOUND_FRAC
        else ""
    )
