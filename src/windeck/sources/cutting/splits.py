"""Splits of windows into training, validation and test: by time, or by series.

By time, the rows of every series are cut at two borders. A window belongs to the part that holds
its whole future; its context may reach back into earlier parts. A window whose future straddles a
border belongs to none and is counted. So no target of training is seen in validation or test.
"""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck.sources.cutting.parts import Part, rows_at, to_stamp
from windeck.sources.cutting.spans import Int64, Runs, Span

if TYPE_CHECKING:
    from windeck.sources.scaler import Scaler
    from windeck.sources.windows import Windows


class Split(NamedTuple):
    """Three parts of one set of windows. A part whose share is 0 has no windows."""

    train: Windows
    validation: Windows
    test: Windows

    def with_scaler(self, scaler: Scaler | None) -> Split:
        """All three parts, scaled alike."""
        return Split(*(part.with_scaler(scaler) for part in self))


def by_time(
    runs: Runs, span: Span, stamps: npt.NDArray[Any] | None, borders: list[Any]
) -> list[Part]:
    """Cut every series at two borders, given as shares of its rows or as time stamps."""
    shares = [_is_share(border, stamps) for border in borders]
    if all(shares):
        first, second = _rows_by_share(runs, *map(float, borders))
    else:
        first, second = _rows_by_stamp(runs, stamps, borders, shares)
    edges = (runs.low, first, second, runs.high)
    parts = []
    for number in range(3):
        low, high = edges[number], edges[number + 1]
        # Nothing lies before the first part: padded windows may begin before their series.
        lowest = runs.first if number == 0 else low - span.judged_first
        clipped, skipped = runs.clip(lowest, high - span.rows)
        parts.append(Part.narrowed(clipped.within(low, high), skipped))
    return parts


def _is_share(border: Any, stamps: npt.NDArray[Any] | None) -> bool:
    """Whether a border is a share of rows and not a time stamp; 0 always is: no such part."""
    if isinstance(border, (bool, np.bool_)) or border is None:
        raise TypeError(f"a part of a split is {border!r}, expected a share or a time stamp")
    if isinstance(border, (float, np.floating)):
        return True
    if isinstance(border, (int, np.integer)):
        return border == 0 or stamps is None or stamps.dtype.kind == "M"
    if isinstance(border, (str, dt.date, np.datetime64)):
        return False
    raise TypeError(
        f"a part of a split is {border!r} ({type(border).__name__}), expected a share such as 0.1 "
        "or a time stamp"
    )


def check_shares(validation: float, test: float) -> None:
    """Shares must leave something for training."""
    for name, share in (("validation", validation), ("test", test)):
        if not 0.0 <= share < 1.0:
            raise ValueError(f"{name} is {share!r}, expected a share in [0, 1)")
    if validation + test >= 1.0:
        raise ValueError(
            f"validation {validation!r} and test {test!r} leave nothing to train on, "
            "expected shares of a sum below 1"
        )


def _rows_by_share(runs: Runs, validation: float, test: float) -> tuple[Int64, Int64]:
    """First rows of validation and of test: shares of the rows, rounded, taken from the end."""
    check_shares(validation, test)
    rows = runs.high - runs.low
    second = runs.high - np.rint(rows * test).astype(np.int64)
    return second - np.rint(rows * validation).astype(np.int64), second


def _rows_by_stamp(
    runs: Runs, stamps: npt.NDArray[Any] | None, borders: list[Any], shares: list[bool]
) -> tuple[Int64, Int64]:
    """First rows at or after the two stamps, in every series; a share of 0 is no part at all."""
    if stamps is None:
        raise ValueError("the split is by time stamps, but the table has no timestamp column")
    if any(share and border != 0 for share, border in zip(shares, borders, strict=True)):
        raise ValueError(
            f"validation is {borders[0]!r} and test is {borders[1]!r}, expected two shares, or two "
            "time stamps (0 for a part that is not wanted)"
        )
    second = runs.high if shares[1] else rows_at(runs, stamps, to_stamp(borders[1], stamps))
    first = second if shares[0] else rows_at(runs, stamps, to_stamp(borders[0], stamps))
    if not any(shares) and to_stamp(borders[0], stamps) > to_stamp(borders[1], stamps):
        raise ValueError(
            f"validation begins at {borders[0]!r}, after test at {borders[1]!r}, expected it before"
        )
    return first, second


def by_series(runs: Runs, validation: Any, test: Any, seed: int) -> list[Part]:
    """Deal the series that have windows out to the three parts, by a permutation of `seed`."""
    for border in (validation, test):
        if not isinstance(border, (int, float, np.integer, np.floating)):
            raise TypeError(f"a split by series takes shares, not {border!r}")
    check_shares(validation, test)
    live = np.flatnonzero(runs.count > 0)
    # A share that is asked for gets a series at least.
    sizes = [max(1, round(len(live) * share)) if share else 0 for share in (validation, test)]
    if sum(sizes) >= len(live):
        raise ValueError(
            f"validation {validation!r} and test {test!r} take {sum(sizes)} of {len(live)} series "
            "and leave none to train on"
        )
    dealt = live[_core.Permutation(len(live), seed=seed).slice(0, len(live))]
    cuts = [0, sizes[1], sum(sizes), len(live)]
    chosen = [np.sort(dealt[a:b]) for a, b in pairwise(cuts)]
    return [Part.of_runs(runs, numbers) for numbers in (chosen[2], chosen[1], chosen[0])]


def check_some(kept: list[int], span: Span, validation: Any, test: Any, by: str) -> None:
    """Every part that was asked for must have windows."""
    for name, count, asked in zip(Split._fields, kept, (1, validation, test), strict=True):
        if count == 0 and not (isinstance(asked, (int, float)) and asked == 0):
            raise ValueError(
                f"the {name} part of the split holds no window (validation={validation!r}, "
                f"test={test!r}, by={by!r}), expected {span.judged_rows} rows or more of some "
                "series in it"
            )
