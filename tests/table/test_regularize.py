"""Rows of series on a grid of time, compared with a model of one row at a time."""

from __future__ import annotations

import datetime as dt
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from models.grid_model import GridModel, regular_rows
from support.internals import plant
from support.real_data import real_data

EPOCH = dt.datetime(1970, 1, 1)
MONDAY = dt.datetime(1970, 1, 5)
FLOATS = {"load", "sparse"}
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def random_table(series: dict[Any, list[Any]], seed: int, zone: str | None = None) -> wd.Table:
    """Return a table of all kinds of columns, with series of given times."""
    rng = np.random.default_rng(seed)
    times = [time for found in series.values() for time in found]
    rows = len(times)
    # Sums of eighths are exact, so that means are too.
    load = rng.integers(-99, 99, rows) / 8
    load[rng.random(rows) < 0.2] = np.nan
    sparse = [None if rng.random() < 0.3 else float(value) for value in rng.integers(0, 9, rows)]
    count = [None if rng.random() < 0.3 else int(value) for value in rng.integers(0, 3, rows)]
    stamps = pa.array(times, pa.timestamp("ms") if isinstance(times[0], dt.datetime) else None)
    if zone is not None:
        stamps = stamps.cast(pa.timestamp("ms", zone))
    names = [name for name, found in series.items() for _ in found]
    data = {
        "site": pa.array(names),
        "time": stamps,
        "load": pa.array(load, pa.float32()),
        "sparse": pa.array(sparse),
        "count": pa.array(count, pa.int16()),
        "plain": pa.array(rng.integers(0, 2, rows)),
        "on": pa.array(rng.random(rows) < 0.5),
        "kind": pa.array(rng.choice(["x", "y"], rows)).dictionary_encode(),
    }
    return wd.Table.from_arrow(pa.table(data), id_columns="site", timestamp_column="time")


def series_of(table: wd.Table) -> dict[Any, list[tuple[Any, dict[str, Any]]]]:
    """Return times and rows of each series, missing values as None."""
    found: dict[Any, list[tuple[Any, dict[str, Any]]]] = {}
    for row in table.to_arrow().to_pylist():
        time = row.pop("time")
        if isinstance(time, dt.datetime) and time.tzinfo is not None:
            time = time.astimezone(dt.timezone.utc).replace(tzinfo=None)
        values = {name: None if one != one else one for name, one in row.items()}
        found.setdefault(values.pop("site"), []).append((time, values))
    return found


def check(table: wd.Table, model: GridModel, step: Any, **options: Any) -> None:
    """Compare with the model of every series, whose grid begins with each for "first"."""
    expected = {}
    for name, rows in series_of(table).items():
        grid = model
        if options.get("origin") == "first":
            grid = GridModel(model.step, rows[0][0], model.months, model.zone)
        chosen = options.get("off_grid", "error"), options.get("duplicates", "error")
        expected[name] = regular_rows(
            grid, [time for time, _ in rows], [row for _, row in rows], *chosen, FLOATS
        )
    if None in expected.values():
        with pytest.raises(ValueError, match=r"not on the grid|several"):
            table.regularize(step, **options)
        return
    found = table.regularize(step, **options)
    assert series_of(found) == expected
    assert found.series_names == table.series_names
    for name, column in table.columns.items():
        new = found.column(name)
        assert (new.dtype, new.categories) == (column.dtype, column.categories)
        assert new.missing in (None, int((~new.observed()).sum()))
    again = wd.Table.from_arrow(found.to_arrow(), id_columns="site", timestamp_column="time")
    assert again.report.span == found.report.span
    assert again.report.steps.tolist() == found.report.steps.tolist()
    assert again.report.breaks.tolist() == found.report.breaks.tolist()
    assert again.fingerprint == found.fingerprint
    assert found.regularize(step, **{**options, "off_grid": "error"}) is found


CHOICES = st.fixed_dictionaries(
    {
        "off_grid": st.sampled_from(["error", "nearest", "floor"]),
        "duplicates": st.sampled_from(["error", "first", "last", "mean"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-30, 30), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from([None, 3, -100, "first"]),
    CHOICES,
    st.integers(1, 4),
)
def test_integers_equal_the_model(
    times: list[list[int]], step: int, origin: Any, options: Any, many: int
) -> None:
    if options["off_grid"] == "error":
        first = origin if isinstance(origin, int) else 0
        times = [[one * step + first for one in row] for row in times]
    series = {f"s{place}": sorted(row) for place, row in enumerate(times)}
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, "derived.ROWS_AT_A_TIME", many)
        model = GridModel(step, 0 if origin in (None, "first") else origin)
        check(random_table(series, step), model, step, origin=origin, **options)


STEPS: dict[str, tuple[GridModel, dict[str, Any]]] = {
    "1h": (GridModel(HOUR, EPOCH), {}),
    "90min": (GridModel(1.5 * HOUR, EPOCH), {}),
    "D": (GridModel(DAY, EPOCH), {}),
    "2W": (GridModel(14 * DAY, MONDAY), {}),
    "W-SUN": (
        GridModel(7 * DAY, dt.datetime(2024, 1, 7)),
        {"origin": "2024-01-07"},
    ),
    "12h": (GridModel(12 * HOUR, dt.datetime(2024, 5, 1, 7)), {"origin": "2024-05-01T07:00"}),
    "MS": (GridModel(None, EPOCH, 1), {}),
    "2MS": (GridModel(None, dt.datetime(2023, 2, 1), 2), {"origin": "2023-02-01"}),
    "Q": (GridModel(None, EPOCH, 3), {}),
    "Y": (GridModel(None, EPOCH, 12), {}),
}
ZONES = ("Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "America/Havana")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("off_grid", ["error", "nearest", "floor"])
@pytest.mark.parametrize("duplicates", ["error", "first", "last", "mean"])
def test_times_equal_the_model(step: str, off_grid: str, duplicates: str) -> None:
    model, options = STEPS[step]
    rng = np.random.default_rng(7)
    start = dt.datetime(2024, 1, 1, 3)
    series = {}
    for number in range(3):
        hours = np.sort(rng.integers(0, 3000, 20 - number)).tolist()
        series[f"s{number}"] = [start + int(hour) * HOUR / 2 for hour in hours]
        if off_grid == "error":
            slots = [model.slot(time) for time in series[f"s{number}"]]
            series[f"s{number}"] = [model.time(slot) for slot in slots]
    chosen = {"off_grid": off_grid, "duplicates": duplicates, **options}
    check(random_table(series, 1), model, step, **chosen)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("step", "days"), [("D", 1), ("3D", 3), ("W", 7), ("MS", 0)])
@pytest.mark.parametrize("off_grid", ["error", "nearest", "floor"])
def test_days_of_a_zone_equal_the_model(zone: str, step: str, days: int, off_grid: str) -> None:
    origin = MONDAY if days == 7 else EPOCH
    model = GridModel(days * DAY, origin, 0 if days else 1, zone)
    rng = np.random.default_rng(3)
    series: dict[str, list[Any]] = {"a": [], "b": []}
    for found in series.values():
        at = dt.datetime(2024, 2, 20, 5)
        while len(found) < 60:
            found.append(at)
            at += int(rng.integers(1, 400)) * dt.timedelta(minutes=15) + DAY * max(days - 1, 0)
        if off_grid == "error":
            found[:] = sorted({model.time(model.slot(time)) for time in found})
    table = random_table(series, 2, zone)
    options = {"off_grid": off_grid, "duplicates": "last", "time_zone": zone}
    check(table, model, step, **options)


@pytest.mark.parametrize("duplicates", ["first", "last", "mean"])
def test_a_day_that_clocks_show_again_ends_once(duplicates: Any) -> None:
    """At 00:01 of Sunday clocks in St. John's went back to 23:01 of Saturday."""
    times = np.arange("2010-11-06T20:00", "2010-11-07T08:00", 30, dtype="M8[s]")
    column = pa.array(times).cast(pa.timestamp("s", "UTC"))
    rows = pa.table({"t": column, "y": np.arange(1440.0)})
    table = wd.Table.from_arrow(rows, timestamp_column="t")
    zone = "America/St_Johns"
    found = table.regularize("D", time_zone=zone, off_grid="floor", duplicates=duplicates)
    sunday = int((times < np.datetime64("2010-11-07T02:30")).sum())
    parts = np.split(np.arange(1440.0), [sunday])
    means = {"first": [p[0] for p in parts], "last": [p[-1] for p in parts]}
    np.testing.assert_array_equal(found["y"], means.get(duplicates, [p.mean() for p in parts]))


def irregular(rows: int = 4) -> wd.Table:
    columns = {"load": np.arange(float(rows)), "t": 10 * np.arange(rows) ** 2}
    return wd.Table.from_columns(columns, timestamp_column="t")


def test_a_table_that_is_regular_is_returned() -> None:
    columns = {"load": np.arange(6.0), "t": [0, 10, 20, 5, 15, 25]}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 3, 6])
    assert table.regularize(10, origin="first") is table
    moved = table.regularize(10, off_grid="floor")
    assert moved.timestamps is not None
    assert moved.timestamps.tolist() == [0, 10, 20, 0, 10, 20]


def test_one_wrong_time_is_an_error_that_names_it() -> None:
    times = [*(dt.datetime(2024, 1, 1) + HOUR * number for number in range(3))]
    table = random_table({"a": times, "b": [*times, dt.datetime(2999, 1, 1)]}, 0)
    with pytest.raises(
        ValueError,
        match=r"the grid would have 8,546,\d+ rows, more than max_rows=100,000, and the longest "
        r"gap of series 'b' is from 2024-01-01 02:00 to 2999-01-01; expected "
        "no wrong time",
    ):
        table.regularize("1h")
    with pytest.raises(ValueError, match="the grid would have 91 rows, more than max_rows=90"):
        irregular().regularize(1, max_rows=90)
    assert irregular().regularize(1, max_rows=91).num_rows == 91


def test_ends_of_64_bits() -> None:
    ends = [-(2**63), 2**63 - 1]
    table = wd.Table.from_columns({"a": np.zeros(2), "t": ends}, timestamp_column="t")
    with pytest.raises(ValueError, match="more than max_rows=100,000"):
        table.regularize(1)
    found = table.regularize(2**62, off_grid="floor")
    assert found.timestamps is not None
    assert found.timestamps.tolist() == [-(2**63), -(2**62), 0, 2**62]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": "1h"}, "`step` must be an integer, as the timestamps are int64, got '1h'"),
        ({"step": 0}, "`step` must be a positive step, got 0"),
        ({"step": 3}, r"series 0 has a row at 10, which is not on the grid \(steps of 3 from 0\)"),
        ({"step": 3, "origin": "first"}, "steps of 3 from the first row of the series"),
        ({"step": 100, "off_grid": "floor"}, "several rows for 0, at 0 and 10; expected one row"),
        ({"step": 1, "off_grid": "ceil"}, "`off_grid` must be 'error', 'nearest' or 'floor'"),
        ({"step": 1, "duplicates": "keep"}, "`duplicates` must be one of error, first, last, mean"),
        ({"step": 1, "origin": "2024-01-01"}, "`origin` must be an integer or 'first'"),
        ({"step": 1, "max_rows": -1}, "`max_rows` must be at least 0, got -1"),
        ({"step": 1, "time_zone": "Europe/Berlin"}, "`time_zone` is for times of seconds or finer"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        irregular().regularize(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 1}, "`step` must be a duration such as '1h', as the timestamps are datetime64"),
        ({"step": "1us"}, r"`step` must be a multiple of the unit of the timestamps, datetime64\["),
        ({"step": "B"}, "`step` must be an integer, a duration, or an alias such as"),
        ({"step": "1h", "origin": "soon"}, "`origin` must be a time such as '2024-01-01T06:00'"),
        ({"step": "MS", "origin": "first"}, "`origin` must not be 'first' with a step of months"),
        ({"step": "MS", "origin": "2024-01-02"}, "`origin` must be the first day of a month"),
        ({"step": "1h", "time_zone": "Europe/Berlin"}, "expected whole days, weeks or months"),
        (
            {"step": "6h", "time_zone": "Europe/Berlin"},
            "shorter steps are counted in UTC, from `or",
        ),
        ({"step": "2ME"}, r"'2ME', of last days; expected first days, such as '2MS' \(off_grid="),
        ({"step": "QE-DEC"}, "'QE-DEC', of last days; expected first days, such as 'QS'"),
        ({"step": "YE"}, "of last days; expected first days, such as 'YS'"),
        ({"step": "BME"}, "`step` must be an integer, a duration, or an alias"),
        ({"step": "QS-FEB"}, "expected step='3MS' with a first month, such as origin='2024-02-01'"),
        ({"step": "Q-JAN"}, "expected step='3MS' with a first month, such as origin='2024-02-01'"),
        ({"step": "2YS-APR"}, "expected step='24MS' with a first month, .*origin='2024-04-01'"),
        ({"step": "W-NONSENSE"}, "`step` must be an integer, a duration, or an alias"),
        ({"step": "MS-JAN"}, "`step` must be an integer, a duration, or an alias"),
        (
            {"step": "W-WED", "origin": "2024-01-01"},
            "another day of the week; expected one of both",
        ),
        ({"step": "W-WED", "origin": "first"}, "expected a step without it for origin='first'"),
        ({"step": "D", "time_zone": "Berlin"}, "`time_zone` must be the name of a time zone"),
    ],
)
def test_wrong_options_of_times(options: dict[str, Any], message: str) -> None:
    table = random_table({"a": [dt.datetime(2024, 1, 1)]}, 0)
    with pytest.raises((TypeError, ValueError), match=message):
        table.regularize(**options)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(
    ("step", "options"),
    [
        *((f"{many}W-{day}", {}) for many in ("", "2") for day in ("MON", "WED", "sun")),
        ("W-WED", {"origin": "2024-01-03"}),
        *((alias, {}) for alias in ("QS-JAN", "QS-OCT", "Q-DEC", "Q-MAR", "YS-JAN", "Y-DEC")),
        ("QS-FEB", {"origin": "2024-05-01"}),
        ("YS-APR", {"origin": "2023-04-01"}),
    ],
)
def test_anchored_steps_begin_at_their_anchor(
    zone: str | None, step: str, options: dict[str, Any]
) -> None:
    alias = {"Q-DEC": "QS", "Q-MAR": "QS", "Y-DEC": "YS", "2Wsun": "2W"}.get(step, step.upper())
    stamps = pd.date_range("2024-01-01", periods=9, freq=alias, tz=zone)
    if step.startswith("2W"):  # every second one from 1970 on
        weeks = (stamps.tz_localize(None) - pd.Timestamp("1970-01-05")).days // 7
        stamps = stamps + (weeks[0] % 2) * pd.offsets.Week()
    kept = stamps.delete([2, 3, 6])
    table = wd.Table.from_pandas(pd.DataFrame({"time": kept, "y": 0.0}), timestamp_column="time")
    found = table.regularize(step, time_zone=zone, **options)
    assert found.to_arrow()["time"].to_pylist() == stamps.to_pydatetime().tolist()


@pytest.mark.parametrize("step", ["D", "2D", "24h", "W-SUN", "MS", "Y", dt.timedelta(days=1)])
def test_days_of_a_table_of_a_zone_need_one(step: Any) -> None:
    zone = "Europe/Berlin"
    table = random_table({"a": [dt.datetime(2024, 1, 1, 5)]}, 0, zone)
    with pytest.raises(ValueError, match=r"expected time_zone='Europe/Berlin' for days.*'UTC'"):
        table.regularize(step, off_grid="floor")
    assert table.timestamps is not None
    for chosen, hours in ((zone, 23), ("UTC", 0)):
        found = table.regularize(step, off_grid="floor", time_zone=chosen).timestamps
        assert found is not None
        assert found.astype("M8[h]").astype(int)[0] % 24 == hours
    in_utc = random_table({"a": [dt.datetime(2024, 1, 1)]}, 0, "UTC")
    assert in_utc.regularize("D") is in_utc
    offset = random_table({"a": [dt.datetime(2024, 1, 1)]}, 0, "+01:00")
    with pytest.raises(
        ValueError, match=r"time zone '\+01:00', whose .* expected the name of a zone as"
    ):
        offset.regularize("D")


def test_messages_say_that_times_are_of_utc() -> None:
    times = [dt.datetime(2024, 1, 1, 5), dt.datetime(2024, 1, 1, 5, 30)]
    table = random_table({"a": times}, 0, "Europe/Berlin")
    with pytest.raises(ValueError, match=r"05:30 UTC, which .* of 1h from 1970.* UTC\);"):
        table.regularize("1h")
    with pytest.raises(ValueError, match=r"05:00 UTC, .* of 1D from 1970-01-01 in the zone Europe"):
        table.regularize("D", time_zone="Europe/Berlin")
    with pytest.raises(ValueError, match=r"for 2024-01-01 05:00 UTC, at 2024.*00 UTC and"):
        table.regularize("1h", off_grid="floor")
    with pytest.raises(ValueError, match=r"\(steps of 1D from the first row of the series\)"):
        random_table({"a": times}, 0).regularize("D", origin="first")


def test_a_mean_of_integers_is_an_error() -> None:
    columns = {"load": [0.5, 1.5, 9.0], "n": [1, 2, 3], "t": [0, 1, 4]}
    table = wd.Table.from_columns(columns, timestamp_column="t")
    options: dict[str, Any] = {"off_grid": "floor", "duplicates": "mean"}
    with pytest.raises(
        ValueError, match="column 'n' of int64 has several values for the step of 1 in series 0"
    ):
        table.regularize(2, **options)
    same = table.with_columns({"n": np.array([7, 7, 3])}).regularize(2, **options)
    assert same["load"].tolist()[0] == 1.0
    assert same.to_arrow().column("n").to_pylist() == [7, None, 3]


def test_tables_without_times_or_values_in_memory(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the table has no timestamps; expected timestamp_column="):
        wd.Table.from_columns({"a": np.zeros(2)}).regularize(1)
    pl.DataFrame({"a": [0.0, 1.0], "t": [0, 5]}).write_parquet(tmp_path / "a.parquet")
    table = wd.Table.read(tmp_path / "a.parquet", timestamp_column="t", in_memory=False)
    with pytest.raises(TypeError, match="files that `windeck prepare SRC DEST --step") as error:
        table.regularize(1)
    assert "windeck.prepare(src, dest, timestamp_column='t', step=1)" in str(error.value)


def test_windows_mask_the_added_rows() -> None:
    table = irregular(3).regularize(10)
    batch = wd.Windows(table, context_length=5, target_columns="load").gather([0])
    assert batch["past_target_mask"].ravel().tolist() == [True, True, False, False, True]
    assert pickle.loads(pickle.dumps(table)).fingerprint == table.fingerprint


def test_static_covariates_stay() -> None:
    columns = {"load": np.arange(4.0), "area": np.array([3, 3, 5, 5]), "t": [0, 4, 1, 9]}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 2, 4])
    windows = wd.Windows(
        table.regularize(1), context_length=2, target_columns="load", static_covariates="area"
    )
    static = windows.gather([0, len(windows) - 1])["static"]
    assert static.ravel().tolist() == [3, 5]


def test_a_matrix_becomes_columns_and_bfloat16_stays() -> None:
    torch = pytest.importorskip("torch")
    rows = wd.Table.from_rows(np.arange(4.0).reshape(2, 2), ["a", "b"], timestamps=np.array([0, 2]))
    found = rows.regularize(1)
    assert (found.storage, found["b"].tolist()[::2]) == ("columns", [1.0, 3.0])
    brain = torch.tensor([0.5, 1.5, 3.0], dtype=torch.bfloat16)
    table = wd.Table.from_columns({"a": brain, "t": [0, 3, 4]}, timestamp_column="t")
    found = table.regularize(3, off_grid="floor", duplicates="mean")
    assert found.to_torch()["a"].dtype == torch.bfloat16
    assert found.to_torch()["a"].tolist() == [0.5, 2.25]
    added = table.regularize(1).to_torch()["a"]
    assert added.isnan().tolist() == [False, True, True, False, False]


def test_tables_without_rows_and_mapped_ones(tmp_path: Path) -> None:
    empty = wd.Table.from_columns({"a": np.zeros(0), "t": np.zeros(0, int)}, timestamp_column="t")
    assert empty.regularize(1) is empty
    series = wd.Table.from_columns(
        {"a": np.arange(3.0), "t": [0, 2, 5]}, timestamp_column="t", offsets=[0, 0, 2, 3, 3]
    )
    found = series.regularize(1)
    assert found.offsets.tolist() == [0, 0, 3, 4, 4]
    assert found.to_arrow()["a"].to_pylist()[2:] == [1.0, 2.0]
    data = pa.table({"a": [0.5, 1.5], "t": [0, 2]})
    with pa.ipc.new_file(tmp_path / "a.arrow", data.schema) as writer:
        writer.write_table(data)
    mapped = wd.Table.read(tmp_path / "a.arrow", timestamp_column="t", in_memory=False)
    made = mapped.regularize(1)
    assert "mapped" not in made.explain()
    assert pickle.loads(pickle.dumps(made)).fingerprint == made.fingerprint


def test_work_takes_constant_memory() -> None:
    taken = []
    for rows in (500_000, 2_000_000):
        times = np.flatnonzero(np.arange(rows) % 10 != 5)
        columns = {"a": np.ones(len(times), np.float32), "b": np.ones(len(times), np.int8)}
        table = wd.Table.from_columns({**columns, "t": times}, timestamp_column="t")
        tracemalloc.start()
        try:
            found = table.regularize(1)
            result, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.num_rows == rows
        taken.append(peak - result)
    assert taken[1] < taken[0] + (2 << 20) < 16 << 20


def nab_series() -> dict[Any, tuple[Any, Any]]:
    table = wd.Table.read(
        real_data("nab.parquet"), id_columns="series", timestamp_column="timestamp"
    )
    irregular = np.flatnonzero(table.report.irregular)
    assert len(irregular) == 25
    assert table.timestamps is not None
    found = {}
    for number in irregular:
        rows = slice(*table.offsets[number : number + 2])
        found[table.series_names[number]] = table.timestamps[rows], table["value"][rows]
    return found


@pytest.mark.filterwarnings("ignore:.*have the time stamp of another row of their series")
def test_nab_equals_polars() -> None:
    for name, (stamps, values) in nab_series().items():
        step = np.median(np.diff(stamps)).astype("m8[s]")
        columns = {"value": values, "time": stamps}
        table = wd.Table.from_columns(columns, timestamp_column="time")
        options: dict[str, Any] = {"off_grid": "floor", "duplicates": "mean", "max_rows": 10**6}
        found = table.regularize(step, **options)
        every = f"{int(step.astype(np.int64))}s"
        floored = pl.DataFrame(columns).with_columns(pl.col("time").dt.truncate(every))
        means = floored.group_by("time", maintain_order=True).agg(pl.col("value").mean())
        expected = means.sort("time").upsample("time", every=every)
        assert found.num_rows == expected.height, name
        assert (found.timestamps == expected["time"].to_numpy()).all()
        observed = found.column("value").observed()
        assert (observed == expected["value"].is_not_null().to_numpy()).all()
        np.testing.assert_allclose(
            found["value"][observed], expected["value"].drop_nulls().to_numpy(), rtol=1e-12
        )
        assert not found.report.irregular.any()


def test_rows_that_are_added_are_counted_as_missing() -> None:
    columns = {"load": np.array([1.0, np.nan, 4.0]), "t": np.array([0, 1, 4], dtype="M8[h]")}
    table = wd.Table.from_columns(columns, timestamp_column="t").with_missing_counts()
    assert table.column("load").missing == 1
    regular = table.regularize("1h")
    assert regular["load"].shape == (5,)
    assert regular.column("load").missing == 3
