"""A model of an embedding table: a dict of ids with the interface of the native core.

It shares no code with the library. The codec is tested with it, and loaded tables are compared
with it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
Int64s = npt.NDArray[np.int64]
#: Ids where arithmetic could go wrong.
EXTREMES = (0, -1, 1, -(2**63), 2**63 - 1, -(2**63) + 1, 2**62, -(2**32), 2**32 - 1)


def bucket(key: int) -> int:
    z = key & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> 54


class Id:
    """The state of an id; `values` is None for an id without a row."""

    def __init__(self, version: int, frequency: int, seen: int, values: Any) -> None:
        self.version, self.frequency, self.seen, self.values = version, frequency, seen, values

    def told(self) -> tuple[Any, ...]:
        values = None if self.values is None else self.values.tobytes()
        return self.version, self.frequency, self.seen, values


class ModelCore:
    """A dict with the interface of the native core."""

    def __init__(
        self, dim: int, slots: int = 0, *, first_bucket: int = 0, end_bucket: int = 1024
    ) -> None:
        self.dim, self.slots = dim, slots
        self.first_bucket, self.end_bucket = first_bucket, end_bucket
        self.ids: dict[int, Id] = {}
        self.gone: dict[int, int] = {}
        self.clock = self.history = 0

    def __len__(self) -> int:
        return sum(entry.values is not None for entry in self.ids.values())

    @property
    def counted(self) -> int:
        return len(self.ids) - len(self)

    def told(self) -> dict[int, tuple[Any, ...]]:
        """Return all ids with their states, for comparison."""
        return {key: entry.told() for key, entry in self.ids.items()}

    def put(self, key: int, version: int, frequency: int, seen: int, values: Any) -> None:
        assert self.first_bucket <= bucket(key) < self.end_bucket
        self.gone.pop(key, None)
        self.ids[key] = Id(version, frequency, seen, values)

    def fill(self, ids: Any, rng: np.random.Generator, *, counted: float = 0.0) -> None:
        """Simulate a training step, in which ids get new random bits or are only counted."""
        self.clock += 1
        for key in ids:
            key = int(key)
            if not self.first_bucket <= bucket(key) < self.end_bucket:
                continue
            bits = rng.integers(0, 256, 4 * (1 + self.slots) * self.dim, np.uint8)
            values = None if rng.random() < counted else bits.view(np.float32)
            was = self.ids.get(key)
            frequency = 1 + (was.frequency if was else 0)
            version = 0 if values is None else self.clock
            self.put(key, version, frequency, self.clock, values)

    def remove(self, ids: Any) -> None:
        for key in ids:
            if self.ids.pop(int(key), None) is not None:
                self.gone[int(key)] = self.clock + 1

    def snapshot(self) -> ModelSnapshot:
        return ModelSnapshot(copy.deepcopy(self))

    def insert(
        self, keys: Int64s, versions: Int64s, frequencies: Int64s, seen: Int64s, admitted: Any,
        values: npt.NDArray[np.float32],
    ) -> None:  # fmt: skip
        rows, self.history = iter(values), self.history + 1
        for i, key in enumerate(keys.tolist()):
            if key in self.ids:
                raise ValueError(f"the id {key} is there already")
            row = next(rows).copy() if admitted[i] else None
            self.put(key, int(versions[i]), int(frequencies[i]), int(seen[i]), row)

    def clear(self) -> None:
        self.ids, self.gone, self.clock, self.history = {}, {}, 0, self.history + 1

    def set_clock(self, clock: int) -> None:
        self.clock, self.history = clock, self.history + 1

    def forget_dead(self, clock: int) -> None:
        kept = {key: when for key, when in self.gone.items() if when > clock}
        self.history += kept != self.gone
        self.gone = kept


class ModelSnapshot:
    def __init__(self, core: ModelCore) -> None:
        self._core, self.clock, self.rows = core, core.clock, len(core)
        self.history = core.history

    def close(self) -> None:
        pass

    def _changed(self, since: int) -> list[int]:
        ids = self._core.ids
        found = [key for key in ids if max(ids[key].version, ids[key].seen) > since]
        return sorted(found, key=lambda key: (bucket(key), key))

    def counts(self, since: int = -1) -> Int64s:
        return np.bincount([bucket(key) for key in self._changed(since)] or [0], minlength=1024) - (
            np.bincount([0], minlength=1024) if not self._changed(since) else 0
        )

    def read(self, first_bucket: int, end_bucket: int, since: int = -1) -> dict[str, Any]:
        keys = [k for k in self._changed(since) if first_bucket <= bucket(k) < end_bucket]
        entries = [self._core.ids[key] for key in keys]
        width = (1 + self._core.slots) * self._core.dim
        rows = [entry.values for entry in entries if entry.values is not None]
        return {
            "keys": np.array(keys, np.int64),
            "versions": np.array([entry.version for entry in entries], np.int64),
            "frequencies": np.array([entry.frequency for entry in entries], np.int64),
            "seen": np.array([entry.seen for entry in entries], np.int64),
            "admitted": np.array([entry.values is not None for entry in entries], bool),
            "values": np.array(rows, np.float32).reshape(len(rows), width),
        }

    def dead(self, since: int) -> tuple[Int64s, Int64s]:
        gone = [(key, when) for key, when in self._core.gone.items() if when > since]
        gone.sort(key=lambda pair: (bucket(pair[0]), pair[0]))
        keys, clocks = zip(*gone, strict=True) if gone else ((), ())
        return np.array(keys, np.int64), np.array(clocks, np.int64)


class ModelTable:
    """A table that `save(embeddings=)` and `load(embeddings=)` accept."""

    def __init__(self, core: Any, **config: Any) -> None:
        self.core, self.config = core, {"optimizer": "adagrad", **config}


def native(core: ModelCore, **options: Any) -> Any:
    """Return the library's own table with the contents of the model."""
    from windeck._core import EmbeddingCore

    ranges: dict[str, Any] = {"first_bucket": core.first_bucket, "end_bucket": core.end_bucket}
    made = EmbeddingCore(core.dim, slots=core.slots, **ranges, **options)
    found = core.snapshot().read(0, 1024)
    made.insert(*(found[name] for name in FIELDS))
    made.set_clock(core.clock)
    return made


FIELDS = ("keys", "versions", "frequencies", "seen", "admitted", "values")


def told_by(core: Any) -> dict[int, tuple[Any, ...]]:
    """Return the contents of the library's own table in the form of `ModelCore.told`."""
    with core.snapshot() as snapshot:
        found = snapshot.read(0, 1024)
    rows = iter(found["values"])
    numbers = zip(*(found[name].tolist() for name in FIELDS[:5]), strict=True)
    return {
        key: (version, frequency, seen, next(rows).tobytes() if admitted else None)
        for key, version, frequency, seen, admitted in numbers
    }
