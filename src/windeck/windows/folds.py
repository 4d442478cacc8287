"""Folds of a rolling evaluation: splits of one set of windows, each later in time than the last."""

from __future__ import annotations

import numpy as np

from windeck._util.indices import Int64
from windeck._util.validation import check_integer
from windeck.windows.subset import RunSubset, Split, WindowSelection, clip_runs


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
    found = []
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
        parts = [selection.restrict(subset) for subset in subsets]
        for name, part, wanted in zip(Split._fields, parts, (1, validation, 1), strict=True):
            if wanted and part.count == 0:
                raise ValueError(
                    f"the {name} part of fold {number + 1} of {k} holds no window, expected "
                    "fewer folds, other numbers of rows, or longer series"
                )
        inside = sum(part.count for part in parts)
        rest = selection.count - inside
        found.append([part.report_dropped(fold=rest, others=inside - part.count) for part in parts])
    return found


def _training(selection: WindowSelection, low: Int64, high: Int64) -> RunSubset:
    """Return the windows that lie in the rows ``[low, high)`` whole, padding left out."""
    runs = selection.runs
    return clip_runs(runs, selection.span, np.where(low == runs.low, runs.first, low), low, high)


def _evaluation(selection: WindowSelection, low: Int64, high: Int64) -> RunSubset:
    """Return the windows with futures in the rows ``[low, high)``; contexts may reach back."""
    return clip_runs(selection.runs, selection.span, low - selection.span.split_first, low, high)
