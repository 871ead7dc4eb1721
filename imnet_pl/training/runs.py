"""Run folders, ``<root>/<name>/version_N``, and the checkpoints in them: which is meant, and is it whole?"""

import logging
import pickle
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.core.files import is_url
from imnet_pl.training.checkpoint_io import verify_archive

log = logging.getLogger(__name__)

DEFAULT_ROOT = "runs"
DEFAULT_NAME = "run"
CHECKPOINTS = "checkpoints"
_LISTED = 5


def read_checkpoint(path: Path, argument: str = "--ckpt_path") -> dict[str, Any]:
    """Return a checkpoint without reading its tensors; all its bytes are checked first.

    Args:
        path: The file.
        argument: Name of the argument that gave it, for messages.

    Raises:
        UserError: The file is absent or damaged, or holds more than plain types and tensors.
    """
    given = f"{argument}={str(path)!r}"
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{given} {what}; give a checkpoint file.")
    try:
        verify_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{given} holds objects other than tensors and plain values, which could run code; it is not loaded."
        ) from error
    except Exception as error:  # a damaged file makes torch raise nearly anything
        raise UserError(
            f"{given} can not be read as a checkpoint: it is damaged, or another kind of file "
            f"({type(error).__name__}: {' '.join(str(error).split())[:100]})."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{given} is no checkpoint: it holds a {type(content)}.")
    return content


def run_dir_of(checkpoint: Path) -> Path | None:
    """Return the run folder that a checkpoint lies in; None where it lies elsewhere."""
    folder = checkpoint.absolute().parent
    is_run = folder.name == CHECKPOINTS and (folder.parent / "config.yaml").is_file()
    return folder.parent if is_run else None


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    times = {}
    for file in (run_dir / CHECKPOINTS).glob("*.ckpt"):
        with suppress(FileNotFoundError):  # removed by another rank meanwhile
            times[file] = file.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__, reverse=True)


def list_runs(root: Path, name: str | None) -> list[Path]:
    """Return the run folders that hold checkpoints, the one written last first.

    Args:
        root: Folder of all runs.
        name: Name of the run; None: any.
    """
    folders = root.glob(f"{name or '*'}/version_*") if root.is_dir() else []
    newest = {
        run: found[0].stat().st_mtime_ns
        for run in folders
        if (found := list_checkpoints(run))
    }
    return sorted(newest, key=newest.__getitem__, reverse=True)


def find_checkpoint(which: str, root: Path, name: str | None) -> Path:
    """Return the file that ``--ckpt_path`` means: a path, or ``best`` or ``last`` of the newest run.

    Raises:
        UserError: There is none, and the newest runs' checkpoints are listed; or it is a URL.
    """
    if is_url(which):
        raise UserError(
            f"--ckpt_path={which!r} is a URL; download the file first and give its path."
        )
    if which in ("best", "last") and not Path(which).is_file():
        for run in list_runs(root, name)[:1]:
            file = run / CHECKPOINTS / f"{which}.ckpt"
            if file.is_file():
                return file
    elif Path(which).exists():
        return Path(which)
    raise UserError(
        f"--ckpt_path={which!r} does not exist{describe_newest(list_runs(root, name), root)}."
    )


def describe_newest(run_dirs: Iterable[Path], root: Path) -> str:
    """Return the newest checkpoints in words, for an error."""
    files = [str(file) for run in run_dirs for file in list_checkpoints(run)]
    if not files:
        return f"; there is no checkpoint in {str(root)!r} either"
    return f"; the newest checkpoints are {some_of(files, _LISTED)}"


def describe_neighbour(checkpoint: Path) -> str:
    """Return in words the readable checkpoint of the same run that was written next before, else after.

    Args:
        checkpoint: A file that can not be read.
    """
    run_dir = run_dir_of(checkpoint)
    files = [] if run_dir is None else list_checkpoints(run_dir)
    own = [file for file in files if file.name == checkpoint.name]
    if not own:
        return ""
    written = own[0].stat().st_mtime_ns
    files.remove(own[0])
    older = [file for file in files if file.stat().st_mtime_ns <= written]
    newer = [file for file in reversed(files) if file not in older]
    for word, candidates in (("older", older), ("newer", newer)):
        for file in candidates:
            if _is_readable(file):
                path = checkpoint.with_name(file.name)
                return f"; the next {word} readable one is {str(path)!r}"
    return ""


def _is_readable(checkpoint: Path) -> bool:
    try:
        read_checkpoint(checkpoint)
    except UserError:
        return False
    return True


def newest_readable(run_dir: Path) -> Path | None:
    """Return the checkpoint of a run that stands furthest and is whole; each damaged one is named.

    ``best.ckpt`` is asked last, since it is the oldest as a rule.
    """
    steps: dict[Path, tuple[int, int]] = {}
    for file in list_checkpoints(run_dir):
        try:
            content = read_checkpoint(file)
        except UserError as error:
            log.warning("skipped: %s", error)
            continue
        steps[file] = int(content.get("global_step", -1)), file.stat().st_mtime_ns
    return max(steps, key=steps.__getitem__) if steps else None


def newest_of_run(root: Path, name: str | None) -> Path | None:
    """Return the checkpoint from which the newest run goes on; None, said, where there is none yet.

    Raises:
        UserError: There are checkpoints, and none can be read.
    """
    for run_dir in list_runs(root, name)[:1]:
        if (found := newest_readable(run_dir)) is None:
            raise UserError(
                f"--resume: no checkpoint in {str(run_dir)!r} can be read; move that folder away to start anew."
            )
        return found
    log.info("--resume: no checkpoint in %s yet, the run starts.", root / (name or "*"))
    return None
