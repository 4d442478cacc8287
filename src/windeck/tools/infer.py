"""Which column is the time, which name the series, which one to forecast; and why.

Rules of thumb over the schema and a sample of rows. Every choice comes with its reason in words, so
that a reader can disagree, and overrule it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windeck.tools import peek

#: Rows looked at; a larger file is judged by its beginning.
SAMPLE = 1_000_000

#: Share of rows that may repeat a time stamp of their series before ids are searched for.
TOLERATED_REPEATS = 0.01

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

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """What a file's columns are for.

    `time` holds no name (rows are in order), one, or the parts of a date (year, month, day, ...).
    `step` is the usual difference between the stamps of a series: timedelta64, int, or None.
    `why` has a clause for `time`, `ids` and `target` each.
    """

    path: str
    num_rows: int
    names: tuple[str, ...]
    time: tuple[str, ...]
    ids: tuple[str, ...]
    target: str
    step: np.timedelta64 | int | None
    why: dict[str, str]


def infer(
    path: str | Path,
    *,
    time: str | None = None,
    ids: Sequence[str] | None = None,
    target: str | None = None,
) -> Columns:
    """Says which columns of a Parquet, Arrow or CSV file are time, ids and target.

    Parameters
    ----------
    path
        A file, a directory, or a glob.
    time, ids, target
        What is given is taken, not guessed. ``ids=()`` means one series.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        When the file is not readable, lacks a column that was named, or has no numbers.

    Examples
    --------
    >>> import pathlib, tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> table = pa.table({"when": pa.array([0, 1, 2], pa.timestamp("s")), "load": [1.0, 2.0, 4.0]})
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "tiny.parquet"
    >>> pq.write_table(table, file)
    >>> found = infer(file)
    >>> found.time, found.ids, found.target, describe_step(found.step)
    (('when',), (), 'load', '1 second')
    >>> found.why["time"]
    'the only column of time stamps'
    """
    dataset = peek.open_dataset(path)
    schema = dataset.schema
    names = tuple(schema.names)
    for name in (time, *(ids or ()), target):
        if name is not None:
            peek.known_name(name, names, path)
    why: dict[str, str] = {}
    rows = peek.number_of_rows(dataset, path)
    if rows == 0:
        raise ValueError(f"{path} has no rows")
    first = peek.head(dataset, names, 2000, path)
    times, why["time"] = ((time,), "as told") if time else _find_time(first)
    chosen = tuple(ids) if ids is not None else None
    candidates = chosen if chosen is not None else _id_candidates(first, times, target)
    keys = peek.head(dataset, tuple(dict.fromkeys((*times, *candidates))), SAMPLE, path)
    stamps = _rank(peek.stamps(keys, times)) if times else np.arange(keys.num_rows)
    if chosen is None:
        chosen, why["ids"] = _find_ids(keys, stamps, candidates, rows, bool(times))
    else:
        why["ids"] = "as told"
    wanted, why["target"] = (target, "as told") if target else _find_target(first, times, chosen)
    if not peek.is_number(schema.field(wanted).type):
        raise ValueError(
            f"the column {wanted!r} of {path} holds {schema.field(wanted).type}, "
            f"which cannot be forecast; expected numbers"
        )
    step = _usual_step(peek.stamps(keys, times), _codes(keys, chosen)) if times else None
    return Columns(str(path), rows, names, times, chosen, wanted, step, why)


def describe_step(step: np.timedelta64 | int | None) -> str:
    """A step in words.

    >>> describe_step(np.timedelta64(5, "m")), describe_step(3), describe_step(None)
    ('5 minutes', '3', 'unknown')
    """
    if step is None:
        return "unknown"
    if not isinstance(step, np.timedelta64):
        return str(step)
    count = int(step.astype("timedelta64[us]").astype(np.int64))
    name = "microsecond"
    for size, larger in (
        (1_000_000, "second"),
        (60, "minute"),
        (60, "hour"),
        (24, "day"),
        (7, "week"),
    ):
        if count % size:
            break
        count, name = count // size, larger
    return f"{count} {name}{'s' if count != 1 else ''}"


def _find_time(first: pa.Table) -> tuple[tuple[str, ...], str]:
    """The column (or the date's parts) that says when, and the reason."""
    temporal = [f.name for f in first.schema if peek.is_moment(f.type)]
    if temporal:
        if len(temporal) == 1:
            return (temporal[0],), "the only column of time stamps"
        best = min(temporal, key=lambda name: (_name_rank(name, TIME_NAMES), temporal.index(name)))
        return (best,), f"time stamps, as {_listed(set(temporal) - {best})}; first choice by name"
    if parts := peek.date_parts(first.schema.names):
        return parts, "parts of a date, put together"
    texts = [f.name for f in first.schema if peek.is_text(f.type)]
    for name in sorted(texts, key=lambda name: _name_rank(name, TIME_NAMES)):
        if peek.reads_as_time(first[name]):
            return (name,), "text that reads as time stamps"
    whole = [f.name for f in first.schema if pa.types.is_integer(f.type)]
    for name in whole:
        if _name_rank(name, TIME_NAMES) < len(TIME_NAMES) and not first[name].null_count:
            return (name,), "whole numbers, a time by its name"
    for name in whole:
        if _counts_up(first[name]):
            return (name,), "counts up from row to row"
    return (), "no column of times, so rows are taken in order"


def _id_candidates(first: pa.Table, times: Sequence[str], target: str | None) -> tuple[str, ...]:
    """Columns that could tell series apart: names, and whole numbers with the name of an id."""
    found = [
        field.name
        for field in first.schema
        if field.name not in times
        and field.name != target
        and (
            peek.is_text(field.type)
            or pa.types.is_dictionary(field.type)
            or (pa.types.is_integer(field.type) and _looks_like_id(field.name))
        )
    ]
    return tuple(sorted(found, key=lambda name: not _looks_like_id(name)))


def _find_ids(
    keys: pa.Table, stamps: Codes, candidates: Sequence[str], rows: int, timed: bool
) -> tuple[tuple[str, ...], str]:
    """The fewest columns that make time stamps unique (nearly) within each series."""
    if not timed:
        found = tuple(name for name in candidates if _looks_like_id(name))[:1]
        return found, "an id by its name" if found else "nothing tells series apart"
    groups: Codes = np.zeros(len(stamps), np.int64)
    repeats = _repeats(groups, stamps)
    if repeats <= TOLERATED_REPEATS:
        named = [name for name in candidates if _looks_like_id(name)]
        if len(stamps) < rows and named:
            return (named[0],), "an id by its name; the beginning of the file cannot tell"
        return (), "no time stamp repeats, so this is one series"
    chosen: list[str] = []
    at_first = repeats
    while repeats > TOLERATED_REPEATS:
        left = [name for name in candidates if name not in chosen]
        tried = {name: _repeats(_combine(groups, _codes(keys, [name])), stamps) for name in left}
        # Candidates with the name of an id come first, and min() keeps the first of equals.
        best = min(left, key=lambda name: round(tried[name], 3), default=None)
        if best is None or not _worthwhile(repeats, tried[best]):
            break
        chosen.append(best)
        groups, repeats = _combine(groups, _codes(keys, [best])), tried[best]
    if not chosen:
        return (), f"{at_first:.0%} of the time stamps repeat, and no column tells the rows apart"
    verb = "tells" if len(chosen) == 1 else "tell"
    return tuple(chosen), f"{at_first:.0%} of the time stamps repeat; it {verb} them apart"


def _find_target(first: pa.Table, times: Sequence[str], ids: Sequence[str]) -> tuple[str, str]:
    """The column of numbers to forecast, and the reason."""
    numbers = [
        field.name
        for field in first.schema
        if peek.is_number(field.type) and field.name not in (*times, *ids)
    ]
    if not numbers:
        found = ", ".join(f"{field.name} ({field.type})" for field in first.schema)
        raise ValueError(f"found no column of numbers to forecast; the columns are {found}")
    if len(numbers) == 1:
        return numbers[0], "the only column of numbers left"
    by_name = min(numbers, key=lambda name: _name_rank(name, TARGET_NAMES, exact=True))
    if _name_rank(by_name, TARGET_NAMES, exact=True) < len(TARGET_NAMES):
        return by_name, f"by its name, among {len(numbers)} columns of numbers"
    varied = [
        name for name in numbers if not _constant(first[name]) and not _counts_up(first[name])
    ]
    parts = {name.lower() for name in varied} - set(peek.DATE_PARTS)
    varied = [name for name in varied if name.lower() in parts] or numbers
    return varied[0], f"the first of {len(varied)} columns of numbers that vary"


def _usual_step(stamps: npt.NDArray[Any], groups: Codes) -> np.timedelta64 | int | None:
    """The commonest positive difference between successive stamps of a series."""
    order = np.lexsort((stamps, groups))
    same = groups[order][1:] == groups[order][:-1]
    differences = np.diff(stamps[order].astype(np.int64))[same]
    differences = differences[differences > 0]
    if not len(differences):
        return None
    values, counts = np.unique(differences, return_counts=True)
    usual = int(values[np.argmax(counts)])
    if stamps.dtype.kind == "M":
        return np.timedelta64(usual, "us")
    return usual


def _worthwhile(repeats: float, then: float) -> bool:
    """Whether one more id explains enough: no repeats are left, or far fewer."""
    return then < repeats and (then <= TOLERATED_REPEATS or 1 - then >= 1.5 * (1 - repeats))


def _repeats(groups: Codes, stamps: Codes) -> float:
    """Share of rows whose (series, stamp) occurred before; 0 when all are distinct."""
    return 1 - len(np.unique(_combine(groups, stamps))) / len(stamps)


def _combine(left: Codes, right: Codes) -> Codes:
    """One small code for each pair of codes."""
    return _rank(left * (int(right.max()) + 1) + right)


def _codes(table: pa.Table, names: Sequence[str]) -> Codes:
    """A whole number for each row, equal for rows equal in all the named columns."""
    codes: Codes = np.zeros(table.num_rows, np.int64)
    for name in names:
        column = table[name].combine_chunks()
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        codes = _combine(codes, column.indices.fill_null(len(column.dictionary)).to_numpy() + 0)
    return codes


def _rank(values: npt.NDArray[Any]) -> Codes:
    """Dense ranks: equal values get equal, ordered, small numbers."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _name_rank(name: str, known: Sequence[str], *, exact: bool = False) -> int:
    """How early a name stands in a list; by its parts too (`sent_time` is a `time`)."""
    lowered = name.lower()
    words = lowered.replace("-", "_").replace(" ", "_").split("_")
    for rank, word in enumerate(known):
        if lowered == word or (not exact and word in words):
            return rank
    return len(known)


def _looks_like_id(name: str) -> bool:
    return _name_rank(name, ID_NAMES) < len(ID_NAMES) or name.lower().endswith("id")


def _constant(column: pa.ChunkedArray) -> bool:
    return len(column.drop_null().unique()) <= 1


def _counts_up(column: pa.ChunkedArray) -> bool:
    """Whether whole numbers rise by the same step in every row, as row numbers do."""
    if column.null_count or not pa.types.is_integer(column.type) or len(column) < 3:
        return False
    steps = np.diff(column.to_numpy().astype(np.int64))
    return bool(steps[0] > 0 and (steps == steps[0]).all())


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names)) + (" are" if len(names) > 1 else " is")
