"""Second pass: stretches of all sorted files become one sorted Parquet file, each a task."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.text import parse_json, plural
from windeck.columns.dtypes import Int64s
from windeck.columns.times import time_text
from windeck.io import filesystem
from windeck.io.writing import publish, read_batches, sha256, write_parquet
from windeck.preparation.destination import check_claim
from windeck.preparation.plan import PreparationPlan
from windeck.preparation.regular_rows import RegularRows, SlotKey
from windeck.preparation.sorted_files import SortedFile
from windeck.preparation.sorting import SortKeys, gathered
from windeck.table.grid import Grid

__all__ = ["FileLayout", "WrittenFile", "Splitter", "choose_splitters", "cuts_between_keys"]
__all__ += [
    "file_name",
    "file_result",
    "keys_before",
    "sorted_file_bounds",
    "training_mask",
    "write_file",
]


class Splitter(NamedTuple):
    """The first row of a file: its ids, its time, and its place in the sorted files."""

    ids: tuple[Any, ...]
    time: int
    file: int
    position: int


class WrittenFile(NamedTuple):
    """The description of a written file; JSON. `first` and `last`: ids and time of these rows.

    `added` are the rows of a grid that were not read, `grid` the fields of a `GridReport`: none
    without a grid, and of unfinished work of versions that did not count.
    """

    name: str
    rows: int
    nbytes: int
    sha256: str
    row_groups: int
    series: int
    duplicates: int
    training_rows: int
    first: list[Any]
    last: list[Any]
    added: int = 0
    grid: Sequence[Any] = ()


@dataclass(frozen=True)
class FileLayout:
    """All sorted files, the rows of each that a file takes, and how files are written.

    `before` has the last row before each file, of a grid. `claim` is the token of
    `Destination.claim`.
    """

    plan: PreparationPlan
    destination: str
    claim: str
    sorted_files: tuple[SortedFile, ...]
    bounds: tuple[tuple[int, ...], ...]
    kinds: Mapping[str, Any]
    group_rows: int
    row_bytes: int
    training: tuple[int | None, int | None] | None
    grid: Grid | None = None
    before: tuple[SlotKey | None, ...] = ()

    def rows(self, file: int) -> int:
        """Return the rows of a file before duplicates are dropped."""
        return sum(bounds[file + 1] - bounds[file] for bounds in self.bounds)

    def bytes_of_file(self, file: int) -> int:
        """Return the uncompressed bytes of a file, about."""
        return self.rows(file) * self.row_bytes

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.bounds[0]) - 1


def choose_splitters(
    sorted_files: Sequence[SortedFile],
    file_bytes: int,
    *,
    between_keys: bool,
    grid: Grid | None = None,
) -> list[Splitter]:
    """Return the first rows of the second and all later files, from sampled keys.

    Parameters
    ----------
    between_keys
        Whether rows of equal ids and time go to one file.
    grid
        Rows of one slot of it go to one file.
    """
    total = sum(sorted_file.nbytes for sorted_file in sorted_files)
    files = max(1, round(total / file_bytes))
    sampled = sorted(
        Splitter(tuple(ids), time or 0, number, position)
        for number, sorted_file in enumerate(sorted_files)
        for ids, time, position in zip(
            sorted_file.ids, sorted_file.times, sorted_file.places, strict=True
        )
    )
    chosen: list[Splitter] = []
    for file in range(1, files):
        one = sampled[len(sampled) * file // files]
        if between_keys:
            one = one._replace(file=0, position=0)
        if grid is not None:
            one = one._replace(time=grid.first_tick(one.time))
        if not chosen or chosen[-1] < one:
            chosen.append(one)
    return chosen


def sorted_file_bounds(
    plan: PreparationPlan, sorted_files: Sequence[SortedFile], number: int, at: Sequence[Splitter]
) -> list[int]:
    """Return the rows of a sorted file before each splitter, from 0 to its number of rows."""
    sorted_file, read = sorted_files[number], plan.options.read
    if not at:
        return [0, sorted_file.rows]
    batches = read_batches(
        sorted_file.path, sorted_file.batch_rows, 0, sorted_file.rows, read.index_columns
    )
    between_keys = cuts_between_keys(plan)
    if not read.index_columns:
        return [0, *(_of_equals(one, number, 0, sorted_file.rows) for one in at), sorted_file.rows]
    kinds = {name: batches[0].schema.field(name).type for name in read.index_columns}
    keys = SortKeys.of(gathered(batches, kinds, read, read.index_columns), read)
    del batches
    starts = keys.series_starts()
    ends = [*starts[1:].tolist(), sorted_file.rows]
    names = [keys.at(start) for start in starts.tolist()]
    found = [0]
    for one in at:
        series = bisect_left(names, one.ids)
        if series == len(names) or names[series] != one.ids:
            found.append(int(starts[series]) if series < len(names) else sorted_file.rows)
            continue
        low, high = int(starts[series]), ends[series]
        if keys.ticks is not None:
            ticks = keys.ticks[low:high]
            high = low + int(np.searchsorted(ticks, one.time, side="right"))
            low += int(np.searchsorted(ticks, one.time, side="left"))
        found.append(low if between_keys else _of_equals(one, number, low, high))
    return [*found, sorted_file.rows]


def keys_before(
    plan: PreparationPlan, sorted_files: Sequence[SortedFile], bounds: Sequence[Sequence[int]]
) -> tuple[SlotKey | None, ...]:
    """Return the last row of all sorted files before the rows of each file."""
    return tuple(
        max(
            (
                _key_at(plan, one, ends[number] - 1)
                for one, ends in zip(sorted_files, bounds, strict=True)
                if ends[number]
            ),
            default=None,
        )
        for number in range(len(bounds[0]) - 1)
    )


def _key_at(plan: PreparationPlan, sorted_file: SortedFile, row: int) -> SlotKey:
    read = plan.options.read
    (batch,) = read_batches(
        sorted_file.path, sorted_file.batch_rows, row, row + 1, read.index_columns
    )
    kinds = {name: batch.schema.field(name).type for name in read.index_columns}
    keys = SortKeys.of(gathered([batch], kinds, read, read.index_columns), read)
    assert keys.ticks is not None
    return SlotKey(keys.at(0), int(keys.ticks[0]))


def cuts_between_keys(plan: PreparationPlan) -> bool:
    """Return True if rows of equal ids and time are written to one file."""
    return plan.options.read.time is not None and plan.options.duplicates != "keep"


def _of_equals(splitter: Splitter, number: int, low: int, high: int) -> int:
    """Return the end of the rows before a splitter, of rows [low, high) with equal keys."""
    if number == splitter.file:
        return splitter.position
    return high if number < splitter.file else low


def file_name(number: int) -> str:
    """Return the name of a file of the result."""
    return f"part-{number:05}.parquet"


def _result_path(plan: PreparationPlan, number: int) -> str:
    return os.path.join(plan.folder, f"part-{number:05}.json")


def file_result(layout: FileLayout, number: int) -> WrittenFile | None:
    """Return what was written of a file, None if it is not done."""
    path = _result_path(layout.plan, number)
    if not filesystem.exists(path):
        return None
    written = WrittenFile(*parse_json(filesystem.read_bytes(path), repr(path)))
    target = filesystem.join(layout.destination, written.name)
    if not filesystem.is_file(target) or filesystem.size(target) != written.nbytes:
        return None
    return written


def write_file(layout: FileLayout, number: int) -> None:
    """Sort the rows of a file and write it. Nothing is done for a file that is complete."""
    if file_result(layout, number) is not None:
        return
    written = _write_local(layout, number)
    if filesystem.is_remote(layout.destination):
        check_claim(layout.destination, layout.claim)
        path = os.path.join(layout.plan.folder, written.name)
        publish(path, filesystem.join(layout.destination, written.name))
    filesystem.write_bytes(_result_path(layout.plan, number), json.dumps(written).encode())


def _write_local(layout: FileLayout, number: int) -> WrittenFile:
    """Sort the rows of a file and write it, for a URL next to the sorted files."""
    plan, read = layout.plan, layout.plan.options.read
    batches: list[Any] = []
    for sorted_file, bounds in zip(layout.sorted_files, layout.bounds, strict=True):
        start, stop = bounds[number], bounds[number + 1]
        if start < stop:
            batches += read_batches(sorted_file.path, sorted_file.batch_rows, start, stop)
    rows = gathered(batches, layout.kinds, read, plan.wanted)
    del batches
    unsorted = SortKeys.of(rows, read)
    order = unsorted.order()
    keys = unsorted.take(order.to_numpy())
    del unsorted
    if layout.grid is not None:
        return _write_regular(layout, number, rows, order.to_numpy(), keys)
    kept = _kept(layout, keys, rows)
    if kept is not None:
        order, keys = order.take(pa.array(kept)), keys.take(kept)
    path = _local_path(layout, number)
    groups = -(-keys.rows // layout.group_rows)
    schema = pa.schema(list(layout.kinds.items()))
    nbytes = write_parquet(
        path, schema, _row_groups(rows, order, schema, groups), plan.options.compression
    )
    return WrittenFile(
        file_name(number),
        keys.rows,
        nbytes,
        sha256(path),
        groups,
        len(keys.series_starts()),
        rows.num_rows - keys.rows,
        _training_rows(keys, layout.training),
        _key(keys, 0),
        _key(keys, keys.rows - 1),
    )


def _local_path(layout: FileLayout, number: int) -> str:
    is_remote = filesystem.is_remote(layout.destination)
    folder = layout.plan.folder if is_remote else layout.destination
    return os.path.join(folder, file_name(number))


def _write_regular(
    layout: FileLayout, number: int, rows: Any, order: Any, keys: SortKeys
) -> WrittenFile:
    """Write the sorted rows of a file on a grid."""
    options, grid = layout.plan.options, layout.grid
    assert grid is not None
    assert options.grid is not None
    read_rows = sum(one.rows for one in layout.sorted_files)
    regular = RegularRows(
        rows,
        order.astype(np.int64),
        keys,
        grid,
        options.read,
        layout.before[number],
        options.duplicates,
        options.grid.most_rows(read_rows),
    )
    training = groups = 0
    schema = pa.schema(list(layout.kinds.items()))

    def written() -> Iterator[Any]:
        nonlocal training, groups
        for group, ticks in regular.groups(layout.group_rows):
            inside = layout.training
            training += len(ticks) if inside is None else int(training_mask(ticks, inside).sum())
            groups += 1
            columns = map(_final, group.columns, schema.types)
            yield pa.Table.from_arrays(list(columns), schema=schema)

    path = _local_path(layout, number)
    nbytes = write_parquet(path, schema, written(), options.compression)
    first, last = regular.ends()
    return WrittenFile(
        file_name(number),
        regular.total,
        nbytes,
        sha256(path),
        groups,
        len(keys.series_starts()),
        keys.rows - regular.kept,
        training,
        first,
        last,
        regular.total - regular.kept,
        astuple(regular.report()),
    )


def _key(keys: SortKeys, row: int) -> list[Any]:
    return [*keys.at(row), *(() if keys.ticks is None else (int(keys.ticks[row]),))]


def _kept(layout: FileLayout, keys: SortKeys, rows: Any) -> Int64s | None:
    """Return the sorted rows to write, None for all; raise for duplicates that are not allowed."""
    keep = layout.plan.options.duplicates
    repeated = keys.repeated()
    if keep == "keep" or not repeated.any():
        return None
    if keep == "error":
        read = layout.plan.options.read
        row = int(np.argmax(repeated))
        where = "there are" if not read.ids else f"series {_shown(keys.at(row))} has"
        more = int(repeated.sum()) - 1
        others = f", and {plural(more, 'more row')} like these" if more else ""
        time = _shown_time(rows.column(read.time), keys, row)
        raise ValueError(
            f"{where} several rows with {read.time} {time}{others}; expected one row for each "
            "time (local times repeat when clocks are set back: write them in UTC), or "
            "duplicates='first', 'last' or 'keep'"
        )
    dropped = repeated if keep == "first" else np.append(repeated[1:], False)
    return np.flatnonzero(~dropped).astype(np.int64)


def _shown(ids: tuple[Any, ...]) -> str:
    return repr(ids[0] if len(ids) == 1 else ids)


def _shown_time(column: Any, keys: SortKeys, row: int) -> str:
    assert keys.ticks is not None
    tick, kind = int(keys.ticks[row]), column.type
    if pa.types.is_integer(kind):
        return str(tick)
    return time_text(np.datetime64(tick, kind.unit if pa.types.is_timestamp(kind) else "D"))


def _row_groups(rows: Any, order: Any, schema: Any, groups: int) -> Iterator[Any]:
    """Yield the sorted rows in groups of about equal size, in the types that are written."""
    count = len(order)
    for group in range(groups):
        start, stop = count * group // groups, count * (group + 1) // groups
        taken = rows.take(order[start:stop])
        columns = [_final(taken.column(place), field.type) for place, field in enumerate(schema)]
        yield pa.Table.from_arrays(columns, schema=schema)


def _final(array: Any, kind: Any) -> Any:
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.dictionary_encode() if pa.types.is_dictionary(kind) else array.cast(kind)


def _training_rows(keys: SortKeys, training: tuple[int | None, int | None] | None) -> int:
    if training is None:
        return keys.rows
    return int(np.count_nonzero(training_mask(keys.ticks, training)))


def training_mask(ticks: Any, training: tuple[int | None, int | None]) -> Any:
    """Return True for each time in the range [start, stop), of which either may be None."""
    start, stop = training
    inside = np.ones(len(ticks), dtype=np.bool_)
    if start is not None:
        inside &= ticks >= start
    if stop is not None:
        inside &= ticks < stop
    return inside
