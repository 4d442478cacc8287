"""Where the windows of a table lie: spans (one window's rows) and runs (all start rows).

A window is arithmetic on its start row, and the start rows of a series are an arithmetic
progression. Nothing here grows with the number of windows; a run of windows costs a few integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._util.indices import Int64
from windeck._util.validation import check_integer

#: Rows and spans are far below 2**63, so that sums of two of them cannot overflow.
LONGEST = 2**61


@dataclass(frozen=True)
class Span:
    """The rows of one window relative to its start row.

    Past step j is row ``j * dilation``; future step j is row
    ``(context_length + j) * dilation + gap``.
    """

    context_length: int
    prediction_length: int = 0
    gap: int = 0
    stride: int = 1
    dilation: int = 1
    pad: bool = False

    def __post_init__(self) -> None:
        least = {"context_length": 1, "prediction_length": 0, "gap": 0, "stride": 1, "dilation": 1}
        for name, bound in least.items():
            value = check_integer(name, getattr(self, name), least=bound, most=math.inf)
            if value > LONGEST:
                raise OverflowError(f"`{name}` must be at most 2**61, got {value}")
            object.__setattr__(self, name, value)
        if self.rows > LONGEST:
            raise OverflowError(f"a window must span at most 2**61 rows, got {self.rows}")

    @property
    def past_last(self) -> int:
        """Row of the last context step."""
        return (self.context_length - 1) * self.dilation

    @property
    def future_first(self) -> int:
        """Row of the first future step (whether or not there is one)."""
        return self.context_length * self.dilation + self.gap

    @property
    def last(self) -> int:
        """Row of the last step of all."""
        if self.prediction_length == 0:
            return self.past_last
        return self.future_first + (self.prediction_length - 1) * self.dilation

    @property
    def rows(self) -> int:
        """Rows from the first step to the last, both counted."""
        return self.last + 1

    @property
    def steps(self) -> int:
        """Past and future steps together."""
        return self.context_length + self.prediction_length

    @property
    def lead(self) -> int:
        """How many rows a window may begin before its series: all context steps but one."""
        return self.past_last if self.pad else 0

    @property
    def judged_first(self) -> int:
        """First of the rows that decide the part of a split: the future, or else the context."""
        return self.future_first if self.prediction_length else 0

    @property
    def judged_rows(self) -> int:
        """How many rows these are, from the first to the last."""
        return self.rows - self.judged_first

    def runs(self, offsets: Int64) -> Runs:
        """One run of windows for each series; a series that is too short has an empty one."""
        begin, end = offsets[:-1], offsets[1:]
        first = begin - self.lead
        room = end - self.rows - first  # the last start row less the first
        count = np.where(room >= 0, room // self.stride + 1, 0)
        series = np.arange(len(begin), dtype=np.int64)
        return Runs(first, count, series, begin.copy(), end.copy(), self.stride)


@dataclass(frozen=True)
class Runs:
    """Runs of windows: the j-th window of run r starts at row ``first[r] + j * stride``.

    `series` is the series of each run. `[low, high)` are the rows its windows are cut for: those of
    the series, or of one part of a split. All are int64 of one length; start rows ascend strictly
    over all windows, because windows never cross a series.
    """

    first: Int64
    count: Int64
    series: Int64
    low: Int64
    high: Int64
    stride: int

    @property
    def total(self) -> int:
        """The number of windows, filters not considered."""
        return int(self.count.sum())

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(a.nbytes for a in (self.first, self.count, self.series, self.low, self.high))

    def before(self, row: int) -> int:
        """How many windows start before `row`. O(runs)."""
        steps = -((self.first - row) // self.stride)
        return int(np.clip(steps, 0, self.count).sum())

    def clip(self, lowest: Int64, highest: Int64) -> tuple[Runs, Int64]:
        """The windows with start rows in ``[lowest[r], highest[r]]``, and how many are skipped.

        The second value says for each run how many of its windows lie before the first one kept.
        """
        skipped = np.clip(-((self.first - lowest) // self.stride), 0, self.count)
        stop = np.clip((highest - self.first) // self.stride + 1, skipped, self.count)
        kept = replace(self, first=self.first + skipped * self.stride, count=stop - skipped)
        return kept, skipped

    def within(self, low: Int64, high: Int64) -> Runs:
        """The same windows, cut for the rows ``[low, high)``."""
        return replace(self, low=low, high=high)

    def take(self, chosen: Sequence[int] | npt.NDArray[Any]) -> Runs:
        """Only the runs numbered `chosen`."""
        arrays = (self.first, self.count, self.series, self.low, self.high)
        first, count, series, low, high = (array[chosen] for array in arrays)
        return Runs(first, count, series, low, high, self.stride)

    def hull(self, span: Span, offsets: Int64) -> tuple[Int64, Int64]:
        """Rows ``[begin, end)`` touched by each run that has windows (padding left out)."""
        live = self.count > 0
        first, count, series = self.first[live], self.count[live], self.series[live]
        end = first + (count - 1) * self.stride + span.rows
        return np.maximum(first, offsets[series]), end
