"""What ends a run early or warns before it starts."""

import logging
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from imnet_pl.core.errors import UserError
from imnet_pl.training.checkpointing import Score
from imnet_pl.training.nonfinite import NonFiniteLoss

log = logging.getLogger(__name__)


class ExactEarlyStopping(EarlyStopping):
    """EarlyStopping whose patience is this run's: Lightning's (2.6) takes the checkpoint's when it resumes."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the count of the checkpoint over, not its patience."""
        super().load_state_dict({**state_dict, "patience": self.patience})


def build_early_stopping(
    patience: int | None = None,
    monitor: Score = "val/loss",
    mode: Literal["min", "max"] = "min",
    min_delta: float = 0.0,
) -> EarlyStopping | None:
    """Return Lightning's EarlyStopping, or None where ``patience`` is not given.

    Args:
        patience: Stop after this many validations without gain, such as 10; null: never.
        monitor: Score to watch.
        mode: Whether less (``min``) or more (``max``) of the score is better.
        min_delta: Least change that counts as gain.
    """
    if patience is None:
        return None
    return ExactEarlyStopping(
        monitor=monitor, mode=mode, min_delta=min_delta, patience=patience, verbose=True
    )


def build_guards(nonfinite_steps: int | None = 5) -> list[Callback]:
    """Return what ends a run that has gone wrong.

    Args:
        nonfinite_steps: End after so many steps in a row with a loss that is NaN or infinite; null: never.

    Raises:
        UserError: A value can not work.
    """
    if nonfinite_steps is None:
        return []
    if nonfinite_steps < 1:
        raise UserError(
            f"guard.nonfinite_steps={nonfinite_steps} must be 1 or more, or null for never."
        )
    return [NonFiniteLoss(nonfinite_steps)]


class FinalValidation(Callback):
    """Validates once more when ``max_steps`` ends a run within an epoch, so that it has a best.ckpt."""

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Ask for the validation that Lightning runs before it stops early."""
        if 0 < trainer.max_steps <= trainer.global_step:
            trainer.should_stop = True


def warn_if_gpu_unused() -> None:
    """Warn when the NVIDIA driver sees a GPU and torch does not."""
    if torch.cuda.is_available():
        return
    names = _nvidia_gpus()
    if not names:
        return
    if torch.version.cuda is None:
        cause = (
            f"torch {torch.__version__} is a CPU build; install the CUDA wheel that PyTorch's install selector "
            "names"
        )
    else:
        cause = f"torch {torch.__version__} can not use it; a newer NVIDIA driver is the usual cure"
    log.warning("training on the CPU although %s is there: %s.", names[0], cause)


def _nvidia_gpus() -> list[str]:
    """Return the names of the GPUs that the NVIDIA driver reports; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [
            str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)))
            for i in range(count)
        ]
    finally:
        pynvml.nvmlShutdown()
