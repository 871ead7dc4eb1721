"""What do loggers, timers and plots cost of a quickstart epoch?

python benchmarks/logs.py [--epochs 12]

Epochs with and without them in turn, in one run: the medians of the epochs' seconds. Beside it, less noisy:
the seconds that their code takes in an epoch, the drawing thread's CPU time included.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
HOOKS = ("on_train_batch_start", "on_train_batch_end", "on_train_epoch_end")


class Switch:
    """Turns functions on and off, and adds up the seconds that they take.

    The epoch's end is always run as the first of callbacks: what it costs belongs to the epoch that ends.
    """

    def __init__(self) -> None:
        self.is_on, self.spent_sec = True, 0.0

    def wrap(
        self, owner: Any, name: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Replace a function of an object or module."""
        function = getattr(owner, name)

        def switched(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return None
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_sec += clock() - start

        setattr(owner, name, switched)


def time_epochs(num_epochs: int, folder: str) -> tuple[list[float], list[float], float]:
    """Return the seconds of epochs with and without logs, and the seconds of their code in one epoch."""
    from lightning.pytorch import Callback

    from imnet_pl.lightning_cli import ImageNetCLI
    from imnet_pl.training import curves, loggers, monitors

    args = ["fit", f"--config={REPO / 'configs' / 'quickstart.yaml'}"]
    args += [
        f"--trainer.max_epochs={num_epochs}",
        f"--trainer.default_root_dir={folder}",
    ]
    args += ["--trainer.enable_checkpointing=false", "--trainer.limit_val_batches=0"]
    session = ImageNetCLI(args, build_only=True)
    switch, seconds = Switch(), {True: [], False: []}
    kinds = (monitors.StepTimer, loggers.LogHistory, curves.Curves)
    callbacks: list[Any] = session.trainer.callbacks
    for owner in [c for c in callbacks if isinstance(c, kinds)]:
        for hook in HOOKS:
            switch.wrap(owner, hook)
    for logger in session.trainer.loggers:
        switch.wrap(logger, "log_metrics")
        switch.wrap(logger, "save")
    switch.wrap(curves, "draw_curves", time.thread_time)
    session.trainer.callbacks = [
        c for c in callbacks if type(c).__name__ != "EpochLine"
    ]

    class Clock(Callback):
        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            switch.is_on = trainer.current_epoch % 2 == 0
            self.start = time.perf_counter()

        def on_train_epoch_end(self, *_: Any) -> None:
            seconds[switch.is_on].append(time.perf_counter() - self.start)

    session.trainer.callbacks.append(Clock())
    session.trainer.fit(session.model, datamodule=session.datamodule)
    # The first epoch starts workers and imports matplotlib.
    return seconds[True][1:], seconds[False], switch.spent_sec / len(seconds[True])


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    with tempfile.TemporaryDirectory() as folder:
        on, off, spent = time_epochs(parser.parse_args().epochs, folder)
    with_logs, without = statistics.median(on), statistics.median(off)
    print(
        f"epoch with logs {with_logs:.2f} s, without {without:.2f} s (medians of {len(on)} and {len(off)}): "
        f"{100 * (with_logs / without - 1):+.1f} %; spread of one kind "
        f"{100 * (max(off) - min(off)) / without:.1f} %"
    )
    print(f"seconds in their code: {spent:.3f} an epoch, {100 * spent / without:.2f} %")


if __name__ == "__main__":
    sys.exit(main())
