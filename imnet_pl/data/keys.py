"""What names a picture to be made, and seeds its random choices."""

from typing import Any, NamedTuple

_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Key(NamedTuple):
    """One picture to be made: all that its random choices depend on, beside the seed."""

    epoch: int
    position: int
    repeat: int


def _finalise(x: Any) -> Any:
    """Finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64 bits."""
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return x ^ (x >> 31)


def mix(seed: int, epoch: int, index: Any, repeat: int) -> Any:
    """Mix four numbers into 64 bits; for one (seed, epoch, repeat) no two indices give the same.

    Args:
        seed: Any integer.
        epoch: Epoch from 0.
        index: Position of the picture in its index: an int, or a uint64 array.
        repeat: Which repetition of the picture in the epoch.
    """
    state = 0
    for word in (seed, epoch, repeat):
        state = _finalise((state + 0x9E37_79B9_7F4A_7C15 + word) & _MASK)
    return _finalise(index ^ state)
