"""CSV files, whose types and sizes are known only once the text has been read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from windeck.io import filesystem
from windeck.io.formats import BATCH_ROWS, DataFile, cut, naming, places

_SAMPLE_BYTES = 1 << 20


class CsvFile:
    """A CSV (or tab-separated) file: a sample until it is `prepared`."""

    kind = "CSV"

    def __init__(self, path: str) -> None:
        self.path = path
        _ = self._sample

    @cached_property
    def _sample(self) -> Any:
        """The first block, parsed: types and width of a row."""
        from pyarrow import csv

        with naming(self.path, self.kind):
            read = csv.ReadOptions(block_size=_SAMPLE_BYTES, use_threads=False)
            with (
                filesystem.open_stream(self.path) as text,
                csv.open_csv(text, read, self._parsing, _conversion()) as reader,
            ):
                sample = next(iter(reader), reader.schema.empty_table())
                _ = sample.schema.names  # Decoded only now: they may not be UTF-8.
                return sample

    @property
    def _parsing(self) -> Any:
        from pyarrow import csv

        tabs = self.path.lower().endswith((".tsv", ".tsv.gz", ".tsv.bz2"))
        return csv.ParseOptions(delimiter="\t" if tabs else ",")

    @property
    def schema(self) -> Any:
        return self._sample.schema

    @property
    def num_rows(self) -> int:
        """Estimated: bytes of the file over bytes of a row in its first mebibyte."""
        rows = int(self._sample.num_rows)
        size = filesystem.size(self.path)
        if size <= _SAMPLE_BYTES and not self._compressed:
            return rows
        return int(rows * self._expansion * size / _SAMPLE_BYTES)

    @property
    def _compressed(self) -> bool:
        return self.path.lower().endswith((".gz", ".bz2"))

    @property
    def _expansion(self) -> float:
        """Text bytes for each byte of the file; 6 is what gzip makes of numbers as text."""
        return 6.0 if self._compressed else 1.0

    def text_bytes(self, name: str) -> int:
        rows = max(int(self._sample.num_rows), 1)
        return int(self._sample.column(name).nbytes * self.num_rows / rows)

    def prepared(self, names: Sequence[str]) -> ParsedCsv:
        places(self.schema, names, self.path)
        with naming(self.path, self.kind):
            try:
                table = self._parsed_block_by_block(list(names))
            except pa.ArrowInvalid:
                table = self._parsed_at_once(list(names))
        return ParsedCsv(self.path, table)

    def _parsed_block_by_block(self, names: list[str]) -> Any:
        """With the types the first block shows; what comes later may not fit them."""
        from pyarrow import csv

        read = csv.ReadOptions(block_size=_SAMPLE_BYTES)
        with (
            filesystem.open_stream(self.path) as text,
            csv.open_csv(text, read, self._parsing, _conversion(names)) as reader,
        ):
            return pa.Table.from_batches(reader, reader.schema)

    def _parsed_at_once(self, names: list[str]) -> Any:
        """With types that fit all of the text, which is in memory as a whole meanwhile."""
        from pyarrow import csv

        with filesystem.open_stream(self.path) as text:
            return csv.read_csv(text, None, self._parsing, _conversion(names))

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    @property
    def beside(self) -> int:
        """The blocks of text being parsed."""
        return min(filesystem.size(self.path), 64 * _SAMPLE_BYTES)

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        return self.prepared(names).batches(names, start, stop)


class ParsedCsv:
    """The columns asked for of a CSV file, parsed."""

    kind = "CSV"

    def __init__(self, path: str, table: Any) -> None:
        self.path, self._table = path, table

    @property
    def schema(self) -> Any:
        return self._table.schema

    @property
    def num_rows(self) -> int:
        return int(self._table.num_rows)

    def text_bytes(self, name: str) -> int:
        return int(self._table.column(name).nbytes)

    def prepared(self, names: Sequence[str]) -> ParsedCsv:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [[name] for name in names]

    @property
    def beside(self) -> int:
        return int(self._table.nbytes)

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        """As the interface says; each column's parsed text is let go once it was handed out."""
        picked = self._table.select(list(names))
        rest = [name for name in self._table.column_names if name not in names]
        self._table = self._table.select(rest)
        yield from cut(iter(picked.to_batches(max_chunksize=BATCH_ROWS)), start, stop)


def _conversion(names: list[str] | None = None) -> Any:
    """Missing values of strings count as missing, unless they are in quotes."""
    from pyarrow import csv

    return csv.ConvertOptions(
        include_columns=names, strings_can_be_null=True, quoted_strings_can_be_null=False
    )


def promoted(files: Sequence[DataFile], name: str) -> Any | None:
    """float64, where a column is that in some files, and whole numbers in some CSV files.

    Text has no types: a CSV file in which all of a column's values happen to be whole looks as if
    they were integers.
    """
    kinds = [file.schema.field(name).type for file in files]
    mixed = {pa.int64(), pa.float64()}
    if not mixed <= set(kinds) <= mixed | {pa.null()}:
        return None
    texts = (file.kind == "CSV" for file, kind in zip(files, kinds, strict=True) if kind == "int64")
    return pa.float64() if all(texts) else None
