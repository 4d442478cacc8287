"""The future of a forecast from frames of polars, pandas and Arrow, matched by ids and times."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

INDEX: dict[str, Any] = {"id_columns": ["site", "meter"], "timestamp_column": "when"}
PAST, FUTURE = 40, 5
METERS = [("north", 7), ("north", 8), ("south", 7)]
#: Before a change of clocks, so that the future is after it.
FIRST = np.datetime64("2024-03-29T12", "s")


def rows_of(first: int, stop: int, zone: str | None = "Europe/Berlin") -> pa.Table:
    """Return rows of all meters, hour by hour, with a value that names meter and hour."""
    stamps = FIRST + np.arange(first, stop) * np.timedelta64(3600, "s")
    parts = []
    for number, (site, meter) in enumerate(METERS):
        hours = np.arange(first, stop)
        parts.append(
            pa.table(
                {
                    "site": [site] * len(hours),
                    "meter": [meter] * len(hours),
                    "when": pa.array(stamps).cast(pa.timestamp("s", zone)),
                    "load": np.where(hours < PAST, hours + 1000.0 * number, np.nan),
                    "wind": (hours + 100 * number).astype(np.float32),
                    "open": (hours % 24 > 7),
                    "staff": (hours % 5).astype(np.int16),
                    "tariff": pa.array([f"t{hour % 3}" for hour in hours]),
                }
            )
        )
    return pa.concat_tables(parts)


KNOWN = ["wind", "open", "staff", "tariff", "hour_sin", "age"]


def windows_of(table: wd.Table, known: list[str] = KNOWN) -> wd.Windows:
    table = table.with_calendar(["hour", "age"])
    return wd.Windows(
        table, context_length=6, prediction_length=FUTURE, target_columns="load",
        known_covariates=known, layout="columns",
    )  # fmt: skip


def table_of(data: Any, **options: Any) -> wd.Table:
    return wd.Table.from_arrow(data, **INDEX, categories="tariff", **options)


@pytest.fixture
def expected() -> dict[str, Any]:
    """The batch of a table that has the rows of the future."""
    return windows_of(table_of(rows_of(0, PAST + FUTURE))).latest(future=True).gather([0, 1, 2])


def check(found: wd.Windows, expected: dict[str, Any]) -> None:
    batch = found.gather([0, 1, 2])
    for key in set(batch) - {"start"}:
        np.testing.assert_array_equal(batch[key], expected[key], err_msg=key)
        assert batch[key].dtype == expected[key].dtype


def shuffled(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.random.default_rng(0).permutation(len(rows))))


def wide_types(rows: pa.Table) -> pa.Table:
    """Return numbers as frames have them that are made by hand."""
    for name, kind in (("wind", pa.float64()), ("staff", pa.int64()), ("meter", pa.int32())):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(kind))
    return rows


FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda rows: rows,
    "batches": lambda rows: pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()),
    "shuffled": shuffled,
    "polars": pl.DataFrame,
    "lazy": lambda rows: pl.DataFrame(rows).lazy(),
    "pandas": lambda rows: rows.to_pandas(),
    "levels": lambda rows: rows.to_pandas().set_index(["site", "meter", "when"]),
    "wide types": wide_types,
    "nanoseconds": lambda rows: rows.set_column(2, "when", rows["when"].cast(
        pa.timestamp("ns", "UTC"))),
    "more rows": lambda rows: rows_of(0, PAST + 40),
    "table": lambda rows: table_of(rows),
}  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_equal_rows_of_the_table(frame: str, expected: dict[str, Any]) -> None:
    data = FRAMES[frame](rows_of(PAST, PAST + FUTURE).drop(["load"]))
    w = windows_of(table_of(rows_of(0, PAST)))
    v = w.latest(future=data)
    check(v, expected)
    found = v.prediction_table(np.zeros((3, FUTURE)))
    assert found["when"].type == pa.timestamp("s", "Europe/Berlin")


def test_tables_of_files_take_frames(tmp_path: Path, expected: dict[str, Any]) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(rows_of(0, PAST), path, row_group_size=17)
    future = rows_of(PAST, PAST + FUTURE)
    memory = wd.Table.read(path, **INDEX, categories="tariff")
    for table in (memory, pickle.loads(pickle.dumps(memory))):
        check(windows_of(table).latest(future=future), expected)
    streamed = wd.Table.read(path, **INDEX, categories="tariff", in_memory=False)
    w = wd.Windows(
        streamed, context_length=6, prediction_length=FUTURE, target_columns="load",
        known_covariates=KNOWN[:4], layout="columns",
    )  # fmt: skip
    for source in (w, pickle.loads(pickle.dumps(w))):
        check(source.latest(future=future), expected)
    wd.prepare(path, tmp_path / "out", **INDEX)
    prepared = wd.Table.read(tmp_path / "out", **INDEX, categories="tariff")
    check(windows_of(prepared).latest(future=future), expected)


def test_local_times_are_those_of_the_zone_that_the_table_was_read_in(
    expected: dict[str, Any],
) -> None:
    local = rows_of(0, PAST + FUTURE)
    naive = pa.compute.local_timestamp(local["when"])
    local = local.set_column(2, "when", naive)
    kept = pa.array(np.tile(np.arange(PAST + FUTURE) < PAST, 3))
    past, future = local.filter(kept), local.filter(pa.compute.invert(kept))
    zoned = table_of(past, time_zone="Europe/Berlin")
    gap = table_of(pa.concat_tables([past[:7], past[9:]]), time_zone="Europe/Berlin")
    regular = gap.regularize("1h")
    for table in (zoned, pickle.loads(pickle.dumps(zoned)), regular):
        check(windows_of(table).latest(future=future), expected)
        check(windows_of(table).latest(future=rows_of(PAST, PAST + FUTURE)), expected)
    other = windows_of(table_of(rows_of(0, PAST)))  # whose zone is that of the file
    with pytest.raises(ValueError, match=r"the table has time stamps in the time zone Europe/Berl"):
        other.latest(future=future)


def test_a_frame_needs_no_column_where_all_are_calendar_features(expected: dict[str, Any]) -> None:
    w = windows_of(table_of(rows_of(0, PAST)), ["hour_sin", "age"])
    future = rows_of(PAST, PAST + FUTURE).select(["site", "meter", "when"])
    for v in (w.latest(future=future), w.latest(future=True)):
        batch = v.gather([0, 1, 2])
        np.testing.assert_array_equal(batch["hour_sin"], expected["hour_sin"])
        np.testing.assert_array_equal(batch["age"], expected["age"])
    with pytest.raises(ValueError, match=r"no row of series \('south', 7\) at 2024-03-31 08"):
        w.latest(future=future[:-1])


def test_tables_without_names_of_ids_take_those_of_predictions() -> None:
    stamps = np.datetime64("2024-01-01", "D") + np.arange(13)
    wide = {"day": stamps[:10], "north": np.arange(10.0), "south": -np.arange(10.0)}
    table = wd.Table.from_wide(pa.table(wide), series="columns", timestamp_column="day")
    table = table.with_columns({"holiday": np.zeros(20, np.int8)})
    w = wd.Windows(table, context_length=4, prediction_length=3, known_covariates="holiday")
    future = {"series_id": ["south"] * 3 + ["north"] * 3, "day": np.tile(stamps[10:], 2)}
    v = w.latest(future=pl.DataFrame({**future, "holiday": [1, 2, 3, 4, 5, 6]}))
    assert v.gather([0, 1])["future_known"][:, :, 0].tolist() == [[4, 5, 6], [1, 2, 3]]
    rows = wd.Table.from_rows(np.zeros((10, 2), np.float32), ["x", "k"], timestamps=stamps[:10])
    w = wd.Windows(rows, context_length=4, prediction_length=3, known_covariates="k")
    v = w.latest(future=pd.DataFrame({"k": [1, 2, 3]}, index=pd.DatetimeIndex(stamps[10:])))
    assert v.gather([0])["future_known"][0, :, 0].tolist() == [1, 2, 3]


def test_frames_of_periods() -> None:
    months = pd.period_range("2023-01", periods=15, freq="M", name="month")
    frame = pd.DataFrame({"x": np.arange(15.0), "k": np.arange(15.0)}, index=months)
    w = wd.Windows(
        wd.Table.from_pandas(frame[:12]), context_length=3, prediction_length=3,
        target_columns="x", known_covariates="k",
    )  # fmt: skip
    v = w.latest(future=frame[["k"]][12:], step=np.timedelta64(1, "M"))
    assert v[0]["future_known"][:, 0].tolist() == [12, 13, 14]


def test_frames_that_do_not_fit_are_refused() -> None:
    w, rows = windows_of(table_of(rows_of(0, PAST))), rows_of(PAST, PAST + FUTURE)
    missing = shuffled(pa.concat_tables([rows[:7], rows[8:]]))
    with pytest.raises(
        ValueError, match=r"no row of series \('north', 8\) at 2024-03-31 06:00 UTC \(1 row"
    ):
        w.latest(future=missing)
    with pytest.raises(ValueError, match=r"has series \('north', 8\) twice at 2024-03-31 06"):
        w.latest(future=pa.concat_tables([rows, rows[7:8]]))
    with pytest.raises(ValueError, match=r"`future` has no rows of 1 series: \('south', 7\)"):
        w.latest(future=rows[:10])
    for name in ("meter", "when", "wind"):
        with pytest.raises(KeyError, match=f"`future` has no column '{name}'; "):
            w.latest(future=rows.drop([name]))
        with pytest.raises(KeyError, match=f"has no column '{name}'; "):
            w.latest(future=pl.DataFrame(rows).lazy().drop(name))
    for renamed, message in (("at", "its times are 'at'"), (None, "it has 'site', 'meter', ")):
        frame = rows.drop(["when"])
        frame = frame if renamed is None else rows.rename_columns({"when": renamed})
        with pytest.raises(
            KeyError, match="no column 'when'; expected the times .*, and " + message
        ):
            w.latest(future=frame)
    texts = rows.set_column(2, "when", rows["when"].cast(pa.string()))
    for data in (texts, pl.DataFrame(texts), texts.to_pandas()):
        with pytest.raises(
            TypeError, match=r"'when' of `future` is .*string.*pd.to_datetime\(frame"
        ):
            w.latest(future=data)
    for name, values, message in (
        (
            "wind",
            pa.array(["1.5"] * 15),
            "string, expected float32 as in the table: convert it to num",
        ),
        (
            "open",
            pa.array(["yes"] * 15).dictionary_encode(),
            "dict.*, expected bool as in the table",
        ),
        (
            "tariff",
            pa.array([3] * 15),
            "int64, expected texts as in the table: convert it to texts",
        ),
    ):
        changed = rows.set_column(rows.column_names.index(name), name, values)
        with pytest.raises(TypeError, match=f"column '{name}' of `future` is {message}"):
            w.latest(future=changed)
    place = rows.column_names.index("staff")
    large = rows.set_column(place, "staff", pa.array(np.full(15, 1 << 20)))
    with pytest.raises(TypeError, match=r"'staff' of `future` is int64, expected int16 .* 1048576"):
        w.latest(future=large)
    half = rows.set_column(place, "staff", pa.array(np.full(15, 0.5)))
    with pytest.raises(TypeError, match="'staff' of `future` is double, expected int16"):
        w.latest(future=half)
    place = rows.column_names.index("wind")
    for value in (1e300, -1e39):
        wide = rows.set_column(place, "wind", pa.array([0.1] * 14 + [value]))
        with pytest.raises(
            TypeError, match=rf"'wind' of `future` has the value .*{str(value)[-2:]}, which float32"
        ):
            w.latest(future=wide)
    codes = rows.set_column(rows.column_names.index("open"), "open", pa.array(np.full(15, 2)))
    with pytest.raises(TypeError, match="'open' of `future` is int64, expected bool as in the tab"):
        w.latest(future=codes)
    with pytest.raises(TypeError, match="got a dict; frames of polars, pandas and Arrow are taken"):
        w.latest(future={"wind": [1.0]})
    plain = wd.Table.from_columns({"x": np.zeros(9), "k": np.zeros(9)})
    v = wd.Windows(plain, context_length=2, prediction_length=1, known_covariates="k")
    with pytest.raises(ValueError, match="the table has no time stamps, by which rows of the fut"):
        v.latest(future=rows)


def test_floats_are_rounded() -> None:
    w, rows = windows_of(table_of(rows_of(0, PAST)), ["wind"]), rows_of(PAST, PAST + FUTURE)
    values = np.array([0.1, np.inf, -np.inf, 2.5, 3.4e38] * 3)
    wide = rows.set_column(rows.column_names.index("wind"), "wind", pa.array(values))
    batch = w.latest(future=wide).gather([0, 1, 2])
    expected = values.astype(np.float32).reshape(3, FUTURE)
    np.testing.assert_array_equal(batch["wind"][:, 6:], expected)


def test_rows_between_those_that_are_wanted_are_left_out() -> None:
    """Each row is found by its time stamp, wherever it is."""
    rng, hour = np.random.default_rng(0), np.timedelta64(3600, "s")
    w = windows_of(table_of(rows_of(0, PAST)), ["wind"])
    for _ in range(20):
        seconds = np.sort(rng.choice(3600 * 48, rng.integers(1, 90)))
        between = FIRST + seconds * np.timedelta64(1, "s")
        parts = []
        for number, (site, meter) in enumerate(METERS):
            wanted = FIRST + np.arange(PAST, PAST + FUTURE) * hour
            stamps = np.union1d(wanted, between[rng.random(len(between)) < 0.5])
            hours = (stamps - FIRST) / hour + 100 * number
            columns = {
                "site": [site] * len(stamps),
                "meter": meter,
                "when": stamps.astype("M8[ms]"),
            }
            parts.append(pl.DataFrame({**columns, "wind": hours.astype(np.float32)}))
        frame = pl.concat(parts).with_columns(pl.col("when").dt.replace_time_zone("UTC"))
        batch = w.latest(future=frame.sample(fraction=1.0, shuffle=True, seed=1)).gather([0, 1, 2])
        expected = np.arange(PAST, PAST + FUTURE) + 100 * np.arange(3)[:, None]
        np.testing.assert_array_equal(batch["wind"][:, 6:], expected)


def test_missing_values_of_a_frame_are_missing() -> None:
    w, rows = windows_of(table_of(rows_of(0, PAST))), rows_of(PAST, PAST + FUTURE)
    for name in ("wind", "open", "staff", "tariff"):
        values = rows[name].to_pylist()
        values[7] = None
        lacking = rows.set_column(rows.column_names.index(name), name, pa.array(values))
        for frame in (lacking, pl.DataFrame(lacking), lacking.to_pandas()):
            if name in ("open", "staff") and isinstance(frame, pd.DataFrame):
                continue  # which makes objects and floats of them
            counted = rf"the future of the forecast: '{name}' in 1 of 15 rows, first of series \('n"
            with pytest.warns(UserWarning, match=counted) as found:
                latest = w.latest(future=frame)
            assert found[0].filename == __file__
            mask = latest.gather([0, 1, 2])[f"{name}_mask"][:, 6:]
            assert np.argwhere(~mask).tolist() == [[1, 2]], name
