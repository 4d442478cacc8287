"""The demo's data: a synthetic load curve, and the use of each column of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from windeck._util.text import unknown_column
from windeck.columns.times import cast_times
from windeck.io.conversion import is_categorical, value_type
from windeck.io.csv import CsvFile
from windeck.io.csv_options import CsvOptions, date_formats, text_hint
from windeck.io.data_files import resolve
from windeck.io.formats import DataFile, open_file
from windeck.io.local_files import atomic_file

#: Fixed days off, counted from 1 January: a model that only knows the weekday gets these wrong.
HOLIDAYS = (0, 120, 226, 275, 304, 357, 358, 359, 364)

#: Rows that are looked at: for all but the ids, and for those.
FIRST_ROWS, SAMPLE = 2_000, 1_000_000

#: Share of rows that may repeat a time stamp of their series.
TOLERATED_REPEATS = 0.01

#: Parts of a date that may be columns of their own, from coarse to fine.
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")

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


def write_load_curve(path: str | Path, *, sites: int = 8, days: int = 730, seed: int = 0) -> Path:
    """Write `load_curve` as Parquet, marked as synthetic in its metadata; return the path."""
    table = load_curve(sites=sites, days=days, seed=seed)
    note = {"synthetic": f"windeck load curve, seed {seed}"}
    with atomic_file(path) as part:
        pq.write_table(table.replace_schema_metadata(note), part)
    return Path(path)


def load_curve(
    *, sites: int = 8, days: int = 730, missing: float = 0.01, seed: int = 0
) -> pa.Table:
    """Return hourly synthetic demand, sorted by site and time; the same for the same arguments.

    The shapes are those of real electricity demand: two peaks a day, quiet weekends and holidays,
    a hump in winter, weather that lasts for days, meters that fail for some hours.

    Returns
    -------
    pyarrow.Table
        `site` (dictionary), `timestamp` (seconds), `load` (MW; about the share `missing` is null),
        `temperature` (degrees Celsius), `wind` (m/s), `price` (per MWh), `holiday` (bool).

    Examples
    --------
    >>> table = load_curve(sites=2, days=7)
    >>> table.num_rows, table.column_names[:3]
    (336, ['site', 'timestamp', 'load'])
    """
    rng = np.random.default_rng(seed)
    shape = (sites, days * 24)

    def noise(memory: float) -> npt.NDArray[np.float64]:
        """Return an AR(1) process of unit variance for each site."""
        steps = rng.standard_normal(shape)
        steps[:, 1:] *= np.sqrt(1 - memory**2)
        for now in range(1, shape[1]):
            steps[:, now] += memory * steps[:, now - 1]
        return steps

    stamps = np.datetime64("2021-01-01", "s") + np.arange(shape[1]) * np.timedelta64(3600, "s")
    hour, date = np.arange(shape[1]) % 24, stamps.astype("datetime64[D]")
    day_of_year = (date - date.astype("datetime64[Y]")).astype(np.int64)
    holiday = np.isin(day_of_year, HOLIDAYS)
    working = np.where(np.is_busday(date) & ~holiday, 1.0, 0.3)
    year, day = (-np.cos(2 * np.pi * x) for x in ((day_of_year - 20) / 365.25, (hour - 3) / 24))
    climate = 11 + 3 * rng.standard_normal((sites, 1))
    temperature = climate + 9 * year + 3.5 * day + 3.5 * noise(0.985)
    morning, evening = (np.exp(-0.5 * ((hour - peak) / 2.5) ** 2) for peak in (8.5, 18.5))
    habits = rng.uniform(0.7, 1.3, (2, sites, 1))
    demand = 0.55 + 0.3 * habits[0] * morning * working + 0.3 * habits[1] * evening
    demand = demand + 0.011 * np.maximum(15 - temperature, 0) + 0.025 * noise(0.9)
    load = np.exp(rng.uniform(np.log(20), np.log(900), (sites, 1))) * demand
    wind = np.abs(6 + 3 * noise(0.97))
    fails = rng.random(shape) < missing / 4
    absent = np.any([np.roll(fails, hours, axis=1) for hours in range(4)], axis=0)
    names = [f"site-{number:02d}" for number in range(1, sites + 1)]
    codes = np.repeat(np.arange(sites, dtype=np.int32), shape[1])
    return pa.table(
        {
            "site": pa.DictionaryArray.from_arrays(codes, names),
            "timestamp": np.tile(stamps, sites),
            "load": pa.array(np.round(load, 3).ravel(), mask=absent.ravel()),
            "temperature": temperature.ravel(),
            "wind": wind.ravel(),
            "price": (60 * demand - 1.5 * wind + 4 * rng.standard_normal(shape)).ravel(),
            "holiday": np.tile(holiday, sites),
        }
    )


@dataclass(frozen=True)
class Columns:
    """The use of a file's columns.

    `time` has no name (rows are in order), one, or the parts of a date (year, month, day, ...).
    `why` has the reason for `time`, `ids` and `target`.
    """

    path: str
    time: tuple[str, ...]
    ids: tuple[str, ...]
    target: str
    why: dict[str, str]


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

    Raises
    ------
    FileNotFoundError, KeyError, ValueError
        If there is no such file; no such column; if it is unreadable, or has no numbers.
    """
    files = open_files(path, csv, time)
    names = files[0].schema.names
    for name in (time, *(ids or ()), target):
        if name is not None and name not in names:
            raise unknown_column(name, names, str(path))
    if isinstance(files[0], CsvFile):
        first = files[0].sample.slice(0, FIRST_ROWS)
    else:
        first = _first_rows(files, names, FIRST_ROWS)
    if not len(first):
        raise ValueError(f"{path} has no rows")
    why = dict.fromkeys(("time", "ids", "target"), "as given")
    times: tuple[str, ...] = (time,) if time else ()
    if not time:
        times, why["time"] = _find_time(first)
    if ids is None:
        ids, why["ids"] = _find_ids(files, first, times, target)
    if target is None:
        target, why["target"] = _find_target(first, times, ids)
    if times:
        timestamps(first, times)  # raises where these are no times
    if not _is_number(kind := value_type(first.schema.field(target).type)):
        raise ValueError(f"column {target!r} of {path} must hold numbers to forecast, got {kind}")
    return Columns(str(path), times, tuple(ids), target, why)


def open_files(
    path: str | Path, csv: Mapping[str, Any] | None = None, time: str | None = None
) -> list[DataFile]:
    """Open a file, or all files of a directory or a glob. Of CSV files the first rows are read."""
    options = CsvOptions.from_arguments(**(csv or {}), time=time)
    return [open_file(file, options) for file in resolve(path)]


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
    if len(columns) > 1:
        year, month, day, *finer = (table[name].to_numpy().astype(np.int64) for name in columns)
        first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
        date = first.astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")
        wrong = (month < 1) | (month > 12) | (date.astype("datetime64[M]") != first)
        stamps = cast_times(date, "datetime64[us]")
        for part, unit, most in zip(finer, "hms", (24, 60, 60), strict=False):
            wrong |= (part < 0) | (part >= most)
            stamps = stamps + part.astype(f"timedelta64[{unit}]")
        if wrong.any():
            row = int(np.argmax(wrong))
            parts = ", ".join(f"{name} {table[name][row].as_py()}" for name in columns)
            raise ValueError(f"time columns have {parts} in row {row}; expected a time")
        return np.asarray(stamps)
    column = table[columns[0]].cast(value_type(table.schema.field(columns[0]).type))
    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    try:
        return np.asarray(column.cast(pa.timestamp("us")).to_numpy())
    except pa.ArrowException as error:
        reason = text_hint(column, time=True) or str(error).splitlines()[0]
        raise ValueError(f"column {columns[0]!r} does not read as a time: {reason}") from error


def _find_time(first: pa.Table) -> tuple[tuple[str, ...], str]:
    """Return the time column (or the parts of a date), and the reason."""
    fields = sorted(first.schema, key=lambda field: _name_rank(field.name, TIME_NAMES))
    for field in fields:
        if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            return (field.name,), "time stamps"
    by_part = {name.lower(): name for name in first.column_names}
    parts = tuple(by_part[part] for part in takewhile(by_part.__contains__, DATE_PARTS))
    if len(parts) >= 3:
        return parts, "parts of a date, put together"
    for field in fields:
        values = first.select([field.name]).slice(0, 100).drop_null()
        if is_categorical(field.type) and len(values):
            try:
                timestamps(values, values.column_names)
            except ValueError:
                continue
            return (field.name,), "text that reads as time stamps"
    for field in fields:
        whole = pa.types.is_integer(field.type) and not first[field.name].null_count
        if whole and _name_rank(field.name, TIME_NAMES) < len(TIME_NAMES):
            return (field.name,), "whole numbers, a time by its name"
    for field in fields:
        values = first[field.name].drop_null().slice(0, 100).to_pylist()
        if is_categorical(field.type) and date_formats(values):
            return (), (
                f"column {field.name!r} has dates such as {values[0]!r}, which are not ISO 8601 "
                "(2024-12-31), so rows are taken in order and steps between them are unknown; "
                "--time and --timestamp-format help"
            )
    return (), "no column of times, so rows are taken in order"


def _find_ids(
    files: Sequence[DataFile], first: pa.Table, times: Sequence[str], target: str | None
) -> tuple[tuple[str, ...], str]:
    """Return the fewest columns that make time stamps (nearly) unique within each series."""
    fields = [field for field in first.schema if field.name not in (*times, target)]
    texts = [f.name for f in fields if is_categorical(f.type) or pa.types.is_dictionary(f.type)]
    whole = [field.name for field in fields if pa.types.is_integer(field.type)]
    named = [name for name in (*texts, *whole) if _looks_like_id(name)]
    if not times:
        return tuple(named[:1]), "an id by its name" if named else "nothing tells series apart"
    candidates = list(dict.fromkeys((*named, *texts)))
    rows = _first_rows(files, [*times, *candidates], SAMPLE)

    def repeats(*names: str) -> float:
        """Return the share of rows whose series and time stamp occurred before."""
        return float(1 - len(rows.group_by([*times, *names]).aggregate([])) / len(rows))

    if (without := repeats()) <= TOLERATED_REPEATS:
        if len(rows) == SAMPLE and named:
            return (named[0],), "an id by its name; the first rows are of one series"
        return (), "no time stamp repeats, so this is one series"
    chosen: list[str] = []
    share = without
    while share > TOLERATED_REPEATS and len(chosen) < len(candidates):
        tried = {name: repeats(*chosen, name) for name in candidates if name not in chosen}
        # Candidates with the name of an id come first, and min() keeps the first of equals.
        best = min(tried, key=lambda name: round(tried[name], 3))
        if tried[best] > TOLERATED_REPEATS and 1 - tried[best] < 1.5 * (1 - share):
            break  # explains too little
        chosen.append(best)
        share = tried[best]
    if not chosen:
        return (), f"{without:.0%} of the time stamps repeat, and no column tells the rows apart"
    return tuple(chosen), f"{without:.0%} of the time stamps repeat, {share:.0%} within a series"


def _find_target(first: pa.Table, times: Sequence[str], ids: Sequence[str]) -> tuple[str, str]:
    """Return the column of numbers to forecast, and the reason."""
    used = (*times, *ids)
    numbers = [f.name for f in first.schema if _is_number(f.type) and f.name not in used]
    if not numbers:
        found = ", ".join(f"{field.name} ({value_type(field.type)})" for field in first.schema)
        raise ValueError(f"found no column of numbers to forecast; the columns are {found}")
    known = [name for name in numbers if name.lower() in TARGET_NAMES]
    if known:
        best = min(known, key=lambda name: TARGET_NAMES.index(name.lower()))
        return best, "a usual name of a target"
    varied = [name for name in numbers if _varies(first[name]) and name.lower() not in DATE_PARTS]
    return (varied or numbers)[0], f"the first that varies, of {len(numbers)} columns of numbers"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _name_rank(name: str, known: Sequence[str]) -> int:
    """Return how early a name, or a word of it (`sent_time` is a `time`), comes in a list."""
    words = name.lower().replace("-", "_").replace(" ", "_").split("_")
    return next((rank for rank, word in enumerate(known) if word in (name.lower(), *words)), 99)


def _looks_like_id(name: str) -> bool:
    return _name_rank(name, ID_NAMES) < len(ID_NAMES) or name.lower().endswith("id")


def _varies(column: pa.ChunkedArray) -> bool:
    """Return False for constants, and for whole numbers that count up as row numbers do."""
    steps = np.diff(column.drop_null().to_numpy())
    counts_up = pa.types.is_integer(column.type) and len(steps) > 1 and (steps == steps[:1]).all()
    return bool(steps.any() and not counts_up)
