"""Second pass: stretches of all sorted runs become one sorted Parquet file, each a task."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.text import parse_json, plural
from windeck.columns.dtypes import Int64s
from windeck.io import filesystem
from windeck.io.writing import publish, read_batches, sha256, write_parquet
from windeck.preparation.destination import check_claim
from windeck.preparation.plan import PreparationPlan
from windeck.preparation.runs import SortedRun
from windeck.preparation.sorting import SortKeys, gathered

__all__ = ["FileLayout", "WrittenPart", "Splitter", "choose_splitters", "cuts_between_keys"]
__all__ += ["part_name", "part_result", "run_bounds", "training_mask", "write_part"]


class Splitter(NamedTuple):
    """The first row of a file: its ids, its time, and its place in the runs."""

    ids: tuple[Any, ...]
    time: int
    run: int
    position: int


class WrittenPart(NamedTuple):
    """The description of a written file; JSON. `first` and `last`: ids and time of these rows."""

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


@dataclass(frozen=True)
class FileLayout:
    """All runs, the rows of each that a file takes, and how files are written.

    `claim` is the token of `Destination.claim`.
    """

    plan: PreparationPlan
    destination: str
    claim: str
    runs: tuple[SortedRun, ...]
    bounds: tuple[tuple[int, ...], ...]
    kinds: Mapping[str, Any]
    group_rows: int
    row_bytes: int
    training: tuple[int | None, int | None] | None

    def rows(self, part: int) -> int:
        """Return the rows of a file before duplicates are dropped."""
        return sum(bounds[part + 1] - bounds[part] for bounds in self.bounds)

    def part_bytes(self, part: int) -> int:
        """Return the uncompressed bytes of a file, about."""
        return self.rows(part) * self.row_bytes

    @property
    def parts(self) -> int:
        """Number of files."""
        return len(self.bounds[0]) - 1


def choose_splitters(
    runs: Sequence[SortedRun], file_bytes: int, *, between_keys: bool
) -> list[Splitter]:
    """Return the first rows of the second and all later files, from the sampled keys of the runs.

    Parameters
    ----------
    between_keys
        Whether rows of equal ids and time go to one file.
    """
    total = sum(run.nbytes for run in runs)
    files = max(1, round(total / file_bytes))
    sampled = sorted(
        Splitter(tuple(ids), time or 0, number, position)
        for number, run in enumerate(runs)
        for ids, time, position in zip(run.ids, run.times, run.positions, strict=True)
    )
    chosen: list[Splitter] = []
    for file in range(1, files):
        one = sampled[len(sampled) * file // files]
        if between_keys:
            one = one._replace(run=0, position=0)
        if not chosen or chosen[-1] < one:
            chosen.append(one)
    return chosen


def run_bounds(
    plan: PreparationPlan, runs: Sequence[SortedRun], number: int, at: Sequence[Splitter]
) -> list[int]:
    """Return the rows of a run before each splitter, between 0 and its number of rows."""
    run, read = runs[number], plan.options.read
    if not at:
        return [0, run.rows]
    batches = read_batches(run.path, run.batch_rows, 0, run.rows, read.index_columns)
    between_keys = cuts_between_keys(plan)
    if not read.index_columns:
        return [0, *(_of_equals(one, number, 0, run.rows) for one in at), run.rows]
    kinds = {name: batches[0].schema.field(name).type for name in read.index_columns}
    keys = SortKeys.of(gathered(batches, kinds, read, read.index_columns), read)
    del batches
    starts = keys.series_starts()
    ends = [*starts[1:].tolist(), run.rows]
    names = [keys.at(start) for start in starts.tolist()]
    found = [0]
    for one in at:
        series = bisect_left(names, one.ids)
        if series == len(names) or names[series] != one.ids:
            found.append(int(starts[series]) if series < len(names) else run.rows)
            continue
        low, high = int(starts[series]), ends[series]
        if keys.ticks is not None:
            ticks = keys.ticks[low:high]
            high = low + int(np.searchsorted(ticks, one.time, side="right"))
            low += int(np.searchsorted(ticks, one.time, side="left"))
        found.append(low if between_keys else _of_equals(one, number, low, high))
    return [*found, run.rows]


def cuts_between_keys(plan: PreparationPlan) -> bool:
    """Return True if rows of equal ids and time are written to one file."""
    return plan.options.read.time is not None and plan.options.duplicates != "keep"


def _of_equals(splitter: Splitter, run: int, low: int, high: int) -> int:
    """Return the end of the rows before a splitter, of rows [low, high) with equal keys."""
    if run == splitter.run:
        return splitter.position
    return high if run < splitter.run else low


def part_name(number: int) -> str:
    """Return the name of a file of the result."""
    return f"part-{number:05}.parquet"


def _result_path(plan: PreparationPlan, number: int) -> str:
    return os.path.join(plan.folder, f"part-{number:05}.json")


def part_result(layout: FileLayout, number: int) -> WrittenPart | None:
    """Return what was written of a file, None if it is not done."""
    path = _result_path(layout.plan, number)
    if not filesystem.exists(path):
        return None
    part = WrittenPart(*parse_json(filesystem.read_bytes(path), repr(path)))
    written = filesystem.join(layout.destination, part.name)
    if not filesystem.is_file(written) or filesystem.size(written) != part.nbytes:
        return None
    return part


def write_part(layout: FileLayout, number: int) -> None:
    """Sort the rows of a file and write it. Nothing is done for a file that is complete."""
    if part_result(layout, number) is not None:
        return
    part = _write_local(layout, number)
    if filesystem.is_remote(layout.destination):
        check_claim(layout.destination, layout.claim)
        path = os.path.join(layout.plan.folder, part.name)
        publish(path, filesystem.join(layout.destination, part.name))
    filesystem.write_bytes(_result_path(layout.plan, number), json.dumps(part).encode())


def _write_local(layout: FileLayout, number: int) -> WrittenPart:
    """Sort the rows of a file and write it, for a URL beside the sorted runs."""
    plan, read = layout.plan, layout.plan.options.read
    batches: list[Any] = []
    for run, bounds in zip(layout.runs, layout.bounds, strict=True):
        start, stop = bounds[number], bounds[number + 1]
        if start < stop:
            batches += read_batches(run.path, run.batch_rows, start, stop)
    rows = gathered(batches, layout.kinds, read, plan.wanted)
    del batches
    unsorted = SortKeys.of(rows, read)
    order = unsorted.order()
    keys = unsorted.take(order.to_numpy())
    del unsorted
    kept = _kept(layout, keys, rows)
    if kept is not None:
        order, keys = order.take(pa.array(kept)), keys.take(kept)
    name = part_name(number)
    is_remote = filesystem.is_remote(layout.destination)
    path = os.path.join(plan.folder if is_remote else layout.destination, name)
    groups = -(-keys.rows // layout.group_rows)
    schema = pa.schema(list(layout.kinds.items()))
    nbytes = write_parquet(
        path, schema, _row_groups(rows, order, schema, groups), plan.options.compression
    )
    return WrittenPart(
        name,
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
    return str(np.datetime64(tick, kind.unit if pa.types.is_timestamp(kind) else "D"))


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
