"""Scalers fitted to a sample of the training rows of prepared files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windeck._core import Permutation
from windeck.io import filesystem
from windeck.io.formats import open_file
from windeck.preparation.prepared_files import FileLayout, WrittenFile, training_mask
from windeck.preparation.sorting import as_ticks
from windeck.table.table import Table
from windeck.windows.origins import FittedRows
from windeck.windows.scaler import Scaler
from windeck.windows.scaler_fitting import RowStretches

__all__ = ["fit_scalers"]


def fit_scalers(
    layout: FileLayout, files: Sequence[WrittenFile], memory: float
) -> dict[str, Scaler]:
    """Fit scalers to the rows that `Scaler.fit` samples of the training rows in sorted order."""
    options = layout.plan.options
    if not options.scalers:
        return {}
    counts = [written.training_rows for written in files]
    if not sum(counts):
        raise ValueError(f"no row has a time in train={options.train}, expected some")
    names = [name for name in layout.plan.names if _is_number(layout.kinds[name])]
    if not names:
        raise ValueError("no column holds numbers, expected at least one to fit a scaler to")
    if options.per_series:
        return _fit_by_series(layout, files, names, memory)
    return _fit_together(layout, files, names)


def _fit_together(
    layout: FileLayout, files: Sequence[WrittenFile], names: list[str]
) -> dict[str, Scaler]:
    """Fit scalers of all series together, to rows that are read once for all kinds."""
    options = layout.plan.options
    counts = [written.training_rows for written in files]
    total = sum(counts)
    chosen = np.arange(total)
    if options.sample is not None and options.sample < total:
        drawn = Permutation(total, seed=options.seed).slice(0, options.sample)
        chosen = np.sort(drawn)
    ends = np.cumsum([0, *counts])
    batches: list[Any] = []
    for written, (first, last), before in zip(
        files, pairwise(np.searchsorted(chosen, ends).tolist()), ends.tolist(), strict=False
    ):
        if first < last:
            batches += _sampled(layout, written, names, chosen[first:last] - before)
    table = Table.from_arrow(pa.Table.from_batches(batches))
    return {kind: Scaler.of_sample(table, kind=kind, total=total) for kind in options.scalers}


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _sampled(
    layout: FileLayout, written: WrittenFile, names: list[str], places: Any
) -> Iterator[Any]:
    """Yield some training rows of a file, given by their places among its training rows."""
    time = layout.plan.options.read.time
    wanted = names if layout.training is None else [*names, str(time)]
    file = open_file(filesystem.join(layout.destination, written.name))
    before = 0
    for batch in file.batches(wanted, 0, written.rows):
        rows = np.arange(batch.num_rows)
        if layout.training is not None:
            inside = training_mask(as_ticks(batch.column(str(time))), layout.training)
            rows = np.flatnonzero(inside)
        first, last = np.searchsorted(places, [before, before + len(rows)])
        taken = rows[places[first:last] - before]
        before += len(rows)
        if len(taken):
            yield batch.select(names).take(pa.array(taken))


def _training_rows(table: Table, layout: FileLayout) -> FittedRows:
    """Return the training rows of a streamed table."""
    begin, end = table.offsets[:-1], table.offsets[1:]
    if layout.training is not None:
        times: Any = table.timestamps
        for place, tick in enumerate(layout.training):
            if tick is None:
                continue
            bound = times.first_rows(begin, end, tick)
            begin, end = (bound, end) if place == 0 else (begin, bound)
    live = np.flatnonzero(begin < end).astype(np.int64)
    return FittedRows(table, table.column_names, RowStretches(begin[live], end[live], live))


def _fit_by_series(
    layout: FileLayout, files: Sequence[WrittenFile], names: list[str], memory: float
) -> dict[str, Scaler]:
    """Fit a scaling for each series, with the files read as a streamed table."""
    options = layout.plan.options
    table = Table.read(
        [filesystem.join(layout.destination, written.name) for written in files],
        columns=names,
        id_columns=options.read.ids or None,
        timestamp_column=options.read.time,
        in_memory=False,
        memory_budget=memory,
        group_bytes=1 << 24,
    )
    rows = _training_rows(table, layout)
    return {
        kind: Scaler.fit(
            rows,
            kind=kind,  # type: ignore[arg-type]
            sample=options.sample,
            per_series=True,
            seed=options.seed,
        )
        for kind in options.scalers
    }
