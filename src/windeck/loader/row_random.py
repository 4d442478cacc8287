"""Random numbers of rows: functions of a seed and of the position of each row alone.

A counter-based generator, Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), is evaluated for all
rows of a batch together. A row gets the same numbers in a batch of any size, on any rank, before
and after a resume.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windeck._core import hash_words
from windeck._util.validation import check_integer
from windeck.sources import Indices

__all__ = ["RowRandom", "philox"]

# Purposes that keys are derived for.
_ROWS, _GENERATORS = 21, 22
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return 4 words of 32 bits for each counter: Philox4x32-10.

    Parameters
    ----------
    counter
        Words of 32 bits, shape (4, n).
    key
        64 bits.

    Returns
    -------
    uint64 array of shape (4, n)
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (second >> _HALF) ^ c1 ^ np.uint64(k0), (first >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


class RowRandom:
    """Random numbers for the rows of a batch; successive calls give independent numbers.

    Each method returns an array whose first axis is that of the rows. Row b depends on the seed, on
    ``positions[b]`` and on the number of calls before.

    Attributes
    ----------
    positions : int64 array of shape (rows,)
        The position of each row in the stream.

    Examples
    --------
    >>> both = RowRandom(7, np.array([100, 101])).uniform(3)
    >>> alone = RowRandom(7, np.array([101])).uniform(3)
    >>> both.shape, bool((both[1] == alone[0]).all())
    ((2, 3), True)
    """

    def __init__(self, seed: int, positions: Indices) -> None:
        self.positions = positions
        self._seed = seed
        self._key = hash_words(seed, _ROWS)
        self._calls = 0

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), multiples of 2^-53, of shape (rows, *shape)."""
        count = math.prod(shape)
        blocks = -(-count // 2)
        rows = len(self.positions)
        counter = np.empty((4, rows, blocks), np.uint64)
        places = self.positions.astype(np.uint64)[:, None]
        counter[0] = np.arange(blocks, dtype=np.uint64)
        counter[1] = self._calls
        counter[2], counter[3] = places & _LOW, places >> _HALF
        self._calls += 1
        words = philox(counter.reshape(4, -1), self._key).reshape(2, 2, rows, blocks)
        high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
        numbers = (high * np.uint64(1 << 26) + low) * 2.0**-53
        # Axes (half of a block, row, block): numbers of a row in the order of blocks.
        flat = numbers.transpose(1, 2, 0).reshape(rows, 2 * blocks)[:, :count]
        return np.ascontiguousarray(flat).reshape(rows, *shape)

    def integers(self, low: int, high: int, *shape: int) -> NDArray[np.int64]:
        """Return integers in [low, high), of shape (rows, *shape); at most 2^32 different ones."""
        check_integer("high - low", high - low, least=1, most=2**32)
        return (self.uniform(*shape) * (high - low)).astype(np.int64) + low

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Return numbers of the standard normal distribution, of shape (rows, *shape).

        By Box and Muller: the last bits may differ between platforms.
        """
        first, second = self.uniform(*shape), self.uniform(*shape)
        numbers: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-first))
        numbers *= np.cos(2 * np.pi * second)
        return numbers

    def generator(self, row: int) -> np.random.Generator:
        """Return a generator of NumPy for one row, always the same: of its position."""
        position = int(self.positions[row])
        key = np.array([hash_words(self._seed, _GENERATORS), 0], np.uint64)
        counter = np.array([0, 0, position, 0], np.uint64)
        bits: Any = np.random.Philox(counter=counter, key=key)
        return np.random.Generator(bits)
