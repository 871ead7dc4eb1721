"""A rank that is lost: how long the others wait for it, and what they say of it."""

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed import default_pg_timeout

from imnet_pl.core.errors import UserError
from imnet_pl.training.checkpointing import find_last_checkpoint
from imnet_pl.training.leaving import Leave, resume_command
from imnet_pl.training.same_data import SameData
from imnet_pl.training.signs_of_life import EVERY_SEC, SignsOfLife

log = logging.getLogger(__name__)

_WARN_SEC = 30.0  # of silence, or half of the time limit
_IS_SILENT_SEC = 3 * EVERY_SEC


def build_rank_guards(timeout_sec: float = 900.0) -> list[Callback]:
    """Return what watches over a run on several ranks; on one rank it does nothing.

    Args:
        timeout_sec: Ranks wait so long for one that does not answer, then the run ends; best above data.stall_sec.

    Raises:
        UserError: The time is not positive.
    """
    if timeout_sec <= 0:
        raise UserError(f"ranks.timeout_sec={timeout_sec} must be above 0.")
    return [SameData(), LostRank(timeout_sec)]


def limit_waiting(trainer: Trainer, timeout_sec: float) -> None:
    """Let collectives of a Trainer that has not started fail after so long, unless its strategy was given a time."""
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy) and strategy._timeout == default_pg_timeout:
        strategy._timeout = timedelta(seconds=timeout_sec)


class LostRank(Callback):
    """Knows which ranks are silent when a collective fails.

    After 30 s of silence, or half of the time limit, the first rank of each machine says so: NCCL ends a process
    without another word.

    Args:
        timeout_sec: Time limit of a collective.
    """

    def __init__(self, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self.sentence = ""
        self._silent: list[int] = []
        self._signs: SignsOfLife | None = None
        self._is_over = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        """Go to spawned ranks without what is of this process."""
        return {"timeout_sec": self.timeout_sec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LostRank.__init__(self, **state)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to give signs of life."""
        if trainer.world_size == 1:
            return
        # Lightning sets them before the process group is made.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        hosts: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(hosts, socket.gethostname())
        self._signs = SignsOfLife(trainer.global_rank, hosts, address, port)
        self._signs.start()
        self._is_over.clear()
        if trainer.local_rank == 0:
            watch = threading.Thread(target=self._watch, args=(trainer,), daemon=True)
            watch.start()

    def _watch(self, trainer: Trainer) -> None:
        """Say once of each rank that it is silent."""
        assert self._signs is not None
        said: set[int] = set()
        after_sec = min(_WARN_SEC, self.timeout_sec / 2)
        while not self._is_over.wait(EVERY_SEC):
            silent = self._signs.silent(after_sec)
            if new := [rank for rank in silent if rank not in said]:
                said.update(new)
                log.error(
                    "%s. A rank that stays away ends the run after %.0f s%s.",
                    describe_silent(self._signs, new),
                    self.timeout_sec,
                    _describe_resume(trainer, self._signs),
                )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the others know the step."""
        if self._signs is not None:
            self._signs.step = trainer.global_step

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Find out who is silent, or tell the others why this rank ends."""
        if self._signs is None:
            if is_lost_connection(exception) and not self.sentence:
                self.sentence = describe_not_met(exception, self.timeout_sec)
            return
        words = ""
        if is_lost_connection(exception):
            self.sentence = self._explain(trainer, self._signs, exception)
        else:
            words = " ".join(f"{type(exception).__name__}: {exception}".split())[:500]
        self._stop(words)

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Let the others know that this rank is done, which then may be silent."""
        self._stop("its run was over")

    def _stop(self, words: str) -> None:
        self._is_over.set()
        if self._signs is not None:
            self._signs.stop(words)
            self._signs = None

    def _explain(
        self, trainer: Trainer, signs: SignsOfLife, exception: BaseException
    ) -> str:
        """Return in a sentence who is lost; a rank that was killed this moment is silent only a little later."""
        end = time.monotonic() + _IS_SILENT_SEC + EVERY_SEC
        while time.monotonic() < end and not (
            signs.silent(_IS_SILENT_SEC) or describe_words(signs)
        ):
            time.sleep(EVERY_SEC / 10)
        self._silent = signs.silent(_IS_SILENT_SEC)
        who = (
            describe_words(signs)
            or describe_silent(signs, self._silent)
            or describe_waiting(signs, self.timeout_sec)
        )
        # Rank 0 has said from where the run goes on.
        where = "" if signs.rank == 0 else _describe_resume(trainer, signs)
        return f"{who} ({_reason(exception)}){where}."

    def raise_lost(self, trainer: Trainer, error: BaseException) -> None:
        """Raise a sentence in place of the error of a collective; return where it was another error.

        Raises:
            UserError: Ranks are lost. It is raised on one rank of each node; the other ranks leave without a word.
        """
        if not self.sentence:
            return
        is_speaker = trainer.local_rank == 0
        first_of_node = trainer.global_rank - trainer.local_rank
        if is_speaker or first_of_node in self._silent:
            raise UserError(self.sentence) from error
        # Lightning kills the first rank of a machine, in the middle of its words, when another one fails.
        raise Leave(self.sentence, 0) from error


def raise_if_lost(trainer: Trainer, error: BaseException) -> None:
    """Raise a sentence in place of an error that came of a lost rank; return where it did not.

    Raises:
        UserError: Ranks are lost.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, LostRank):
            callback.raise_lost(trainer, error)


def is_lost_connection(error: BaseException) -> bool:
    """Tell whether an error says that ranks do not reach each other."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    )


def describe_not_met(error: BaseException, timeout_sec: float) -> str:
    """Return in a sentence that ranks did not come together at the start."""
    place = ":".join(os.environ.get(f"MASTER_{x}", "?") for x in ("ADDR", "PORT"))
    return (
        f"the ranks did not come together at MASTER_ADDR:MASTER_PORT={place} within ranks.timeout_sec="
        f"{timeout_sec:.0f} ({_reason(error)}); start the same command on all trainer.num_nodes, each with its own "
        "NODE_RANK, and let the firewall pass them."
    )


def _reason(error: BaseException) -> str:
    """Return the end of a collective's message, without the place in its source."""
    first = str(error).splitlines()[0]
    return re.sub(r"\[[^]]*\.(cc|cpp|h|hpp):\d+\]\s*", "", first).strip(" .")


def describe_words(signs: SignsOfLife) -> str:
    """Return what ranks have said before they ended, if any has."""
    return "; ".join(
        f"rank {rank} (host {signs.hosts[rank]}) ended at step {sign.step}: {sign.words}"
        for rank, sign in signs.signs.items()
        if sign.words
    )


def describe_silent(signs: SignsOfLife, ranks: Sequence[int]) -> str:
    """Return since when ranks are silent; nothing of none."""
    now = time.monotonic()
    if 0 in ranks and len(ranks) == len(signs.hosts) - 1:
        sign = signs.signs[0]
        return (
            f"nothing is heard for {now - sign.heard_sec:.0f} s of rank 0 (host {signs.hosts[0]}), through which ranks hear "
            f"of each other; it was at step {sign.step}"
        )
    return "; ".join(
        f"rank {rank} (host {signs.hosts[rank]}) gives no sign of life for "
        f"{now - signs.signs[rank].heard_sec:.0f} s, last heard of at step {signs.signs[rank].step}"
        for rank in ranks
    )


def describe_waiting(signs: SignsOfLife, timeout_sec: float) -> str:
    """Return where ranks stand that are all alive."""
    steps = ", ".join(f"{s.step} (rank {rank})" for rank, s in signs.signs.items())
    return (
        f"all ranks give signs of life, but one waited for the others for ranks.timeout_sec={timeout_sec:.0f}; they "
        f"stand at steps {steps}"
    )


def _describe_resume(trainer: Trainer, signs: SignsOfLife) -> str:
    """Return from where the run goes on; nothing where it writes no checkpoints."""
    last = find_last_checkpoint(trainer)
    if trainer.state.fn != "fit" or last is None:
        return ""
    if last.path.is_file():
        return f"; to go on from the last save: {resume_command(last.path)}"
    if signs.rank == 0:
        return "; nothing is saved yet"
    return f"; what is saved is with rank 0 (host {signs.hosts[0]}), in {str(last.path.parent)!r}"
