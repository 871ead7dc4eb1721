"""Pictures that are there twice: the same bytes, the same pixels, or nearly the same picture."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imnet_pl.data.decode import UnreadableImage
from imnet_pl.data.inspection import Inspection, pixel_digest

# Bits of 64 that may differ. Of 31 million pairs of different Tiny-ImageNet pictures one has 6 or fewer, and it
# is the same banana twice; pictures encoded anew at quality 50 are all found, at half the size 86 % of them.
NEAR_BITS = 6
MIN_CONTRAST = 8.0  # in grey levels: of flatter pictures the hash says little
_BAND_BITS = 8


class Place(NamedTuple):
    """A picture: its split and its row in the split's index."""

    split: str
    row: int


def exact_duplicates(inspections: Mapping[str, Inspection]) -> Iterator[list[Place]]:
    """Yield the sets of pictures with equal bytes or equal pixels, each with two at least."""
    same_look: dict[tuple[int, int, bytes], list[Place]] = defaultdict(list)
    for split, seen in inspections.items():
        keys = zip(
            seen.heights.tolist(),
            seen.widths.tolist(),
            seen.thumbnail_digests.tolist(),
            strict=True,
        )
        for row, key in enumerate(keys):
            if row not in seen.errors:
                same_look[key].append(Place(split, row))
    for places in same_look.values():
        if len(places) > 1:
            yield from _with_equal_pixels(inspections, places)


def _with_equal_pixels(
    inspections: Mapping[str, Inspection], places: list[Place]
) -> Iterator[list[Place]]:
    """Divide pictures of one size and one thumbnail by their pixels; equal bytes need no second look."""
    by_bytes: dict[bytes, list[Place]] = defaultdict(list)
    for place in places:
        by_bytes[bytes(inspections[place.split].file_digests[place.row])].append(place)
    by_pixels: dict[bytes, list[Place]] = defaultdict(list)
    for digest, same in by_bytes.items():
        key = digest if len(by_bytes) == 1 else _pixels_of(inspections, same[0])
        by_pixels[key] += same
    for same in by_pixels.values():
        if len(same) > 1:
            yield sorted(same)


def _pixels_of(inspections: Mapping[str, Inspection], place: Place) -> bytes:
    seen = inspections[place.split]
    try:
        return pixel_digest(seen.index, place.row, seen.policy)
    except (UnreadableImage, OSError):  # it has changed since it was inspected
        return bytes(seen.file_digests[place.row])


def near_duplicates(
    left: Inspection, right: Inspection, max_bits: int = NEAR_BITS
) -> list[tuple[int, int, int]]:
    """Return (row of left, row of right, bits that differ) of pictures that look nearly the same.

    A pair that differs in at most 7 bits has one of eight bytes in common: only those are compared.

    Args:
        left: One split.
        right: Another one.
        max_bits: Bits of 64 that may differ, 0 to 7.
    """
    rows = [np.flatnonzero(side.contrast >= MIN_CONTRAST) for side in (left, right)]
    hashes = [side.perceptual[r] for side, r in zip((left, right), rows, strict=True)]
    found: dict[tuple[int, int], int] = {}
    for band in range(64 // _BAND_BITS):
        keys = [(h >> np.uint64(_BAND_BITS * band)) & np.uint64(255) for h in hashes]
        for value in range(256):
            a, b = (np.flatnonzero(k == value) for k in keys)
            for i, j, bits in _close_pairs(hashes[0][a], hashes[1][b], max_bits):
                found[int(rows[0][a[i]]), int(rows[1][b[j]])] = bits
    return sorted((i, j, bits) for (i, j), bits in found.items())


def _close_pairs(
    left: NDArray[np.uint64], right: NDArray[np.uint64], max_bits: int
) -> Iterator[tuple[int, int, int]]:
    block = max(1, 4_000_000 // max(1, len(right)))
    for start in range(0, len(left), block):
        bits = np.bitwise_count(left[start : start + block, None] ^ right[None])
        for i, j in zip(*np.nonzero(bits <= max_bits), strict=True):
            yield start + int(i), int(j), int(bits[i, j])
