"""Splits of windows into training, validation and test: by shares, rows, time or series, and folds.

O(series) time and memory. Folds are the splits of a rolling evaluation, each later than the last.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import plural
from windeck._util.validation import check_integer
from windeck.table.table import Table
from windeck.windows.index import LONGEST, WindowRuns, WindowSpan
from windeck.windows.subset import (
    RunSubset,
    Timestamps,
    WindowSelection,
    clip_runs,
    parse_timestamp,
    rows_at,
    take_runs,
)

# Default share of validation and of test rows.
DEFAULT_SHARE = 0.1


#: The parts of a split.
PARTS = ("train", "validation", "test")


def split(
    selection: WindowSelection,
    table: Table,
    validation: Any,
    test: Any,
    by: Any,
    seed: int | None,
    validation_rows: int | None = None,
    test_rows: int | None = None,
) -> list[WindowSelection]:
    """Split into training, validation and test windows; see `Windows.split`."""
    if isinstance(by, (int, float, np.number)):
        raise TypeError(
            f"`split` takes the shares of validation and test, got a third one, {by!r}; training "
            f"is the rest: expected split({test!r}, {by!r})"
        )
    if by != "series" and seed is not None:
        raise ValueError(f"`seed` has no effect with by={by!r}, got {seed!r}; it is of by='series'")
    if validation_rows is not None or test_rows is not None:
        if by != "time" or validation != DEFAULT_SHARE or test != DEFAULT_SHARE:
            raise ValueError(
                "`validation_rows` and `test_rows` must not be given with shares, time stamps or "
                f"by='series', got validation={validation!r}, test={test!r}, by={by!r}"
            )
        validation = check_integer("validation_rows", validation_rows or 0)
        test = check_integer("test_rows", test_rows or 0)
        subsets = cut_runs(
            selection.runs, selection.span, *borders_from_rows(selection.runs, validation, test)
        )
        by = "rows"  # for messages: the numbers are no shares
    elif by == "time":
        subsets = _split_by_time(selection, table.timestamps, [validation, test])
    elif by == "series":
        subsets = _split_by_series(selection.runs, validation, test, seed or 0)
    else:
        raise ValueError(f"`by` must be 'time' or 'series', got {by!r}")
    parts = [selection.restrict(subset) for subset in subsets]
    for name, part, wanted in zip(PARTS, parts, (1, validation, test), strict=True):
        if part.count == 0 and not (isinstance(wanted, (int, float)) and wanted == 0):
            raise ValueError(
                f"the {name} part of the split holds no window (validation={validation!r}, "
                f"test={test!r}, by={by!r}), expected "
                f"{_expected(selection, name, validation, test, by)}"
            )
    inside = sum(part.count for part in parts)
    border = selection.count - inside
    return [part.report_dropped(border=border, others=inside - part.count) for part in parts]


def _split_by_time(
    selection: WindowSelection, stamps: Timestamps | None, borders: list[Any]
) -> list[RunSubset]:
    """Cut every series at two borders, given as shares of its rows or as time stamps."""
    runs = selection.runs
    are_shares = [_is_share(border, stamps) for border in borders]
    if all(are_shares):
        return cut_runs(runs, selection.span, *_borders_from_shares(runs, *map(float, borders)))
    return cut_runs(runs, selection.span, *_borders_from_stamps(runs, stamps, borders, are_shares))


def cut_runs(runs: WindowRuns, span: WindowSpan, first: Int64, second: Int64) -> list[RunSubset]:
    """Return the windows before, between and after two borders of every window run, by futures."""
    parts = []
    for low, high in pairwise((runs.low, first, second, runs.high)):
        # The part with a window run's first row keeps the padded windows, which begin before that.
        lowest = np.where(low == runs.low, runs.first, low - span.split_first)
        parts.append(clip_runs(runs, span, lowest, low, high))
    return parts


def borders_from_rows(runs: WindowRuns, validation: int, test: int) -> tuple[Int64, Int64]:
    """Return first rows of validation and of test: numbers of rows, from the ends."""
    second = np.maximum(runs.high - min(test, LONGEST), runs.low)
    return np.maximum(second - min(validation, LONGEST), runs.low), second


def _expected(selection: WindowSelection, part: str, validation: Any, test: Any, by: str) -> str:
    """Return a text of what a split needs so that its part is not empty."""
    span, wanted, least = selection.span, (True, bool(validation), bool(test)), 0
    inside = span.needed_rows - span.max_padding  # of training, where no context reaches back
    if by == "rows":
        if part != "train" and {"validation": validation, "test": test}[part] < span.split_rows:
            return f"`{part}_rows` of {span.split_rows} or more"
        borders = partial(borders_from_rows, validation=validation, test=test)
        least = _least_rows(span, borders, wanted, min(inside + validation + test, 1 << 48))
    elif by == "time" and all(
        x == 0 or isinstance(x, (float, np.floating)) for x in (validation, test)
    ):
        shares = [share for share in (validation, test) if share > 0.0]
        bounds = [(span.split_rows - 0.5) / share for share in shares]
        borders = partial(_borders_from_shares, validation=float(validation), test=float(test))
        rows = max(inside, (inside - 1) / (1.0 - validation - test), *bounds)
        least = _least_rows(span, borders, wanted, int(min(rows, 2.0**48)))
    longest = int((selection.runs.high - selection.runs.low).max(initial=0))
    if longest < least:
        return f"a series of {least} rows or more, the longest has {longest}"
    needed = inside if part == "train" else span.split_rows
    return f"{needed} rows or more of some series in it, with windows that pass the filter"


def _least_rows(
    span: WindowSpan,
    borders: Callable[[WindowRuns], tuple[Int64, Int64]],
    wanted: tuple[bool, ...],
    least: int,
) -> int:
    """Return the length of the shortest series whose wanted parts all have windows.

    `least` is a lower bound. So is the result if the stride is much longer than a window.
    """
    for first in range(least, least + 4096 * 64, 4096):
        rows = np.arange(first, first + 4096, dtype=np.int64)
        runs = span.runs(np.concatenate([[0], np.cumsum(rows)]))
        parts = zip(cut_runs(runs, span, *borders(runs)), wanted, strict=True)
        has_all = np.logical_and.reduce([part.runs.count > 0 for part, share in parts if share])
        if has_all.any():
            return int(rows[np.argmax(has_all)])
    return least


def _is_share(border: Any, stamps: Timestamps | None) -> bool:
    """Return true for a share of rows, false for a time stamp. 0 is the share of an empty part."""
    if isinstance(border, (float, np.floating)):
        return True
    if isinstance(border, (int, np.integer)) and not isinstance(border, bool):
        return border == 0 or stamps is None or stamps.dtype.kind == "M"
    if isinstance(border, (str, dt.date, np.datetime64)):
        return False
    raise TypeError(
        "a part of a split must be a share such as 0.1 or a time stamp, "
        f"got {border!r} ({type(border).__name__})"
    )


def _check_shares(validation: float, test: float) -> None:
    for name, share in (("validation", validation), ("test", test)):
        if not 0.0 <= share < 1.0:
            raise ValueError(f"`{name}` must be a share in [0, 1), got {share!r}")
    if validation + test >= 1.0:
        raise ValueError(
            f"`validation` and `test` must have a sum below 1, got {validation!r} and {test!r}; "
            "training is the rest"
        )


def _borders_from_shares(runs: WindowRuns, validation: float, test: float) -> tuple[Int64, Int64]:
    """Return first rows of validation and of test: shares of the rows, rounded, from the end."""
    _check_shares(validation, test)
    rows = runs.high - runs.low
    second = runs.high - np.rint(rows * test).astype(np.int64)
    return second - np.rint(rows * validation).astype(np.int64), second


def _borders_from_stamps(
    runs: WindowRuns, stamps: Timestamps | None, borders: list[Any], are_shares: list[bool]
) -> tuple[Int64, Int64]:
    """Return the first rows at or after two stamps in every series; a share of 0: no such part."""
    if stamps is None:
        raise ValueError("the split is by time stamps, but the table has no timestamp column")
    if any(share and border != 0 for share, border in zip(are_shares, borders, strict=True)):
        raise ValueError(
            "`validation` and `test` must be two shares, or two time stamps (0 for no such part), "
            f"got {borders[0]!r} and {borders[1]!r}"
        )
    second = runs.high if are_shares[1] else rows_at(runs, stamps, borders[1])
    first = second if are_shares[0] else rows_at(runs, stamps, borders[0])
    if not any(are_shares):
        begin, end = (parse_timestamp(border, stamps) for border in borders)
        if begin > end:
            raise ValueError(
                f"`validation` must begin before `test`, got {borders[0]!r} and {borders[1]!r}"
            )
    return first, second


def _split_by_series(runs: WindowRuns, validation: Any, test: Any, seed: int) -> list[RunSubset]:
    """Distribute the series that have windows over three parts by a permutation of `seed`."""
    for share in (validation, test):
        if not isinstance(share, (int, float, np.integer, np.floating)):
            raise TypeError(f"a part of a split by series must be a share, got {share!r}")
    _check_shares(validation, test)
    live = np.flatnonzero(runs.count > 0)
    # A part with a share above 0 has at least one series.
    sizes = [max(1, round(len(live) * share)) if share else 0 for share in (validation, test)]
    if sum(sizes) >= len(live):
        raise ValueError(
            f"validation {validation!r} and test {test!r} take {sum(sizes)} of {len(live)} series "
            "and leave none for training"
        )
    shuffled = live[_core.Permutation(len(live), seed=seed).slice(0, len(live))]
    borders = [0, sizes[1], sum(sizes), len(live)]
    test_numbers, validation_numbers, train_numbers = (
        np.sort(shuffled[start:stop]) for start, stop in pairwise(borders)
    )
    return [take_runs(runs, part) for part in (train_numbers, validation_numbers, test_numbers)]


def folds(
    selection: WindowSelection,
    k: int,
    test_rows: int | None,
    step_rows: int | None,
    train_rows: int | None,
    validation_rows: int,
    gap_rows: int,
) -> list[list[WindowSelection]]:
    """Return training, validation and test windows of `k` folds; see `Windows.folds`."""
    k = check_integer("k", k, least=1, most=2**20)
    low, high = selection.runs.low, selection.runs.high
    # No series has more rows than the table, so that larger numbers mean all of its rows.
    most = int(high.max(initial=0))
    test: Int64 | int = (high - low) // (k + 1)
    if test_rows is not None:
        test = min(check_integer("test_rows", test_rows, least=1), most)
    step: Int64 | int = test
    if step_rows is not None:
        step = min(check_integer("step_rows", step_rows, least=1), most)
    train = most
    if train_rows is not None:
        train = min(check_integer("train_rows", train_rows, least=1), most)
    validation = min(check_integer("validation_rows", validation_rows), most)
    gap = min(check_integer("gap_rows", gap_rows), most)
    found, tests = [], []
    for number in range(k):
        later = step * (k - 1 - number)
        stop = np.maximum(high - (min(later, most) if isinstance(later, int) else later), low)
        test_first = np.maximum(stop - test, low)
        gap_first = np.maximum(test_first - gap, low)
        validation_first = np.maximum(gap_first - validation, low)
        train_first = np.maximum(validation_first - train, low)
        subsets = [
            _training(selection, train_first, validation_first),
            _evaluation(selection, validation_first, gap_first),
            _evaluation(selection, test_first, stop),
        ]
        tests.append(subsets[-1])
        parts = [selection.restrict(subset) for subset in subsets]
        for name, part, wanted in zip(PARTS, parts, (1, validation, 1), strict=True):
            if wanted and part.count == 0:
                raise ValueError(
                    f"the {name} part of fold {number + 1} of {k} holds no window, expected "
                    "fewer folds, other numbers of rows, or longer series"
                )
        inside = sum(part.count for part in parts)
        rest = selection.count - inside
        found.append([part.report_dropped(fold=rest, others=inside - part.count) for part in parts])
    _check_shared(selection, tests, int(np.max(test)))
    return found


def _check_shared(selection: WindowSelection, tests: list[RunSubset], test_rows: int) -> None:
    """Raise ValueError if a window is in the test parts of two folds.

    Its forecast would be there twice, for the same ids, times and cutoff.
    """
    for number, (one, other) in enumerate(pairwise(tests), 1):
        first = np.maximum(one.skipped, other.skipped)
        ends = (part.skipped + part.runs.count for part in (one, other))
        count = np.maximum(np.minimum(*ends) - first, 0)
        runs = replace(
            other.runs,
            first=other.runs.first + (first - other.skipped) * other.runs.stride,
            count=count,
        )
        shared = selection.restrict(RunSubset(runs, first, other.parents)).count
        if shared:
            rows = selection.span.split_rows
            raise ValueError(
                f"the test parts of folds {number} and {number + 1} of {len(tests)} share "
                f"{plural(shared, 'window')}, which would be forecast twice; expected `step_rows` "
                f"of at least {test_rows - rows + 1}: `test_rows` {test_rows} minus a future of "
                f"{plural(rows, 'row')}, plus 1"
            )


def _training(selection: WindowSelection, low: Int64, high: Int64) -> RunSubset:
    """Return the windows that lie in the rows ``[low, high)`` whole, padding left out."""
    runs = selection.runs
    return clip_runs(runs, selection.span, np.where(low == runs.low, runs.first, low), low, high)


def _evaluation(selection: WindowSelection, low: Int64, high: Int64) -> RunSubset:
    """Return the windows with futures in the rows ``[low, high)``; contexts may reach back."""
    return clip_runs(selection.runs, selection.span, low - selection.span.split_first, low, high)
