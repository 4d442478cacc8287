"""The classic LCG: what fms-fsdp does, one step at a time, and jumps."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd


def documents(size: int, rank: int, seed: int) -> Iterator[int]:
    """Return the documents of fms-fsdp's streaming dataset in its order."""
    modulus = 2 ** math.ceil(math.log2(size))
    state = seed + rank
    while True:
        state = (5 * state + (rank + seed) * 2 + 1) % modulus
        if state < size:
            yield state


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 300))
def test_the_document_order_of_fms_fsdp(size: int, rank: int, seed: int, count: int) -> None:
    lcg = wd.LCG(size, multiplier=5, increment=2 * (rank + seed) + 1, state=seed + rank)
    assert lcg.draw(count).tolist() == list(islice(documents(size, rank, seed), count))


@settings(deadline=None)
@given(st.integers(1, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 200), st.integers(0, 9))
def test_any_cut_gives_the_same_draws(size: int, state: int, count: int, first: int) -> None:
    whole = wd.LCG(size, multiplier=6364136223846793005, increment=1442695040888963407, state=state)
    parts = copy.copy(whole)
    drawn = whole.draw(first + count)
    np.testing.assert_array_equal(parts.draw(first), drawn[:first])
    if first:
        assert parts.state == drawn[first - 1]
    np.testing.assert_array_equal(parts.draw(count), drawn[first:])
    assert parts.state == whole.state


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 100, 128, 129, 4097])
def test_a_period_is_a_bijection(size: int) -> None:
    lcg = wd.LCG(size, multiplier=13, increment=7, state=1)
    assert sorted(lcg.draw(size).tolist()) == list(range(size))
    assert lcg.period == 1 << (size - 1).bit_length()


@settings(deadline=None)
@given(st.integers(1, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_jumps_are_raw_steps(size: int, state: int, steps: int) -> None:
    modulus = 1 << (size - 1).bit_length()
    lcg = wd.LCG(size, multiplier=1664525, increment=1013904223, state=state)
    assert lcg.state == state % modulus
    lcg.jump(steps)
    expected = state
    for _ in range(steps):
        expected = (1664525 * expected + 1013904223) % modulus
    assert lcg.state == expected % modulus
    lcg.jump(-steps)
    assert lcg.state == state % modulus


def test_far_jumps_add_up() -> None:
    lcg = wd.LCG(10**18, multiplier=13, increment=3)
    far = copy.copy(lcg)
    for _ in range(3):
        lcg.jump(10**17 + 1)
    far.jump(3 * 10**17 + 3)
    assert far.state == lcg.state
    far.jump(2**200)
    assert far.state == lcg.state


def test_python_behaviour() -> None:
    lcg = wd.LCG(1000, multiplier=13, increment=7, state=5)
    assert repr(lcg) == "LCG(1000, multiplier=13, increment=7, state=5)"
    assert (lcg.size, lcg.multiplier, lcg.increment, lcg.period) == (1000, 13, 7, 1024)
    lcg.draw(3)
    twin = pickle.loads(pickle.dumps(lcg))
    out = np.empty(5, dtype=np.int64)
    assert lcg.draw(5, out) is out
    np.testing.assert_array_equal(twin.draw(5), out)


def test_threads_draw_apart_from_each_other() -> None:
    lcg = wd.LCG(100_000, multiplier=13, increment=7)
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: lcg.draw(1000), range(100)))
    assert sorted(np.concatenate(drawn).tolist()) == list(range(100_000))


# Of any type, to be given what the types forbid.
MAKE: Any = wd.LCG
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: MAKE(0), ValueError, "size is 0, expected an integer from 1 to"),
    (lambda: MAKE(2**63), ValueError, "size is 9223372036854775808, expected"),
    (lambda: MAKE(1.0), TypeError, "size is of type float, expected an integer"),
    (lambda: MAKE(9, multiplier=7), ValueError, "multiplier is 7, expected 1 modulo 4"),
    (lambda: MAKE(9, increment=2), ValueError, "increment is 2, expected an odd number"),
    (lambda: MAKE(9, state=-1), ValueError, "state is -1, expected an integer from 0 to"),
    (lambda: MAKE(9).draw(-1), ValueError, "count is -1, expected an integer from 0"),
    (lambda: MAKE(9).draw(1.0), TypeError, "count is of type float"),
    (lambda: MAKE(9).draw(2, np.zeros(2)), TypeError, "out has dtype float64, expected int64"),
    (lambda: MAKE(9).draw(2, np.zeros(3, np.int64)), ValueError, r"out has shape \(3,\)"),
    (lambda: MAKE(9).jump(0.5), TypeError, "steps is of type float, expected an integer"),
]


@pytest.mark.parametrize(("action", "error", "message"), BAD)
def test_bad_input(action: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        action()
