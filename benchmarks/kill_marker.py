"""Where a run of ``benchmarks/kill.py`` is: this program's code tells a marker.

The phase lies in a small memory-mapped file, which the process that kills reads while the run goes on, and
once more when it is dead.
"""

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Where a run can be. "window": from a window's first batch to its optimiser step, with accumulation; "step": the
# same without. "row": metrics.csv is written. "after best": best.ckpt is written, last.ckpt is not yet.
PHASES = (
    "start-up",
    "between steps",
    "step",
    "window",
    "validation",
    "save",
    "row",
    "after best",
    "end",
)


class Marker:
    """The phase of a run, how often it has entered each, and how far it is.

    Args:
        file: The memory-mapped file; all is 0 where it is absent.
    """

    def __init__(self, file: Path) -> None:
        size = 4 * (3 + len(PHASES))
        if not file.exists():
            file.write_bytes(bytes(size))
        with file.open("r+b") as opened:
            self._words = memoryview(mmap.mmap(opened.fileno(), size)).cast("I")

    @property
    def phase(self) -> str:
        """The phase that the run is in."""
        return PHASES[self._words[0]]

    @phase.setter
    def phase(self, phase: str) -> None:
        self._words[0] = PHASES.index(phase)

    @property
    def progress(self) -> tuple[int, int]:
        """Optimiser steps that are done, and batches that were begun."""
        return self._words[1], self._words[2]

    @progress.setter
    def progress(self, steps_batches: tuple[int, int]) -> None:
        self._words[1], self._words[2] = steps_batches

    def count(self, phase: str) -> int:
        """Return how often the run has entered a phase."""
        return self._words[3 + PHASES.index(phase)]

    def enter(self, phase: str) -> None:
        """Go on to a phase, and count it."""
        self.phase = phase
        self._words[3 + PHASES.index(phase)] += 1

    @contextmanager
    def during(self, phase: str, stretch_sec: float) -> Iterator[None]:
        """Be in a phase, then in the earlier one again; wait so long at its start and at its end."""
        earlier = self.phase
        self.enter(phase)
        time.sleep(stretch_sec)
        try:
            yield
        finally:
            time.sleep(stretch_sec)
            self.phase = earlier


def wrap(
    owner: Any,
    name: str,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Let functions see the arguments of a method or function before and after it runs."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = function(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def mark_files(marker: Marker, stretched: str, stretch_sec: float) -> None:
    """Mark the writing of checkpoints and of metrics.csv; a phase that is too short to be hit is stretched."""
    from imnet_pl.training import checkpointing, loggers
    from imnet_pl.training.checkpoint_io import SafeCheckpointIO

    writers = (
        (SafeCheckpointIO, "save_checkpoint", "save"),
        (checkpointing, "copy_file", "save"),
        (loggers.MetricsFile, "_write", "row"),
        (loggers, "replace_file", "row"),
    )

    def mark(function: Callable[..., None], phase: str) -> Callable[..., None]:
        wait_sec = stretch_sec if phase == stretched else 0.0

        def marked(*args: Any, **kwargs: Any) -> None:
            with marker.during(phase, wait_sec):
                function(*args, **kwargs)

        return marked

    for owner, name, phase in writers:
        setattr(owner, name, mark(getattr(owner, name), phase))

    def after_save(_io: Any, _checkpoint: Any, path: Any, **_: Any) -> None:
        if Path(path).name != "best.ckpt":
            marker.phase = "between steps"
            return
        marker.enter("after best")
        time.sleep(stretch_sec if stretched == "after best" else 0.0)

    wrap(SafeCheckpointIO, "save_checkpoint", after=after_save)


def mark_training(marker: Marker) -> None:
    """Mark steps, windows, validations and the end."""
    from imnet_pl.model.classifier import ImageClassifier

    earlier = ["start-up"]

    def begin_batch(model: Any, _batch: Any, batch_idx: int) -> None:
        trainer = model.trainer
        batches = trainer.current_epoch * trainer.num_training_batches + batch_idx
        marker.progress = trainer.global_step, batches + 1
        if batch_idx % trainer.accumulate_grad_batches == 0:
            marker.enter("window" if trainer.accumulate_grad_batches > 1 else "step")

    def end_step(model: Any, *_: Any, **__: Any) -> None:
        marker.phase = "between steps"
        marker.progress = model.trainer.global_step + 1, marker.progress[1]

    def begin_validation(model: Any) -> None:
        if not model.trainer.sanity_checking:
            earlier[0] = marker.phase
            marker.enter("validation")

    def end_validation(_model: Any) -> None:
        if marker.phase == "validation":
            marker.phase = earlier[0]

    wrap(ImageClassifier, "training_step", before=begin_batch)
    wrap(ImageClassifier, "optimizer_step", after=end_step)
    wrap(ImageClassifier, "on_validation_start", before=begin_validation)
    wrap(ImageClassifier, "on_validation_end", before=end_validation)
    wrap(ImageClassifier, "on_train_end", before=lambda _: marker.enter("end"))


def mark(marker: Marker, stretched: str, stretch_sec: float) -> None:
    """Let this program's code tell the marker where it is."""
    mark_files(marker, stretched, stretch_sec)
    mark_training(marker)


def build_tiny_network(_arch: str, num_classes: int) -> Any:
    """Return a network with BatchNorm, and with dropout, which draws from the global generator."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2),
        nn.BatchNorm2d(4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(16, num_classes),
    )
