"""Windows of tables far larger than memory: a column of stride 0 takes the memory of one row."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.internals import plant

TRILLION = 10**12


def endless(rows: int, series: int = 1) -> wd.Table:
    """Return a table of `rows` rows that takes the memory of one."""
    ends = np.linspace(0, rows, series + 1).astype(np.int64)
    column = np.broadcast_to(np.float32(7), (rows,))
    return wd.Table.from_columns({"load": column}, offsets=ends)


def test_a_trillion_rows_are_arithmetic() -> None:
    w = wd.Windows(endless(TRILLION), context_length=168, prediction_length=24, gap=3)
    assert len(w) == TRILLION - 194
    last = len(w) - 1
    assert w.locate(last) == (0, last)
    assert w.index_of(0, last) == last
    batch = w.gather(np.array([last, 0, 2**33 + 5]))
    assert batch["start"].tolist() == [last, 0, 2**33 + 5]
    assert (batch["future_target"] == 7).all()
    with pytest.raises(IndexError, match=str(TRILLION)):
        w.locate(TRILLION)


def test_parts_of_a_trillion_rows_are_arithmetic() -> None:
    w = wd.Windows(endless(TRILLION, 1000), context_length=10**6, prediction_length=1, stride=7)
    split = w.split(validation=0.1, test=0.1)
    assert sum(map(len, split)) == len(w)  # no window of one future row straddles a border
    series, row = split.test.locate(len(split.test) - 1)
    assert series == 999
    assert TRILLION - 7 <= row + 10**6 + 1 <= TRILLION
    scaler = wd.Scaler.fit(split.train, sample=1000)
    assert scaler.weights.item() == pytest.approx(0.8 * TRILLION, rel=1e-4)
    assert w.subset(rows=(TRILLION // 2, None)).explain().windows < len(w)


def test_the_longest_window_of_all() -> None:
    w = wd.Windows(endless(TRILLION), context_length=10, dilation=10**11)
    assert len(w) == TRILLION - 9 * 10**11
    assert w[len(w) - 1]["past_target"].shape == (10, 1)
    padded = wd.Windows(endless(TRILLION), context_length=10, dilation=10**11, pad=True)
    assert len(padded) == TRILLION
    assert padded.locate(0) == (0, -9 * 10**11)
    assert padded[0]["past_target_mask"].sum() == 1


def peak_of(build: Any) -> int:
    tracemalloc.start()
    kept = build()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return peak


def test_memory_is_by_series_and_not_by_row() -> None:
    small = endless(10**4, 10)
    options: dict[str, Any] = {"context_length": 100, "prediction_length": 10}
    wd.Windows(small, **options)  # warm up
    large = endless(TRILLION, 10)
    assert peak_of(lambda: wd.Windows(large, **options)) < 200_000
    assert wd.Windows(large, **options).nbytes == wd.Windows(small, **options).nbytes == 10 * 40


def test_memory_of_a_filter_is_one_bit_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "filters.ROWS_AT_A_TIME", 1 << 14)
    load = np.random.default_rng(0).normal(size=400_000).astype(np.float32)
    load[::50] = np.nan
    table = wd.Table.from_columns({"load": load})
    w = wd.Windows(table, context_length=10, max_missing=0.0)
    assert w.nbytes == 40 + (400_000 - 9 + 7) // 8
    # 2**14 rows at a time take about a hundred bytes a row; the whole table would take more.
    assert peak_of(lambda: wd.Windows(table, context_length=10, max_missing=0.0)) < 4_000_000


def test_dilation_of_a_single_step_takes_no_memory() -> None:
    table = wd.Table.from_columns({"x": np.array([1.0, np.nan, 3.0])})
    w = wd.Windows(table, context_length=1, dilation=10**12, max_missing=0.5)
    assert w.window_starts().tolist() == [0, 2]


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.filterwarnings("ignore:.*lost every window:UserWarning")
def test_filters_do_not_depend_on_the_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch, rows: int, stride: int
) -> None:
    rng = np.random.default_rng(3)
    load = rng.normal(size=900)
    load[rng.random(900) < 0.1] = np.nan
    stamps = np.cumsum(rng.choice([1, 1, 1, 1, 3], size=900))
    table = wd.Table.from_columns(
        {"load": load, "t": stamps}, offsets=[0, 300, 310, 311, 900], timestamp_column="t"
    )
    options: dict[str, Any] = {
        "context_length": 6,
        "prediction_length": 2,
        "dilation": 2,
        "stride": stride,
        "pad": True,
        "max_missing": 0.3,
        "max_gap": 2,
    }
    with pytest.warns(UserWarning, match="series are shorter than a window"):
        expected = wd.Windows(table, **options).window_starts()
    plant(monkeypatch, "filters.ROWS_AT_A_TIME", rows)
    with pytest.warns(UserWarning, match="series are shorter than a window"):
        found = wd.Windows(table, **options).window_starts()
    assert 10 < len(expected) < 800
    np.testing.assert_array_equal(found, expected)
