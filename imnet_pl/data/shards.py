"""A shard set on disk: many pictures in a few tar files.

OUT/
  pack.json            what was done, from what, by which version; written last
  train-00000.tar ...  plain tar files: train/<class>/<name>
  index/train/*.npy    columns of an ImageIndex
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.data.index import ImageIndex

FORMAT = 1
FACTS = "pack.json"
UNFINISHED = ".packing"  # folder of what a restart needs
BLOCK = tarfile.BLOCKSIZE
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
_HEADERS_CHECKED = 4  # of each shard


def shard_name(split: str, number: int) -> str:
    """Return the file name of a shard."""
    return f"{split}-{number:05d}.tar"


def member_header(name: str, length: int) -> bytes:
    """Return what stands before a picture in a tar file; the same on every machine and day."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = length, 0o644
    return info.tobuf(tarfile.PAX_FORMAT, _ENCODING, _ERRORS)


def padding(length: int, block: int = BLOCK) -> bytes:
    """Return the zeros that fill a block after so many bytes."""
    return bytes(-length % block)


def end_of_archive(length: int) -> bytes:
    """Return what stands after the last member of a tar file of so many bytes."""
    end = bytes(2 * BLOCK)
    return end + padding(length + len(end), tarfile.RECORDSIZE)


def index_folder(root: Path, split: str) -> Path:
    """Return where the columns of a split lie."""
    return root / "index" / split


def is_shard_set(root: Path) -> bool:
    """Tell whether a folder holds a shard set that is finished."""
    return (root / FACTS).is_file()


def require_finished(root: Path) -> None:
    """Raise if packing into a folder was begun and not finished.

    Raises:
        UserError: It was.
    """
    if (root / UNFINISHED).is_dir() and not is_shard_set(root):
        raise UserError(
            f"data.root={str(root)!r} is packed data that is not finished; run the same pack command again, which "
            "goes on where it stopped."
        )


def read_facts(root: Path) -> dict[str, Any]:
    """Return what ``pack.json`` says.

    Raises:
        UserError: It is damaged, or of a later version.
    """
    file = root / FACTS
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        number, _ = facts["format"], facts["splits"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{str(file)!r} is damaged ({error}); restore it from a copy, or pack the data again."
        ) from None
    if number != FORMAT:
        raise UserError(
            f"{str(file)!r} has format {number}, this version reads {FORMAT}; update imnet_pl, or pack the data "
            "again."
        )
    return facts


def open_split(root: Path, split: str) -> ImageIndex:
    """Return the index of a split, memory-mapped, after a look at its shards.

    Every shard must be there with its size, hold all its pictures, and have tar headers at some of the recorded
    places. ``find_damage`` reads them whole.

    Raises:
        UserError: A shard is missing or another one than was written, or the index is damaged.
    """
    facts = read_facts(root)
    if split not in facts["splits"]:
        raise UserError(
            f"data.root={str(root)!r} is packed data without split {split!r}, it has {some_of(facts['splits'])}; pack "
            "again from data that has it."
        )
    index = open_index(root, split)
    wrong = list(_find_wrong_shards(root, index, facts["splits"][split]))
    if wrong:
        raise UserError(
            f"data.root={str(root)!r}: {len(wrong)} of the shards of {split} are not as they were packed: "
            f"{some_of(wrong, 3)}. Copy them again from where they are whole, or pack the data again."
        )
    return index


def open_index(root: Path, split: str) -> ImageIndex:
    """Return the index of a split, memory-mapped, without a look at its shards.

    Raises:
        UserError: It is damaged.
    """
    folder = index_folder(root, split)
    try:
        return ImageIndex.open(str(folder), str(root))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the index {str(folder)!r} of packed data is damaged ({error}); restore it from a copy, or pack the data "
            "again."
        ) from None


def _find_wrong_shards(
    root: Path, index: ImageIndex, facts: dict[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with shards, as a look tells."""
    members = index.members
    columns = {} if members is None else members.columns()
    lengths = {len(index), len(index.labels), *map(len, columns.values())}
    if members is None or lengths != {facts["num_samples"]}:
        yield "the index is another one"
        return
    by_shard = np.argsort(members.shard, kind="stable")
    ends = np.append(
        0, np.cumsum(np.bincount(members.shard, minlength=len(facts["shards"])))
    )
    for number, fact in enumerate(facts["shards"]):
        file = root / fact["name"]
        if not file.is_file():
            yield f"{fact['name']} is missing"
            continue
        if (size := file.stat().st_size) != fact["size"]:
            yield f"{fact['name']} has {size:,} bytes instead of {fact['size']:,}"
            continue
        rows = by_shard[ends[number] : ends[number + 1]]
        last = (members.offset[rows] + members.length[rows]).max(initial=0)
        if last > size:
            yield f"{fact['name']} ends before its last picture"
        elif not _has_headers(file, index, rows):
            yield f"{fact['name']} holds other data"


def _has_headers(file: Path, index: ImageIndex, rows: NDArray[np.int64]) -> bool:
    """Tell whether a tar file has the headers of some of its pictures where they should be."""
    assert index.members is not None
    if not len(rows):
        return True
    looked_at = np.linspace(0, len(rows) - 1, _HEADERS_CHECKED).astype(int)
    with file.open("rb") as content:
        for row in np.unique(rows[looked_at]).tolist():
            content.seek(int(index.members.offset[row]) - BLOCK)
            try:
                block = content.read(BLOCK)
                info = tarfile.TarInfo.frombuf(block, _ENCODING, _ERRORS)
            except tarfile.HeaderError:
                return False
            if info.size != int(index.members.length[row]):
                return False
    return True
