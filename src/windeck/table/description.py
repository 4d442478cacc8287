"""Text and fingerprints of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from windeck._util.fingerprints import digest, sample_rows
from windeck._util.html import html_table
from windeck._util.terminal import escaped
from windeck._util.text import format_bytes, plural
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import time_text
from windeck.io.reading import Origin
from windeck.table.construction import SeriesLayout

_LISTED, _SHOWN = 1000, 20


class Described(NamedTuple):
    """The properties of a table that its text has."""

    columns: Mapping[str, ColumnData]
    layout: SeriesLayout
    time_zone: str | None
    origin: Origin | None


def fingerprint(
    columns: Mapping[str, ColumnData], layout: SeriesLayout, timestamps: Array | None
) -> dict[str, str | int]:
    """Return names, dtypes, sizes, and digests of offsets and of sampled rows of every column.

    The fingerprint does not depend on the bytes of missing values, or on `storage`.
    """
    rows = sample_rows(layout.num_rows)
    found: dict[str, str | int] = {
        "rows": layout.num_rows,
        "series": len(layout.names),
        "columns": _short(", ".join(f"{c.name} {c.dtype}" for c in columns.values())),
        "offsets": digest(layout.offsets),
        "series_names": digest(np.array([str(name) for name in layout.names], dtype=np.str_)),
        "contents": digest(*(_sampled(column, rows) for column in columns.values())),
    }
    if timestamps is not None:
        found["timestamps"] = digest(np.ascontiguousarray(timestamps[rows]).view(np.int64))
    return found


def _short(text: str) -> str:
    return text if len(text) <= _LISTED else f"{text[:60]}... #{digest(text)}"


def _sampled(column: ColumnData, rows: Int64s) -> tuple[object, ...]:
    observed = column.observed(rows)
    values = column.values[rows]
    values[~observed] = 0
    return column.name, column.dtype, column.categories, observed, values


def explain(table: Described) -> str:
    """Return a few lines of text: files, size, columns, series, and the report on their order."""
    lines = [_size(table), *_columns(table), *_series(table), *table.layout.report.lines()]
    return "\n".join(map(escaped, lines))


def as_html(table: Described) -> str:
    """Return the size, the columns, the series and the report on their order, for notebooks."""
    rows = []
    for name, column in list(table.columns.items())[:_SHOWN]:
        codes = "" if column.categories is None else f"{len(column.categories):,}"
        missing = "" if column.missing is None else f"{column.missing:,}"
        rows.append((name, column.dtype, missing, codes))
    more = len(table.columns) - len(rows)
    notes = [f"and {plural(more, 'column')} more"] if more else []
    notes += [*_series(table), *table.layout.report.lines()]
    header = ("column", "dtype", "missing", "categories")
    return html_table(f"Table: {_size(table)}", header, rows, "\n".join(notes))


def _size(table: Described) -> str:
    nbytes = sum(column.nbytes for column in table.columns.values())
    many, origin, rows = len(table.columns), table.origin, table.layout.num_rows
    if origin is None:
        return f"{plural(many, 'column')}, {format_bytes(nbytes)}, {plural(rows, 'row')}"
    place = "mapped" if origin.mapped else "streamed" if origin.streamed else "in memory"
    files = f"{origin.files} {'/'.join(origin.kinds)} file{'' if origin.files == 1 else 's'}"
    return (
        f"{many} of {origin.columns} columns, {_of(nbytes, max(origin.nbytes, nbytes))}, "
        f"{plural(rows, 'row')}, {place}, from {files}"
    )


def _of(part: int, whole: int) -> str:
    """Return two amounts in one unit, such as "11.8 of 128 GB"."""
    number, unit = format_bytes(whole).split(" ")
    scale = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    return f"{part / scale:.3g} of {number} {unit}"


def _columns(table: Described) -> list[str]:
    lines, rows = [], table.layout.num_rows
    for name, column in table.columns.items():
        notes = [column.dtype]
        if column.categories is not None:
            many = len(column.categories)
            notes.append(f"{many} {'category' if many == 1 else 'categories'}")
        if column.missing:
            notes.append(f"{column.missing:,} missing ({column.missing / rows:.1%})")
        lines.append(f"  {name}: {', '.join(notes)}")
    return lines if len(lines) <= 12 else [*lines[:10], f"  and {len(lines) - 10} more"]


def _series(table: Described) -> list[str]:
    """Return lines of text: number and lengths of the series, and the time that they span."""
    report, lengths = table.layout.report, np.diff(table.layout.offsets)
    spread = f" of {_range(int(lengths.min()), int(lengths.max()))}" if len(lengths) else ""
    step = "" if report.step is None else f", usual step {_step(report.step)}"
    lines = [f"{len(lengths):,} series{spread}{step}"]
    if report.span is not None:
        first, last = (_stamp(tick, report.unit) for tick in report.span)
        zone = "" if table.time_zone is None else f" UTC, in the time zone {table.time_zone}"
        lines.append(f"time from {first} to {last}{zone}")
    return lines


def _range(least: int, most: int) -> str:
    """Return a range of numbers of rows, or the number that all of them are."""
    return plural(most, "row") if least == most else f"{least:,} to {plural(most, 'row')}"


def _stamp(tick: int, unit: str | None) -> str:
    return time_text(tick if unit is None else np.datetime64(tick, unit))  # type: ignore[call-overload]


def _step(step: np.timedelta64 | int) -> str:
    """Return a duration in the largest unit of which it is a multiple, such as "1 hour"."""
    if not isinstance(step, np.timedelta64) or np.datetime_data(step.dtype)[0] in "MY":
        return str(step)
    for unit in ("W", "D", "h", "m", "s", "ms", "us"):
        whole = np.timedelta64(1, unit)
        if step >= whole and step % whole == np.timedelta64(0):
            count = step // whole
            return str(count * whole).removesuffix("s") if count == 1 else str(count * whole)
    return str(step)
