"""Going on exactly where a checkpoint stands: bitwise as without the stop (CPU, fixed seed)."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics import Metric

from imnet_pl.core.errors import UserError
from imnet_pl.core.position import Position, position_of
from imnet_pl.training.checkpointing import list_epochs

_COUNTERS = ("ready", "started", "processed", "completed")


class ExactResume(Callback):
    """Keeps in a checkpoint what Lightning (2.6) leaves out, and puts it back.

    That is: progress as it is between two steps (Lightning counts a checkpoint at the end of an epoch as one
    within it, and skips or repeats a validation), the states of random generators, the training metrics so
    far, and the global batch, so that other numbers of devices go on with the same pictures.

    Args:
        allow_changed_data: Go on with another data set than the checkpoint's.
    """

    def __init__(self, allow_changed_data: bool = False) -> None:
        self.allow_changed_data = allow_changed_data
        self._loaded: dict[str, Any] | None = None
        self._is_first_step = False

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the state, as plain types and tensors that the safe loader reads."""
        position = position_of(trainer)
        is_epoch_done = position.batches >= trainer.num_training_batches
        set_progress(checkpoint["loops"]["fit_loop"], position, is_epoch_done)
        checkpoint["imnet_pl_resume"] = {
            "batches_done": position.batches,
            "micro_batch": _micro_batch(trainer),
            "accumulate": trainer.accumulate_grad_batches,
            "random": random_states(trainer),
            "metrics": _train_metrics(pl_module) if position.batches else {},
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take the state over; progress is put into this run's batches before Lightning reads it.

        Raises:
            UserError: The data set changed; or the checkpoint stands within an epoch, and the global batch is
                another one.
        """
        if trainer.state.fn != "fit":
            return
        self._check_data(trainer, checkpoint)
        self._loaded = checkpoint.get("imnet_pl_resume")
        if self._loaded is None:
            return
        self._is_first_step = True
        samples = self._loaded["batches_done"] * self._loaded["micro_batch"]
        if not samples:
            return
        there = self._loaded["micro_batch"] * self._loaded["accumulate"]
        here = _micro_batch(trainer) * trainer.accumulate_grad_batches
        if there != here:
            raise UserError(
                f"the checkpoint stands within epoch {checkpoint['epoch'] + 1} of a run with {there} pictures a "
                f"step, here they are {here} (data.batch_size x devices x accumulation); give the same, or start "
                f"from a checkpoint at the end of an epoch{_newest_epoch(trainer)}."
            )
        loop = checkpoint["loops"]["fit_loop"]
        counters = loop["epoch_loop.batch_progress"]["current"]
        counters.update(dict.fromkeys(_COUNTERS, samples // _micro_batch(trainer)))

    def _check_data(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        there = checkpoint.get("imnet_pl", {}).get("data", {})
        here = trainer.datamodule.describe()["data"]  # type: ignore[attr-defined]
        for split in sorted(there.keys() & here.keys()):
            if there[split] == here[split] or self.allow_changed_data:
                continue
            raise UserError(
                f"the {split} data is another than the checkpoint's ({here[split]['num_samples']} pictures, "
                f"{there[split]['num_samples']} there, or other names or classes); restore it, or go on with "
                "--allow_changed_data true."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore metrics and generators: after the loaders were made, before the first batch."""
        if self._loaded is None:
            return
        _restore_metrics(trainer, pl_module, self._loaded["metrics"])
        restore_random_states(trainer, self._loaded["random"])
        self._loaded = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the step that loggers see, which Lightning may have counted twice on the way here."""
        if self._is_first_step:
            trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
            self._is_first_step = False


def _newest_epoch(trainer: Trainer) -> str:
    """Return the newest ``epoch_NNN.ckpt`` beside the checkpoint that is loaded, in words."""
    beside = list_epochs(Path(str(trainer.ckpt_path)).parent)
    return (
        f": --ckpt_path {beside[-1]}"
        if beside
        else ", of which there is none beside it"
    )


def set_progress(loop: dict[str, Any], position: Position, is_epoch_done: bool) -> None:
    """Rewrite a fit loop's saved counters to those between two steps.

    Args:
        loop: State of the fit loop in a checkpoint.
        position: Where the run stands.
        is_epoch_done: Whether nothing but a validation is left of the epoch.
    """
    batches = loop["epoch_loop.batch_progress"]
    batches["current"].update(dict.fromkeys(_COUNTERS, position.batches))
    batches["total"].update(dict.fromkeys(_COUNTERS, batches["total"]["processed"]))
    batches["is_last_batch"] = is_epoch_done
    for counters in loop["epoch_progress"].values():
        counters.update(dict.fromkeys(_COUNTERS, position.epoch))
        if position.batches:
            counters.update(ready=position.epoch + 1, started=position.epoch + 1)
    if position.is_validation_due:
        # The sign by which Lightning goes back into the validation; it starts with the first batch.
        validated = loop["epoch_loop.val_loop.batch_progress"]
        for counters in (validated["current"], validated["total"]):
            counters.update(dict.fromkeys(_COUNTERS, 0))
        validated["total"].update(ready=1, started=1)
        validated["is_last_batch"] = False


def _micro_batch(trainer: Trainer) -> int:
    """Return the pictures that all devices together take in one batch."""
    loader = trainer.train_dataloader
    size = (
        loader.batch_size if loader is not None else trainer.datamodule.batch_size  # type: ignore[attr-defined]
    )
    return int(size) * trainer.world_size


def random_states(trainer: Trainer) -> dict[str, Any]:
    """Return the states of the global random generators in plain types and tensors."""
    version, words, gauss = random.getstate()
    mt: dict[str, Any] = np.random.get_state(legacy=False)
    states = {
        "python": [version, list(words), gauss],
        "numpy": [mt["state"]["key"].tolist(), int(mt["state"]["pos"])],
        "torch": torch.get_rng_state(),
    }
    device = trainer.strategy.root_device
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(trainer: Trainer, states: dict[str, Any]) -> None:
    """Set the global random generators; a device's only where this run has such a device."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    keys, position = states["numpy"]
    mt = {"key": np.array(keys, dtype=np.uint32), "pos": position}
    state = {"bit_generator": "MT19937", "state": mt, "has_gauss": 0, "gauss": 0.0}
    np.random.set_state(state)
    torch.set_rng_state(states["torch"].cpu())
    device = trainer.strategy.root_device
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def _train_metrics(pl_module: LightningModule) -> dict[str, dict[str, torch.Tensor]]:
    """Return the states of training metrics by name, each [world size] or longer."""
    saved = {}
    for name, metric in pl_module.named_children():
        if isinstance(metric, Metric) and name.startswith("train"):
            saved[name] = {
                state: _gather(pl_module, getattr(metric, state))
                for state in metric._defaults
            }
    return saved


def _gather(pl_module: LightningModule, value: torch.Tensor) -> torch.Tensor:
    gathered = pl_module.all_gather(value.detach().clone())
    assert isinstance(gathered, torch.Tensor)
    return gathered.reshape(-1).cpu()


def _restore_metrics(
    trainer: Trainer,
    pl_module: LightningModule,
    saved: dict[str, dict[str, torch.Tensor]],
) -> None:
    """Give each rank its part of the metrics, or rank 0 all of it where the number of ranks is another."""
    for name, states in saved.items():
        metric = getattr(pl_module, name)
        for state, parts in states.items():
            if len(parts) == trainer.world_size:
                value = parts[trainer.global_rank]
            else:
                value = parts.sum() if trainer.global_rank == 0 else parts.sum() * 0
            getattr(metric, state).copy_(value)
        metric._update_count = 1
        metric._computed = None
