"""The use of each column of a file: its time, the ids of its series and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io.conversion import is_categorical, value_type
from windeck.io.csv_options import CsvOptions, date_formats, text_hint
from windeck.io.data_files import resolve
from windeck.io.formats import open_file
from windeck.io.record_batches import DataFile

#: Rows that are looked at: for all but the ids, and for those.
FIRST_ROWS, SAMPLE = 2_000, 1_000_000
#: Share of rows that may repeat a time stamp of their series.
TOLERATED_REPEATS = 0.01

#: Parts of a date that may be columns of their own, from coarse to fine.
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
DATE = "{:04}-{:02}-{:02} {:02}:{:02}:{:02}"
#: Usual names of columns, the most telling first.
TIME_NAMES = ("timestamp", "time", "datetime", "date", "ds", "ts", "utc", "period", "epoch")
ID_NAMES = (
    *("series", "id", "site", "station", "meter", "sensor", "device", "node", "channel", "unit"),
    *("store", "shop", "item", "product", "sku", "customer", "household", "building", "symbol"),
    *("ticker", "zone", "region", "location", "nbr"),
)
TARGET_NAMES = (
    *("target", "y", "value", "values", "load", "demand", "consumption", "power", "energy"),
    *("sales", "price", "close", "ot", "pm25", "pm2.5", "traffic", "volume", "count", "cnt"),
)


@dataclass(frozen=True)
class Columns:
    """The use of a file's columns.

    `time` has no name (rows are in order), one, or the parts of a date (year, month, day, ...).
    """

    path: str
    time: tuple[str, ...]
    ids: tuple[str, ...]
    target: str
    note: str = ""


def infer_columns(
    path: str | Path,
    *,
    time: str | None = None,
    ids: Sequence[str] | None = None,
    target: str | None = None,
    csv: Mapping[str, Any] | None = None,
) -> Columns:
    """Find the time, the ids of series and the target of Parquet, Arrow or CSV files.

    Rules of thumb over the schema and the first rows. What is given is taken as it is;
    ``ids=()`` means one series. `csv` has options of CSV files, as `windeck.Table.read` takes them.
    """
    options = CsvOptions.from_arguments(**(csv or {}), time=time)
    files = [open_file(file, options) for file in resolve(path)]
    names = files[0].schema.names
    for name in (time, *(ids or ()), target):
        if name is not None and name not in names:
            raise unknown_column(name, names, str(path))
    first = _first_rows(files, names, FIRST_ROWS)
    if not len(first):
        raise ValueError(f"{path} has no rows")
    times, note = ((time,), "") if time is not None else _find_time(first)
    ids = _find_ids(files, first, times, target) if ids is None else ids
    target = _find_target(first, times, ids) if target is None else target
    if times:
        timestamps(first, times)  # raises where these are no times
    if not _is_number(kind := value_type(first.schema.field(target).type)):
        raise ValueError(f"column {target!r} of {path} must hold numbers to forecast, got {kind}")
    return Columns(str(path), times, tuple(ids), target, note)


def _first_rows(files: Sequence[DataFile], names: Sequence[str], rows: int) -> pa.Table:
    """Read some columns of the first rows of all files together."""
    tables: list[pa.Table] = []
    for file in files:
        left = rows - sum(map(len, tables))
        if left > 0 and (batches := list(file.prepare(names).batches(names, 0, left))):
            tables.append(pa.Table.from_batches(batches))
    found = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    return found.unify_dictionaries()


def timestamps(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[Any]:
    """Return datetime64[us] or int64 out of one column, or out of the parts of a date."""
    for name in columns:
        if table[name].null_count:
            row = table[name].is_null().to_pylist().index(True)
            raise ValueError(f"time column {name!r} has no value in row {row}")
    column = table[columns[0]].cast(value_type(table.schema.field(columns[0]).type))
    if len(columns) > 1:  # as text, which is checked below
        rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
        dates = [DATE.format(*map(int, row), 0, 0, 0) for row in rows]  # finer parts may be missing
        column = pa.chunked_array([dates])
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    try:
        return np.asarray(column.cast(pa.timestamp("us")).to_numpy())
    except pa.ArrowException as error:
        reason = text_hint(column, time=True) or str(error).splitlines()[0]
        raise ValueError(f"column {columns[0]!r} does not read as a time: {reason}") from error


def _find_time(first: pa.Table) -> tuple[tuple[str, ...], str]:
    """Return the time column, the parts of a date or nothing; and how the rows are ordered then."""
    fields = sorted(first.schema, key=lambda field: _name_rank(field.name, TIME_NAMES))
    for field in fields:
        if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            return (field.name,), ""
    by_part = {name.lower(): name for name in first.column_names}
    parts = tuple(by_part[part] for part in takewhile(by_part.__contains__, DATE_PARTS))
    if len(parts) >= 3:
        return parts, ""
    texts = [field.name for field in fields if is_categorical(field.type)]
    for name in texts:
        values = first.select([name])[:100].drop_null()
        with suppress(ValueError):
            if len(timestamps(values, [name])):
                return (name,), ""
    for field in fields:
        whole = pa.types.is_integer(field.type) and not first[field.name].null_count
        if whole and _name_rank(field.name, TIME_NAMES) < len(TIME_NAMES):
            return (field.name,), ""
    for name in texts:
        dates = first[name].drop_null()[:100].to_pylist()
        if date_formats(dates):
            return (), (
                f"column {name!r} has dates such as {dates[0]!r}, which are not ISO 8601 "
                "(2024-12-31), so rows are taken in order and steps between them are unknown; "
                "--time and --timestamp-format help"
            )
    return (), "rows are taken in order"


def _find_ids(
    files: Sequence[DataFile], first: pa.Table, times: Sequence[str], target: str | None
) -> Sequence[str]:
    """Return the fewest columns that make time stamps (nearly) unique within each series."""
    fields = [field for field in first.schema if field.name not in (*times, target)]
    texts = [f.name for f in fields if is_categorical(f.type) or pa.types.is_dictionary(f.type)]
    whole = [field.name for field in fields if pa.types.is_integer(field.type)]
    named = [
        name
        for name in (*texts, *whole)
        if _name_rank(name, ID_NAMES) < len(ID_NAMES) or name.lower().endswith("id")
    ]
    if not times:
        return named[:1]
    # Those with the name of an id come first, and min() keeps the first of equals.
    candidates = list(dict.fromkeys((*named, *texts)))
    rows = _first_rows(files, [*times, *candidates], SAMPLE)

    def repeats(*names: str) -> float:
        """Return the share of rows whose series and time stamp occurred before."""
        return float(1 - len(rows.group_by([*times, *names]).aggregate([])) / len(rows))

    share, chosen = repeats(), list[str]()
    if share <= TOLERATED_REPEATS and len(rows) == SAMPLE:
        return named[:1]  # the first rows may be of one series
    while share > TOLERATED_REPEATS and candidates:
        best = min(candidates, key=lambda name: round(repeats(*chosen, name), 3))
        left = repeats(*chosen, best)
        if left > TOLERATED_REPEATS and 1 - left < 1.5 * (1 - share):
            break  # explains too little
        chosen.append(best)
        candidates.remove(best)
        share = left
    return chosen


def _find_target(first: pa.Table, times: Sequence[str], ids: Sequence[str]) -> str:
    """Return the column of numbers to forecast."""
    used = (*times, *ids)
    numbers: list[str] = [f.name for f in first.schema if _is_number(f.type) and f.name not in used]
    if not numbers:
        found = ", ".join(f"{field.name} ({value_type(field.type)})" for field in first.schema)
        raise ValueError(f"found no column of numbers to forecast; the columns are {found}")
    known = [name for name in numbers if name.lower() in TARGET_NAMES]
    if known:
        return min(known, key=lambda name: TARGET_NAMES.index(name.lower()))
    varied = [name for name in numbers if _varies(first[name]) and name.lower() not in DATE_PARTS]
    return (varied or numbers)[0]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _name_rank(name: str, known: Sequence[str]) -> int:
    """Return how early a name, or a word of it (`sent_time` is a `time`), comes in a list."""
    words = name.lower().replace("-", "_").replace(" ", "_").split("_")
    return next((rank for rank, word in enumerate(known) if word in (name.lower(), *words)), 99)


def _varies(column: pa.ChunkedArray) -> bool:
    """Return False for constants, and for whole numbers that count up as row numbers do."""
    steps = np.diff(column.drop_null().to_numpy())
    counts_up = pa.types.is_integer(column.type) and len(steps) > 1 and (steps == steps[:1]).all()
    return bool(steps.any() and not counts_up)
