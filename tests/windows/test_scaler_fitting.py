"""Estimates of many series at once equal those of one series at a time, bit for bit."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from models.scaler_model import series_estimates
from support.internals import planted

KINDS: tuple[Any, ...] = ("standard", "minmax", "robust", "mean_abs")


def check(scaler: wd.Scaler, x: Any, rows_of: list[Any], sample: int | None, seed: int) -> None:
    """Compare a scaler of one column per series with the model; zeros where nothing was seen."""
    for series, rows in enumerate(rows_of):
        expected = series_estimates(scaler.kind, x, rows, sample, seed, series)
        if expected is None:
            assert not scaler.counts[series].any()
            assert not scaler.weights[series].any()
            assert not any(values[series].any() for values in scaler.statistics.values())
            continue
        (value, error), count, weight = expected
        assert scaler.counts[series].tolist() == [count]
        assert scaler.weights[series].tolist() == [weight]
        for name, one in value.items():
            # As text, since NaN may be expected. A median of zeros of both signs has either sign.
            assert repr(float(scaler.statistics[name][series, 0]) + 0.0) == repr(one + 0.0)
            assert repr(float(scaler.errors[name][series, 0]) + 0.0) == repr(error[name] + 0.0)


def numbers(rng: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
    """Values of many magnitudes, among them equal ones, zeros of both signs, and NaN."""
    x = rng.normal(size=rows) * 10.0 ** rng.integers(-8, 9, size=rows)
    x[rng.random(rows) < 0.2] = 0.0
    x[rng.random(rows) < 0.1] = -0.0
    x[rng.random(rows) < 0.2] = 0.1
    x[rng.random(rows) < 0.2] = np.nan
    return x


@settings(deadline=None, derandomize=True, max_examples=150, database=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.sampled_from(KINDS),
    st.sampled_from([None, 2, 5, 1000]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 50, 1 << 20]),
)
def test_each_series_is_estimated_as_if_alone(
    sizes: list[int], kind: Any, sample: int | None, seed: int, at_a_time: int
) -> None:
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    x = numbers(np.random.default_rng(seed), int(offsets[-1]))
    table = wd.Table.from_columns({"x": x}, offsets=offsets)
    if np.isnan(x).all():
        with pytest.raises(ValueError, match="column 'x' has no observed value"):
            wd.Scaler.fit(table, kind=kind, sample=sample, per_series=True)
        return
    with planted("scaler_fitting.ROWS_AT_A_TIME", at_a_time):
        scaler = wd.Scaler.fit(table, kind=kind, sample=sample, per_series=True, seed=seed)
    check(scaler, x, [np.arange(a, b) for a, b in pairwise(offsets)], sample, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sample", [None, 5_000])
def test_long_series(kind: Any, sample: int | None) -> None:
    """NumPy adds blocks of 128 numbers: lengths on both sides of them."""
    sizes = [1, 7, 8, 9, 127, 128, 129, 1023, 1024, 1025, 20_000, 3]
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    x = np.random.default_rng(1).normal(size=offsets[-1]) + 1e3
    table = wd.Table.from_columns({"x": x}, offsets=offsets)
    scaler = wd.Scaler.fit(table, kind=kind, sample=sample, per_series=True, seed=4)
    check(scaler, x, [np.arange(a, b) for a, b in pairwise(offsets)], sample, 4)
    assert scaler.pooled == wd.Scaler.fit(table, kind=kind, sample=sample, seed=4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_windows_in_several_stretches(kind: Any) -> None:
    rng = np.random.default_rng(2)
    x = numbers(rng, 600)
    x[100:140] = np.nan
    table = wd.Table.from_columns({"x": x}, offsets=[0, 90, 350, 600])
    windows = wd.Windows(
        table, context_length=3, prediction_length=2, gap=4, stride=11, max_missing=0.4
    )
    read: list[set[int]] = [set(), set(), set()]
    for series, start in zip(*windows.locate(np.arange(len(windows))), strict=True):
        read[series] |= {int(start) + step for step in (0, 1, 2, 7, 8)}
    rows_of = [np.array(sorted(rows)) for rows in read]
    assert sum(len(rows) - 1 > rows[-1] - rows[0] for rows in rows_of) == 0
    for sample in (None, 20):
        scaler = wd.Scaler.fit(windows, kind=kind, sample=sample, per_series=True, seed=3)
        check(scaler, x, rows_of, sample, 3)
        pooled = wd.Scaler.fit(windows, kind=kind, sample=sample, seed=3)
        check(pooled, x, [np.concatenate(rows_of)], sample, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_other_dtypes_and_strides(kind: Any) -> None:
    matrix = np.random.default_rng(3).normal(size=(90, 3)).astype(np.float32)
    table = wd.Table.from_rows(matrix, ["a", "b", "c"], offsets=[0, 40, 90])
    scaler = wd.Scaler.fit(table, columns="b", kind=kind, per_series=True)
    rows = [np.arange(40), np.arange(40, 90)]
    check(scaler, matrix[:, 1].astype(np.float64), rows, None, 0)


def test_a_dropped_series_does_not_count() -> None:
    load = np.concatenate([np.arange(100.0), np.full(100, np.nan)])
    load[[120, 150, 199]] = 5e6
    table = wd.Table.from_columns({"load": load}, offsets=[0, 100, 200])
    with pytest.warns(UserWarning, match="1 series lost every window to a filter: 1;"):
        windows = wd.Windows(table, context_length=10, prediction_length=2, max_missing=0.2)
    assert wd.Scaler.fit(windows).statistics["mean"].item() == 49.5
    by_series = wd.Scaler.fit(windows, per_series=True, unseen="error")
    assert by_series.counts.tolist() == [[100], [0]]
    # No window of the dropped series is served, so nothing is unseen.
    assert windows.with_scaler(by_series).unseen_series() == {}


def test_memory_is_that_of_some_rows_and_of_the_series() -> None:
    table = wd.Table.from_columns(
        {"x": np.broadcast_to(np.float32(7), 40_000_000)}, offsets=np.arange(0, 40_000_001, 10_000)
    )
    tracemalloc.start()
    wd.Scaler.fit(table, per_series=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6  # 40 million float64 are 320 MB


def test_infinite_values_and_huge_ones_are_refused_in_any_series() -> None:
    x = np.arange(60.0)
    x[45] = np.inf
    table = wd.Table.from_columns({"x": x}, offsets=[0, 20, 40, 60])
    with pytest.raises(ValueError, match="column 'x' holds 1 infinite values among"):
        wd.Scaler.fit(table, per_series=True)
    x[45], x[46] = 1e308, -1e308
    with pytest.raises(ValueError, match="column 'x' holds values too large"):
        wd.Scaler.fit(table, per_series=True, kind="minmax")
