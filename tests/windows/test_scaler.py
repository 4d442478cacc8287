"""Estimates of scalers, their standard errors, merging, JSON and errors."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windeck import Scaler, Table

KINDS: tuple[Any, ...] = ("standard", "minmax", "robust", "mean_abs")
Floats = npt.NDArray[np.float64]


def table_of(values: Any, offsets: list[int] | None = None, name: str = "load") -> Table:
    return Table.from_columns({name: np.asarray(values)}, offsets=offsets)


def model(kind: str, x: Floats) -> Any:
    """Return the scaled values by the textbook formula."""
    if kind == "standard":
        return (x - np.nanmean(x)) / np.nanstd(x)
    if kind == "minmax":
        return (x - np.nanmin(x)) / (np.nanmax(x) - np.nanmin(x))
    if kind == "robust":
        q25, median, q75 = np.nanquantile(x, [0.25, 0.5, 0.75])
        return (x - median) / (q75 - q25)
    return x / np.nanmean(np.abs(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_transform_equals_the_textbook(kind: Any, dtype: str) -> None:
    x = (np.random.default_rng(1).normal(size=500) * 100 + 30).astype(dtype)
    if dtype != "int16":
        x[::7] = np.nan
    scaler = Scaler.fit(table_of(x), kind=kind)
    expected = model(kind, x.astype(np.float64))
    found = scaler.transform(x, columns="load")
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    back = scaler.inverse_transform(found, columns="load")
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-4)
    assert found.dtype == back.dtype == (np.float32 if dtype == "float32" else np.float64)


def test_nulls_and_nan_do_not_count() -> None:
    arrow = pa.table({"a": pa.array([1, None, 3, 8]), "b": pa.array([1.0, math.nan, None, 5.0])})
    scaler = Scaler.fit(Table.from_arrow(arrow), kind="standard")
    assert scaler.statistics["mean"].tolist() == [[4.0, 3.0]]
    assert scaler.counts.tolist() == [[3, 2]]
    # A slice shares the bitmap of the whole array, from a bit offset on.
    sliced = Table.from_arrow(arrow.slice(1), columns=["a"])
    assert Scaler.fit(sliced, kind="minmax").statistics["min"].tolist() == [[3.0]]


def test_bfloat16_is_read_as_numbers() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.0, 3.0, math.nan], dtype=torch.bfloat16)
    assert Scaler.fit(Table.from_columns({"x": tensor})).statistics["mean"].tolist() == [[2.0]]


@pytest.mark.parametrize("kind", ["standard", "robust", "mean_abs"])
def test_standard_errors_are_the_spread_over_seeds(kind: Any) -> None:
    """Check that (estimate - truth) / error has a mean square of 1 over many samples."""
    x = np.random.default_rng(5).gamma(2.0, size=6000)
    table = table_of(x)
    truth = Scaler.fit(table, kind=kind, sample=None).statistics
    fits = [Scaler.fit(table, kind=kind, sample=1500, seed=seed) for seed in range(300)]
    for name, true in truth.items():
        z = [(f.statistics[name] - true).item() / f.errors[name].item() for f in fits]
        assert abs(np.mean(z)) < 0.25, name
        # The mean square of 300 varies by 1 / sqrt(150); without the correction
        # for 1500 of 6000 rows read it would be 0.75.
        assert 0.8 < np.mean(np.square(z)) < 1.25, name


def test_minmax_errors_tell_the_order_of_what_is_unseen() -> None:
    x = np.random.default_rng(2).exponential(size=20_000)
    found = Scaler.fit(table_of(x), kind="minmax", sample=500)
    assert 0 < found.errors["max"].item() < 5
    assert found.statistics["max"].item() <= x.max()


@pytest.mark.parametrize("kind", KINDS)
def test_no_error_where_all_rows_are_read(kind: Any) -> None:
    scaler = Scaler.fit(table_of(np.arange(50.0)), kind=kind)
    assert all(not error.any() for error in scaler.errors.values())
    assert scaler.counts.item() == scaler.weights.item() == 50


def test_sample_is_without_replacement_and_by_seed() -> None:
    table = table_of(2.0 ** np.arange(50))
    sums = {
        round(Scaler.fit(table, sample=10, seed=s).statistics["mean"].item() * 10) for s in range(9)
    }
    assert len(sums) == 9
    assert all(bin(total).count("1") == 10 for total in sums)  # ten different powers of two
    assert Scaler.fit(table, sample=10, seed=3) == Scaler.fit(table, sample=10, seed=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3e7, 1e-310])
def test_equal_values_are_divided_by_one(kind: Any, value: float) -> None:
    scaler = Scaler.fit(table_of(np.full(1001, value)), kind=kind)
    if kind != "mean_abs":
        assert scaler.scale.item() == 1.0
        assert scaler.transform(np.array([value]), columns="load").item() == 0.0
    assert np.isfinite(scaler.scale).all()
    assert np.isfinite(scaler.shift).all()


@settings(deadline=None, derandomize=True, max_examples=60, database=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.data())
def test_parts_merge_to_the_whole(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    kind: Any = data.draw(st.sampled_from(["standard", "minmax", "mean_abs"]))
    a, b, whole = (Scaler.fit(table_of(x), kind=kind) for x in (values[:cut], values[cut:], values))
    merged = a.merge(b)
    for name, expected in whole.statistics.items():
        found = merged.statistics[name]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * max(map(abs, values)))
    assert merged.counts == whole.counts
    assert merged.weights == whole.weights


def test_merged_samples_are_weighted_by_the_rows_they_stand_for() -> None:
    rng = np.random.default_rng(3)
    small, large = rng.normal(size=1000), rng.normal(size=9000) + 10
    merged = Scaler.fit(table_of(small), sample=500).merge(Scaler.fit(table_of(large), sample=500))
    both = np.concatenate([small, large])
    for name, truth in (("mean", both.mean()), ("std", both.std())):
        error = merged.errors[name].item()
        assert abs(merged.statistics[name].item() - truth) < 4 * error < 0.5
    assert merged.weights.item() == 10_000


def test_errors_of_merged_samples_are_the_spread_over_seeds() -> None:
    rng = np.random.default_rng(4)
    parts = [table_of(rng.normal(size=2000)), table_of(rng.normal(size=4000) * 3 + 2)]
    whole = parts[0]["load"], parts[1]["load"]
    both = np.concatenate(whole)
    for name, truth in (("mean", both.mean()), ("std", both.std())):
        z = []
        for seed in range(200):
            a, b = (Scaler.fit(part, sample=400, seed=seed * 2 + i) for i, part in enumerate(parts))
            merged = a.merge(b)
            z.append((merged.statistics[name].item() - truth) / merged.errors[name].item())
        assert 0.75 < np.mean(np.square(z)) < 1.3, name


def test_merging_per_series_brings_series_together_by_name() -> None:
    def fit(names: list[str], values: list[float]) -> Scaler:
        offsets = list(range(0, len(values) + 1, 2))
        table = Table.from_columns({"x": np.array(values)}, offsets=offsets, series_names=names)
        return Scaler.fit(table, per_series=True, kind="minmax")

    merged = fit(["a", "b"], [1, 2, 3, 4]).merge(fit(["b", "c"], [9, 1, 5, 6]))
    assert merged.series == ("a", "b", "c")
    assert merged.statistics["min"].ravel().tolist() == [1, 1, 5]
    assert merged.statistics["max"].ravel().tolist() == [2, 9, 6]


def test_merge_refuses_what_does_not_belong_together() -> None:
    a = Scaler.fit(table_of(np.arange(9.0)))
    robust = Scaler.fit(table_of(np.arange(9.0)), kind="robust")
    with pytest.raises(ValueError, match="'robust' cannot be merged: fit one on all the data"):
        robust.merge(robust)
    for other in (
        Scaler.fit(table_of(np.arange(9.0)), kind="minmax"),
        Scaler.fit(table_of(np.arange(9.0), name="other")),
        Scaler.fit(table_of(np.arange(9.0)), per_series=True),
    ):
        with pytest.raises(ValueError, match="cannot merge Scaler"):
            a.merge(other)


@pytest.fixture
def series_scaler() -> Scaler:
    x = np.array([0.0, 10.0, 100.0, 300.0])
    return Scaler.fit(
        Table.from_columns({"a": x, "b": x * 2}, offsets=[0, 2, 4]), kind="minmax", per_series=True
    )


def test_per_series_scales_each_by_its_own(series_scaler: Scaler) -> None:
    batch = np.array([[[100.0, 300.0]], [[5.0, 20.0]]])  # (batch 2, time 1, columns)
    ids = np.array([1, 0])
    scaled = series_scaler.transform(batch, series_id=ids)
    np.testing.assert_allclose(scaled, [[[0.0, 0.25]], [[0.5, 1.0]]])
    np.testing.assert_allclose(series_scaler.inverse_transform(scaled, series_id=ids), batch)


def test_channels_may_lie_on_any_axis(series_scaler: Scaler) -> None:
    x = np.random.default_rng(0).normal(size=(3, 5, 2))
    ids = np.array([0, 1, 1])
    expected = series_scaler.transform(x, series_id=ids)
    turned = series_scaler.transform(x.transpose(0, 2, 1), series_id=ids, axis=1)
    np.testing.assert_array_equal(turned, expected.transpose(0, 2, 1))
    one = series_scaler.transform(x[:, :, 1], columns="b", series_id=ids)
    np.testing.assert_array_equal(one, expected[:, :, 1])
    swapped = series_scaler.transform(x[:, :, ::-1], columns=["b", "a"], series_id=ids)
    np.testing.assert_array_equal(swapped[:, :, ::-1], expected)


def test_tensors_stay_tensors_and_differentiable() -> None:
    torch = pytest.importorskip("torch")
    scaler = Scaler.fit(table_of(np.arange(11.0)), kind="standard")
    forecast = torch.zeros(4, 2, 1, requires_grad=True)
    back = scaler.inverse_transform(forecast)
    back.sum().backward()
    assert back.dtype == torch.float32
    np.testing.assert_allclose(back.detach().numpy(), 5.0)
    np.testing.assert_allclose(forecast.grad.numpy(), scaler.spread.item(), rtol=1e-6)
    half = scaler.inverse_transform(torch.zeros(2, 1, dtype=torch.bfloat16), columns=["load"])
    assert half.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_series", [False, True])
def test_json_comes_back_equal(kind: Any, per_series: bool) -> None:
    x = np.random.default_rng(7).normal(size=30)
    ids = np.repeat([("é", 1), ("b", 2), ("c", 3)], 10, axis=0)
    table = Table.from_columns(
        {"x": x, "n": np.arange(30), "id": ids[:, 0], "nr": ids[:, 1].astype(int)},
        id_columns=["id", "nr"],
    )
    scaler = Scaler.fit(table, kind=kind, per_series=per_series, sample=5)
    again = Scaler.from_json(scaler.to_json())
    assert again == scaler
    assert hash(again) == hash(scaler)
    assert again.series == scaler.series
    assert scaler != Scaler.fit(table, kind=kind, per_series=per_series, sample=6)
    for name, values in scaler.statistics.items():
        np.testing.assert_array_equal(again.statistics[name], values, strict=True)


GOOD = Scaler.fit(table_of([1.0, 2.0]), kind="mean_abs").to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read: Expecting value"),
        ("[1]", "it is not an object"),
        ("[" * 100_000, "cannot be read"),
        (
            GOOD.replace('"format": 1', '"format": 2'),
            "JSON has format 2, expected 1: a later windeck",
        ),
        (GOOD.replace("mean_abs", "magic"), "kind is 'magic'"),
        (GOOD.replace("1.5", "NaN"), "it holds NaN"),
        (GOOD.replace("1.5", "1e999"), "mean_abs of column 'load' is .*inf.*, expected 1 finite"),
        (GOOD.replace("1.5", '"__import__(1)"'), "expected 1 finite numbers"),
        (GOOD.replace('"count": 2', '"count": -2'), "count of column 'load' is negative"),
        (GOOD.replace('"series": null', '"series": ["a", "b"]'), "expected 2 finite numbers"),
        (GOOD.replace('"series": null', '"series": 3'), "series is not a list"),
        (json.dumps({**json.loads(GOOD), "columns": {}}), "it names no columns"),
        (json.dumps({**json.loads(GOOD), "columns": {"a": 1}}), "'a' is not an object"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scaler.from_json(text)


def test_repr_and_explain_show_the_standard_error() -> None:
    x = np.random.default_rng(1).normal(size=10_000)
    scaler = Scaler.fit(table_of(x), sample=400)
    error = scaler.errors["mean"].item()
    assert f"± {error:.2g}, std" in repr(scaler)
    assert repr(scaler).startswith("Scaler(kind='standard')\n  load: mean ")
    assert scaler.explain().endswith("of 400 values out of about 10,000")
    assert "in 2 series" in Scaler.fit(table_of(x, [0, 9, 10_000]), per_series=True).explain()
    many = Table.from_columns({f"c{i}": x for i in range(30)})
    assert repr(Scaler.fit(many)).endswith("... 19 more columns")


def test_explain_shows_the_range_over_series() -> None:
    table = table_of([1.0, 2.0, 5.0, 8.0], [0, 2, 4])
    together = Scaler.fit(table, kind="minmax").explain()
    assert together == "load: min 1, max 8, of 4 values, exact"
    by_series = Scaler.fit(table, kind="minmax", per_series=True).explain()
    assert by_series == "load: min 1 to 5, max 2 to 8, of 4 values in 2 series, exact"


def test_default_columns_are_quantities() -> None:
    arrow = pa.table({"x": [1.0, 2.0], "kind": ["a", "b"], "flag": [True, False], "n": [1, 2]})
    table = Table.from_arrow(arrow, categories=["kind"])
    assert Scaler.fit(table).columns == ("x", "n")
    with pytest.raises(TypeError, match="column 'kind' is a category, expected numbers"):
        Scaler.fit(table, columns="kind")
    with pytest.raises(TypeError, match="column 'flag' is bool, expected numbers"):
        Scaler.fit(table, columns=["flag"])
    with pytest.raises(ValueError, match="no column holds numbers"):
        Scaler.fit(Table.from_columns({"flag": np.array([True])}))


def test_fit_refuses_bad_input() -> None:
    table = table_of([1.0, 2.0, np.inf])
    with pytest.raises(ValueError, match=r"column 'load' holds 1 infinite values among 3 sampled"):
        Scaler.fit(table)
    huge = table_of([1e308, -1e308, 1.0])
    with pytest.raises(ValueError, match="column 'load' holds values too large to fit"):
        Scaler.fit(huge, kind="minmax")
    with pytest.raises(KeyError, match=r"no column 'laod'.*'load'"):
        Scaler.fit(table, columns="laod")
    with pytest.raises(ValueError, match="column 'load' has no observed value"):
        Scaler.fit(table_of([np.nan, np.nan]))
    with pytest.raises(TypeError, match="`data` must be a Table or Windows, got a dict"):
        Scaler.fit({"x": np.arange(3)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`kind` must be one of standard, minmax, .*, got 'norm'"):
        Scaler.fit(table, kind="norm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`sample` must be at least 2, got 0"):
        Scaler.fit(table, sample=0)
    with pytest.raises(TypeError, match=r"`sample` must be an integer, got float 0.5"):
        Scaler.fit(table, sample=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`columns` must name .*, got \('load', 'load'\)"):
        Scaler.fit(table, columns=["load", "load"])


def test_transform_refuses_bad_input(series_scaler: Scaler) -> None:
    x = np.zeros((2, 3, 2))
    with pytest.raises(ValueError, match=r"`array` must have 2 channels .*, got shape \(2, 3\)"):
        series_scaler.transform(np.zeros((2, 3)), series_id=[0, 1])
    with pytest.raises(ValueError, match="`series_id` must be given: the scaler is per series"):
        series_scaler.transform(x)
    with pytest.raises(ValueError, match=r"`series_id` must be integers .*, got dtype float64"):
        series_scaler.transform(x, series_id=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"must be integers of shape \(2,\), .* shape \(3,\)"):
        series_scaler.transform(x, series_id=[0, 1, 1])
    with pytest.raises(IndexError, match=r"`series_id` must be in \[0, 2\), got 2"):
        series_scaler.transform(x, series_id=[0, 2])
    with pytest.raises(KeyError, match="the scaler has no column 'c'"):
        series_scaler.transform(x, columns=["a", "c"], series_id=[0, 1])
    for scale in (series_scaler.transform, series_scaler.inverse_transform):
        with pytest.raises(
            TypeError, match=r"got a dict of values to scale, expected an array .*, one"
        ):
            scale({"past_target": x}, series_id=[0, 1])
        with pytest.raises(
            TypeError, match=r"got a list of values to scale, expected an array or a t"
        ):
            scale([[1.0]], series_id=[0])
