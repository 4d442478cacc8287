"""Time stamps of every unit, zone and kind of file, at the ends of the ranges of these units."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import windeck as wd

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH = dt.datetime(1970, 1, 1)
DAY = 86400
ZONES = (None, "UTC", "Europe/Berlin", "+05:30")
#: Moments in Python, and ticks at the ends of 64 bits.
MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1677, 9, 21),
    dt.datetime(1816, 3, 29, 5, 56, 8),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1, 0, 0, 0, 1),
    dt.datetime(2024, 2, 29, 12, 30, 15, 250000),
    dt.datetime(2262, 4, 12),
    dt.datetime(9999, 12, 31),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]
TICKS = [1 - 2**63, -(2**53) - 1, -1, 0, 10**18, 2**63 - 1]


def seconds_of(moment: dt.datetime) -> Fraction:
    since = moment - EPOCH
    return Fraction(since.days * DAY + since.seconds) + Fraction(since.microseconds, 10**6)


def columns() -> Iterator[tuple[str, Any, list[Fraction]]]:
    """Columns of time of each Arrow type, and the exact seconds of their rows."""
    for (unit, per_second), zone in itertools.product(UNITS.items(), ZONES):
        for name, wanted in (
            ("moments", [seconds_of(moment) * per_second for moment in MOMENTS]),
            ("ticks", [Fraction(tick) for tick in TICKS]),
        ):
            ticks = [int(t) for t in wanted if t.denominator == 1 and -(2**63) < t < 2**63]
            array = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
            yield f"{unit} {zone} {name}", array, [Fraction(t, per_second) for t in ticks]
    days = [-(2**31), -719162, -1, 0, 2932896, 2**31 - 1]
    array = pa.array(days, pa.int32()).cast(pa.date32())
    yield "date32", array, [Fraction(day * DAY) for day in days]
    millis = [day * DAY * 1000 for day in (-719162, -1, 0, 2932896, 2 * 10**9)]
    array = pa.array(millis, pa.int64()).cast(pa.date64())
    yield "date64", array, [Fraction(one, 1000) for one in millis]
    yield "int64", pa.array(TICKS, pa.int64()), [Fraction(tick) for tick in TICKS]


def seconds(stamps: Any) -> list[Fraction]:
    """The exact seconds of time stamps of a table; integers as they are."""
    stamps = np.asarray(stamps[:])
    ticks = [int(tick) for tick in stamps.view(np.int64)]
    if stamps.dtype.kind != "M":
        return [Fraction(tick) for tick in ticks]
    unit, count = np.datetime_data(stamps.dtype)
    per = {"D": Fraction(1, DAY), **{name: Fraction(size) for name, size in UNITS.items()}}[unit]
    return [tick * count / per for tick in ticks]


def in_csv(data: Any, path: Path) -> Path:
    """Write time stamps as ISO 8601 in UTC, as Python does."""
    stamps, lines = data["time"], ["time,value"]
    days = pa.types.is_date32(stamps.type)
    ticks = (stamps.cast(pa.int32()) if days else stamps).cast(pa.int64()).to_pylist()
    for number, tick in enumerate(ticks):
        text = str(tick)
        if not pa.types.is_integer(stamps.type):
            unit = stamps.type.unit if pa.types.is_timestamp(stamps.type) else "ms"
            at = Fraction(tick * DAY) if days else Fraction(tick, UNITS[unit])
            moment = EPOCH + dt.timedelta(seconds=at.numerator // at.denominator)
            text = moment.isoformat(" ")
            if at % 1:
                text += f".{int(at % 1 * 10**9):09}"
            text += "Z" if "tz=" in str(stamps.type) else ""
        lines.append(f"{text},{number}")
    path = path.with_suffix(".csv")
    path.write_text("\n".join(lines) + "\n")
    return path


def in_parquet(data: Any, path: Path, **options: Any) -> Path:
    pq.write_table(data, path, row_group_size=4, **options)
    return path


def in_stream(data: Any, path: Path) -> Path:
    with pa.ipc.new_stream(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=3)
    return path


def in_feather(data: Any, path: Path, **options: Any) -> Path:
    feather.write_feather(data, str(path), **options)
    return path


def int96(data: Any, path: Path) -> Path:
    if not pa.types.is_timestamp(data["time"].type):
        raise ValueError("not a time stamp of 96 bits")
    return in_parquet(data, path, use_deprecated_int96_timestamps=True)


WRITERS: dict[str, Callable[[Any, Path], Path]] = {
    "Parquet": in_parquet,
    "Parquet 1.0": lambda data, path: in_parquet(data, path, version="1.0"),
    "Parquet INT96": int96,
    "Arrow stream": in_stream,
    "Arrow": lambda data, path: in_feather(data, path, compression="uncompressed", chunksize=99),
    "Arrow compressed": lambda data, path: in_feather(data, path, compression="zstd", chunksize=3),
    "CSV": in_csv,
}


def read(path: Path) -> wd.Table:
    return wd.Table.read(path, timestamp_column="time")


def streamed(path: Path) -> wd.Table:
    return wd.Table.read(path, timestamp_column="time", in_memory=False, group_bytes=1 << 10)


def mapped(path: Path) -> wd.Table:
    return wd.Table.read(path, timestamp_column="time", in_memory=False)


def prepared(path: Path) -> wd.Table:
    folder = path.parent / "prepared"
    wd.prepare(path, folder, timestamp_column="time", overwrite=True)
    return wd.Table.read(folder, timestamp_column="time")


READERS = (read, streamed, mapped, prepared)


@pytest.mark.parametrize("kind", WRITERS)
def test_times_of_files_are_exact_or_an_error_that_names_them(tmp_path: Path, kind: str) -> None:
    compared, refusals = 0, []
    for place, (name, array, expected) in enumerate(columns()):
        data = pa.table({"time": array, "value": np.arange(len(array), dtype="f8")})
        path = tmp_path / f"{place}.data"
        try:
            path = WRITERS[kind](data, path)
        except (ValueError, OverflowError):
            continue  # The writer cannot express these times.
        for reader in READERS:
            if kind in ("CSV", "Arrow stream") and reader in (streamed, mapped):
                continue
            try:
                table = reader(path)
            except (OverflowError, TypeError, ValueError) as error:
                refusals.append((str(path), str(error)))
                continue
            assert seconds(table.timestamps) == expected, (name, reader)
            compared += 1
    assert compared > 15
    assert len(refusals) < (4 if kind == "Parquet INT96" else 2) * compared
    for file, text in refusals:
        assert "'time'" in text
        assert file in text or "the data" in text


def test_an_int96_time_stamp_that_nanoseconds_do_not_hold_is_refused(tmp_path: Path) -> None:
    stamps = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=row) for row in range(9)]
    stamps[6] = dt.datetime(9999, 12, 31)
    data = pa.table({"time": pa.array(stamps, pa.timestamp("us")), "value": np.arange(9.0)})
    path = int96(data, tmp_path / "spark.parquet")
    for reader in READERS:
        with pytest.raises(OverflowError, match=r"'time' of .*spark.parquet.* 9999-12-31.* row 6,"):
            reader(path)
    table = wd.Table.read(path, timestamp_column="time", rows=(0, 4))
    assert seconds(table.timestamps) == [seconds_of(stamp) for stamp in stamps[:4]]
    lists = pa.table({"time": [stamps[:5], stamps[5:]], "value": [[1.0] * 5, [2.0] * 4]})
    path = in_parquet(lists, tmp_path / "lists.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(OverflowError, match=r"'time' of .*lists.parquet.* 9999-12-31"):
        wd.Table.from_series(path, timestamp_column="time")


@pytest.mark.parametrize("source", ["arrow", "arrays", "pandas", "polars", "wide"])
def test_times_in_memory_are_exact(source: str) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for name, array, expected in columns():
        value = np.arange(len(array), dtype="f8")
        data = pa.table({"time": array, "value": value})
        if source == "arrow":
            table = wd.Table.from_arrow(data, timestamp_column="time")
        elif source == "arrays":
            stamps = array.to_numpy(zero_copy_only=False)
            if "date64" in name:
                stamps = array.cast(pa.timestamp("ms")).to_numpy()
            table = wd.Table.from_columns({"time": stamps, "value": value}, timestamp_column="time")
        elif source == "pandas":
            if "date" in name or "None" not in name:
                continue  # pandas makes objects of dates.
            frame = pandas.DataFrame({"time": array.to_numpy(), "value": value})
            table = wd.Table.from_arrow(frame, timestamp_column="time")
        elif source == "polars":
            if not name.startswith(("us", "ns", "int64")) or "+" in name:
                continue  # polars converts other units, and has zones by name.
            table = wd.Table.from_arrow(polars.from_arrow(data), timestamp_column="time")
        else:
            table = wd.Table.from_wide(data, series="columns", timestamp_column="time")
        assert seconds(table.timestamps) == expected, name


NUMPY_UNITS = {"W": 7 * DAY, "D": DAY, "h": 3600, "m": 60, "s": 1}
NUMPY_SECONDS: dict[str, Fraction] = {
    **{unit: Fraction(size) for unit, size in NUMPY_UNITS.items()},
    **{
        unit: Fraction(1, 1000**power)
        for power, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)
    },
}


def extremes(unit: str) -> np.ndarray[Any, Any]:
    """Time stamps of a unit, ascending: moments it can express, and the ends of 64 bits."""
    ticks = {1 - 2**63, 2**63 - 1, -1, 0, 1}
    for moment in MOMENTS:
        tick = int(seconds_of(moment) // NUMPY_SECONDS[unit])
        ticks |= {tick} if -(2**63) < tick < 2**63 else set()
    return np.array(sorted(ticks), np.int64).view(f"M8[{unit}]")


def arguments() -> Iterator[tuple[Any, Fraction]]:
    """Time stamps as arguments, with their exact seconds."""
    for moment in MOMENTS:
        yield moment, seconds_of(moment)
        yield moment.isoformat(), seconds_of(moment)
        yield moment.date(), seconds_of(dt.datetime.combine(moment.date(), dt.time()))
        if 1 < moment.year < 9999:
            yield f"{moment.isoformat()}+02:00", seconds_of(moment) - 7200
            zone = dt.timezone(dt.timedelta(hours=-5))
            yield moment.replace(tzinfo=zone), seconds_of(moment) + 5 * 3600
    for unit, size in NUMPY_SECONDS.items():
        ticks = np.array([1 - 2**63, -1, 0, 1, 2**63 - 1])
        for tick, stamp in zip(ticks.tolist(), ticks.view(f"M8[{unit}]"), strict=True):
            yield stamp, tick * size


@pytest.mark.parametrize("unit", NUMPY_SECONDS)
def test_time_arguments_select_the_rows_that_exact_arithmetic_selects(unit: str) -> None:
    stamps = extremes(unit)
    exact = [int(tick) * NUMPY_SECONDS[unit] for tick in stamps.view(np.int64)]
    columns = {"time": stamps, "value": np.arange(len(stamps), dtype="f8")}
    table = wd.Table.from_columns(columns, timestamp_column="time")
    windows = wd.Windows(table, context_length=1)
    for argument, at in arguments():
        later = sum(stamp >= at for stamp in exact)
        if later:
            assert len(windows.subset(time=(argument, None))) == later, argument
        if later < len(stamps):
            assert len(windows.subset(time=(None, argument))) == len(stamps) - later, argument
        if 0 < later < len(stamps):
            train, _, test = windows.split(0, argument)
            assert (len(train), len(test)) == (len(stamps) - later, later)


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
def test_time_arguments_of_streamed_tables_and_of_prepare(tmp_path: Path, unit: str) -> None:
    stamps = extremes(unit)
    if unit == "D":
        stamps = stamps[1:-1]  # Days of Arrow have 32 bits.
    if unit == "s":
        stamps = stamps[1:-1]  # Parquet has no seconds, and milliseconds do not hold these.
    exact = [int(tick) * NUMPY_SECONDS[unit] for tick in stamps.view(np.int64)]
    data = pa.table({"time": pa.array(stamps), "value": np.arange(len(stamps), dtype="f8")})
    path = in_parquet(data, tmp_path / "a.parquet")
    windows = wd.Windows(streamed(path), context_length=1)
    for number, (argument, at) in enumerate(arguments()):
        later = sum(stamp >= at for stamp in exact)
        if later:
            assert len(windows.subset(time=(argument, None))) == later, argument
        if number % 9 or later < 2:
            continue
        made = wd.prepare(
            path,
            tmp_path / "out",
            timestamp_column="time",
            scaler="minmax",
            train=(argument, None),
            overwrite=True,
        )
        least = float(len(stamps) - later)
        scaled = made.scalers["minmax"].transform(np.array([least]), columns="value")
        assert scaled.tolist() == [0.0], argument


@pytest.mark.parametrize("unit", NUMPY_SECONDS)
def test_max_gap_compares_exact_differences(unit: str) -> None:
    stamps = extremes(unit)
    columns = {"time": stamps, "value": np.arange(len(stamps), dtype="f8")}
    table = wd.Table.from_columns(columns, timestamp_column="time")
    ticks = [int(tick) for tick in stamps.view(np.int64)]
    size = NUMPY_SECONDS[unit]
    for gap_unit, gap_size in NUMPY_SECONDS.items():
        for count in (1, 10**6, 2**63 - 1):
            most = count * gap_size
            if most < size:
                continue
            inside = sum((b - a) * size <= most for a, b in itertools.pairwise(ticks))
            (gap,) = np.array([count]).view(f"m8[{gap_unit}]")
            if not inside:
                continue
            windows = wd.Windows(table, context_length=2, max_gap=gap)
            assert len(windows) == inside, (gap, unit)
    report = table.report
    usual = int(report.steps[0])
    assert int(report.breaks[0]) == sum(b - a > usual > 0 for a, b in itertools.pairwise(ticks))


@pytest.mark.parametrize("unit", [*NUMPY_UNITS, "ms", "us", "ns"])
def test_calendar_features_are_those_of_python(unit: str) -> None:
    moments = [moment for moment in MOMENTS if -(2**63) < seconds_of(moment) * 10**9 < 2**63]
    if unit != "ns":
        moments = MOMENTS
    size = NUMPY_SECONDS[unit]
    ticks = sorted({int(seconds_of(moment) // size) for moment in moments})
    ticks = [tick for tick in ticks if tick * size >= seconds_of(dt.datetime(1, 1, 1))]
    whole = [dt.timedelta(microseconds=int(tick * size * 10**6)) for tick in ticks]
    days = [EPOCH + since for since in whole]
    columns = {"time": np.array(ticks).view(f"M8[{unit}]"), "value": np.zeros(len(ticks))}
    table = wd.Table.from_columns(columns, timestamp_column="time")
    names = ("minute", "hour", "weekday", "day", "yearday", "month")
    found = table.with_calendar(names, encoding="scaled", dtype="float64")
    model = {
        "minute": [at.minute / 59 for at in days],
        "hour": [at.hour / 23 for at in days],
        "weekday": [at.weekday() / 6 for at in days],
        "day": [(at.day - 1) / 30 for at in days],
        "yearday": [(at.timetuple().tm_yday - 1) / 365 for at in days],
        "month": [(at.month - 1) / 11 for at in days],
    }
    for name, values in model.items():
        assert np.allclose(found[name], np.array(values) - 0.5, atol=1e-12), name


@pytest.mark.parametrize("unit", NUMPY_SECONDS)
def test_times_beyond_the_end_are_exact_or_an_error(unit: str) -> None:
    size, compared, refusals = NUMPY_SECONDS[unit], 0, []
    for end in extremes(unit)[2:]:
        tick = int(end.astype(np.int64))
        stamps = (tick - np.arange(4)[::-1]).view(f"M8[{unit}]")
        columns = {"time": stamps, "value": np.zeros(4)}
        table = wd.Table.from_columns(columns, timestamp_column="time")
        windows = wd.Windows(table, context_length=1, prediction_length=3).latest()
        for step in (None, np.timedelta64(1, "D"), np.timedelta64(1, "M"), np.timedelta64(9, "W")):
            if step is not None and step.astype("m8[D]").astype(int) * DAY < size:
                continue
            try:
                found = windows.prediction_table(np.zeros((1, 3)), step=step)["time"]
            except (OverflowError, ValueError) as error:
                refusals.append(str(error))
                continue
            exact = seconds(found.to_numpy())
            if step is not None and np.datetime_data(step.dtype)[0] == "M":
                assert exact[0] > int(end.astype(np.int64)) * size
            else:
                ahead = size if step is None else int(step.astype("m8[s]").astype(int))
                ahead = ahead // size * size
                first = int(end.astype(np.int64)) * size
                assert exact == [first + ahead * number for number in (1, 2, 3)], (end, step)
            compared += 1
    assert compared or unit in ("W", "ps", "fs", "as")
    for text in refusals:
        assert any(part in text for part in ("hold", "28th", "overflow"))


@pytest.mark.parametrize("freq", ["W", "D", "h", "15min", "s", "ms", "us", "ns"])
def test_regular_series_are_exact_or_an_error(freq: str) -> None:
    whole = {"W": 7 * DAY, "D": DAY, "h": 3600, "15min": 900}
    step = Fraction(whole[freq]) if freq in whole else Fraction(1, UNITS[freq])
    refusals = []
    for start, at in arguments():
        try:
            table = wd.Table.from_series([[1.0, 2.0, 3.0]], start=start, freq=freq)
        except OverflowError as error:
            refusals.append(str(error))
            continue
        assert seconds(table.timestamps) == [at + number * step for number in range(3)], start
    assert all("hold" in text for text in refusals)


def test_texts_of_several_precisions_keep_their_times() -> None:
    texts = ["9999-12-31", "2000-01-01T00:00:00.000000001"]
    with pytest.raises(OverflowError, match="9999-12-31"):
        wd.Table.from_series([[1.0], [2.0]], start=texts, freq="D")
    table = wd.Table.from_series([[1.0], [2.0]], start=["9999-12-31", "2000-01-01T06"], freq="D")
    assert seconds(table.timestamps) == [
        seconds_of(dt.datetime(9999, 12, 31)),
        seconds_of(dt.datetime(2000, 1, 1, 6)),
    ]


@pytest.mark.parametrize(
    "text", ["20240131", "24-01-31", "1706659200", "2024131", "2024-02-30", "x"]
)
def test_texts_that_are_no_dates_are_refused_as_arguments(tmp_path: Path, text: str) -> None:
    """NumPy takes the first for the year 20240131, and the second for the year 24."""
    stamps = np.arange("2024-01-01", "2024-03-01", dtype="M8[D]")
    columns = {"time": stamps, "value": np.zeros(len(stamps))}
    windows = wd.Windows(wd.Table.from_columns(columns, timestamp_column="time"), context_length=1)
    message = f"a time stamp must be one such as '2014-03-01', got '{text}'"
    for time in ((text, None), (None, text)):
        with pytest.raises(ValueError, match=message):
            windows.subset(time=time)
    with pytest.raises(ValueError, match=message):
        windows.split(0, text)
    path = in_parquet(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"`train` must be dates such as .*, got '{text}'"):
        wd.prepare(path, tmp_path / "out", timestamp_column="time", train=(None, text))
    with pytest.raises(ValueError, match=text):
        wd.Table.from_series([[1.0, 2.0]], start=text, freq="D")


def test_arguments_of_pandas_keep_their_nanoseconds_and_zones() -> None:
    pandas = pytest.importorskip("pandas")
    first = np.datetime64("2024-01-01T00:00:00.000000000")
    stamps = first + np.arange(9)
    columns = {"time": stamps, "value": np.zeros(9)}
    windows = wd.Windows(wd.Table.from_columns(columns, timestamp_column="time"), context_length=1)
    at = pandas.Timestamp(stamps[4])
    text = f"{stamps[4]}+00:00"
    for moment in (at, at.tz_localize("UTC").tz_convert("Europe/Berlin"), text):
        assert len(windows.subset(time=(moment, None))) == 5
        assert len(windows.subset(time=(None, moment))) == 4
        table = wd.Table.from_series([[1.0]], start=moment, freq="ns")
        assert table.timestamps is not None
        assert table.timestamps.tolist() == [int(stamps[4].astype(np.int64))]
    assert len(windows.subset(time=(pandas.Period("2024-01", "M"), None))) == 9
    with pytest.raises(ValueError, match="a time stamp must be one such as"):
        windows.subset(time=(pandas.NaT, None))
