"""Scalers in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windeck.sources.scaler import Scaler


def title(scaler: Scaler) -> str:
    """What kind of scaler it is."""
    series = "" if scaler.series is None else f", per_series={len(scaler.series)}"
    return f"Scaler(kind={scaler.kind!r}{series})"


def column_line(scaler: Scaler, place: int) -> str:
    """One column: its estimates, their standard errors, and on how much they rest."""
    seen = scaler.counts[:, place] > 0
    parts = []
    for key, values in scaler.statistics.items():
        value, error = values[seen, place], scaler.errors[key][seen, place]
        text = f"{value.min():.6g}"
        if scaler.series is not None:
            text += f" to {value.max():.6g}"
        parts.append(f"{key} {text} ± {error.max():.2g}")
    count, weight = int(scaler.counts[:, place].sum()), float(scaler.weights[:, place].sum())
    about = "" if weight <= count else f" out of about {weight:,.0f}"
    over = "" if scaler.series is None else f" in {int(seen.sum())} series"
    name = scaler.columns[place]
    return f"{name}: {', '.join(parts)}, of {count:,} values{about}{over}"
