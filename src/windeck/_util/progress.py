"""Progress reports of long passes over many files."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

__all__ = ["Progress", "check_progress", "report_progress", "report_rates"]

#: False: none. True: a progress bar, if rich is installed. Or a function (done, total).
Progress: TypeAlias = bool | Callable[[int, int], None]


def check_progress(progress: object) -> None:
    """Raise a TypeError unless `progress` is a bool or a function."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"`progress` must be True, False or a function (done, total), got {progress!r}"
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
    if progress is False or (progress is True and not _has_rich()):
        yield lambda portions: None
    elif progress is True:
        with _bar(what, total) as advance:
            yield advance
    else:
        yield _counted(progress, total)


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
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda portions: bar.advance(task, portions)


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
    if progress is True and _has_rich():
        with _rate_bar(what, total) as advance:
            yield advance
    elif isinstance(progress, bool):
        yield lambda rows, nbytes: None
    else:
        count = _counted(progress, total)
        yield lambda rows, nbytes: count(nbytes)


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
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(rows: int, nbytes: int) -> None:
            nonlocal done
            with lock:
                done += rows
                seconds = bar.tasks[0].elapsed or 0.0
                rate = f"{done / seconds:,.0f} rows/s" if seconds else ""
                bar.update(task, advance=nbytes, rate=rate)

        yield advance
