"""Tests of incremental saves, compared with `incremental_model`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.incremental_model import CHUNK, Model, State, copied, log_of, named
from support.internals import plant
from support.store_servers import KINDS
from support.stored_keys import data_keys, parsed
from windeck import checkpoint
from windeck.checkpoint.format import HEADER_BYTES
from windeck.checkpoint.stores import Store, open_store
from windeck.checkpoint.write import find_base, read_base_values

Fresh = Callable[[str], str]


class Run:
    """A training run, saved both to a store and to the model."""

    def __init__(self, store: Store) -> None:
        self.store, self.model = store, Model()
        self.items: dict[int, list[str]] = {}

    def save(self, state: State, *, incremental: bool = True, longest: int = 8) -> int:
        number = checkpoint.save(
            self.store, step=len(self.items), model=state, extra={"step": len(self.items)},
            chunk_bytes=CHUNK, incremental=incremental, longest_chain=longest,
        )  # fmt: skip
        self.model.save(number, state, incremental=incremental, longest=longest)
        self.items[number] = [name for name, tensor in state.items() if tensor.numel()]
        return number

    def gc(self, keep: int) -> None:
        before = set(self.store.keys(b""))
        told = checkpoint.gc(self.store, keep=keep, dry_run=True)
        assert set(self.store.keys(b"")) == before
        assert checkpoint.gc(self.store, keep=keep) == told
        gone = before - set(self.store.keys(b""))
        assert told == sorted({parsed(key)[1] for key in gone})
        assert checkpoint.gc(self.store, keep=keep) == []
        self.model.gc(keep)

    def check(self) -> None:
        commits = checkpoint.log(self.store)
        assert [(c.generation, c.bases) for c in commits] == log_of(self.model)
        for number, saved in self.model.kept.items():
            target = {name: torch.full_like(t, 99) for name, t in saved.state.items()}
            checkpoint.load(self.store, model=target, generation=number)
            for name, tensor in saved.state.items():
                assert target[name].numpy().tobytes() == tensor.numpy().tobytes()
        there = named(data_keys(self.store, "t"), self.items)
        assert there >= self.model.chunks_there()

    def check_exact(self) -> None:
        """Assert that no chunk is left after gc that no generation needs."""
        self.check()
        there = named(data_keys(self.store, "t"), self.items)
        assert there == self.model.chunks_there()
        kept = set(self.model.kept)
        left = map(parsed, self.store.keys(b""))
        assert {number for letter, number in left if letter in [*"mdes"]} <= kept


def first_state() -> State:
    generator = torch.Generator().manual_seed(5)
    return {
        "w": torch.randn(41, generator=generator),
        "v": torch.arange(18, dtype=torch.int16).reshape(2, 9),
        "none": torch.empty(0, 3),
        "one": torch.tensor(2.5, dtype=torch.float64),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_run_with_gc_in_the_middle_of_chains(kind: str, fresh: Fresh) -> None:
    random = np.random.default_rng(3)
    state = first_state()
    with open_store(fresh(kind)) as store:
        run = Run(store)
        for step in range(20):
            for place in random.integers(0, 41, random.integers(0, 4)):
                state["w"][int(place)] += 1
            if step % 7 == 3:
                state["v"] = torch.randint(0, 9, (2, 9 + step % 2), dtype=torch.int16)
            run.save(state, incremental=step % 11 != 10, longest=4)
            if step % 5 == 4:
                run.gc(1 + step % 3)
                run.check_exact()


class Unordered:
    """A store that declares unordered scans, as Redis does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.facts = store.facts._replace(ordered=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Life(RuleBasedStateMachine):
    """Any sequence of changes, saves, removals and loads."""

    @initialize(ordered=some.booleans())
    def begin(self, ordered: bool) -> None:
        self.store = open_store("memory://")
        if not ordered:
            self.store = cast(Store, Unordered(self.store))
        self.run, self.state, self.serial = Run(self.store), first_state(), 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    @rule(place=some.integers(0, 40), count=some.integers(1, 9))
    def change(self, place: int, count: int) -> None:
        self.serial += 1
        if "w" in self.state:
            self.state["w"].view(-1)[place : place + count] = self.serial

    @rule()
    def change_back(self) -> None:
        self.state = first_state()

    @rule(name=some.sampled_from(["w", "v", "one"]))
    def lose_or_bring(self, name: str) -> None:
        if self.state.pop(name, None) is None:
            self.state[name] = first_state()[name]

    @rule(shape=some.sampled_from([(41,), (42,), (7, 6), (0,)]), double=some.booleans())
    def become_another(self, shape: tuple[int, ...], double: bool) -> None:
        self.state["w"] = torch.ones(shape, dtype=torch.float64 if double else torch.float32)

    @rule(incremental=some.booleans(), longest=some.integers(0, 4))
    def save(self, incremental: bool, longest: int) -> None:
        self.run.save(self.state, incremental=incremental, longest=longest)

    @rule()
    def save_more(self) -> None:
        self.run.save(self.state)

    @precondition(lambda self: self.run.model.kept)
    @rule(keep=some.integers(1, 4))
    def gc(self, keep: int) -> None:
        self.run.gc(keep)
        self.run.check_exact()

    @invariant()
    def all_come_back(self) -> None:
        if hasattr(self, "run"):
            self.run.check()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def many(store: Store, **options: Any) -> list[int]:
    """Saves of a state whose first chunk alone changes; how many chunks each wrote."""
    state, found = {"w": torch.zeros(40)}, []
    for step in range(7):
        state["w"][0] = step
        number = checkpoint.save(store, step=step, model=state, chunk_bytes=CHUNK, lower_step=True,
                                 **options)  # fmt: skip
        found.append(len(list(store.keys(b"~windeck~%016x/t/" % number))))
    return found


def test_when_all_is_written() -> None:
    with open_store("memory://") as store:
        assert many(store) == [10] * 7
        assert not data_keys(store, "d")
    with open_store("memory://") as store:
        assert many(store, incremental=True) == [10, 1, 1, 1, 1, 1, 1]
        # The first chunk is always new, the others are those of generation 1: a chain of one.
        assert [commit.bases for commit in checkpoint.log(store)] == [(1,)] * 6 + [()]
        last = checkpoint.log(store)[0]
        full = checkpoint.save(store, step=9, model={"w": torch.zeros(40)}, chunk_bytes=CHUNK)
        more = checkpoint.save(
            store, step=10, model={"w": torch.zeros(40)}, chunk_bytes=CHUNK, incremental=True
        )
        commits = {commit.generation: commit for commit in checkpoint.log(store)}
        assert last.bases == (1,)
        assert commits[full].bases == commits[more].bases == ()  # the full one left no digests
    with open_store("memory://") as store:
        assert many(store, incremental=True, longest_chain=0) == [10] * 7
    with open_store("memory://") as store:
        # Generation 2 refers to 1, so that 3 could refer to both: longer than 1.
        assert many(store, incremental=True, longest_chain=1) == [10, 1, 10, 1, 10, 1, 10]


def test_other_chunks_and_other_namespaces_are_not_referred_to() -> None:
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        options: dict[str, Any] = {"step": 1, "model": state, "incremental": True}
        checkpoint.save(store, chunk_bytes=16, **options)
        checkpoint.save(store, chunk_bytes=32, **options)
        checkpoint.save(store, chunk_bytes=32, namespace="other", **options)
        checkpoint.save(store, chunk_bytes=32, **options)
        assert [commit.bases for commit in checkpoint.log(store)] == [(2,), (), ()]
        assert [commit.bases for commit in checkpoint.log(store, namespace="other")] == [()]


def test_strided_and_tied_tensors() -> None:
    base = torch.arange(60.0).reshape(6, 10)
    with open_store("memory://") as store:
        for step in range(3):
            state = {"turned": base.t(), "same": base.t(), "part": base[:, 2:5]}
            number = checkpoint.save(
                store, step=step, model=state, chunk_bytes=CHUNK, incremental=True
            )
            written = len(list(store.keys(b"~windeck~%016x/t/" % number)))
            assert written == (15 + 5, 1, 2 + 1)[step]
            target = {name: torch.empty(tensor.shape) for name, tensor in state.items()}
            checkpoint.load(store, model=target)
            assert all(torch.equal(target[name], state[name]) for name in state)
            base[0, step] = -1.0 - step  # then columns 0, 1 (next time 2, which `part` has)
            if step == 1:
                base[0, 2] = 77


@pytest.mark.parametrize("size", [16, 48, 160, 176, 1 << 20])
def test_digests_in_several_values(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of more than 65,536 chunks are stored."""
    plant(monkeypatch, "incremental._VALUE_BYTES", size)
    state = {"w": torch.arange(6 * CHUNK // 4, dtype=torch.int32)}
    state["b"] = torch.arange(5 * CHUNK, dtype=torch.uint8)
    with open_store("memory://") as store:
        run = Run(store)
        for turn in range(4):
            number = run.save(state)
            prefix = f"~windeck~{number:016x}/d/".encode()
            held = [len(value) - HEADER_BYTES for _, value in store.scan(prefix)]
            assert held == [min(size, 176 - at) for at in range(0, 176, size)]
            state = copied(state)
            state["w"][turn] += 1
            state["b"][-1 - CHUNK * turn] += 1
        run.check()
        assert checkpoint.verify(store, deep=True).ok


def test_optimizer_and_slices_of_what_was_kept() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 5))
    model[0].requires_grad_(False)
    adam = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    with open_store("memory://") as store:
        for step in range(4):
            model(torch.randn(3, 20)).square().sum().backward()
            adam.step()
            checkpoint.save(
                store, step=step, model=model, optimizer=adam, chunk_bytes=64, incremental=True
            )
        with checkpoint.open(store) as found:
            assert checkpoint.log(store)[0].bases == (1,)  # the frozen layer
            state = model.state_dict()
            frozen = found.slice("model/0.weight", (slice(3, 9), 4))
            assert torch.equal(frozen, state["0.weight"][3:9, 4])
            assert torch.equal(found.row("model/1.weight", 2), state["1.weight"][2])


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"incremental": 1}, TypeError, "^`incremental` must be a bool, got int$"),
        ({"longest_chain": 1.0}, TypeError, "^`longest_chain` must be an int, got float$"),
        ({"longest_chain": -1}, ValueError, "^`longest_chain` must be at least 0, got -1$"),
        ({"longest_chain": 1001}, ValueError, "^`longest_chain` must be at most 1000, got 1001$"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with open_store("memory://") as store:
        with pytest.raises(kind, match=words):
            checkpoint.save(store, step=1, model={}, **options)
        assert not list(store.keys())


def test_a_second_writer_between() -> None:
    """The slower of two saves refers to no chunk that gc may delete; the other one is complete."""
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        run = Run(store)
        run.save(state)

        class Slow(dict):  # type: ignore[type-arg]
            """A state whose save is interrupted by another save and a gc."""

        other = copied(state)
        other["w"][:] = 1

        class Meddled:
            def __init__(self) -> None:
                self.done = False

            def bulk_load(self, items: Any) -> int:
                if not self.done:
                    self.done = True
                    run.save(other)
                    run.gc(1)
                return store.bulk_load(items)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        with pytest.raises(RuntimeError, match="step 9 was not committed to windeck, generation 3"):
            checkpoint.save(
                Meddled(), step=9, model=Slow(state), chunk_bytes=CHUNK, incremental=True
            )
        run.check()
        assert not list(store.keys(b"~windeck~%016x/t/" % 2))


def test_no_warning_where_there_is_nothing_to_warn_of(fresh: Fresh) -> None:
    with warnings.catch_warnings(), open_store("memory://") as store:
        warnings.simplefilter("error")
        many(store, incremental=True)
        many(store)
        many(store, incremental=True)


def test_what_is_read_to_find_a_base(memory: Store) -> None:
    """It is all that another process needs to find the same."""
    state = {"w": torch.arange(3 * CHUNK, dtype=torch.uint8), "empty": torch.empty(0)}
    options: dict[str, Any] = {"step": 1, "chunk_bytes": CHUNK, "incremental": True}
    plan = checkpoint.begin(memory, writers=1, **options)
    assert read_base_values(memory, plan) == {}
    checkpoint.save(memory, model=state, **options)
    plan = checkpoint.begin(memory, writers=1, **options)
    found = read_base_values(memory, plan)
    assert [parsed(key)[0] for key in found] == ["", "m", "d"]
    assert all(memory.get(key) == value for key, value in found.items())
    base = find_base(found, plan)
    assert base == find_base(memory, plan)
    assert base is not None
    assert list(map(len, base.digests.values())) == [3 * 16]
