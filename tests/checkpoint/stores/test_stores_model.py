"""Tests of all stores with random operations, compared with a dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from support.store_servers import KINDS
from windeck.checkpoint.stores import Snapshot, open_store

# Few and alike, so that they meet: prefixes of each other, ends of the range, Redis' patterns.
KEYS = st.lists(st.sampled_from([b"a", b"b", b"\0", b"\xff", b"*", b"{"]), min_size=1, max_size=3)
KEY = KEYS.map(b"".join)
BOUND = st.none() | KEY
VALUE = st.binary(max_size=3) | st.integers(0, 9).map(lambda i: bytes([i]) * 70_000)
PAIRS = st.lists(st.tuples(KEY, VALUE), max_size=8)


class Machine(RuleBasedStateMachine):
    """A store and its model; `url` returns the URL of an empty one."""

    url: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.where = self.url()
        self.store = open_store(self.where)
        self.model: dict[bytes, bytes] = {}
        self.views: list[tuple[Snapshot, dict[bytes, bytes]]] = []

    def teardown(self) -> None:
        for view, model in self.views:
            assert list(view.scan()) == sorted(model.items())
            view.close()
        self.views = []
        assert list(self.store.scan()) == sorted(self.model.items())
        self.store.close()

    @rule(pairs=PAIRS)
    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.store.put_many(pairs)
        self.model.update(pairs)

    @rule(pairs=PAIRS)
    def bulk_load(self, pairs: list[tuple[bytes, bytes]]) -> None:
        items = dict(pairs)
        assert self.store.bulk_load(sorted(items.items())) == len(items)
        self.model.update(items)

    @rule(keys=st.lists(KEY, max_size=4))
    def delete_many(self, keys: list[bytes]) -> None:
        self.store.delete_many(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(prefix=st.just(b"") | KEY, start=BOUND, stop=BOUND)
    def delete_range(self, prefix: bytes, start: bytes | None, stop: bytes | None) -> None:
        self.store.delete_range(prefix, start=start, stop=stop)
        for key in self.within(prefix, start, stop):
            del self.model[key]

    @rule(key=KEY, guess=st.none() | VALUE, right=st.booleans(), value=VALUE)
    def compare_and_set(self, key: bytes, guess: bytes | None, right: bool, value: bytes) -> None:
        expected = self.model.get(key) if right else guess
        done = self.store.compare_and_set(key, expected, value)
        assert done == (expected == self.model.get(key))
        if done:
            self.model[key] = value

    @rule(keys=st.lists(KEY, max_size=5))
    def get(self, keys: list[bytes]) -> None:
        assert self.store.get_many(keys) == [self.model.get(key) for key in keys]
        for key in keys[:1]:
            assert self.store.get(key) == self.model.get(key)

    @rule(prefix=st.just(b"") | KEY, start=BOUND, stop=BOUND)
    def scan(self, prefix: bytes, start: bytes | None, stop: bytes | None) -> None:
        keys = self.within(prefix, start, stop)
        assert list(self.store.keys(prefix, start=start, stop=stop)) == keys
        found = list(self.store.scan(prefix, start=start, stop=stop))
        assert found == [(key, self.model[key]) for key in keys]

    @rule()
    def snapshot(self) -> None:
        if self.store.facts.snapshots and len(self.views) < 3:
            self.views.append((self.store.snapshot(), dict(self.model)))

    @rule()
    def check_snapshot(self) -> None:
        if self.views:
            view, model = self.views.pop(0)
            assert list(view.scan()) == sorted(model.items())
            assert view.get_many(list(model)) == list(model.values())
            view.close()

    @rule()
    def sync(self) -> None:
        if self.store.facts.backend != "redis":  # a process of its own there, each time
            self.store.sync()

    @rule()
    def reopen(self) -> None:
        for view, _ in self.views:
            view.close()
        self.views = []
        self.store.close()
        self.store = open_store(self.where)

    def within(self, prefix: bytes, start: bytes | None, stop: bytes | None) -> list[bytes]:
        return sorted(
            key
            for key in self.model
            if key.startswith(prefix)
            and (start is None or key >= start)
            and (stop is None or key < stop)
        )


def run(kind: str, fresh: Callable[[str], str], examples: int, steps: int) -> None:
    machine: Any = type(f"{kind}Machine", (Machine,), {"url": staticmethod(lambda: fresh(kind))})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_any_sequence_of_operations(kind: str, fresh: Callable[[str], str]) -> None:
    run(kind, fresh, examples=10 if kind == "cluster" else 25, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_more_sequences(kind: str, fresh: Callable[[str], str]) -> None:
    run(kind, fresh, examples=300, steps=50)
