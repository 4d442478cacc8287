"""The LRU cache of open shards, in any number of threads."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pytest

from support.threads import at_once
from windeck._core import TokenShard
from windeck._util import LRUCache


def shard_of(number: int) -> TokenShard:
    return TokenShard.from_arrays(np.array([number]), np.array([0, 1]))


def test_the_least_recently_used_shard_is_evicted_first() -> None:
    """Compare with a list in the order of use."""
    rng = np.random.default_rng(3)
    for limit in (1, 2, 5):
        shards, used, opened = LRUCache(limit), list[int](), list[int]()

        def opener(key: int, opened: list[int] = opened) -> TokenShard:
            opened.append(key)
            return shard_of(key)

        expected = []
        for key in rng.integers(0, 8, 500).tolist():
            if key not in used:
                expected.append(key)
            used = [*(k for k in used if k != key), key][-limit:]
            shard = shards.get(key, lambda key=key: opener(key))  # type: ignore[misc]
            assert shard.document(0).tolist() == [key]
            assert len(shards) == len(used)
        assert opened == expected


def test_the_total_size_is_bounded_first() -> None:
    """Compare with a list in the order of use; values of size 0 count for the number only."""
    rng = np.random.default_rng(4)
    sizes = [0, 3, 5, 0, 9, 2, 20, 4]
    for limit, total in ((3, 10), (8, 10), (2, 1), (8, 1000)):
        shards = LRUCache(limit, total_size=total, size_of=sizes.__getitem__)
        used, opened, expected = list[int](), list[int](), list[int]()

        def opener(key: int, opened: list[int] = opened) -> TokenShard:
            opened.append(key)
            return shard_of(key)

        for key in rng.integers(0, 8, 500).tolist():
            if key not in used:
                expected.append(key)
                used = [*used, key][-limit:]
                while sizes[key] and sum(sizes[one] for one in used) > total:
                    others = [one for one in used if sizes[one] and one != key]
                    if not others:
                        break
                    used.remove(others[0])
            else:
                used = [*(one for one in used if one != key), key]
            shards.get(key, lambda key=key: opener(key))  # type: ignore[misc]
            assert sorted(one for one, _ in shards.items()) == sorted(used)
        assert opened == expected


def test_threads_that_request_one_shard_open_it_once() -> None:
    shards, begun = LRUCache(2), list[int]()

    def opener() -> TokenShard:
        begun.append(1)
        time.sleep(0.05)
        return shard_of(7)

    found = at_once(8, lambda _: shards.get("key", opener))
    assert len(begun) == 1
    assert all(shard is found[0] for shard in found)


def test_many_threads_and_few_shards() -> None:
    shards = LRUCache(3)

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 10, 400).tolist():
            shard = shards.get(key, lambda key=key: shard_of(key))  # type: ignore[misc]
            assert shard.document(0).tolist() == [key]

    at_once(8, ask)
    assert len(shards) == 3


def test_a_shard_that_fails_to_open_is_tried_again() -> None:
    shards, tries = LRUCache(1), list[int]()

    def opener() -> TokenShard:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(f"try {len(tries)}")
        return shard_of(1)

    for number in (1, 2):
        with pytest.raises(ValueError, match=f"try {number}"):
            shards.get("key", opener)
    assert shards.items() == []
    assert shards.get("key", opener) is shards.get("key", opener)
    assert len(tries) == 3


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    shards, opening, go_on = LRUCache(2, keep_after_fork=True), threading.Event(), threading.Event()

    def opener() -> TokenShard:
        opening.set()
        go_on.wait()
        return shard_of(1)

    shards.get("before", lambda: shard_of(5))
    thread = threading.Thread(target=shards.get, args=("key", opener))
    thread.start()
    opening.wait()
    # Python 3.12 and later warn of a fork in a process with threads, which is tested here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            kept = shards.get("before", lambda: shard_of(6)).document(0).tolist()
            os._exit(shards.get("key", lambda: shard_of(3)).document(0).tolist() + kept != [3, 5])
        finally:
            os._exit(9)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
