"""Prefetching in a thread: errors are raised, and the thread ends in every case."""

from __future__ import annotations

import gc
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
from support.internals import original, plant
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


class Endless(Numbers):
    """A source whose samples take some seconds of the clock where the loop makes them itself."""

    def __init__(self, clock: list[float], seconds: float = 0.0) -> None:
        super().__init__(10**9)
        self.clock, self.seconds = clock, seconds
        #: For each batch of a loop: whether the thread made it.
        self.made: list[bool] = []

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        self.made.append(maker() == "thread")
        if not self.made[-1]:
            self.clock[0] += self.seconds
        return super().gather(indices, out)


class Independent(Endless):
    independent_rows = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of one number, the time."""
    now = [0.0]
    plant(monkeypatch, "prefetch.perf_counter", lambda: now[0])
    return now


def run_loop(loader: Loader, count: int, away: Callable[[int], float]) -> list[bool]:
    """Return which batches of a loop the thread made; after batch n it is `away(n)` seconds."""
    source: Any = loader.stream.source  # type: ignore[attr-defined]
    source.made.clear()
    loop: Any = iter(loader)
    for number in range(count):
        next(loop)
        source.clock[0] += away(number)
    loop.close()
    made: list[bool] = source.made[:count]
    return made


def loader_without_work(clock: list[float], makes: float = 0.0) -> Loader:
    """Return a loader whose last loop did nothing between its batches."""
    source = Endless(clock)
    loader = Loader(source, batch_size=1)
    run_loop(loader, 6, lambda number: 0.0)
    source.seconds = makes
    return loader


def test_closing_stops_a_thread_that_waits_and_may_be_repeated() -> None:
    loop: Any = iter(Loader(Numbers(100), batch_size=1))
    assert next(loop)["sample"].tolist() == [0]
    assert len(background()) == 1
    loop.close()
    loop.close()
    assert background() == []
    assert [int(batch["sample"]) for batch in loop] == list(range(1, 100))
    assert list(loop) == []


def test_the_garbage_collector_ends_a_forgotten_thread() -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.loop = iter(Loader(Numbers(100), batch_size=1))
            next(self.loop)

    Holder()
    gc.collect()
    assert background() == []


def test_a_collection_in_the_thread_itself_does_not_hang() -> None:
    holder: list[object] = []

    def watch(indices: NDArray[np.int64]) -> None:
        if maker() == "thread":
            turn.acquire()
            holder.clear()  # The last reference: it is closed in its own thread.

    turn, source = threading.Semaphore(0), Numbers(100)
    source.watch = watch
    loop = iter(Loader(source, batch_size=1, prefetch=1))
    next(loop)
    (thread,) = background()
    holder.append(loop)
    del loop
    turn.release()
    assert thread.wait(30)


def test_a_consumer_without_work_of_its_own_makes_items_itself(clock: list[float]) -> None:
    loader = loader_without_work(clock)
    made = run_loop(loader, 20, lambda number: 1.0 if 5 <= number < 12 else 0.0)
    # Items 5 and 6 are followed by work: from 8 on they are made ahead. Item 12 is followed by
    # none: what was ahead is used up.
    assert [number for number in range(20) if made[number]] == list(range(8, 15))


@pytest.mark.parametrize(
    ("away", "makes", "first"),
    [
        (105e-6, 0.0, 2),  # Away twice, before items 1 and 2: from item 3 on.
        (105e-6, 1.0, 2),
        (75e-6, 75e-6, 2),
        (75e-6, 45e-6, None),
        (45e-6, 75e-6, None),
    ],
)
def test_a_short_step_needs_items_that_take_as_long(
    away: float, makes: float, first: int | None, clock: list[float]
) -> None:
    loader = loader_without_work(clock, makes)
    made = run_loop(loader, 8, lambda number: away)
    found = [number for number in range(8) if made[number]]
    assert found == ([] if first is None else list(range(first + 1, 8)))
    # The next loop begins with what was found.
    assert run_loop(loader, 5, lambda number: away) == [False] + [first is not None] * 4


def run_steps(loader: Loader, count: int, *, alone: float, beside: float) -> list[bool]:
    """Return which batches of a loop the thread made.

    A step takes `alone` seconds, or `beside` after a batch that the thread made: it then makes the
    next ones meanwhile.
    """
    source: Any = loader.stream.source  # type: ignore[attr-defined]
    return run_loop(loader, count, lambda number: beside if source.made[number] else alone)


def new_loader(clock: list[float]) -> Loader:
    return Loader(Endless(clock, 0.1), batch_size=1)


@pytest.mark.parametrize("beside", [1.2, 1.4])
def test_a_thread_that_costs_more_than_it_saves_is_used_for_trials_alone(
    beside: float, clock: list[float]
) -> None:
    loader = new_loader(clock)
    found = run_steps(loader, 500, alone=1.0, beside=beside)
    assert 10 < sum(found[:25]) < 17  # the first steps, and the first trial
    assert sum(found[25:]) < 0.1 * 475
    for _ in range(3):  # later loops go on with what was found
        found = run_steps(loader, 500, alone=1.0, beside=beside)
        assert sum(found) < 0.05 * 500
    # A step that waits for a device: the thread is used again, at the next trial.
    found = run_steps(loader, 3000, alone=1.0, beside=1.0)
    assert sum(found[1100:]) > 0.95 * 1900


def test_a_thread_that_saves_time_is_used_but_for_trials(clock: list[float]) -> None:
    for beside in (1.0, 1.05):
        found = run_steps(new_loader(clock), 500, alone=1.0, beside=beside)
        assert all(found[1:6])
        assert sum(found) > 0.92 * 500


def test_a_thread_that_begins_to_pay_is_used_but_for_trials(clock: list[float]) -> None:
    source = Endless(clock, 0.1)
    loader = Loader(source, batch_size=1)
    run_steps(loader, 100, alone=1.0, beside=2.0)
    source.seconds = 1.0
    found = run_steps(loader, 2000, alone=1.0, beside=1.0)
    start = found.index(True)
    assert start < 1000
    assert sum(found[start:]) > 0.9 * len(found[start:])


def test_a_trial_of_a_thread_that_is_much_slower_ends_early(clock: list[float]) -> None:
    loader = new_loader(clock)
    run_steps(loader, 30, alone=1.0, beside=3.0)
    found = run_steps(loader, 1000, alone=1.0, beside=3.0)
    assert 0 < sum(found) < 25


@pytest.mark.parametrize(("every", "seconds"), [(10, 0.04), (40, 0.2)])
def test_steps_that_take_long_now_and_then_beside_the_thread_count(
    every: int, seconds: float, clock: list[float]
) -> None:
    """As beside other programs: most steps take as long as ever, the mean three times and more."""
    source = Endless(clock, 0.0003)
    loader = Loader(source, batch_size=1)
    found = run_loop(loader, 6000, lambda n: seconds if source.made[n] and not n % every else 0.002)
    assert 20 < sum(found) < 0.06 * 6000


@pytest.mark.parametrize("every", [17, 41, 97])
@pytest.mark.parametrize("first", [0, 5, 10, 16])
def test_single_steps_that_take_long_do_not_count(
    every: int, first: int, clock: list[float]
) -> None:
    """Such as those that save a checkpoint, in whichever way the batch was made."""
    source = Endless(clock, 0.5)
    loader = Loader(source, batch_size=1)
    found = run_loop(loader, 3000, lambda number: 50.0 if number % every == first else 1.0)
    assert sum(found) > 0.8 * 3000


@pytest.mark.parametrize("every", [2, 3, 4])
def test_steps_of_two_lengths_count_little(every: int, clock: list[float]) -> None:
    """Such as those that update weights after several batches."""
    source = Endless(clock, 0.5)
    loader = Loader(source, batch_size=1)
    found = run_loop(loader, 3000, lambda number: 1.0 if number % every else 4.0)
    assert sum(found) > 0.9 * 3000


@pytest.mark.parametrize("cold", range(7))
def test_the_first_steps_of_a_loader_do_not_count(cold: int, clock: list[float]) -> None:
    """They compile a model, and write to memory for the first time."""
    loader = Loader(Endless(clock, 0.5), batch_size=1)
    found = run_loop(loader, 200, lambda number: 1.0 if number > cold else 50.0)
    assert sum(found) > 0.9 * 200


def test_groups_of_different_sizes_are_not_compared(clock: list[float]) -> None:
    """A loop begins with small groups, which take less time in either way."""
    source = Independent(clock)
    loader = Loader(source, batch_size=1)
    for _ in range(4):  # With groups that were compared, a trial would have begun.
        run_loop(loader, 1 + 2 + 4 + 8 + 16 + 32, lambda number: 1.0)
        assert source.made[:6] == [False, *[True] * 5]


def test_no_thread_starts_without_a_reason(clock: list[float]) -> None:
    # A loader remembers how long its last loop was away.
    loader = Loader(Numbers(50), batch_size=5)
    assert len(list(loader)) == 10
    loop = iter(loader)
    next(loop)
    assert background() == []


def test_the_bytes_made_ahead_are_bounded(clock: list[float]) -> None:
    one = sum(tensor.nbytes for tensor in Loader(Numbers(50), batch_size=5).peek().values())
    for text, depth in ((f"{3 * one}B", 3), (f"{one - 1}B", 1), ("1MB", 10**6 // one)):
        source = Endless(clock)
        source.size = 50
        loop: Any = iter(Loader(source, batch_size=5, epochs=1, prefetch=text))
        for taken in range(1, 7):
            next(loop)
            clock[0] += 1.0
            ahead = min(taken + depth, 10)
            while taken > 1 and len(source.made) < ahead:
                pass  # The thread is making what was requested.
            assert len(source.made) <= ahead
        loop.close()
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
    with pytest.raises(KeyError, match=r"^8$") as caught:
        next(loop)
    assert caught.traceback[-1].name == "watch", "the traceback is the source's"
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

signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs ignore it.
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
