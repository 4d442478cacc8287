"""A cut: which windows there are, as runs, and a bitmap of those that filters keep."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from windeck import _core, fingerprint
from windeck.sources.cutting.filters import Filter, judge
from windeck.sources.cutting.parts import Part
from windeck.sources.cutting.spans import Int64, Runs, Span
from windeck.sources.cutting.window_report import WindowReport, describe_steps
from windeck.sources.tables import bitmaps
from windeck.sources.tables.arraytypes import Bits

# Windows looked at in one go when a bitmap is carved.
CHUNK = 1 << 18


@dataclass(frozen=True)
class Cut:
    """Windows of a table whose series have `offsets`; `keep` is None where all are kept."""

    offsets: Int64
    span: Span
    runs: Runs
    keep: Bits | None
    report: WindowReport

    @classmethod
    def of(cls, offsets: Int64, span: Span, rules: Filter) -> Cut:
        """All windows that fit and pass the filter.

        Raises
        ------
        ValueError
            There is none.

        Warns
        -----
        UserWarning
            Some series are shorter than a window.
        """
        runs = span.runs(offsets)
        series, fitting, short = len(runs.count), runs.total, int((runs.count == 0).sum())
        steps = describe_steps(span)
        if fitting == 0:
            raise ValueError(
                f"no window fits: a window spans {span.rows} rows ({steps}), the longest of "
                f"{series} series has {int(np.diff(offsets).max(initial=0))} rows"
            )
        if short:
            warnings.warn(
                f"{short} of {series} series are shorter than a window of {span.rows} rows and "
                "give none",
                stacklevel=3,
            )
        verdict = judge(rules, span, runs, offsets)
        if verdict.missing + verdict.gap == fitting:
            raise ValueError(
                f"no window is left: of {fitting} that fit, {verdict.missing} have too many "
                f"missing target values and {verdict.gap} span a break in time"
            )
        report = WindowReport(fitting, series, short, fitting, {}, span.rows, steps)
        report = report.drop(missing=verdict.missing, gap=verdict.gap)
        return cls(offsets, span, runs, verdict.keep, report)

    @cached_property
    def kept(self) -> int:
        """The number of windows. O(series), or O(windows / 8) with a bitmap."""
        return self.runs.total if self.keep is None else bitmaps.count(self.keep)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.runs.nbytes + (0 if self.keep is None else self.keep.nbytes)

    def index(self) -> _core.WindowIndex:
        """The native index."""
        runs = self.runs
        return _core.WindowIndex(
            runs.first, runs.count, runs.stride, series=runs.series, keep=self.keep
        )

    def digest(self) -> str:
        """What tells these windows from others."""
        return fingerprint.digest(self.runs.first, self.runs.count, self.runs.series, self.keep)

    def drop(self, **dropped: int) -> Cut:
        """The same with a report of windows dropped on the way."""
        return replace(self, report=self.report.drop(**dropped))

    def part(self, part: Part) -> Cut:
        """A part of these windows; the report stays that of the whole."""
        return replace(self, runs=part.runs, keep=self._carve(part))

    def _carve(self, part: Part) -> Bits | None:
        """The bits of a part out of the bitmap of the whole."""
        if self.keep is None:
            return None
        total, count = part.runs.total, part.runs.count
        ends = np.cumsum(count)
        first = (np.cumsum(self.runs.count) - self.runs.count)[part.parents] + part.skipped
        move: npt.NDArray[np.int64] = first - (ends - count)
        keep = np.zeros((total + 7) // 8, dtype=np.uint8)
        for start in range(0, total, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, total), dtype=np.int64)
            run = np.searchsorted(ends, numbers, side="right")
            bitmaps.write(keep, start, bitmaps.take(self.keep, numbers + move[run]))
        return keep

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """First rows, last rows + 1 and series of the stretches of rows the windows touch."""
        begin, end = self.runs.hull(self.span, self.offsets)
        return begin, end, self.runs.series[self.runs.count > 0]
