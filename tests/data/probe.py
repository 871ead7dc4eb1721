"""Transforms that show what becomes of a worker process."""

import sys
import time
from dataclasses import dataclass

import torch

from imnet_pl.data.slots import Slots


@dataclass
class ModuleProbe:
    """Writes 1 into a picture if lightning or torchvision is imported where it runs."""

    image_size: int = 8

    def __call__(self, data, key, out):
        found = [
            name
            for name in ("lightning", "torchvision", "sklearn", "pandas")
            if name in sys.modules
        ]
        out.fill_(len(found))
        out[0, 0, 0] = torch.get_num_threads()


@dataclass
class Hanging:
    """Never ends, as reading from a network drive that is gone."""

    image_size: int = 8

    def __call__(self, data, key, out):
        time.sleep(3600)


@dataclass
class Slow:
    """Takes three seconds, as a disk that is busy."""

    image_size: int = 8

    def __call__(self, data, key, out):
        time.sleep(3)


@dataclass
class Failing:
    """Raises what no one expects."""

    image_size: int = 8

    def __call__(self, data, key, out):
        raise ZeroDivisionError("of its own")


class NothingShared(Slots):
    """Shared memory that is full."""

    def _new(self, shape):
        raise RuntimeError("No space left on device (28)")
