"""Bytes of the rows after blocks, which windows that begin in a block reach into."""

from __future__ import annotations

import numpy as np

from windeck._util.indices import Int64
from windeck.io.row_reader import RowReader

__all__ = ["bytes_after"]


def bytes_after(
    reader: RowReader, names: tuple[str, ...], span: int, highs: Int64, series_offsets: Int64
) -> Int64:
    """Return about how many bytes are read after each block, where the next one is not read too.

    Of Arrow files these are the rows. Of a row group of Parquet they are its first pages, and a
    compressed record batch is read as a whole.

    Parameters
    ----------
    names
        Columns that are read.
    span
        Rows of a window.
    highs
        int64 of shape (blocks,): the row after each block.
    series_offsets
        int64 of shape (series + 1,): first rows of the series; no window crosses them.

    Returns
    -------
    int64 ndarray, shape (blocks,)
    """
    ends = series_offsets[np.searchsorted(series_offsets, highs - 1, side="right")]
    rows = np.minimum(ends - highs, span - 1)
    stored, split = reader.stored_parts(names)
    before = np.concatenate([[0.0], np.cumsum(stored)])
    edges = reader.part_offsets
    # Of the part in which the rows begin, those that share it; whole parts after it.
    part = np.minimum(np.searchsorted(edges, highs, side="right") - 1, len(stored) - 1)
    last = np.minimum(np.searchsorted(edges, highs + rows, side="left"), len(stored))
    first = _first_bytes(reader, names, span)
    whole = np.where(highs + rows < edges[part + 1], first[part], before[last] - before[part])
    low, high = np.interp([highs, highs + rows], edges, before)
    return np.where(rows > 0, np.where(split[part], high - low, whole), 0).astype(np.int64)


def _first_bytes(reader: RowReader, names: tuple[str, ...], rows: int) -> Int64:
    """Return the bytes that are read for the first rows of each part."""
    found = np.zeros(len(reader.part_offsets) - 1, dtype=np.int64)
    edge = -reader.first
    for stored in reader.files:
        file = stored.file
        sizes = [file.first_bytes(name, rows) for name in names]
        for number, count in enumerate(file.part_rows):
            if count and 0 <= max(edge, 0) < min(edge + count, reader.rows):
                part = int(np.searchsorted(reader.part_offsets, max(edge, 0), side="right")) - 1
                found[part] = sum(size[number] for size in sizes)
            edge += count
    return found
