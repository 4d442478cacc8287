"""Local times of a zone in UTC, and the hour that they have twice."""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windeck as wd

UTC = dt.timezone.utc
#: Zones, and a moment in UTC at which their clocks are set back.
CHANGES = {
    "Europe/Berlin": dt.datetime(2024, 10, 27, 1, tzinfo=UTC),
    "Europe/Athens": dt.datetime(2024, 10, 27, 1, tzinfo=UTC),
    "America/New_York": dt.datetime(2023, 11, 5, 6, tzinfo=UTC),
    "Australia/Sydney": dt.datetime(2024, 4, 6, 16, tzinfo=UTC),
    "America/Santiago": dt.datetime(2024, 4, 7, 3, tzinfo=UTC),
    "Australia/Lord_Howe": dt.datetime(2024, 4, 6, 15, tzinfo=UTC),
    "Antarctica/Troll": dt.datetime(2024, 10, 27, 1, tzinfo=UTC),  # By two hours.
}
STEPS = [dt.timedelta(minutes=minutes) for minutes in (5, 10, 15, 30, 60)]


def moments(zone: str, step: dt.timedelta) -> list[dt.datetime]:
    """Moments in UTC from hours before a change of clocks to hours after it."""
    count = dt.timedelta(hours=5) // step
    return [CHANGES[zone] + step * number for number in range(-count, count)]


def local(zone: str, times: list[dt.datetime]) -> list[dt.datetime]:
    return [at.astimezone(zoneinfo.ZoneInfo(zone)).replace(tzinfo=None) for at in times]


def plain(times: list[dt.datetime]) -> list[dt.datetime]:
    return [at.replace(tzinfo=None) for at in times]


def from_csv(data: Any, folder: Path, **options: Any) -> wd.Table:
    names = data.column_names
    lines = [",".join(map(str, row.values())) for row in data.to_pylist()]
    (folder / "a.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    return wd.Table.read(folder / "a.csv", **options)


def from_csv_format(data: Any, folder: Path, **options: Any) -> wd.Table:
    times = [f"{at:%d/%m/%Y %H:%M:%S}" for at in data["time"].to_pylist()]
    data = data.set_column(data.column_names.index("time"), "time", pa.array(times))
    return from_csv(data, folder, timestamp_format="%d/%m/%Y %H:%M:%S", **options)


def from_parquet(data: Any, folder: Path, **options: Any) -> wd.Table:
    pq.write_table(data, folder / "a.parquet")
    return wd.Table.read(folder / "a.parquet", **options)


def from_columns(data: Any, folder: Path, **options: Any) -> wd.Table:
    columns = {name: data[name].to_numpy() for name in data.column_names}
    return wd.Table.from_columns(columns, **options)


SOURCES: dict[str, Callable[..., wd.Table]] = {
    "CSV": from_csv,
    "CSV with a format": from_csv_format,
    "Parquet": from_parquet,
    "Arrow": lambda data, folder, **options: wd.Table.from_arrow(data, **options),
    "columns": from_columns,
}


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("source", SOURCES)
def test_local_times_become_the_moments_they_were_made_of(
    tmp_path: Path, source: str, zone: str
) -> None:
    for step in STEPS:
        if "Lord_Howe" in zone and step > dt.timedelta(minutes=30):
            continue  # Its clocks are set back by half an hour: a time is there once, and after it.
        times = moments(zone, step)
        stamps, count = local(zone, times), len(times)
        data = pa.table(
            {
                "site": pa.array([1] * count + [2] * count),
                "time": pa.array(stamps * 2, pa.timestamp("us")),
                "value": np.arange(2.0 * count),
            }
        )
        names = {"id_columns": "site", "timestamp_column": "time"}
        for made in (data, data.take(np.argsort(np.tile(np.arange(count), 2), kind="stable"))):
            table = SOURCES[source](made, tmp_path, time_zone=zone, sort=True, **names)
            assert table.timestamps is not None
            assert table.timestamps.astype("M8[us]").tolist() == plain(times) * 2, step
            assert table["value"].tolist() == data["value"].to_pylist()
            assert table.step == np.timedelta64(step)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "m", "h"])
def test_units(unit: str) -> None:
    times = moments("Europe/Berlin", dt.timedelta(hours=1))
    stamps = np.array(local("Europe/Berlin", times), f"M8[{unit}]")
    columns = {"time": stamps, "x": np.arange(10.0)}
    table = wd.Table.from_columns(columns, timestamp_column="time", time_zone="Europe/Berlin")
    assert table.timestamps is not None
    assert table.timestamps.astype("M8[us]").tolist() == plain(times)
    days = np.array(["2024-01-01", "2024-07-01"], "M8[D]")
    table = wd.Table.from_columns(
        {"time": days, "x": np.zeros(2)}, timestamp_column="time", time_zone="Europe/Berlin"
    )
    assert table.timestamps is not None
    assert table.timestamps.astype(str).tolist() == ["2023-12-31T23:00:00", "2024-06-30T22:00:00"]


def read_local(texts: list[str], **options: Any) -> list[str]:
    columns = {"time": np.array(texts, "M8[s]"), "x": np.arange(float(len(texts)))}
    table = wd.Table.from_columns(
        columns, timestamp_column="time", time_zone="Europe/Berlin", **options
    )
    assert table.timestamps is not None
    return [text[11:16] for text in table.timestamps.astype(str).tolist()]


def at(*clock: str) -> list[str]:
    return [f"2024-10-27T{one}" for one in clock]


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        # The hour before the change is 00:00 to 01:00 in UTC, the hour after it 01:00 to 02:00.
        ("02:00 02:30 02:00 02:30 03:00", "00:00 00:30 01:00 01:30 02:00"),
        ("02:00 02:00 02:30 02:30 03:00", "00:00 01:00 00:30 01:30 02:00"),
        ("01:00 02:00 02:00 03:00", "23:00 00:00 01:00 02:00"),
        ("02:30 02:00 02:30 03:00", "00:30 01:00 01:30 02:00"),
        ("02:00 02:30 02:30", "00:00 00:30 01:30"),
        ("02:00 02:30 03:00", "00:00 00:30 02:00"),
        ("02:30", "00:30"),
    ],
)
def test_the_order_tells_on_which_side_of_the_change_a_time_is(clocks: str, expected: str) -> None:
    assert read_local(at(*clocks.split())) == sorted(
        expected.split(), key=lambda one: (one < "12", one)
    )


@pytest.mark.parametrize(
    "clocks",
    [
        "02:00 02:00 02:00",
        "02:00 02:30 02:00 02:30 02:00",
        "02:30 02:00 02:30 02:00",
        "03:00 02:30 02:00 02:30 02:00 01:30",
        "03:00 02:00 02:00 01:00",
        "02:00 02:00 02:30 02:30 02:45",
        "02:00 04:00 02:00",
        "03:30 02:00 02:30 04:00",
        "02:00 02:30 01:30",
    ],
)
def test_an_order_that_does_not_tell_is_an_error(clocks: str) -> None:
    with pytest.raises(
        ValueError, match=r"series 0 has times from 2024-10-27 02:.* show twice, in"
    ):
        read_local(at(*clocks.split()))


def test_times_that_clocks_skip_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"'time' has 2024-03-31 02:30, which clocks of 'Europe/"):
        read_local(["2024-03-31T01:30", "2024-03-31T02:30", "2024-03-31T03:00"])


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_times_with_and_without_a_zone_are_refused(kind: Callable[..., Any]) -> None:
    """Arrow would take those without a zone for times in UTC."""
    naive = dt.datetime(2024, 1, 1)
    aware = naive.replace(hour=1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    message = r"column 'time' has times with a time zone, such as 2024-01-01 01:00:00\+01:00, and "
    for times in ((naive, aware), (aware, None, naive)):
        columns = {"x": np.arange(float(len(times))), "time": kind(times)}
        with pytest.raises(ValueError, match=message + "without one, such as 2024-01-01 00:00:00;"):
            wd.Table.from_columns(columns, timestamp_column="time")
    table = wd.Table.from_columns(
        {"x": [0.0, 1.0], "time": kind((aware, aware))}, timestamp_column="time"
    )
    assert table.time_zone == "+01:00"


def test_wrong_zones(tmp_path: Path) -> None:
    data = pa.table({"time": pa.array([0, 1], pa.timestamp("s")), "x": [1.0, 2.0]})
    wrong: list[Any] = ["Berlin", "", 3, "../etc/passwd"]
    for zone in wrong:
        with pytest.raises(ValueError, match="`time_zone` must be the name of a time zone"):
            wd.Table.from_arrow(data, timestamp_column="time", time_zone=zone)
    with pytest.raises(
        ValueError, match=r"`time_zone` is 'UTC', of timestamp_column=, which is not"
    ):
        wd.Table.from_arrow(data, columns="x", time_zone="UTC")
    aware = data.set_column(0, "time", data["time"].cast(pa.timestamp("s", "UTC")))
    with pytest.raises(
        ValueError, match=r"'time' of the data has the zone 'UTC' already, and is re"
    ):
        wd.Table.from_arrow(aware, timestamp_column="time", time_zone="Europe/Berlin")
    whole = data.set_column(0, "time", pa.array([1, 2]))
    with pytest.raises(TypeError, match="timestamp column 'time' has integers; expected local da"):
        wd.Table.from_arrow(whole, timestamp_column="time", time_zone="Europe/Berlin")
    pq.write_table(data, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="`time_zone` changes time stamps, which in_memory=False"):
        wd.Table.read(
            tmp_path / "a.parquet", timestamp_column="time", time_zone="UTC", in_memory=False
        )
    ends = {"time": np.array([2**63 - 9], "M8[ns]"), "x": np.zeros(1)}
    with pytest.raises(
        OverflowError, match=r"ends of datetime64\[ns\], which cannot hold them in U"
    ):
        wd.Table.from_columns(ends, timestamp_column="time", time_zone="Europe/Berlin")


def test_streamed_and_prepared_local_times_are_told_to_be_utc(tmp_path: Path) -> None:
    stamps = local("Europe/Berlin", moments("Europe/Berlin", STEPS[3]))
    data = pa.table({"time": pa.array(stamps, pa.timestamp("us")), "x": np.arange(20.0)})
    path = tmp_path / "a.parquet"
    pq.write_table(data, path)
    with pytest.raises(ValueError, match=r"goes back in row 10; .*when clocks are set back, have"):
        wd.Table.read(path, timestamp_column="time", in_memory=False)
    with pytest.raises(ValueError, match=r"several rows .*repeat when clocks are set back: write"):
        wd.prepare(path, tmp_path / "out", timestamp_column="time")


def test_wide_frames_of_local_times() -> None:
    times = moments("Europe/Berlin", STEPS[3])
    stamps = pa.array(local("Europe/Berlin", times), pa.timestamp("us"))
    data = pa.table({"time": stamps, "a": np.arange(20.0), "b": np.arange(20.0)})
    table = wd.Table.from_wide(
        data, series="columns", timestamp_column="time", time_zone="Europe/Berlin"
    )
    assert table.timestamps is not None
    assert table.timestamps.tolist() == plain(times) * 2


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "Europe/Athens", "America/New_York", "America/Santiago", "Australia/Sydney"],
)
@pytest.mark.parametrize("series", [1, 3])
def test_repeated_local_times_are_named_as_such(zone: str, series: int) -> None:
    for step in STEPS:
        stamps = local(zone, moments(zone, step))
        sites = np.repeat(np.arange(series), len(stamps))
        columns = {"time": np.array(stamps * series, "M8[us]"), "x": np.zeros(len(sites))}
        names: dict[str, Any] = {"timestamp_column": "time"}
        if series > 1:
            columns, names = columns | {"site": sites}, names | {"id_columns": "site"}
        with pytest.warns(
            UserWarning, match="as local times repeat when clocks are set back"
        ) as at:
            wd.Table.from_columns(columns, **names)
        assert "pass time_zone= with the zone" in str(at[0].message)
        assert len(at) == 1
        wd.Table.from_columns(columns, **names, time_zone=zone)  # without a warning


def test_other_repeated_times_are_not_taken_for_a_change_of_clocks() -> None:
    """A warning is an error in tests."""
    week = [dt.datetime(2024, 10, 21) + dt.timedelta(hours=hour) for hour in range(24 * 9)]
    for hour, also in itertools.product((2, 3, 30, 24 * 6 + 9, 24 * 6 + 2), (None, 50)):
        if (hour, also) == (24 * 6 + 2, None):
            continue
        stamps = sorted([*week, week[hour], *([] if also is None else [week[also]])])
        wd.Table.from_columns(
            {"time": np.array(stamps, "M8[us]"), "x": np.zeros(len(stamps))},
            timestamp_column="time",
        )
    # Two hours of one night.
    stamps = sorted([*week, dt.datetime(2024, 10, 27, 1), dt.datetime(2024, 10, 27, 3)])
    wd.Table.from_columns(
        {"time": np.array(stamps, "M8[us]"), "x": np.zeros(len(stamps))}, timestamp_column="time"
    )
    # A Sunday at night in a month in which no clocks are set back.
    for month in (1, 6, 7, 8, 12):
        week = [dt.datetime(2024, month, 1) + dt.timedelta(hours=hour) for hour in range(24 * 9)]
        (sunday,) = (day for day in week if (day.weekday(), day.hour, day.day < 8) == (6, 2, True))
        wd.Table.from_columns(
            {"time": np.array(sorted([*week, sunday]), "M8[us]"), "x": np.zeros(len(week) + 1)},
            timestamp_column="time",
        )
    # Two Sundays at night, three weeks apart.
    october = [dt.datetime(2024, 10, 1) + dt.timedelta(hours=hour) for hour in range(24 * 30)]
    stamps = sorted([*october, dt.datetime(2024, 10, 6, 2), dt.datetime(2024, 10, 27, 2)])
    wd.Table.from_columns(
        {"time": np.array(stamps, "M8[us]"), "x": np.zeros(len(stamps))}, timestamp_column="time"
    )
