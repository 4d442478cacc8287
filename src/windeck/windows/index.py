"""Start rows of windows as arithmetic progressions, and the rows that one window spans.

The start rows of the windows of a series are an arithmetic progression, called a window run. A
window run takes a few integers, so memory is O(series), not O(windows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windeck._util.indices import Int64
from windeck._util.validation import check_integer

#: Rows and spans are far below 2**63, so that sums of two of them cannot overflow.
LONGEST = 2**61


#: Sides on which steps of a window may lie outside its series, as bits of `WindowSpan.pad`.
PAD_START, PAD_END = 1, 2
PADS = {"start": PAD_START, "end": PAD_END, "both": PAD_START | PAD_END}


def pad_sides(pad: Any) -> int:
    """Return the bits of the sides that `pad` names: a bool, or one of `PADS`."""
    if not isinstance(pad, str) and pad in (False, True):
        return PAD_START if pad else 0
    if not isinstance(pad, str) or pad not in PADS:
        raise ValueError(f"`pad` must be a bool, 'start', 'end' or 'both', got {pad!r}")
    return PADS[pad]


@dataclass(frozen=True)
class WindowSpan:
    """The rows of one window relative to its start row.

    Past step j is row ``j * dilation``; future step j is row
    ``(context_length + j) * dilation + gap``. The names of the fields are part of the fingerprint
    of windows.

    Attributes
    ----------
    gap
        Rows left out between past and future; below 0 the future begins that many rows earlier.
    pad
        Sides on which steps may lie outside the series: 0, or a sum of `PAD_START` and `PAD_END`.
    min_context_length, min_prediction_length
        Steps that lie inside the series on a padded side. Default: 1, and the first future step
        after the past.
    anchor
        ``"start"`` or ``"end"``: the first, or the last window of a series that can be is one.
    """

    context_length: int
    prediction_length: int = 0
    gap: int = 0
    stride: int = 1
    dilation: int = 1
    pad: int = 0
    min_context_length: int | None = None
    min_prediction_length: int | None = None
    anchor: str = "start"

    def __post_init__(self) -> None:
        least = {"context_length": 1, "prediction_length": 0, "stride": 1, "dilation": 1, "gap": 0}
        for name, bound in least.items():
            if name == "gap":  # the future begins no earlier than the past, and ends after it
                bound = -self.context_length * self.dilation
                if self.prediction_length:
                    bound = max(bound, 1 - self.prediction_length * self.dilation)
            value = check_integer(name, getattr(self, name), least=bound, most=math.inf)
            if value > LONGEST:
                raise OverflowError(f"`{name}` must be at most 2**61, got {value}")
            object.__setattr__(self, name, value)
        if self.rows > LONGEST:
            raise OverflowError(f"a window must span at most 2**61 rows, got {self.rows}")
        if self.anchor not in ("start", "end"):
            raise ValueError(f"`anchor` must be 'start' or 'end', got {self.anchor!r}")
        if self.pad == PAD_START | PAD_END and not self.prediction_length:
            raise ValueError(
                "pad='both' is of past and future, expected `prediction_length` > 0, or 'start' or "
                "'end' for windows without a future"
            )
        self._check_minimum("context", self._context_side, 1, self.context_length)
        inside = self.overlap_steps + 1
        self._check_minimum("prediction", PAD_END, inside, self.prediction_length)

    @property
    def _context_side(self) -> int:
        """The side on which the context may be padded: the end, where there is no future."""
        return PAD_START if self.prediction_length else self.pad or PAD_START

    def _check_minimum(self, part: str, side: int, least: int, most: int) -> None:
        name = f"min_{part}_length"
        value = getattr(self, name)
        if value is None:
            return
        if not self.pad & side:
            word = "start" if side == PAD_START else "end"
            raise ValueError(f"`{name}` is {value!r}, expected pad={word!r} or 'both' with it")
        number = check_integer(name, value, least=least, most=most)
        object.__setattr__(self, name, None if number == least else number)

    def fingerprint(self) -> dict[str, str | int]:
        """Return the fields by name; lengths that are not given are "none"."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: "none" if value is None else value if name == "anchor" else int(value)
            for name, value in fields.items()
        }

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
    def needed_rows(self) -> int:
        """Number of rows from the first step to the last that has to lie before the series' end."""
        if not self.pad & PAD_END:
            return self.rows
        if not self.prediction_length:
            return ((self.min_context_length or 1) - 1) * self.dilation + 1
        inside = self.min_prediction_length or self.overlap_steps + 1
        return self.future_first + (inside - 1) * self.dilation + 1

    @property
    def overlap_steps(self) -> int:
        """Number of future steps that are not after the past: 0 unless `gap` is negative."""
        return max(0, (self.past_last - self.future_first) // self.dilation + 1)

    @property
    def new_first(self) -> int:
        """Row of the first future step after the past."""
        return self.future_first + self.overlap_steps * self.dilation

    @property
    def new_steps(self) -> int:
        """Number of future steps after the past, 0 without a future."""
        return max(0, self.prediction_length - self.overlap_steps)

    @property
    def steps(self) -> int:
        """Number of past and future steps."""
        return self.context_length + self.prediction_length

    @property
    def max_padding(self) -> int:
        """Number of rows that a window may begin before its series."""
        if not self.pad & PAD_START:
            return 0
        rows = (self.context_length - (self.min_context_length or 1)) * self.dilation
        # The future never begins before the series.
        return min(rows, self.future_first) if self.prediction_length else rows

    @property
    def split_first(self) -> int:
        """First row that decides the part of a split: of the future, else of the context.

        Of a future that overlaps the past, the steps after the past decide.
        """
        return self.new_first if self.prediction_length else 0

    @property
    def split_rows(self) -> int:
        """Number of rows that decide the part of a split."""
        return self.rows - self.split_first

    def runs(self, offsets: Int64) -> WindowRuns:
        """Return one window run for each series, empty where a series is too short.

        Parameters
        ----------
        offsets
            int64 of shape (series + 1,): series s has the rows ``[offsets[s], offsets[s + 1])``.
        """
        begin, end = offsets[:-1], offsets[1:]
        first = begin - self.max_padding
        last_start = end - self.needed_rows
        count = np.where(last_start >= first, (last_start - first) // self.stride + 1, 0)
        if self.anchor == "end":
            first = np.where(count > 0, first + (last_start - first) % self.stride, first)
        series = np.arange(len(begin), dtype=np.int64)
        return WindowRuns(first, count, series, begin.copy(), end.copy(), self.stride)


@dataclass(frozen=True)
class WindowRuns:
    """Window runs: window j of window run r starts at row ``first[r] + j * stride``.

    Attributes
    ----------
    first, count, series
        int64 of shape (window runs,): first start row, number of windows, and number of the series.
        Start rows ascend strictly over all windows, because windows never cross a series.
    low, high
        int64 of shape (window runs,): the windows of window run r belong to rows
        ``[low[r], high[r])``, those of the series or of one part of a split.
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
        """Return the number of windows that start before `row`. O(window runs)."""
        steps = -((self.first - row) // self.stride)
        return int(np.clip(steps, 0, self.count).sum())

    def clip(self, lowest: Int64, highest: Int64) -> tuple[WindowRuns, Int64]:
        """Keep the windows of each window run r with start rows in ``[lowest[r], highest[r]]``.

        Returns
        -------
        runs
            As many window runs, some of them possibly empty.
        skipped
            int64 of shape (window runs,): windows of each window run before the first one kept.
        """
        skipped = np.clip(-((self.first - lowest) // self.stride), 0, self.count)
        stop = np.clip((highest - self.first) // self.stride + 1, skipped, self.count)
        kept = replace(self, first=self.first + skipped * self.stride, count=stop - skipped)
        return kept, skipped

    def take(self, numbers: Int64) -> WindowRuns:
        """Return the window runs with these numbers."""
        arrays = (self.first, self.count, self.series, self.low, self.high)
        first, count, series, low, high = (array[numbers] for array in arrays)
        return WindowRuns(first, count, series, low, high, self.stride)
