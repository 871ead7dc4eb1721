"""What a Trainer is given beside what the user chose: callbacks, loggers, progress bar, the writer of checkpoints."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import Namespace
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from lightning.pytorch.loggers import Logger

from imnet_pl.training import checkpointing, guards, loggers, lost_rank, runs
from imnet_pl.training.bad_pictures import BadPictures
from imnet_pl.training.checkpoint_io import SafeCheckpointIO
from imnet_pl.training.curves import Curves
from imnet_pl.training.leaving import CrashCheckpoint, GracefulStop
from imnet_pl.training.monitors import StepTimer
from imnet_pl.training.per_class import PerClassTable
from imnet_pl.training.progress import EpochLine, ProgressBar
from imnet_pl.training.resume import ExactResume


class Continued(NamedTuple):
    """The run folder that a run goes on in, and the optimiser steps that are done."""

    folder: Path
    steps: int


def build(
    config: Namespace,
    verb: str,
    callbacks: list[Callback],
    continued: Continued | None,
) -> dict[str, Any]:
    """Return arguments for the Trainer, and append this program's callbacks to the user's.

    Args:
        config: The verb's resolved config.
        verb: ``fit``, ``validate``, ``test`` or ``predict``.
        callbacks: The user's.
        continued: Where a resumed run goes on; None: in a new run folder.
    """
    trainer = config.trainer
    callbacks += lost_rank.build_rank_guards(**config.ranks)
    callbacks += (
        _fit_callbacks(config) if verb == "fit" else [EpochLine(), BadPictures()]
    )
    if verb in ("validate", "test"):
        callbacks.append(PerClassTable(config.per_class))
    chosen: dict[str, Any] = {"plugins": _with_safe_io(trainer.plugins)}
    if verb != "fit":
        chosen["enable_checkpointing"] = False
        if trainer.logger in (None, True):
            chosen["logger"] = False
    elif trainer.logger in (None, True):
        chosen["logger"] = _build_loggers(config, continued)
    # The bar comes last: when it has closed, Lightning prints nothing any more.
    if not any(isinstance(callback, LightningProgressBar) for callback in callbacks):
        wanted = trainer.enable_progress_bar is not False and sys.stdout.isatty()
        callbacks += [ProgressBar()] if wanted else []
        chosen["enable_progress_bar"] = wanted
    return chosen


def _fit_callbacks(config: Namespace) -> list[Callback]:
    # The timer writes the row of an epoch that the others read.
    timer = StepTimer()
    own: list[Callback] = [timer, EpochLine(timer), guards.FinalValidation()]
    own += [ExactResume(config.allow_changed_data), loggers.LogHistory(), Curves()]
    own += [BadPictures(), PerClassTable()]
    own += [GracefulStop(), CrashCheckpoint()]
    own += guards.build_guards(**config.guard)
    if stopping := guards.build_early_stopping(**config.early_stopping):
        own.append(stopping)
    if config.trainer.enable_checkpointing is not False:
        own += checkpointing.build_checkpoints(**config.checkpoint)
    return own


def _build_loggers(config: Namespace, continued: Continued | None) -> list[Logger]:
    if continued is None:
        folder = Path(config.trainer.default_root_dir or runs.DEFAULT_ROOT)
        return loggers.build_loggers(folder, config.name)
    return loggers.build_loggers(
        continued.folder.parent,
        "",
        version=continued.folder.name,
        first_step=continued.steps,
    )


def _with_safe_io(plugins: Any) -> list[Any]:
    """Return a user's plugins, and the safe writer of checkpoints unless one of them writes them."""
    given = plugins if isinstance(plugins, list) else [plugins] if plugins else []
    has_io = any(isinstance(plugin, CheckpointIO) for plugin in given)
    return given if has_io else [*given, SafeCheckpointIO()]
