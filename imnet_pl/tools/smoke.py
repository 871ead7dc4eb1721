"""fit --smoke: the whole chain on a few pictures a class, before the long run."""

import copy
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from imnet_pl.core.errors import UserError, some_of

log = logging.getLogger(__name__)

NUM_PER_CLASS = 10
_ONE_BATCH, _ONE_BATCH_STEPS = 16, 20
_THUMBNAIL = 16


class Session(Protocol):
    """What the command line builds for a verb: model, data and trainer, ready to run."""

    model: Any
    datamodule: Any
    trainer: Any


Build = Callable[[str, list[str]], Session]
Outcome = tuple[bool, str]


def run_smoke(build: Build, args: list[str]) -> int:
    """Print a checklist and return the exit status: 1 if a line fails.

    Args:
        build: Builds what a verb and its arguments ask for.
        args: Arguments of ``fit``.
    """
    good = True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lines = _Chain(build, [*args, *_overrides(folder)]).lines()
        while True:
            start = time.perf_counter()
            try:
                name, (is_fine, text) = next(lines)
            except StopIteration:
                break
            except UserError as error:
                name, is_fine, text = "run", False, str(error)
            seconds = time.perf_counter() - start
            mark = "ok  " if is_fine else "FAIL"
            sys.stdout.write(f"{mark}  {name}: {text} ({seconds:.1f} s)\n")
            good &= is_fine
    sys.stdout.write("smoke run: fine\n" if good else "smoke run: failed, see above\n")
    return 0 if good else 1


def _overrides(folder: str) -> list[str]:
    """Return the flags that make a run small, alone, and its folder a temporary one."""
    return [
        f"--data.num_per_class={NUM_PER_CLASS}",
        "--trainer.max_epochs=1",
        "--trainer.max_steps=-1",
        "--trainer.devices=1",
        "--trainer.num_nodes=1",
        "--trainer.strategy=auto",
        "--trainer.logger=null",
        "--trainer.enable_progress_bar=false",
        f"--trainer.default_root_dir={folder}",
        "--name=smoke",
        "--model.warmup_epochs=0.5",
        "--early_stopping.patience=null",
    ]


class _Chain:
    """The checks in order, each with what the ones before it made."""

    def __init__(self, build: Build, args: list[str]) -> None:
        self.build, self.args = build, args

    def lines(self) -> Iterator[tuple[str, Outcome]]:
        """Yield (name, (is it fine, what was seen)) of each check; a UserError ends the chain.

        Raises:
            UserError: A step can not be done at all; it names its line.
        """
        checks: dict[str, Callable[[], Outcome]] = {
            "data found": self.find_data,
            "batch decoded": self.decode,
            "labels in range": self.check_labels,
            "class order": self.check_order,
            "first loss": self.check_first_loss,
            "loss falls on one batch": self.check_learning,
            "checkpoint saved": self.train,
            "resumed": self.resume,
            "validated": self.validate,
        }
        for name, check in checks.items():
            try:
                outcome = check()
            except UserError as error:
                yield name, (False, str(error))
                return
            yield name, outcome

    def find_data(self) -> Outcome:
        """Index the pictures."""
        self.session = self.build("fit", self.args)
        data = self.session.datamodule
        data.prepare_data()
        data.setup("fit")
        sizes = [f"{len(index)} of {s}" for s, index in data.indices.items()]
        return True, f"{' and '.join(sizes)}, {len(data.classes)} classes"

    def decode(self) -> Outcome:
        """Decode every picture once as for validation, and a training batch."""
        data = self.session.datamodule
        self.batch = next(iter(data.train_dataloader()))
        self.pictures = {
            s: _thumbnails(data.eval_dataloader(s)) for s in ("train", "val")
        }
        bad = sum(int(n) for _, _, n in self.pictures.values())
        shape = " x ".join(map(str, self.batch.images.shape))
        if bad:
            noted = data.bad_pictures.items()
            paths = [p for s, some in noted for p in data.relative_paths([*some], s)]
            return False, f"{bad} pictures can not be read: {some_of(paths)}"
        return True, f"uint8 {shape}"

    def check_labels(self) -> Outcome:
        """Compare the labels with the number of classes."""
        num_classes = self.session.model.num_classes
        for split, (_, labels, _) in self.pictures.items():
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= num_classes:
                return (
                    False,
                    f"{split} has labels {low} to {high}, of {num_classes} classes",
                )
        return True, f"0 to {num_classes - 1}"

    def check_order(self) -> Outcome:
        """Compare the val labels with what the nearest training pictures say."""
        (train, train_labels, _), (val, val_labels, _) = self.pictures.values()
        guesses = nearest_labels(train, train_labels, val)
        return describe_order(guesses, val_labels, self.session.model.num_classes)

    def check_first_loss(self) -> Outcome:
        """Compare the loss of the untrained network with that of a guess."""
        model = copy.deepcopy(self.session.model)
        images, targets = self._some()
        with torch.no_grad():
            loss = float(functional.cross_entropy(model.train()(images), targets))
        chance = math.log(model.num_classes)
        text = f"{loss:.3f}, ln(classes) is {chance:.3f}"
        return math.isfinite(loss) and loss < 2 * chance + 1, text

    def check_learning(self) -> Outcome:
        """Train a copy on some pictures, which any sound network soon knows by heart."""
        model = copy.deepcopy(self.session.model).train()
        images, targets = self._some()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses, logits = [], torch.zeros(0)
        for _ in range(_ONE_BATCH_STEPS):
            logits = model(images)
            loss = functional.cross_entropy(logits, targets)
            losses.append(float(loss.detach()))
            if loss.requires_grad:
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        text = f"{losses[0]:.3f} -> {losses[-1]:.3f} in {_ONE_BATCH_STEPS} steps"
        if torch.equal(logits, logits[:1].expand_as(logits)):
            return False, f"{text}; the network's output is the same for all pictures"
        return losses[-1] < 0.8 * losses[0], text

    def _some(self) -> tuple[Tensor, Tensor]:
        return self.batch.images[:_ONE_BATCH], self.batch.targets[:_ONE_BATCH]

    def train(self) -> Outcome:
        """Train one epoch and look for the checkpoint."""
        session = self.session
        session.trainer.fit(session.model, datamodule=session.datamodule)
        self.steps = session.trainer.global_step
        self.last = _last_checkpoint(session.trainer)
        self.logged = dict(session.trainer.callback_metrics)
        return True, f"after {self.steps} steps"

    def resume(self) -> Outcome:
        """Train one more epoch from the checkpoint."""
        again = [f"--ckpt_path={self.last}", "--trainer.max_epochs=2"]
        session = self.build("fit", [*self.args, *again])
        path = self.last
        session.trainer.fit(
            session.model, datamodule=session.datamodule, ckpt_path=path
        )
        self.logged = dict(session.trainer.callback_metrics)
        steps = session.trainer.global_step
        return steps == 2 * self.steps, f"{self.steps} -> {steps} steps"

    def validate(self) -> Outcome:
        """Validate the last checkpoint alone, and compare with what training logged."""
        session = self.build("validate", [f"--ckpt_path={self.last}"])
        session.trainer.validate(
            session.model,
            datamodule=session.datamodule,
            ckpt_path=self.last,
            verbose=False,
        )
        loss, logged = (
            float(metrics["val/loss"])
            for metrics in (session.trainer.callback_metrics, self.logged)
        )
        is_same = math.isclose(loss, logged, rel_tol=1e-3)
        return is_same, f"val loss {loss:.6f}, {logged:.6f} was logged"


def _last_checkpoint(trainer: Any) -> str:
    for callback in trainer.checkpoint_callbacks:
        if str(callback.best_model_path).endswith("last.ckpt"):
            return str(callback.best_model_path)
    raise UserError("no last.ckpt was written: trainer.enable_checkpointing is off.")


def _thumbnails(
    loader: Any,
) -> tuple[NDArray[np.float32], NDArray[np.int64], int]:
    """Return (features [N, D] of zero mean and unit length, labels [N], unreadable pictures)."""
    features, labels, bad = [], [], 0
    for batch in loader:
        small = functional.interpolate(
            batch.images, (_THUMBNAIL, _THUMBNAIL), mode="bilinear", antialias=True
        )
        flat = small.flatten(1).float()
        features.append(functional.normalize(flat - flat.mean(1, keepdim=True)).numpy())
        labels.append(batch.targets.numpy())
        bad += int((batch.status != 0).sum())
    return np.concatenate(features), np.concatenate(labels), bad


def nearest_labels(
    train: NDArray[np.float32],
    labels: NDArray[np.int64],
    val: NDArray[np.float32],
    chunk: int = 2048,
) -> NDArray[np.int64]:
    """Return the label of each val picture's most similar training picture, int64 [len(val)]."""
    parts = [
        labels[np.argmax(val[i : i + chunk] @ train.T, axis=1)]
        for i in range(0, len(val), chunk)
    ]
    return np.concatenate(parts)


def describe_order(
    guesses: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int
) -> Outcome:
    """Tell whether val labels fit the pictures better when all are shifted by some number of classes.

    Under a right order the guesses hit the labels as they are; a shift must hit more often by five standard
    deviations of a count (Poisson), which of a thousand shifts by chance none does.

    Args:
        guesses: Labels by similarity to training pictures, int64 [N].
        labels: Labels that were read, int64 [N].
        num_classes: Number of classes.
    """
    shifts = np.bincount((labels - guesses) % num_classes, minlength=num_classes)
    right, best = int(shifts[0]), int(shifts.argmax())
    text = f"{right} of {len(labels)} val pictures look like their class in train"
    if best and shifts[best] - right > 5 * math.sqrt(shifts[best] + right):
        by = best if best <= num_classes // 2 else best - num_classes
        return False, (
            f"{text}, but {shifts[best]} do when labels are shifted by {-by}: the order of classes in the label "
            "file is not that of the training folders; see data.label_format"
        )
    chance = len(labels) / num_classes
    if right <= chance + 2 * math.sqrt(chance):
        text += ", no more than by chance: too few or too varied pictures to tell"
    return True, text
