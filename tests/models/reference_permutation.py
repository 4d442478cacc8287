"""A model of `Permutation`, written from the prose of hash.hpp and permutation.hpp alone.

Plain Python integers for the keys, NumPy for the rounds, and the number of rounds is a parameter:
the battery in test_permutation_rounds.py decides with it how many are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
ROUNDS = 6

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def hashed(*words: int) -> int:
    state = 0
    for word in words:
        state = mix(state ^ mix((word + GOLDEN) % WORD))
    return state


def key(state: int, i: int) -> int:
    return mix((state + (i + 1) * GOLDEN) % WORD)


@dataclass(frozen=True)
class ReferencePermutation:
    """A bijection of [0, size), with any number of rounds."""

    size: int
    seed: int = 0
    epoch: int = 0
    rounds: int = ROUNDS
    bits: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", max(8, (self.size - 1).bit_length()))

    def __len__(self) -> int:
        return self.size

    @cached_property
    def _keys(self) -> tuple[list[tuple[int, int]], int]:
        state = hashed(1, self.size, self.seed, self.epoch)
        domain = 2**self.bits
        steps = [
            (key(state, 2 * r) % domain // 8 * 8 + 5, key(state, 2 * r + 1) % domain // 2 * 2 + 1)
            for r in range(self.rounds)
        ]
        return steps, key(state, 2 * self.rounds) % domain

    def _evaluate(self, x: Words) -> Words:
        steps, last = self._keys
        mask, half = np.uint64(2**self.bits - 1), np.uint64((self.bits + 1) // 2)
        for a, c in steps:
            x = x ^ (x >> half)
            x = (np.uint64(a) * x + np.uint64(c)) & mask
        result: Words = (x ^ (x >> half)) + np.uint64(last) & mask
        return result

    def _undo(self, x: Words) -> Words:
        steps, last = self._keys
        mask, half = np.uint64(2**self.bits - 1), np.uint64((self.bits + 1) // 2)
        x = (x - np.uint64(last)) & mask
        x = x ^ (x >> half)
        for a, c in reversed(steps):
            inverse = pow(a, -1, 2**self.bits)
            x = np.uint64(inverse) * (x - np.uint64(c)) & mask
            x = x ^ (x >> half)
        return x

    def _walk(self, values: npt.ArrayLike, *, back: bool) -> Indices:
        step = self._undo if back else self._evaluate
        x = step(np.asarray(values).astype(np.uint64))
        outside = np.flatnonzero(x >= np.uint64(self.size))
        while len(outside):
            x[outside] = step(x[outside])
            outside = outside[x[outside] >= np.uint64(self.size)]
        return x.astype(np.int64)

    def take(self, positions: npt.ArrayLike) -> Indices:
        """Return the samples at the given positions."""
        return self._walk(positions, back=False)

    def index(self, samples: npt.ArrayLike) -> Indices:
        """Return the positions of the given samples."""
        return self._walk(samples, back=True)

    def slice(self, start: int, stop: int) -> Indices:
        """Return the samples at positions start to stop."""
        return self.take(np.arange(start, stop))


def _mix_words(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Words = z ^ (z >> np.uint64(31))
    return result


def many_orders(size: int, count: int, *, rounds: int = ROUNDS, first_seed: int = 0) -> Indices:
    """Return the orders of `count` seeds, one a row, for statistics over many seeds."""
    golden = np.uint64(GOLDEN)
    seeds = np.arange(first_seed, first_seed + count, dtype=np.uint64)
    state = _mix_words(np.uint64(hashed(1, size)) ^ _mix_words(seeds + golden))
    state = _mix_words(state ^ np.uint64(mix(GOLDEN)))  # epoch 0
    bits = max(8, (size - 1).bit_length())
    mask, half = np.uint64(2**bits - 1), np.uint64((bits + 1) // 2)

    def keys(i: int) -> Words:
        column: Words = _mix_words(state + np.uint64((i + 1) * GOLDEN % WORD))[:, None]
        return column

    def evaluate(x: Words, rows: slice | Indices) -> Words:
        for r in range(rounds):
            x = x ^ (x >> half)
            a = (keys(2 * r)[rows] & ~np.uint64(7)) | np.uint64(5)
            x = (a * x + (keys(2 * r + 1)[rows] | np.uint64(1))) & mask
        result: Words = ((x ^ (x >> half)) + keys(2 * rounds)[rows]) & mask
        return result

    x = evaluate(np.tile(np.arange(size, dtype=np.uint64), (count, 1)), slice(None))
    while True:
        rows, columns = np.nonzero(x >= np.uint64(size))
        if not len(rows):
            return x.astype(np.int64)
        x[rows, columns] = evaluate(x[rows, columns][:, None], rows)[:, 0]
