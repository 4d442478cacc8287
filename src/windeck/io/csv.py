"""CSV files. Exact types and row counts are known once the text has been parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windeck.io import filesystem
from windeck.io.conversion import is_string
from windeck.io.csv_options import (
    CsvOptions,
    check_first_line,
    hint_at_options,
    text_hint,
)
from windeck.io.formats import BATCH_ROWS, FileSchema, column_indices, name_in_errors, slice_rows
from windeck.io.options import ReadOptions

_SAMPLE_BYTES = 1 << 20
#: The types that pyarrow tries for a column, one after the other.
_INFERRED = (
    *(pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("s")),
    *(pa.timestamp("ns"), pa.float64(), pa.string()),
)
_NO_TYPES: Mapping[str, Any] = {}
_CONVERSION_ERROR = re.compile(r"CSV column #(\d+): ")


class CsvFile:
    """A CSV or tab-separated file, of which a sample is parsed until `prepare`."""

    kind = "CSV"

    def __init__(self, path: str, options: CsvOptions | None = None) -> None:
        self.path, self.options = path, options or CsvOptions()
        with name_in_errors(self.path, self.kind):
            check_first_line(path, self.options)
        with hint_at_options(path, self.options):
            _ = self.sample

    @cached_property
    def sample(self) -> Any:
        """The first block, parsed, for types and the bytes of a row."""
        return self._parse_sample(self._names)

    @cached_property
    def _names(self) -> dict[str, Any]:
        """The type text for ids that would become one number in the first block: ``01`` and ``1``.

        Others that look like numbers are numbers.
        """
        sample = self._parse_sample(_NO_TYPES)
        found = {
            name: pa.string()
            for name in self.options.ids
            if sample.schema.names.count(name) == 1
            and pa.types.is_integer(sample.schema.field(name).type)
        }
        if not found:
            return found
        texts = self._parse_sample(found)
        return {
            name: kind
            for name, kind in found.items()
            if len(pc.utf8_trim_whitespace(texts.column(name)).unique())
            > len(sample.column(name).unique())
        }

    def _parse_sample(self, types: Mapping[str, Any]) -> Any:
        from pyarrow import csv

        with name_in_errors(self.path, self.kind):
            read = self._read_options(block_size=_SAMPLE_BYTES, use_threads=False)
            convert = _convert(self.options, types=types)
            with (
                filesystem.open_stream(self.path) as text,
                csv.open_csv(text, read, self._parse_options, convert) as reader,
            ):
                sample = next(iter(reader), reader.schema.empty_table())
                _ = sample.schema.names  # decodes them: they may not be UTF-8
                return sample

    def _read_options(self, **options: Any) -> Any:
        from pyarrow import csv

        header, names = self.options.header, None
        if not (header is None or isinstance(header, bool)):
            names = list(header)
        return csv.ReadOptions(
            column_names=names,
            autogenerate_column_names=header is False,
            encoding=self.options.encoding or "utf8",
            **options,
        )

    @property
    def _parse_options(self) -> Any:
        from pyarrow import csv

        return csv.ParseOptions(delimiter=self.options.delimiter_of(self.path))

    @property
    def schema(self) -> Any:
        return self.sample.schema

    @property
    def num_rows(self) -> int:
        """Estimate: bytes of the file over bytes of a row in its first mebibyte."""
        rows = int(self.sample.num_rows)
        size = filesystem.size(self.path)
        if size <= _SAMPLE_BYTES and not self._compressed:
            return rows
        return int(rows * self._expansion * size / _SAMPLE_BYTES)

    @property
    def _compressed(self) -> bool:
        return self.path.lower().endswith((".gz", ".bz2"))

    @property
    def _expansion(self) -> float:
        """Text bytes for each byte of the file; 6 is typical of gzip for numbers."""
        return 6.0 if self._compressed else 1.0

    def column_bytes(self, name: str) -> int:
        rows = max(int(self.sample.num_rows), 1)
        return int(self.sample.column(name).nbytes * self.num_rows / rows)

    def prepare(self, names: Sequence[str], types: Mapping[str, Any] = _NO_TYPES) -> ParsedCsv:
        """Parse columns; those of `types` in the type given, unless values do not fit it."""
        column_indices(self.schema, names, self.path)
        known = {**self._names, **types}
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            try:
                table = self._parse_blocks(list(names), known)
            except pa.ArrowInvalid:
                try:
                    table = self._parse_at_once(list(names), known)
                except pa.ArrowInvalid:
                    if not types:
                        raise
                    table = self._parse_at_once(list(names), self._names)
        return ParsedCsv(self.path, table)

    def _parse_blocks(self, names: list[str], types: Mapping[str, Any]) -> Any:
        """Parse with the types of the first block; an error if later values do not fit them."""
        from pyarrow import csv

        read = self._read_options(block_size=_SAMPLE_BYTES)
        convert = _convert(self.options, names, types)
        with (
            filesystem.open_stream(self.path) as text,
            csv.open_csv(text, read, self._parse_options, convert) as reader,
        ):
            return pa.Table.from_batches(reader, reader.schema)

    def _parse_at_once(self, names: list[str], types: Mapping[str, Any]) -> Any:
        """Parse with types that fit all values; holds the whole text in memory."""
        from pyarrow import csv

        convert = _convert(self.options, names, types)
        with filesystem.open_stream(self.path) as text:
            return csv.read_csv(text, self._read_options(), self._parse_options, convert)

    def settled_types(
        self, names: Sequence[str], given: Mapping[str, Any] = _NO_TYPES
    ) -> dict[str, Any]:
        """Return the types that fit all values, as `prepare` finds them, in bounded memory.

        Each column begins with the type given, or that of the first block. Where a later value does
        not fit, none of those given are used, the column takes the next type of pyarrow's
        inference, and the file is parsed again.
        """
        column_indices(self.schema, names, self.path)
        places = {place: name for place, name in enumerate(self.schema.names) if name in names}
        types = {name: given.get(name, self.schema.field(name).type) for name in names}
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            while error := self._misfit(types):
                found = _CONVERSION_ERROR.search(str(error))
                name = places.get(int(found[1])) if found else None
                if name in given:
                    return self.settled_types(names)
                if name is None or types[name] not in _INFERRED[:-1]:
                    raise error
                types[name] = _INFERRED[_INFERRED.index(types[name]) + 1]
        return types

    def _misfit(self, types: Mapping[str, Any]) -> pa.ArrowInvalid | None:
        """Parse the file, and return the error if it cannot be parsed as these types."""
        try:
            for _ in self._parse_as(types):
                pass
        except pa.ArrowInvalid as error:
            return error
        return None

    def parse_as(self, types: Mapping[str, Any]) -> Iterator[Any]:
        """Yield record batches of columns with the types of `settled_types`, in bounded memory."""
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            yield from self._parse_as(types)

    def _parse_as(self, types: Mapping[str, Any]) -> Iterator[Any]:
        from pyarrow import csv

        convert = _convert(self.options, list(types), types)
        read = self._read_options(block_size=_SAMPLE_BYTES, use_threads=False)
        with (
            filesystem.open_stream(self.path) as text,
            csv.open_csv(text, read, self._parse_options, convert) as reader,
        ):
            yield from reader

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    @property
    def overhead_bytes(self) -> int:
        # The blocks of text being parsed.
        return min(filesystem.size(self.path), 64 * _SAMPLE_BYTES)

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        return self.prepare(names).batches(names, start, stop)


class ParsedCsv:
    """Parsed columns of a CSV file."""

    kind = "CSV"

    def __init__(self, path: str, table: Any) -> None:
        self.path, self.schema, self.num_rows = path, table.schema, int(table.num_rows)
        self._columns = dict(zip(table.column_names, table.columns, strict=True))

    def column_bytes(self, name: str) -> int:
        return int(self._columns[name].nbytes)

    def check_text(self, options: ReadOptions) -> None:
        """Raise TypeError for text that an option of CSV would read as numbers or times."""
        for name, column in self._columns.items():
            coded = options.all_categories or name in options.categories or name in options.ids
            hint = text_hint(column, time=name == options.time)
            if hint and not (coded and is_string(column.type)):
                raise TypeError(f"column {name!r} of {self.path!r} is {column.type}; {hint}")

    def prepare(self, names: Sequence[str]) -> ParsedCsv:
        return self

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    @property
    def overhead_bytes(self) -> int:
        return sum(int(column.nbytes) for column in self._columns.values())

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        """Yield record batches of some columns, and drop the parsed values of these columns."""
        selected = pa.table({name: self._columns.pop(name) for name in names})
        yield from slice_rows(iter(selected.to_batches(max_chunksize=BATCH_ROWS)), start, stop)


def _convert(
    options: CsvOptions, names: list[str] | None = None, types: Mapping[str, Any] = _NO_TYPES
) -> Any:
    """Return options of conversion: an empty string is null unless it is in quotes."""
    from pyarrow import csv

    stamp = options.timestamp_format
    zone = "UTC" if stamp is not None and "%z" in stamp else None
    known = dict(types)
    if stamp is not None and options.time is not None:
        known[options.time] = pa.timestamp("s", zone)
    return csv.ConvertOptions(
        include_columns=names,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        decimal_point=options.decimal,
        column_types={name: kind for name, kind in known.items() if names is None or name in names},
        timestamp_parsers=None if stamp is None else [stamp],
    )


def promoted_type(files: Sequence[FileSchema], name: str) -> Any | None:
    """Return float64 for a column that is int64 in CSV files and float64 in others, else None.

    CSV has no types: a float column looks like integers if all values in the file are whole.
    """
    kinds = [file.schema.field(name).type for file in files]
    mixed = {pa.int64(), pa.float64()}
    if not mixed <= set(kinds) <= mixed | {pa.null()}:
        return None
    texts = (file.kind == "CSV" for file, kind in zip(files, kinds, strict=True) if kind == "int64")
    return pa.float64() if all(texts) else None
