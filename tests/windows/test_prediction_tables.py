"""Tables of predictions: time zones, units of scaled values, layouts and ids of the data."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
        for part, first in ((windows.latest(), ROWS), (windows.subset(last=1), ROWS - 2)):
            found = part.prediction_table(np.zeros((2, HORIZON)))["timestamp"]
            assert found.type.tz == zone
            expected = hours(first, first + HORIZON, found.type.unit, zone).to_pylist()
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
    assert found.column_names == ["series_id_0", "series_id_1", "row", "x", "y"]
    starts = {"a": 0.0, "b": 1000.0}
    expected = [starts[row["series_id_0"]] + row["row"] for row in found.to_pylist()]
    np.testing.assert_allclose(found["x"], expected)
    np.testing.assert_allclose(found["y"], np.array(expected) * -3)
    assert set(found["series_id_1"].to_pylist()) == {7}
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
    quantiles = {"columns": ["low", "high"]}
    assert windows.latest().prediction_table(values, **quantiles, scaled=False).num_rows == 2
    with pytest.raises(KeyError, match="the windows has no column 'low'"):
        windows.latest().prediction_table(values, **quantiles, scaled=True)


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
