"""Do all ranks have the same data? Asked once, at the start of a run."""

import hashlib
import json
import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from imnet_pl.core.errors import UserError
from imnet_pl.training.leaving import Leave

_SHORT = 12  # digits of a fingerprint that a person is shown


class SameData(Callback):
    """Ends a run at its start, on all ranks, if the data of one differs from that of another.

    Compared are classes, number and fingerprint of each split, the treatment of pictures, seed and batch size. Ranks
    that differ in them would train on some pictures twice and on others never, or wait for each other in vain.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare, when the data module has indexed its data.

        Raises:
            UserError: The ranks differ. It is raised on one rank of each node; the other ranks leave without a word.
        """
        if trainer.world_size == 1:
            return
        facts = facts_of(trainer.datamodule)  # type: ignore[attr-defined]
        digest = _digest(facts)
        both = torch.tensor([digest, -digest], device=trainer.strategy.root_device)
        most, least = trainer.strategy.reduce(both, reduce_op="max").tolist()
        if most == -least:
            return
        gathered: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(gathered, (socket.gethostname(), facts))
        sentence = describe_difference(gathered)
        # Lightning kills the first rank of a machine, in the middle of its words, when another one fails.
        raise UserError(sentence) if trainer.local_rank == 0 else Leave(sentence, 0)


def facts_of(data: Any) -> dict[str, str]:
    """Return what ranks must have in common: the name of an argument or a split, and its value in words."""
    described = dict(data.describe())
    classes, splits = described.pop("classes"), described.pop("data")
    text = json.dumps(classes).encode()
    known = {
        "the classes": f"{len(classes)} (fingerprint {hashlib.sha256(text).hexdigest()[:_SHORT]})"
    }
    for split, found in splits.items():
        known[f"the {split} data"] = (
            f"{found['num_samples']} pictures (fingerprint {found['fingerprint'][:_SHORT]})"
        )
    described |= {"seed": data.seed, "batch_size": data.batch_size}
    return known | {f"data.{name}": str(value) for name, value in described.items()}


def _digest(facts: dict[str, str]) -> int:
    text = json.dumps(facts, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def describe_difference(gathered: Sequence[tuple[str, dict[str, str]]]) -> str:
    """Return in one sentence which rank has what.

    Args:
        gathered: Host and facts of each rank, in the order of ranks; they are not all equal.
    """
    names = dict.fromkeys(name for _, facts in gathered for name in facts)
    parts = []
    for name in names:
        holders: dict[str, list[int]] = {}
        for rank, (_, facts) in enumerate(gathered):
            holders.setdefault(facts.get(name, "absent"), []).append(rank)
        if len(holders) > 1:
            said = (
                f"{value} on {_name_ranks(ranks, gathered)}"
                for value, ranks in holders.items()
            )
            parts.append(f"{name}: {', '.join(said)}")
    return (
        f"the ranks do not have the same data; {'; '.join(parts)}. Give all of them the same data and the same "
        "arguments."
    )


def _name_ranks(
    ranks: Sequence[int], gathered: Sequence[tuple[str, dict[str, str]]]
) -> str:
    hosts = dict.fromkeys(gathered[rank][0] for rank in ranks)
    numbers = ", ".join(map(str, ranks))
    return (
        f"rank{'s' * (len(ranks) > 1)} {numbers} "
        f"(host{'s' * (len(hosts) > 1)} {', '.join(hosts)})"
    )
