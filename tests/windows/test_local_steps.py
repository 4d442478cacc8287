"""Time stamps after series in a time zone: days, weeks and months of local time, as of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import windeck as wd

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
#: Names of steps in pandas, and their months.
MONTHS = {"MS": 1, "3MS": 3, "12MS": 12}


def series(stamps: Any, **columns: Any) -> wd.Table:
    frame = pd.DataFrame({"time": stamps, "y": np.arange(float(len(stamps))), **columns})
    return wd.Table.from_pandas(frame, timestamp_column="time")


def after(table: wd.Table, horizon: int, step: Any = None) -> list[Any]:
    """Return the time stamps of a forecast after each series."""
    windows = wd.Windows(table, context_length=1, target_columns="y").latest()
    found = windows.prediction_table(np.zeros((len(windows), horizon)), step=step)
    assert found["time"].type.tz == table.time_zone
    times: list[Any] = found["time"].to_pylist()
    return times


def parts(stamps: Any, bounds: list[tuple[int, int]]) -> wd.Table:
    """Return a table with a series of each of some ranges of stamps."""
    frame = pd.concat(
        [
            pd.DataFrame({"id": number, "time": stamps[first:last], "y": 0.0})
            for number, (first, last) in enumerate(bounds)
        ]
    )
    return wd.Table.from_pandas(frame, id_columns="id", timestamp_column="time")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["D", "2D", "W", "W-WED"])
@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("time", ["00:00", "07:30"])
def test_days_and_weeks_equal_pandas(zone: str, step: str, rows: int, time: str) -> None:
    stamps = pd.date_range(f"2023-01-01 {time}", periods=rows + 400, freq=step, tz=zone)
    bounds = [(last - rows, last) for last in range(rows, rows + 395, 1 if rows == 2 else 7)]
    table = parts(stamps, bounds)
    expected = [one for _, last in bounds for one in stamps[last : last + 5].to_pydatetime()]
    assert after(table, 5) == expected
    given = np.timedelta64(stamps[1].tz_localize(None) - stamps[0].tz_localize(None))
    assert after(table, 5, given) == expected


@pytest.mark.parametrize("zone", [*ZONES, "Asia/Kolkata"])
@pytest.mark.parametrize(("step", "months"), MONTHS.items())
def test_months_equal_pandas(zone: str, step: str, months: int) -> None:
    stamps = pd.date_range("2015-01-01", periods=60, freq=step, tz=zone)
    bounds = [(0, last) for last in range(2, 30)]
    expected = [one for _, last in bounds for one in stamps[last : last + 5].to_pydatetime()]
    for given in (np.timedelta64(months, "M"), step, f"{months}mo", f"{months}M"):
        assert after(parts(stamps, bounds), 5, given) == expected
    ends = pd.date_range("2015-01-31", periods=60, freq=step.replace("MS", "ME"), tz=zone)
    found = after(series(ends[:30]), 5, step.replace("MS", "ME"))
    assert found == ends[30:35].to_pydatetime().tolist()


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("step", ["1h", "30min", "12h", "25h"])
def test_shorter_and_uneven_steps_have_one_length(zone: str, step: str) -> None:
    stamps = pd.date_range("2024-03-08", periods=2000, freq=step, tz=zone)
    bounds = [(0, last) for last in (2, 30, 100, 433, 800)]
    expected = [one for _, last in bounds for one in stamps[last : last + 9].to_pydatetime()]
    assert after(parts(stamps, bounds), 9) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("step", ["MS", "ME", "QS", "QE", "2QS", "YS", "YE"])
@pytest.mark.parametrize("rows", range(2, 7))
def test_few_equal_steps_that_may_be_months_are_refused(step: str, rows: int, zone: str) -> None:
    """July to September, or three years, have steps of one length, which do not go on."""
    stamps = pd.date_range("2000-02-01", periods=rows + 31, freq=step, tz=zone)
    for first in range(29):
        short = stamps[first : first + rows]
        with pytest.raises(ValueError, match=r"^series 0 has steps of .* days.* expected `step`"):
            after(series(short), 2)
        assert after(series(short), 2, step) == stamps[first + rows :][:2].to_pydatetime().tolist()


@pytest.mark.parametrize("days", [28, 29, 30, 31, 90, 91, 92, 181, 182, 365, 366])
def test_steps_of_days_that_are_no_months_go_on(days: int) -> None:
    for rows in (5, 6, 20):
        stamps = pd.date_range("2020-01-15", periods=rows + 30, freq=f"{days}D")
        for first in range(25):
            found = after(series(stamps[first : first + rows]), 3)
            assert found == stamps[first + rows :][:3].to_pydatetime().tolist()


def test_a_series_of_one_row_has_the_step_of_the_others() -> None:
    days = pd.date_range("2024-01-04", periods=12, freq="28D", tz="UTC")
    found = after(parts(days, [(0, 10), (3, 4)]), 2)
    assert found == [*days[10:12].to_pydatetime(), *days[4:6].to_pydatetime()]
    months = pd.date_range("2024-07-01", periods=3, freq="MS", tz="UTC")
    with pytest.raises(ValueError, match=r"^series 0 has steps of 31 days, which may be months"):
        after(parts(months, [(0, 3), (2, 3)]), 2)


def test_days_that_begin_at_one_time_of_utc_go_on_at_it() -> None:
    stamps = pd.date_range("2024-01-01 06:00", periods=330, freq="D", tz="UTC")
    stamps = stamps.tz_convert("Europe/Berlin")
    assert after(series(stamps[:290]), 20) == stamps[290:310].to_pydatetime().tolist()
    gaps = series(stamps[:290].delete([40, 150, 151]))
    assert after(gaps, 20) == stamps[290:310].to_pydatetime().tolist()


def test_each_series_has_its_own_step() -> None:
    zone = "Europe/Berlin"
    days = pd.date_range("2024-10-01", periods=40, freq="D", tz=zone)
    hours = pd.date_range("2024-10-26", periods=40, freq="h", tz=zone)
    frame = pd.DataFrame(
        {
            "id": ["days"] * 25 + ["hours"] * 12 + ["one"],
            "time": [*days[:25], *hours[:12], days[25]],
            "y": np.arange(38.0),
        }
    )
    # The most frequent step is taken for a series of one row.
    frame = pd.concat([frame, frame[:25].assign(id="more")])
    table = wd.Table.from_pandas(frame, id_columns="id", timestamp_column="time")
    found = after(table, 3)
    assert found == [*days[25:28], *hours[12:15], *days[26:29], *days[25:28]]


def test_a_day_after_one_whose_midnight_is_skipped_begins_at_midnight() -> None:
    zone = "America/Havana"  # clocks skip the midnight of 2024-03-10
    stamps = pd.date_range("2024-03-01", periods=30, freq="D").tz_localize(
        zone, nonexistent="shift_forward"
    )
    assert stamps[9].hour == 1
    assert after(series(stamps[:10]), 5) == stamps[10:15].to_pydatetime().tolist()
    assert after(series(stamps[:8]), 5) == stamps[8:13].to_pydatetime().tolist()


def test_zones_of_a_fixed_offset() -> None:
    local = pa.array(pd.date_range("2023-09-01", periods=9, freq="MS").to_numpy())
    stamps = pa.compute.assume_timezone(local.cast(pa.timestamp("us")), "+05:30")
    data = pa.table({"time": stamps[:5], "y": np.zeros(5)})
    table = wd.Table.from_arrow(data, timestamp_column="time")
    assert after(table, 3, "MS") == stamps[5:8].to_pylist()


def test_calendar_features_and_frames_of_the_future() -> None:
    zone = "Europe/Berlin"
    stamps = pd.date_range("2024-08-01", "2024-11-15", tz=zone)
    rows = list(stamps).index(pd.Timestamp("2024-10-26", tz=zone))
    known = np.arange(float(len(stamps)))
    table = series(stamps[:rows], k=known[:rows]).with_calendar(
        ["weekday"], time_zone=zone, encoding="scaled"
    )
    options: dict[str, Any] = {"context_length": 14, "prediction_length": 7, "target_columns": "y"}
    w = wd.Windows(table, **options, known_covariates="weekday")
    regular = wd.Windows(
        table.regularize("1D", time_zone=zone), **options, known_covariates="weekday"
    )
    expected = stamps[rows : rows + 7].day_of_week / 6 - 0.5
    for one in (w, regular):
        found = one.latest(future=True).gather([0])["future_known"][0, :, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    frame = pd.DataFrame({"time": stamps[rows:], "k": known[rows:]})
    with_frame = wd.Windows(table, **options, known_covariates="k").latest(future=frame)
    assert (
        with_frame.gather([0])["future_known"].ravel().tolist() == known[rows : rows + 7].tolist()
    )


@pytest.mark.parametrize(
    ("freq", "months"), [("MS", 1), ("ME", 1), ("QS", 3), ("QE", 3), ("YS", 12), ("YE", 12)]
)
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_steps_of_a_calendar_are_asked_for_with_their_months(
    freq: str, months: int, zone: str | None
) -> None:
    stamps = pd.date_range("2010-01-01", periods=12, freq=freq, tz=zone)
    for rows in (8, 9, 10):
        table = series(stamps[:rows])
        with pytest.raises(ValueError, match=rf"such as np.timedelta64\({months}, 'M'\)"):
            after(table, 2)
        expected = stamps[rows : rows + 2].to_pydatetime().tolist()
        assert after(table, 2, np.timedelta64(months, "M")) == expected
        assert after(table, 2, freq) == expected


@pytest.mark.parametrize("step", ["W-NONSENSE", "QS-NONE", "D-MON", "soon"])
def test_steps_that_are_none(step: str) -> None:
    table = series(pd.date_range("2024-01-01", periods=4, freq="D"))
    with pytest.raises(ValueError, match="`step` must be an integer, a dur"):
        after(table, 2, step)


def test_a_row_that_the_future_lacks_is_named_in_utc() -> None:
    stamps = pd.date_range("2024-08-01", periods=9, tz="Europe/Berlin")
    table = series(stamps[:5], k=np.zeros(5))
    w = wd.Windows(
        table, context_length=2, prediction_length=2, target_columns="y", known_covariates="k"
    )
    frame = pd.DataFrame({"time": stamps[7:], "k": 0.0})
    with pytest.raises(ValueError, match=r"no row of series 0 at 2024-08-05 22:00 UTC \("):
        w.latest(future=frame)
