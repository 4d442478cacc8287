"""Retries: the number of attempts, the pauses, and what ends them, with a clock of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from support.programs import printed
from windeck._util import retry


class Clock:
    """A clock that moves only by pauses and by work, in place of that of the process."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> Callable[[], None]:
        """Return a call that takes so long and fails."""

        def fail() -> None:
            self.now += seconds
            raise ConnectionError("no")

        return fail


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", clock.sleep)
        patch.setattr(time, "monotonic", lambda: clock.now)
        yield clock


def always(error: Exception) -> bool:
    return True


def test_requests_double_their_pauses(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        retry.retry(clock.work(1), retry.REQUESTS, always)
    expected = [0.25, 0.5, 1, 2, 4]
    assert len(clock.pauses) == len(expected)
    for pause, base in zip(clock.pauses, expected, strict=True):
        assert 0.5 * base <= pause < 1.5 * base


def test_commands_are_repeated_for_half_a_second(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        retry.retry(clock.work(0), retry.COMMANDS, always)
    assert clock.pauses == pytest.approx([0.025, 0.1, 0.4])


def test_a_database_is_waited_for_for_ten_seconds(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        retry.retry(clock.work(0), retry.OPENING, always)
    assert clock.pauses[:6] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.2])
    assert 10.0 <= sum(clock.pauses) < 10.2


def test_polling_has_no_end(clock: Clock) -> None:
    for number in retry.POLLING.attempts():
        if number == 200:
            break
    assert clock.pauses[:8] == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1])
    assert max(clock.pauses) == 0.1


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("seconds", [0.0, 3.0, 7.5, 100.0])
def test_both_limits(attempts: int, seconds: float, clock: Clock) -> None:
    """Attempts take a second, and so do pauses: the k-th ends after 2k - 1 seconds."""
    policy = retry.RetryPolicy(
        first_pause=1, growth=1, most_attempts=attempts, most_seconds=seconds
    )
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.work(1)()

    with pytest.raises(ConnectionError):
        retry.retry(call, policy, always)
    late = next(k for k in range(1, 100) if 2 * k - 1 >= seconds)
    assert calls == min(attempts, late)
    assert len(clock.pauses) == calls - 1  # none after the last attempt


def test_other_errors_are_not_repeated(clock: Clock) -> None:
    with pytest.raises(ConnectionError, match="no"):
        retry.retry(clock.work(1), retry.REQUESTS, lambda error: isinstance(error, TimeoutError))
    assert clock.pauses == []


def test_an_interrupt_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []

    def fail() -> None:
        calls.append(None)
        raise ConnectionError

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retry.retry(fail, retry.REQUESTS, always)
    assert len(calls) == 1


def test_a_result_ends_the_attempts(clock: Clock) -> None:
    left = iter([1, 1, 0])

    def call() -> str:
        if next(left):
            raise ConnectionError
        return "done"

    assert retry.retry(call, retry.COMMANDS, always) == "done"
    assert len(clock.pauses) == 2


def test_stores_start_without_modules_that_pauses_need() -> None:
    """Their import takes longer than opening a small store."""
    program = (
        "import sys\nfrom windeck.checkpoint.stores import open_store\nopen_store('memory://')\n"
        "print(*{'random'} & sys.modules.keys())"
    )
    assert printed(program) == "\n"
