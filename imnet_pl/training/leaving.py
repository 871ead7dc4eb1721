"""Leaving a run before its end: asked to by a signal, or thrown out by an exception."""

import logging
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from imnet_pl.core.position import Position, position_of
from imnet_pl.training.checkpointing import CRASH_NAME, find_last_checkpoint
from imnet_pl.training.nonfinite import NonFiniteLossError
from imnet_pl.training.poll import Poll
from imnet_pl.training.stop_request import StopRequest

log = logging.getLogger(__name__)


class Leave(BaseException):
    """Raised on all ranks when a run has been saved and ends before its time.

    Args:
        sentence: What to tell the user.
        status: Exit status of the process.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class GracefulStop(Callback):
    """Ends a run that was asked to stop: between two steps, or within a validation, saved on all ranks.

    Lightning's own way (2.6) broadcasts inside a signal handler, which under DDP ends in a time-out.
    """

    def __init__(self) -> None:
        self.request = StopRequest()
        self._poll = Poll(is_free=True)
        self._poll_val = Poll(is_free=True)

    def on_sanity_check_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Listen from here on: Lightning has set its handlers."""
        self.request.listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen, where there was no sanity check."""
        self.request.listen()
        # With its signal handler replaced, asking all ranks in every step is in vain.
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _do_nothing  # type: ignore[method-assign]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Leave between two windows of accumulation."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            step = trainer.fit_loop.epoch_loop.total_batch_idx
            if self._poll.ask(trainer, step, self._is_asked):
                self._leave(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask anew: batches are counted from 0."""
        self._poll_val.restart()

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave within a validation, which the resumed run does from its start."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or trainer.should_stop:
            return
        if trainer.fit_loop._should_accumulate():  # its gradients would be lost
            return
        if self._poll_val.ask(trainer, batch_idx, self._is_asked):
            self._leave(trainer)

    def _is_asked(self) -> bool:
        return self.request.reason is not None

    def _leave(self, trainer: Trainer) -> None:
        where = describe_position(position_of(trainer))
        status = trainer.strategy.broadcast(self.request.status)
        reason = trainer.strategy.broadcast(self.request.reason) or "another rank"
        last = find_last_checkpoint(trainer)
        if last is None or trainer.fast_dev_run:  # type: ignore[attr-defined]
            saved = "nothing is saved, since this run writes no checkpoints"
        else:
            path = last.save_now(trainer)
            saved = f"saved. To go on: {resume_command(path)}"
        # Lightning ends the other ranks of a machine when one of them ends with an error.
        raise Leave(
            f"stopped by {reason} {where}; {saved}",
            status if trainer.local_rank == 0 else 0,
        )

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Give the signals back at the end of the run."""
        self.request.restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back."""
        self.request.restore()


def _do_nothing() -> None:
    pass


def describe_position(position: Position) -> str:
    """Return in words how far a run is."""
    done = f"after {position.epoch} epochs"
    if position.batches:
        done += f" and {position.batches} batches"
    return done + (" (in a validation)" if position.is_validation_due else "")


def resume_command(path: Path | str) -> str:
    """Return the command that goes on from a checkpoint."""
    is_below = Path(path).is_relative_to(Path.cwd())
    shown = str(Path(path).relative_to(Path.cwd()) if is_below else path)
    quoted = f'"{shown}"' if " " in shown else shown
    return f"python cli.py fit --ckpt_path {quoted}"


class CrashCheckpoint(Callback):
    """Writes ``crash.ckpt`` when an exception ends a run, if it came between two steps of one device.

    An exception within a step leaves BatchNorm or gradients half changed, and on several devices the others
    wait in vain: then the newest checkpoint is named instead.
    """

    def __init__(self) -> None:
        self._is_between_steps = False

    def on_train_start(self, *args: Any) -> None:
        """Nothing is done yet that is worth saving."""
        self._is_between_steps = False

    def on_train_epoch_start(self, *args: Any) -> None:
        """An epoch's first batch is still to be loaded."""
        self._is_between_steps = True

    def on_train_batch_start(self, *args: Any) -> None:
        """A step begins."""
        self._is_between_steps = False

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """A step is done, unless the window is open; after the last of an epoch a validation may be due."""
        self._is_between_steps = (
            not trainer.fit_loop._should_accumulate()
            and batch_idx + 1 < trainer.num_training_batches
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation changes nothing; the window may be open."""
        self._is_between_steps = not (
            trainer.sanity_checking or trainer.fit_loop._should_accumulate()
        )

    def on_validation_end(self, *args: Any) -> None:
        """Early stopping and the best score are taking the result in."""
        self._is_between_steps = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save, or name what is there."""
        is_said = isinstance(
            exception,
            Leave | KeyboardInterrupt | SIGTERMException | NonFiniteLossError,
        )
        last = find_last_checkpoint(trainer)
        if is_said or last is None or trainer.state.fn != "fit":
            return
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        can_save = self._is_between_steps and trainer.world_size == 1
        self._is_between_steps = False
        path = None
        if can_save and trainer.global_step > 0:
            path = last.save_beside(trainer, CRASH_NAME)
        if path is not None:
            log.error(
                "the state before the error is saved. To go on: %s",
                resume_command(path),
            )
        elif last.path.is_file():
            log.error("the last save is whole. To go on: %s", resume_command(last.path))
