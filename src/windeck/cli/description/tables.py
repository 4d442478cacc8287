"""Descriptions of tables: Parquet, Arrow IPC and CSV files with a column for each value."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windeck import Table, Windows
from windeck._util.imports import has_torch
from windeck._util.text import format_bytes, plural
from windeck.cli.column_roles import FIRST_ROWS, infer_columns
from windeck.cli.description.description import Code, Column, Description, call, literal
from windeck.columns.dtypes import FLOATS
from windeck.io import filesystem
from windeck.io.conversion import is_categorical, value_type
from windeck.io.csv_options import CsvOptions, date_formats
from windeck.io.filesystem import RangeReader
from windeck.io.formats import open_file, open_files
from windeck.io.options import pandas_index
from windeck.io.record_batches import DataFile
from windeck.io.remote import RemotePath, mount_url

__all__ = ["MOST_FILES", "SAMPLE_BYTES", "describe_table", "first_rows"]

#: Rows and bytes in memory of a sample, bytes of a sample of CSV, and files that are opened.
SAMPLE_ROWS, SAMPLE_BYTES, SAMPLE_CSV, MOST_FILES = 1_000_000, 256 << 20, 32 << 20, 1000
#: Most different texts of a column that is read as categories, and those that are always few.
_MOST_CATEGORIES, _FEW = 1000, 20
#: Words in names of columns whose future values are known.
_KNOWN_WORDS = frozenset(
    (
        *("holiday", "holidays", "weekday", "weekend", "dayofweek", "dow", "hour", "day", "month"),
        *("quarter", "week", "year", "season", "promo", "promotion", "onpromotion", "event"),
        *("school", "workday", "workingday", "calendar", "schedule", "planned"),
    )
)
_CONTEXT, _HORIZON, _LEAST_ROWS = 168, 24, 24
#: Dates of a CSV file that are looked at for their format.
_DATES = 10_000
#: Units of durations in `max_gap`, by NumPy's.
_UNITS = {"h": "h", "m": "min", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
#: Days from Friday to Monday, and to the Tuesday after a holiday.
_WEEKENDS = (3, 4)
_PARTS = (
    "the time is in several columns, of which Table.read takes one: rows are taken in order; "
    "pandas.to_datetime makes one column of years, months, days and hours, for Table.from_pandas"
)


@dataclass(frozen=True)
class _Roles:
    """The guessed use of columns; `notes` has what could not be guessed."""

    ids: tuple[str, ...] = ()
    time: str | None = None
    parts: tuple[str, ...] = ()
    target: str | None = None
    timestamp_format: str | None = None
    notes: tuple[str, ...] = ()


def describe_table(
    path: str,
    files: Sequence[str],
    *,
    ids: Sequence[str] | None = None,
    time: str | None = None,
    csv: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Description:
    """Describe the table in some files, from metadata and a sample of bounded size.

    Parameters
    ----------
    path, files
        The path as given, and the files that it names.
    ids, time
        Columns that are known; None to guess them.
    csv
        Options of CSV files, as of `windeck.Table.read`.
    notes
        Further notes.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError
        As `windeck.Table.read`.
    """
    given = dict(csv or {})
    opened = open_files(files[:MOST_FILES], CsvOptions.from_arguments(**given, time=time))
    kinds = "/".join(dict.fromkeys(file.kind for file in opened))
    sample = _sampled([file.path for file in opened], opened, given.get("encoding"))
    roles = _guess(sample, ids, time, given)
    first = open_file(sample[0], CsvOptions.from_arguments(**given, time=time))
    options = {**_read_options(first, roles), **given}
    width = _row_bytes(sample[0], first.num_rows, options)
    is_head = sample[0] != opened[0].path
    stated = sum(file.num_rows for file in opened)
    limit = min(SAMPLE_ROWS, SAMPLE_BYTES // width)
    is_cut = stated > limit and kinds != "CSV"  # whose rows are an estimate, of few bytes here
    table = _read(sample, options, limit if is_cut else None)
    types = {field.name: _type(field.type) for field in first.schema}
    is_sample = is_cut or is_head or len(opened) < len(files)
    total = stated if is_cut or is_head else len(table)
    total = max(len(table), total) * len(files) // len(opened)
    about = "about " if is_head or len(opened) < len(files) else ""
    columns = _columns(table, types, roles)
    facts = {
        "format": kinds,
        "files": len(files),
        "rows": total,
        "rows_are_exact": not about,
        "bytes_in_memory": width * total,
        "sampled_rows": len(table) if is_sample else None,
        **_series_facts(table),
    }
    summary = (
        f"a table of {about}{total:,} rows in {plural(len(files), f'{kinds} file')}, "
        f"about {format_bytes(width * total)} in memory"
    )
    told = [*notes, *_notes(table, roles, total if is_sample else None)]
    if kinds == "CSV" and "binary" in types.values():
        told.append("some text is not UTF-8: encoding='latin-1', 'cp1252' or its own reads it")
    if kinds == "CSV":
        told += _mixed_decimals(first)
    told += _possible_codes(table, columns)
    code = _code(path, table, roles, columns, options, told)
    return Description(path, "table", summary, facts, columns, told, code)


def _type(kind: pa.DataType) -> str:
    """Return the name of a type, as dtypes are called: float64 for double."""
    kind = value_type(kind)
    floating = pa.types.is_floating(kind)
    return f"float{kind.bit_width}" if floating else str(kind)


def first_rows(files: Sequence[DataFile], names: Sequence[str], rows: int) -> pa.Table:
    """Return some columns of the first rows of the first file that has any."""
    for file in files:
        batches = list(file.prepare(names).batches(names, 0, rows))
        if sum(map(len, batches)):
            return pa.Table.from_batches(batches).unify_dictionaries()
    return pa.schema([(name, pa.null()) for name in names]).empty_table()


def _sampled(
    files: Sequence[str], opened: Sequence[DataFile], encoding: str | None
) -> Sequence[str]:
    """Return the files, or a file in memory with the first lines if they are long texts."""
    sizes = 0
    for file, data in zip(files, opened, strict=True):
        if data.kind == "CSV":
            with RangeReader(file) as reader:
                sizes += reader.size * (8 if file.lower().endswith((".gz", ".bz2")) else 1)
    if sizes <= SAMPLE_CSV:
        return files
    with filesystem.open_text(files[0], whole=False) as text:
        head = bytes(text.read(SAMPLE_CSV))
    name = os.path.basename(files[0]).removesuffix(".gz").removesuffix(".bz2")
    if encoding is not None:  # in which a new line may have more bytes than one
        decoded = head.decode(encoding, errors="ignore")
        head = (decoded[: decoded.rfind("\n") + 1] or decoded).encode(encoding)
    else:
        head = head[: head.rfind(b"\n") + 1] or head
    lines = pa.py_buffer(head)
    return [RemotePath(f"memory://{name}", mount_url(f"memory://{name}").mount, lines)]


def _guess(
    files: Sequence[str], ids: Sequence[str] | None, time: str | None, csv: dict[str, Any]
) -> _Roles:
    """Return the roles of columns by the rules of `infer_columns`."""
    source: Any = files if len(files) > 1 else files[0]
    try:
        found = infer_columns(source, ids=ids, time=time, csv=csv)
        if not found.time and time is None and (dates := _dates(files[0], csv)):
            time, csv = dates
            found = infer_columns(source, ids=ids, time=time, csv=csv)
    except ValueError as error:
        if "no column of numbers" not in str(error):
            raise
        reason = "there is no column of numbers to forecast"
        return _Roles(tuple(ids or ()), time, notes=(reason,))
    roles = _Roles(found.ids, None, (), found.target, csv.get("timestamp_format"))
    if len(found.time) > 1:
        return replace(roles, parts=found.time, notes=(_PARTS,))
    if not found.time:
        return replace(roles, notes=(found.note.partition("; --time")[0],))
    parsed = CsvOptions.from_arguments(**csv, time=time)
    kind = value_type(open_file(files[0], parsed).schema.field(found.time[0]).type)
    if is_categorical(kind) and not roles.timestamp_format:
        note = f"column {found.time[0]!r} has times as text, expected timestamps: rows are in order"
        return replace(roles, notes=(note,))
    return replace(roles, time=found.time[0])


def _dates(path: str, csv: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return a CSV column of dates that are not ISO 8601 in one format, and the options for it."""
    file = open_file(path, CsvOptions.from_arguments(**csv))
    if file.kind != "CSV":
        return None
    names = [field.name for field in file.schema if is_categorical(field.type)]
    head = first_rows([file], names, _DATES) if names else pa.table({})
    for name in head.column_names:
        texts = head[name].drop_null().to_pylist()
        formats = date_formats(texts)
        # With dots between its parts a date has the day first wherever it is written so.
        if formats and (len(formats) == 1 or "." in texts[0]):
            return name, {**csv, "timestamp_format": formats[0]}
    return None


def _read_options(file: DataFile, roles: _Roles) -> dict[str, Any]:
    """Return the arguments of `Table.read` for the columns that a table can hold."""
    used = {*roles.ids, roles.time, *roles.parts}
    fields = [field for field in file.schema if field.name not in used]
    if pandas_index(file.schema) == ("",):  # a column of CSV that Table.read leaves out
        fields = [field for field in fields if field.name]
    numbers, texts, decimals = list[str](), list[str](), False
    for field in fields:
        kind = value_type(field.type)
        decimals |= pa.types.is_decimal(kind)
        if is_categorical(kind):
            texts.append(field.name)
        elif any(test(kind) for test in _READABLE):
            numbers.append(field.name)
    head = first_rows([file], texts, FIRST_ROWS) if texts else pa.table({})
    categories = [
        name for name in texts
        if len(head[name].unique()) <= min(_MOST_CATEGORIES, max(_FEW, len(head) / 20))
    ]  # fmt: skip
    kept = [field.name for field in fields if field.name in {*numbers, *categories} - {""}]
    return {
        "columns": None if len(kept) == len(fields) else kept,
        "id_columns": list(roles.ids),
        "timestamp_column": roles.time,
        "timestamp_format": roles.timestamp_format,
        "categories": categories,
        "dtype": "float64" if decimals else None,
    }


def _mixed_decimals(file: DataFile) -> list[str]:
    """Return a question about each column of text that is numbers with commas and with points."""
    names = [field.name for field in file.schema if is_categorical(value_type(field.type))]
    head = first_rows([file], names, FIRST_ROWS) if names else pa.table({})
    questions = []
    for name in head.column_names:
        texts = [text.strip() for text in head[name].drop_null().unique().to_pylist()]
        commas = [text for text in texts if _WITH_COMMA.fullmatch(text)]
        points = [text for text in texts if _WITH_POINT.fullmatch(text)]
        numbers = (
            len(commas) + len(points) + sum(_INTEGER.fullmatch(text) is not None for text in texts)
        )
        if commas and points and numbers == len(texts):
            questions.append(
                f"is the comma in {commas[0]!r} a decimal point, as the point in {points[0]!r} of "
                f"column {name!r}? It is read as text; with one of them in the file it is numbers"
            )
    return questions


_INTEGER_TYPE = re.compile(r"u?int\d+$")
_INTEGER = re.compile(r"[+-]?\d+")
_WITH_COMMA, _WITH_POINT = re.compile(r"[+-]?\d*,\d+"), re.compile(r"[+-]?\d*\.\d+")

_READABLE = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal),
    pa.types.is_null,
)


def _row_bytes(file: str, rows: int, options: Mapping[str, Any]) -> int:
    """Return the bytes of a row of a file in memory, at least 1."""
    return max(1, -(-Table.estimate(file, **options) // max(1, rows)))


def _read(files: Sequence[str], options: dict[str, Any], rows: int | None) -> Table:
    """Read the first rows, None for all; add ``sort`` to the options if rows are not grouped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of repeated times, which the notes have
        first = None if rows is None else (0, rows)
        table = Table.read(list(files), rows=first, sort=True, **options)
    options["sort"] = table.report.regrouped or None
    return table


def _columns(table: Table, types: Mapping[str, str], roles: _Roles) -> list[Column]:
    """Return the columns with roles, in the order of the file."""
    fixed = dict.fromkeys(roles.ids, "id") | dict.fromkeys(roles.parts, "part of a date")
    if roles.time is not None:
        fixed[roles.time] = "time"
    found = []
    for name, kind in types.items():
        column = table.columns.get(name)
        role = fixed.get(name) or _role(table, name, roles)
        if column is None and name not in fixed:
            role = f"left out: {_left_out(name, kind)}"
        missing = None if column is None else column.missing or 0
        found.append(Column(name, kind, role, missing))
    return found


def _left_out(name: str, kind: str) -> str:
    if not name:
        return "no name"
    return "text" if kind == "string" else kind


def _role(table: Table, name: str, roles: _Roles) -> str:
    if name == roles.target:
        return "target"
    if name not in table.columns:
        return ""
    if table.num_series > 1 and _is_static(table, name):
        return "static covariate"
    words = set(re.split(r"[\W_]+", name.lower()))
    return "known covariate" if words & _KNOWN_WORDS else "past covariate"


def _is_static(table: Table, name: str) -> bool:
    """Return whether a column has one value in each series of a table."""
    values, starts = table[name], table.offsets[:-1][np.diff(table.offsets) > 0]
    if not len(starts):
        return False
    same = np.zeros(len(values), dtype=bool)
    same[1:] = values[1:] == values[:-1]
    same[starts] = True
    return bool(same.all())


def _series_facts(table: Table) -> dict[str, Any]:
    lengths, report = np.diff(table.offsets), table.report
    span = report.span
    first_last = None if span is None else [_stamp(tick, report.unit) for tick in span]
    return {
        "series": table.num_series,
        "series_rows": [int(lengths.min()), int(lengths.max())] if len(lengths) else [0, 0],
        "span": first_last,
        "step": None if report.step is None else str(report.step),
        "gaps": int(report.breaks.sum()),
        "repeated_times": int(report.duplicates_sorted.sum()),
    }


def _stamp(tick: int, unit: str | None) -> str:
    return str(tick) if unit is None else str(np.datetime64(tick, unit))  # type: ignore[call-overload]


def _notes(table: Table, roles: _Roles, total: int | None) -> list[str]:
    """Return the series, their span, steps and gaps, and what was guessed, as sentences."""
    lines = table.explain().splitlines()
    begin = next(i for i, line in enumerate(lines) if re.match(r"[\d,]+ series of ", line))
    notes = lines[begin:]
    if roles.time is not None and not table.report.breaks.any():
        notes.append("no gaps: no step is larger than the usual one")
    if total is not None:
        notes.append(f"from a sample: the first {len(table):,} of {total:,} rows")
    notes += [note for note in roles.notes if note]
    if roles.target is not None:
        notes.append("roles are guesses, by names and values: change them where they are wrong")
    return notes


def _code(
    path: str,
    table: Table,
    roles: _Roles,
    columns: Sequence[Column],
    options: Mapping[str, Any],
    notes: list[str],
) -> list[str]:
    """Return the lines that read the table and make windows of it; add to the notes on them."""
    lines = ["import windeck as wd", ""]
    shown = {**options, "missing": Code("[]")} if options.get("missing") == [] else options
    lines += call("table", literal(path), "wd.Table.read", shown)
    named: dict[str, list[str]] = {}
    for column in columns:
        named.setdefault(column.role, []).append(column.name)
    lengths = np.diff(table.offsets)
    usual = int(np.median(lengths)) if len(lengths) else 0
    usual = usual if usual >= _LEAST_ROWS else int(lengths.max(initial=0))
    if roles.target is None or usual < _LEAST_ROWS:
        return lines
    horizon = min(_HORIZON, usual // 10)
    context = min(_CONTEXT, usual // 2 - horizon)
    covariates = {
        f"{role}_covariates": named.get(f"{role} covariate", [])
        for role in ("known", "past", "static")
    }
    texts = [
        name
        for name in options["categories"]
        if any(name in names for names in covariates.values())
    ]
    numbers = [[name for name in names if name not in texts] for names in covariates.values()]
    given = {
        "context_length": context,
        "prediction_length": horizon,
        "target_columns": roles.target,
        **covariates,
        "categorical": texts,
        "max_gap": _max_gap(table, roles.target, context, horizon, notes),
        "dtype": _dtypes(table, [[roles.target], *numbers]) or None,
    }
    lines += call("windows", "table", "wd.Windows", given)
    if texts:
        lines.append("windows = windows.with_categories(wd.Categories.fit(windows))")
    if has_torch():
        lines.append("loader = wd.Loader(windows, batch_size=16, shuffle=True)")
    return lines


def _max_gap(
    table: Table, target: str, context: int, horizon: int, notes: list[str]
) -> str | int | None:
    """Return the usual step, or that of weekends, if windows without longer ones are most of all.

    Otherwise add a note: windows cross breaks then.
    """
    step = table.report.step
    if step is None or not table.report.breaks.any():
        return None
    make = partial(
        Windows, table, context_length=context, prediction_length=horizon, target_columns=target
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of series that lose every window: these are trials
        windows, is_day = len(make()), step == np.timedelta64(1, "D")
        for factor in (1, *(_WEEKENDS if is_day else ())):
            with suppress(ValueError):  # no window is left
                if 2 * len(make(max_gap=step * factor)) > windows:
                    return _duration(step * factor)
    notes.append(
        f"windows of {context} + {horizon} rows cross breaks, as max_gap= of Windows would leave "
        "out most of them: table.regularize() adds the rows that are not there, as missing ones"
    )
    return None


def _duration(step: Any) -> str | int | None:
    """Return a step as `max_gap` takes it."""
    if not isinstance(step, np.timedelta64):
        return int(step)
    for unit, name in _UNITS.items():
        whole = np.timedelta64(1, unit)  # type: ignore[call-overload]
        if step >= whole and step % whole == np.timedelta64(0):
            return f"{step // whole}{name}"
    return None


def _possible_codes(table: Table, columns: Sequence[Column]) -> list[str]:
    """Return a note on covariates of integers with few values, which may be codes."""
    names = []
    for column in columns:
        if column.role.endswith(" covariate") and _INTEGER_TYPE.match(column.type):
            values = table[column.name]
            count = len(np.unique(values))
            if 1 < count <= _FEW and _FEW * count <= len(values):
                names.append(column.name)
    if not names:
        return []
    return [
        f"integers with at most {_FEW} values are taken as numbers: {', '.join(names)}; if they "
        f"are codes, pass categorical={literal(names)} to Windows, as for text"
    ]


def _dtypes(table: Table, roles: Any) -> dict[str, str]:
    """Return float32 for the columns of roles with integers, or with several dtypes.

    A column of integers makes batches of integers, which layers of torch do not take.
    """
    kinds = [{table.columns[name].dtype for name in names} for names in roles]
    cast = [
        names
        for names, of_role in zip(roles, kinds, strict=True)
        if len(of_role) > 1 or not all(kind in FLOATS for kind in of_role)
    ]
    return {name: "float32" for names in cast for name in names}
