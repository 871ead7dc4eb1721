"""Is every byte of a shard set as it was written?"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imnet_pl.core.errors import UserError
from imnet_pl.core.files import file_crc
from imnet_pl.data import shards
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.process_pool import Job, map_rows


class VerifyStep(NamedTuple):
    """How far the check is.

    Args:
        done: Shards that were read.
        num_shards: Shards there are.
        damage: What was found since the last step: a file or a picture, and what is wrong with it.
    """

    done: int
    num_shards: int
    damage: list[str]


class _Shard(NamedTuple):
    split: str
    number: int
    name: str
    crc: int


def find_damage(root: Path, num_processes: int | None = None) -> Iterator[VerifyStep]:
    """Read all shards and the index again, on all cores, and compare their checksums; yields how far it is.

    Args:
        root: The shard set.
        num_processes: Default: one for each core that this process may use. 0: none but this.

    Raises:
        UserError: It is no shard set.
    """
    if not shards.is_shard_set(root):
        shards.require_finished(root)
        raise UserError(f"{str(root)!r} is no packed data: it has no {shards.FACTS}.")
    splits = shards.read_facts(root)["splits"]
    listed = [
        _Shard(split, number, shard["name"], shard["crc"])
        for split, facts in splits.items()
        for number, shard in enumerate(facts["shards"])
    ]
    damage = [
        text
        for split, facts in splits.items()
        for text in _of_index(root, split, facts)
    ]
    yield VerifyStep(0, len(listed), damage)
    is_whole = not damage  # else where the pictures lie is not known
    job = Job(_check_shard, (root, listed, is_whole), ["a process that read ended"])
    done = 0
    for rows, found in map_rows(job, range(len(listed)), num_processes, chunk=1):
        done += len(rows)
        yield VerifyStep(done, len(listed), [text for texts in found for text in texts])


def _of_index(root: Path, split: str, facts: dict[str, Any]) -> Iterator[str]:
    folder = shards.index_folder(root, split)
    for name, crc in facts["index"].items():
        file = folder / name
        if not file.is_file():
            yield f"{file.relative_to(root).as_posix()} is missing"
        elif file_crc(file) != crc:
            yield f"{file.relative_to(root).as_posix()} has other bytes than were written"


def _check_shard(shared: tuple[Path, list[_Shard], bool], row: int) -> list[str]:
    """Return what is wrong with a shard: the pictures, or the file as a whole."""
    root, listed, is_index_whole = shared
    shard = listed[row]
    file = root / shard.name
    try:
        if file_crc(file) == shard.crc:
            return []
    except OSError as error:
        return [f"{shard.name} can not be read ({error.strerror or error})"]
    bad = []
    if is_index_whole:
        index = shards.open_index(root, shard.split)
        bad = list(_bad_members(file, index, shard.number))
    return bad or [
        f"{shard.name} has other bytes than were written, outside its pictures"
    ]


def _bad_members(file: Path, index: ImageIndex, number: int) -> Iterator[str]:
    members = index.members
    assert members is not None
    with file.open("rb") as content:
        for row in np.flatnonzero(members.shard == number).tolist():
            content.seek(int(members.offset[row]))
            data = content.read(int(members.length[row]))
            if zlib.crc32(data) != int(members.crc[row]):
                yield f"{file.name}: {index.relative_path(row)}"
