"""Tests of calls in threads: made once, waited for, cancelled, and ended with the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from support.internals import original
from windeck._util import Cancelled, Pool, Task, holds_lock, reentrant_lock, start, unheld


def wrong() -> int:
    raise ValueError("no number")


def test_a_call_is_made_once_whoever_runs_it() -> None:
    for _ in range(50):
        made: list[int] = []
        task = Task(partial(made.append, 1))
        others = [start(task.run) for _ in range(4)]
        assert [other.result() for other in others].count(True) == 1
        assert task.done()
        assert made == [1]


def test_results_and_errors_are_for_all_who_wait() -> None:
    gate = Task(lambda: None)
    task = start(lambda: (gate.wait(), 7)[1])
    waiting = [start(task.result) for _ in range(5)]
    assert not task.wait(0.01)
    gate.run()
    assert [one.result() for one in waiting] == [7] * 5
    failed = start(wrong)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^no number$"):
            failed.result()
    assert isinstance(failed.error(), ValueError)
    assert task.error() is None


def test_a_call_that_is_cancelled_is_not_made() -> None:
    made: list[int] = []
    task = Task(lambda: made.append(1))
    assert task.cancel()
    assert not task.cancel()
    assert not task.run()
    with pytest.raises(Cancelled):
        task.result()
    assert made == []


def test_an_interrupt_of_a_call_is_raised_where_it_is_made() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    task = Task(interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.run()
    with pytest.raises(KeyboardInterrupt):
        task.result()


def pool_threads() -> set[Task[object]]:
    """Return the threads of pools that run: those that have a queue."""
    running = tuple(original("threads._running").items())
    return {task for task, queue in running if queue is not None}


def test_a_pool_starts_threads_as_needed_and_ends_them() -> None:
    idents, before = set[int](), pool_threads()
    with Pool(3) as pool:
        for _ in range(20):  # one after the other: each thread is idle again
            idents.add(pool.submit(threading.get_ident).result())
        assert len(pool_threads() - before) <= 3
        met = threading.Barrier(3, timeout=60)
        assert sorted(t.result() for t in [pool.submit(met.wait) for _ in range(3)]) == [0, 1, 2]
        threads = pool_threads() - before
        assert len(threads) == 3
    assert threading.get_ident() not in idents
    assert all(thread.done() for thread in threads)


def test_the_threads_of_a_pool_end_with_the_last_reference_to_it() -> None:
    before, pool = pool_threads(), Pool(2)
    pool.submit(lambda: 1).result()
    (thread,) = pool_threads() - before
    del pool
    assert thread.wait(60)


def test_calls_that_wait_in_a_closed_pool_are_cancelled() -> None:
    gate, begun = threading.Event(), threading.Event()
    pool = Pool(1)

    def slow() -> bool:
        begun.set()
        return gate.wait(60)

    first = pool.submit(slow)
    second = pool.submit(lambda: True)
    assert begun.wait(60)
    closing = start(pool.close)
    with pytest.raises(Cancelled):
        second.result()
    assert not closing.done()
    gate.set()
    closing.result()
    assert first.result()


def test_a_forked_child_has_threads_of_its_own() -> None:
    pool = Pool(1)
    assert pool.submit(lambda: 1).result() == 1
    pid = os.fork()
    if not pid:
        pool.close()  # waits for nothing
        with Pool(1) as own:
            os._exit(own.submit(lambda: 3).result())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    pool.close()


def test_a_lock_that_this_thread_holds() -> None:
    lock = reentrant_lock()
    assert not holds_lock()
    with unheld(lock, "a commit"):
        assert holds_lock()
        assert not start(holds_lock).result()
        with pytest.raises(
            RuntimeError, match=r"^a commit in a signal handler interrupts the same"
        ):
            unheld(lock, "a commit")
    assert not holds_lock()


PROGRAM = """
import atexit, threading, time
from windeck._util import Pool, start

def at_exit():
    print("at exit", pool.submit(lambda: 1).result())
    with Pool(2) as own:
        print(own.submit(lambda: 2).result())

pool = Pool(2)
atexit.register(at_exit)
pool.submit(lambda: (time.sleep(0.2), print("ended")))
start(lambda: time.sleep(0.1))
print("main")
"""


def test_the_exit_waits_for_calls_and_calls_at_exit_are_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["2", "at exit 1", "ended", "main"]
