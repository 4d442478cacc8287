"""First pass: source files become sorted files on the local disk, each a task of its own."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from windeck._util.text import parse_json
from windeck.io import filesystem
from windeck.io.csv import CsvFile, ParsedCsv
from windeck.io.filesystem import RangeReader
from windeck.io.folder_columns import add_columns, with_columns
from windeck.io.formats import open_file
from windeck.io.reading import common_types
from windeck.io.writing import write_batches
from windeck.preparation.plan import BAD_FILE, PreparationPlan, SourceFile, SourceRows
from windeck.preparation.sorting import SortKeys, gathered, staged_column
from windeck.preparation.widening import convert, retyped_schema

__all__ = ["SortedFile", "SourceChangedError", "TaskResult", "read_task", "task_result"]

#: SortKeys of a sorted file that are known to all tasks, for each `file_bytes` of its rows.
_SAMPLES = 64
_BATCH_BYTES = 1 << 18
_GOLDEN = (math.sqrt(5) - 1) / 2
#: A sorted file has at most this multiple of `file_bytes`: sizes of files are estimates.
SORTED_FILE_SLACK = 1.25


class SortedFile(NamedTuple):
    """Sorted rows in a file of batches of `batch_rows` rows, and the keys of some of them.

    `ids`, `times` and `places` are of the sampled rows: a tuple of ids for each, its time or None,
    and its place in the file. `sources` are the numbers of the source files.
    """

    path: str
    rows: int
    nbytes: int
    batch_rows: int
    ids: list[list[Any]]
    times: list[int | None]
    places: list[int]


class TaskResult(NamedTuple):
    """The sorted files of a task, the rows and the schema of each source file, and bad files."""

    sorted_files: list[SortedFile]
    rows: dict[int, int]
    schemas: dict[int, Any]
    bad: dict[int, str]


class _StagedRows(NamedTuple):
    """Staged rows of one source file: record batches, and its schema."""

    source: int
    schema: Any
    batches: list[Any]


def _result_path(plan: PreparationPlan, number: int) -> str:
    return os.path.join(plan.folder, f"sorted-{number:06}.json")


def task_result(plan: PreparationPlan, number: int) -> TaskResult | None:
    """Return the result of a task that is done, else None."""
    path = _result_path(plan, number)
    if not filesystem.exists(path):
        return None
    document = parse_json(filesystem.read_bytes(path), repr(path))
    files = document["sorted_files"]
    return TaskResult(
        [SortedFile(os.path.join(plan.folder, name), *rest) for name, *rest in files],
        {int(source): rows for source, rows in document["rows"].items()},
        {int(source): _schema_of(text) for source, text in document["schemas"].items()},
        {int(source): reason for source, reason in document["bad"].items()},
    )


def _schema_of(text: str) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def read_task(plan: PreparationPlan, number: int) -> None:
    """Read the source files of a task, and write their rows as sorted files.

    Nothing is done for a task that has a result.
    """
    if filesystem.exists(_result_path(plan, number)):
        return
    writer = _TaskWriter(plan, number)
    for span in plan.tasks[number]:
        source = plan.sources[span.source]
        _check_unchanged(source)
        writer.read(span)
        _check_unchanged(source)
    writer.finish()


class SourceChangedError(RuntimeError):
    """A source file is another one than at the start."""


def _check_unchanged(source: SourceFile) -> None:
    with RangeReader(source.path) as reader:
        if (reader.size, reader.modified) != (source.size, source.modified):
            raise SourceChangedError(
                f"source file {source.name!r} changed while it was prepared; expected the "
                f"{source.size} bytes it had at the start"
            )


class _TaskWriter:
    """Collector of the rows of a task, which writes a sorted file whenever it has enough."""

    def __init__(self, plan: PreparationPlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.staged: list[_StagedRows] = []
        self.held = 0
        self.sorted_files: list[SortedFile] = []
        self.rows: dict[int, int] = {}
        self.schemas: dict[int, Any] = {}
        self.bad: dict[int, str] = {}

    def read(self, span: SourceRows) -> None:
        """Read rows of a file. Of several files, all rows of one are read before they count."""
        alone = len(self.plan.tasks[self.number]) == 1
        staged = _staged_batches(self.plan, span)
        rows_of_file, nbytes, rows = None, 0, 0
        while (found := self._next(span, staged)) is not None:
            schema, batch = found
            rows_of_file = rows_of_file or _StagedRows(span.source, schema, [])
            if batch is not None:
                rows_of_file.batches.append(batch)
                nbytes, rows = nbytes + batch.nbytes, rows + batch.num_rows
            if alone and nbytes >= SORTED_FILE_SLACK * self.plan.file_bytes:
                self._add(rows_of_file, nbytes)
                rows_of_file, nbytes = _StagedRows(span.source, schema, []), 0
        if span.source not in self.bad:
            assert rows_of_file is not None
            self.schemas[span.source], self.rows[span.source] = rows_of_file.schema, rows
            self._add(rows_of_file, nbytes)
        elif alone:
            for sorted_file in self.sorted_files:
                filesystem.remove(sorted_file.path)
            self.sorted_files = []

    def _next(self, span: SourceRows, staged: Iterator[Any]) -> Any:
        """Return the next item; None at the end, and for a bad file, which is recorded.

        Only errors of reading are caught: those of writing are not the file's.
        """
        try:
            return next(staged, None)
        except BAD_FILE as error:
            _check_unchanged(self.plan.sources[span.source])
            if self.plan.options.on_error == "stop":
                raise
            self.bad[span.source] = str(error).split("\n")[0]
            return None

    def _add(self, rows_of_file: _StagedRows, nbytes: int) -> None:
        if rows_of_file.batches:
            self.staged.append(rows_of_file)
            self.held += nbytes
        if self.held >= self.plan.file_bytes:
            self._write_sorted_file()

    def finish(self) -> None:
        """Write the last sorted file, and then the result of the task."""
        if self.staged:
            self._write_sorted_file()
        document = {
            "sorted_files": [
                [os.path.basename(sorted_file.path), *sorted_file[1:]]
                for sorted_file in self.sorted_files
            ],
            "rows": self.rows,
            "schemas": {
                source: base64.b64encode(schema.serialize()).decode()
                for source, schema in self.schemas.items()
            },
            "bad": self.bad,
        }
        text = json.dumps(document).encode()
        filesystem.write_bytes(_result_path(self.plan, self.number), text)

    def _write_sorted_file(self) -> None:
        plan, read = self.plan, self.plan.options.read
        files = [
            _TypedSource(plan.sources[rows_of_file.source], rows_of_file.schema)
            for rows_of_file in self.staged
        ]
        kinds = common_types(files, plan.wanted, every=False)
        batches = [batch for rows_of_file in self.staged for batch in rows_of_file.batches]
        self.staged, self.held = [], 0
        rows = gathered(batches, kinds, read, plan.wanted)
        del batches
        keys = SortKeys.of(rows, read)
        order = keys.order()
        width = max(rows.nbytes // rows.num_rows, 1)
        batch_rows = 1 << max(8, (_BATCH_BYTES // width).bit_length() - 1)
        name = f"sorted-{self.number:06}-{len(self.sorted_files):04}.arrow"
        path = os.path.join(plan.folder, name)
        write_batches(path, rows.schema, _taken(rows, order, batch_rows))
        places = self._sampled_places(rows.num_rows, width)
        chosen = [order[place].as_py() for place in places]
        ids = [list(keys.at(row)) for row in chosen]
        times = [None if keys.ticks is None else int(keys.ticks[row]) for row in chosen]
        sorted_file = SortedFile(path, rows.num_rows, rows.nbytes, batch_rows, ids, times, places)
        self.sorted_files.append(sorted_file)

    def _sampled_places(self, rows: int, width: int) -> list[int]:
        """Return evenly spaced places, shifted from file to file.

        Sorted files with equal keys would else be sampled at the same keys, with none between them.
        """
        step = max(self.plan.file_bytes // width // _SAMPLES, 1)
        shift = ((16 * self.number + len(self.sorted_files)) * _GOLDEN) % 1.0
        return list(range(int(step * shift), rows, step))


class _TypedSource(NamedTuple):
    """A source file with the schema it was read with: what `common_types` takes."""

    source: SourceFile
    schema: Any

    @property
    def path(self) -> str:
        return self.source.name

    @property
    def kind(self) -> str:
        return self.source.kind


def _taken(rows: Any, order: Any, batch_rows: int) -> Iterator[Any]:
    for start in range(0, rows.num_rows, batch_rows):
        yield rows.take(order[start : start + batch_rows])


def _open_span(plan: PreparationPlan, span: SourceRows) -> tuple[Any, Iterator[Any]]:
    """Return the schema of rows of a file, and their record batches."""
    source = plan.sources[span.source]
    file = open_file(source.path, plan.options.read.csv)
    kinds = {field.name: field.type for field in source.schema if field.name in plan.wanted}
    folders = with_columns(file, kinds, plan.compared)
    schema, batches = _open_columns(plan, span, file, folders.own(plan.wanted))
    for name, constant in folders.constants.items():
        schema = schema.append(pa.field(name, constant.type))
    return schema, add_columns(map(folders.checked, batches), folders.constants, plan.wanted)


def _open_columns(
    plan: PreparationPlan, span: SourceRows, file: Any, names: list[str]
) -> tuple[Any, Iterator[Any]]:
    """Return the schema of rows of columns of a file, and their record batches."""
    source, read = plan.sources[span.source], plan.options.read
    stop = source.rows if span.stop is None else span.stop
    if not isinstance(file, CsvFile):
        return file.schema, file.batches(names, span.start, stop)
    if source.nbytes >= 2 * plan.file_bytes:
        types = file.settled_types(names, plan.texts)
        return pa.schema(list(types.items())), _checked_text(source, file.parse_as(types), read)
    parsed = file.prepare(names, plan.texts)
    parsed.check_text(read, kept=True)
    return parsed.schema, parsed.batches(names, 0, parsed.num_rows)


def _checked_text(source: SourceFile, batches: Iterator[Any], read: Any) -> Iterator[Any]:
    row = 0
    for batch in batches:
        parsed = ParsedCsv(source.path, pa.Table.from_batches([batch]), read.csv, row)
        parsed.check_text(read, kept=True)
        row += batch.num_rows
        yield batch


def _staged_batches(plan: PreparationPlan, span: SourceRows) -> Iterator[tuple[Any, Any]]:
    """Yield the schema of a file and None, and then the schema with each staged record batch."""
    source, read = plan.sources[span.source], plan.options.read
    schema, batches = _open_span(plan, span)
    schema = retyped_schema(schema, plan.wider)
    yield schema, None
    row = span.start
    for batch in batches:
        if batch.num_rows:
            places = map(batch.schema.get_field_index, plan.wanted)
            columns = [
                staged_column(
                    name, convert(name, column, plan.wider, source.name), read, source.name, row
                )
                for name, column in zip(plan.wanted, map(batch.column, places), strict=True)
            ]
            yield schema, pa.RecordBatch.from_arrays(columns, list(plan.wanted))
        row += batch.num_rows
