"""predictions.csv: the classes and probabilities that a model gives to pictures, one row a picture."""

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import ESCAPED
from imnet_pl.core.imagenet import human_name
from imnet_pl.core.status import UNREADABLE

SPLIT = "predict"
T = TypeVar("T")


class PredictedData(Protocol):
    """What the rows need of the data module."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        ...

    def relative_paths(self, indices: Sequence[int], split: str) -> list[str]:
        """Return the paths of pictures by their position in a split's index."""
        ...

    def labels(self, indices: Sequence[int], split: str) -> list[int]:
        """Return their labels, -1 for none."""
        ...


class PredictedBatch(Protocol):
    """What the rows need of a batch: int64 indices [N], uint8 status [N]."""

    indices: Tensor
    status: Tensor


class Predictions(NamedTuple):
    """The best k classes of some pictures.

    Args:
        indices: int64 [N], position in the index of the data.
        status: uint8 [N]: 0 fine, 1 unreadable.
        classes: int64 [N, k], the most probable first.
        probs: float32 [N, k].
    """

    indices: NDArray[np.int64]
    status: NDArray[np.uint8]
    classes: NDArray[np.int64]
    probs: NDArray[np.float32]


class PredictionWriter(Callback):
    """Writes a CSV file with a row for every predicted picture, in the order of the data, from rank 0.

    Args:
        output: The file; one that exists is replaced when the prediction is complete.
        top_k: Classes in a row, fewer where the model has fewer.

    Raises:
        UserError: The file can not be written, or ``top_k`` is not positive.
    """

    def __init__(self, output: str = "predictions.csv", top_k: int = 5) -> None:
        if top_k < 1:
            raise UserError(f"--top_k={top_k} must be at least 1.")
        self.output, self.top_k = Path(output).expanduser(), top_k
        _check_writable(self.output)
        self._batches: list[Predictions] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the best classes of a batch."""
        self._batches.append(best_classes(outputs, batch, self.top_k))

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Write the file. Not at the end of the loop, which a rank without pictures does not run."""
        if stage != "predict":
            return
        gathered = gather_on_first(self._batches)
        self._batches = []
        if not trainer.is_global_zero:
            return
        data: PredictedData = trainer.datamodule  # type: ignore[attr-defined]
        top_k = min(self.top_k, len(data.classes))
        write_csv(self.output, [header(top_k), *rows(gathered, data, top_k)])
        num_unreadable = sum(int((b.status == UNREADABLE).sum()) for b in gathered)
        num_pictures = sum(len(batch.indices) for batch in gathered)
        # Not through Lightning's print, which is silent once its bar is closed.
        sys.stdout.write(
            f"{num_pictures} pictures, {num_unreadable} unreadable: {self.output}\n"
        )


def best_classes(probs: Tensor, batch: PredictedBatch, top_k: int) -> Predictions:
    """Return the best classes by probabilities float32 [N, num_classes]; a tie goes to the lower label."""
    ordered = probs.sort(dim=1, descending=True, stable=True)
    tensors = (
        batch.indices,
        batch.status,
        ordered.indices[:, :top_k],
        ordered.values[:, :top_k],
    )
    return Predictions(*(tensor.cpu().numpy() for tensor in tensors))


def gather_on_first(mine: list[T]) -> list[T]:
    """Return what the lists of all ranks hold, on rank 0; nothing on the others."""
    if not (dist.is_available() and dist.is_initialized()):
        return mine
    is_first = dist.get_rank() == 0
    gathered: list[Any] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(mine, gathered)
    return [item for items in gathered or [] for item in items]


def header(top_k: int) -> list[str]:
    """Return the names of the columns."""
    fields = ("class", "wnid", "prob")
    tops = [f"top{k}_{field}" for k in range(1, top_k + 1) for field in fields]
    return ["path", "status", "label", *tops]


def rows(
    batches: list[Predictions], data: PredictedData, top_k: int
) -> Iterator[list[str]]:
    """Yield the cells of every picture, in the order of the data."""
    named = name_classes(data.classes)
    pictures = [picture for batch in batches for picture in zip(*batch, strict=True)]
    for index, status, labels, probs in sorted(pictures, key=lambda row: int(row[0])):
        (path,) = data.relative_paths([index], SPLIT)
        if status == UNREADABLE:
            yield [path, "unreadable", *[""] * (1 + 3 * top_k)]
            continue
        (label,) = data.labels([index], SPLIT)
        cells = [path, "ok", data.classes[label] if label >= 0 else ""]
        for i, prob in zip(labels, probs, strict=True):
            cells += [*named[i], f"{prob:.6f}"]
        yield cells


def name_classes(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return (human name, wnid) of each class where all are ImageNet's, else (class name, nothing)."""
    names = [human_name(wnid) for wnid in classes]
    return [
        (wnid, "") if None in names else (name or "", wnid)
        for wnid, name in zip(classes, names, strict=True)
    ]


def _check_writable(output: Path) -> None:
    """Raise if the file can not be written, before hours of work are lost.

    Raises:
        UserError: It is a folder, its folder is absent, or the system forbids it.
    """
    if output.is_dir():
        raise UserError(f"--output={str(output)!r} is a folder; give a file.")
    if not output.parent.is_dir():
        raise UserError(
            f"--output={str(output)!r} can not be written: the folder {str(output.parent)!r} does not exist; "
            "make it or give another."
        )
    # On Windows a spreadsheet that shows the file locks it.
    target = output if output.exists() else output.parent
    if not os.access(target, os.W_OK) or not _opens(output):
        raise UserError(
            f"--output={str(output)!r} can not be written: it is read-only or open elsewhere; close it or "
            "give another."
        )


def _opens(output: Path) -> bool:
    """Tell whether a file that exists can be opened for writing."""
    try:
        if output.exists():
            output.open("ab").close()
    except OSError:
        return False
    return True


def write_csv(output: Path, lines: Iterable[list[str]]) -> None:
    """Write a CSV file in UTF-8 through a temporary neighbour, so that it is complete as soon as it exists.

    Raises:
        UserError: The disk is full, or the file is open elsewhere.
    """
    staging = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    # A name that is no valid Unicode stays readable.
    encoding = {"encoding": "utf-8", "errors": ESCAPED, "newline": ""}
    try:
        with staging.open("w", **encoding) as file:  # type: ignore[call-overload]
            csv.writer(file, lineterminator="\n").writerows(lines)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise UserError(
            f"--output={str(output)!r} can not be written: {error}; give another."
        ) from error
    try:
        staging.replace(output)
    except OSError as error:
        raise UserError(
            f"--output={str(output)!r} can not be replaced: {error}; the predictions are in {str(staging)!r}."
        ) from error
