"""Bitmaps against arrays of booleans."""

from __future__ import annotations

import numpy as np
import pytest

from windeck.columns import bitmaps


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, (1 << 18) - 1, 1 << 18, (1 << 19) + 3])
def test_counts_before_positions(size: int) -> None:
    rng = np.random.default_rng(size)
    bits = rng.random(size) < 0.3
    bitmap = np.packbits(bits, bitorder="little")
    positions = np.sort(rng.integers(0, size + 1, size=50))
    positions = np.concatenate([[0, 0], positions, [size, size]]).astype(np.int64)
    expected = [int(bits[:position].sum()) for position in positions]
    assert bitmaps.count_before(bitmap, positions).tolist() == expected
    assert bitmaps.count(bitmap) == expected[-1]
