"""What do loggers, timers and plots cost of a quickstart epoch?

python benchmarks/logs.py [--epochs 12]

Epochs with and without them in turn, in one run: the medians of the epochs' seconds. Beside it, less noisy:
the seconds that their code takes in an epoch, the drawing thread's CPU time included.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
HOOKS = ("on_train_batch_start", "on_train_batch_end", "on_train_epoch_end")


class Switch:
    """Turns functions on and off, and adds up the seconds that each takes."""

    def __init__(self) -> None:
        self.is_on = True
        self.spent_sec: Counter[str] = Counter()
        self.inside = threading.local()

    def wrap(
        self, owner: Any, name: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Replace a function of an object or module."""
        function = getattr(owner, name)
        label = (
            f"{getattr(owner, '__name__', type(owner).__name__).split('.')[-1]}.{name}"
        )

        def switched(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return None
            if getattr(self.inside, "yes", False):  # counted by who called
                return function(*args, **kwargs)
            start, self.inside.yes = clock(), True
            try:
                return function(*args, **kwargs)
            finally:
                self.inside.yes = False
                self.spent_sec[label] += clock() - start

        setattr(owner, name, switched)


def time_epochs(
    num_epochs: int, folder: str
) -> tuple[list[float], list[float], dict[str, float]]:
    """Return the seconds of epochs with and without logs, and the seconds of each piece of their code."""
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
            if trainer.current_epoch == 1:  # files were made and modules imported
                switch.spent_sec.clear()
            self.start = time.perf_counter()

        def on_train_epoch_end(self, *_: Any) -> None:
            seconds[switch.is_on].append(time.perf_counter() - self.start)

    session.trainer.callbacks.append(Clock())
    session.trainer.fit(session.model, datamodule=session.datamodule)
    # The first epoch starts workers too.
    on = seconds[True][1:]
    spent = {label: sec / len(on) for label, sec in switch.spent_sec.items()}
    # Drawings are paced by the clock, which goes on through the epochs without logs.
    spent["curves.draw_curves"] *= len(on) / (num_epochs - 1)
    return on, seconds[False], spent


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
    print(f"{'in their code':45} ms an epoch   share")
    for label, sec in [*sorted(spent.items()), ("all", sum(spent.values()))]:
        print(f"{label:45} {1000 * sec:11.1f} {100 * sec / without:6.2f} %")


if __name__ == "__main__":
    sys.exit(main())
