"""CSV files. Exact types and row counts are known once the text has been parsed."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windeck.io import filesystem
from windeck.io.conversion import is_string
from windeck.io.csv_options import (
    CsvOptions,
    check_first_line,
    hint_at_options,
    misfit_hint,
    text_hint,
)
from windeck.io.csv_times import parse_times
from windeck.io.options import INDEX_METADATA, ReadOptions
from windeck.io.record_batches import (
    BATCH_ROWS,
    FileSchema,
    column_indices,
    name_in_errors,
    slice_rows,
)

_SAMPLE_BYTES = 1 << 20
#: The types that pyarrow tries for a column, one after the other.
_INFERRED = (
    *(pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("s")),
    *(pa.timestamp("ns"), pa.float64(), pa.string()),
)
_NO_TYPES: Mapping[str, Any] = {}
#: Integers up to it are exact in float64.
_EXACT = float(1 << 53)
_INTEGER = re.compile(r"[+-]?\d+")
_CONVERSION_ERROR = re.compile(r"CSV column #(\d+): .*?(?:invalid value '(.*)')?$")


class CsvFile:
    """A CSV or tab-separated file, of which a sample is parsed until `prepare`."""

    kind = "CSV"

    def __init__(self, path: str, options: CsvOptions | None = None) -> None:
        self.path, self.options = path, options or CsvOptions()
        #: True once a column of numbers is known to have words for missing values.
        self._has_words = False
        with name_in_errors(self.path, self.kind):
            check_first_line(path, self.options)
        with hint_at_options(path, self.options):
            _ = self.sample

    @cached_property
    def sample(self) -> Any:
        """The first block, parsed, for types and the bytes of a row."""
        return self._with_times(self._with_numbers(self._parse_sample, None, self._names))

    @cached_property
    def _names(self) -> dict[str, Any]:
        """The type text for ids that would become one number in the first block: ``01`` and ``1``.

        Others that look like numbers are numbers.
        """
        sample = self._parse_sample(None, _NO_TYPES)
        found = {
            name: pa.string()
            for name in self.options.ids
            if sample.schema.names.count(name) == 1
            and pa.types.is_integer(sample.schema.field(name).type)
        }
        if not found:
            return found
        texts = self._parse_sample(None, found)
        return {
            name: kind
            for name, kind in found.items()
            if len(pc.utf8_trim_whitespace(texts.column(name)).unique())
            > len(sample.column(name).unique())
        }

    def _parse_sample(
        self, names: list[str] | None, types: Mapping[str, Any], *, words: bool = False
    ) -> Any:
        """Return the first block as a table."""
        with name_in_errors(self.path, self.kind):
            with self._open(names, types, words=words, use_threads=False) as reader:
                sample = next(iter(reader), reader.schema.empty_table())
                _ = sample.schema.names  # decodes them: they may not be UTF-8
            return pa.Table.from_batches([sample]) if isinstance(sample, pa.RecordBatch) else sample

    @contextlib.contextmanager
    def _open(
        self,
        names: list[str] | None,
        types: Mapping[str, Any],
        *,
        words: bool = False,
        use_threads: bool = True,
    ) -> Iterator[Any]:
        """Open a reader of blocks with the types of the first block, or with the types given."""
        from pyarrow import csv

        read = self._read_options(block_size=_SAMPLE_BYTES, use_threads=use_threads)
        convert = _convert(self.options, names, types, words=words)
        with (
            filesystem.open_text(self.path, whole=False) as text,
            csv.open_csv(text, read, self._parse_options, convert) as reader,
        ):
            yield reader

    def _with_numbers(self, parse: Any, names: list[str] | None, types: Mapping[str, Any]) -> Any:
        """Return parsed columns, of which texts are numbers but for words of missing values.

        Parameters
        ----------
        parse
            A function of names, types and `words`, which also takes such words for missing values.
        """
        table = parse(names, types)
        again = [name for name in table.column_names if self._may_have_words(table, name)]
        if not again:
            return table
        numbers = parse(again, {name: types[name] for name in again if name in types}, words=True)
        for name in again:
            if not is_string(numbers.schema.field(name).type):
                self._has_words = True
                place = table.schema.get_field_index(name)
                table = table.set_column(place, numbers.schema.field(name), numbers.column(name))
        return table

    def _may_have_words(self, table: Any, name: str) -> bool:
        """Return True for text that is no name or category, and has a word of missing values."""
        if not self.options.has_words(name) or table.column_names.count(name) != 1:
            return False
        column = table.column(name)
        words = pa.array(self.options.words)
        return is_string(column.type) and pc.any(pc.is_in(column, words)).as_py() is True

    def _with_times(self, data: Any, row: int = 0) -> Any:
        """Return a table or a record batch with its texts of `timestamp_format` as time stamps."""
        name, layout = self.options.time, self.options.timestamp_format
        place = -1 if name is None or layout is None else data.schema.get_field_index(name)
        if place < 0 or not is_string(data.schema.field(place).type):
            return data
        assert layout is not None
        where = f"timestamp column {name!r} of {self.path!r}"
        times = parse_times(data.column(place), layout, where, row)
        return data.set_column(place, pa.field(name, times.type), times)

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

    @cached_property
    def schema(self) -> Any:
        """The schema of the first block; `pandas_index` finds a column that numbers the rows."""
        schema = self.sample.schema
        return schema.with_metadata(INDEX_METADATA) if self._has_row_numbers else schema

    @property
    def _has_row_numbers(self) -> bool:
        """Return True for a first column without a name that counts the rows, from 0.

        That is the index that `to_csv` of pandas writes. Others may be values, such as years.
        """
        names = self.sample.schema.names
        if names[0] or names.count("") > 1 or not len(self.sample):
            return False
        column = self.sample.column(0)
        if not pa.types.is_integer(column.type) or column.null_count:
            return False
        return bool((column.to_numpy() == np.arange(len(column))).all())

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
        """Parse columns; a column of `types` has the type given, unless values do not fit it."""
        column_indices(self.schema, names, self.path)
        known = {**self._names, **types}
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            try:
                table = self._with_numbers(self._parse, list(names), known)
            except pa.ArrowInvalid:
                if not types:
                    raise
                table = self._with_numbers(self._parse_at_once, list(names), self._names)
            for name in names:
                self._check_large(name, table.column(name))
            table = self._with_times(table)
        return ParsedCsv(self.path, table, self.options)

    def _parse(self, names: list[str], types: Mapping[str, Any], *, words: bool = False) -> Any:
        """Parse with the types of the first block, or if later values do not fit them, at once."""
        try:
            with self._open(names, types, words=words) as reader:
                return pa.Table.from_batches(reader, reader.schema)
        except pa.ArrowInvalid:
            return self._parse_at_once(names, types, words=words)

    def _parse_at_once(
        self, names: list[str], types: Mapping[str, Any], *, words: bool = False
    ) -> Any:
        """Parse with types that fit all values; holds the whole text in memory."""
        from pyarrow import csv

        convert = _convert(self.options, names, types, words=words)
        with filesystem.open_text(self.path, whole=True) as text:
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
        types = {name: given.get(name, self.schema.field(name).type) for name in names}
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            while error := self._misfit(types):
                found = _CONVERSION_ERROR.search(str(error).split("\n")[0])
                name = self.schema.names[int(found[1])] if found else None
                if name in given:
                    return self.settled_types(names)
                if name not in types or types[name] not in _INFERRED[:-1]:
                    raise error
                words = self.options.words if self.options.has_words(name) else ()
                word = found is not None and found[2] in words
                if word and not self._has_words:
                    self._has_words = True
                    continue
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
        row, unchecked = 0, set(types)
        with hint_at_options(self.path, self.options), name_in_errors(self.path, self.kind):
            for batch in self._parse_as(types):
                for name in sorted(unchecked):
                    if self._check_large(name, batch.column(name)):
                        unchecked.remove(name)
                yield self._with_times(batch, row)
                row += batch.num_rows

    def _parse_as(self, types: Mapping[str, Any]) -> Iterator[Any]:
        """Yield record batches; texts and others apart where words are missing values of others."""
        texts = [name for name, kind in types.items() if self._has_words and is_string(kind)]
        others = [name for name in types if name not in texts]
        with contextlib.ExitStack() as stack:
            readers = [
                stack.enter_context(
                    self._open(
                        names,
                        {name: types[name] for name in names},
                        words=self._has_words and names is others,
                        use_threads=False,
                    )
                )
                for names in (texts, others)
                if names
            ]
            for batches in zip(*readers, strict=True):
                arrays = {n: one.column(n) for one in batches for n in one.schema.names}
                yield pa.RecordBatch.from_pydict({name: arrays[name] for name in types})

    def _check_large(self, name: str, array: Any) -> bool:
        """Return True for large floats; OverflowError if a number in the text is another one.

        That is a finite one that became infinite, and an integer that was rounded.
        """
        if not pa.types.is_floating(array.type):
            return False
        if not pc.any(pc.greater_equal(pc.abs(array), _EXACT)).as_py():
            return False
        row = 0
        with self._open([name], {name: pa.string()}, words=True) as reader:
            for batch in reader:
                for place, text in _large_numbers(batch.column(0), self.options.decimal):
                    value = float(text)
                    if math.isinf(value) or (_INTEGER.fullmatch(text) and int(text) != value):
                        raise OverflowError(
                            f"column {name!r} of {self.path!r} has {text!r} in row {row + place}, "
                            "which float64 cannot hold"
                        )
                row += batch.num_rows
        return True

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    @property
    def overhead_bytes(self) -> int:
        # The blocks of text being parsed.
        return min(filesystem.size(self.path), 64 * _SAMPLE_BYTES)

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        return self.prepare(names).batches(names, start, stop)


class ParsedCsv:
    """Parsed columns of a CSV file, or of a block of it that begins with `row`."""

    kind = "CSV"

    def __init__(self, path: str, table: Any, options: CsvOptions, row: int = 0) -> None:
        self.path, self.schema, self.num_rows = path, table.schema, int(table.num_rows)
        self._options, self._row = options, row
        self._columns = dict(zip(table.column_names, table.columns, strict=True))

    def column_bytes(self, name: str) -> int:
        return int(self._columns[name].nbytes)

    def check_text(self, options: ReadOptions, *, kept: bool = False) -> None:
        """Raise TypeError for text that an option of CSV would read as numbers or times.

        `kept` means that text is no error, so that it has to be a likely one.
        """
        for name, column in self._columns.items():
            coded = options.all_categories or name in options.categories or name in options.ids
            hint = text_hint(column, time=name == options.time)
            if not hint and not coded and not (kept and self._options.missing is not None):
                hint = misfit_hint(name, column, self._options, self._row, kept=kept)
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


def _large_numbers(texts: Any, decimal: str) -> Iterator[tuple[int, str]]:
    """Yield place and text of numbers that may be beyond the integers that float64 holds."""
    large = pc.fill_null(pc.match_substring_regex(texts, r"\d{16}|\d[eE]"), False)
    for place in np.flatnonzero(large).tolist():
        yield place, texts[place].as_py().strip().replace(decimal, ".")


def _convert(
    options: CsvOptions,
    names: list[str] | None = None,
    types: Mapping[str, Any] = _NO_TYPES,
    *,
    words: bool = False,
) -> Any:
    """Return options of conversion: an empty string is null unless it is in quotes.

    With `words` these and other words are null too, as they are in columns of numbers.
    """
    from pyarrow import csv

    known = dict(types)
    if options.timestamp_format is not None and options.time is not None:
        known[options.time] = pa.string()
    nulls = csv.ConvertOptions().null_values
    return csv.ConvertOptions(
        include_columns=names,
        strings_can_be_null=True,
        quoted_strings_can_be_null=words,
        null_values=[*nulls, *(options.words if words else options.missing or ())],
        decimal_point=options.decimal,
        column_types={name: kind for name, kind in known.items() if names is None or name in names},
        timestamp_parsers=None if options.timestamp_format is None else [options.timestamp_format],
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
