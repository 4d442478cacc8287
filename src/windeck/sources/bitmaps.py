"""Arrow validity bitmaps: one bit a row, least significant bit first."""

from __future__ import annotations

import numpy as np

from windeck.sources.arraytypes import Bits, Bools


def unpack(bitmap: Bits, start: int, stop: int) -> Bools:
    """Bits [start, stop) as booleans, in memory of their own."""
    whole = np.unpackbits(bitmap[start >> 3 : (stop + 7) >> 3], bitorder="little")
    return whole[start & 7 :][: stop - start].view(np.bool_)


def write(bitmap: Bits, start: int, values: Bools) -> None:
    """Set the bits from `start` on to `values`; the bits beside them stay."""
    stop = start + len(values)
    touched = bitmap[start >> 3 : (stop + 7) >> 3]
    whole = np.unpackbits(touched, bitorder="little")
    whole[start & 7 : (start & 7) + len(values)] = values
    touched[:] = np.packbits(whole, bitorder="little")


def all_set(rows: int) -> Bits:
    """A bitmap of `rows` rows that all hold a value."""
    return np.full((rows + 7) >> 3, 0xFF, dtype=np.uint8)
