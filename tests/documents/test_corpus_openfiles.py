"""OpenFiles: which files stay open, in any number of threads."""

from __future__ import annotations

import os
import threading
import time
import warnings

import numpy as np
import pytest

from support.threads import at_once
from windeck._core import TokenShard
from windeck.documents.readers import OpenFiles


def shard_of(number: int) -> TokenShard:
    return TokenShard.from_arrays(np.array([number]), np.array([0, 1]))


def test_the_least_recently_used_file_goes_first() -> None:
    """Against a list in the order of use."""
    rng = np.random.default_rng(3)
    for limit in (1, 2, 5):
        files, used, opened = OpenFiles(limit), list[int](), list[int]()

        def opener(key: int, opened: list[int] = opened) -> TokenShard:
            opened.append(key)
            return shard_of(key)

        expected = []
        for key in rng.integers(0, 8, 500).tolist():
            if key not in used:
                expected.append(key)
            used = [*(k for k in used if k != key), key][-limit:]
            shard = files.get(key, lambda key=key: opener(key))  # type: ignore[misc]
            assert shard.document(0).tolist() == [key]
            assert files.live == len(used)
        assert opened == expected
        assert files.opened == len(expected)


def test_threads_that_ask_for_one_file_open_it_once() -> None:
    files, begun = OpenFiles(2), list[int]()

    def opener() -> TokenShard:
        begun.append(1)
        time.sleep(0.05)
        return shard_of(7)

    found = at_once(8, lambda _: files.get("key", opener))
    assert len(begun) == 1
    assert all(shard is found[0] for shard in found)


def test_many_threads_and_few_files() -> None:
    files = OpenFiles(3)

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for key in rng.integers(0, 10, 400).tolist():
            shard = files.get(key, lambda key=key: shard_of(key))  # type: ignore[misc]
            assert shard.document(0).tolist() == [key]

    at_once(8, ask)
    assert files.live == 3


def test_a_file_that_fails_to_open_is_tried_again() -> None:
    files, tries = OpenFiles(1), list[int]()

    def opener() -> TokenShard:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(f"try {len(tries)}")
        return shard_of(1)

    for number in (1, 2):
        with pytest.raises(ValueError, match=f"try {number}"):
            files.get("key", opener)
    assert files.live == files.opened == 0
    assert files.get("key", opener) is files.get("key", opener)
    assert files.opened == 1


def test_a_child_of_fork_waits_for_no_thread_of_its_parent() -> None:
    files, opening, go_on = OpenFiles(2), threading.Event(), threading.Event()

    def opener() -> TokenShard:
        opening.set()
        go_on.wait()
        return shard_of(1)

    files.get("before", lambda: shard_of(5))
    thread = threading.Thread(target=files.get, args=("key", opener))
    thread.start()
    opening.wait()
    # What Python 3.12 and later say of fork beside threads is what this is about.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            kept = files.get("before", lambda: shard_of(6)).document(0).tolist()
            os._exit(files.get("key", lambda: shard_of(3)).document(0).tolist() + kept != [3, 5])
        finally:
            os._exit(9)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_limits() -> None:
    for limit, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="limit"):
            OpenFiles(limit)  # type: ignore[arg-type]
