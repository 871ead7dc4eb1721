"""Learning-rate rules, as pure functions of the step."""

import math
from collections.abc import Callable

REFERENCE_BATCH = 256


def scaled_lr(base_lr: float, global_batch_size: int) -> float:
    """Return the peak rate by the linear scaling rule (Goyal et al. 2017); ``base_lr`` is for 256 a step."""
    return base_lr * global_batch_size / REFERENCE_BATCH


def warmup_cosine(
    step: int, total_steps: int, warmup_steps: int, peak_lr: float, min_lr: float
) -> float:
    """Return the rate of a step: linear warm-up, then a cosine (Loshchilov and Hutter 2017) down to ``min_lr``.

    Args:
        step: Optimiser step from 0.
        total_steps: Steps of the whole run; the last one has ``min_lr``.
        warmup_steps: Steps of warm-up; step s has ``peak_lr * (s + 1) / warmup_steps``.
        peak_lr: Highest rate.
        min_lr: Lowest rate, never scaled.
    """
    if step < warmup_steps:
        return peak_lr * ((step + 1) / warmup_steps)
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - 1 - warmup_steps))
    return min_lr + (peak_lr - min_lr) * (1 + math.cos(math.pi * done)) / 2


def window_weight(
    batch_idx: int, num_batches: int, accumulate: int, batch_len: Callable[[int], int]
) -> float:
    """Return what to multiply a mean loss by, so that a window's gradient is that of one large batch.

    Lightning divides each loss by ``accumulate``, also in a last window that has fewer batches.

    Args:
        batch_idx: Batch in the epoch, from 0.
        num_batches: Batches in the epoch.
        accumulate: Batches in a full accumulation window.
        batch_len: Number of pictures in the batch with a given index.
    """
    first = batch_idx - batch_idx % accumulate
    window = range(first, min(first + accumulate, num_batches))
    return accumulate * batch_len(batch_idx) / sum(batch_len(i) for i in window)
