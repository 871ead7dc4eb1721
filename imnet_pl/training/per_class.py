"""per_class.csv: how many pictures of each class there are, how many are right, and what the others are taken for."""

import csv
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import ESCAPED, replace_file
from imnet_pl.core.imagenet import human_name

log = logging.getLogger(__name__)

NAME = "per_class.csv"
COLUMNS = ("class", "name", "right", "num_samples", "top1", "taken_for")


class PerClassTable(Callback):
    """Writes the table of the last validation to the run folder, or that of ``validate`` and ``test`` to a file.

    Args:
        output: The file; None: in training the run folder's, else none.

    Raises:
        UserError: The file can not be written.
    """

    def __init__(self, output: str | None = None) -> None:
        self.output = None if output is None else Path(output).expanduser()
        if self.output is not None and not self.output.parent.is_dir():
            raise UserError(
                f"--per_class={output!r} can not be written: its folder does not exist; make it or give another."
            )

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the validation's table."""
        if not trainer.sanity_checking:
            self._write(trainer, pl_module.val_classes)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the test's table."""
        self._write(trainer, pl_module.test_classes)

    def _write(self, trainer: Trainer, counts: Any) -> None:
        output = self.output
        if output is None and trainer.state.fn == "fit" and trainer.loggers:
            folder = trainer.log_dir  # all ranks ask for it together
            output = None if folder is None else Path(folder) / NAME
        if output is None:
            return
        right, total, confusions = counts.compute()  # of all ranks, together
        if trainer.is_global_zero:
            classes = trainer.datamodule.classes  # type: ignore[attr-defined]
            columns = (
                right.tolist(),
                total.tolist(),
                describe_confusions(classes, confusions),
            )
            self._save(output, list(rows(classes, *columns)))

    def _save(self, output: Path, lines: list[Sequence[Any]]) -> None:
        """Write the file, whole as soon as it is there.

        Raises:
            UserError: A file that was asked for can not be written; in training that is a warning.
        """
        partial = output.with_name(f"{output.name}.part")
        # A name that is no valid Unicode stays readable.
        encoding = {"encoding": "utf-8", "errors": ESCAPED, "newline": ""}
        try:
            with partial.open("w", **encoding) as file:  # type: ignore[call-overload]
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *lines])
            replace_file(partial, output)
        except OSError as error:
            if self.output is not None:
                raise UserError(
                    f"--per_class={str(output)!r} can not be written ({error}); give another."
                ) from error
            log.warning("%s can not be written (%s).", output, error)


def describe_confusions(classes: Sequence[str], confusions: Tensor) -> list[str]:
    """Return for each class the others that its pictures are taken for, with numbers, the most frequent first."""
    described = [""] * len(classes)
    wrong = confusions.cpu().clone().fill_diagonal_(0)
    pairs = wrong.nonzero()
    counts = wrong[pairs[:, 0], pairs[:, 1]]
    for number in counts.argsort(descending=True, stable=True).tolist():
        label, guess = pairs[number].tolist()
        after = "; " if described[label] else ""
        described[label] += f"{after}{classes[guess]}: {counts[number]}"
    return described


def rows(
    classes: Sequence[str],
    right: Sequence[int],
    total: Sequence[int],
    taken_for: Sequence[str],
) -> Iterator[Sequence[Any]]:
    """Yield the cells of each class; a class without pictures has no top1."""
    columns = zip(classes, right, total, taken_for, strict=True)
    for name, hits, count, others in columns:
        top1 = f"{hits / count:.6f}" if count else ""
        yield name, human_name(name) or "", hits, count, top1, others
