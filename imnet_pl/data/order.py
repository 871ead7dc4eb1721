"""Which order the training pictures come in: full or block, from where a checkpoint stands."""

import logging
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imnet_pl.core.errors import UserError
from imnet_pl.data.block_sampler import BlockSampler
from imnet_pl.data.index import ImageIndex
from imnet_pl.data.read_ahead import ReadAhead
from imnet_pl.data.sampler import TrainSampler

log = logging.getLogger(__name__)

_ENOUGH_CLASSES = 0.9  # of those that as many pictures drawn at random have
_PLACES = "places"


def build_train_sampler(
    data: Any, rank: int, world_size: int, resume_from: dict[str, Any] | None
) -> TrainSampler:
    """Return the sampler of the training split.

    Args:
        data: The data module.
        rank: This process, from 0.
        world_size: Number of processes.
        resume_from: State of the data module in a checkpoint; None: from the first epoch on.
    """
    index = data.indices["train"]
    place = len(index), data.seed, rank, world_size
    if data.shuffle == "full":
        sampler = TrainSampler(*place)
    else:
        rows = rows_by_place(index)
        ahead = None if index.members is None else ReadAhead(index, rows)
        blocks = data.shuffle_block, data.shuffle_window, ahead, rows
        sampler = BlockSampler(*place, *blocks)
        if rank == 0:
            _warn_of_few_classes(index, sampler)
    if resume_from is not None:
        sampler.set_epoch(resume_from["epoch"])
        sampler.start = resume_from["num_samples"] // world_size
    return sampler


def rows_by_place(index: ImageIndex) -> NDArray[np.int64] | None:
    """Return the rows of an index in the order in which their pictures lie in shards; None: that of the index."""
    if index.members is None:
        return None
    rows = np.lexsort((index.members.offset, index.members.shard)).astype(np.int64)
    return None if (rows[1:] > rows[:-1]).all() else rows


def _warn_of_few_classes(index: ImageIndex, sampler: BlockSampler) -> None:
    """Say so where a window holds so few classes that the network learns the others away meanwhile."""
    window = sampler.first_window()
    there = len(np.unique(index.labels[window]))
    shares = np.bincount(index.labels) / len(index)
    drawn = float((1 - (1 - shares) ** len(window)).sum())  # classes, at random
    if there < _ENOUGH_CLASSES * drawn:
        log.warning(
            "data.shuffle=block: a window of %d pictures (data.shuffle_window) has %d classes where full order has %.0f, "
            "since the pictures lie by class; the network will be worse than in full order. Pack the data, by default with "
            "--order=mixed, or raise data.shuffle_window.",
            *(len(window), there, drawn),
        )


def order_of(data: Any) -> dict[str, Any]:
    """Return the arguments of the data module that the order depends on, for a checkpoint."""
    names = ["seed", "shuffle"]
    if data.shuffle == "block":
        names += ["shuffle_block", "shuffle_window"]
    order = {name: getattr(data, name) for name in names}
    if data.shuffle == "block":
        rows = rows_by_place(data.indices["train"])
        order[_PLACES] = 0 if rows is None else zlib.crc32(rows.astype("<i8").tobytes())
    return order


def require_same_order(saved: dict[str, Any], data: Any) -> None:
    """Raise where a checkpoint stands within an epoch whose order would not go on.

    Args:
        saved: State of the data module in the checkpoint.
        data: The data module.

    Raises:
        UserError: It names the argument that is another one.
    """
    if not saved["num_samples"]:
        return
    for name, value in order_of(data).items():
        # Checkpoints from before there was a choice have the full order, and pictures that lie as in the index.
        there = saved.get(name, 0 if name == _PLACES else "full")
        if there != value and name == _PLACES:
            raise UserError(
                "the pictures lie in another order on the disk than those that the checkpoint was trained on, and it "
                "stands within an epoch of data.shuffle=block: the rest of the epoch would be other pictures. Give that "
                "data.root, or a checkpoint from the end of an epoch."
            )
        if there != value:
            raise UserError(
                f"data.{name}={value} differs from the checkpoint's {there}, with which it stands within an epoch: the "
                f"rest of the epoch would be other pictures. Give the same {name}."
            )
