"""Tests of parallel calls and of reading ahead: order of results, bounds, and a clean end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support.internals import original, plant
from windeck._util import Task, parallel_map, read_ahead

_before = set[Task[Any]]()


def none_left() -> bool:
    """Return whether all threads that the test has started have ended."""
    return all(task.done() for task in tuple(original("threads._running")) if task not in _before)


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "parallel.THREADS", 2)
    _before.clear()
    _before.update(original("threads._running"))


def numbers(done: list[int], count: int, wrong: int = -1) -> list[tuple[int, Callable[[], int]]]:
    """Calls of one byte that note that they were made."""

    def call(number: int) -> int:
        if number == wrong:
            raise ValueError(f"number {number}")
        done.append(number)
        return number

    return [(1, partial(call, number)) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("limit", [0, 1, 3, 1000])
def test_all_results_come_in_order(count: int, limit: int) -> None:
    done: list[int] = []
    assert list(read_ahead(numbers(done, count), limit=limit)) == list(range(count))
    assert done == list(range(count))


def test_the_next_is_made_while_the_one_before_is_in_use() -> None:
    made = [threading.Event() for _ in range(3)]
    names: list[int] = []

    def call(number: int) -> int:
        names.append(threading.get_ident())
        made[number].set()
        return number

    calls = [(1, partial(call, n)) for n in range(3)]
    results = read_ahead(calls, limit=2)
    assert next(results) == 0
    assert made[1].wait(60)  # before it was requested
    assert not made[2].is_set()  # two wait or are in use, as many as may
    assert list(results) == [1, 2]
    assert len(set(names)) == 1
    assert threading.get_ident() not in names


def test_no_more_bytes_wait_than_may() -> None:
    rng = random.Random(0)
    sizes = [rng.choice([1, 5, 30, 200]) for _ in range(400)]
    limit, held, most = 64, 0, 0
    lock = threading.Lock()

    def call(size: int) -> int:
        nonlocal held, most
        with lock:
            held += size
            assert held <= max(limit, size)
            most = max(most, held if size <= limit else 0)
        return size

    calls = [(size, partial(call, size)) for size in sizes]
    found = []
    for size in read_ahead(calls, limit=limit):
        found.append(size)
        with lock:
            held -= size
    assert found == sizes
    assert most > 30  # several waited at some time


def test_an_error_is_raised_in_its_turn_and_ends_it() -> None:
    done: list[int] = []
    results = read_ahead(numbers(done, 1000, wrong=5), limit=3)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"^number 5$"):
        next(results)
    at_the_end = len(done)
    assert at_the_end < 12
    assert list(results) == []
    assert len(done) == at_the_end


def test_nothing_is_made_any_more_once_nobody_asks() -> None:
    done: list[int] = []
    results = read_ahead(numbers(done, 1000), limit=4)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    at_the_end = len(done)
    assert at_the_end <= 4
    assert none_left()
    assert len(done) == at_the_end


@pytest.mark.parametrize("threads", [1, 2])
def test_a_single_call_and_a_single_processor_need_no_thread(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    plant(monkeypatch, "parallel.THREADS", threads)
    calls = [(1, threading.get_ident)] * (1 if threads == 2 else 3)
    assert set(read_ahead(calls, limit=8)) == {threading.get_ident()}


def squares(done: list[int], wrong: int = -1) -> Callable[[int], int]:
    """A call that notes what it was made for."""

    def call(number: int) -> int:
        if number == wrong:
            raise ValueError(f"number {number}")
        done.append(number)
        return number * number

    return call


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_results_of_several_threads_come_in_order(count: int, threads: int) -> None:
    done: list[int] = []
    found = list(parallel_map(range(count), squares(done), threads=threads))
    assert found == [number * number for number in range(count)]
    assert sorted(done) == list(range(count))


def test_the_caller_and_the_others_are_at_work_at_once() -> None:
    met, names = threading.Barrier(2, timeout=60), set[int]()

    def call(number: int) -> int:
        names.add(threading.get_ident())
        met.wait()  # no call continues alone
        return number

    assert list(parallel_map(range(50), call, threads=2)) == list(range(50))
    assert threading.get_ident() in names
    assert len(names) == 2


def test_in_the_end_the_caller_does_what_nobody_has_begun() -> None:
    caller, free, own = threading.get_ident(), threading.Event(), list[int]()

    def call(number: int) -> int:
        if threading.get_ident() == caller:
            own.append(number)
            free.set()
        else:
            free.wait(60)  # until the caller was at one
        return number

    assert list(parallel_map(range(2), call, threads=2)) == [0, 1]
    assert own


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_few_calls_are_ahead_of_who_asks(threads: int) -> None:
    done: list[int] = []
    results = parallel_map(range(1000), squares(done), threads=threads)
    for asked in range(100):
        assert next(results) == asked * asked
        assert len(done) <= asked + 1 + 2 * threads + 1


@pytest.mark.parametrize("wrong", [0, 1, 2, 5, 98, 99])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_call_goes_on_once_one_has_failed(threads: int, wrong: int) -> None:
    """Whosever call it was: what was to be written to is let alone afterwards."""
    done: list[int] = []
    results = parallel_map(range(100), squares(done, wrong), threads=threads)
    assert [next(results) for _ in range(wrong)] == [number * number for number in range(wrong)]
    with pytest.raises(ValueError, match=f"^number {wrong}$"):
        next(results)
    after = len(done)
    assert after <= wrong + 2 * threads + 1
    assert list(results) == []
    assert none_left()
    assert len(done) == after


def test_no_call_goes_on_once_nobody_asks() -> None:
    done: list[int] = []
    results = parallel_map(range(1000), squares(done), threads=2)
    assert [next(results), next(results)] == [0, 1]
    results.close()  # type: ignore[attr-defined]
    assert len(done) <= 2 + 5
    assert none_left()
