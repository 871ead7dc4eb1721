"""Pictures out of tar files, or of any source, as files in class folders."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.packing import PackStep, find_renamed, natural_name, read_source

_CHUNK = 256
_THREADS = 8


def unpack_set(indices: Mapping[str, ImageIndex], target: Path) -> Iterator[PackStep]:
    """Write ``target/<split>/<class>/<name>`` for each picture, and yield how far it is.

    A file that is there with the right size is not written again.

    Args:
        indices: The pictures by split.
        target: Where the class folders go.

    Raises:
        UserError: A picture can not be read or written, or the disk takes two names for one.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        form = str.casefold if _ignores_case(target) else str
        for split, index in indices.items():
            renamed = find_renamed(index, split, form)
            if renamed and form is not str:
                raise UserError(
                    f"--unpack={str(target)!r}: {len(renamed)} names of {split} differ from others in case alone, which "
                    f"this disk takes for the same ({some_of(map(str, renamed.values()), 3)}); unpack on another disk, "
                    "or pack the data instead."
                )
            yield from _unpack_split(index, split, target, renamed)
    except OSError as error:
        raise UserError(
            f"--unpack={str(target)!r} can not be written ({error}). Cure it, and run the same command again, which "
            "goes on where it stopped."
        ) from error


def _unpack_split(
    index: ImageIndex, split: str, target: Path, renamed: dict[int, str]
) -> Iterator[PackStep]:
    num_bytes = 0
    yield PackStep(split, 0, 0)
    write = partial(_unpack_picture, index, split, target, renamed)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="unpack") as pool:
        for start in range(0, len(index), _CHUNK):
            rows = range(start, min(start + _CHUNK, len(index)))
            num_bytes += sum(pool.map(write, rows))
            yield PackStep(split, rows.stop, num_bytes)


def _unpack_picture(
    index: ImageIndex, split: str, target: Path, renamed: dict[int, str], row: int
) -> int:
    """Write a file and return its size."""
    data = read_source(index, row)
    file = target / (renamed.get(row) or natural_name(index, split, row))
    if not (file.is_file() and file.stat().st_size == len(data)):
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(
            f"{row}.part"
        )  # short: a name may be as long as can be
        unfinished.write_bytes(data)
        unfinished.replace(file)
    return len(data)


def _ignores_case(folder: Path) -> bool:
    """Tell whether a disk takes ``a`` and ``A`` for the same file."""
    probe = folder / ".case-probe"
    probe.touch()
    try:
        return (folder / ".CASE-PROBE").exists()
    finally:
        probe.unlink()
