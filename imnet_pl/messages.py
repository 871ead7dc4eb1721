"""What the command line says: which log lines are shown, and a parser's error as one sentence."""

import logging
import re
import warnings

from imnet_pl.core.errors import nearest_hint
from imnet_pl.core.ranks import is_first_rank

_NOISE = ("Tip:", "TPU", "Loading `train_dataloader`", "from the checkpoint")


def configure_logging() -> None:
    """Send this program's notices and Lightning's to stderr, from rank 0 alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(_is_of_use)
    first_rank = is_first_rank()
    for name in ("imnet_pl", "lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.handlers = [] if "." in name else [handler]
        logger.propagate = True
        logger.setLevel(logging.INFO if first_rank else logging.ERROR)
    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    # An evaluation needs none of the callbacks of the training run.
    warnings.filterwarnings(
        "ignore", message=".*callbacks used to create the checkpoint.*"
    )
    # A run that goes on writes where it wrote, and its loader starts where it was.
    warnings.filterwarnings("ignore", message=".*exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
    # Of damage that it can cope with.
    warnings.filterwarnings("ignore", module="PIL")
    # A rank without pictures counts none.
    warnings.filterwarnings("ignore", message=".*was called before the ``update``.*")
    # From torch about a line of Lightning's.
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")


def _is_of_use(record: logging.LogRecord) -> bool:
    """Tell whether a line of Lightning's is about this run."""
    return not any(text in record.getMessage() for text in _NOISE)


def explain_parse_error(message: str, known: set[str]) -> str:
    """Return jsonargparse's message as one sentence with the argument's name and the nearest right one."""
    if unknown := re.search(
        r"(?:Group '([^']+)' )?does not accept option '([^']+)'|unrecognized arguments: --([^\s=]+)",
        message,
    ):
        name = ".".join(filter(None, unknown.groups()))
        return f"{name!r} is no argument.{nearest_hint(name, known)}"
    if bad := re.match(r'Parser key "([^"]+)":\s*(.*)', message, re.DOTALL):
        name, reason = bad.groups()
        if causes := re.findall(r"^    - (.+)$", reason, re.MULTILINE):
            reason = causes[0]
        return f"{name}: {' '.join(reason.split())}."
    if message.startswith("Unexpected config"):
        return f"a --config file must be a mapping of arguments, such as model: {{arch: resnet18}}. {' '.join(message.split())}"
    return " ".join(message.split())
