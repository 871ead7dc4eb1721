"""What a checkpoint says about itself: the key ``imnet_pl``, and ``config.yaml`` beside it."""

import logging
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.core.version import VERSION
from imnet_pl.training.loggers import RunTensorBoardLogger
from imnet_pl.training.runs import describe_neighbour, read_checkpoint

log = logging.getLogger(__name__)

CONTRACT_KEY = "imnet_pl"
SPLIT_NAME = "split.csv"
# Raised when checkpoints change so that an earlier version of the program would misread them.
CONTRACT_FORMAT = 1


class RunRecord(SaveConfigCallback):
    """Writes ``config.yaml`` to the run folder, and into every checkpoint what rebuilds and explains it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the resolved config, in training with a logger."""
        if stage == "fit" and trainer.loggers:
            super().setup(trainer, pl_module, stage)
            folder = trainer.log_dir  # all ranks ask for it together
            if folder is not None and trainer.is_global_zero:
                trainer.datamodule.catalog.write_made_split(Path(folder) / SPLIT_NAME)  # type: ignore[attr-defined]
            for logger in trainer.loggers:
                if isinstance(logger, RunTensorBoardLogger):
                    logger.log_text("config", self.parser.dump(self.config))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the key ``imnet_pl``: plain types only, so that the safe loader reads it."""
        checkpoint[CONTRACT_KEY] = {
            "version": VERSION,
            "format": CONTRACT_FORMAT,
            "config": self.parser.dump(self.config, skip_none=False),
            **pl_module.describe(),  # type: ignore[operator]
            **trainer.datamodule.describe(),  # type: ignore[attr-defined]
        }


def read_contract(path: str) -> dict[str, Any]:
    """Return what a checkpoint says about itself, and ``progress``: epochs and steps that are done.

    Raises:
        UserError: The file is absent, damaged, not a checkpoint of this program, or of a later version of it.
    """
    try:
        content = read_checkpoint(Path(path))
    except UserError as error:
        neighbour = describe_neighbour(Path(path))
        raise UserError(f"{str(error).removesuffix('.')}{neighbour}.") from error
    contract = content.get(CONTRACT_KEY)
    if not isinstance(contract, dict):
        raise UserError(
            f"--ckpt_path={path!r} was not written by this program; load foreign weights with "
            "--model.weights FILE."
        )
    if contract.get("format", CONTRACT_FORMAT) > CONTRACT_FORMAT:
        raise UserError(
            f"--ckpt_path={path!r} was written by a newer version {contract['version']} of this program (format "
            f"{contract['format']}, this one reads up to {CONTRACT_FORMAT}); update it."
        )
    return {**contract, "progress": describe_progress(content)}


def describe_progress(content: dict[str, Any]) -> dict[str, Any]:
    """Return how far a checkpoint's run is: whole epochs, batches of the next, steps, early stopping's count."""
    loop = content["loops"]["fit_loop"]
    stopping = [
        state
        for key, state in content.get("callbacks", {}).items()
        if "EarlyStopping" in key
    ]
    return {
        "epochs": int(loop["epoch_progress"]["current"]["processed"]),
        "batches": int(loop["epoch_loop.batch_progress"]["current"]["processed"]),
        "steps": int(content["global_step"]),
        "wait_count": int(stopping[0]["wait_count"]) if stopping else 0,
    }


def config_of_run(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the config with which a checkpoint's run goes on: all of it but objects such as callbacks.

    Those come from ``--config`` again: a checkpoint names no class that is then made.
    """
    config: dict[str, Any] = yaml.safe_load(contract["config"])
    config.pop("ckpt_path", None)
    trainer = config.get("trainer") or {}
    objects = [name for name, value in trainer.items() if _names_class(value)]
    for name in objects:
        del trainer[name]
    if objects:
        log.warning(
            "trainer.%s of the run is not taken from the checkpoint; give its --config again.",
            some_of(objects),
        )
    return config


def _names_class(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(isinstance(item, dict) for item in values)


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


def check_same_arch(contract: dict[str, Any], path: str | None, arch: str) -> None:
    """Raise unless a checkpoint is of this arch.

    Raises:
        UserError: The checkpoint is of another arch.
    """
    if contract["arch"] != arch:
        raise UserError(
            f"--ckpt_path={path!r} is of model.arch={contract['arch']!r}, but model.arch={arch!r} was asked for."
        )


def check_same_model(
    contract: dict[str, Any], path: str, arch: str, classes: tuple[str, ...]
) -> None:
    """Raise unless a checkpoint is of this arch and these classes.

    Raises:
        UserError: The checkpoint is of another arch, or its classes differ.
    """
    check_same_arch(contract, path, arch)
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


def describe_done(
    progress: dict[str, int],
    max_epochs: int | None,
    max_steps: int,
    patience: int | None,
) -> str | None:
    """Return why a resumed run would train nothing; None where it goes on.

    Args:
        progress: From ``read_contract``.
        max_epochs: Epochs of the whole run; None: no bound.
        max_steps: Optimiser steps of the whole run; -1: no bound.
        patience: Validations without gain after which a run stops; None: never.
    """
    epochs, steps, waited = (progress[k] for k in ("epochs", "steps", "wait_count"))
    if max_epochs is not None and 0 < max_epochs <= epochs:
        return f"{epochs} of {max_epochs} epochs are done; a larger --trainer.max_epochs goes on"
    if 0 < max_steps <= steps:
        return f"{steps} of {max_steps} steps are done; a larger --trainer.max_steps goes on"
    if patience is not None and waited >= patience:
        return (
            f"the run stopped early after {epochs} epochs, {waited} without gain; "
            "a larger --early_stopping.patience goes on"
        )
    return None


def say_how_it_goes_on(
    contract: dict[str, Any], path: str | None, max_epochs: int | None
) -> None:
    """Say where a run goes on, and that another end stretches its schedule."""
    progress = contract["progress"]
    log.info(
        "going on from %s: %d epochs and %d batches are done.",
        *(path, progress["epochs"], progress["batches"]),
    )
    earlier = (yaml.safe_load(contract["config"]).get("trainer") or {}).get(
        "max_epochs"
    )
    if earlier != max_epochs:
        log.info(
            "trainer.max_epochs is %s, it was %s: the learning-rate schedule is stretched to the new end.",
            *(max_epochs, earlier),
        )
