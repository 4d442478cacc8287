"""What became of the windows of a table: how many fit, how many were dropped, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windeck.sources.cutting.spans import Span

REASONS = {
    "missing": "with too many missing target values",
    "gap": "across a break in time",
    "border": "across a border of the split",
    "others": "in the other parts of the split",
    "subset": "outside the subset",
}


@dataclass(frozen=True)
class WindowReport:
    """How many windows there are and how it came to that; ``print(w.explain())`` tells.

    Attributes
    ----------
    windows
        Windows there are: `fitting` less all that were dropped.
    series, short_series
        Series of the table, and those shorter than a window.
    fitting
        Windows that fit into the series.
    dropped
        Windows left out, by reason: ``"missing"``, ``"gap"``, ``"border"``, ``"others"``,
        ``"subset"``.
    rows, steps
        Rows a window spans, and a text on its steps.
    """

    windows: int
    series: int
    short_series: int
    fitting: int
    dropped: dict[str, int]
    rows: int
    steps: str

    def drop(self, **dropped: int) -> WindowReport:
        """The report after dropping more windows."""
        merged = {
            reason: self.dropped.get(reason, 0) + dropped.get(reason, 0)
            for reason in REASONS
            if reason in self.dropped or reason in dropped
        }
        return replace(self, windows=self.windows - sum(dropped.values()), dropped=merged)

    def __str__(self) -> str:
        lines = [f"{self.windows:,} windows of {self.rows:,} rows ({self.steps})"]
        lines.append(f"  {self.fitting:,} fit into {self.series - self.short_series:,} series")
        if self.short_series:
            lines.append(f"  {self.short_series:,} series are shorter than a window")
        for reason, count in self.dropped.items():
            if count:
                lines.append(f"  {count:,} dropped {REASONS[reason]}")
        return "\n".join(lines)


def describe_steps(span: Span) -> str:
    """One window in words."""
    text = f"{span.context_length:,} past"
    if span.prediction_length:
        gap = f", gap {span.gap:,}" if span.gap else ""
        text += f"{gap}, {span.prediction_length:,} future"
    if span.dilation > 1:
        text += f", every {span.dilation:,} rows"
    return text + (f"; stride {span.stride:,}" if span.stride > 1 else "")
