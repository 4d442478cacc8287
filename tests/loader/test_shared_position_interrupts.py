"""Interrupts and deaths while the position of a dataset changes: it is the old or the new one."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import pytest

from models.oracle import Numbers, Turn
from support.instructions import at_instructions, files_of
from windeck import Stream
from windeck.loader import IterDataset

pytestmark = [
    # Python 3.12 and later warn of forks while torch's threads run.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    # An interrupt as the file is opened.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
    ),
]

SIZE, BATCH = 11, 2


def set_position(dataset: IterDataset) -> None:
    dataset.position = 7


def begin_loop(dataset: IterDataset) -> None:
    next(iter(dataset))


class Looped(IterDataset):
    """A dataset that has begun a loop."""

    loop: Any


def load_state(dataset: Looped) -> None:
    dataset.loop.load_state_dict(STATE)


#: Changes, the positions after them, and those that are saved then: None if they are unknown.
CHANGES: dict[str, tuple[Callable[[Looped], None], int, int | None]] = {
    "set": (set_position, 7, 7),
    "begin": (begin_loop, SIZE, None),
    "resume": (load_state, SIZE, 8),
}

FILES = files_of("windeck.loader.shared_position", "windeck.io.shared_memory")


def is_ours(code: CodeType) -> bool:
    return code.co_filename in FILES


def act_at(number: int, act: Callable[[], None]) -> Callable[[FrameType], None]:
    """Return a function that acts at its call of a number."""
    left = itertools.count()

    def count(frame: FrameType) -> None:
        if next(left) == number:
            act()

    return count


def made() -> Looped:
    dataset = Looped(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    dataset.loop = iter(dataset)
    dataset.position = 4
    return dataset


def saved(dataset: IterDataset) -> int | None:
    """Return the position in the state of a dataset; None if workers may have been further."""
    try:
        return int(dataset.state_dict()["position"])
    except RuntimeError as error:
        assert str(error).startswith("workers have begun a loop")  # noqa: PT017
        return None


def state_of_a_loop() -> dict[str, Any]:
    """Return the state of a loop after batches until position 8."""
    dataset = made()
    dataset.position = 2
    loop: Any = iter(dataset)
    for _ in range(3):
        next(loop)
    state: dict[str, Any] = loop.state_dict()
    return state


STATE = state_of_a_loop()


def interrupt() -> None:
    raise KeyboardInterrupt


def shared_files() -> dict[int, str]:
    """Return the open files of memory that datasets share, and their links in /proc."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {number: link for number, link in links.items() if "windeck-shared" in link}


@pytest.fixture
def other() -> Callable[[IterDataset], None]:
    """A function that lets another process change its own position in a dataset's memory."""
    context = multiprocessing.get_context("fork")

    def change(dataset: IterDataset) -> None:
        process = context.Process(target=set_position, args=(dataset,))
        process.start()
        process.join(60)
        alive = process.is_alive()
        process.kill()
        assert not alive, "the memory stayed locked"
        assert process.exitcode == 0

    return change


@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_instruction(name: str, other: Callable[[IterDataset], None]) -> None:
    change, after, kept = CHANGES[name]
    found = set[int]()
    for number in itertools.count():
        dataset = made()
        try:
            with at_instructions(act_at(number, interrupt), is_ours):
                change(dataset)
            break
        except KeyboardInterrupt:
            pass
        found.add(dataset.position)
        assert dataset.position in (4, after)
        assert saved(dataset) == (kept if dataset.position == after else 4)
        if number % 5 == 0:
            other(dataset)
        change(dataset)
        assert dataset.position >= after
        dataset.position = 3
        assert dataset.position == 3
    assert number > 20
    assert found == {4, after}


@pytest.mark.parametrize("name", CHANGES)
def test_the_death_of_a_process_at_any_instruction(name: str) -> None:
    change = CHANGES[name][0]
    dataset, codes = made(), list[int]()
    for number in itertools.count(step=17):
        pid = os.fork()
        if not pid:
            try:
                kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
                with at_instructions(act_at(number, kill), is_ours):
                    change(dataset)
            finally:
                os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert dataset.position == 4
        dataset.position = 4
        if codes[-1] == 0:
            break
    assert len(codes) > 3
    assert set(codes) == {0, -signal.SIGKILL}


@pytest.mark.skipif(sys.platform != "linux", reason="finds the memory by /proc")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_cut_off_in_its_bytes_did_not_happen(name: str) -> None:
    """A process may die in the copy of the bytes."""
    change, after, _ = CHANGES[name]
    gc.collect()
    kept = []  # A new file has a number that no other had.
    for stop in itertools.chain(range(60), (100, 110, 1000)):
        before = set(shared_files())
        dataset = made()
        kept.append(dataset)
        file = min(set(shared_files()) - before)  # mmap has a descriptor of its own.
        size = os.fstat(file).st_size
        old = os.pread(file, size, 0)
        change(dataset)
        new = os.pread(file, size, 0)
        first = next(i for i in range(size) if old[i] != new[i])
        last = next(i for i in reversed(range(size)) if old[i] != new[i]) + 1
        cut = min(first + stop, last)
        os.pwrite(file, old[cut:last], cut)
        assert dataset.position == (after if cut == last else 4)
        change(dataset)
        assert dataset.position >= after


def test_interrupts_of_a_loop_that_sets_the_position() -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    dataset, lost, done = made(), 0, 4
    before = signal.signal(signal.SIGALRM, ring)
    try:
        for number in range(300):
            at = done
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + number * 1e-6)
                for at in itertools.count(done + 1):
                    dataset.position = at
                    done = at
            except Alarm:
                lost += dataset.position not in (done, at)
                done = dataset.position
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert lost == 0


def test_a_handler_that_interrupts_a_change_reads_and_is_not_left_waiting() -> None:
    """It may read the position, and save it; a change in it comes to pass or is refused."""
    answers = set[int]()
    for number in itertools.count():
        dataset, seen = made(), list[int]()

        def handle(dataset: IterDataset = dataset, seen: list[int] = seen) -> None:
            seen.append(dataset.position)
            try:
                dataset.position = 5
            except RuntimeError as error:
                message = "a change of the position in a signal handler interrupts"
                assert str(error).startswith(message)  # noqa: PT017
                seen.append(0)

        with at_instructions(act_at(number, handle), is_ours):
            dataset.position = 7
        if not seen:
            break
        assert seen[0] in (4, 7)
        assert dataset.position in ((7,) if len(seen) == 2 else (5, 7))
        answers.add(len(seen))
    assert number > 20
    assert answers == {1, 2}


@pytest.mark.skipif(sys.platform != "linux", reason="lists open files by /proc")
def test_the_memory_has_no_name_and_its_file_is_closed() -> None:
    gc.collect()
    before = shared_files()
    datasets = [made() for _ in range(10)]
    assert len(shared_files()) > len(before)
    assert all(link.startswith("/memfd:") for link in shared_files().values())
    del datasets
    gc.collect()
    assert len(shared_files()) <= len(before)
