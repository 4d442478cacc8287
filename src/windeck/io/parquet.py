"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from windeck.io import filesystem
from windeck.io.footers import ColumnChunk, parquet_footer
from windeck.io.formats import (
    BATCH_ROWS,
    column_indices,
    column_of,
    name_in_errors,
    overlapping_parts,
    slice_rows,
    split_columns,
)

_KIND = "Parquet"
_PAGE_BUFFER = 1 << 18


def read_column(path: str, name: str) -> Any:
    """Read one column of a file into memory, as a ChunkedArray."""
    from pyarrow import parquet

    with name_in_errors(path, _KIND), filesystem.open_input(path) as source:
        return column_of(parquet.ParquetFile(source).read(columns=[name]), name)


class ParquetFile:
    """A Parquet file, of which only the row groups and columns in use are read."""

    kind = _KIND

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self.path = path
        with name_in_errors(path, self.kind), filesystem.open_input(path) as source:
            file = parquet.ParquetFile(source)
            self._metadata, self._schema = file.metadata, file.schema_arrow
            _ = self._schema.names  # decodes them: they may not be UTF-8

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return int(self._metadata.num_rows)

    def column_bytes(self, name: str) -> int:
        leaves = [chunk for group in self._chunks for chunk in group]
        return sum(leaf.uncompressed_bytes for leaf in leaves if leaf.path[:1] == (name.encode(),))

    @cached_property
    def _group_rows(self) -> list[int]:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return [int(group.num_rows) for group in groups]

    @cached_property
    def _chunks(self) -> list[list[ColumnChunk]]:
        """The column chunks of each row group."""
        footer = parquet_footer(self.path)
        if footer is None:
            raise ValueError(f"{self.path!r} cannot be read as Parquet: its footer is damaged")
        return footer.groups

    def prepare(self, names: Sequence[str]) -> ParquetFile:
        return self

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return split_columns(names, self.num_rows)

    @property
    def overhead_bytes(self) -> int:
        return 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        from pyarrow import parquet

        column_indices(self._schema, names, self.path)
        groups, skipped = overlapping_parts(self._group_rows, start, stop)
        strings = [name for name in names if _is_string(self._schema.field(name).type)]
        with (
            name_in_errors(self.path, self.kind),
            filesystem.open_input(self.path) as source,
        ):
            # With these options pages are read as they are decoded, not row groups as a whole.
            file = parquet.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=strings,
                buffer_size=_PAGE_BUFFER,
                pre_buffer=False,
            )
            read = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(names))
            for batch in slice_rows(read, start - skipped, stop - skipped):
                yield batch.select(list(names))


def _is_string(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
