"""Groups in memory: read once, dropped by use, read ahead, and retried after errors."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

import windeck as wd
from windeck.table import Blocks, StreamedTable, cover


class Source:
    """A source whose groups of k blocks have 10 * k bytes."""

    reading_bytes = 5

    def __init__(self, resident: int = 40) -> None:
        self.resident_bytes = resident
        self.loaded: list[Blocks] = []
        self.failing = False

    def bytes_of(self, blocks: Blocks) -> int:
        return 10 * len(blocks)

    def load(self, blocks: Blocks, queued: Callable[[], None]) -> list[int]:
        self.loaded.append(blocks)
        if self.failing:
            raise OSError("the disk is gone")
        return list(blocks)


CacheOf: TypeAlias = Callable[["int | None"], Any]


@pytest.fixture
def cache_of(tmp_path: Path) -> CacheOf:
    """Return a function that returns the empty cache of a table with a memory budget."""
    path = tmp_path / "a.arrow"
    feather.write_feather(pa.table({"x": [1.0]}), path, "uncompressed")

    def groups(budget: int | None) -> Any:
        table = wd.Table.read(path, in_memory=False, group_bytes=1000, memory_budget=budget)
        assert isinstance(table, StreamedTable)
        return table.groups

    return groups


def test_groups_are_read_once_and_dropped_by_use(cache_of: CacheOf) -> None:
    cache, source = cache_of(None), Source()
    for blocks in ((1, 2), (3, 4), (1, 2), (5, 6), (1, 2), (3, 4)):
        assert cache.get(source, blocks) == list(blocks)
    assert source.loaded == [(1, 2), (3, 4), (5, 6), (3, 4)]
    assert cache.reads == 4
    assert cache.held(source) == [(3, 4), (1, 2)]
    cache.drop(source)
    assert cache.held(source) == []


def test_the_limit_is_of_all_sources_less_what_is_read(cache_of: CacheOf) -> None:
    cache, one, other = cache_of(45), Source(), Source()
    cache.get(one, (1, 2))
    cache.get(other, (1, 2))
    assert (cache.held(one), cache.held(other)) == ([(1, 2)], [(1, 2)])
    cache.get(other, (3,))
    assert (cache.held(one), cache.held(other)) == ([], [(3,), (1, 2)])
    cache = cache_of(44)
    cache.get(one, (1, 2))
    cache.get(other, (1, 2))
    assert (cache.held(one), cache.held(other)) == ([], [(1, 2)])


def test_the_following_group_is_read_in_the_background(cache_of: CacheOf) -> None:
    cache, source = cache_of(None), Source()
    done = threading.Event()
    load = source.load

    def announced(blocks: Blocks, queued: Callable[[], None]) -> list[int]:
        found = load(blocks, queued)
        if blocks == (3, 4):
            assert threading.get_ident() != threading.main_thread().ident
            done.set()
        return found

    source.load = announced  # type: ignore[method-assign]
    cache.get(source, (1, 2), [(3, 4)])
    assert done.wait(30)
    assert cache.get(source, (3, 4), [(5, 6)]) == [3, 4]
    assert cache.get(source, (5, 6)) == [5, 6]
    assert source.loaded == [(1, 2), (3, 4), (5, 6)]


def test_following_groups_are_read_at_once_as_far_as_they_fit(cache_of: CacheOf) -> None:
    cache, source = cache_of(65), Source()  # six blocks, beside the bytes of reading
    together, load = threading.Barrier(3), source.load

    def beside_two_others(blocks: Blocks, queued: Callable[[], None]) -> list[int]:
        queued()
        if blocks != (1, 2):
            together.wait(60)
        return load(blocks, queued)

    source.load = beside_two_others  # type: ignore[method-assign]
    following: list[Blocks] = [(3,), (4,), (5, 6), (7,)]
    assert cache.ahead(source, 1, 20) == 2
    cache.get(source, (1, 2), following)
    for blocks in following[:3]:
        assert cache.get(source, blocks, (), following) == list(blocks)
    assert sorted(source.loaded) == [(1, 2), (3,), (4,), (5, 6)]
    source.load = load  # type: ignore[method-assign]
    # Groups of the past are dropped for them.
    cache.get(source, (3,), [(4,), (7,), (8,), (9,), (10,)])
    assert set(cache.held(source)) == {(3,), (4,), (7,), (8,), (9,), (10,)}


def test_following_groups_are_queued_in_their_order(cache_of: CacheOf) -> None:
    cache, source = cache_of(65), Source()
    numbers: list[Blocks] = [(number,) for number in range(5)]
    load, go_on = source.load, {blocks: threading.Event() for blocks in numbers}
    second = threading.Event()

    def slow(blocks: Blocks, queued: Callable[[], None]) -> list[int]:
        found = load(blocks, queued)
        if blocks == (2,):
            second.set()
        if blocks == (3,):
            raise OSError("the disk is gone")  # ends its turn as well
        assert go_on[blocks].wait(60)
        queued()
        assert go_on[(0,)].wait(60)
        return found

    source.load = slow  # type: ignore[method-assign]
    go_on[(1,)].set()
    thread = threading.Thread(target=cache.get, args=(source, (1,), [(2,), (3,), (4,)]))
    thread.start()
    go_on[(0,)].set()
    thread.join(60)
    assert second.wait(60)
    assert source.loaded == [(1,), (2,)]
    go_on[(2,)].set()
    go_on[(4,)].set()
    assert cache.get(source, (4,)) == [4]
    assert source.loaded == [(1,), (2,), (3,), (4,)]


def test_groups_that_are_read_far_ahead_do_not_displace_those_of_others(cache_of: CacheOf) -> None:
    cache, one, other = cache_of(65), Source(), Source()
    cache.get(other, (1, 2))
    cache.get(one, (1,), [(2,), (3, 4), (5,)])
    assert set(cache.held(one)) == {(1,), (2,), (3, 4)}
    assert cache.held(other) == [(1, 2)]
    # They are dropped first, and the next group is read in any case.
    cache.get(other, (1, 2), [(3, 4)])
    assert set(cache.held(other)) == {(1, 2), (3, 4)}
    assert set(cache.held(one)) == {(1,), (2,)}


def test_a_group_is_not_read_beside_two_others_of_which_one_is_dropped(cache_of: CacheOf) -> None:
    cache, source, other = cache_of(45), Source(), Source()
    begun, go_on = threading.Event(), threading.Event()
    load, finished = source.load, []

    def slow(blocks: Blocks, queued: Callable[[], None]) -> list[int]:
        if blocks == (3, 4):
            begun.set()
            assert go_on.wait(30)
        finished.append(blocks)
        return load(blocks, queued)

    source.load = slow  # type: ignore[method-assign]
    cache.get(source, (1, 2), [(3, 4)])
    assert begun.wait(30)
    cache.drop(source)
    other.load = slow  # type: ignore[method-assign]
    cache.get(other, (5, 6))  # fits beside the one that is dropped
    assert (5, 6) in finished
    thread = threading.Thread(target=cache.get, args=(other, (7, 8, 9)))
    thread.start()
    thread.join(0.1)
    assert (7, 8, 9) not in finished
    go_on.set()
    thread.join(30)
    assert finished == [(1, 2), (5, 6), (3, 4), (7, 8, 9)]


@pytest.mark.parametrize("ahead", [False, True])
def test_errors_are_raised_and_the_group_is_read_again(ahead: bool, cache_of: CacheOf) -> None:
    cache, source = cache_of(None), Source()
    if ahead:
        cache.get(source, (1,))
        source.failing = True
        cache.get(source, (1,), [(2,)])
    source.failing = True
    with pytest.raises(OSError, match="the disk is gone"):
        cache.get(source, (2,))
    source.failing = False
    assert cache.get(source, (2,)) == [2]


def test_threads_read_a_group_once(cache_of: CacheOf) -> None:
    cache, source = cache_of(None), Source()
    barrier, found = threading.Barrier(8), []

    def take() -> None:
        barrier.wait()
        found.append(cache.get(source, (1, 2)))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [[1, 2]] * 8
    assert source.loaded == [(1, 2)]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_its_own_groups(cache_of: CacheOf) -> None:
    cache, source = cache_of(None), Source()
    cache.get(source, (1, 2), [(3, 4)])
    context = multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()

    def child() -> None:
        queue.put((cache.held(source), cache.get(source, (1, 2), [(3, 4)])))

    looked, go_on = threading.Event(), threading.Event()

    class Slow(Source):
        def bytes_of(self, blocks: Blocks) -> int:
            looked.set()
            assert go_on.wait(60)
            return super().bytes_of(blocks)

    # It holds the lock of the cache while it asks for the bytes of the group.
    thread = threading.Thread(target=cache.get, args=(Slow(), (5, 6)))
    thread.start()
    assert looked.wait(60)
    process = context.Process(target=child, daemon=True)
    process.start()
    go_on.set()
    thread.join(60)
    process.join(60)
    assert process.exitcode == 0
    assert queue.get() == ([], [1, 2])


@given(
    blocks=st.sets(st.integers(0, 30), min_size=1),
    groups=st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=6),
    most=st.integers(1, 7),
)
def test_cover_has_every_block_once(blocks: set[int], groups: list[set[int]], most: int) -> None:
    preferred = [tuple(sorted(group)) for group in groups]
    found = cover(sorted(blocks), preferred, most)
    assert sorted(block for _, taken in found for block in taken) == sorted(blocks)
    for group, taken in found:
        assert set(taken) <= set(group)
        assert group in preferred or len(group) <= most
