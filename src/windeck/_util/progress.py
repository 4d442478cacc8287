"""How far a long pass over many files has come, for those who asked to be told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

__all__ = ["Progress", "check_progress", "reporting"]

#: False: say nothing. True: a bar, where rich is installed. Or a function (done, total).
Progress: TypeAlias = bool | Callable[[int, int], None]


def check_progress(progress: object) -> None:
    """Refuse what is neither a flag nor a function.

    Raises
    ------
    TypeError
        For anything else.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"progress is {progress!r}; expected True, False or a function (done, total)"
        )


@contextlib.contextmanager
def reporting(progress: Progress, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function to call with each portion of work done; safe in several threads.

    Parameters
    ----------
    progress
        Who is to be told.
    what
        What is being done: ``"counting documents"``.
    total
        Portions there are: files, shards or documents.

    Yields
    ------
    callable
        ``advance(portions)``.

    Examples
    --------
    >>> with reporting(lambda done, total: print(done, "of", total), "counting", 5) as advance:
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


def _counted(tell: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done, lock = 0, threading.Lock()

    def advance(portions: int) -> None:
        nonlocal done
        with lock:
            done += portions
            tell(done, total)

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
