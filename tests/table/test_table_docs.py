"""Examples of the page on tables and of docstrings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.pages import Page

PAGE = Page("docs/table.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readings").mkdir()
    columns = {
        "site": ["a"] * 4,
        "time": np.arange("2024-01-01", "2024-01-05", dtype="M8[D]").astype("M8[s]"),
        "load": [1.0, 2.0, 3.0, 4.0],
        "temperature": [1.0, None, 3.0, 4.0],
        "wind": ["N", "E", "S", "W"],
    }
    parquet.write_table(pa.table(columns), tmp_path / "readings" / "part1.parquet")
    assert len(PAGE.blocks) == 7
    names = PAGE.run()
    assert names["table"]["load"].tolist() == [1, 2, 3]
