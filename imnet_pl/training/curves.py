"""curves.png: loss, accuracy, learning rate and speed of a run, drawn after every epoch without a server."""

import csv
import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from imnet_pl.core.files import replace_file

log = logging.getLogger(__name__)

MAX_SHARE = 0.005  # of a run's time

# title: (column, label) of its lines
PANELS = {
    "loss": (
        ("train/loss", "train, a step"),
        ("train/loss_epoch", "train, an epoch"),
        ("val/loss", "val"),
    ),
    "accuracy": (("val/top1", "val Top-1"), ("val/top5", "val Top-5")),
    "learning rate": (("train/lr", "learning rate"),),
    "pictures/s": (
        ("throughput/samples_per_sec", "since the last log"),
        ("throughput/samples_per_sec_epoch", "an epoch"),
    ),
}


class Curves(Callback):
    """Draws ``curves.png`` in the run folder from ``metrics.csv``, in a thread of its own.

    After every epoch and at the end; where epochs last seconds, so often that it takes 0.5 % of the time.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._cost_sec = 0.0
        self._drawn_at = -math.inf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the run folder, which all ranks must ask for together."""
        folder = trainer.log_dir
        if trainer.is_global_zero and folder is not None:
            self._folder = Path(folder)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw, unless the last drawing is still under way or was a moment ago."""
        is_drawing = self._thread is not None and self._thread.is_alive()
        since_sec = time.perf_counter() - self._drawn_at
        if not is_drawing and since_sec >= self._cost_sec / MAX_SHARE:
            self._start()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the whole run, and wait for it."""
        self._wait()
        self._start()
        self._wait()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Let a drawing end."""
        self._wait()

    def _start(self) -> None:
        if self._folder is not None and (self._folder / "metrics.csv").is_file():
            self._thread = threading.Thread(
                target=self._draw, args=(self._folder,), name="curves", daemon=True
            )
            self._thread.start()

    def _draw(self, folder: Path) -> None:
        try:
            import matplotlib.figure  # noqa: F401 - its seconds come once

            start = time.thread_time()
            draw_curves(folder / "metrics.csv", folder / "curves.png")
            self._cost_sec = time.thread_time() - start
        except Exception as error:  # noqa: BLE001 - a picture is never worth a run
            log.warning("curves.png could not be drawn (%s).", error)
        self._drawn_at = time.perf_counter()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join(timeout=30)


def read_curves(metrics: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Return (steps, values) of each column of a metrics file, blanks and what is not finite left out."""
    columns: dict[str, tuple[list[float], list[float]]] = {}
    with metrics.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, text in row.items():
                value = float(text) if name and text else math.nan
                if math.isfinite(value) and row.get("step"):
                    steps, values = columns.setdefault(str(name), ([], []))
                    steps.append(float(row["step"]))
                    values.append(value)
    return columns


def draw_curves(metrics: Path, picture: Path) -> None:
    """Draw the curves of a metrics file into a PNG, which appears whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_curves(metrics)
    figure = Figure(figsize=(10, 6.4), dpi=80)
    canvas = FigureCanvasAgg(figure)
    figure.subplots_adjust(0.07, 0.07, 0.98, 0.95, wspace=0.18, hspace=0.28)
    for i, (title, lines) in enumerate(PANELS.items()):
        axes: Any = figure.add_subplot(2, 2, i + 1)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        drawn = [
            axes.plot(
                *columns[name],
                label=label,
                linewidth=1.2,
                marker=_marker(columns[name][0]),
            )
            for name, label in lines
            if name in columns
        ]
        if len(drawn) > 1:
            axes.legend(fontsize=8)
        if i >= 2:
            axes.set_xlabel("step", fontsize=9)
    partial = picture.with_name("curves.png.part")
    with partial.open("wb") as file:
        canvas.print_png(file)  # type: ignore[no-untyped-call]
    replace_file(partial, picture)


def _marker(steps: list[float]) -> str:
    return "o" if len(steps) < 3 else ""
