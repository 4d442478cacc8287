"""Saves beside another process that opens the store for a moment, such as a refused trainer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from support.internals import plant
from support.store_servers import EMBEDDED
from windeck import checkpoint
from windeck._util import retry
from windeck.checkpoint.stores import open_store

STATE = {"w": torch.arange(100.0)}

#: A trainer that starts again and again, and is refused each time. It ends with its input.
REFUSED = """
import sys, threading, time
from windeck import checkpoint

done, refused = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.is_set():
    try:
        checkpoint.save(sys.argv[1], step=0, model={}, keep=1)
    except RuntimeError as error:
        assert "saved by another run" in str(error), error
        refused += 1
        if refused == 1:
            print("refused", flush=True)
    checkpoint.log(sys.argv[1])
    time.sleep(0.02)
print(refused)
"""
#: A process that has the store open until it reads a line.
HOLDING = """
import sys
from windeck.checkpoint.stores import open_store

with open_store(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.readline()
print("closed", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(program: str, url: str) -> Iterator[tuple[Any, Any]]:
    """Run a program with the URL; yield its input and output."""
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdin, process.stdout
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0
        finally:
            process.kill()


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_trainer_that_is_refused_does_not_hinder_the_first(
    kind: str, fresh: Callable[[str], str]
) -> None:
    url = fresh(kind)
    checkpoint.save(url, step=0, model=STATE)
    with running(REFUSED, url) as (given, printed):
        assert printed.readline() == "refused\n"
        for step in range(1, 13):
            assert checkpoint.save(url, step=step, model=STATE, keep=2) > step
        given.close()
        assert int(printed.readline()) > 0
    assert [commit.step for commit in checkpoint.log(url)] == [12, 11]


def waiting_calls(url: str) -> dict[str, Callable[[], object]]:
    """Return calls that open the store."""
    calls: dict[str, Callable[[], object]] = {
        "save": lambda: checkpoint.save(url, step=2, model=STATE),
        "tag": lambda: checkpoint.tag(url, "best"),
        "gc": lambda: checkpoint.gc(url, keep=1),
        "open_store": lambda: open_store(url).close(),
    }
    if url.startswith("leveldb"):
        calls["load"] = lambda: checkpoint.load(url, model={"w": torch.zeros(100)})
        calls["log"] = lambda: checkpoint.log(url)
    return calls


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("name", ["save", "tag", "gc", "open_store", "load", "log"])
def test_all_that_opens_a_store_waits_until_another_process_has_closed_it(
    kind: str, name: str, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh(kind)
    checkpoint.save(url, step=1, model=STATE)
    call = waiting_calls(url).get(name)
    if call is None:
        pytest.skip("RocksDB is read beside its writer")
    with running(HOLDING, url) as (given, printed):
        assert printed.readline() == "open\n"
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                print(file=given, flush=True)
                assert printed.readline() == "closed\n"

        monkeypatch.setattr("time.sleep", sleep)
        call()
        monkeypatch.undo()
        assert len(waits) == 3
        assert max(waits) <= 0.2


@pytest.mark.parametrize("kind", EMBEDDED)
def test_nobody_waits_for_ever_or_for_this_process(
    kind: str, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh(kind)
    waits: list[float] = []
    with open_store(url), monkeypatch.context() as patch:
        patch.setattr("time.sleep", waits.append)
        with pytest.raises(BlockingIOError, match="is open already"):
            checkpoint.save(url, step=1, model=STATE)
    assert waits == []
    plant(monkeypatch, "retry.OPENING", retry.OPENING._replace(most_seconds=0.05))
    with running(HOLDING, url) as (given, printed):
        assert printed.readline() == "open\n"
        with pytest.raises(BlockingIOError, match="is open already"):
            checkpoint.save(url, step=1, model=STATE)
        print(file=given, flush=True)
