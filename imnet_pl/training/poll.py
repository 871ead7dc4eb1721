"""A question to all ranks, answered on all of them at the same step."""

import time
from collections.abc import Callable

import torch
from lightning.pytorch import Trainer

MAX_INTERVAL = 1000  # steps


class Poll:
    """Asks all ranks about once a second whether any of them says yes.

    The ranks agree on the step of the next question, since their clocks differ.

    Args:
        is_free: The answer needs no device: where there is one rank, it is asked at every step.
        every_sec: Seconds between two questions.
    """

    def __init__(self, is_free: bool = False, every_sec: float = 1.0) -> None:
        self.is_free, self.every_sec = is_free, every_sec
        self.restart()

    def restart(self) -> None:
        """Ask at the next step, whatever its number."""
        self._next_step = 0
        self._last: tuple[int, float] | None = None

    def ask(self, trainer: Trainer, step: int, answer: Callable[[], bool]) -> bool:
        """Return whether any rank says yes; False where the question is not due.

        Args:
            trainer: All its ranks ask with the same steps.
            step: Number of the step; it grows.
            answer: Called where the question is due.
        """
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if trainer.world_size == 1 and (self.is_free or on_cpu):
            return answer()
        if step < self._next_step:
            return False
        is_yes, interval = answer(), self._interval(step)
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            vote = torch.tensor([int(is_yes), interval], device=device)
            yes, interval = trainer.strategy.reduce(vote, reduce_op="max").tolist()
            is_yes = bool(yes)
        self._next_step = step + interval
        return is_yes

    def _interval(self, step: int) -> int:
        """Return how many steps a second has, by the steps since the last question."""
        now = time.monotonic()
        last, self._last = self._last, (step, now)
        if last is None or now <= last[1]:
            return 1
        steps = (step - last[0]) * self.every_sec / (now - last[1])
        return max(1, min(MAX_INTERVAL, int(steps)))
