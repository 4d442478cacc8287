"""Bitmaps as Arrow lays them out: one bit an entry, least significant bit first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Bitmap = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

# Entries looked at in one go: enough to make NumPy's overhead vanish, few enough for the cache.
CHUNK = 1 << 18


def empty(size: int) -> Bitmap:
    """A bitmap of `size` zeros."""
    return np.zeros((size + 7) // 8, dtype=np.uint8)


def put(bitmap: Bitmap, at: int, bits: Bools) -> None:
    """Set the ones among `bits` in `bitmap`, starting at entry `at`."""
    packed = np.packbits(np.pad(bits, (at % 8, 0)), bitorder="little")
    bitmap[at // 8 : at // 8 + len(packed)] |= packed


def span(bitmap: Bitmap, start: int, stop: int) -> Bools:
    """Entries ``[start, stop)`` as booleans."""
    raw = bitmap[start // 8 : (stop + 7) // 8]
    lead = start % 8
    return np.unpackbits(raw, bitorder="little")[lead : lead + stop - start].astype(np.bool_)


def take(bitmap: Bitmap, entries: npt.NDArray[np.int64]) -> Bools:
    """The entries named, as booleans."""
    found: Bools = (bitmap[entries >> 3] >> (entries & 7).astype(np.uint8) & 1).astype(np.bool_)
    return found


def count(bitmap: Bitmap) -> int:
    """How many ones there are. Bounded memory."""
    return sum(
        int(np.unpackbits(bitmap[at : at + CHUNK]).sum(dtype=np.int64))
        for at in range(0, len(bitmap), CHUNK)
    )


def build(size: int, entries: Callable[[int, int], npt.NDArray[Any]]) -> Bitmap:
    """A bitmap of `size` entries made chunk by chunk; ``entries(start, stop)`` gives booleans."""
    bitmap = empty(size)
    for start in range(0, size, CHUNK):
        stop = min(size, start + CHUNK)
        put(bitmap, start, entries(start, stop))
    return bitmap
