"""Packing a whole set: the check of the target, the splits one after the other, and pack.json at the end."""

import errno
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from imnet_pl.core.errors import UserError, some_of
from imnet_pl.core.files import hold_lock, write_file
from imnet_pl.core.version import VERSION
from imnet_pl.data import shards
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.packing import (
    CRASHED,
    Encoding,
    PackJob,
    PackStep,
    find_renamed,
    pack_picture,
    pack_unreadable,
    use_one_thread,
)
from imnet_pl.data.process_pool import Job, map_rows
from imnet_pl.data.sampler import generator_of
from imnet_pl.data.shard_writer import ShardWriter

Val = Literal["pack", "keep"]
Order = Literal["mixed", "source"]

_MIXING = 2  # apart from the numbers that orders of training are drawn from
_LOCK, _PLAN = ".lock", "plan.json"
_SAMPLE = 200  # pictures from which the size is estimated
_SPARE = 1.05
_INDEX_BYTES = 150  # of a picture in the index and in the record of its shard
_DISK_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True)
class PackPlan:
    """What is to be packed, where, and how.

    Args:
        target: Folder of the shard set.
        made_from: The source in plain types, for ``pack.json``.
        encoding: How pictures are encoded anew.
        val: Whether val and test are packed as train is, or keep their original files.
        shard_bytes: A shard is closed when it has so many.
        order: How train lies in the shards: ``mixed``, so that pictures side by side are of many classes, or as in the
            ``source``. Others lie as in the source.
    """

    target: Path
    made_from: Mapping[str, Any]
    encoding: Encoding
    val: Val
    shard_bytes: int
    order: Order = "mixed"

    def encoding_of(self, split: str) -> Encoding:
        """Return how the pictures of a split are encoded."""
        if split != "train" and self.val == "keep":
            return Encoding(None, policy=self.encoding.policy)
        return self.encoding

    def rows_of(self, job: PackJob) -> Sequence[int]:
        """Return the rows of a split in the order in which they are packed."""
        count = len(job.index)
        if self.order == "source" or job.split != "train":
            return range(count)
        mixed: list[int] = generator_of(0, 0, 0, _MIXING).permutation(count).tolist()
        return mixed

    def options(self) -> dict[str, Any]:
        """Return what the bytes of the shards depend on beside the pictures."""
        encoding = asdict(self.encoding)
        policy = encoding.pop("policy")
        return {
            **encoding,
            "alpha_background": list(policy["alpha_background"]),
            "max_pixels": policy["max_pixels"],
            "val": self.val,
            "shard_bytes": self.shard_bytes,
            "order": self.order,
        }


def pack_set(
    plan: PackPlan, indices: Mapping[str, ImageIndex], num_processes: int | None = None
) -> Iterator[PackStep]:
    """Pack all splits; yields how far it is. What is finished already is not made again.

    Args:
        plan: What is packed.
        indices: The pictures by split.
        num_processes: Processes; default: one for each core that this process may use. 0: none but this.

    Raises:
        UserError: The target is not usable or the disk is full, another process packs into it, or a picture's file
            can not be read at all.
    """
    target = plan.target
    wanted = _identity(plan, indices)
    _require_usable(target)
    with _naming_disk(target):
        (target / shards.UNFINISHED).mkdir(parents=True, exist_ok=True)
        with hold_lock(target / _LOCK) as is_free:
            if not is_free:
                raise UserError(
                    f"--to={str(target)!r}: another process packs into it; wait for it, or give another folder."
                )
            if not _begin(target, wanted):
                yield from _pack_splits(plan, indices, wanted, num_processes)
            shutil.rmtree(target / shards.UNFINISHED, ignore_errors=True)


def _identity(plan: PackPlan, indices: Mapping[str, ImageIndex]) -> dict[str, Any]:
    """Return what must be equal for a restart to go on."""
    sources = {
        split: {"num_samples": len(index), "fingerprint": index.fingerprint}
        for split, index in indices.items()
    }
    return {
        "format": shards.FORMAT,
        "version": VERSION,
        "options": plan.options(),
        "sources": sources,
        "classes": list(indices["train"].classes),
    }


def _require_usable(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"--to={str(target)!r} is a file; give a folder.")
    if not target.is_dir() or shards.is_shard_set(target):
        return
    if (target / shards.UNFINISHED).is_dir():
        return
    if found := sorted(f.name for f in target.iterdir() if f.name != _LOCK):
        raise UserError(
            f"--to={str(target)!r} is not empty ({some_of(found, 3)}); give a new folder."
        )


def _begin(target: Path, wanted: dict[str, Any]) -> bool:
    """Write down what is packed, or compare it with what an earlier process did; tell whether all is done.

    Raises:
        UserError: It was another thing.
    """
    file = target / shards.UNFINISHED / _PLAN
    is_done = shards.is_shard_set(target)
    if is_done:
        there = shards.read_facts(target) | {"version": VERSION}  # whichever it was
    elif file.is_file():
        there = json.loads(file.read_text(encoding="utf-8"))
    else:
        write_file(file, json.dumps(wanted))
        return False
    there |= there.get("options", {})
    here = wanted | wanted["options"]
    names = [
        name for name in here if name != "options" and there.get(name) != here[name]
    ]
    if names:
        shown = some_of(_describe(name, there.get(name), here[name]) for name in names)
        raise UserError(
            f"--to={str(target)!r} holds data that was packed otherwise: {shown}. Give a new folder, or the same "
            "arguments."
        )
    return is_done


def _describe(name: str, there: Any, here: Any) -> str:
    if name == "sources":
        return "from other pictures"
    if name == "classes":
        return "with other classes"
    return f"{name} {there}, here {here}"


def _pack_splits(
    plan: PackPlan,
    indices: Mapping[str, ImageIndex],
    wanted: dict[str, Any],
    num_processes: int | None,
) -> Iterator[PackStep]:
    target = plan.target
    jobs = {
        split: PackJob(
            index, split, plan.encoding_of(split), find_renamed(index, split)
        )
        for split, index in indices.items()
    }
    writers = {split: ShardWriter(target, split, plan.shard_bytes) for split in indices}
    _require_room(target, jobs, writers)
    facts = {}
    for split, job in jobs.items():
        writer = writers[split]
        try:
            yield from _pack_split(job, writer, plan.rows_of(job), num_processes)
            facts[split] = writer.finish(job.index, _packed_facts(job.encoding))
        finally:
            writer.abandon()
    done = {**wanted, "made_from": dict(plan.made_from), "splits": facts}
    write_file(target / shards.FACTS, json.dumps(done, indent=1))


def _packed_facts(encoding: Encoding) -> dict[str, Any] | None:
    if encoding.short_side is None:
        return None
    names = ("short_side", "quality", "interpolation")
    return {name: getattr(encoding, name) for name in names}


def _pack_split(
    job: PackJob, writer: ShardWriter, rows: Sequence[int], num_processes: int | None
) -> Iterator[PackStep]:
    place = writer.start
    num_bytes = sum(record.size for record in writer.records)
    yield PackStep(job.split, place, num_bytes)
    work = Job(pack_picture, job, CRASHED, use_one_thread)
    left = rows[place:]
    for some, pictures in map_rows(work, left, num_processes, in_order=True):
        for row, picture in zip(some, pictures, strict=True):
            if picture.error and job.split != "train":  # it stays in the count
                picture = pack_unreadable(job, row, picture.error)
            writer.add(place, row, picture)
            place += 1
            num_bytes += len(picture.header) + len(picture.data)
        yield PackStep(job.split, place, num_bytes)


def _require_room(
    target: Path, jobs: Mapping[str, PackJob], writers: Mapping[str, ShardWriter]
) -> None:
    """Raise where the disk is too small, by the size of some of the pictures that are to be packed.

    Raises:
        UserError: It is.
    """
    rest = {split: len(job.index) - writers[split].start for split, job in jobs.items()}
    step = max(1, sum(rest.values()) // _SAMPLE)
    needed = 0.0
    for split, job in jobs.items():
        rows = range(writers[split].start, len(job.index), step)
        sample = [pack_picture(job, row) for row in rows]
        sizes = [len(p.header) + len(p.data) + shards.BLOCK // 2 for p in sample]
        needed += sum(sizes) / max(1, len(sizes)) * rest[split]
    needed = needed * _SPARE + _INDEX_BYTES * sum(rest.values())
    free = shutil.disk_usage(target).free
    if needed > free:
        raise UserError(
            f"--to={str(target)!r} needs about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free there; give a "
            "folder on a larger disk, or a smaller --short_side or --quality."
        )


@contextmanager
def _naming_disk(target: Path) -> Iterator[None]:
    """Turn an error of the disk that is written to into one for users."""
    try:
        yield
    except OSError as error:
        again = (
            "run the same command again, which goes on after the last finished shard"
        )
        if error.errno in _DISK_FULL:
            raise UserError(
                f"--to={str(target)!r}: the disk is full; finished shards stay. Make room, and {again}."
            ) from error
        raise UserError(
            f"--to={str(target)!r} can not be written ({error}); finished shards stay. Cure it, and {again}."
        ) from error
