"""Verbs that need no Trainer: their arguments are those of a function in tools/, and ``data.*``."""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from imnet_pl.core.errors import UsageError
from imnet_pl.data.catalog import Catalog
from imnet_pl.messages import configure_logging, explain_parse_error


class ToolParser(ArgumentParser):
    """A parser with one sentence for an error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what the command line prints."""
        names = set(self.get_defaults().keys())
        raise UsageError(explain_parse_error(message, names)) from ex


def run_tool(run: Callable[..., int], verb: str, args: list[str]) -> int:
    """Parse the arguments of a verb, run it, and return the exit status.

    Args:
        run: The verb; what its parameter ``data`` needs is given as ``--data.name``, the rest as ``--name``.
        verb: Its name, for ``--help``.
        args: The command line after the verb.

    Raises:
        UserError: The arguments or the data are not usable.
    """
    configure_logging()
    parser = ToolParser(
        prog=f"python cli.py {verb}",
        description=(inspect.getdoc(run) or "").split("\n")[0],
    )
    parser.add_argument("--config", action="config", help="A YAML file with arguments.")
    parser.add_class_arguments(Catalog, "data")
    parser.add_function_arguments(run, as_group=False, skip={"data"})
    try:
        given: Any = parser.instantiate_classes(parser.parse_args(args))
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    return run(**{k: v for k, v in given.as_dict().items() if k != "config"})
