"""Which order the training pictures come in: full or block, from where a checkpoint stands."""

from typing import Any

from imnet_pl.core.errors import UserError
from imnet_pl.data.block_sampler import BlockSampler
from imnet_pl.data.read_ahead import ReadAhead
from imnet_pl.data.sampler import TrainSampler


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
        ahead = None if index.members is None else ReadAhead(index)
        blocks = data.shuffle_block, data.shuffle_window, ahead
        sampler = BlockSampler(*place, *blocks)
    if resume_from is not None:
        sampler.set_epoch(resume_from["epoch"])
        sampler.start = resume_from["num_samples"] // world_size
    return sampler


def order_of(data: Any) -> dict[str, Any]:
    """Return the arguments of the data module that the order depends on, for a checkpoint."""
    names = ["seed", "shuffle"]
    if data.shuffle == "block":
        names += ["shuffle_block", "shuffle_window"]
    return {name: getattr(data, name) for name in names}


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
        # Checkpoints from before there was a choice have the full order.
        there = saved.get(name, "full")
        if there != value:
            raise UserError(
                f"data.{name}={value} differs from the checkpoint's {there}, with which it stands within an epoch: the "
                f"rest of the epoch would be other pictures. Give the same {name}."
            )
