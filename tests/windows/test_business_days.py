"""Time stamps after series of business days, across skipped days, and of all aliases of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import windeck as wd

ZONES = [None, "Europe/Berlin", "America/New_York"]
DAYS = [f"W-{day}" for day in ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
ALIASES = [
    *("15min", "h", "6h", "D", "2D", "W", "2W", *DAYS, "B", "2B", "3B"),
    *("MS", "2MS", "ME", "2ME", "QS", "QE", "YS", "YE"),
    *(f"{alias}-{month}" for alias in ("QS", "QE", "YS", "YE") for month in MONTHS),
]


def parts(stamps: Any, bounds: list[tuple[int, int]]) -> wd.Table:
    """Return a table with a series of each of some ranges of stamps."""
    lengths = [last - first for first, last in bounds]
    rows = np.concatenate([np.arange(first, last) for first, last in bounds])
    frame = pd.DataFrame({"id": np.repeat(np.arange(len(bounds)), lengths), "time": stamps[rows]})
    return wd.Table.from_pandas(frame.assign(y=0.0), id_columns="id", timestamp_column="time")


def after(table: wd.Table, horizon: int, step: Any = None) -> list[Any]:
    """Return the time stamps of a forecast after each series."""
    windows = wd.Windows(table, context_length=1, target_columns="y").latest()
    found = windows.prediction_table(np.zeros((len(windows), horizon)), step=step)
    times: list[Any] = found["time"].to_pylist()
    return times


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases_equal_date_range(alias: str) -> None:
    """Of four years, from each stamp on; also the calendar features of the future."""
    stamps = pd.date_range("2019-12-20", "2024-03-10", freq=alias)[-1500:]
    assert len(stamps) >= 4
    bounds = [(last - 2, last) for last in range(2, max(len(stamps) - 5, 3))]
    bounds = [(first, last) for first, last in bounds if last + 2 <= len(stamps)]
    table = parts(stamps, bounds)
    horizon = min(5, len(stamps) - bounds[-1][1])
    expected = [stamps[last : last + horizon] for _, last in bounds]
    given = [one for part in expected for one in part.to_pydatetime()]
    assert after(table, horizon, alias) == given
    assert after(table, horizon, pd.tseries.frequencies.to_offset(alias)) == given
    names = ["month", "day", "weekday"]
    windows = wd.Windows(
        table.with_calendar(names, encoding="scaled"), context_length=1, prediction_length=1,
        target_columns="y", known_covariates=names,
    )  # fmt: skip
    found = windows.latest(future=True, step=alias).gather(range(len(bounds)))["future_known"]
    first = pd.DatetimeIndex([part[0] for part in expected])
    np.testing.assert_allclose(found[:, 0, 0], (first.month - 1) / 11 - 0.5, atol=1e-6)
    np.testing.assert_allclose(found[:, 0, 1], (first.day - 1) / 30 - 0.5, atol=1e-6)
    np.testing.assert_allclose(found[:, 0, 2], first.day_of_week / 6 - 0.5, atol=1e-6)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("time", ["00:00", "16:30"])
def test_business_days_equal_pandas(zone: str | None, time: str) -> None:
    """They are known by the rows of each series, or stated as "B"."""
    stamps = pd.date_range(f"2022-12-01 {time}", periods=420, freq="B", tz=zone)
    for rows in (9, 40, 300):
        bounds = [(last - rows, last) for last in range(rows, rows + 115)]
        expected = [one for _, last in bounds for one in stamps[last : last + 5].to_pydatetime()]
        table = parts(stamps, bounds)
        assert after(table, 5, "B") == expected
        if rows > 12:  # two weekends or more
            assert after(table, 5) == expected
    holidays = stamps[:300].delete([200, 281, 290, 295])
    assert after(parts(holidays, [(0, len(holidays))]), 3) == list(stamps[300:303].to_pydatetime())


@pytest.mark.parametrize(
    ("zone", "hour", "first", "last"),
    [("Europe/Berlin", 0, "2024-01-01", "2024-03-15"),
     ("Europe/Berlin", 0, "2023-06-01", "2024-03-15"),
     ("America/New_York", 21, "2024-01-01", "2024-03-15"),
     ("America/New_York", 21, "2023-06-01", "2024-03-08")],
)  # fmt: skip
def test_business_days_at_one_time_of_utc_keep_it(
    zone: str, hour: int, first: str, last: str
) -> None:
    days = pd.bdate_range(first, last) + pd.Timedelta(hours=hour)
    stamps = days.append(pd.DatetimeIndex([days[-1] + pd.offsets.BDay(n) for n in range(1, 11)]))
    stamps = stamps.tz_localize("UTC").tz_convert(zone)
    table = parts(stamps[: len(days)], [(0, len(days))])
    expected = list(stamps[len(days) :].to_pydatetime())
    assert after(table, 10) == expected
    assert after(table, 10, "B") == expected


def test_a_stamp_on_a_weekend_goes_on_with_monday() -> None:
    saturday = parts(pd.DatetimeIndex(["2024-06-06", "2024-06-08"]), [(0, 2)])
    assert [str(one.date()) for one in after(saturday, 2, "B")] == ["2024-06-10", "2024-06-11"]


def test_days_are_business_days_only_where_two_weekends_are_left_out() -> None:
    days = pd.date_range("2024-01-01", periods=60)  # a Monday
    weekend = days.day_of_week >= 5

    def next_day(kept: Any) -> str:
        stamps = days[kept]
        (found,) = after(parts(stamps, [(0, len(stamps))]), 1)
        return str(found.date())

    at = np.arange(60)
    assert next_day(~weekend & (at < 12)) == "2024-01-13"  # a Friday, after one weekend
    assert next_day(~weekend & (at < 19)) == "2024-01-22"  # after two
    assert next_day(~(weekend & (at < 13)) & (at < 19)) == "2024-01-20"  # a weekend is there
    assert next_day(~weekend & (at % 7 != 4) & (at < 46)) == "2024-02-16"  # no Friday ever
    few = ~weekend & ~np.isin(at % 7, [2]) & (at < 33)
    assert next_day(few & (at % 14 != 1)) == "2024-02-03"  # other days are left out as well
    # An explicit step is one of the calendar.
    stamps = days[~weekend & (at < 19)]
    for step in ("D", np.timedelta64(1, "D")):
        (found,) = after(parts(stamps, [(0, len(stamps))]), 1, step)
        assert str(found.date()) == "2024-01-20"


def test_each_series_has_its_own_days() -> None:
    business, every = (
        pd.bdate_range("2024-01-01", periods=30),
        pd.date_range("2024-01-01", periods=33),
    )
    hours = pd.date_range("2024-01-01", periods=30, freq="h")
    stamps = business[:25].append(every[:26]).append(hours[:9])
    found = after(parts(stamps, [(0, 25), (25, 51), (51, 60)]), 3)
    assert found == [*business[25:28], *every[26:29], *hours[9:12]]


def test_calendar_features_of_the_next_business_days() -> None:
    stamps = pd.bdate_range("2024-01-01", periods=40)
    table = parts(stamps[:35], [(0, 35)]).with_calendar("weekday", encoding="scaled")
    windows = wd.Windows(
        table, context_length=5, prediction_length=5, target_columns="y", known_covariates="weekday"
    )
    batch = windows.latest(future=True).gather([0])
    expected = stamps[35:40].day_of_week / 6 - 0.5
    np.testing.assert_allclose(batch["future_known"][0, :, 0], expected, rtol=1e-6)
    frame = pd.DataFrame({"id": 0, "time": stamps[35:], "k": 1.0})
    known = table.with_columns({"k": np.zeros(35)})
    windows = wd.Windows(
        known, context_length=5, prediction_length=5, target_columns="y", known_covariates="k"
    )
    assert windows.latest(future=frame).gather([0])["future_known"].sum() == 5
    # A holiday is no row of the user's: rows that are appended say so.
    lacking = r"`future` has no row of series 0 at 2024-02-20.* \(1 row is missing in all\)"
    with pytest.raises(ValueError, match=lacking):
        windows.latest(future=frame.drop(index=1))
    dates = [*stamps[:36], *stamps[37:40]]
    rows = pd.DataFrame({"time": dates, "y": [0.0] * 35 + [np.nan] * 4, "k": 1.0})
    appended = wd.Table.from_pandas(rows, timestamp_column="time")
    windows = wd.Windows(
        appended, context_length=5, prediction_length=4, target_columns="y", known_covariates="k"
    )
    found = windows.latest(future=True).prediction_table(np.zeros((1, 4)))
    assert found["time"].to_pylist() == dates[-4:]


@pytest.mark.parametrize(
    "step",
    [
        "C",
        "b",
        "BMS",
        "BME",
        "0B",
        "00B",
        "100000B",
        "99999999999B",
        "\u0663B",
        "-B",
        "B-MON",
        "1.5B",
        pd.offsets.CustomBusinessDay(),
    ],
)
def test_other_business_steps_are_refused(step: Any) -> None:
    table = parts(pd.bdate_range("2024-01-01", periods=20), [(0, 20)])
    with pytest.raises(ValueError, match=r"`step` must be .* 'B' "):
        after(table, 1, step)


def test_business_days_need_days_or_times() -> None:
    for stamps in (np.arange(4), np.arange(4).astype("M8[M]")):
        table = wd.Table.from_columns({"y": np.zeros(4), "time": stamps}, timestamp_column="time")
        with pytest.raises(TypeError, match=r"`step` is of business days, expected days or times"):
            after(table, 1, "B")


@pytest.mark.parametrize(
    ("zone", "skipped"),
    [("Pacific/Apia", "2011-12-30"), ("Pacific/Kwajalein", "1993-08-21"),
     ("Pacific/Kiritimati", "1994-12-31")],
)  # fmt: skip
@pytest.mark.parametrize("time", ["00:00", "13:30"])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_a_day_that_clocks_skip_is_left_out(zone: str, skipped: str, time: str, step: int) -> None:
    near = pd.date_range(pd.Timestamp(f"{skipped} {time}") - pd.Timedelta(days=28), periods=60)
    days = near[::step]
    exists = days.date != pd.Timestamp(skipped).date()
    assert exists.sum() == len(days) - 1
    stamps = days[exists].tz_localize(zone)
    ends = [
        last
        for last in range(2, len(stamps) - 6)
        if days[last - 1].date() < pd.Timestamp(skipped).date()
    ]
    for last in ends:
        table = parts(stamps, [(0, last)])
        expected = stamps[last : last + 6].to_pydatetime().tolist()
        assert after(table, 6) == after(table, 6, f"{step}D") == expected


def test_a_skipped_day_is_no_business_day() -> None:
    days = pd.bdate_range("2011-12-01", periods=40)
    stamps = days[days != "2011-12-30"].tz_localize("Pacific/Apia")
    table = parts(stamps, [(0, 18)])
    assert after(table, 9) == after(table, 9, "B") == stamps[18:27].to_pydatetime().tolist()
