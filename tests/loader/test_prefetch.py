"""Prefetching in a thread: errors are raised, and the thread ends in every case."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.oracle import Numbers
from support.internals import Pace, Prefetcher, inside, original, plant
from windeck import Loader
from windeck._util import Task

# Python 3.12 and later warn of forks while torch's threads run.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def background() -> list[Task[Any]]:
    """Return the calls in threads of prefetchers; those of pools have a queue."""
    running = tuple(original("threads._running").items())
    return [task for task, queue in running if queue is None and not task.done()]


def maker() -> str:
    is_main = threading.get_ident() == threading.main_thread().ident
    return "consumer" if is_main else "thread"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    assert background() == []
    yield
    assert background() == []


def test_items_arrive_in_sequence_and_end() -> None:
    for depth in (0, 1, 2, 100):
        work = Prefetcher(iter(range(10)), depth)
        assert [work.get() for _ in range(10)] == list(range(10))
        for _ in range(2):
            with pytest.raises(StopIteration):
                work.get()
        work.close()


def test_an_error_arrives_after_what_went_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise FileNotFoundError("shard 7")

    for depth in (0, 3):
        work = Prefetcher(items(), depth)
        assert work.get() == 1
        with pytest.raises(FileNotFoundError, match=r"^shard 7$") as caught:
            work.get()
        assert caught.traceback[-1].name == "items", "the traceback is the source's"
        work.close()


def test_closing_stops_a_thread_that_waits_and_may_be_repeated() -> None:
    work = Prefetcher(iter(range(100)), 2)
    assert work.get() == 0
    work.close()
    work.close()
    assert background() == []
    with pytest.raises(StopIteration):
        work.get()


def test_the_garbage_collector_ends_a_forgotten_thread() -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.work = Prefetcher(iter(range(100)), 2)

    Holder()
    gc.collect()
    assert background() == []


def test_a_collection_in_the_thread_itself_does_not_hang() -> None:
    holder: list[object] = []

    def items() -> Iterator[int]:
        yield 0
        turn.acquire()
        holder.clear()  # The last reference: it is closed in its own thread.
        yield 1

    turn = threading.Semaphore(0)
    work = Prefetcher(items(), 1)
    assert work.get() == 0
    (thread,) = background()
    holder.append(work)
    del work
    turn.release()
    assert thread.wait(30)


def slow(clock: list[float], seconds: float, makers: list[str]) -> Iterator[int]:
    """Yield numbers that take some seconds if the consumer makes them, and record who does."""
    for number in itertools.count():
        makers.append(maker())
        if maker() == "consumer":
            clock[0] += seconds
        yield number


def wait_until_ready(work: Prefetcher[int]) -> None:
    """Wait until what was requested is ready."""
    while inside(work, "pending") and inside(work, "ready").qsize() < inside(work, "pending"):
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of one number, the time."""
    now = [0.0]
    plant(monkeypatch, "prefetch.perf_counter", lambda: now[0])
    return now


def test_a_consumer_without_work_of_its_own_makes_items_itself(clock: list[float]) -> None:
    makers: list[str] = []

    def items() -> Iterator[int]:
        for number in range(20):
            makers.append(maker())
            yield number

    work = Prefetcher(items(), 2, Pace(away=0.0))
    for number in range(20):
        assert work.get() == number
        clock[0] += 1.0 if 5 <= number < 12 else 0.0
        wait_until_ready(work)
    # Items 5 and 6 are followed by work: from 8 on they are made ahead. Item 12 is followed by
    # none: what was ahead is used up.
    away = set(range(8, 15))
    assert [number for number in range(20) if makers[number] == "thread"] == sorted(away)
    work.close()


@pytest.mark.parametrize(
    ("away", "makes", "first"),
    [
        (210e-6, 0.0, 2),  # Away twice, before items 1 and 2: from item 3 on.
        (210e-6, 1.0, 2),
        (150e-6, 150e-6, 2),
        (150e-6, 90e-6, None),
        (90e-6, 150e-6, None),
    ],
)
def test_a_short_step_needs_items_that_take_as_long(
    away: float, makes: float, first: int | None, clock: list[float]
) -> None:
    makers: list[str] = []
    pace = Pace(away=0.0)
    work = Prefetcher(slow(clock, makes, makers), 2, pace)
    for _ in range(8):
        work.get()
        clock[0] += away
        wait_until_ready(work)
    found = [number for number, name in enumerate(makers[:8]) if name == "thread"]
    assert found == ([] if first is None else list(range(first + 1, 8)))
    work.close()
    # The next loop begins with what was found.
    makers.clear()
    work = Prefetcher(slow(clock, makes, makers), 2, pace)
    for _ in range(5):
        work.get()
        clock[0] += away
        wait_until_ready(work)
    found = [number for number, name in enumerate(makers[:5]) if name == "thread"]
    assert found == ([] if first is None else [1, 2, 3, 4])
    work.close()


def run_loop(
    clock: list[float], pace: Pace, count: int, *, makes: float, alone: float, beside: float
) -> list[bool]:
    """Return which items of a loop the thread made.

    The consumer takes `makes` seconds to make an item, and a step takes `alone` seconds, or
    `beside` beside a thread that makes items.
    """
    makers: list[str] = []
    work = Prefetcher(slow(clock, makes, makers), 2, pace)
    for _ in range(count):
        work.get()
        wait_until_ready(work)
        clock[0] += beside if inside(work, "pending") else alone
    work.close()
    return [name == "thread" for name in makers[:count]]


def test_a_thread_that_costs_more_than_it_saves_is_used_for_trials_alone(
    clock: list[float],
) -> None:
    pace = Pace()
    found = run_loop(clock, pace, 500, makes=0.1, alone=1.0, beside=1.4)
    assert 5 < sum(found[:20]) < 12  # the first trial
    assert sum(found[20:]) < 0.1 * 480
    for _ in range(3):  # later loops go on with what was found
        found = run_loop(clock, pace, 500, makes=0.1, alone=1.0, beside=1.4)
        assert sum(found) < 0.05 * 500
    # A step that waits for a device: the thread is used again, at the next trial.
    found = run_loop(clock, pace, 3000, makes=0.1, alone=1.0, beside=1.0)
    assert all(found[1100:1500])
    assert sum(found) > 0.6 * 3000


def test_a_thread_that_saves_time_is_used_but_for_trials(clock: list[float]) -> None:
    for beside in (1.0, 1.05):
        found = run_loop(clock, Pace(), 500, makes=0.1, alone=1.0, beside=beside)
        assert all(found[1:6])
        assert sum(found) > 0.92 * 500
    # A step that begins to use all processors.
    pace = Pace()
    run_loop(clock, pace, 100, makes=0.1, alone=1.0, beside=1.0)
    found = run_loop(clock, pace, 3000, makes=0.1, alone=1.0, beside=2.5)
    assert not any(found[1100:1500])


def test_a_trial_of_a_thread_that_is_much_slower_ends_early(clock: list[float]) -> None:
    pace = Pace()
    run_loop(clock, pace, 30, makes=0.1, alone=1.0, beside=3.0)
    found = run_loop(clock, pace, 1000, makes=0.1, alone=1.0, beside=3.0)
    assert 0 < sum(found) < 20


def test_items_of_different_sizes_are_not_compared(clock: list[float]) -> None:
    """A loop begins with small items, which take less time in either way."""
    pace = Pace()
    for _ in range(3):
        work = Prefetcher(itertools.count(), 2, pace, lambda number: 2**number)
        for number in range(6):
            work.get()
            wait_until_ready(work)
            clock[0] += 2**number
        work.close()
    assert pace.makes_ahead
    assert not any(inside(pace, "seconds").values())


def test_no_thread_starts_without_a_reason(clock: list[float]) -> None:
    work = Prefetcher(iter(range(10)), 2, Pace(away=0.0))
    assert [work.get() for _ in range(5)] == list(range(5))
    assert background() == []
    work.close()
    # A loader remembers how long its last loop was away.
    loader = Loader(Numbers(50), batch_size=5)
    assert len(list(loader)) == 10
    loop = iter(loader)
    next(loop)
    assert background() == []


def test_the_bytes_made_ahead_are_bounded() -> None:
    one = sum(tensor.nbytes for tensor in Loader(Numbers(50), batch_size=5).peek().values())
    for text, depth in ((f"{3 * one}B", 3), (f"{one - 1}B", 1), ("1MB", 10**6 // one)):
        loop = iter(Loader(Numbers(50), batch_size=5, prefetch=text))
        next(loop)
        ahead = inside(loop, "ahead")
        assert ahead.depth == depth
    for wrong in ("64", "", "-1MB", "64 megabytes", "1iB"):
        with pytest.raises(ValueError, match=r"^`prefetch` must be bytes as text such as \"64MB"):
            Loader(Numbers(50), batch_size=5, prefetch=wrong)


@pytest.mark.parametrize("how", ["break", "error", "end", "drop", "bad batch"])
def test_no_thread_outlives_its_loop(how: str) -> None:
    source = Numbers(50)
    loader = Loader(source, batch_size=5, prefetch=3)
    if how == "break":
        for _ in loader:
            break
    elif how == "error":
        with pytest.raises(RuntimeError, match="loss is nan"):
            fail_in_the_step(loader)
    elif how == "end":
        assert len(list(loader)) == 10
    elif how == "drop":
        loop = iter(loader)
        next(loop)
        assert len(background()) == 1
        del loop
    else:
        source.watch = fail_at(25)
        with pytest.raises(KeyError):
            list(loader)
    assert background() == []


def fail_in_the_step(loader: Loader) -> None:
    for _ in loader:
        raise RuntimeError("loss is nan")


def fail_at(sample: int) -> Callable[[NDArray[np.int64]], None]:
    def watch(indices: NDArray[np.int64]) -> None:
        if sample in indices:
            raise KeyError(sample)

    return watch


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_an_error_of_the_source_comes_in_its_turn_and_may_be_retried(ahead: int) -> None:
    source = Numbers(20)
    source.watch = fail_at(8)
    loader = Loader(source, batch_size=4, prefetch=ahead)
    loop = iter(loader)
    assert [next(loop)["sample"][0].item() for _ in range(2)] == [0, 4]
    with pytest.raises(KeyError, match=r"^8$"):
        next(loop)
    assert loader.position == 8, "nothing was handed out"
    source.watch = None
    assert [batch["sample"][0].item() for batch in loop] == [8, 12, 16]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_forked_child_goes_on_by_itself(ahead: int) -> None:
    loader = Loader(Numbers(20), batch_size=4, prefetch=ahead)
    loop = iter(loader)
    next(loop)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        rest = [int(batch["sample"][0]) for batch in loop]
        os.write(write, str(rest).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "[4, 8, 12, 16]"
    os.waitpid(child, 0)
    assert [int(batch["sample"][0]) for batch in loop] == [4, 8, 12, 16]


# Exits of whole processes while a batch is being made, one is ready, the queue is full, or the
# consumer waits. The process must end promptly, with nothing on stderr but its own error.

PROGRAM = """
import os, signal, sys, threading, time
from models.oracle import Numbers
from support.internals import original
from windeck import Loader

source = Numbers(10_000)
def watch(indices):
    time.sleep(0.02 if indices[0] < 100 else {slow})
source.watch = watch
loader = Loader(source, batch_size=10, prefetch=2)
"""

ENDINGS = {
    "loops are left open, and a batch is kept": (
        "",
        "loop = iter(loader); batch = next(loop)\n"
        "import builtins; builtins.other = iter(loader); next(builtins.other)",
        0,
        "",
    ),
    "a library keeps modules": (
        "",
        "loop = iter(loader); batch = next(loop)\n"
        "sys.kept = [sys.modules['__main__'], sys.modules['windeck.loader.prefetch']]",
        0,
        "",
    ),
    "an error in the step": (
        "",
        "for b in loader: raise ValueError('step')",
        1,
        "ValueError: step",
    ),
    "a forked child exits": (
        "",
        "loop = iter(loader); next(loop)\npid = os.fork()\n"
        "if pid == 0: next(loop); sys.exit(0)\nassert os.waitpid(pid, 0)[1] == 0; next(loop)",
        0,
        "",
    ),
    "interrupted while waiting": (
        "1.0",
        "threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "for b in loader: pass",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    "interrupted in the step, and caught": (
        "",
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    for b in loader: time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n"
        "    running = tuple(original('threads._running'))\n"
        "    assert all(thread.done() for thread in running), 'a thread is left'\n"
        "    print(loader.position); sys.exit(0)",
        0,
        "",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_ends_cleanly(ending: str) -> None:
    slow, code, status, words = ENDINGS[ending]
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            PROGRAM.format(slow=slow or "0.02") + code,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        },
    )
    assert done.returncode == status, done.stderr
    last = done.stderr.strip().splitlines()[-1:]
    assert "".join(last) == words
    assert "Fatal" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iterator_is_closed_when_globals_are_removed(prefetch: int) -> None:
    """By a generator that lives until the interpreter removes the modules."""
    program = (
        "import atexit, sys\nfrom models.oracle import Numbers\nfrom windeck import Loader\n"
        "from support.internals import original\n"
        "def batches():\n"
        f"    iterator = iter(Loader(Numbers(100), batch_size=4, prefetch={prefetch}))\n"
        "    try:\n        yield next(iterator)\n"
        "    finally:\n        remove(); iterator.close(); print('closed')\n"
        "def remove():\n"
        "    for module in ('windeck.loader.batch_groups', 'windeck.loader.prefetch'):\n"
        "        for name in list(vars(sys.modules[module])):\n"
        "            if not name.startswith('__'): setattr(sys.modules[module], name, None)\n"
        "loop = batches(); next(loop)\n"
        "stop = original('prefetch._stop_all'); stop(); atexit.unregister(stop); loop.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("closed\n", "")
