"""Tables of predictions: time zones, units of scaled values, layouts and ids of the data."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, feather, parquet

import windeck as wd

ROWS, CONTEXT, HORIZON = 6, 3, 4
ZONES = [None, "UTC", "Europe/Berlin", "+05:30", "America/St_Johns"]
UNITS = ["s", "ms", "us", "ns"]
# The first hour is before a change of the clock in Berlin, the last one after it.
FIRST = dt.datetime(2024, 3, 30, 22, tzinfo=dt.timezone.utc)


def hours(first: int, stop: int, unit: str, zone: str | None) -> Any:
    """Return hours after `FIRST`."""
    stamps = [FIRST + dt.timedelta(hours=hour) for hour in range(first, stop)]
    naive = [stamp.replace(tzinfo=None) for stamp in stamps]
    return pa.array(naive, pa.timestamp(unit)).cast(pa.timestamp(unit, zone))


def data(unit: str, zone: str | None) -> Any:
    """Return two series of the same hours."""
    time = pa.concat_arrays([hours(0, ROWS, unit, zone)] * 2)
    ids = pa.array(["a"] * ROWS + ["b"] * ROWS)
    return pa.table({"id": ids, "time": time, "x": np.arange(2.0 * ROWS)})


OPTIONS: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time"}


def _read(write: Callable[[Any, str], Any], **options: Any) -> Callable[[Any, Path], wd.Table]:
    def read(table: Any, path: Path) -> wd.Table:
        path = path / ("data.arrow" if write is not parquet.write_table else "data.parquet")
        write(table, str(path))
        return wd.Table.read(path, **OPTIONS, **options)

    return read


def _mapped(table: Any, path: str) -> None:
    feather.write_feather(table.combine_chunks(), path, compression="uncompressed")


def _csv(table: Any, path: Path) -> wd.Table:
    csv.write_csv(table, path / "data.csv")
    return wd.Table.read(path / "data.csv", **OPTIONS)


def _prepared(table: Any, path: Path) -> wd.Table:
    parquet.write_table(table.take(pa.array(np.arange(len(table))[::-1])), path / "data.parquet")
    wd.prepare(path / "data.parquet", path / "out", **OPTIONS)
    return wd.Table.read(path / "out", **OPTIONS)


def _lists(table: Any, path: Path) -> wd.Table:
    grouped = table.group_by("id").aggregate([("time", "list"), ("x", "list")])
    grouped = grouped.rename_columns({"time_list": "time", "x_list": "x"})
    return wd.Table.from_series(grouped, **OPTIONS)


def _starts(table: Any, path: Path) -> wd.Table:
    starts = table.group_by("id").aggregate([("time", "min"), ("x", "list")])
    starts = starts.rename_columns({"time_min": "time", "x_list": "x"})
    return wd.Table.from_series(starts, freq="h", **OPTIONS)


def _wide(table: Any, path: Path) -> wd.Table:
    time, x = table["time"][:ROWS], table["x"].to_numpy()
    wide = pa.table({"time": time, "a": x[:ROWS], "b": x[ROWS:]})
    return wd.Table.from_wide(wide, series="columns", timestamp_column="time", name="x")


def _columns(table: Any, path: Path) -> wd.Table:
    columns = {name: table[name].to_pandas() for name in table.column_names}
    return wd.Table.from_columns(columns, **OPTIONS)


READERS: dict[str, Callable[[Any, Path], wd.Table]] = {
    "arrow": lambda table, _: wd.Table.from_arrow(table, **OPTIONS),
    "unsorted": lambda table, _: wd.Table.from_arrow(
        table.take(pa.array(np.arange(len(table))[::-1])), **OPTIONS
    ),
    "pandas": lambda table, _: wd.Table.from_arrow(table.to_pandas(), **OPTIONS),
    "columns": _columns,
    "parquet": _read(parquet.write_table),
    "rows": _read(parquet.write_table, storage="rows"),
    "streamed parquet": _read(parquet.write_table, in_memory=False),
    "arrow file": _read(_mapped),
    "mapped": _read(_mapped, in_memory=False),
    "streamed arrow": _read(_mapped, in_memory=False, group_bytes=1000),
    "csv": _csv,
    "prepared": _prepared,
    "lists": _lists,
    "starts": _starts,
    "wide": _wide,
}

CHANGES: dict[str, Callable[[wd.Table], wd.Table]] = {
    "as it is": lambda table: table,
    "pickled": lambda table: pickle.loads(pickle.dumps(table)),
    "counted": lambda table: table.with_missing_counts(),
}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reader", READERS)
def test_time_stamps_keep_their_zone(
    reader: str, unit: str, zone: str | None, tmp_path: Path
) -> None:
    read = READERS[reader](data(unit, zone), tmp_path)
    if reader == "csv":  # which has offsets, no names of zones
        zone = zone and "UTC"
    assert read.time_zone == zone
    for change in CHANGES.values():
        table = change(read)
        windows = wd.Windows(table, context_length=CONTEXT, prediction_length=2)
        parts = (windows.latest(), ROWS, HORIZON), (windows.subset(last=1), ROWS - 2, 2)
        for part, first, horizon in parts:
            found = part.prediction_table(np.zeros((2, horizon)))["time"]
            assert found.type.tz == zone
            expected = hours(first, first + horizon, found.type.unit, zone).to_pylist()
            assert found.to_pylist() == expected * 2
            assert found.to_pylist()[0].tzinfo == expected[0].tzinfo


def test_derived_tables_keep_the_zone() -> None:
    table = wd.Table.from_arrow(data("us", "Europe/Berlin"), **OPTIONS)
    for derived in (table.with_calendar("hour"), table.with_columns({"y": np.zeros(2 * ROWS)})):
        assert derived.time_zone == "Europe/Berlin"
    assert wd.Table.from_columns({"x": np.zeros(3)}).time_zone is None
    numbered = {"x": np.zeros(3), "t": np.arange(3)}
    assert wd.Table.from_columns(numbered, timestamp_column="t").time_zone is None


# --- scaled predictions --------------------------------------------------------------------------


def sites(order: tuple[str, ...] = ("a", "b")) -> wd.Table:
    """Return a table of two columns in other units, with as many rows in each series."""
    starts = {"a": 0.0, "b": 1000.0}
    x = np.concatenate([starts[name] + np.arange(10.0) for name in order])
    columns = {"x": x, "y": x * -3, "site": np.repeat(list(order), 10), "meter": np.repeat(7, 20)}
    return wd.Table.from_columns(columns, id_columns=["site", "meter"])


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
@pytest.mark.parametrize("per_series", [False, True])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_scaled_predictions_are_put_back_by_name(
    layout: Any, per_series: bool, horizon: int
) -> None:
    """The truth as a scaled prediction is the truth in units."""
    scaler = wd.Scaler.fit(sites(), per_series=per_series)
    scaler = wd.Scaler.from_json(scaler.to_json())
    table = sites(("b", "a"))
    windows = wd.Windows(
        table,
        context_length=3,
        prediction_length=horizon,
        layout=layout,
        scaler=scaler,
        dtype="float64",
    )
    indices = np.random.default_rng(0).permutation(len(windows))[:7]
    batch = windows.gather(indices)
    predictions: Any = batch.get("future_target")
    if layout == "columns":
        predictions = {name: batch[name][:, 3:] for name in ("y", "x")}
        stacked = np.stack([predictions[name] for name in ("x", "y")], axis=2)
        same = windows.prediction_table(stacked, indices, scaled=True)
        assert same == windows.prediction_table(predictions, indices, scaled=True)
    found = windows.prediction_table(predictions, indices, scaled=True)
    assert found.column_names == ["site", "meter", "row", "x", "y"]
    starts = {"a": 0.0, "b": 1000.0}
    expected = [starts[row["site"]] + row["row"] for row in found.to_pylist()]
    np.testing.assert_allclose(found["x"], expected)
    np.testing.assert_allclose(found["y"], np.array(expected) * -3)
    assert set(found["meter"].to_pylist()) == {7}
    kept = windows.prediction_table(predictions, indices, scaled=False)
    plain = windows.with_scaler(None).prediction_table(predictions, indices)
    assert kept == plain
    assert kept == windows.with_scaler(None).prediction_table(predictions, indices, scaled=False)
    if layout != "columns":
        tensor = windows.prediction_table(torch.from_numpy(predictions), indices, scaled=True)
        assert tensor == found


def test_what_predictions_of_scaled_windows_are_must_be_said() -> None:
    scaler = wd.Scaler.fit(sites(), columns="x")
    windows = wd.Windows(sites(), context_length=3, scaler=scaler, target_columns=["x", "y"])
    values = np.zeros((2, 1, 2))
    for given in (windows.latest(), windows.subset(last=1), windows.joined().latest()):
        with pytest.raises(ValueError, match=r"`scaled` must be given, .* scaled=True for .*False"):
            given.prediction_table(values)
    found = windows.latest().prediction_table(values, scaled=True)
    np.testing.assert_allclose(found["x"], scaler.center[0, 0])
    np.testing.assert_allclose(found["y"], 0.0)  # is not scaled
    one = windows.latest().prediction_table(np.zeros((2, 1)), columns="x", scaled=True)
    assert one["x"].to_pylist() == found["x"].to_pylist()
    quantiles: dict[str, Any] = {"columns": ["low", "high"]}
    assert windows.latest().prediction_table(values, **quantiles, scaled=False).num_rows == 2
    with pytest.raises(KeyError, match="the windows has no column 'low'"):
        windows.latest().prediction_table(values, **quantiles, scaled=True)


def test_predictions_without_a_scaler_are_not_scaled() -> None:
    windows = wd.Windows(sites(), context_length=3).latest()
    with pytest.raises(ValueError, match="`scaled` is True, but the windows have no scaler: exp"):
        windows.prediction_table(np.zeros((2, 1, 2)), scaled=True)
    assert windows.prediction_table(np.zeros((2, 1, 2)), scaled=False).num_rows == 2


def test_predictions_of_other_windows_are_refused() -> None:
    """Those of the last windows are given to all windows."""
    windows = wd.Windows(sites(), context_length=3)
    predictions = np.zeros((len(windows.latest()), 1, 2))
    cure = "expected prediction_table of the windows that were predicted, or their `indices`"
    with pytest.raises(ValueError, match=rf"must have shape .* got \(2, 1, 2\); {cure}$"):
        windows.prediction_table(predictions)
    with pytest.raises(ValueError, match=r"must have shape .* got \(2, 1, 3\)$"):
        windows.latest().prediction_table(np.zeros((2, 1, 3)))


def test_a_step_is_of_tables_with_time_stamps() -> None:
    windows = wd.Windows(wd.Table.from_columns({"x": np.arange(9.0)}), context_length=3)
    with pytest.raises(ValueError, match="`step` is '1h', but the table has no timestamp column"):
        windows.latest().prediction_table(np.zeros((1, 2)), step="1h")


def test_predictions_of_columns() -> None:
    columns = wd.Windows(sites(), context_length=3, layout="columns").latest()
    zeros = np.zeros((2, 4))
    with pytest.raises(KeyError, match="`predictions` has the columns x, expected x, y"):
        columns.prediction_table({"x": zeros})
    with pytest.raises(
        ValueError, match=r"column 'y' must have shape \(windows, horizon\), .* \(2"
    ):
        columns.prediction_table({"x": zeros, "y": zeros[:, :3]})
    other = wd.Windows(sites(), context_length=3).latest()
    with pytest.raises(TypeError, match="is a mapping of columns, expected an array as of layout="):
        other.prediction_table({"x": zeros, "y": zeros})


# --- quantiles, samples and cutoffs --------------------------------------------------------------

LEVELS = (0.9, 0.05, 0.5)


def in_layout(values: Any, layout: str) -> Any:
    """Return values (windows, horizon, columns, k) in a layout of batches."""
    if layout == "columns":
        return {name: values[:, :, place] for place, name in enumerate(("x", "y"))}
    return values.swapaxes(1, 2) if layout == "bct" else values


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
@pytest.mark.parametrize("scaled", [None, False, True])
def test_quantiles_have_a_column_for_each_level(layout: Any, scaled: bool | None) -> None:
    scaler = None if scaled is None else wd.Scaler.fit(sites(), per_series=True)
    windows = wd.Windows(sites(), context_length=3, scaler=scaler, layout=layout).latest()
    middle = np.random.default_rng(0).normal(size=(2, 4, 2))
    values = np.stack([middle + 1, middle - 1, middle], axis=3)
    found = windows.prediction_table(in_layout(values, layout), quantiles=LEVELS, scaled=scaled)
    names = [f"{name}_q{level}" for name in ("x", "y") for level in LEVELS]
    assert found.column_names == ["site", "meter", "row", *names]
    by_level = dict(zip(LEVELS, np.moveaxis(values, 3, 0), strict=True))
    for place, level in enumerate(LEVELS):
        point = in_layout(by_level[level], layout)
        expected = windows.prediction_table(point, scaled=scaled)
        for name in ("x", "y"):
            np.testing.assert_allclose(found[f"{name}_q{level}"], expected[name], rtol=1e-6)
        assert place < 3
    mapped = {level: in_layout(point, layout) for level, point in by_level.items()}
    assert windows.prediction_table(mapped, scaled=scaled) == found


def test_quantiles_of_one_column_need_no_axis_of_columns() -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    values = np.arange(2.0 * 4 * 2).reshape(2, 4, 2)
    for given in (values, torch.from_numpy(values), values[:, :, None]):
        found = windows.prediction_table(given, quantiles=[0.1, 0.9])
        assert found["y_q0.1"].to_pylist() == values[:, :, 0].ravel().tolist()
    bct = wd.Windows(sites(), context_length=3, target_columns="y", layout="bct").latest()
    assert bct.prediction_table(values, quantiles=[0.1, 0.9]) == found
    assert bct.prediction_table(values[:, None], quantiles=[0.1, 0.9]) == found
    one = {0.5: torch.from_numpy(values[:, :, 0]).bfloat16()}
    assert windows.prediction_table(one)["y_q0.5"].type == pa.float32()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_levels_have_short_names(dtype: Any) -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    values, levels = np.zeros((2, 4, 3)), np.array([0.1, 0.5, 0.95], dtype)
    names = ["y_q0.1", "y_q0.5", "y_q0.95"]
    mapped = dict.fromkeys(levels, values[:, :, 0])
    assert windows.prediction_table(mapped).column_names[-3:] == names
    for given in (levels, torch.from_numpy(levels), list(levels), tuple(torch.from_numpy(levels))):
        assert windows.prediction_table(values, quantiles=given).column_names[-3:] == names


def test_missing_predictions_stay() -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    found = windows.prediction_table(np.full((2, 1), np.nan))["y"]
    assert found.null_count == 0
    assert np.isnan(found.to_numpy()).all()


@pytest.mark.parametrize(
    "dtype",
    ["Float64", "Float32", "Int64", "Int8", "float64[pyarrow]", "float[pyarrow]", "int64[pyarrow]"],
)
def test_frames_of_nullable_and_arrow_types(dtype: str) -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    values = np.arange(6.0).reshape(2, 3)
    frame = pd.DataFrame(values).astype(dtype)
    for given in (frame, frame.convert_dtypes(), frame.astype(object)):
        found = windows.prediction_table(given)["y"]
        assert found.type == pa.float64()
        assert found.to_pylist() == values.ravel().tolist()
    found = windows.prediction_table(frame.mask(frame == 4))["y"]
    np.testing.assert_array_equal(found.to_numpy(), [0, 1, 2, 3, np.nan, 5])


@pytest.mark.parametrize("layout", ["btc", "columns"])
def test_objects_that_are_numbers(layout: Any) -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y", layout=layout).latest()

    def table_of(values: Any, **options: Any) -> Any:
        given = {"y": np.asarray(values)} if layout == "columns" else values
        return windows.prediction_table(given, **options)

    for one in (1.0, 1, np.float32(1), np.int8(1), Decimal(1), Fraction(1)):
        values = np.array([[one, 1.0]] * 2, dtype=object)
        assert table_of(values)["y"].to_pylist() == [1.0] * 4
        levels = table_of(np.stack([values, values], axis=-1), quantiles=LEVELS[:2])
        assert levels.column_names[-1] == f"y_q{LEVELS[1]}"
        assert levels.num_rows == 4
    for missing in (None, np.nan, pd.NA, Decimal("NaN")):
        found = table_of([[missing, 2.5], [3, missing]])["y"]
        np.testing.assert_array_equal(found.to_numpy(), [np.nan, 2.5, 3, np.nan])
        assert np.isnan(table_of(np.full((2, 1), missing, object))["y"].to_numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64"])
def test_numbers_keep_their_dtype(dtype: str) -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    values = np.arange(6).reshape(2, 3).astype(dtype)
    given: list[Any] = [values, torch.from_numpy(values)]
    given += [pd.DataFrame(values)] if dtype != "float16" else []
    for one in given:
        assert windows.prediction_table(one)["y"].type == pa.from_numpy_dtype(values.dtype)


@pytest.mark.parametrize(
    "one", [True, np.True_, "1.5", np.str_("1"), b"1", 1j, np.complex64(1), dt.datetime(2024, 1, 1),
            np.datetime64(1, "D"), np.timedelta64(1, "D"), [1.0], {}]
)  # fmt: skip
def test_objects_that_are_no_numbers(one: Any) -> None:
    values = np.full((2, 2), 1.0, dtype=object)
    values[1, 1] = one
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    for given in (values, pd.DataFrame(values)):
        with pytest.raises(TypeError, match="`predictions` must be real numbers, got object"):
            windows.prediction_table(given)
    columns = wd.Windows(sites(), context_length=3, target_columns="y", layout="columns").latest()
    with pytest.raises(TypeError, match="of column 'y' must be real numbers, got object"):
        columns.prediction_table({"y": values})


@pytest.mark.parametrize("dtype", ["boolean", "bool[pyarrow]", "string", "datetime64[ns]"])
def test_frames_that_are_no_numbers(dtype: str) -> None:
    windows = wd.Windows(sites(), context_length=3, target_columns="y").latest()
    with pytest.raises(TypeError, match="`predictions` must be real numbers, got "):
        windows.prediction_table(pd.DataFrame(np.zeros((2, 3), int)).astype(dtype))


def test_columns_of_predictions_are_real_numbers() -> None:
    windows = wd.Windows(sites(), context_length=3, layout="columns").latest()
    given = {"x": np.zeros((2, 4)), "y": np.zeros((2, 4), np.complex64)}
    with pytest.raises(TypeError, match="of column 'y' must be real numbers, got complex64"):
        windows.prediction_table(given)


def test_samples_have_a_row_each() -> None:
    windows = wd.Windows(sites(), context_length=3).latest()
    values = np.random.default_rng(0).normal(size=(2, 3, 2, 5))
    found = windows.prediction_table(values, samples=True).to_pylist()
    assert len(found) == 2 * 3 * 5
    for window, site in enumerate("ab"):
        for step in range(3):
            for sample in range(5):
                row = found[(window * 3 + step) * 5 + sample]
                assert row == {
                    "site": site, "meter": 7, "row": 10 + step, "sample": sample,
                    "x": values[window, step, 0, sample], "y": values[window, step, 1, sample],
                }  # fmt: skip
    levels = windows.prediction_table(values, samples=True, quantiles=[0.25, 0.5])
    assert levels.num_rows == 6
    np.testing.assert_allclose(levels["y_q0.5"], np.median(values[:, :, 1], axis=2).ravel())
    scaler = wd.Scaler.fit(sites(), per_series=True)
    scaled = windows.with_scaler(scaler).prediction_table(values, samples=True, scaled=True)
    whole = windows.with_scaler(scaler).inverse_transform(values[..., 3])
    np.testing.assert_allclose(scaled["x"].to_numpy()[3::5], whole[:, :, 0].ravel())


def test_quantiles_that_cross_are_counted() -> None:
    windows = wd.Windows(sites(), context_length=3).latest()
    values = np.zeros((2, 4, 2, 3))
    values[..., 0], values[..., 1], values[..., 2] = 1, -1, 0  # levels 0.9, 0.05, 0.5
    values[0, :2, 0, 0] = -0.5  # below the middle
    values[0, 0, 0, 1] = 3.0  # above both, in a prediction that crosses already
    values[1, 3, 1, 2] = np.nan
    with pytest.warns(
        UserWarning, match=r"quantiles cross, .* in some of 8 predictions: 'x' in 2; they are in"
    ) as caught:
        found = windows.prediction_table(values, quantiles=LEVELS)
    assert caught[0].filename == __file__
    assert found["x_q0.9"].to_pylist()[:3] == [-0.5, -0.5, 1.0]
    values[0, :, 1, 2] = 7.0
    with pytest.warns(UserWarning, match="of 8 predictions: 'x' in 2, 'y' in 4; they are in"):
        windows.prediction_table(values, quantiles=LEVELS)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (np.zeros((2, 4, 2, 2)), {"quantiles": LEVELS}, ValueError,
         r"must have shape \(2, horizon, 2, 3\), windows by steps by columns x, y by quantiles"),
        (np.zeros((2, 4, 2)), {"samples": True}, ValueError, r"\(2, horizon, 2, samples\), win"),
        (np.zeros((2, 4, 2, 1)), {"quantiles": 1.0}, ValueError, "must be between 0 and 1, got "),
        (np.zeros((2, 4, 2, 1)), {"quantiles": 0.0}, ValueError, "must be between 0 and 1, got "),
        (np.zeros((2, 4, 2, 2)), {"quantiles": (0.1, 0.1)}, ValueError, "must be different, got "),
        ({0.5: np.zeros((2, 4, 2))}, {"samples": True}, ValueError, "is a mapping of levels, exp"),
        ({5: np.zeros((2, 4, 2))}, {}, ValueError, r"levels of quantiles must be between 0 and 1"),
        ({0.5: np.zeros((2, 4, 2)), 0.9: np.zeros((2, 3, 2))}, {}, ValueError,
         r"all levels must have one shape, got \(2, 4, 2\) and \(2, 3, 2\)"),
        ({}, {}, TypeError, "is a mapping of columns, expected an array"),
        ({"0.10": np.zeros((2, 4, 2))}, {}, TypeError,
         r"mapping with the key '0.10'; expected levels of quantiles as numbers, such as {0.1: "),
        ({0.5: np.zeros((2, 4, 2)), "0.9": np.zeros((2, 4, 2))}, {}, TypeError, "the key '0.9'"),
        (np.zeros((2, 4, 2), complex), {}, TypeError, "must be real numbers, got complex128"),
        ({0.5: np.zeros((2, 4, 2), bool)}, {}, TypeError, "must be real numbers, got bool"),
        (torch.zeros((2, 4, 2), dtype=torch.bool), {}, TypeError, "must be real numbers, got bool"),
    ],
)  # fmt: skip
def test_bad_quantiles(
    given: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    windows = wd.Windows(sites(), context_length=3).latest()
    with pytest.raises(error, match=message):
        windows.prediction_table(given, **options)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_cutoffs_are_the_last_time_stamps_of_the_past(zone: str | None) -> None:
    table = wd.Table.from_arrow(data("us", zone), **OPTIONS)
    for gap, dilation in ((0, 1), (2, 1), (-1, 1), (-1, 2)):
        options: dict[str, Any] = {"context_length": 2, "prediction_length": 2}
        windows = wd.Windows(table, **options, gap=gap, dilation=dilation)
        horizon = 2 - (gap == -1 and dilation == 1)  # It repeats a step of the past then.
        found = windows.prediction_table(np.zeros((len(windows), horizon)), cutoff=True)
        assert found.column_names == ["id", "time", "cutoff", "x"]
        assert found["cutoff"].type == found["time"].type
        _, starts = windows.locate(np.arange(len(windows)))
        stamps = data("us", zone)["time"].take(pa.array(np.repeat(starts + dilation, horizon)))
        assert found["cutoff"].to_pylist() == stamps.to_pylist()
    rows = wd.Windows(sites(), context_length=3).latest()
    found = rows.prediction_table(np.zeros((2, 1, 2)), cutoff=True)
    assert (found["cutoff"].to_pylist(), found["row"].to_pylist()) == ([9, 9], [10, 10])


def test_names_that_are_taken_are_refused() -> None:
    columns = {"x": np.zeros(4), "cutoff": np.array(["a"] * 4), "sample": np.arange(4)}
    table = wd.Table.from_columns(columns, id_columns="cutoff", timestamp_column="sample")
    w = wd.Windows(table, context_length=2).latest()
    assert w.prediction_table(np.zeros((1, 1))).column_names == ["cutoff", "sample", "x"]
    refused = pytest.raises(ValueError, match=r"column '\w+' is in the table already, expected ano")
    with refused:
        w.prediction_table(np.zeros((1, 1)), cutoff=True)
    with refused:
        w.prediction_table(np.zeros((1, 1, 1)), samples=True)
