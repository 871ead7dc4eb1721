"""What ``benchmarks/devices.py`` measures within a run: a callback of Lightning that every rank has."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from imnet_pl.core.machine import usable_cores

ROUNDS = 3  # of a block with, and one without, the exchange of gradients
ALL_REDUCES = 5


class StepProbe(Callback):
    """Times blocks of steps, every second one without the exchange of gradients, and ends the run.

    Args:
        file: JSON that rank 0 writes.
        steps: Batches in a block.
        warm_up: Batches before the first.
    """

    def __init__(self, file: str, steps: int = 20, warm_up: int = 5) -> None:
        self.file, self.steps, self.warm_up = Path(file), steps, warm_up
        self._num_done = -warm_up
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self._samples = 0
        self._wait = self._pause = self._all = 0.0
        self._block_start = self._paused_at = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a block, and take what a batch waited for."""
        if self._num_done >= 0 and self._paused_at:
            self._pause += time.perf_counter() - self._paused_at
        self._paused_at = 0.0
        if self._num_done >= 0 and self._num_done % self.steps == 0:
            is_synced = self._num_done // self.steps % 2 == 0
            self._set_sync(trainer, is_synced)
            self._synchronize(trainer)
            self._block_start, self._pause = time.perf_counter(), 0.0
        if self._num_done >= 0:
            self._wait += float(getattr(trainer.train_dataloader, "last_wait_sec", 0.0))
        self._samples = len(batch.targets) * trainer.world_size

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End a block, and the run after the last."""
        self._num_done += 1
        if self._num_done <= 0 or self._num_done % self.steps:
            return
        self._synchronize(trainer)
        seconds = time.perf_counter() - self._block_start - self._pause
        is_synced = (self._num_done // self.steps - 1) % 2 == 0
        self._times[is_synced].append(seconds / self.steps)
        self._all += seconds
        if self._num_done >= 2 * ROUNDS * self.steps:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What comes between two epochs is no step."""
        self._synchronize(trainer)
        self._paused_at = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the exchange alone, and write all figures."""
        sizes = [p.numel() for p in pl_module.parameters() if p.requires_grad]
        gradient = torch.zeros(sum(sizes), device=trainer.strategy.root_device)
        figures = {
            "step_sec": statistics.median(self._times[True]),
            "step_without_sync_sec": statistics.median(self._times[False]),
            "pictures_per_step": self._samples,
            "data_wait_frac": self._wait / self._all,
            "gradient_bytes": gradient.numel() * gradient.element_size(),
            "all_reduce_sec": self._time_all_reduce(trainer, gradient),
            "cores": usable_cores(),
            "device": _device_name(trainer),
        }
        if trainer.is_global_zero:
            self.file.write_text(json.dumps(figures), encoding="utf-8")

    def _set_sync(self, trainer: Trainer, is_synced: bool) -> None:
        """Let gradients be exchanged or not, as ``no_sync`` does; nothing without DDP."""
        model = trainer.strategy.model
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = is_synced

    def _time_all_reduce(
        self, trainer: Trainer, gradient: torch.Tensor
    ) -> float | None:
        if trainer.world_size == 1:
            return None
        times = []
        for _ in range(ALL_REDUCES + 1):
            trainer.strategy.barrier()
            times.append(self._time(trainer, lambda: dist.all_reduce(gradient)))
        return statistics.median(times[1:])

    def _time(self, trainer: Trainer, act: Callable[[], Any]) -> float:
        self._synchronize(trainer)
        start = time.perf_counter()
        act()
        self._synchronize(trainer)
        return time.perf_counter() - start

    @staticmethod
    def _synchronize(trainer: Trainer) -> None:
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)


def _device_name(trainer: Trainer) -> str:
    device = trainer.strategy.root_device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
