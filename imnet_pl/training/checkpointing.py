"""best.ckpt and last.ckpt, and what they say about themselves."""

import logging
import pickle
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.core.version import VERSION
from imnet_pl.training.guards import Score

log = logging.getLogger(__name__)

CONTRACT_KEY = "imnet_pl"


def build_checkpoints(
    monitor: Score = "val/top1", mode: Literal["min", "max"] = "max"
) -> list[ModelCheckpoint]:
    """Return the callbacks that write ``checkpoints/best.ckpt`` and, every epoch, ``checkpoints/last.ckpt``.

    Args:
        monitor: Score by which the best epoch is chosen.
        mode: Whether more (``max``) or less (``min``) of the score is better.
    """
    # Two of Lightning's, since save_last of one writes only in epochs that make a new best.
    best = ModelCheckpoint(
        filename="best", monitor=monitor, mode=mode, enable_version_counter=False
    )
    last = ModelCheckpoint(filename="last", enable_version_counter=False)
    return [best, last]


class RunRecord(SaveConfigCallback):
    """Writes ``config.yaml`` to the run folder, and into every checkpoint what rebuilds and explains it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the resolved config, in training with a logger."""
        if stage == "fit" and trainer.loggers:
            super().setup(trainer, pl_module, stage)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the key ``imnet_pl``: plain types only, so that the safe loader reads it."""
        checkpoint[CONTRACT_KEY] = {
            "version": VERSION,
            "config": self.parser.dump(self.config, skip_none=False),
            **pl_module.describe(),  # type: ignore[operator]
            **trainer.datamodule.describe(),  # type: ignore[attr-defined]
        }


def read_contract(path: str) -> dict[str, Any]:
    """Return what a checkpoint says about itself, without reading its weights.

    Raises:
        UserError: The file is absent, damaged, or not a checkpoint of this program.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise UserError(f"--ckpt_path={path!r} {what}; give a checkpoint file.")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (
        RuntimeError,
        pickle.UnpicklingError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        raise UserError(
            f"--ckpt_path={path!r} can not be read as a checkpoint: it is damaged, or another kind of file "
            f"({type(error).__name__})."
        ) from error
    contract = content.get(CONTRACT_KEY) if isinstance(content, dict) else None
    if not isinstance(contract, dict):
        raise UserError(
            f"--ckpt_path={path!r} was not written by this program; load foreign weights with "
            "--model.weights FILE."
        )
    return contract


def config_of_contract(
    contract: dict[str, Any], known: dict[str, set[str]]
) -> dict[str, Any]:
    """Return the config with which a checkpoint is evaluated: its model, its data, its precision.

    Args:
        contract: From ``read_contract``.
        known: Arguments that ``model`` and ``data`` have today; others are dropped with a notice.
    """
    config = yaml.safe_load(contract["config"])
    kept: dict[str, Any] = {}
    for group, names in known.items():
        given = config.get(group) or {}
        kept[group] = {name: value for name, value in given.items() if name in names}
        if dropped := sorted(set(given) - names):
            log.warning(
                "the checkpoint's %s arguments are no longer known: %s.",
                group,
                some_of(dropped),
            )
    kept["model"]["weights"] = None  # the checkpoint brings its own
    kept["data"]["classes"] = contract["classes"]
    if precision := (config.get("trainer") or {}).get("precision"):
        kept["trainer"] = {"precision": precision}
    return kept


def check_same_model(
    contract: dict[str, Any], path: str, arch: str, classes: tuple[str, ...]
) -> None:
    """Raise unless a checkpoint is of this arch and these classes.

    Raises:
        UserError: The checkpoint is of another arch, or its classes differ.
    """
    if contract["arch"] != arch:
        raise UserError(
            f"--ckpt_path={path!r} is of model.arch={contract['arch']!r}, but model.arch={arch!r} was asked for."
        )
    there, here = contract["classes"], list(classes)
    if len(there) != len(here):
        raise UserError(
            f"--ckpt_path={path!r} has {len(there)} classes ({some_of(there, 3)}), the data has {len(here)} "
            f"({some_of(here, 3)}); to train on other classes give --model.weights instead."
        )
    if differ := [
        f"{a!r} is {b!r} here" for a, b in zip(there, here, strict=True) if a != b
    ]:
        raise UserError(
            f"--ckpt_path={path!r} has other classes than the data: {some_of(differ, 3)}; to train on other "
            "classes give --model.weights instead."
        )
