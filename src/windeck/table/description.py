"""Text and fingerprints of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windeck._util.fingerprints import digest, sample_rows
from windeck._util.html import html_table
from windeck._util.terminal import escaped
from windeck._util.text import format_bytes
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Int64s

if TYPE_CHECKING:
    from windeck.table.table import Table

_LISTED, _SHOWN = 1000, 20


def fingerprint(table: Table) -> dict[str, str | int]:
    """Return names, dtypes, sizes, and digests of offsets and of sampled rows of every column.

    The fingerprint does not depend on the bytes of missing values, or on `storage`.
    """
    rows = sample_rows(table.num_rows)
    columns = [table.column(name) for name in table.column_names]
    found: dict[str, str | int] = {
        "rows": table.num_rows,
        "series": table.num_series,
        "columns": _short(", ".join(f"{c.name} {c.dtype}" for c in columns)),
        "offsets": digest(table.offsets),
        "series_names": digest(np.array([str(name) for name in table.series_names], dtype=np.str_)),
        "contents": digest(*(_sampled(column, rows) for column in columns)),
    }
    if table.timestamps is not None:
        found["timestamps"] = digest(np.ascontiguousarray(table.timestamps[rows]).view(np.int64))
    return found


def _short(text: str) -> str:
    return text if len(text) <= _LISTED else f"{text[:60]}... #{digest(text)}"


def _sampled(column: ColumnData, rows: Int64s) -> tuple[object, ...]:
    observed = column.observed(rows)
    values = column.values[rows]
    values[~observed] = 0
    return column.name, column.dtype, column.categories, observed, values


def explain(table: Table) -> str:
    """Return a few lines of text: files, size, columns, series, and the report on their order."""
    lines = [_size(table), *_columns(table), *_series(table), *table.report.lines()]
    return "\n".join(map(escaped, lines))


def as_html(table: Table) -> str:
    """Return the size, the columns, the series and the report on their order, for notebooks."""
    rows = []
    for name, column in list(table.columns.items())[:_SHOWN]:
        codes = "" if column.categories is None else f"{len(column.categories):,}"
        missing = "" if column.missing is None else f"{column.missing:,}"
        rows.append((name, column.dtype, missing, codes))
    more = len(table.columns) - len(rows)
    notes = [f"and {more:,} columns more"] if more else []
    notes += [*_series(table), *table.report.lines()]
    header = ("column", "dtype", "missing", "categories")
    return html_table(f"Table: {_size(table)}", header, rows, "\n".join(notes))


def _size(table: Table) -> str:
    nbytes = sum(table.column(name).nbytes for name in table.column_names)
    many, origin = len(table.column_names), table.origin
    if origin is None:
        return f"{many} columns, {format_bytes(nbytes)}, {table.num_rows:,} rows"
    place = "mapped" if origin.mapped else "streamed" if origin.streamed else "in memory"
    files = f"{origin.files} {'/'.join(origin.kinds)} file{'' if origin.files == 1 else 's'}"
    return (
        f"{many} of {origin.columns} columns, {_of(nbytes, max(origin.nbytes, nbytes))}, "
        f"{table.num_rows:,} rows, {place}, from {files}"
    )


def _of(part: int, whole: int) -> str:
    """Return two amounts in one unit, such as "11.8 of 128 GB"."""
    number, unit = format_bytes(whole).split(" ")
    scale = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    return f"{part / scale:.3g} of {number} {unit}"


def _columns(table: Table) -> list[str]:
    lines = []
    for name in table.column_names:
        column = table.column(name)
        notes = [column.dtype]
        if column.categories is not None:
            notes.append(f"{len(column.categories)} categories")
        if column.missing:
            notes.append(f"{column.missing:,} missing ({column.missing / len(table):.1%})")
        lines.append(f"  {name}: {', '.join(notes)}")
    return lines if len(lines) <= 12 else [*lines[:10], f"  and {len(lines) - 10} more"]


def _series(table: Table) -> list[str]:
    """Return lines of text: number and lengths of the series, and the time that they span."""
    lengths = np.diff(table.offsets)
    spread = f" of {lengths.min():,} to {lengths.max():,} rows" if len(lengths) else ""
    step = "" if table.step is None else f", usual step {_step(table.step)}"
    lines = [f"{table.num_series:,} series{spread}{step}"]
    if table.report.span is not None:
        first, last = (_stamp(tick, table.report.unit) for tick in table.report.span)
        zone = "" if table.time_zone is None else f" UTC, in the time zone {table.time_zone}"
        lines.append(f"time from {first} to {last}{zone}")
    return lines


def _stamp(tick: int, unit: str | None) -> str:
    """Return a time stamp as text, without parts of the time that are 0."""
    if unit is None:
        return str(tick)
    stamp = np.datetime64(tick, unit)  # type: ignore[call-overload]
    return str(np.datetime_as_string(stamp, unit="auto")).replace("T", " ")


def _step(step: np.timedelta64 | int) -> str:
    """Return a duration in the largest unit of which it is a multiple."""
    if not isinstance(step, np.timedelta64) or np.datetime_data(step.dtype)[0] in "MY":
        return str(step)
    for unit in ("W", "D", "h", "m", "s", "ms", "us"):
        whole = np.timedelta64(1, unit)
        if step >= whole and step % whole == np.timedelta64(0):
            return str((step // whole) * whole)
    return str(step)
