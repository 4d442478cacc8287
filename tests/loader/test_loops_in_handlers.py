"""Signal handlers that use the loader whose loop they interrupt."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from models.oracle import Numbers
from support.instructions import at_instructions, files_of
from windeck import Loader

FILES = files_of("windeck.loader.batch_groups", "windeck.loader.prefetch")


def is_ours(code: CodeType) -> bool:
    return code.co_filename in FILES


def take(batches: Iterator[Any], seen: list[int]) -> None:
    seen += next(batches)["sample"].tolist()


def handler(
    batches: Any, seen: list[int], number: int
) -> tuple[Callable[[FrameType], None], list[bool | None]]:
    """Return a function that takes a batch at its call of a number, and whether its calls did."""
    called: list[bool | None] = []

    def handle(frame: FrameType) -> None:
        called.append(None)
        if len(called) != number + 1:
            return
        before = len(seen)
        try:
            take(batches, seen)
        except RuntimeError as error:
            assert str(error).startswith("taking a batch in a signal handler interrupts")  # noqa: PT017
        called[-1] = len(seen) > before

    return handle, called


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_handler_takes_a_batch_between_two_or_is_refused(ahead: int) -> None:
    """No batch is lost or handed out twice, and no call hangs."""
    answers: list[bool | None] = []
    for number in itertools.count(step=3):
        loader = Loader(Numbers(20), batch_size=2, prefetch=ahead)
        batches, seen = iter(loader), list[int]()
        handle, called = handler(batches, seen, number)
        take(batches, seen)
        with at_instructions(handle, is_ours):
            for _ in range(4):
                take(batches, seen)
        for batch in batches:
            seen += batch["sample"].tolist()
        assert sorted(seen) == list(range(20))
        if len(called) <= number:
            break
        answers.append(called[number])
    assert len(answers) > 15
    # Taken before and after a batch is, and refused meanwhile.
    assert True in answers
    assert False in answers
