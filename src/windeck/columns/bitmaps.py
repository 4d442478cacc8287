"""Arrow validity bitmaps: one bit a row, least significant bit first."""

from __future__ import annotations

import numpy as np

from windeck.columns.dtypes import Bits, Bools, Int64s


def unpack(bitmap: Bits, start: int, stop: int) -> Bools:
    """Return bits [start, stop) as a new array of booleans."""
    whole = np.unpackbits(bitmap[start >> 3 : (stop + 7) >> 3], bitorder="little")
    return whole[start & 7 :][: stop - start].view(np.bool_)


def write(bitmap: Bits, start: int, values: Bools) -> None:
    """Set the bits from `start` on to `values`, and no others."""
    stop = start + len(values)
    touched = bitmap[start >> 3 : (stop + 7) >> 3]
    whole = np.unpackbits(touched, bitorder="little")
    whole[start & 7 : (start & 7) + len(values)] = values
    touched[:] = np.packbits(whole, bitorder="little")


def all_set(rows: int) -> Bits:
    """Return a bitmap of `rows` rows that all have a value."""
    return np.full((rows + 7) >> 3, 0xFF, dtype=np.uint8)


def take(bitmap: Bits, places: Int64s) -> Bools:
    """Return the bits at some places."""
    found: Bools = (bitmap[places >> 3] >> (places & 7).astype(np.uint8) & 1) != 0
    return found


def count(bitmap: Bits) -> int:
    """Return the number of bits that are set. O(1) memory."""
    step = 1 << 18
    slices = (bitmap[start : start + step] for start in range(0, len(bitmap), step))
    return sum(int(np.unpackbits(bits).sum(dtype=np.int64)) for bits in slices)


def count_before(bitmap: Bits, places: Int64s) -> Int64s:
    """Return the number of bits that are set before each of some ascending places."""
    step = 1 << 16
    found = np.zeros(len(places), dtype=np.int64)
    before = 0
    for start in range(0, 8 * len(bitmap), step):
        bits = np.unpackbits(bitmap[start >> 3 : (start + step) >> 3], bitorder="little")
        sums = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])
        first, stop = np.searchsorted(places, [start, start + len(bits)], side="right")
        found[first:stop] = before + sums[places[first:stop] - start]
        before += int(sums[-1])
    return found
