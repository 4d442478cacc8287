"""Loops, positions and past steps of the loader, compared with the oracle."""

from __future__ import annotations

import itertools
import json
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from models.oracle import Numbers, Run, Turn, epoch_of, one_step, steps, turned
from support.internals import original, plant
from windeck import Loader, Stream
from windeck.loader import IterDataset, iterated_loaders


def loop(loader: Loader) -> list[list[int]]:
    """Return the samples of one ``for`` loop, batch by batch."""
    return [batch["sample"].tolist() for batch in loader]


def served(run: Run, position: int = 0, rank: int = 0) -> list[list[int]]:
    """Return the batches of a rank in one loop of the oracle, in the order of `Turn`."""
    return [[turned(run.size, p) for p in shares[rank]] for shares in epoch_of(run, position)]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_one_loop_is_one_epoch_and_the_next_goes_on(prefetch: int, drop_last: bool) -> None:
    run = Run(10, 3, drop_last=drop_last)
    loader = Loader(Numbers(10), batch_size=3, order=Turn, drop_last=drop_last, prefetch=prefetch)
    for epoch in range(3):
        assert loader.epoch == epoch
        assert len(loader) == loader.steps_left == (3 if drop_last else 4)
        assert loop(loader) == served(run, 10 * epoch)
        # The position stays after the last full batch; the next request moves it on.
        assert loader.position == 10 * epoch + (9 if drop_last else 10)
        assert loader.step == len(loader) * (epoch + 1)


def test_shuffle_is_the_permutation_anew_in_every_epoch() -> None:
    stream = Stream(Numbers(20), seed=5)
    loader = Loader(Numbers(20), batch_size=20, shuffle=True, seed=5)
    epochs = [loop(loader)[0] for _ in range(3)]
    assert epochs == stream.samples(np.arange(60)).reshape(3, 20).tolist()
    assert epochs[0] != epochs[1] != list(range(20))
    assert loop(Loader(Numbers(20), batch_size=20)) == [list(range(20))]


def test_batches_are_tensors_on_the_sources_own_memory() -> None:
    source, given_out = Numbers(8), []
    original = source.gather

    def keeping(indices: NDArray[np.int64], out: None = None) -> dict[str, NDArray[np.generic]]:
        given_out.append(original(indices, out))
        return given_out[-1]

    source.gather = keeping  # type: ignore[method-assign, assignment]
    for batch, arrays in zip(Loader(source, batch_size=3, prefetch=0), given_out, strict=True):
        assert batch["row"].dtype == torch.float32
        assert batch["row"].data_ptr() == arrays["row"].ctypes.data
        batch["row"] += 1  # Users may write to a batch.


def test_bits_become_bfloat16() -> None:
    class Bits(Numbers):
        torch_dtypes = {"bits": "bfloat16"}  # noqa: RUF012

        def gather(
            self, indices: NDArray[np.int64], out: object = None
        ) -> dict[str, NDArray[np.generic]]:
            single = indices.astype(np.float32)
            return {"bits": (single.view(np.uint32) >> 16).astype(np.uint16)}

    (batch,) = Loader(Bits(5), batch_size=5)
    assert batch["bits"].dtype == torch.bfloat16
    assert batch["bits"].tolist() == [0, 1, 2, 3, 4]


def test_a_loop_after_break_goes_on() -> None:
    loader, seen = Loader(Numbers(10), batch_size=2, order=Turn), []
    for batch in loader:
        seen.append(batch["sample"].tolist())
        if len(seen) == 2:
            break
    assert (loader.position, loader.step, loader.epoch, loader.steps_left) == (4, 2, 0, 3)
    assert seen + loop(loader) == served(Run(10, 2))
    assert loader.epoch == 1


def test_peek_looks_without_moving() -> None:
    loader = Loader(Numbers(4), batch_size=3, order=Turn, epochs=1)
    assert loader.peek()["sample"].tolist() == loader.peek()["sample"].tolist() == [0, 1, 2]
    assert loader.position == 0
    for number, _ in enumerate(loader):
        if number == 0:
            assert loader.peek()["sample"].tolist() == [3]
    with pytest.raises(IndexError, match=r"^there is no next batch: epochs=1 is reached$"):
        loader.peek()


def test_epochs_is_an_absolute_bound() -> None:
    loader = Loader(Numbers(4), batch_size=3, epochs=2)
    assert [len(loop(loader)) for _ in range(4)] == [2, 2, 0, 0]
    assert loader.steps_left == 0
    resumed = Loader(Numbers(4), batch_size=3, epochs=1)
    resumed.load_state_dict(loader.state_dict())
    assert loop(resumed) == []
    assert loop(Loader(Numbers(4), batch_size=2, epochs=0)) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_stop_resumes_exactly_at_every_other_batch_and_world(
    drop_last: bool, prefetch: int
) -> None:
    # Exhaustive for 7 samples: stop every configuration everywhere, resume with every other one.
    shapes = [(b, w) for b in range(1, 5) for w in range(1, 4) if b * w <= 7]
    for (batch, world), (new_batch, new_world) in itertools.product(shapes, shapes):
        if prefetch and (batch + world + new_batch + new_world) % 4:
            continue  # Each starts a thread: a quarter of the cases is enough.
        first = Loader(
            Numbers(7),
            batch_size=batch,
            order=Turn,
            rank=world - 1,
            world_size=world,
            drop_last=drop_last,
            prefetch=prefetch,
        )
        run = Run(7, new_batch, new_world, drop_last)
        for _ in range(2 * len(first)):
            next(iter(first))
            state = json.loads(json.dumps(first.state_dict()))
            resumed = Loader(
                Numbers(7),
                batch_size=new_batch,
                order=Turn,
                rank=0,
                world_size=new_world,
                drop_last=drop_last,
                prefetch=prefetch,
            )
            resumed.load_state_dict(state)
            assert loop(resumed) == served(run, state["position"])


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, bool, list[tuple[int, int, int, tuple[int, int] | None]]]:
    """Draw a size, drop_last, and legs (batch size, world size, steps, positions to exclude)."""
    size, drop_last = draw(st.integers(1, 30)), draw(st.booleans())
    legs = []
    for _ in range(draw(st.integers(1, 4))):
        world = draw(st.integers(1, min(4, size)))
        batch = draw(st.integers(1, size // world if drop_last else size))
        skip = draw(st.none() | st.tuples(st.integers(0, 20), st.integers(1, 40)))
        legs.append((batch, world, draw(st.integers(0, 6)), skip))
    return size, drop_last, legs


@settings(deadline=None, max_examples=150)
@given(lives())
def test_a_life_of_stops_changes_and_exclusions_is_the_oracles(
    life: tuple[int, bool, list[tuple[int, int, int, tuple[int, int] | None]]],
) -> None:
    size, drop_last, legs = life
    excluded: set[int] = set()
    state, position, step = None, 0, 0
    dealt: list[tuple[int, list[list[int]]]] = []
    for batch, world, count, skip in legs:
        run = Run(size, batch, world, drop_last, excluded)
        ranks = []
        for rank in range(world):
            loader = Loader(
                Numbers(size),
                batch_size=batch,
                order=Turn,
                rank=rank,
                world_size=world,
                drop_last=drop_last,
                prefetch=0,
            )
            if state is not None:
                loader.load_state_dict(state)
            if skip is not None:
                loader.exclude(position + skip[0], position + skip[0] + skip[1])
            ranks.append(loader)
        if skip is not None:
            excluded.update(range(position + skip[0], position + skip[0] + skip[1]))
        for _ in range(count):
            shares, position = one_step(run, position)
            expected = [[turned(size, p) for p in share] for share in shares]
            assert [next(iter(loader))["sample"].tolist() for loader in ranks] == expected
            dealt.append((world, shares))
            step += 1
        states = [json.dumps(loader.state_dict(), sort_keys=True) for loader in ranks]
        assert len(set(states)) == 1, "the state is the same on every rank"
        state = json.loads(states[0])
        assert state["step"] == step
        check_the_past(ranks[0], size, dealt)
    here = {p for _, shares in dealt for share in shares for p in share}
    epoch = ranks[0].epoch
    for p in range(epoch * size, (epoch + 1) * size):
        assert ranks[0].visited(turned(size, p)) == (p in here)


def check_the_past(loader: Loader, size: int, dealt: list[tuple[int, list[list[int]]]]) -> None:
    """Compare the samples of every step, and the step of every sample, with those served."""
    for step, (world, shares) in enumerate(dealt):
        for rank in range(world):
            expected = [turned(size, p) for p in shares[rank]]
            assert loader.samples(step, rank=rank).tolist() == expected
            for p, sample in zip(shares[rank], expected, strict=True):
                assert loader.step_of(sample, epoch=p // size) == step


def test_steps_to_come_are_computed_too() -> None:
    loader = Loader(Numbers(10), batch_size=3, order=Turn, drop_last=True)
    loader.exclude(4, 6)
    run = Run(10, 3, drop_last=True, excluded={4, 5})
    for step, (shares, _) in enumerate(itertools.islice(steps(run), 9)):
        assert loader.samples(step).tolist() == [turned(10, p) for p in shares[0]]
    assert loader.step_of(turned(10, 4)) is None
    assert loader.step_of(turned(10, 3)) == 1
    assert loader.step_of(turned(10, 9)) is None, "dropped"
    assert loader.step_of(turned(10, 19), epoch=1) is None, "dropped"
    assert loader.step_of(turned(10, 18), epoch=1) == 4


def test_a_rank_that_was_not_there_got_nothing() -> None:
    one = Loader(Numbers(10), batch_size=2, rank=0, world_size=1)
    next(iter(one))
    later = Loader(Numbers(10), batch_size=2, rank=1, world_size=2)
    later.load_state_dict(one.state_dict())
    assert later.samples(0).tolist() == []
    assert later.samples(0, rank=0).tolist() == [0, 1]
    assert later.samples(1).tolist() == [4, 5]
    with pytest.raises(ValueError, match=r"^`rank` must be below `world_size` = 1, got 1$"):
        later.samples(0, rank=1)


def test_an_exclusion_takes_effect_at_once_in_a_running_loop() -> None:
    loader, seen = Loader(Numbers(10), batch_size=2, prefetch=3), []
    for batch in loader:
        seen.append(batch["sample"].tolist())
        if len(seen) == 1:
            loader.exclude(0, 5)  # 0 and 1 were handed out before.
    assert seen == [[0, 1], [5, 6], [7, 8], [9]]
    assert loader.state_dict()["excluded"] == [[2, 5]]
    with pytest.raises(ValueError, match=r"^`stop` must be at least 4, got 3$"):
        loader.exclude(3, 3)


def test_a_state_loaded_in_a_running_loop_moves_it() -> None:
    loader = Loader(Numbers(10), batch_size=2, prefetch=3)
    state, seen = loader.state_dict(), []
    for batch in loader:
        seen.append(batch["sample"].tolist()[0])
        if len(seen) == 3:
            loader.load_state_dict(state)
    assert seen == [0, 2, 4, 0, 2, 4, 6, 8]


def test_two_loops_deal_from_one_deck() -> None:
    loader = Loader(Numbers(10), batch_size=2)
    pairs = [(a["sample"].tolist()[0], b["sample"].tolist()[0]) for a, b in zip(loader, loader)]  # noqa: B905
    assert pairs == [(0, 2), (4, 6)]


def test_an_interrupt_between_taking_and_counting_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = Loader(Numbers(10), batch_size=2)
    loop = iter(loader)
    next(loop)
    get = original("prefetch.Prefetcher.get")

    def interrupted(self: Any) -> Any:
        get(self)
        raise KeyboardInterrupt

    plant(monkeypatch, "prefetch.Prefetcher.get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loop)
    monkeypatch.undo()
    assert [batch["sample"].tolist()[0] for batch in loop] == [2, 4, 6, 8]


def test_few_samples_for_many_ranks_leave_empty_batches_of_the_right_shape() -> None:
    loaders = [Loader(Numbers(5), batch_size=1, rank=r, world_size=4) for r in range(4)]
    last = [list(loader)[-1] for loader in loaders]
    assert [batch["sample"].tolist() for batch in last] == [[], [], [], [4]]
    assert last[0]["row"].shape == (0, 4)


def test_a_trillion_samples_at_once() -> None:
    size = 10**12
    loader = Loader(Numbers(size), batch_size=64, shuffle=True, seed=1, rank=3, world_size=8)
    first = loader.peek()["sample"]
    state = {**loader.state_dict(), "position": 7 * size + 512 * 10**9}
    loader.load_state_dict(state)
    batch = next(iter(loader))["sample"]
    assert loader.epoch == 7
    place = 512 * 10**9 + 3 * 64
    expected = Stream(Numbers(size), seed=1).samples(np.arange(place, place + 64) + 7 * size)
    assert batch.tolist() == expected.tolist() != first.tolist()
    assert loader.step_of(int(batch[0])) == 0
    assert loader.visited(int(batch[0]))
    assert loader.samples(10**9 * 5).shape == (64,)


class Endless:
    """A stream without epochs."""

    epoch_length = None
    fingerprint = {"endless": 1}  # noqa: RUF012

    def gather(
        self, positions: NDArray[np.int64], out: object = None
    ) -> dict[str, NDArray[np.generic]]:
        return {"p": positions * 2}


def test_a_stream_of_ones_own_without_epochs() -> None:
    loader = Loader(Endless(), batch_size=3)
    batches = [batch["p"].tolist() for batch in itertools.islice(loader, 3)]
    assert batches == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]
    assert (loader.position, loader.epoch) == (9, 0)
    with pytest.raises(TypeError, match="has no epochs, so the loader has no length"):
        len(loader)
    with pytest.raises(TypeError, match=r"^Endless has no samples\(\)$"):
        loader.samples(0)
    with pytest.raises(ValueError, match=r"^`epochs` must be None, got 2: Endless has no epochs"):
        Loader(Endless(), batch_size=3, epochs=2)


def test_dropping_the_last_reference_to_a_loop_lets_the_source_go() -> None:
    source = Numbers(100)
    gone = weakref.ref(source)
    loader = Loader(source, batch_size=2)
    for _ in loader:
        break
    del source, loader
    assert gone() is None


def test_at_most_prefetch_batches_are_made_ahead() -> None:
    made = threading.Semaphore(0)
    source, count = Numbers(100), 0

    def counting(indices: NDArray[np.int64]) -> None:
        nonlocal count
        count += 1
        made.release()

    source.watch = counting
    loader = iter(Loader(source, batch_size=1, prefetch=3))
    next(loader)
    for _ in range(4):
        assert made.acquire(timeout=30)
    time.sleep(0.05)  # Time for the thread to make more batches, if it did.
    assert count == 4
    next(loader)
    assert made.acquire(timeout=30)


@pytest.mark.parametrize("batch_size", [10, 11, 256, 2**62])
@pytest.mark.parametrize("restart", [False, True])
def test_an_epoch_smaller_than_a_batch_is_one_batch(batch_size: int, restart: bool) -> None:
    stream = Stream(Numbers(10), order=Turn)
    loader = Loader(stream, batch_size=batch_size, restart=restart)
    expected = [[[turned(10, p) for p in range(10 * e, 10 * e + 10)]] for e in range(3)]
    assert [loop(loader) for _ in range(3)] == ([expected[0]] * 3 if restart else expected)
    assert len(loader) == 1
    batches = DataLoader(IterDataset(stream, batch_size=batch_size), batch_size=None)
    assert [[batch["sample"].tolist() for batch in batches] for _ in range(3)] == expected
    # A state of smaller batches continues with the rest of its epoch.
    state = Loader(stream, batch_size=3).state_dict(step=2)
    if not restart:
        loader.load_state_dict(state)
        assert [loop(loader), loop(loader)] == [[expected[0][0][6:]], expected[1]]


def test_the_class_of_a_loader_is_asked_for_by_anyone() -> None:
    """Also by functions with the names of those that take a loader for a dataset or a model."""
    program = "def prepare(x, kind): return isinstance(x, kind)\n__init__ = _prepare_one = prepare"
    loader = Loader(Numbers(9), batch_size=3)
    for module in ("accelerate.accelerator", "torch.utils.data.dataloader"):
        scope: dict[str, Any] = {"__name__": module}
        exec(program, scope)
        for name in ("prepare", "__init__", "_prepare_one"):
            for kind in (int, Sequence, IterableDataset, torch.nn.Module):
                assert not scope[name](loader, kind)
            assert scope[name](loader, Loader)
    assert loader.__class__ is type(loader)


def test_loaders_that_loops_have_read_are_known() -> None:
    known = {id(one) for one in iterated_loaders()}
    loader, anew = (Loader(Numbers(9), batch_size=3, restart=one) for one in (False, True))

    def new() -> list[Loader]:
        return [one for one in iterated_loaders() if id(one) not in known]

    assert new() == []
    assert len(loop(anew)) == 3
    assert new() == []
    for _ in range(2):
        next(iter(loader))
        assert new() == [loader]
    del loader
    assert new() == []
