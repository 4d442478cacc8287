"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from windeck.io import filesystem
from windeck.io.footers import Chunk, parquet_footer
from windeck.io.formats import BATCH_ROWS, column_of, cut, in_portions, naming, overlapping, places

_KIND = "Parquet"
_PAGE_BUFFER = 1 << 18


def read_column(path: str, name: str) -> Any:
    """Read one column of a file into memory, as a ChunkedArray."""
    from pyarrow import parquet

    with naming(path, _KIND), filesystem.open_input(path) as source:
        return column_of(parquet.ParquetFile(source).read(columns=[name]), name)


class ParquetFile:
    """Parquet: row groups outside the rows asked for are never read, nor are other columns."""

    kind = _KIND

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self.path = path
        with naming(path, self.kind), filesystem.open_input(path) as source:
            file = parquet.ParquetFile(source)
            self._metadata, self._schema = file.metadata, file.schema_arrow
            _ = self._schema.names  # which are decoded only here, if they can be

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return int(self._metadata.num_rows)

    def text_bytes(self, name: str) -> int:
        leaves = [chunk for group in self._chunks for chunk in group]
        return sum(leaf.uncompressed_bytes for leaf in leaves if leaf.path[:1] == (name.encode(),))

    @cached_property
    def _group_rows(self) -> list[int]:
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return [int(group.num_rows) for group in groups]

    @cached_property
    def _chunks(self) -> list[list[Chunk]]:
        """The column chunks of each row group."""
        footer = parquet_footer(self.path)
        if footer is None:
            raise ValueError(f"{self.path!r} cannot be read as Parquet: its footer is damaged")
        return footer.groups

    def prepared(self, names: Sequence[str]) -> ParquetFile:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return in_portions(names, self.num_rows)

    @property
    def beside(self) -> int:
        return 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        from pyarrow import parquet

        places(self._schema, names, self.path)
        groups, skipped = overlapping(self._group_rows, start, stop)
        texts = [name for name in names if _is_text(self._schema.field(name).type)]
        with (
            naming(self.path, self.kind),
            filesystem.open_input(self.path) as source,
        ):
            # So pages are read as they are decoded, not whole row groups beforehand.
            file = parquet.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=texts,
                buffer_size=_PAGE_BUFFER,
                pre_buffer=False,
            )
            read = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(names))
            for batch in cut(read, start - skipped, stop - skipped):
                yield batch.select(list(names))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
