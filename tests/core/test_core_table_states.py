"""The native embedding table against the plain model, in any sequence of calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from models import embedding_model as model
from windeck import _core

Array = np.ndarray[Any, Any]

LEAST, MOST = -(2**63), 2**63 - 1
IDS = st.lists(
    st.one_of(
        st.sampled_from([0, -1, 1, LEAST, MOST, LEAST + 1, MOST - 1]),
        st.integers(min_value=-12, max_value=12),
        st.integers(min_value=LEAST, max_value=MOST),
    ),
    max_size=12,
)
KINDS = {"sgd": 0, "adagrad": 1, "adam": 2}


def int64(ids: list[int]) -> Array:
    return np.array(ids, np.int64)


class TableMachine(RuleBasedStateMachine):
    """A native table and its model, to which every rule does the same."""

    @initialize(
        dim=st.integers(min_value=1, max_value=5),
        kind=st.sampled_from(list(KINDS)),
        unused_slots=st.integers(min_value=0, max_value=2),
        admit_after=st.integers(min_value=1, max_value=3),
        seed=st.integers(min_value=0, max_value=2**64 - 1),
        slot_value=st.sampled_from([0.0, 0.5]),
    )
    def make(
        self,
        dim: int,
        kind: str,
        unused_slots: int,
        admit_after: int,
        seed: int,
        slot_value: float,
    ) -> None:
        """Give the table one optimizer: a moment of Adam may be negative, a sum of Adagrad not."""
        self.kind, slots = kind, min(KINDS[kind] + unused_slots, 2)
        self.options: dict[str, Any] = {
            "slots": slots,
            "seed": seed,
            "admit_after": admit_after,
            "slot_value": slot_value,
            "scale": 0.25,
        }
        self.dim = dim
        self.core = self.fresh()
        self.model = model.Table(dim, **self.options)
        self.held: list[tuple[Any, model.Frozen, int]] = []
        self.history = 0  # what was done that changes and deaths do not tell

    def fresh(self) -> Any:
        return _core.EmbeddingCore(self.dim, initializer="uniform", **self.options)

    @rule(ids=IDS, insert=st.booleans(), threads=st.integers(min_value=1, max_value=2))
    def lookup(self, ids: list[int], insert: bool, threads: int) -> None:
        got = self.core.lookup(int64(ids), insert=insert, threads=threads)
        assert np.array_equal(got, self.model.lookup(ids, insert=insert))

    @rule(
        ids=IDS,
        seed=st.integers(min_value=0, max_value=2**32),
        lr=st.sampled_from([0.0, 0.1, 1.5]),
        weight_decay=st.sampled_from([0.0, 0.01]),
        threads=st.integers(min_value=1, max_value=2),
    )
    def apply(
        self, ids: list[int], seed: int, lr: float, weight_decay: float, threads: int
    ) -> None:
        rng = np.random.default_rng(seed)
        grads = rng.standard_normal((len(ids), self.dim)).astype(np.float32)
        # Powers of these are exact, so that no rounding of pow() comes in between.
        options = {"lr": lr, "weight_decay": weight_decay, "beta1": 0.5, "beta2": 0.75}
        got = self.core.apply(int64(ids), grads, kind=self.kind, threads=threads, **options)
        assert got == self.model.apply(ids, grads, self.kind, **options)

    @rule(ids=IDS)
    def remove(self, ids: list[int]) -> None:
        assert self.core.remove(int64(ids)) == self.model.remove(ids)

    @rule(
        age=st.none() | st.integers(min_value=-1, max_value=2),
        l2_below=st.none() | st.sampled_from([0.0, 0.3, 1.0, 100.0]),
        frequency_below=st.none() | st.integers(min_value=0, max_value=4),
    )
    def evict(self, age: int | None, l2_below: float | None, frequency_below: int | None) -> None:
        conditions: dict[str, Any] = {
            "seen_before": None if age is None else self.model.clock + 1 - age,
            "l2_below": l2_below,
            "frequency_below": frequency_below,
        }
        if any(condition is not None for condition in conditions.values()):
            assert self.core.evict(**conditions).tolist() == self.model.evict(**conditions)

    @rule(ago=st.integers(min_value=0, max_value=3))
    def forget_dead(self, ago: int) -> None:
        clock = self.model.clock - ago
        self.core.forget_dead(clock)
        kept = {i: c for i, c in self.model.dead.items() if c > clock}
        self.history += kept != self.model.dead
        self.model.dead = kept

    @rule()
    def snapshot(self) -> None:
        self.held.append((self.core.snapshot(), self.model.snapshot(), self.history))

    @rule()
    def close_the_oldest(self) -> None:
        if self.held:
            self.held.pop(0)[0].close()

    @rule(parts=st.integers(min_value=1, max_value=5))
    def restore_into_another(self, parts: int) -> None:
        """All that is there goes into a fresh table, part by part."""
        other = self.fresh()
        with self.core.snapshot() as snapshot:
            for part in range(parts):
                other.insert(**snapshot.read(1024 * part // parts, 1024 * (part + 1) // parts))
            other.set_clock(snapshot.clock)
        self.core, self.history = other, parts + 1
        self.model.dead = {}

    @rule()
    def clear(self) -> None:
        if self.model.clock > 8:
            self.core.clear()
            self.history += 1
            self.model = model.Table(self.dim, **self.options)

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "core"):
            return
        assert (self.core.clock, self.core.history) == (self.model.clock, self.history)
        entries = self.model.entries
        rows = [i for i, e in entries.items() if e.row is not None]
        assert (len(self.core), self.core.counted) == (len(rows), len(entries) - len(rows))
        asked = [0, -1, 5, LEAST, MOST, *entries]
        assert self.core.find(int64(asked)).tolist() == [i in rows for i in asked]
        got = self.core.row_values(int64(asked))
        assert np.array_equal(got, np.array([self.model.row(i) for i in asked]))
        facts = self.core.facts(int64(asked))
        known = [entries.get(i, model.Entry()) for i in asked]
        assert facts["frequencies"].tolist() == [e.frequency for e in known]
        with self.core.snapshot() as now:
            model.assert_shows(now, self.model.snapshot(), since=self.model.clock - 2)
        for snapshot, frozen, history in self.held:
            assert snapshot.history == history
            model.assert_shows(snapshot, frozen, parts=3)


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
