"""Verbs that need no Trainer: their arguments are those of a function in tools/, and ``data.*``."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml
from jsonargparse import ArgumentParser

from imnet_pl.arguments import YamlFile
from imnet_pl.core.errors import UsageError
from imnet_pl.messages import configure_logging, explain_parse_error

# What a config of fit holds beside data.
OF_A_RUN = {
    *("seed_everything", "name", "trainer", "model", "checkpoint", "early_stopping"),
    *("guard", "ranks", "ckpt_path", "resume", "smoke", "allow_changed_data"),
}


class ToolParser(ArgumentParser):
    """A parser with one sentence for an error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what the command line prints."""
        names = set(self.get_defaults().keys())
        raise UsageError(explain_parse_error(message, names)) from ex


def run_tool(run: Callable[..., int], verb: str, args: list[str]) -> int:
    """Parse the arguments of a verb, run it, and return the exit status.

    Args:
        run: The verb; what the class of its parameter ``data`` takes is given as ``--data.name``, the rest as
            ``--name``.
        verb: Its name, for ``--help``.
        args: The command line after the verb. A config of ``fit`` will do: what only a run needs is left alone.

    Raises:
        UserError: The arguments or the data are not usable.
    """
    configure_logging()
    parser = ToolParser(
        prog=f"python cli.py {verb}",
        description=(inspect.getdoc(run) or "").split("\n")[0],
    )
    parser.add_argument("--config", action="config", help="A YAML file with arguments.")
    parser.add_class_arguments(get_type_hints(run)["data"], "data")
    parser.add_function_arguments(run, as_group=False, skip={"data"})
    known = set(parser.get_defaults().data.keys())
    with ExitStack() as files:
        try:
            args = _without_a_run(args, known, files)
            given: Any = parser.instantiate_classes(parser.parse_args(args))
        except SystemExit as stop:  # --help
            return int(stop.code or 0)
    return run(**{k: v for k, v in given.as_dict().items() if k != "config"})


def _without_a_run(args: list[str], known: set[str], files: ExitStack) -> list[str]:
    """Return the command line with configs that hold only what a verb knows, in temporary files."""
    kept: list[str] = []
    for before, arg in zip(["", *args], args, strict=False):
        if before == "--config":
            kept.append(_reduced(arg, known, files))
        elif arg.startswith("--config="):
            file = arg.removeprefix("--config=")
            kept.append(f"--config={_reduced(file, known, files)}")
        else:
            kept.append(arg)
    return kept


def _reduced(file: str, known: set[str], files: ExitStack) -> str:
    """Return a config file without what is only for a run; the same one where there is nothing of that."""
    try:
        config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return file  # the parser says what is wrong
    if not isinstance(config, dict):
        return file
    reduced = {name: value for name, value in config.items() if name not in OF_A_RUN}
    data = config.get("data", {})
    if not isinstance(data, dict):
        raise UsageError(
            f"data={data!r} must be a mapping of arguments, such as data: {{name: value}}."
        )
    if not data.keys() <= known:
        # Imported here: it takes seconds.
        from imnet_pl.data.datamodule import ImageNetDataModule

        of_a_run = inspect.signature(ImageNetDataModule).parameters.keys() - known
        reduced["data"] = {n: v for n, v in data.items() if n not in of_a_run}
    return file if reduced == config else files.enter_context(YamlFile(reduced))
