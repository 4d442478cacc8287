"""Tables with more columns, counted ones and calendar features, compared with plain loops."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
import re
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

import windeck as wd
from support.internals import plant


def stamped(stamps: np.ndarray[Any, Any], offsets: list[int] | None = None) -> wd.Table:
    columns = {"load": np.arange(float(len(stamps))), "t": stamps}
    return wd.Table.from_columns(columns, timestamp_column="t", offsets=offsets)


# --- columns -------------------------------------------------------------------------------------


def test_columns_are_added_and_replaced_without_a_copy() -> None:
    table = wd.Table.from_columns({"a": np.arange(4.0), "b": np.arange(4)}, offsets=[0, 1, 4])
    new, other = np.arange(4, dtype=np.float32), np.arange(4) * 2
    found = table.with_columns({"c": new, "b": other})
    assert found.column_names == ("a", "b", "c")
    assert np.shares_memory(found["c"], new)
    assert np.shares_memory(found["a"], table["a"])
    assert found["b"].tolist() == [0, 2, 4, 6]
    assert table.column_names == ("a", "b")
    assert table["b"].tolist() == [0, 1, 2, 3]
    assert found.offsets.tolist() == [0, 1, 4]
    same = wd.Table.from_columns({"a": table["a"], "b": other, "c": new}, offsets=[0, 1, 4])
    assert found.fingerprint == same.fingerprint != table.fingerprint
    again = pickle.loads(pickle.dumps(found))
    assert again.fingerprint == found.fingerprint
    assert again["c"].tolist() == new.tolist()


def test_rows_stay_next_to_each_other() -> None:
    table = wd.Table.from_rows(np.arange(12.0).reshape(6, 2), ["a", "b"])
    found = table.with_columns({"c": np.zeros(6)})
    assert (table.storage, found.storage) == ("rows", "columns")
    w = wd.Windows(found, context_length=2, target_columns=["a", "b"], known_covariates="c")
    assert w[1]["past_target"].tolist() == [[2, 3], [4, 5]]
    assert pickle.loads(pickle.dumps(found))["b"].tolist() == table["b"].tolist()


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"x": np.zeros(3)}, ValueError, "column 'x' has 3 rows, expected 4, one for each row"),
        ({"x": [1, 2, 3, 4]}, TypeError, "column 'x' is a list; expected a NumPy array"),
        ({"x": np.zeros((4, 1))}, ValueError, "column 'x' has shape"),
        ({}, TypeError, "`columns` must be a mapping of one name or more to arrays"),
        ([("x", np.zeros(4))], TypeError, "`columns` must be a mapping"),
    ],
)
def test_bad_columns(columns: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wd.Table.from_columns({"a": np.arange(4.0)}).with_columns(columns)


def test_tables_of_files_count_their_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "loads.arrow"
    load = pa.array([1.0, 2.0, float("nan")])
    feather.write_feather(pa.table({"load": load}), path, compression="uncompressed")
    for in_memory in (True, False):
        table = wd.Table.read(path, in_memory=in_memory)
        found = table.with_columns({"x": np.arange(3.0)}).with_missing_counts()
        assert "2 of 2 columns, 48 of 48 bytes, 3 rows" in found.explain()
        assert [found.column(name).missing for name in ("load", "x")] == [1, 0]
        again = pickle.loads(pickle.dumps(found))
        assert [again.column(name).missing for name in ("load", "x")] == [1, 0]
        assert again.fingerprint == found.fingerprint
        assert again.explain() == found.explain()
    # Pickles of mapped files hold the new columns alone.
    big = tmp_path / "big.arrow"
    table = pa.table({"load": np.arange(100_000.0)})
    feather.write_feather(table, big, compression="uncompressed", chunksize=100_000)
    mapped = wd.Table.read(big, in_memory=False).with_missing_counts()
    assert len(pickle.dumps(mapped)) < 10_000


# --- missing values ------------------------------------------------------------------------------


def test_missing_values_are_counted_once() -> None:
    values = np.arange(50.0)
    values[[3, 30, 31]] = np.nan
    columns = {"full": np.arange(50.0), "holes": values, "count": np.arange(50)}
    table = wd.Table.from_columns(columns)
    found = table.with_missing_counts()
    assert [found.column(name).missing for name in columns] == [0, 3, 0]
    assert [table.column(name).missing for name in columns] == [None, None, 0]
    assert found.fingerprint == table.fingerprint
    for name in ("full", "holes"):
        w = wd.Windows(found, context_length=4, target_columns=name)
        plain = wd.Windows(table, context_length=4, target_columns=name)
        assert w.fingerprint == plain.fingerprint
        for key, array in plain.gather([28]).items():
            assert w.gather([28])[key].tolist() == array.tolist()
    rows = wd.Table.from_rows(np.zeros((5, 2)), ["a", "b"]).with_missing_counts()
    assert (rows.storage, rows.column("b").missing) == ("rows", 0)


# --- calendar ------------------------------------------------------------------------------------

PERIODS = {"minute": 60, "hour": 24, "weekday": 7, "day": 31, "yearday": 366, "month": 12}


def turns(stamp: dt.datetime, feature: str) -> int:
    """Return the place of a time in the cycle of a feature, from 0."""
    return {
        "minute": stamp.minute,
        "hour": stamp.hour,
        "weekday": stamp.weekday(),
        "day": stamp.day - 1,
        "yearday": stamp.timetuple().tm_yday - 1,
        "month": stamp.month - 1,
    }[feature]


@pytest.mark.parametrize("unit", ["us", "s", "m", "h", "D"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_calendar_features_equal_those_of_datetime(
    unit: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "derived.ROWS_AT_A_TIME", 100)
    rng = np.random.default_rng(0)
    seconds = np.sort(rng.integers(-3 * 10**9, 4 * 10**9, size=500))
    edges = np.array(["1999-12-31T23:59:59", "2024-02-29T00:00:00"], dtype="M8[s]")
    stamps = np.sort(np.concatenate([seconds.astype("M8[s]"), edges])).astype(f"M8[{unit}]")
    table = stamped(stamps)
    scaled = table.with_calendar(PERIODS, encoding="scaled", dtype=dtype)
    cyclic = table.with_calendar(PERIODS, dtype=dtype)
    times = stamps.astype("M8[us]").tolist()
    for name, period in PERIODS.items():
        places = np.array([turns(time, name) for time in times])
        np.testing.assert_array_equal(scaled[name], (places / (period - 1) - 0.5).astype(dtype))
        angle = places * (2 * math.pi / period)
        np.testing.assert_array_equal(cyclic[f"{name}_sin"], np.sin(angle).astype(dtype))
        np.testing.assert_array_equal(cyclic[f"{name}_cos"], np.cos(angle).astype(dtype))
    assert scaled.column_names == ("load", *PERIODS)


def test_age_counts_the_rows_of_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "derived.ROWS_AT_A_TIME", 4)
    table = wd.Table.from_columns({"x": np.arange(11.0)}, offsets=[0, 3, 3, 11])
    expected = [math.log10(2 + i) for i in (*range(3), *range(8))]
    np.testing.assert_allclose(table.with_calendar("age", dtype="float64")["age"], expected)


def test_calendar_columns_are_known_covariates() -> None:
    stamps = np.datetime64("2024-01-01", "h") + np.arange(48)
    table = stamped(stamps).with_calendar(["hour", "age"])
    names = ["hour_sin", "hour_cos", "age"]
    w = wd.Windows(
        table, context_length=24, prediction_length=6, target_columns="load",
        known_covariates=names,
    )  # fmt: skip
    future = w[3]["future_known"]
    assert future.dtype == np.float32
    assert future.shape == (6, 3)
    np.testing.assert_array_equal(future[:, 1], table["hour_cos"][27:33])


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"features": "holiday"}, ValueError, "`features` must be of minute, .* and age, got 'holi"),
    ({"encoding": "onehot"}, ValueError, "`encoding` must be 'sincos' or 'scaled', got 'onehot'"),
    ({"dtype": "int32"}, TypeError, "`dtype` must be a floating dtype of NumPy, got int32"),
    ({"features": ()}, TypeError, "`columns` must be a mapping of one name or more"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_features(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        stamped(np.arange(4).astype("M8[D]")).with_calendar(**options)


ZONES = ("Europe/Berlin", "America/St_Johns", "Asia/Kolkata")


@pytest.mark.parametrize("unit", ["s", "us", "m", "h"])
def test_calendar_features_of_a_zone(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "derived.ROWS_AT_A_TIME", 1000)
    first = np.datetime64("2024-03-30T00", "h")
    stamps = (first + np.arange(5000)).astype(f"M8[{unit}]")
    utc = [time.replace(tzinfo=dt.timezone.utc) for time in stamps.astype("M8[us]").tolist()]
    names = [ZONES[place // 100 % 3] for place in range(len(stamps))]
    zones = pa.array(names).dictionary_encode()
    table = wd.Table.from_columns({"t": stamps, "zone": zones}, timestamp_column="t")
    options: dict[str, Any] = {"encoding": "scaled", "dtype": "float64"}
    one = table.with_calendar(PERIODS, time_zone="America/St_Johns", **options)
    each = table.with_calendar(PERIODS, time_zone="zone", **options)
    for found, used in ((one, ["America/St_Johns"] * len(utc)), (each, names)):
        local = [at.astimezone(zoneinfo.ZoneInfo(zone)) for at, zone in zip(utc, used, strict=True)]
        for name, period in PERIODS.items():
            places = np.array([turns(time, name) for time in local])
            np.testing.assert_array_equal(found[name], places / (period - 1) - 0.5)


def test_features_of_a_zone_go_on_in_the_future() -> None:
    hours = np.datetime64("2024-03-30", "h") + np.arange(60)
    zones = pa.array(["Europe/Berlin"] * 24 + ["Asia/Kolkata"] * 24).dictionary_encode()
    columns = {"x": np.arange(48.0), "t": np.tile(hours[:24], 2), "zone": zones}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 24, 48])
    table = table.with_calendar("hour", encoding="scaled", time_zone="zone", dtype="float64")
    table = pickle.loads(pickle.dumps(table))
    windows = wd.Windows(
        table, context_length=3, prediction_length=10, target_columns="x", known_covariates="hour"
    )
    found = windows.latest(future=True).gather([0, 1])["future_known"][:, :, 0]
    for row, zone in zip(found, ("Europe/Berlin", "Asia/Kolkata"), strict=True):
        utc = [time.replace(tzinfo=dt.timezone.utc) for time in hours[24:34].tolist()]
        expected = [at.astimezone(zoneinfo.ZoneInfo(zone)).hour / 23 - 0.5 for at in utc]
        np.testing.assert_array_equal(row, expected)


def test_calendar_features_of_rows_that_are_added() -> None:
    hours = np.datetime64("2024-03-30", "h") + np.array([0, 1, 5, 40, 41, 0, 9])
    zones = pa.array(["Europe/Berlin"] * 5 + ["Asia/Kolkata"] * 2).dictionary_encode()
    columns = {"x": np.arange(7.0), "t": hours, "zone": zones}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 5, 7])
    table = table.with_calendar(["hour", "age"], time_zone="zone")
    found = table.regularize("1h")
    assert found.column_names == table.column_names
    names = np.repeat(["Europe/Berlin", "Asia/Kolkata"], np.diff(found.offsets))
    again = wd.Table.from_columns(
        {"t": found.timestamps, "zone": pa.array(names).dictionary_encode()},
        timestamp_column="t", offsets=found.offsets,
    ).with_calendar(["hour", "age"], time_zone="zone")  # fmt: skip
    for name in ("hour_sin", "hour_cos", "age"):
        np.testing.assert_array_equal(found[name], again[name])
        assert found.column(name).missing == 0
        assert found.column(name).calendar == table.column(name).calendar


def test_zones_of_calendars_are_checked() -> None:
    hours = np.datetime64("2024-03-30", "h") + np.arange(2)
    columns = {"x": np.arange(2.0), "t": hours, "zone": pa.array(["Mars", "Mars"])}
    columns["zone"] = columns["zone"].dictionary_encode()
    columns["lost"] = pa.array(["UTC", None]).dictionary_encode()
    table = wd.Table.from_columns(columns, timestamp_column="t")
    for zone, error, message in (
        ("Berlin", ValueError, "`time_zone` must be the name of a time zone .*, got 'Berlin'"),
        ("zone", ValueError, "`time_zone` must be the name of a time zone .*, got 'Mars'"),
        ("x", TypeError, "column 'x', the `time_zone`, is float64; expected names of zones"),
        ("lost", ValueError, "column 'lost' has no zone in row 1; expected one in each row"),
    ):
        with pytest.raises(error, match=message):
            table.with_calendar("hour", time_zone=zone)
    with pytest.raises(TypeError, match=r"the timestamps are dates .*, which have no zone"):
        stamped(hours.astype("M8[D]")).with_calendar("hour", time_zone="UTC")


def test_calendars_need_dates() -> None:
    with pytest.raises(TypeError, match="need time stamps of dates or times, got int64"):
        stamped(np.arange(4)).with_calendar()
    with pytest.raises(TypeError, match="need time stamps of dates or times, got none"):
        wd.Table.from_columns({"x": np.arange(3.0)}).with_calendar("hour")


def test_calendar_features_replace_no_column() -> None:
    stamps = np.datetime64("2024-01-01", "D") + np.arange(3)
    values = {"month": np.arange(3.0), "day_sin": np.arange(3.0), "t": stamps}
    table = wd.Table.from_columns(values, timestamp_column="t")
    with pytest.raises(ValueError, match="the table has a column 'month', the name of a calendar"):
        table.with_calendar("month", encoding="scaled")
    with pytest.raises(ValueError, match="the table has a column 'day_sin'"):
        table.with_calendar("day")
    assert table.with_calendar("month")["month"].tolist() == [0, 1, 2]


# --- dates and events ----------------------------------------------------------------------------


def by_country(zone: str | None = None) -> tuple[wd.Table, pa.Table, list[dt.datetime]]:
    """Return three series of hours in two countries, a table of dates, and all local times."""
    hours = (np.datetime64("2024-03-30T20", "h") + np.arange(60)).astype("M8[s]")
    columns = {
        "x": np.arange(180.0),
        "t": np.tile(hours, 3),
        "site": np.repeat(["a", "b", "c"], 60),
        "country": np.repeat(["de", "fr", "xx"], 60),
    }
    table = wd.Table.from_columns(columns, timestamp_column="t", id_columns=["site", "country"])
    days = pa.table(
        {
            "country": ["fr", "de", "de"],
            "day": pa.array([dt.date(2024, 4, 1), dt.date(2024, 4, 1), dt.date(2024, 3, 31)]),
            "open": pa.array([1.5, 2.5, 3.5], pa.float32()),
            "free": [True, False, True],
        }
    )
    local = [time.replace(tzinfo=dt.timezone.utc) for time in np.tile(hours, 3).tolist()]
    return table, days, [at.astimezone(zoneinfo.ZoneInfo(zone or "UTC")) for at in local]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "America/St_Johns"])
def test_dates_are_joined_by_id(zone: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "derived.ROWS_AT_A_TIME", 50)
    table, days, local = by_country(zone)
    found = table.with_dates(days, date_column="day", id_columns="country", time_zone=zone)
    values = {(row["country"], row["day"]): row for row in days.to_pylist()}
    rows = [
        values.get((name[1], at.date()), {"open": 0.0, "free": False})
        for at, name in zip(local, np.repeat(np.array(table.series_names), 60, axis=0), strict=True)
    ]
    assert found["open"].tolist() == [row["open"] for row in rows]
    assert found["free"].tolist() == [row["free"] for row in rows]
    assert found["open"].dtype == np.float32
    assert len(set(found["open"].tolist())) == 4


def test_dates_of_all_series_and_of_a_forecast() -> None:
    table, _, _ = by_country()
    days = {"date": np.array(["2024-04-01", "2024-04-02", "2024-05-01"], "M8[s]")}
    found = pickle.loads(pickle.dumps(table.with_dates(pa.table(days))))
    assert found["holiday"].tolist() == ([False] * 28 + [True] * 32) * 3
    windows = wd.Windows(
        found, context_length=3, prediction_length=40, target_columns="x",
        known_covariates="holiday",
    )  # fmt: skip
    future = windows.latest(future=True).gather([2])["future_known"][0, :, 0]
    assert future.tolist() == [True] * 16 + [False] * 24
    table, days, _ = by_country()
    named = table.with_dates(days, date_column="day", id_columns="country")
    other = wd.Windows(
        named.regularize("30min"), context_length=3, prediction_length=40, target_columns="x",
        known_covariates="open",
    )  # fmt: skip
    future = other.latest(future=True).gather([0, 1, 2])["future_known"][:, :, 0]
    assert (future == 0).all()
    half = named.regularize("30min")
    assert half["open"][half.offsets[:-1] + 60].tolist() == [2.5, 1.5, 0.0]


BAD_DATES: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({}, {"date_column": "at"}, KeyError, "the table of dates has no column 'at'"),
    ({}, {"id_columns": "region"}, KeyError, "the table has no id column 'region'"),
    ({}, {"id_columns": "site"}, KeyError, "the table of dates has no column 'site'"),
    ({"date": [1, 2]}, {}, TypeError, "column 'date' of dates is int64; expected dates"),
    ({"x": [1, 2]}, {}, ValueError, "the table has a column 'x' already"),
    ({"free": [True, None]}, {}, ValueError, "column 'free' of the table of dates has missing"),
    ({"free": ["a", "b"]}, {}, TypeError, "'free' of the table of dates is string; expected numb"),
    ({"date": [dt.date(2024, 1, 1)] * 2}, {}, ValueError, "the date 2024-01-01 is there twice"),
    (
        {"date": [dt.datetime(2024, 1, 1, 5)] * 2},
        {},
        OverflowError,
        "is 2024-01-01 05:00 in row 0; expected dates, or times at midnight",
    ),
    ({"date": [dt.date(2024, 1, 1), None]}, {}, ValueError, "of dates has missing values"),
    ({}, {"time_zone": "Mars"}, ValueError, "`time_zone` must be the name of a time zone"),
]


@pytest.mark.parametrize(("columns", "options", "error", "message"), BAD_DATES)
def test_bad_dates(
    columns: dict[str, Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    days = {"date": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)], **columns}
    with pytest.raises(error, match=message):
        by_country()[0].with_dates(pa.table(days), **options)


@pytest.mark.parametrize("ids", ["country", ["country", "site"]])
def test_ids_of_dates_without_a_series_are_named(ids: str | list[str]) -> None:
    table, days, _ = by_country()
    days = days.append_column("site", pa.array(["b", "a", "a"]))
    options: dict[str, Any] = {"date_column": "day", "id_columns": ids}
    both = pa.concat_tables([days, days.set_column(0, "country", pa.array(["dk"] * 3)).slice(0, 1)])
    days, both = (one if ids != "country" else one.drop_columns("site") for one in (days, both))
    name = "'dk'" if ids == "country" else re.escape("('dk', 'b')")
    with pytest.warns(UserWarning, match=f"1 of 3 ids in the .* are those of no series: {name}$"):
        found = table.with_dates(both, **options)
    assert found["free"].any()
    none = days.set_column(0, "country", pa.array(["FR", "DE", "DE"]))
    with pytest.warns(UserWarning, match="2 of 2 ids in the table of dates") as warned:
        assert not table.with_dates(none, **options)["free"].any()
    assert len(warned) == 1
    assert warned[0].filename == __file__


@pytest.mark.parametrize("more", [{}, {"open": [1, 0]}])
def test_dates_of_no_row_are_warned_of(more: dict[str, Any]) -> None:
    table = by_country()[0]
    days = {"date": [dt.date(2023, 4, 1), dt.date(1969, 4, 2)], **more}
    message = (
        "no row of the table has one of the dates, 1969-04-02 to 2023-04-01: its time stamps are "
        "from 2024-03-30 20:00 to 2024-04-02 07:00"
    )
    with pytest.warns(UserWarning, match=message):
        table.with_dates(pa.table(days))


def test_dates_whose_values_are_zero_and_no_dates_are_not_warned_of() -> None:
    table = by_country()[0]
    days = pa.table({"date": [dt.date(2024, 4, 1)], "open": [0]})
    assert not table.with_dates(days)["open"].any()
    assert not table.with_dates(days.slice(0, 0))["open"].any()


def test_dates_of_a_table_with_a_zone_are_those_of_utc() -> None:
    zoned = pa.array([dt.datetime(2024, 4, 1, 22)], pa.timestamp("us", "Europe/Berlin"))
    data = pa.table({"x": [1.0], "t": zoned})
    table = wd.Table.from_arrow(data, timestamp_column="t")
    days = pa.table({"date": [dt.date(2024, 4, 2)]})
    assert table.with_dates(days, time_zone="Europe/Berlin")["holiday"].tolist() == [True]
    with pytest.warns(UserWarning, match="no row .* to 2024-04-01 22:00 in UTC, so"):
        assert table.with_dates(days)["holiday"].tolist() == [False]


def test_dates_need_times() -> None:
    days = pa.table({"date": [dt.date(2024, 1, 1)]})
    with pytest.raises(TypeError, match="dates need time stamps of dates or times, got int64"):
        stamped(np.arange(4)).with_dates(days)


def test_steps_since_an_event_equal_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "derived.ROWS_AT_A_TIME", 7)
    rng = np.random.default_rng(0)
    offsets = [0, 30, 30, 31, 100]
    count = [None if rng.random() < 0.3 else int(rng.integers(0, 2)) for _ in range(100)]
    columns = {
        "count": pa.array(count, pa.int8()),
        "load": np.where(rng.random(100) < 0.3, np.nan, rng.integers(0, 2, 100)),
        "on": rng.random(100) < 0.1,
    }
    table = wd.Table.from_columns(columns, offsets=offsets)
    found = table.with_steps_since(columns, dtype="float64")
    for name in columns:
        values = [value if value == value else None for value in table.to_arrow()[name].to_pylist()]
        expected: list[float] = []
        for start, stop in itertools.pairwise(offsets):
            since = math.nan
            for value in values[start:stop]:
                since = 0.0 if value else since + 1
                expected.append(since)
        np.testing.assert_array_equal(found[f"steps_since_{name}"], expected)


def test_events_that_are_none() -> None:
    columns = {"x": np.zeros(2), "kind": pa.array(["a", "b"]).dictionary_encode()}
    table = wd.Table.from_columns(columns)
    with pytest.raises(TypeError, match="column 'kind' has categories; expected bools or numbers"):
        table.with_steps_since("kind")
    with pytest.raises(TypeError, match="`dtype` must be a floating dtype of NumPy, got int32"):
        table.with_steps_since("x", dtype="int32")
    with pytest.raises(KeyError, match="the table has no column 'rain'"):
        table.with_steps_since("rain")


@pytest.mark.parametrize("unit", ["D", "W", "M", "Y"])
def test_dates_have_no_zone(unit: str) -> None:
    table = stamped(np.arange(3).astype(f"M8[{unit}]"))
    days = pa.table({"date": np.array(["2024-01-02"], dtype="M8[D]")})
    message = r"`time_zone` is 'Europe/Berlin', and the timestamps are dates .*; expected times"
    with pytest.raises(TypeError, match=message):
        table.with_dates(days, time_zone="Europe/Berlin")
    with pytest.raises(TypeError, match=message):
        table.with_calendar("hour", time_zone="Europe/Berlin")


def test_a_column_of_zones_that_was_replaced_is_named() -> None:
    zones = pa.array(["Europe/Berlin"] * 6).dictionary_encode()
    columns = {"x": np.arange(6.0), "zone": zones, "t": np.arange(6).astype("M8[h]")}
    table = wd.Table.from_columns(columns, timestamp_column="t")
    table = table.with_calendar("hour", time_zone="zone").with_columns({"zone": np.zeros(6)})
    windows = wd.Windows(
        table,
        context_length=2,
        prediction_length=2,
        target_columns="x",
        known_covariates=["hour_sin", "hour_cos"],
    )
    with pytest.raises(ValueError, match=r"column 'zone', the zones of 'hour_sin', is float64 now"):
        windows.latest(future=True)


def test_head_has_the_first_rows_of_the_table() -> None:
    table = stamped(np.arange(4).astype("M8[h]"), [0, 1, 4])
    assert table.head(3)["load"].to_pylist() == [0.0, 1.0, 2.0]
