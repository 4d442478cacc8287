"""Small tables for tests of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windeck as wd


def table_of(rows: int = 20, offsets: list[int] | None = None, **columns: Any) -> wd.Table:
    named = {name: np.asarray(values) for name, values in columns.items()}
    return wd.Table.from_columns(named or {"load": np.arange(rows)}, offsets=offsets)


@pytest.fixture
def mixed() -> wd.Table:
    """Return two series with a float, an integer, a category and a flag; some values missing."""
    arrow = pa.table(
        {
            "id": ["a"] * 6 + ["b"] * 6,
            "load": pa.array([*map(float, range(11)), np.nan]),
            "count": pa.array([*range(11), None], type=pa.int64()),
            "hour": pa.array([h % 3 for h in range(12)], type=pa.int8()),
            "kind": pa.array(["x", "y", None] * 4),
            "flag": pa.array([True, False] * 6),
        }
    )
    return wd.Table.from_arrow(arrow, id_columns="id", categories=["kind"])
