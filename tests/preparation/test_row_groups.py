"""One row group that is larger than the budget: refused with the cure, which works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
ROWS, BUDGET = 1 << 18, 2 << 20


def windows_of(folder: Path, budget: float | None, **options: Any) -> wd.Windows:
    """Return windows of files as a streamed table, or in memory without a budget."""
    if budget is not None:
        options |= {"in_memory": False, "memory_budget": budget, "group_bytes": 1 << 18}
    table = wd.Table.read(folder, **KEYS, **options)
    return wd.Windows(table, context_length=5, prediction_length=2, target_columns="load")


def test_a_row_group_larger_than_the_budget_is_refused_with_the_cure(tmp_path: Path) -> None:
    """At 1/256 of the sizes of a row group of 1 GB."""
    rows = pa.table(
        {
            "site": np.repeat(np.arange(8), ROWS // 8),
            "time": np.tile(np.arange(ROWS // 8), 8),
            "load": np.random.default_rng(0).standard_normal(ROWS),
        }
    )
    (tmp_path / "in").mkdir()
    parquet.write_table(rows, tmp_path / "in" / "a.parquet", row_group_size=ROWS)
    with pytest.raises(MemoryError, match="`windeck prepare` writes") as caught:
        windows_of(tmp_path / "in", BUDGET)
    least = re.search(r"memory_budget=(\d+) ", str(caught.value))
    assert least is not None
    assert 2 * 8 * ROWS <= int(least[1]) < 3 * 8 * ROWS
    enough = windows_of(tmp_path / "in", int(least[1]))
    with pytest.raises(MemoryError):
        windows_of(tmp_path / "in", int(least[1]) - 1)

    wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, row_group_bytes="64KiB")
    streamed = windows_of(tmp_path / "out", BUDGET)
    in_memory = windows_of(tmp_path / "in", None)
    order = streamed.default_order
    loaders = [
        wd.Loader(windows, batch_size=512, seed=3, order=order) for windows in (streamed, in_memory)
    ]
    for number, (one, other) in enumerate(zip(*loaders, strict=True)):
        assert all((one[name] == other[name]).all() for name in other)  # without masks
        if number == 20:
            break
    assert (
        enough.gather([0, ROWS // 2])["past_target"]
        == in_memory.gather([0, ROWS // 2])["past_target"]
    ).all()
