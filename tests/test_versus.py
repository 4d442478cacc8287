"""The race is fair: both hand out the same windows, and a difference stops it."""

from pathlib import Path

import numpy as np
import pytest

from windeck.tools import job, synthetic, versus


def test_both_ways_give_the_same_windows_and_a_difference_is_found(tmp_path: Path) -> None:
    path = synthetic.write_load_curve(tmp_path / "load.parquet", sites=3, days=30, missing=0.05)
    task = job.Job(str(path), ("timestamp",), ("site",), "load", 24, 6, batch_size=64)
    deal = job.prepare(task)
    usual = versus.UsualDataset(task, deal)
    assert len(usual) == len(deal.train)
    versus.assert_equal_batch(usual, deal, np.arange(len(usual)))
    usual.values[100] += 1
    with pytest.raises(AssertionError):
        versus.assert_equal_batch(usual, deal, np.arange(len(usual)))
    usual.values[100] = np.nan
    with pytest.raises(AssertionError):
        versus.assert_equal_batch(usual, deal, np.arange(len(usual)))
