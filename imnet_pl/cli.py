"""The command line: one table of verbs."""

import io
import os
import sys
from collections.abc import Callable

from imnet_pl.core.errors import UsageError, UserError, nearest_hint


def _run_trainer(verb: str, args: list[str]) -> int:
    from imnet_pl.lightning_cli import run

    return run(verb, args)


def _run_split(verb: str, args: list[str]) -> int:
    from imnet_pl.tool_cli import run_tool
    from imnet_pl.tools.split import run_split

    return run_tool(run_split, verb, args)


def _run_check_data(verb: str, args: list[str]) -> int:
    from imnet_pl.tool_cli import run_tool
    from imnet_pl.tools.check_data import run_check_data

    return run_tool(run_check_data, verb, args)


def _run_pack(verb: str, args: list[str]) -> int:
    from imnet_pl.tool_cli import run_tool
    from imnet_pl.tools.pack import run_pack

    return run_tool(run_pack, verb, args)


# verb: (what --help says, what runs it)
VERBS: dict[str, tuple[str, Callable[[str, list[str]], int]]] = {
    "fit": ("train, and validate after every epoch", _run_trainer),
    "validate": ("accuracy of a checkpoint on the validation split", _run_trainer),
    "test": (
        "accuracy of a checkpoint on the test split, or on val where there is none",
        _run_trainer,
    ),
    "predict": ("class and probability of pictures, as CSV", _run_trainer),
    "check-data": (
        "decode every picture, and report what is wrong with the data",
        _run_check_data,
    ),
    "split": ("divide a set into train and val, as CSV", _run_split),
    "pack": ("shrink pictures once, into a few tar files that load fast", _run_pack),
}


def describe_usage() -> str:
    """Return the text of ``--help``."""
    width = max(map(len, VERBS))
    rows = "\n".join(f"  {verb:{width}}  {text}" for verb, (text, _) in VERBS.items())
    return (
        "usage: python cli.py VERB [--config FILE.yaml] [--group.name VALUE ...]\n\n"
        f"{rows}\n\n"
        "'python cli.py VERB --help' lists the arguments of a verb.\n"
        "exit status: 0 fine, 1 a problem was found or a run failed, 2 bad usage"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit status; an error for users is one sentence on stderr."""
    args = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the console's code page, or a file's on Windows, lacks must not end a run.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not args or args[0] in ("-h", "--help", "help"):
        print(describe_usage())
        return 0 if args else 2
    verb = args[0]
    try:
        if verb not in VERBS:
            hint = nearest_hint(verb, VERBS)
            raise UsageError(f"{verb!r} is no verb.{hint}\n\n{describe_usage()}")
        return VERBS[verb][1](verb, args[1:])
    except UserError as error:
        if os.environ.get("IMNET_PL_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("stopped by Ctrl-C.", file=sys.stderr)
        return 130
