"""Arguments of one verb alone, and those that are looked at before everything is parsed."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from imnet_pl.core.errors import UsageError, UserError

if TYPE_CHECKING:  # the tools need no Lightning
    from lightning.pytorch.cli import LightningArgumentParser


def add_predict_arguments(parser: "LightningArgumentParser") -> None:
    """Add what says which pictures are predicted, and where the table goes."""
    parser.add_argument(
        "--input",
        type=str,
        help="Overrides data.predict_input: a folder, a picture, a list file, or the split train, val or test.",
    )
    parser.add_argument(
        "--output", type=str, default="predictions.csv", help="The CSV file to write."
    )
    parser.add_argument("--top_k", type=int, default=5, help="Classes in a row.")


def check_predict(predict_input: str | None, ckpt_path: str | None) -> None:
    """Raise unless both are given."""
    if predict_input is None:
        raise UsageError(
            "predict needs --input PATH: a folder, a picture, a list file, or the split train, val or test."
        )
    if ckpt_path is None:
        raise UsageError("predict needs --ckpt_path FILE, the checkpoint of a run.")


def add_evaluation_arguments(parser: "LightningArgumentParser") -> None:
    """Add where the table of the classes goes."""
    parser.add_argument(
        "--per_class",
        type=str | None,
        help="CSV file to write: pictures and right ones of each class, and what the others are taken for.",
    )


def add_fit_arguments(parser: "LightningArgumentParser") -> None:
    """Add what says whether a run goes on or is only tried."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Go on from the newest readable checkpoint of the run; start it where there is none.",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="Try the whole chain on ten pictures a class in a temporary folder, and print a checklist.",
    )
    parser.add_argument(
        "--allow_changed_data",
        type=bool,
        default=False,
        help="Resume although the data set is another one than the checkpoint's.",
    )


def check_has_model(verb: str, ckpt_path: str | None, weights: str | None) -> None:
    """Raise unless there is something to evaluate without a checkpoint on the command line."""
    if ckpt_path is not None:
        raise UsageError(
            f"ckpt_path={ckpt_path!r} stands in a config: {verb} needs it on the command line, as --ckpt_path FILE."
        )
    if weights is None:
        raise UserError(
            f"{verb} needs --ckpt_path FILE, or --model.weights for a model without a checkpoint."
        )


class YamlFile:
    """Context manager: the path of a temporary YAML file with a config."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def __enter__(self) -> str:
        descriptor, self.path = tempfile.mkstemp(suffix=".yaml", prefix="imnet_pl-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yaml.safe_dump(self.config, file, allow_unicode=True)
        return self.path

    def __exit__(self, *exception: object) -> None:
        Path(self.path).unlink()


def value_of(args: list[str], flag: str) -> str | None:
    """Return the value of a flag on the command line, given as ``flag value`` or ``flag=value``."""
    for i, arg in enumerate(args):
        if arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
    return None
