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
from support.instructions import at_instructions
from support.internals import inside, is_held, original
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


def load_state(dataset: IterDataset) -> None:
    inside(dataset, "shared").resume(7)


#: Changes, and the positions after them.
CHANGES: dict[str, tuple[Callable[[IterDataset], None], int]] = {
    "set": (set_position, 7),
    "begin": (begin_loop, SIZE),
    "resume": (load_state, 7),
}

FILES = {original("shared_position.__file__"), original("shared_memory.__file__")}


def is_ours(code: CodeType) -> bool:
    return code.co_filename in FILES


def act_at(number: int, act: Callable[[], None]) -> Callable[[FrameType], None]:
    """Return a function that acts at its call of a number."""
    left = itertools.count()

    def count(frame: FrameType) -> None:
        if next(left) == number:
            act()

    return count


def made() -> IterDataset:
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    dataset.position = 4
    return dataset


def interrupt() -> None:
    raise KeyboardInterrupt


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
    change, after = CHANGES[name]
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
        assert inside(dataset, "shared").loops()[1] == (dataset.position == after and name != "set")
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


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_is_cut_off_in_its_bytes_did_not_happen(name: str) -> None:
    """A process may die in the copy of the bytes."""
    change, after = CHANGES[name]
    for stop in itertools.chain(range(60), (100, 110, 1000)):
        dataset = made()
        pages: Any = inside(inside(dataset, "shared"), "memory").pages
        old = bytes(pages)
        change(dataset)
        new = bytes(pages)
        first = next(i for i in range(len(old)) if old[i] != new[i])
        pages[first + stop :] = old[first + stop :]
        assert dataset.position == (after if bytes(pages) == new else 4)
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
    for number in itertools.count():
        dataset, seen = made(), list[int]()

        def handle(dataset: IterDataset = dataset, seen: list[int] = seen) -> None:
            seen.append(dataset.position)
            if is_held(inside(inside(dataset, "shared"), "lock")):
                with pytest.raises(RuntimeError, match=r"^a change of the position in a signal ha"):
                    dataset.position = 5
                seen.append(0)
            else:
                dataset.position = 5

        with at_instructions(act_at(number, handle), is_ours):
            dataset.position = 7
        if not seen:
            break
        assert seen[0] in (4, 7)
        assert dataset.position in ((7,) if len(seen) == 2 else (5, 7))
    assert number > 20


@pytest.mark.skipif(sys.platform != "linux", reason="lists open files by /proc")
def test_the_memory_has_no_name_and_its_file_is_closed() -> None:
    def files() -> list[str]:
        links = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the listing
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return sorted(link for link in links if "windeck-shared" in link)

    gc.collect()
    before = files()
    datasets = [made() for _ in range(10)]
    assert len(files()) > len(before)
    assert all(link.startswith("/memfd:") for link in files())
    del datasets
    gc.collect()
    assert len(files()) <= len(before)
