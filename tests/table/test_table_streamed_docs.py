"""Examples of the page on tables larger than memory."""

from __future__ import annotations

import numpy as np
import pytest

from support.pages import Page
from windeck.orders import BlockPermutation
from windeck.shuffle_quality import lag_1

PAGE = Page("docs/streaming.md")


@pytest.mark.usefixtures("demo_folder")
def test_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = 90 * 24
    assert len(PAGE.blocks) == 2
    names = PAGE.run()
    assert len(names["windows"]) == 4 * (rows - 71)
    assert len(names["larger"]) == 5 * (rows - 71)
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
