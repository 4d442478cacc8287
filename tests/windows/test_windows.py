"""Windows: keys, dtypes, masks, layouts, and what bad input gets."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.window_tables import table_of
from windeck.sources import Source

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")

# --- the arithmetic ---------------------------------------------------------------------------


def test_steps_of_a_window_with_dilation_and_gap() -> None:
    w = wd.Windows(table_of(30), context_length=3, prediction_length=2, gap=4, dilation=2)
    batch = w.gather([0, 5])
    assert batch["past_target"][:, :, 0].tolist() == [[0, 2, 4], [5, 7, 9]]
    assert batch["future_target"][:, :, 0].tolist() == [[10, 12], [15, 17]]
    assert batch["start"].tolist() == [0, 5]
    assert len(w) == 30 - 12


def test_stride_begins_anew_in_every_series() -> None:
    w = wd.Windows(table_of(20, [0, 7, 20]), context_length=3, stride=3)
    assert w.window_starts().tolist() == [0, 3, 7, 10, 13, 16]
    assert [w.locate(i) for i in (1, 2)] == [(0, 3), (1, 7)]
    assert wd.Windows(table_of(20), context_length=3, stride=2**61).window_starts().tolist() == [0]


def test_padded_windows_begin_before_their_series() -> None:
    table = table_of(10, [0, 4, 10])
    w = wd.Windows(table, context_length=3, prediction_length=1, pad=True, fill=-1, stride=2)
    # The first possible window has one context step inside: it starts 2 rows early.
    assert w.window_starts().tolist() == [-2, 0, 2, 4, 6]
    batch = w.gather([0, 2])
    assert batch["past_target"][:, :, 0].tolist() == [[-1, -1, 0], [-1, -1, 4]]
    assert batch["past_target_mask"][:, :, 0].tolist() == [[False, False, True]] * 2
    assert batch["future_target"][:, 0, 0].tolist() == [1, 5]
    assert batch["future_target_mask"].all()
    assert w.locate(0) == (0, -2)


def test_locate_and_index_of_are_inverse() -> None:
    w = wd.Windows(table_of(20, [0, 7, 20]), context_length=3, stride=2)
    series, rows = w.locate(np.arange(len(w)))
    assert series.dtype == rows.dtype == w.window_starts().dtype == np.int64
    assert w.index_of(series, rows).tolist() == list(range(len(w)))
    assert w.index_of(1, 9) == w.index_of(1, np.int32(9)) == 4
    assert w.index_of(1, 10) == w.index_of(0, 9) == w.index_of(5, 9) == -1
    assert w.index_of(1, [7, 8, 9]).tolist() == [3, -1, 4]


# --- keys -------------------------------------------------------------------------------------


def test_keys_and_shapes(mixed: wd.Table) -> None:
    w = wd.Windows(
        mixed,
        context_length=3,
        prediction_length=2,
        target_columns="load",
        known_covariates=["hour"],
        past_covariates=["count"],
        static_covariates=["kind"],
    )
    batch = w.gather([0, 3])
    assert {key: (a.shape, a.dtype.name) for key, a in batch.items()} == {
        "past_target": ((2, 3, 1), "float64"),
        "past_target_mask": ((2, 3, 1), "bool"),
        "future_target": ((2, 2, 1), "float64"),
        "future_target_mask": ((2, 2, 1), "bool"),
        "past_known": ((2, 3, 1), "int8"),
        "past_known_mask": ((2, 3, 1), "bool"),
        "future_known": ((2, 2, 1), "int8"),
        "future_known_mask": ((2, 2, 1), "bool"),
        "past_covariates": ((2, 3, 1), "int64"),
        "past_covariates_mask": ((2, 3, 1), "bool"),
        "static": ((2, 1), "int32"),
        "static_mask": ((2, 1), "bool"),
        "series_id": ((2,), "int64"),
        "start": ((2,), "int64"),
    }
    assert w.column_names == ("load", "hour", "count", "kind")


def test_no_future_keys_without_a_future(mixed: wd.Table) -> None:
    w = wd.Windows(mixed, context_length=3, target_columns="load", known_covariates="hour")
    keys = ["past_target", "past_target_mask", "past_known", "past_known_mask"]
    assert list(w.gather([0])) == [*keys, "series_id", "start"]


def test_missing_values_are_filled_and_masked(mixed: wd.Table) -> None:
    options: dict[str, Any] = {"context_length": 2, "static_covariates": "kind", "fill": -7}
    w = wd.Windows(mixed, target_columns="count", **options)
    last = w[len(w) - 1]
    assert last["past_target"].ravel().tolist() == [10, -7]
    assert last["past_target_mask"].ravel().tolist() == [True, False]
    assert wd.Windows(mixed, target_columns="load", **options)[-1]["past_target"][-1] == -7
    series = wd.Windows(mixed, context_length=6, target_columns="kind", fill=-1)[0]
    assert series["past_target"].ravel().tolist() == [0, 1, -1, 0, 1, -1]


def test_nan_may_stay_nan() -> None:
    w = wd.Windows(table_of(load=[1.0, np.nan]), context_length=2, fill=np.nan)
    sample = w[0]
    assert np.isnan(sample["past_target"]).ravel().tolist() == [False, True]
    assert sample["past_target_mask"].ravel().tolist() == [True, False]


def test_layouts_hold_the_same_values() -> None:
    table = table_of(a=np.arange(20.0), b=np.arange(20.0) * 10, c=np.arange(20), d=np.arange(20))
    options: dict[str, Any] = {
        "context_length": 4,
        "prediction_length": 2,
        "gap": 1,
        "target_columns": ["a", "b"],
        "past_covariates": "c",
        "static_covariates": "d",
    }
    rows = [7, 0, 3]
    btc = wd.Windows(table, **options).gather(rows)
    bct = wd.Windows(table, layout="bct", **options).gather(rows)
    columns = wd.Windows(table, layout="columns", **options).gather(rows)
    for key in ("past_target", "future_target", "past_covariates"):
        np.testing.assert_array_equal(bct[key], btc[key].transpose(0, 2, 1), strict=True)
    both = np.concatenate([btc["past_target"], btc["future_target"]], axis=1)
    np.testing.assert_array_equal(columns["a"], both[:, :, 0], strict=True)
    np.testing.assert_array_equal(columns["b"], both[:, :, 1], strict=True)
    np.testing.assert_array_equal(columns["c"], btc["past_covariates"][:, :, 0], strict=True)
    np.testing.assert_array_equal(columns["d"], btc["static"][:, 0], strict=True)
    assert columns["d"].shape == (3,)


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
def test_batches_can_be_written_into_arrays_at_hand(mixed: wd.Table, layout: Any) -> None:
    w = wd.Windows(
        mixed,
        context_length=3,
        target_columns="load",
        static_covariates=["kind", "hour"] if layout == "columns" else "kind",
        layout=layout,
    )
    expected = w.gather([1, 4])
    out = {key: np.empty_like(array) for key, array in expected.items()}
    found = w.gather([1, 4], out=out)
    for key, array in expected.items():
        np.testing.assert_array_equal(out[key], array, strict=True)
        assert np.shares_memory(found[key], out[key])


def test_one_sample_is_a_row_of_a_batch(mixed: wd.Table) -> None:
    w = wd.Windows(mixed, context_length=3, target_columns="load")
    batch = w.gather([2])
    for key, value in w[2].items():
        np.testing.assert_array_equal(value, batch[key][0])
    assert w[-1]["start"] == w.window_starts()[-1]


def test_threads_do_not_change_a_batch() -> None:
    w = wd.Windows(table_of(load=np.random.default_rng(0).normal(size=5000)), context_length=100)
    indices = np.random.default_rng(1).integers(0, len(w), size=512)
    one, two = w.gather(indices, threads=1), w.gather(indices, threads=2)
    assert w.supports_threads
    for key in one:
        np.testing.assert_array_equal(one[key], two[key])


def test_many_threads_may_gather_at_once() -> None:
    rng = np.random.default_rng(0)
    w = wd.Windows(table_of(load=rng.normal(size=3000)), context_length=50, layout="columns")
    chosen = [rng.integers(0, len(w), size=64) for _ in range(8)]
    expected = [w.gather(indices)["load"] for indices in chosen]

    def work(number: int) -> bool:
        batches = [w.gather(chosen[number])["load"] for _ in range(50)]
        return all(np.array_equal(batch, expected[number]) for batch in batches)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_windows_are_a_source() -> None:
    source: Source = wd.Windows(table_of(), context_length=3)
    assert isinstance(source, Source)


def test_empty_batches_have_their_dtypes_and_shapes() -> None:
    batch = wd.Windows(table_of(), context_length=3).gather([])
    assert batch["past_target"].shape == (0, 3, 1)
    assert batch["past_target"].dtype == np.int64


# --- dtypes -----------------------------------------------------------------------------------


def test_a_floating_dtype_is_for_floating_columns(mixed: wd.Table) -> None:
    w = wd.Windows(
        mixed, context_length=2, target_columns="load", known_covariates="hour", dtype="float32"
    )
    batch = w.gather([0])
    assert batch["past_target"].dtype == np.float32
    assert batch["past_known"].dtype == np.int8


def test_a_mapping_casts_any_column(mixed: wd.Table) -> None:
    casts = {"load": np.float32, "hour": "float32", "count": np.dtype("f4")}
    columns = ["load", "hour", "count"]
    w = wd.Windows(mixed, context_length=2, target_columns=columns, dtype=casts)
    assert w.gather([3])["past_target"].dtype == np.float32
    assert w[3]["past_target"].tolist() == [[3, 0, 3], [4, 1, 4]]


def test_torch_dtypes_are_understood(mixed: wd.Table) -> None:
    torch = pytest.importorskip("torch")
    w = wd.Windows(mixed, context_length=2, target_columns="load", dtype=torch.bfloat16)
    assert w.torch_dtypes == {"past_target": "bfloat16"}
    bits = w.gather([3])["past_target"]
    assert bits.dtype == np.uint16
    values = torch.from_numpy(bits).view(torch.bfloat16)
    assert values.flatten().tolist() == [3.0, 4.0]
    assert wd.Windows(mixed, context_length=2, target_columns="load").torch_dtypes == {}


def test_text_is_not_cast_to_numbers_unasked(mixed: wd.Table) -> None:
    message = (
        r"column 'kind' of past_known is int32 \(the codes of a category\), expected int8 as "
        r"column 'hour': make codes of it by categorical='kind', give it another role, or ask for"
    )
    with pytest.raises(TypeError, match=message):
        wd.Windows(
            mixed, context_length=2, target_columns="load", known_covariates=["hour", "kind"]
        )
    # In layout "columns" every column is a key of its own.
    wd.Windows(mixed, context_length=2, layout="columns")


def test_scaled_integers_become_floating(mixed: wd.Table) -> None:
    scaler = wd.Scaler.fit(mixed, columns="count")
    options: dict[str, Any] = {"context_length": 2, "target_columns": "count", "scaler": scaler}
    w = wd.Windows(mixed, **options)
    batch = w.gather([0])
    assert batch["past_target"].dtype == np.float32
    expected = scaler.transform(np.array([0, 1]), columns="count")
    np.testing.assert_allclose(batch["past_target"].ravel(), expected, rtol=1e-6)
    assert wd.Windows(mixed, dtype="float64", **options)[0]["past_target"].dtype == np.float64
    assert w[len(w) - 1]["past_target"].ravel()[-1] == 0  # a null is filled, not scaled


# --- scaler -----------------------------------------------------------------------------------


def test_with_scaler_equals_transform_afterwards() -> None:
    rng = np.random.default_rng(0)
    table = table_of(offsets=[0, 30, 60], a=rng.normal(size=60), b=rng.normal(size=60) * 9 + 4)
    plain = wd.Windows(table, context_length=5, prediction_length=2)
    for per_series in (False, True):
        scaler = wd.Scaler.fit(plain, per_series=per_series)
        scaled = plain.with_scaler(scaler)
        raw, found = plain.gather([40, 2]), scaled.gather([40, 2])
        for key in ("past_target", "future_target"):
            expected = scaler.transform(raw[key], series_id=raw["series_id"])
            np.testing.assert_array_equal(found[key], expected)
        assert scaled.fingerprint != plain.fingerprint
        again = scaled.with_scaler(None)
        np.testing.assert_array_equal(again[3]["past_target"], plain[3]["past_target"])
        assert again.fingerprint == plain.fingerprint


@pytest.mark.parametrize("kind", ["standard", "minmax", "robust", "mean_abs"])
@pytest.mark.parametrize("center", [0.0, 1e3, 1e9])
def test_scaled_values_are_rounded_as_the_page_says(kind: Any, center: float) -> None:
    x = np.random.default_rng(1).normal(size=300) + center
    table = table_of(a=x)
    scaler = wd.Scaler.fit(table, kind=kind)
    whole: dict[str, Any] = {"context_length": 300, "scaler": scaler}
    found = wd.Windows(table, **whole, dtype="float64")[0]["past_target"][:, 0]
    scale, shift = scaler.scale.item(), scaler.shift.item()
    np.testing.assert_array_equal(found, x * scale + shift)  # the product and the sum
    for dtype in ("float32", "float16"):
        narrow = wd.Windows(table, **whole, dtype=dtype)[0]["past_target"][:, 0]
        np.testing.assert_array_equal(narrow, found.astype(dtype), strict=True)
    middle, spread = Fraction(scaler.center.item()), Fraction(scaler.spread.item())
    for value, result in zip(map(Fraction, x.tolist()), map(Fraction, found.tolist()), strict=True):
        exact = (value - middle) / spread
        bound = (abs(value) + abs(middle)) / spread + 2 * abs(result)
        assert abs(result - exact) <= bound * Fraction(1.0001) / 2**53


def test_columns_the_scaler_does_not_know_stay_as_they_are() -> None:
    table = table_of(a=np.arange(9.0), b=np.arange(9.0) / 3)
    scaler = wd.Scaler.fit(table, columns="a", kind="minmax")
    batch = wd.Windows(table, context_length=2, scaler=scaler).gather([3])
    assert batch["past_target"][0].tolist() == [[3 / 8, 1.0], [4 / 8, 4 / 3]]


def test_scalers_that_do_not_belong_are_refused() -> None:
    table = table_of(offsets=[0, 4, 8], a=np.arange(8.0))
    other = wd.Scaler.fit(table_of(b=np.arange(8.0)))
    with pytest.raises(ValueError, match=r"`scaler` must have some of the columns \('a"):
        wd.Windows(table, context_length=2, scaler=other)
    first = wd.Windows(table, context_length=2).subset(series=0)
    seen = wd.Scaler.fit(first, per_series=True, unseen="error")
    with pytest.raises(ValueError, match="series 1 has no values of column 'a' among those the"):
        wd.Windows(table, context_length=2, scaler=seen)
    assert first.with_scaler(seen)[0]["past_target"].shape == (2, 1)
    named = wd.Table.from_columns({"a": np.arange(4.0)}, offsets=[0, 4], series_names=["north"])
    with pytest.raises(ValueError, match="series 'north' has no values of column 'a'"):
        wd.Windows(named, context_length=2, scaler=seen)


def test_reports_in_pickles_of_earlier_versions_are_described() -> None:
    table = wd.Table.from_columns({"x": np.arange(9.0)})
    report = wd.Windows(table, context_length=3).explain()
    old = pickle.loads(pickle.dumps(report))
    del vars(old)["unseen_categories"]
    again = pickle.loads(pickle.dumps(old))
    assert (str(again), again) == (str(report), report)
