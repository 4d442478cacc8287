"""Examples of the page on tables larger than memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.pages import Page
from windeck.orders import BlockPermutation
from windeck.shuffle_quality import lag_1

PAGE = Page("docs/streaming.md")


def test_code_on_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = 1000
    for part, folder in enumerate(["readings", "readings", "new"]):
        (tmp_path / folder).mkdir(exist_ok=True)
        columns = {
            "site": [f"site{part}"] * rows,
            "time": np.arange(rows).astype("M8[s]"),
            "load": np.arange(float(rows)),
        }
        path = tmp_path / folder / f"part{part}.parquet"
        parquet.write_table(pa.table(columns), path, row_group_size=100)
    assert len(PAGE.blocks) == 2
    names = PAGE.run()
    assert len(names["windows"]) == 2 * (rows - 71)
    assert len(names["larger"]) == 3 * (rows - 71)
    assert next(iter(names["growing"]))["past_target"].shape == (32, 48, 1)
    assert "resident: two groups" in capsys.readouterr().out


def test_figures_of_mixing_on_the_page() -> None:
    size, rows = 1 << 20, 1 << 10
    offsets = np.arange(0, size + 1, rows)
    for blocks in (8, 32, 128):
        order = BlockPermutation(size, block_offsets=offsets, blocks_in_buffer=blocks, seed=1)
        samples = order[:]
        (line,) = (
            line for line in PAGE.text.splitlines() if f"| groups of {blocks} blocks" in line
        )
        correlation, distance, live = (cell.strip() for cell in line.split("|")[2:5])
        assert f"{lag_1(samples, size):.3f}" == correlation
        assert f"{np.abs(np.diff(samples)).mean() / size:.2f}" == distance
        batches = samples.reshape(-1, 256)[:400] // rows
        assert f"{np.mean([len(np.unique(batch)) for batch in batches]):.0f}" == live
