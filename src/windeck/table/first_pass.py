"""The first pass over a streamed table: its series and the order of their rows.

Columns of ids and time are read once, batch by batch. Each batch is summarized on its own, by
several threads, and the summaries are merged in order. Memory is O(series) and a few batches.
The result can be kept in a cache, for files that have not changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from windeck._util.fingerprints import digest
from windeck._util.parallel import parallel_map
from windeck._util.progress import Progress, report_progress
from windeck._util.text import parse_json
from windeck.columns.dtypes import Int64s
from windeck.io.arrow import open_reader
from windeck.io.cache import ObjectCache
from windeck.io.conversion import (
    decode_numbers,
    is_categorical,
    take_rows,
    time_zone,
    to_dictionary,
    values_of,
)
from windeck.io.row_reader import PORTION_BYTES, RowReader
from windeck.table.construction import SeriesLayout
from windeck.table.local_times import TimeSteps
from windeck.table.timestamps import OrderReport, longest_steps

__all__ = ["FirstPass", "scan_series"]

#: Different steps of one series that are counted before its usual step is decided.
COUNTED_STEPS = 1 << 20
#: Portions of remote files for each thread, at least, if there are as many parts.
PORTIONS = 2
#: Format of stored results. A change of what is found needs another one.
_FORMAT = "windeck first pass 1"
#: Columns of stored results: first row of each series, counts of steps, and the usual step.
_COUNTS = ("first", "duplicates", "irregular", "breaks", "step")
_LOCAL = "local times, which go back when clocks are set back, have to be written in UTC"
_CURE = "`windeck prepare SRC DEST` writes files that are sorted by series and time"


class FirstPass(NamedTuple):
    """Series, a digest of the timestamps (None without), and the names of categories by column."""

    layout: SeriesLayout
    times: str | None
    categories: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Batch:
    """Summary of a batch: stretches of rows of equal ids, and the steps of time in each."""

    row: int
    rows: int
    starts: Int64s
    names: list[Any]
    texts: dict[str, list[Any]]
    first: Int64s
    last: Int64s
    #: Rows of steps back in time.
    backward: Int64s
    #: Steps of stretches: number of the stretch, step, and how often.
    steps: tuple[Int64s, Int64s, Int64s]
    digest: bytes = b""


def scan_series(
    reader: RowReader,
    ids: Sequence[str],
    time: str | None,
    categories: Sequence[str],
    progress: Progress = None,
    cache: ObjectCache | None = None,
) -> FirstPass:
    """Read ids, time and categories of all rows once.

    Parameters
    ----------
    categories
        String columns whose categories are not known.
    cache
        Keeps the result, so that nothing is read for the same files and columns again.

    Raises
    ------
    ValueError
        A series is not contiguous or not sorted by time, or an id or a timestamp is missing.
    """
    names = (*ids, *(() if time is None else (time,)), *categories)
    rows = reader.rows
    if not names:
        found = _Series(None, TimeSteps())
        found.add_rows(rows)
        return FirstPass(found.layout(), None, {})
    scan = partial(_scan, reader, tuple(ids), time, tuple(categories), names, progress)
    if cache is None:
        return scan()
    key = _key(reader, ids, time, categories)
    decode = partial(_decode, reader, len(ids), time, tuple(categories))
    result: FirstPass = cache.get_result(key, scan, partial(_encode, len(ids)), decode)
    return result


def _unit(reader: RowReader, time: str | None) -> str | None:
    """Return the unit of the steps of time."""
    if time is None or reader.forms[time].dtype.kind != "M":
        return None
    step, count = np.datetime_data(reader.forms[time].dtype)
    return str(step) if count == 1 else f"{count}{step}"


def _rule(reader: RowReader, time: str | None) -> TimeSteps:
    """Return how steps of time are counted."""
    if time is None:
        return TimeSteps()
    form = reader.forms[time]
    return TimeSteps(str(form.dtype), time_zone(form.kind))


def _scan(
    reader: RowReader,
    ids: tuple[str, ...],
    time: str | None,
    categories: tuple[str, ...],
    names: tuple[str, ...],
    progress: Progress,
) -> FirstPass:
    merged, state = (
        _Series(_unit(reader, time), _rule(reader, time)),
        hashlib.blake2b(digest_size=16),
    )
    texts: dict[str, dict[str, None]] = {name: {} for name in categories}
    portions = _portions(reader, names)
    work = partial(_summarize, reader, ids, time, categories, names)
    parts = len(reader.part_offsets) - 1
    with report_progress(progress, "reading ids and time", parts) as advance:
        read = parallel_map(portions, work, threads=reader.threads)
        for portion, summaries in zip(portions, read, strict=True):
            for batch in summaries:
                merged.add(batch, time is not None)
                state.update(batch.digest)
                for name, words in batch.texts.items():
                    texts[name].update(dict.fromkeys(words))
            advance(portion.parts)
    known = {name: tuple(words) for name, words in texts.items()}
    return FirstPass(merged.layout(), None if time is None else state.hexdigest(), known)


class _FileRows(NamedTuple):
    """Rows that are read at once, and the number and the bytes of their parts, as stored."""

    rows: tuple[int, int]
    parts: int
    size: int


def _portions(reader: RowReader, names: Sequence[str]) -> list[_FileRows]:
    """Return the portions of rows to read: parts, of remote files several small ones at once.

    A remote file is compared with its version before and after each portion.
    """
    edges = reader.part_offsets
    sizes = np.concatenate([[0], np.cumsum(reader.stored_parts(names)[0])]).astype(np.int64)
    most = max((len(edges) - 1) // (PORTIONS * reader.threads), 1) if reader.is_remote else 1
    found, first = [], 0
    while first < len(edges) - 1:
        small = int(np.searchsorted(sizes, sizes[first] + PORTION_BYTES, side="right")) - 1
        last = max(min(first + most, small), first + 1)
        rows = (int(edges[first]), int(edges[last]))
        found.append(_FileRows(rows, last - first, int(sizes[last] - sizes[first])))
        first = last
    return found


def _key(reader: RowReader, ids: Sequence[str], time: str | None, categories: Sequence[str]) -> str:
    """Return a key of all that the result depends on.

    Files count by their names below the folder that they have in common, sizes, times of change,
    ETags and metadata.
    """
    parts = [stored.file.path.split("/") for stored in reader.files]
    folders = zip(*(path[:-1] for path in parts), strict=False)
    common = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    files = [
        [os.fsencode("/".join(path[common:])), *stored[1:]]
        for path, stored in zip(parts, reader.files, strict=True)
    ]
    names = (*ids, *(() if time is None else (time,)), *categories)
    forms = [[str(reader.forms[name].kind), str(reader.forms[name].dtype)] for name in names]
    rows = (reader.first, reader.rows)
    return digest(_FORMAT, files, rows, list(ids), time, list(categories), forms)


def _encode(ids: int, found: FirstPass) -> Any:
    """Return a result as an Arrow IPC file: a row for each series."""
    layout, report = found.layout, found.layout.report
    parts = [layout.names] if ids == 1 else list(zip(*layout.names, strict=True)) if ids else []
    columns = {
        f"id{number}": pa.array(part, _kind_of_names(part)) for number, part in enumerate(parts)
    }
    counts = (report.duplicates, report.irregular, report.breaks, report.steps)
    columns |= dict(zip(_COUNTS, map(pa.array, (layout.offsets[:-1], *counts)), strict=True))
    other: dict[str, Any] = {"rows": int(layout.offsets[-1]), "categories": found.categories}
    other |= {"times": found.times, "span": report.span}
    table = pa.table(columns).replace_schema_metadata({_FORMAT: json.dumps(other)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _kind_of_names(names: Sequence[Any]) -> Any:
    if isinstance(names[0], str):
        return pa.large_string()
    return pa.int64() if min(names) < 0 else pa.uint64()


def _decode(
    reader: RowReader, ids: int, time: str | None, categories: tuple[str, ...], contents: bytes
) -> FirstPass | None:
    """Return a result from `_encode`; None if the reader's rows cannot have it."""
    try:
        table = open_reader(pa.BufferReader(contents)).read_all()
        table.validate(full=True)
        other = parse_json(table.schema.metadata[_FORMAT.encode()], "a stored result")
        times = other["times"]
        words = {name: tuple(other["categories"][name]) for name in categories}
        parts = [table.column(f"id{number}").to_pylist() for number in range(ids)]
        columns = [table.column(name) for name in _COUNTS]
        if other["rows"] != reader.rows or any(column.null_count for column in columns):
            return None
        first, *counts = (np.array(column.cast(pa.int64()).to_numpy()) for column in columns)
        low, high = map(int, other["span"] or (0, 0))
    except (KeyError, TypeError, ValueError):  # Errors of Arrow are ValueErrors.
        return None
    offsets = np.append(first, reader.rows)
    whole = offsets[0] == 0 and bool((np.diff(offsets) > 0).all())
    names = tuple(parts[0] if ids == 1 else zip(*parts, strict=True) if ids else range(len(first)))
    if not whole or len(set(names)) != len(first) or isinstance(times, str) is (time is None):
        return None
    span = None if time is None else (low, high)
    return FirstPass(_layout(offsets, names, counts, _unit(reader, time), span), times, words)


def _layout(
    offsets: Int64s,
    names: tuple[Any, ...],
    counts: Sequence[Int64s],
    unit: str | None,
    span: tuple[int, int] | None,
) -> SeriesLayout:
    """Return series with counts of duplicates, irregular steps, breaks, and usual steps."""
    duplicates, irregular, breaks, steps = counts
    none = np.zeros(len(names), dtype=np.int64)
    found = duplicates, duplicates, irregular, breaks, steps
    report = OrderReport(False, (), none, *found, unit, span)
    return SeriesLayout(offsets, names, report)


def _summarize(
    reader: RowReader,
    ids: tuple[str, ...],
    time: str | None,
    categories: tuple[str, ...],
    names: tuple[str, ...],
    portion: _FileRows,
) -> list[_Batch]:
    """Return the summaries of the batches of a portion."""
    with reader.memory(portion.size):
        return list(_summaries(reader, ids, time, categories, names, portion.rows))


def _summaries(
    reader: RowReader,
    ids: tuple[str, ...],
    time: str | None,
    categories: tuple[str, ...],
    names: tuple[str, ...],
    rows: tuple[int, int],
) -> Iterator[_Batch]:
    for row, arrays in reader.scan(names, *rows):
        by_name = dict(zip(names, arrays, strict=True))
        keys = [by_name[name] for name in ids]
        texts = {name: to_dictionary(by_name[name]).dictionary.to_pylist() for name in categories}
        ticks = None if time is None else _ticks(reader, time, by_name[time], row)
        rule = _rule(reader, time)
        yield _batch(row, len(arrays[0]), ids, keys, texts, ticks, rule)


def _batch(
    row: int,
    rows: int,
    ids: tuple[str, ...],
    keys: list[Any],
    texts: dict[str, list[Any]],
    ticks: Int64s | None,
    rule: TimeSteps,
) -> _Batch:
    changed = np.zeros(rows, dtype=np.bool_)
    changed[:1] = True
    decoded = [_id_values(name, array, row) for name, array in zip(ids, keys, strict=True)]
    for _, values in decoded:
        changed[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(changed).astype(np.int64)
    parts = [take_rows(array, starts).to_pylist() for array, _ in decoded]
    names = (
        parts[0]
        if len(parts) == 1
        else list(zip(*parts, strict=True))
        if parts
        else [None] * len(starts)
    )
    none = np.zeros(0, dtype=np.int64)
    if ticks is None or not rows:
        return _Batch(row, rows, starts, names, texts, none, none, none, (none, none, none))
    steps = rule.between(ticks[:-1], ticks[1:])
    inside = ~changed[1:]
    backward = np.flatnonzero(inside & (ticks[1:] < ticks[:-1])) + row + 1
    stretch = np.cumsum(changed)[1:][inside] - 1
    last = ticks[np.append(starts[1:], rows) - 1]
    digest = hashlib.blake2b(ticks.tobytes(), digest_size=16).digest()
    counted = _count_steps(stretch.astype(np.int64), steps[inside])
    return _Batch(row, rows, starts, names, texts, ticks[starts], last, backward, counted, digest)


def _id_values(name: str, array: Any, row: int) -> tuple[Any, Any]:
    """Return an id column with plain values, and numbers that differ where ids do."""
    array = decode_numbers(array)
    if is_categorical(array.type):
        array = to_dictionary(array)
    elif pat.is_null(array.type):
        raise ValueError(f"id column {name!r} is null in row {row}; expected an id in every row")
    if array.null_count:
        at = row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"id column {name!r} is null in row {at}; expected an id in every row")
    return array, values_of(array.indices if pat.is_dictionary(array.type) else array)


def _ticks(reader: RowReader, time: str, array: Any, row: int) -> Int64s:
    """Return timestamps as int64; ValueError if one is missing."""
    builder = reader.builder(time, len(array))
    builder.append(array)
    column = builder.finish()
    stamps = column.values
    missing = ~column.observed()
    if stamps.dtype.kind == "M":
        missing |= np.isnat(stamps)
    if missing.any():
        raise ValueError(
            f"timestamp column {time!r} is missing in row {row + int(np.argmax(missing))}; "
            "expected a timestamp in every row"
        )
    return np.asarray(stamps).view(np.int64)


def _count_steps(stretch: Int64s, steps: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the different steps of each stretch, and how often each is."""
    if len(steps) and (steps == steps[0]).all():
        numbers, counts = np.unique(stretch, return_counts=True)
        return numbers, np.full(len(numbers), steps[0]), counts.astype(np.int64)
    order = np.lexsort((steps, stretch))
    stretch, steps = stretch[order], steps[order]
    first = np.ones(len(stretch), dtype=np.bool_)
    first[1:] = (stretch[1:] != stretch[:-1]) | (steps[1:] != steps[:-1])
    places = np.flatnonzero(first)
    return stretch[places], steps[places], np.diff(np.append(places, len(stretch))).astype(np.int64)


@lru_cache
def _longest_step(usual: int, dtype: str) -> int:
    """Return `longest_steps` of one step; most series of a table have the same one."""
    return int(longest_steps(np.array([usual]), dtype)[0])


@dataclass
class _Steps:
    """Counts of the steps of one series of time stamps of a dtype."""

    dtype: str
    counts: dict[int, int] = field(default_factory=dict)
    usual: int | None = None
    longest: int = 0
    duplicates: int = 0
    irregular: int = 0
    breaks: int = 0

    def add(self, step: int, count: int) -> None:
        self.duplicates += count if step == 0 else 0
        if self.usual is not None:
            self.irregular += count if step != self.usual else 0
            # Rows ascend: a difference beyond int64 has wrapped.
            self.breaks += count if step % (1 << 64) > self.longest > 0 else 0
            return
        self.counts[step] = self.counts.get(step, 0) + count
        if len(self.counts) > COUNTED_STEPS:
            self.settle()

    def settle(self) -> int:
        """Decide the usual step: the most frequent positive step, the smallest of several."""
        if self.usual is None:
            positive = [(-count, step) for step, count in self.counts.items() if 0 < step < 1 << 63]
            counts, self.counts, self.usual = self.counts, {}, min(positive, default=(0, 0))[1]
            self.longest = _longest_step(self.usual, self.dtype)
            self.duplicates = 0
            for step, count in counts.items():
                self.add(step, count)
        return self.usual


class _Series:
    """The series found so far; the last one may go on."""

    def __init__(self, unit: str | None, rule: TimeSteps) -> None:
        self._unit, self._rule = unit, rule
        self._seen: dict[Any, int] = {}
        self._starts: list[int] = []
        self._rows = 0
        self._last_tick = 0
        self._span: tuple[int, int] | None = None
        self._open = _Steps(rule.dtype)
        #: Duplicates, irregular steps, breaks and the usual step of each closed series.
        self._closed: list[tuple[int, int, int, int]] = []

    def add_rows(self, rows: int) -> None:
        """Add rows of a table without ids and time: one series."""
        if rows:
            self._seen[None] = 0
            self._starts.append(0)
        self._rows += rows

    def add(self, batch: _Batch, timed: bool) -> None:
        """Add the rows of a batch."""
        stretch, step, count = batch.steps
        borders = np.searchsorted(stretch, np.arange(len(batch.starts) + 1)).tolist()
        backward = batch.backward.tolist()
        for number, (start, name) in enumerate(
            zip(batch.starts.tolist(), batch.names, strict=True)
        ):
            continues = bool(self._starts) and self._seen.get(name) == len(self._starts) - 1
            if not continues:
                self._begin(name, batch.row + start)
            if not timed:
                continue
            first = int(batch.first[number])
            if continues:
                if first < self._last_tick:
                    backward.append(batch.row + start)
                else:
                    self._open.add(self._step_to(first), 1)
            for place in range(borders[number], borders[number + 1]):
                self._open.add(int(step[place]), int(count[place]))
            last = self._last_tick = int(batch.last[number])
            low, high = self._span or (first, last)
            self._span = (min(low, first), max(high, last))
        self._rows += batch.rows
        if backward:
            row = min(backward)
            series = int(np.searchsorted(self._starts, row, side="right")) - 1
            name = next(one for one, at in self._seen.items() if at == series)
            of_series = "the time" if name is None else f"series {name!r}"
            local = "" if self._unit in (None, "D") else f"; {_LOCAL}"
            raise ValueError(
                f"{of_series} goes back in row {row}; expected rows sorted by time, as a streamed "
                f"table is never sorted: {_CURE}{local}"
            )

    def _step_to(self, tick: int) -> int:
        """Return the step from the last row to a time stamp."""
        return int(self._rule.between(np.array([self._last_tick]), np.array([tick]))[0])

    def _begin(self, name: Any, row: int) -> None:
        if name in self._seen:
            before = self._starts[self._seen[name]]
            raise ValueError(
                f"series {name!r} is not contiguous: it has row {before} and, after other series, "
                f"row {row}; expected files sorted by series, as a streamed table is never sorted: "
                f"{_CURE}"
            )
        self._close()
        self._seen[name] = len(self._starts)
        self._starts.append(row)

    def _close(self) -> None:
        if self._starts:
            steps, usual = self._open, self._open.settle()
            self._closed.append((steps.duplicates, steps.irregular, steps.breaks, usual))
        self._open = _Steps(self._rule.dtype)

    def layout(self) -> SeriesLayout:
        """Return offsets, names and report, after the last batch."""
        self._close()
        series = len(self._starts)
        offsets = np.array([*self._starts, self._rows], dtype=np.int64)
        names = tuple(range(series) if None in self._seen else self._seen)
        found = np.array(self._closed, dtype=np.int64).reshape(series, 4)
        counts = [np.ascontiguousarray(column) for column in found.T]
        return _layout(offsets, names, counts, self._unit, self._span)
