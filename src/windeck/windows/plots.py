"""A window as lines: its past, its future, a prediction and the steps without a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._util.plots import new_axes
from windeck.columns.times import time_text
from windeck.table.plots import values_at
from windeck.windows.scaler_fitting import as_array
from windeck.windows.window_set import WindowSet

__all__ = ["plot_window"]

#: Colours of matplotlib's cycle, one for each target.
_COLORS = 10


def plot_window(windows: WindowSet, index: int, prediction: Any, ax: Any) -> Any:
    """Draw a window; see `Windows.plot`."""
    (series,), (start,) = windows.index.locate(np.array([index], dtype=np.int64))
    span, table, targets = windows.spec.span, windows.table, windows.spec.roles.target
    offsets = np.arange(span.context_length) * span.dilation
    after = span.gap + (span.context_length + np.arange(span.prediction_length)) * span.dilation
    predicted = None if prediction is None else _as_columns(prediction, len(after), len(targets))
    ax = new_axes(ax)
    first, last = table.offsets[series : series + 2].tolist()
    missing: list[int] = []
    for place, name in enumerate(targets):
        color, column = f"C{place % _COLORS}", table.column(name)
        for steps, style, what in ((offsets, "-", "past"), (after, "--", "future")):
            x = (steps - span.context_length * span.dilation) / span.dilation
            rows = start + steps
            inside = (first <= rows) & (rows < last)
            y = np.full(len(rows), np.nan)
            y[inside] = values_at(column, rows[inside])
            missing += x[np.isnan(y)].tolist()
            if len(x):
                ax.plot(x, y, style, color=color, label=f"{name}, {what}", linewidth=1.2)
        if predicted is not None:
            x = (after - span.context_length * span.dilation) / span.dilation
            ax.plot(x, predicted[:, place], ":", color=color, label=f"{name}, prediction")
    if missing:
        where = sorted(set(missing))
        bottom = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot(where, [0.0] * len(where), "x", color="gray", label="missing", **bottom)
    ax.axvline(-0.5, color="gray", linewidth=0.8)
    began = ""
    if table.timestamps is not None and first <= start < last:
        began = f", from {time_text(table.timestamps[start])}"
    ax.set_title(f"window {index:,}: series {table.series_names[series]}{began}")
    ax.set_xlabel("steps from the end of the past")
    ax.legend()
    return ax


def _as_columns(prediction: Any, steps: int, columns: int) -> npt.NDArray[np.float64]:
    """Return a prediction as an array (steps, columns)."""
    found = np.asarray(as_array(prediction), dtype=np.float64)
    shaped = found[:, None] if found.ndim == 1 and columns == 1 else found
    if shaped.shape != (steps, columns):
        raise ValueError(
            f"`prediction` has shape {found.shape}, expected ({steps}, {columns}): prediction "
            "steps and target columns"
        )
    return shaped
