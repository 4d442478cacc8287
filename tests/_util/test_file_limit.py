"""The limit of open files of a process."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from windeck._util import allow_more_files, allow_open_files, open_with_room


@pytest.fixture
def limits() -> Iterator[list[tuple[int, int]]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield [before]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def highest() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def soft() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_it_is_raised_and_never_lowered(limits: list[tuple[int, int]]) -> None:
    most = limits[0][1]
    if most != resource.RLIM_INFINITY and most < 400:
        pytest.skip(f"this process may have {most} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, most))
    allow_open_files(299)
    assert soft() == 300
    allow_open_files(400)
    assert soft() == 400
    allow_open_files(350)
    assert soft() == 400


def test_the_limit_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: set_to.append(pair))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, 500))
    allow_open_files(10_000)
    assert set_to == [(500, 500)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, resource.RLIM_INFINITY))
    allow_open_files(10_000)
    assert set_to[1:] == [(10_000, resource.RLIM_INFINITY)]


def test_a_refused_limit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, pair: tuple[int, int]) -> None:
        raise ValueError(f"{pair} is refused")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (300, 500))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_open_files(400)


def test_it_is_raised_before_it_is_reached(limits: list[tuple[int, int]], tmp_path: Path) -> None:
    """Holes between the descriptors are no sign of many open files."""
    most = limits[0][1]
    with (tmp_path / "x").open("w") as file:
        opened = [os.dup(file.fileno()) for _ in range(60)]
        most_open = opened[-1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_open + 10, most))
        os.close(opened.pop(0))
        allow_more_files(file.fileno())
        first = soft()
        opened.append(os.dup(file.fileno()))
        allow_more_files(file.fileno())
        assert first < soft()
        assert soft() >= min(2 * (most_open + 1) + 256, highest())
        for one in opened:
            os.close(one)


def test_it_is_raised_when_others_have_reached_it(
    limits: list[tuple[int, int]], tmp_path: Path
) -> None:
    most = limits[0][1]
    (tmp_path / "x").write_text("data")
    with (tmp_path / "x").open() as file:
        opened = [os.dup(file.fileno()) for _ in range(30)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened) + 1, most))
        with suppress(OSError):
            while True:
                opened.append(os.dup(file.fileno()))
        before = soft()
        with open_with_room(lambda: (tmp_path / "x").open(), "x") as other:
            assert other.read() == "data"
        assert soft() == min(2 * before, highest())
        with pytest.raises(FileNotFoundError):
            open_with_room(lambda: (tmp_path / "y").open(), "y")
        for one in opened:
            os.close(one)
