"""Where training stands between two optimiser steps."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Position:
    """A place in a run from which it can go on.

    Args:
        epoch: Epochs that are over.
        batches: Batches of the next epoch that each device has trained on.
        is_validation_due: A validation after those batches has begun and is not over.
    """

    epoch: int
    batches: int
    is_validation_due: bool


def position_of(trainer: Any) -> Position:
    """Return where a Trainer's fit stands, by its counters of processed batches.

    What the loader has prepared ahead does not count. Only right between two windows of accumulation.
    """
    loop = trainer.fit_loop
    epoch: Any = loop.epoch_progress.current
    batches: Any = loop.epoch_loop.batch_progress.current
    if epoch.processed >= epoch.started:
        return Position(epoch.processed, 0, False)
    if trainer.validating and not _is_validated(trainer):
        return Position(epoch.processed, batches.processed, True)
    if batches.processed >= trainer.num_training_batches:
        return Position(epoch.processed + 1, 0, False)
    return Position(epoch.processed, batches.processed, False)


def _is_validated(trainer: Any) -> bool:
    loop = trainer.fit_loop.epoch_loop.val_loop
    return bool(loop.batch_progress.current.completed >= sum(loop.max_batches))
