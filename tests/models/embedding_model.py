"""A model of the native embedding table in plain Python and NumPy."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
BUCKETS = 1024


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def absorb(state: int, word: int) -> int:
    return mix(state ^ mix((word + GOLDEN) & WORD))


def bucket_of(i: int) -> int:
    return mix(i & WORD) >> 54


def units(seed: int, i: int, count: int) -> list[float]:
    """Return `count` numbers in (0, 1) derived from a seed and an id."""
    state = 0
    for word in (int.from_bytes(b"initial1", "big"), seed, i & WORD):
        state = absorb(state, word)
    return [((mix((state + (j + 1) * GOLDEN) & WORD) >> 11) + 0.5) * 2.0**-53 for j in range(count)]


def uniform(seed: int, i: int, dim: int, scale: float) -> Array:
    return np.array([scale * (2 * u - 1) for u in units(seed, i, dim)], np.float64).astype(
        np.float32
    )


@dataclass
class Entry:
    version: int = 0
    frequency: int = 0
    seen: int = 0
    row: Array | None = None

    def copy(self) -> Entry:
        row = None if self.row is None else self.row.copy()
        return Entry(self.version, self.frequency, self.seen, row)


@dataclass
class Frozen:
    """The expected contents of a snapshot."""

    clock: int
    entries: dict[int, Entry]
    dead: dict[int, int]

    def changed(self, since: int) -> list[int]:
        found = [i for i, e in self.entries.items() if max(e.version, e.seen) > since]
        return sorted(found, key=lambda i: (bucket_of(i), i))


class Table:
    def __init__(
        self,
        dim: int,
        *,
        slots: int = 0,
        scale: float = 0.01,
        slot_value: float = 0.0,
        seed: int = 0,
        admit_after: int = 1,
    ) -> None:
        self.dim, self.slots, self.scale = dim, slots, scale
        self.slot_value, self.seed, self.admit_after = slot_value, seed, admit_after
        self.clock = 0
        self.entries: dict[int, Entry] = {}
        self.dead: dict[int, int] = {}

    def new_row(self, i: int) -> Array:
        slots = np.full(self.slots * self.dim, self.slot_value, np.float32)
        return np.concatenate([uniform(self.seed, i, self.dim, self.scale), slots])

    def row(self, i: int) -> Array:
        entry = self.entries.get(i)
        return self.new_row(i) if entry is None or entry.row is None else entry.row

    def lookup(self, ids: list[int], *, insert: bool) -> Array:
        for i in ids if insert else []:
            entry = self.entries.setdefault(i, Entry())
            self.dead.pop(i, None)
            entry.frequency += 1
            entry.seen = self.clock + 1
            if entry.row is None and entry.frequency >= self.admit_after:
                entry.row = self.new_row(i)
        rows = [self.row(i)[: self.dim] for i in ids]
        return np.array(rows, np.float32).reshape(len(ids), self.dim)

    def apply(self, ids: list[int], grads: Array, kind: str, **options: float) -> int:
        self.clock += 1
        sums: dict[int, Array] = {}
        for i, g in zip(ids, grads, strict=True):
            entry = self.entries.get(i)
            if entry is not None and entry.row is not None:
                sums[i] = sums[i] + g if i in sums else g.copy()
        for i, g in sums.items():
            entry = self.entries[i]
            assert entry.row is not None
            entry.version = self.clock
            step(entry.row.reshape(1 + self.slots, self.dim), g, kind, self.clock, **options)
        return len(sums)

    def remove(self, ids: list[int]) -> int:
        removed = [i for i in dict.fromkeys(ids) if self.entries.pop(i, None) is not None]
        self.dead.update(dict.fromkeys(removed, self.clock + 1))
        return len(removed)

    def evict(
        self,
        *,
        seen_before: int | None = None,
        l2_below: float | None = None,
        frequency_below: int | None = None,
    ) -> list[int]:
        gone = []
        for i, e in self.entries.items():
            conditions = [
                seen_before is None or e.seen < seen_before,
                frequency_below is None or e.frequency < frequency_below,
                l2_below is None or (e.row is not None and self.norm(e.row) < l2_below),
            ]
            if all(conditions):
                gone.append(i)
        self.remove(gone)
        return sorted(gone, key=lambda i: (bucket_of(i), i))

    def norm(self, row: Array) -> float:
        return math.sqrt(sum(float(x) * float(x) for x in row[: self.dim]))

    def snapshot(self) -> Frozen:
        entries = {i: entry.copy() for i, entry in self.entries.items()}
        return Frozen(self.clock, entries, dict(self.dead))


def step(
    row: Array,
    g: Array,
    kind: str,
    clock: int,
    *,
    lr: float,
    eps: float = 1e-10,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
) -> None:
    """Apply one update to a row of shape (1 + slots, dim), in float32 as table.hpp does."""
    f = np.float32
    if weight_decay != 0:
        g = g + f(weight_decay) * row[0]
    if kind == "sgd":
        row[0] -= f(lr) * g
    elif kind == "adagrad":
        row[1] += g * g
        row[0] -= f(lr) * (g / (np.sqrt(row[1]) + f(eps)))
    else:
        row[1] = f(beta1) * row[1] + f(1 - beta1) * g
        row[2] = f(beta2) * row[2] + f(1 - beta2) * (g * g)
        root = f(math.sqrt(1 - beta2**clock))
        row[0] -= f(lr / (1 - beta1**clock)) * (row[1] / (np.sqrt(row[2]) / root + f(eps)))


def assert_shows(snapshot: Any, frozen: Frozen, *, since: int = -1, parts: int = 1) -> None:
    """Assert that a native snapshot, read in `parts` ranges, equals the model's copy."""
    assert snapshot.clock == frozen.clock
    assert len(snapshot) == len(frozen.entries)
    expected = frozen.changed(since)
    counts = np.bincount([bucket_of(i) for i in expected], minlength=BUCKETS)
    assert np.array_equal(snapshot.counts(since), counts)
    bounds = [BUCKETS * part // parts for part in range(parts + 1)]
    read = [snapshot.read(a, b, since) for a, b in itertools.pairwise(bounds)]
    got = {key: np.concatenate([part[key] for part in read]) for key in read[0]}
    entries = [frozen.entries[i] for i in expected]
    assert got["keys"].tolist() == expected
    assert got["versions"].tolist() == [e.version for e in entries]
    assert got["frequencies"].tolist() == [e.frequency for e in entries]
    assert got["seen"].tolist() == [e.seen for e in entries]
    assert got["admitted"].tolist() == [e.row is not None for e in entries]
    rows = [e.row for e in entries if e.row is not None]
    assert got["values"].shape == (len(rows), snapshot.width)
    values = np.array(rows, np.float32).reshape(got["values"].shape)
    assert np.array_equal(got["values"].view(np.int32), values.view(np.int32))
    dead = {i: clock for i, clock in frozen.dead.items() if clock > since}
    keys, clocks = snapshot.dead(since)
    assert keys.tolist() == sorted(dead, key=lambda i: (bucket_of(i), i))
    assert clocks.tolist() == [dead[i] for i in keys.tolist()]
