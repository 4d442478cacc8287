"""A look into a columnar file: its schema, its first rows, its time stamps. No decisions here."""

import difflib
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

#: Suffix of a file -> the name pyarrow.dataset gives its format.
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".csv": "csv",
}

#: Parts of a date that may stand in columns of their own, from coarse to fine.
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")


def open_dataset(path: str | Path) -> Any:
    """Opens a file, a directory or a glob as a `pyarrow.dataset.Dataset`; reads no rows.

    Raises
    ------
    FileNotFoundError
        When nothing is there.
    ValueError
        When the suffix is unknown, or the file is not what its suffix says.
    """
    files = _files(path)
    suffix = files[0].suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(
            f"{files[0]} ends in {suffix or 'nothing'!r}; expected one of {', '.join(FORMATS)}"
        )
    alike = [str(file) for file in files if file.suffix.lower() == suffix]
    try:
        dataset = ds.dataset(alike, format=FORMATS[suffix])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(unreadable(path, suffix, error)) from error
    if not dataset.schema.names:
        raise ValueError(f"{path} has no columns")
    return dataset


def unreadable(path: str | Path, suffix: str, error: Exception) -> str:
    """One sentence for a file that its own reader refuses."""
    reason = str(error).splitlines()[0].rstrip(".")[:160] if str(error) else type(error).__name__
    return f"cannot read {path} as {FORMATS.get(suffix, 'a table')}: {reason}"


def head(dataset: Any, columns: Sequence[str], rows: int, path: str | Path) -> pa.Table:
    """The first `rows` rows of some columns.

    Raises
    ------
    ValueError
        When the rows cannot be decoded: a truncated file, a malformed line.
    """
    try:
        # head() reads record batch by record batch and stops when it has enough.
        return dataset.head(rows, columns=list(columns), batch_size=min(rows, 1 << 16))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(unreadable(path, Path(dataset.files[0]).suffix.lower(), error)) from error


def number_of_rows(dataset: Any, path: str | Path) -> int:
    """Rows in all files; out of the metadata where the format has it. Raises as `head` does."""
    try:
        return int(dataset.count_rows())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(unreadable(path, Path(dataset.files[0]).suffix.lower(), error)) from error


def known_name(name: str, names: Sequence[str], path: str | Path) -> str:
    """`name`, when the file has such a column.

    Raises
    ------
    ValueError
        Naming the column, the file, and what comes nearest.
    """
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(names)}"
    raise ValueError(f"{path} has no column {name!r}; {hint}")


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds names: strings, or a dictionary of strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_moment(kind: pa.DataType) -> bool:
    """Whether a column of this type says when: not a time of day, and not how long."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type can be forecast: integers and floating point, not bool."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def date_parts(names: Sequence[str]) -> tuple[str, ...]:
    """The columns year, month, day and finer parts, in this order; () without a whole date."""
    by_part = {name.lower(): name for name in names}
    found = []
    for part in DATE_PARTS:
        if part not in by_part:
            break
        found.append(by_part[part])
    return tuple(found) if len(found) >= 3 else ()


def stamps(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[Any]:
    """Time stamps, datetime64[us] or int64, out of one column or out of the parts of a date.

    Raises
    ------
    ValueError
        When text does not read as a time, or where a stamp is missing, naming the column.
    """
    if len(columns) > 1:
        return _stamps_from_parts(table, columns)
    column = table[columns[0]]
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ValueError(f"the time column {columns[0]!r} has no value in row {row}")
    kind = column.type
    if pa.types.is_integer(kind):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit))
    try:
        return np.asarray(column.cast(pa.timestamp("us")).to_numpy())
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the column {columns[0]!r} does not read as a time: {reason}") from error


def reads_as_time(column: pa.ChunkedArray) -> bool:
    """Whether the first strings of a column are ISO time stamps."""
    first = column.slice(0, 100)
    if pa.types.is_dictionary(first.type):
        first = first.cast(first.type.value_type)
    first = pc.drop_null(first)
    try:
        first.cast(pa.timestamp("us"))
    except pa.ArrowException:
        return False
    return len(first) > 0


def _stamps_from_parts(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[Any]:
    """Puts year, month, day, hour, ... together; each may run over (hour 24 is the next day)."""
    parts = []
    for name in columns:
        if table[name].null_count:
            raise ValueError(f"the date column {name!r} has missing values")
        parts.append(table[name].to_numpy().astype(np.int64))
    year, month, day = parts[:3]
    date = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]")
    moment = (date + (day - 1).astype("timedelta64[D]")).astype("datetime64[us]")
    for part, unit in zip(parts[3:], "hms", strict=False):
        moment = moment + part.astype(f"timedelta64[{unit}]")
    return np.asarray(moment)


def _files(path: str | Path) -> list[Path]:
    """The files of a path, a directory or a glob, in order of their names."""
    place = Path(path)
    if place.is_dir():
        found = sorted(f for f in place.rglob("*") if f.suffix.lower() in FORMATS)
        if not found:
            raise FileNotFoundError(f"no {', '.join(FORMATS)} file in the directory {path}")
    elif glob.has_magic(str(path)):
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not found:
            raise FileNotFoundError(f"no file matches {path}")
    elif place.exists():
        found = [place]
    else:
        raise FileNotFoundError(f"there is no file {path}")
    return found
