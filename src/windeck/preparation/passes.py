"""The two passes of a preparation, its layout between them, and its manifest after them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_rates
from windeck._util.text import format_bytes, plural
from windeck.columns.times import parse_time, time_tick
from windeck.io import filesystem
from windeck.preparation.destination import check_claim
from windeck.preparation.engines import all_cores, run_tasks
from windeck.preparation.manifest import Prepared, PreparedFile, PreparedSource
from windeck.preparation.plan import PreparationPlan, final_types
from windeck.preparation.prepared_files import (
    FileLayout,
    WrittenFile,
    choose_splitters,
    cuts_between_keys,
    file_name,
    file_result,
    keys_before,
    sorted_file_bounds,
    write_file,
)
from windeck.preparation.scalers import fit_scalers
from windeck.preparation.sorted_files import (
    SORTED_FILE_SLACK,
    SortedFile,
    TaskResult,
    read_task,
    task_result,
)
from windeck.table.timestamps import GridReport
from windeck.windows.scaler import Scaler

__all__ = ["WorkLimits", "run_passes"]

#: What a process takes beside rows, after its imports: code, stacks, and memory that the allocator
#: of Arrow keeps. Measured: 70 to 100 MB.
_PROCESS_BYTES = 104 << 20


@dataclass(frozen=True)
class WorkLimits:
    """The engine of a preparation, its threads and its memory."""

    engine: str
    threads: int | None
    memory: float

    @property
    def threads_here(self) -> int:
        """Threads of this process for work that is not given to the engine."""
        return min(self.threads or all_cores(), all_cores())

    def slots(self, plan: PreparationPlan, rows_bytes: float) -> int | None:
        """Return how many workers of `rows_bytes` of rows fit; None for all that Ray has.

        Raises
        ------
        MemoryError
            One does not.
        """
        # The rows of a worker, a copy of a column or of a row group, the order, buffers of files.
        worker = int(2.5 * rows_bytes + 2 * plan.options.row_group_bytes) + (16 << 20)
        if _PROCESS_BYTES + worker > self.memory:
            raise MemoryError(
                f"one worker takes about {format_bytes(_PROCESS_BYTES + worker)}, more than "
                f"memory_budget={format_bytes(self.memory)}; pass a smaller file_bytes= than "
                f"{plan.file_bytes}"
            )
        if self.engine == "ray":
            return self.threads
        return max(
            1, min(self.threads or all_cores(), int((self.memory - _PROCESS_BYTES) // worker))
        )


def run_passes(
    plan: PreparationPlan, folder: str, claim: str, limits: WorkLimits, progress: Progress
) -> Prepared:
    """Read and sort what is not done yet, write the manifest, and return it.

    `claim` is the token of `Destination.claim`.
    """
    slots = limits.slots(plan, SORTED_FILE_SLACK * plan.file_bytes)
    count = len(plan.tasks)
    with report_rates(progress, "reading", sum(_read_bytes(plan))) as advance:

        def read_one(number: int) -> None:
            found = task_result(plan, number)
            assert found is not None
            advance(sum(found.rows.values()), _read_bytes(plan)[number])

        run_tasks(limits.engine, read_task, plan, count, slots, read_one)
    layout, results = _layout(plan, folder, claim, limits.threads_here)
    largest = max(map(layout.bytes_of_file, range(layout.files)), default=0)
    slots = limits.slots(plan, largest)
    total = sum(map(layout.bytes_of_file, range(layout.files)))
    with report_rates(progress, "sorting", total) as advance:

        def file_done(number: int) -> None:
            advance(layout.rows(number), layout.bytes_of_file(number))

        run_tasks(limits.engine, write_file, layout, layout.files, slots, file_done)
    written = run_in_threads(
        lambda number: file_result(layout, number), layout.files, limits.threads_here
    )
    assert all(file is not None for file in written)
    files = [file for file in written if file is not None]
    _remove_others(folder, len(files))
    done = _manifest(layout, results, files, fit_scalers(layout, files, limits.memory))
    check_claim(folder, claim)
    done.write()
    return done


def _read_bytes(plan: PreparationPlan) -> list[int]:
    """Return the bytes of source files that each task reads, about."""
    found = []
    for task in plan.tasks:
        nbytes = 0.0
        for span in task:
            source = plan.sources[span.source]
            share = 1.0 if span.stop is None else (span.stop - span.start) / max(source.rows, 1)
            nbytes += source.size * share
        found.append(int(nbytes))
    return found


def _layout(
    plan: PreparationPlan, folder: str, claim: str, workers: int
) -> tuple[FileLayout, list[TaskResult]]:
    """Return how the rows of all sorted files are divided into files."""
    results = []
    for number in range(len(plan.tasks)):
        result = task_result(plan, number)
        assert result is not None
        results.append(result)
    bad = {source for result in results for source in result.bad}
    sorted_files: list[SortedFile] = []
    schemas: dict[int, Any] = {}
    for task, result in zip(plan.tasks, results, strict=True):
        schemas.update(result.schemas)
        # Of a large file that is bad in some rows, the other rows are left out too.
        if len(task) > 1 or task[0].source not in bad:
            sorted_files += result.sorted_files
    files = [
        replace(source, schema=schemas[number])
        for number, source in enumerate(plan.sources)
        if number in schemas and number not in bad
    ]
    if not sum(sorted_file.rows for sorted_file in sorted_files):
        raise ValueError(f"{', '.join(repr(s.name) for s in plan.sources[:3])} has no rows")
    kinds = final_types(files, plan.names, plan.options)
    between_keys = cuts_between_keys(plan)
    asked, time = plan.options.grid, plan.options.read.time
    grid = None if asked is None or time is None else asked.grid(kinds[time])
    splitters = choose_splitters(
        sorted_files, plan.file_bytes, between_keys=between_keys, grid=grid
    )
    bounds = run_in_threads(
        lambda number: sorted_file_bounds(plan, sorted_files, number, splitters),
        len(sorted_files),
        workers,
        portion=1,
    )
    sizes = np.diff(np.array(bounds, dtype=np.int64), axis=1).sum(axis=0)
    kept = [0, *(np.flatnonzero(sizes) + 1).tolist()]
    rows = sum(sorted_file.rows for sorted_file in sorted_files)
    width = max(sum(sorted_file.nbytes for sorted_file in sorted_files) // rows, 1)
    taken = tuple(tuple(one[place] for place in kept) for one in bounds)
    layout = FileLayout(
        plan,
        folder,
        claim,
        tuple(sorted_files),
        taken,
        kinds,
        max(plan.options.row_group_bytes // width, 1),
        width,
        _training(plan, kinds),
        grid,
        () if grid is None else keys_before(plan, sorted_files, taken),
    )
    return layout, results


def _training(plan: PreparationPlan, kinds: Any) -> tuple[int | None, int | None] | None:
    """Return the range of training times in the unit of the column."""
    train = plan.options.train
    if train == (None, None):
        return None
    kind = kinds[plan.options.read.time]
    start, stop = (None if end is None else _tick(end, kind) for end in train)
    return start, stop


def _tick(end: Any, kind: Any) -> int:
    """Return the least time that is not before `end`."""
    if pa.types.is_integer(kind):
        try:
            return int(end) if isinstance(end, str) else operator.index(end)
        except (TypeError, ValueError):
            raise TypeError(f"`train` must be integers as the times are, got {end!r}") from None
    try:
        exact = parse_time(end)
    except (TypeError, ValueError):
        exact = np.datetime64("NaT")
    if np.isnat(exact):
        raise ValueError(f"`train` must be dates such as '2020-01-31T12:00', in UTC, got {end!r}")
    return time_tick(exact, f"M8[{kind.unit if pa.types.is_timestamp(kind) else 'D'}]")


def _remove_others(folder: str, count: int) -> None:
    """Remove files of an earlier result that this one does not have."""
    known = {file_name(number) for number in range(count)}
    for name, _ in filesystem.list_directory(folder):
        if name.startswith("part-") and name not in known:
            filesystem.remove(filesystem.join(folder, name))


def _manifest(
    layout: FileLayout,
    results: list[TaskResult],
    written: list[WrittenFile],
    scalers: dict[str, Scaler],
) -> Prepared:
    plan, read = layout.plan, layout.plan.options.read
    series = sum(file.series for file in written)
    ids = len(read.ids)
    for before, file in pairwise(written):
        series -= before.last[:ids] == file.first[:ids]
    rows = sum(file.rows for file in written)
    dropped = sum(file.duplicates for file in written)
    found = sum(sorted_file.rows for sorted_file in layout.sorted_files)
    read_again = rows + dropped - sum(file.added for file in written)
    if read_again != found:
        raise RuntimeError(f"{found} rows were read and {read_again} were written or left out")
    grid = plan.options.grid
    if grid is not None and rows > grid.most_rows(found):
        raise ValueError(
            f"the grid has {plural(rows, 'row')} in {plural(len(written), 'file')}, more than "
            f"max_rows={grid.most_rows(found):,}; expected a larger `step`, or a larger `max_rows`"
        )
    files = tuple(
        PreparedFile(p.name, p.rows, p.nbytes, p.row_groups, p.sha256, p.first, p.last)
        for p in written
    )
    return Prepared(
        layout.destination,
        rows,
        series,
        {name: str(kind) for name, kind in layout.kinds.items()},
        read.ids,
        read.time,
        dropped,
        files,
        tuple(_sources(plan, results)),
        scalers,
        plan.options.document(),
        plan.fingerprint,
        _grid_report(plan, written),
    )


def _grid_report(plan: PreparationPlan, written: list[WrittenFile]) -> GridReport | None:
    """Return what was done to rows on a grid; None without one, and where it was not counted."""
    if not all(one.grid for one in written):
        return None
    reports = [GridReport(*one.grid) for one in written]
    return GridReport.of_files(reports, plan.options.duplicates)


def _sources(plan: PreparationPlan, results: list[TaskResult]) -> Iterator[PreparedSource]:
    bad = {source: text for result in results for source, text in result.bad.items()}
    for number, source in enumerate(plan.sources):
        if number in bad:
            yield PreparedSource(source.name, source.size, 0, bad[number])
        else:
            rows = sum(result.rows.get(number, 0) for result in results)
            yield PreparedSource(source.name, source.size, rows)
    for path, reason in plan.skipped.items():
        yield PreparedSource(path, 0, 0, reason)
