"""What a picture looks like in few numbers: a small grey copy, its contrast, and a hash of its large forms."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_SIDE = 32
_LOW = 8  # frequencies each way that the hash looks at


@lru_cache(maxsize=4096)  # the sides that a set's pictures have
def _positions(side: int) -> NDArray[np.intp]:
    """Return where two samples for each pixel of the thumbnail lie on a side, int [64]."""
    return ((np.arange(2 * _SIDE) + 0.5) * side / (2 * _SIDE)).astype(np.intp)


def grey_thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return a copy of uint8 [height, width, 3] in grey, float32 [32, 32].

    Each value is the mean of 2 x 2 samples of the green channel: averaging all pixels would take as long as a
    third of decoding.
    """
    rows, columns = (_positions(side) for side in pixels.shape[:2])
    green = pixels[rows[:, None], columns, 1].astype(np.uint16)
    pairs = green[:, ::2] + green[:, 1::2]
    summed: NDArray[np.uint16] = pairs[::2] + pairs[1::2]
    return summed.astype(np.float32) / np.float32(4)


def contrast_of(small: NDArray[np.float32]) -> float:
    """Return the standard deviation of a thumbnail, in grey levels."""
    values = small.ravel()
    mean = float(values.sum()) / values.size
    # np.std takes three times as long.
    return math.sqrt(max(0.0, float(values @ values) / values.size - mean**2))


def _cosines() -> NDArray[np.float32]:
    """Return the lowest rows of the DCT-II matrix, float32 [8, 32], without the constant one."""
    k = np.arange(1, _LOW + 1)[:, None]
    n = np.arange(_SIDE)[None]
    return np.cos(np.pi * k * (2 * n + 1) / (2 * _SIDE)).astype(np.float32)


_COSINES = _cosines()


def perceptual_hash(small: NDArray[np.float32]) -> int:
    """Return 64 bits: which low frequencies of a thumbnail's DCT are above their median (pHash)."""
    low = (_COSINES @ small @ _COSINES.T).ravel()
    lower_half = low.size // 2 - 1
    is_above = low > np.partition(low, lower_half)[lower_half]
    return int.from_bytes(np.packbits(is_above, bitorder="little").tobytes(), "little")
