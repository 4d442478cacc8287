"""Scalers of many series as Arrow IPC files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from windeck._util.text import parse_json
from windeck.io.arrow import open_reader
from windeck.windows.scaler import Scaler

__all__ = ["scaler_from_arrow", "scaler_to_arrow"]

_METADATA = b"windeck scaler"


def _entries(scaler: Scaler) -> dict[str, Any]:
    """Return the arrays of a scaler by their names in files."""
    errors = {f"{name}_error": values for name, values in scaler.errors.items()}
    return {"count": scaler.counts, "weight": scaler.weights, **scaler.statistics, **errors}


def scaler_to_arrow(scaler: Scaler) -> bytes:
    """Return a scaler of several series as an Arrow IPC file with a row for each series."""
    assert scaler.series is not None
    assert scaler.pooled is not None
    described = {
        "kind": scaler.kind,
        "columns": list(scaler.columns),
        "unseen": scaler.unseen,
        "pooled": scaler.pooled.to_json(),
    }
    columns: dict[str, Any] = {"series": pa.array([json.dumps(one) for one in scaler.series])}
    for place in range(len(scaler.columns)):
        for key, values in _entries(scaler).items():
            columns[f"{place}.{key}"] = np.ascontiguousarray(values[:, place])
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(described)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def scaler_from_arrow(content: bytes) -> Scaler:
    """Return the scaler of `scaler_to_arrow`.

    Raises
    ------
    ValueError, TypeError, KeyError
        The bytes are not such a file.
    """
    table = open_reader(pa.BufferReader(content)).read_all()
    table.validate(full=True)
    described = parse_json((table.schema.metadata or {})[_METADATA], "its description")
    pooled = Scaler.from_json(described["pooled"])
    if [pooled.kind, list(pooled.columns)] != [described["kind"], described["columns"]]:
        raise ValueError("its pooled statistics do not belong to it")
    arrays = {}
    for key, like in _entries(pooled).items():
        found = [table.column(f"{place}.{key}") for place in range(len(pooled.columns))]
        arrays[key] = np.stack([np.asarray(one, dtype=like.dtype) for one in found], axis=1)
        if not np.isfinite(arrays[key]).all() or (
            key in ("count", "weight") and arrays[key].min(initial=0) < 0
        ):
            raise ValueError(f"{key!r} has values out of range")
    return Scaler(
        pooled.kind,
        pooled.columns,
        {name: arrays[name] for name in pooled.statistics},
        {name: arrays[f"{name}_error"] for name in pooled.errors},
        arrays["count"],
        arrays["weight"],
        tuple(_name_of(text) for text in table.column("series").to_pylist()),
        unseen=described["unseen"],
        pooled=pooled,
    )


def _name_of(text: str) -> Any:
    found = parse_json(text, "the name of a series")
    return tuple(found) if isinstance(found, list) else found
