"""Steps and gaps of local days and of months, against pandas and datetime."""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import windeck as wd

ZONES = (
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "America/Havana",
    "Antarctica/Troll",
)
DAY = np.timedelta64(1, "D")


def frame_of(times: Any) -> pd.DataFrame:
    return pd.DataFrame({"time": times, "load": np.arange(len(times)) * 1.0})


def both(frame: pd.DataFrame, folder: Path) -> list[wd.Table]:
    """Return the table in memory and the streamed one, in parts of few rows."""
    data = pa.Table.from_pandas(frame, preserve_index=False)
    parquet.write_table(data, folder / "a.parquet", row_group_size=7)
    names: dict[str, Any] = {"timestamp_column": "time"}
    if "site" in frame.columns:
        names["id_columns"] = "site"
    streamed = wd.Table.read(folder / "a.parquet", in_memory=False, memory_budget="1GB", **names)
    return [wd.Table.from_arrow(data, **names), streamed]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("many", [1, 7])
def test_local_days_have_one_step(zone: str, unit: str, many: int, tmp_path: Path) -> None:
    days = pd.date_range("2023-01-01", periods=400, freq="D", tz=zone, ambiguous=True,
                         nonexistent="shift_forward")[::many]  # fmt: skip
    for table in both(frame_of(days.as_unit(unit)), tmp_path):
        assert table.step == many * DAY
        assert table.report.breaks.tolist() == [0]
        steps = local_steps(days)
        assert table.report.irregular.tolist() == [sum(step != many * 24.0 for step in steps)]


def local_steps(times: Any) -> list[float]:
    """Return hours between times, those of local time where they are whole days."""
    found = []
    for before, after in itertools.pairwise(times):
        hours = (after - before).total_seconds() / 3600
        naive = (after.tz_localize(None) - before.tz_localize(None)).total_seconds() / 3600
        found.append(naive if naive % 24 == 0 and hours % 24 and abs(naive - hours) <= 2 else hours)
    return found


def test_gaps_of_days_are_those_of_local_time(tmp_path: Path) -> None:
    days = pd.date_range("2024-10-20", periods=14, freq="D", tz="Europe/Berlin").delete(10)
    for table in both(frame_of(days), tmp_path):
        windows = wd.Windows(table, context_length=2, max_gap="1D")
        assert len(windows) == 11
        assert "1 break in 1 series" in table.explain()
        assert len(wd.Windows(table, context_length=2, max_gap="24h")) == 11
        assert len(wd.Windows(table, context_length=2, max_gap="2D")) == 12
    for table in both(frame_of(days.tz_convert("UTC")), tmp_path):
        assert len(wd.Windows(table, context_length=2, max_gap="1D")) == 10
        assert "2 breaks in 1 series" in table.explain()


@pytest.mark.parametrize("zone", ["Europe/Berlin", None])
def test_hours_and_days_of_utc_are_counted_as_before(zone: str | None, tmp_path: Path) -> None:
    times = pd.date_range("2024-10-20", periods=400, freq="h", tz="UTC").delete([30, 31, 170])
    local = times.tz_convert(zone)
    for table in both(frame_of(local), tmp_path):
        assert table.step == np.timedelta64(1, "h")
        assert (table.report.breaks.tolist(), table.report.irregular.tolist()) == ([2], [2])
        assert len(wd.Windows(table, context_length=2, max_gap="1h")) == len(times) - 3
    days = pd.date_range("2024-10-20T12:00", periods=30, freq="D", tz="UTC").tz_convert(zone)
    for table in both(frame_of(days), tmp_path):
        assert (table.step, table.report.breaks.tolist()) == (DAY, [0])
        assert table.report.irregular.tolist() == [0]


def test_a_series_of_one_change_has_the_step_of_the_others(tmp_path: Path) -> None:
    """Of two series of two days, one with the day of 25 hours, steps are one day."""
    days = pd.date_range("2024-10-26", periods=3, freq="D", tz="Europe/Berlin")
    frame = frame_of([days[0], days[1], days[1], days[2]]).assign(site=["a", "a", "b", "b"])
    for table in both(frame, tmp_path):
        assert table.timestamps is not None
        unit = table.timestamps.dtype.str.replace("M", "m")  # that of the version of pandas
        assert table.report.steps.tolist() == [int(DAY.astype(unit).astype(np.int64))] * 2
        assert table.step == DAY


@pytest.mark.parametrize(
    ("freq", "breaks"), [("MS", 0), ("ME", 0), ("QS", 0), ("YS", 0), ("2QS", 0), ("5D", 0)]
)
@pytest.mark.parametrize("zone", ["Europe/Berlin", None])
def test_months_have_no_breaks(freq: str, breaks: int, zone: str | None, tmp_path: Path) -> None:
    times = pd.date_range("2003-02-01", periods=30, freq=freq, tz=zone)
    for table in both(frame_of(times), tmp_path):
        assert table.report.breaks.tolist() == [breaks]
    for table in both(frame_of(times.delete(20)), tmp_path):
        assert table.report.breaks.tolist() == [breaks + 1]


def test_dates_have_steps_of_months() -> None:
    dates = pa.array([dt.date(2024, month, 1) for month in (4, 5, 6, 7)])
    table = wd.Table.from_arrow(pa.table({"time": dates, "x": [1.0] * 4}), timestamp_column="time")
    assert table.report.breaks.tolist() == [0]


@pytest.mark.parametrize("zone", ["+01:00", "Etc/UTC", "Nowhere/City"])
def test_zones_without_changes_or_unknown_ones(zone: str) -> None:
    moments = [0, 86_400, 2 * 86_400 + 3600, 3 * 86_400 + 3600]
    stamps = pa.array(moments, pa.timestamp("s", zone))
    table = wd.Table.from_arrow(pa.table({"time": stamps, "x": [1.0] * 4}), timestamp_column="time")
    assert (table.step, table.report.breaks.tolist()) == (DAY, [1])


def test_a_day_that_a_zone_skips_is_no_gap(tmp_path: Path) -> None:
    zone = zoneinfo.ZoneInfo("Pacific/Apia")
    days = [dt.datetime(2011, 12, day, tzinfo=zone) for day in (27, 28, 29, 31)]
    for table in both(frame_of(pd.DatetimeIndex(days)), tmp_path):
        assert (table.step, table.report.irregular.tolist()) == (DAY, [0])


@pytest.mark.parametrize(
    ("zone", "skipped"),
    [("Pacific/Apia", "2011-12-30"), ("Pacific/Kwajalein", "1993-08-21"),
     ("Pacific/Kiritimati", "1994-12-31")],
)  # fmt: skip
@pytest.mark.parametrize("time", ["00:00", "13:30"])
@pytest.mark.parametrize("many", [1, 2, 7])
def test_a_grid_leaves_out_a_day_that_a_zone_skips(
    zone: str, skipped: str, time: str, many: int, tmp_path: Path
) -> None:
    near = pd.date_range(pd.Timestamp(f"{skipped} {time}") - pd.Timedelta(days=28), periods=60)
    exists = near.date != pd.Timestamp(skipped).date()
    days = near[::many][exists[::many]].tz_localize(zone)
    expected, origin = days.tz_convert("UTC").tz_localize(None), str(near[0])
    step: dict[str, Any] = {"step": f"{many}D", "origin": origin, "time_zone": zone}
    table = both(frame_of(days.delete([2, 4, len(days) - 3])), tmp_path)[0]
    for kind in (origin, "first"):
        found = table.regularize(**step | {"origin": kind})
        np.testing.assert_array_equal(found.timestamps, expected)
    wd.prepare(tmp_path / "a.parquet", tmp_path / "out", timestamp_column="time", **step)
    prepared = wd.Table.read(tmp_path / "out", timestamp_column="time")
    np.testing.assert_array_equal(prepared.timestamps, expected)
    later = both(frame_of(days + pd.Timedelta(minutes=25)), tmp_path)[0]
    for off_grid in ("floor", "nearest"):
        moved = later.regularize(**step, off_grid=off_grid)
        np.testing.assert_array_equal(moved.timestamps, expected)


@pytest.mark.parametrize("unit", ["as", "fs", "ps", "D", "M"])
def test_units_in_which_a_month_does_not_fit(unit: str) -> None:
    stamps = np.array([0, 1, 2, 4], f"M8[{unit}]")
    table = wd.Table.from_columns({"time": stamps, "x": np.zeros(4)}, timestamp_column="time")
    assert (table.report.steps.tolist(), table.report.breaks.tolist()) == ([1], [1])
