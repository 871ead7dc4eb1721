"""Intervals for shares that are counted."""

import math


def wilson_interval(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a share.

    Wilson (1927), J. Am. Stat. Assoc. 22, 209-212.

    Args:
        share: Observed share, 0 to 1.
        n: Number of observations, at least 1.
        z: Normal quantile; the default gives 95 %.
    """
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
