"""What a person sees while a run goes on: a progress bar, and one line an epoch."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from imnet_pl.core.stats import wilson_interval
from imnet_pl.training.monitors import StepTimer, describe_speed, train_figures

RATE_WINDOW = 50  # batches over which the speed is measured


class ProgressBar(TQDMProgressBar):
    """Lightning's bar with loss, rate, pictures/s and time left."""

    def __init__(self) -> None:
        super().__init__()
        self._batch_ends: deque[float] = deque(maxlen=RATE_WINDOW)

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        """Start a new bar, and measure speed anew: validation and saving do not count."""
        self._batch_ends.clear()
        super().on_train_epoch_start(trainer, *args)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Advance the bar."""
        self._batch_ends.append(time.perf_counter())
        super().on_train_batch_end(*args, **kwargs)

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Return what stands behind the bar; pictures/s is of all devices, over the last batches."""
        logged = trainer.callback_metrics
        shown: dict[str, int | str | float | dict[str, float]] = {}
        if "train/loss" in logged:
            shown["loss"] = f"{float(logged['train/loss']):.4f}"
        if "train/lr" in logged:
            shown["lr"] = f"{float(logged['train/lr']):.2e}"
        if len(self._batch_ends) > 1:
            batches = (len(self._batch_ends) - 1) / (
                self._batch_ends[-1] - self._batch_ends[0]
            )
            batch_size = trainer.train_dataloader.batch_size  # type: ignore[union-attr]
            rate = batches * batch_size * trainer.world_size
            shown["pictures/s"] = f"{rate:.0f}"
        return shown

    def init_validation_tqdm(self) -> Tqdm:
        """Return a bar that leaves nothing on the screen, so that one line an epoch stays."""
        bar = super().init_validation_tqdm()
        bar.leave = False
        return bar


class EpochLine(Callback):
    """Prints one line an epoch, and one for ``validate`` and ``test``, above the bar and on rank 0 alone."""

    def __init__(self, timer: StepTimer | None = None) -> None:
        self.timer = timer

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's line."""
        figures = train_figures(pl_module)
        digits = len(str(trainer.max_epochs))
        parts = [
            f"epoch {trainer.current_epoch + 1:{digits}}/{trainer.max_epochs}",
            f"train loss {figures['train/loss_epoch']:.4f}",
        ]
        for name in ("replaced", "partial"):
            if count := int(figures[f"train/num_{name}"]):
                parts.append(f"{count} {name}")
        metrics = trainer.callback_metrics
        if "val/num_samples" in metrics:
            parts.append(describe_scores(metrics, "val"))
        if self.timer is not None:
            parts.append(describe_speed(self.timer.epoch, self.timer.num_devices))
        pl_module.print("  ".join(parts))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the scores of ``validate``."""
        if trainer.state.fn == "validate":
            pl_module.print(
                describe_scores(trainer.callback_metrics, "val", decimals=6)
            )

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the scores of ``test``."""
        pl_module.print(describe_scores(trainer.callback_metrics, "test", decimals=6))


def describe_scores(metrics: Mapping[str, Any], split: str, decimals: int = 4) -> str:
    """Return loss, Top-1 with its 95 % interval, Top-5 and n of a split in words."""
    n = int(metrics[f"{split}/num_samples"])
    top1 = float(metrics[f"{split}/top1"])
    parts = [f"{split} loss {float(metrics[f'{split}/loss']):.{decimals}f}"]
    if n:
        low, high = wilson_interval(top1, n)
        parts.append(f"top1 {top1:.{decimals}f} (95 % {low:.4f}-{high:.4f})")
    if f"{split}/top5" in metrics:
        parts.append(f"top5 {float(metrics[f'{split}/top5']):.{decimals}f}")
    parts.append(f"n {n}")
    if unreadable := int(metrics[f"{split}/num_unreadable"]):
        parts.append(f"{unreadable} unreadable, counted as wrong")
    return "  ".join(parts)
