"""A store that kills its process, and functions run in child processes that may be killed."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from support.internals import plant

WRITES = (
    "put_many",
    "compare_and_set",
    "sync",
    "order_writes",
    "delete_range",
    "delete_many",
    "ingest_parts",
)


class Doomed:
    """Store that kills its process before or after its n-th write, or inside a bulk load.

    Parameters
    ----------
    store
        The real store, which receives all calls.
    left
        Number of points to survive; there is one before each write and one after it.
    """

    def __init__(self, store: Any, left: int) -> None:
        self.store, self.left = store, left

    def tick(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def bulk_load(self, items: Any) -> Any:
        def watched() -> Iterator[Any]:
            for pair in items:
                yield pair
                self.tick()

        self.tick()
        return self.store.bulk_load(watched())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in WRITES:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.tick()
            result = found(*args, **options)
            self.tick()
            return result

        return call


def child(action: Callable[[], object]) -> int:
    """Run a function in a fork; return its exit code, -9 when it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Points:
    """Calls of the system after which a process may be killed, counted."""

    def __init__(self, left: int) -> None:
        self.left = left

    def tick(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count before and after each change of a folder."""
        for name in ("replace", "unlink", "fsync", "utime", "makedirs"):
            call = getattr(os, name)

            def watched(*args: Any, _call: Any = call, **options: Any) -> Any:
                self.tick()
                found = _call(*args, **options)
                self.tick()
                return found

            monkeypatch.setattr(os, name, watched)

    def watch_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count in the middle of each write of the cache of objects to a file."""

        def opened(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            file = open(path, mode, *args, **options)  # noqa: SIM115
            if mode == "r" or mode == "rb":
                return file
            self.tick()
            write = file.write

            def half(data: Any) -> int:
                data = memoryview(data)
                written = write(data[: len(data) // 2])
                file.flush()
                self.tick()
                return int(written) + int(write(data[len(data) // 2 :]))

            return _Watched(file, half)

        plant(monkeypatch, "cache.open", opened)


class _Watched:
    """A file with another function to write."""

    def __init__(self, file: Any, write: Callable[[Any], int]) -> None:
        self._file, self.write = file, write

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def kill_at_every_step(
    first: Callable[[], object], doomed: Callable[[int, int], object], load: Callable[[], int]
) -> list[tuple[int, bool]]:
    """Kill saves at one point after the other, until one survives.

    Parameters
    ----------
    first
        Saves step 0.
    doomed
        Saves a step, and survives a number of points.
    load
        Loads the checkpoint, and returns its step.

    Returns
    -------
    list
        The exit code of each save, and whether its step is in force, and not the former one.
    """
    assert child(first) == 0
    force, seen = 0, list[tuple[int, bool]]()
    for left in range(200):
        step = left + 1
        code = child(partial(doomed, step, left))
        assert code in (0, -9), code
        found = child(partial(_look, load, force, step)) - 10
        assert found in (0, 1)
        seen.append((code, bool(found)))
        force = step if found else force
        if code == 0:
            break
    return seen


def _look(load: Callable[[], int], force: int, step: int) -> None:
    found = load()
    assert found in (force, step), (found, force, step)
    os._exit(10 + (found == step))
