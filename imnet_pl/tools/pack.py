"""The verb pack: pictures of any source, shrunk once, in a few tar files that are read fast."""

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from imnet_pl.core.errors import UserError
from imnet_pl.data import shards
from imnet_pl.data.augment import Interpolation
from imnet_pl.data.catalog import DecodedCatalog
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.packer import Order, PackPlan, Val, pack_set
from imnet_pl.data.packing import Encoding, PackStep
from imnet_pl.data.shard_damage import find_damage
from imnet_pl.data.unpacking import unpack_set

log = logging.getLogger(__name__)

_MOST_BAD = 10


def run_pack(
    data: DecodedCatalog,
    to: str | None = None,
    short_side: int = 320,
    quality: int = 90,
    keep_originals: bool = False,
    val: Val = "pack",
    shard_gb: float = 1.0,
    order: Order = "mixed",
    interpolation: Interpolation = "bilinear",
    verify: str | None = None,
    unpack: str | None = None,
    num_processes: int | None = None,
) -> int:
    """Pack pictures into tar files; the exit status is 1 when the check at the end finds damage.

    Args:
        data: The set. Pictures are not turned: their EXIF orientation stays with them.
        to: Folder of the packed data, on a disk with room for it. Killed, the same command goes on where it was.
        short_side: Larger pictures are resized to this short side in px: 320 for recipes at 224 px, 256 for 160-192.
        quality: Quality of the JPEGs, 1 to 100, with 4:2:0 colour.
        keep_originals: Encode nothing anew: every file is packed as it is.
        val: Pack val and test as train (``pack``), or their original files (``keep``).
        shard_gb: A tar file is closed when it has so many GB.
        order: How train lies in them: ``mixed``, which data.shuffle=block needs, or as in the ``source``, which reads a hard
            disk with the pictures from one end to the other.
        interpolation: Resizing, always antialiased: ``bilinear`` or ``bicubic``.
        verify: Pack nothing, but read this packed data again and compare every checksum.
        unpack: Pack nothing, but write class folders into this folder: from the tars of ImageNet, or other packed data.
        num_processes: Processes; default: one a core.

    Raises:
        UserError: The pictures or the target are not usable, or the disk is too small.
    """
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if verify is not None:
        return _verify(console, Path(verify).expanduser(), num_processes)
    if unpack is not None:
        return _unpack(console, data, Path(unpack).expanduser().absolute())
    _check_arguments(short_side, quality, shard_gb)
    target = _target(to, data)
    encoding = Encoding(
        None if keep_originals else short_side,
        quality,
        interpolation,
        replace(data.policy, exif_orientation=False),
    )
    made_from = {"root": str(data.root.absolute()), "source": data.source}
    plan = PackPlan(target, made_from, encoding, val, round(shard_gb * 1e9), order)
    return _pack(console, data, plan, num_processes)


def _pack(
    console: Console, data: DecodedCatalog, plan: PackPlan, num_processes: int | None
) -> int:
    """Pack, print what was packed, and read it again."""
    indices = _indices(data)
    _show(indices, pack_set(plan, indices, num_processes))
    _report(console, plan.target)
    return _verify(console, plan.target, num_processes)


def _target(to: str | None, data: DecodedCatalog) -> Path:
    """Return the folder that is packed into.

    Raises:
        UserError: There is none, or it lies inside the source.
    """
    if to is None:
        raise UserError(
            "--to is missing: say where the packed data goes with --to DIR."
        )
    target = Path(to).expanduser().absolute()
    _require_apart("to", target, data.root)
    return target


def _check_arguments(short_side: int, quality: int, shard_gb: float) -> None:
    if short_side < 1:
        raise UserError(f"--short_side={short_side} must be at least 1.")
    if not 1 <= quality <= 100:
        raise UserError(f"--quality={quality} must be from 1 to 100.")
    if shard_gb <= 0:
        raise UserError(f"--shard_gb={shard_gb:g} must be more than 0.")


def _unpack(console: Console, data: DecodedCatalog, target: Path) -> int:
    """Write class folders and print how many pictures are in them."""
    _require_apart("unpack", target, data.root)
    indices = _indices(data)
    _show(indices, unpack_set(indices, target))
    for split, index in indices.items():
        console.print(f"{split}: {len(index)} pictures in {target / split}")
    return 0


def _require_apart(name: str, target: Path, root: Path) -> None:
    """Raise where what is written would be taken for pictures of the source.

    Raises:
        UserError: The target is the source or lies inside it.
    """
    if root.is_dir() and target.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"--{name}={str(target)!r} lies inside data.root={str(root)!r}; give a folder outside of it."
        )


def _indices(data: DecodedCatalog) -> dict[str, ImageIndex]:
    """Return the indices of all splits; a test split without labels is left out."""
    indices = {"train": data.index("train")}
    if data.has_split("val"):
        indices["val"] = data.index("val")
    if data.has_split("test"):
        try:
            indices["test"] = data.index("test")
        except UserError as error:
            log.warning("split 'test' is not packed: %s", error)
    return indices


def _show(indices: Mapping[str, ImageIndex], steps: Iterable[PackStep]) -> None:
    """Let it happen, with a line that says how fast and how far."""
    start, before = time.monotonic(), dict[str, tuple[int, int]]()
    with _progress() as progress:
        tasks = {
            split: progress.add_task(split, total=len(index), rate="", start=False)
            for split, index in indices.items()
        }
        for step in steps:
            if step.split not in before:
                start = time.monotonic()
                before[step.split] = step.done, step.num_bytes
                progress.start_task(tasks[step.split])
            seconds = max(time.monotonic() - start, 1e-9)
            rate = (step.done - before[step.split][0]) / seconds
            progress.update(
                tasks[step.split],
                completed=step.done,
                rate=f"{rate:.0f} pictures/s, {step.num_bytes / 1e9:.2f} GB",
            )


def _progress() -> Progress:
    console = Console(file=sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _report(console: Console, target: Path) -> None:
    """Print what was packed, and which pictures can not be read."""
    for split, facts in shards.read_facts(target)["splits"].items():
        gigabytes = sum(shard["size"] for shard in facts["shards"]) / 1e9
        console.print(
            f"{split}: {facts['num_samples']} pictures, {facts['num_encoded']} of them encoded anew, "
            f"{gigabytes:.2f} GB in {len(facts['shards'])} tar files"
        )
        fate = "left out" if split == "train" else "kept as they are, to count as wrong"
        if facts["bad"]:
            console.print(f"  {len(facts['bad'])} can not be read and are {fate}:")
        for path, reason in facts["bad"][:_MOST_BAD]:
            console.print(f"    {path}: {reason}", markup=False)
        if len(facts["bad"]) > _MOST_BAD:
            console.print(f"    ... all of them are in {target / shards.FACTS}")


def _verify(console: Console, target: Path, num_processes: int | None) -> int:
    """Compare all checksums, print what is damaged, and return the exit status."""
    damage: list[str] = []
    with _progress() as progress:
        task = progress.add_task("verify", total=None, rate="")
        for step in find_damage(target, num_processes):
            progress.update(task, completed=step.done, total=step.num_shards)
            damage += step.damage
    for text in damage:
        console.print(f"damaged: {text}", markup=False)
    if damage:
        console.print(
            f"{target}: {len(damage)} damaged. Copy the files again from where they are whole, or pack them again into "
            "a new folder."
        )
        return 1
    console.print(f"{target}: every checksum is right")
    return 0
