"""Start rows of windows as arithmetic progressions, and the rows that one window spans.

The start rows of the windows of a series are an arithmetic progression, called a run here. A run
takes a few integers, so memory is O(series) and does not depend on the number of windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from windeck._util.indices import Int64
from windeck._util.validation import check_integer

#: Rows and spans are far below 2**63, so that sums of two of them cannot overflow.
LONGEST = 2**61


@dataclass(frozen=True)
class WindowSpan:
    """The rows of one window relative to its start row.

    Past step j is row ``j * dilation``; future step j is row
    ``(context_length + j) * dilation + gap``. The names of the fields are part of the fingerprint
    of windows.
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
        """Row of the first future step, defined for windows without a future too."""
        return self.context_length * self.dilation + self.gap

    @property
    def last(self) -> int:
        """Row of the last step, past or future."""
        if self.prediction_length == 0:
            return self.past_last
        return self.future_first + (self.prediction_length - 1) * self.dilation

    @property
    def rows(self) -> int:
        """Number of rows from the first step to the last, both included."""
        return self.last + 1

    @property
    def steps(self) -> int:
        """Number of past and future steps."""
        return self.context_length + self.prediction_length

    @property
    def max_padding(self) -> int:
        """Number of rows that a window may begin before its series: all context steps but one."""
        return self.past_last if self.pad else 0

    @property
    def split_first(self) -> int:
        """First row that decides the part of a split: of the future, else of the context."""
        return self.future_first if self.prediction_length else 0

    @property
    def split_rows(self) -> int:
        """Number of rows that decide the part of a split."""
        return self.rows - self.split_first

    def runs(self, offsets: Int64) -> WindowRuns:
        """Return one run of windows for each series, empty where a series is too short.

        Parameters
        ----------
        offsets
            int64 of shape (series + 1,): series s has the rows ``[offsets[s], offsets[s + 1])``.
        """
        begin, end = offsets[:-1], offsets[1:]
        first = begin - self.max_padding
        last_start = end - self.rows
        count = np.where(last_start >= first, (last_start - first) // self.stride + 1, 0)
        series = np.arange(len(begin), dtype=np.int64)
        return WindowRuns(first, count, series, begin.copy(), end.copy(), self.stride)


@dataclass(frozen=True)
class WindowRuns:
    """Runs of windows: window j of run r starts at row ``first[r] + j * stride``.

    Attributes
    ----------
    first, count, series
        int64 of shape (runs,): first start row, number of windows, and number of the series. Start
        rows ascend strictly over all windows, because windows never cross a series.
    low, high
        int64 of shape (runs,): the windows of run r belong to rows ``[low[r], high[r])``, those of
        the series or of one part of a split.
    stride
        Rows from one start to the next.
    """

    first: Int64
    count: Int64
    series: Int64
    low: Int64
    high: Int64
    stride: int

    @property
    def total(self) -> int:
        """Number of windows before filters."""
        return int(self.count.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(a.nbytes for a in (self.first, self.count, self.series, self.low, self.high))

    def count_before(self, row: int) -> int:
        """Return the number of windows that start before `row`. O(runs)."""
        steps = -((self.first - row) // self.stride)
        return int(np.clip(steps, 0, self.count).sum())

    def clip(self, lowest: Int64, highest: Int64) -> tuple[WindowRuns, Int64]:
        """Keep the windows of each run r with start rows in ``[lowest[r], highest[r]]``.

        Returns
        -------
        runs
            The same number of runs, some of them possibly empty.
        skipped
            int64 of shape (runs,): windows of each run before the first one kept.
        """
        skipped = np.clip(-((self.first - lowest) // self.stride), 0, self.count)
        stop = np.clip((highest - self.first) // self.stride + 1, skipped, self.count)
        kept = replace(self, first=self.first + skipped * self.stride, count=stop - skipped)
        return kept, skipped

    def take(self, numbers: Int64) -> WindowRuns:
        """Return the runs with these numbers."""
        arrays = (self.first, self.count, self.series, self.low, self.high)
        first, count, series, low, high = (array[numbers] for array in arrays)
        return WindowRuns(first, count, series, low, high, self.stride)
