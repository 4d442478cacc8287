"""Progress reports of long passes over many files."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import parent_process
from typing import Any, TypeAlias

__all__ = ["DELAY", "Progress", "at_terminal", "check_progress", "clock"]
__all__ += ["report_bytes", "report_progress", "report_rates"]

#: False: none. True: a progress bar, if rich is installed. Or a function (done, total). None: a bar
#: at a terminal, where the work takes more than `DELAY` seconds.
Progress: TypeAlias = bool | Callable[[int, int], None] | None

#: Seconds until a bar of ``progress=None`` appears.
DELAY = 2.0
#: The clock that it is measured by.
clock = time.monotonic
#: Options of rich's bars: what the program prints stays where it goes, such as a file.
_KEPT: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}


def check_progress(progress: object) -> None:
    """Raise a TypeError unless `progress` is None, a bool or a function."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"`progress` must be True, False or a function (done, total), or None, got {progress!r}"
        )


@contextlib.contextmanager
def report_progress(progress: Progress, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function to call with each portion of work done; thread-safe.

    Parameters
    ----------
    progress
        Receiver of the reports.
    what
        Description of the work, such as ``"counting documents"``.
    total
        Number of portions: files, shards or documents.

    Yields
    ------
    callable
        ``advance(portions)``.

    Examples
    --------
    >>> def report(done, total):
    ...     print(done, "of", total)
    >>> with report_progress(report, "counting", 5) as advance:
    ...     advance(2)
    ...     advance(3)
    2 of 5
    5 of 5
    """
    if callable(progress):
        yield _counted(progress, total)
    elif not _is_shown(progress):
        yield lambda portions: None
    else:
        with _bar(what, total, "portions", 0.0 if progress else DELAY) as advance:
            yield advance


@contextlib.contextmanager
def report_bytes(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the bytes of each portion of work done; thread-safe.

    At a terminal a bar appears after `DELAY` seconds.
    """
    if not _is_shown(None):
        yield lambda nbytes: None
        return
    with _bar(what, total, "bytes", DELAY) as advance:
        yield advance


def _is_shown(progress: bool | None) -> bool:
    return at_terminal() if progress is None else progress and _has_rich()


def at_terminal() -> bool:
    """Return whether a bar may be drawn unasked: at a terminal, by the main thread of rank 0.

    Not by a process that `multiprocessing` started, such as a worker of a `DataLoader`.
    """
    if not _stderr_is_terminal() or os.environ.get("TERM") == "dumb":
        return False
    is_first = os.environ.get("RANK", "0") == "0" and parent_process() is None
    is_main = threading.current_thread() is threading.main_thread()
    return is_first and is_main and _has_rich()


def _stderr_is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError, OSError):  # replaced by an object that writes, or closed
        return False


def _counted(report: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done, lock = 0, threading.RLock()

    def advance(portions: int) -> None:
        nonlocal done
        with lock:
            done += portions
            report(done, total)

    return advance


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def _bar(what: str, total: int, unit: str, delay: float) -> Iterator[Callable[[int], None]]:
    """Give a function that moves a bar, which appears with the first portion after `delay`."""
    bar = _LateBar(what, total, unit, delay)
    try:
        yield bar.advance
    finally:
        bar.close()


class _LateBar:
    """A bar of rich that is drawn once the work has taken `delay` seconds; thread-safe.

    Errors of drawing, such as those of a terminal that is gone, end the bar and not the work.
    """

    def __init__(self, what: str, total: int, unit: str, delay: float) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._shown_at = clock() + delay
        self._done, self._task = 0, 0
        self._bar: Any = None
        self._lock, self._is_over = threading.RLock(), False
        if not delay:
            self._draw()

    def advance(self, portions: int) -> None:
        with self._lock:
            self._done += portions
            if not self._is_over:
                self._draw()

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                with contextlib.suppress(Exception):
                    self._bar.stop()

    def _draw(self) -> None:
        try:
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done)
            elif clock() >= self._shown_at and self._done < self._total:
                self._show()
        except Exception:
            self.close()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
        if self._unit == "bytes":
            columns += [DownloadColumn(), TransferSpeedColumn()]
        else:
            columns.append(MofNCompleteColumn())
        bar: Any = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), **_KEPT)
        self._bar = bar
        self._task = bar.add_task(self._what, total=self._total, completed=self._done)
        bar.start()


@contextlib.contextmanager
def report_rates(progress: Progress, what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Give a function to call with the rows and bytes of each portion of work done; thread-safe.

    Parameters
    ----------
    progress
        Receiver of the reports; a function is called with bytes done and in total. A bar has rows
        and bytes per second, and the time left.
    what
        Description of the work, such as ``"reading"``.
    total
        Bytes in total.

    Yields
    ------
    callable
        ``advance(rows, nbytes)``.

    Examples
    --------
    >>> def report(done, total):
    ...     print(done, "of", total)
    >>> with report_rates(report, "reading", 500) as advance:
    ...     advance(10, 200)
    200 of 500
    """
    if callable(progress):
        count = _counted(progress, total)
        yield lambda rows, nbytes: count(nbytes)
    elif not _is_shown(progress):
        yield lambda rows, nbytes: None
    elif progress:
        with _rate_bar(what, total) as advance:
            yield advance
    else:
        with _bar(what, total, "bytes", DELAY) as move:
            yield lambda rows, nbytes: move(nbytes)


@contextlib.contextmanager
def _rate_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    done, lock = 0, threading.RLock()
    with Bar(*columns, console=Console(stderr=True), **_KEPT) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(rows: int, nbytes: int) -> None:
            nonlocal done
            with lock:
                done += rows
                seconds = bar.tasks[0].elapsed or 0.0
                rate = f"{done / seconds:,.0f} rows/s" if seconds else ""
                bar.update(task, advance=nbytes, rate=rate)

        yield advance
