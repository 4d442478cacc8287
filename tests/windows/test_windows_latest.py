"""The inputs of a forecast: no option that chooses windows for training moves or drops them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import windeck as wd

NAMES = ("a", "b", "c")
LENGTHS = (30, 41, 17)
INDEX: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time"}
ROLES: dict[str, Any] = {
    "target_columns": ["load", "price"],
    "known_covariates": "hour",
    "past_covariates": "wind",
    "static_covariates": "area",
}
#: Options that choose windows, or move them.
TRAINING: list[dict[str, Any]] = [
    {},
    {"max_missing": 0.2},
    {"max_gap": "1h"},
    {"min_observed_past": 3},
    {"min_observed_future": 1},
    {"stride": 7},
    {"stride": 5, "anchor": "end"},
    {"dilation": 2},
    {"gap": 2, "max_missing": 0.0},
    {"gap": -2},
    {"pad": "both"},
    {"pad": "start", "min_context_length": 2, "max_missing": 0.1},
]


def series_of(name: str, rows: int, ahead: int) -> dict[str, Any]:
    """Return a series of `rows` rows, and `ahead` more rows, whose covariates are known."""
    number = NAMES.index(name)
    steps = np.arange(rows + ahead)
    load = 1000.0 * (number + 1) + steps
    load[[5, rows - 2]] = np.nan
    stamps = np.datetime64("2024-01-01T00", "s") + (steps + 3 * number) * np.timedelta64(3600, "s")
    stamps[:4] -= np.timedelta64(7, "D")  # a break
    unknown = steps >= rows
    return {
        "id": np.repeat(name, rows + ahead),
        "time": stamps,
        "load": pa.array(load, mask=unknown),
        "price": pa.array(-load, mask=unknown),
        "hour": ((steps + number) % 24).astype(np.int8),
        "wind": pa.array(load / 7, mask=unknown),
        "area": np.full(rows + ahead, number * 10, np.int32),
    }


def arrow_of(ahead: int, names: tuple[str, ...] = NAMES) -> pa.Table:
    parts = [
        pa.table(series_of(name, rows, ahead))
        for name, rows in zip(NAMES, LENGTHS, strict=True)
        if name in names
    ]
    return pa.concat_tables(parts)


def future_rows(ahead: int) -> pa.Table:
    """Return the rows after the series alone, the series in another order, and one more."""
    parts = []
    for name in ("c", "x", "a", "b"):
        known = "a" if name == "x" else name
        rows = LENGTHS[NAMES.index(known)]
        own = pa.table(series_of(known, rows, ahead)).slice(rows)
        parts.append(own.set_column(0, "id", pa.array([name] * ahead)))
    return pa.concat_tables(parts).select(["id", "time", "hour"])


def future_of(data: pa.Table) -> wd.Table:
    return wd.Table.from_arrow(data, **INDEX)


def table_in(way: str, data: pa.Table, folder: Path) -> wd.Table:
    path = folder / f"rows{len(data)}.{'arrow' if way == 'mapped' else 'parquet'}"
    if way == "mapped":
        feather.write_feather(data, path, compression="uncompressed")
    else:
        parquet.write_table(data, path, row_group_size=11)
    return wd.Table.read(path, in_memory=way == "memory", **INDEX)


def expected_of(series: int, span: dict[str, Any]) -> dict[str, Any]:
    """Return a window of plain loops: values, with None where something is missing."""
    context, gap, dilation = 4, span.get("gap", 0), span.get("dilation", 1)
    rows = LENGTHS[series]
    start = rows - 1 - (context - 1) * dilation
    past = [start + j * dilation for j in range(context)]
    future = [start + (context + j) * dilation + gap for j in range(3)]
    whole = pa.table(series_of(NAMES[series], rows, 40)).to_pydict()

    def of(names: list[str], steps: list[int]) -> list[list[Any]]:
        found = [[whole[name][row] if row >= 0 else None for name in names] for row in steps]
        return [[None if value != value else value for value in step] for step in found]

    targets = ["load", "price"]
    return {
        "past_target": of(targets, past),
        "future_target": of(targets, future),
        "past_known": of(["hour"], past),
        "future_known": of(["hour"], future),
        "past_covariates": of(["wind"], past),
        "static": [series * 10],
        "series_id": series,
    }


def with_none(batch: dict[str, Any], row: int) -> dict[str, Any]:
    """Return a sample as plain values, with None where its masks are false."""
    found = {}
    for key, array in batch.items():
        if f"{key}_mask" in batch:
            values = array[row].astype(object)
            values[~batch[f"{key}_mask"][row]] = None
            found[key] = values.tolist()
        elif key == "series_id":
            found[key] = int(array[row])
    return found


@pytest.mark.parametrize("way", ["memory", "mapped", "streamed"])
@pytest.mark.parametrize("options", TRAINING, ids=str)
def test_forecasts_begin_where_the_series_end(
    way: str, options: dict[str, Any], tmp_path: Path
) -> None:
    lengths: dict[str, Any] = {"context_length": 4, "prediction_length": 3}
    past = 3 * options.get("dilation", 1) + 1
    ahead = 3 * options.get("dilation", 1) + options.get("gap", 0)
    appended = table_in(way, arrow_of(ahead), tmp_path)
    plain = table_in(way, arrow_of(0), tmp_path)
    expected = [expected_of(series, options) for series in range(3)]
    w = wd.Windows(appended, **lengths, **ROLES, **options).latest(future=True)
    assert w.locate(np.arange(3))[1].tolist() == [
        int(end) - ahead - past for end in appended.offsets[1:]
    ]
    v = wd.Windows(plain, **lengths, **ROLES, **options).latest(
        future=future_of(future_rows(ahead))
    )
    for windows in (w, v, pickle.loads(pickle.dumps(v)), v.joined()):
        batch = windows.gather([0, 1, 2])
        assert [with_none(batch, row) for row in range(3)] == expected
        steps = 3 + min(options.get("gap", 0), 0)
        stamps = windows.prediction_table(np.zeros((3, steps, 2)))["time"].to_numpy()
        step = options.get("dilation", 1) + max(options.get("gap", 0), 0)
        ends = [
            series_of(name, rows, 40)["time"][rows - 1 + step]
            for name, rows in zip(NAMES, LENGTHS, strict=True)
        ]
        assert stamps.reshape(3, steps)[:, 0].astype("M8[s]").tolist() == np.array(ends).tolist()
    without = wd.Windows(plain, **lengths, **ROLES, **options).latest().gather([0, 1, 2])
    assert "future_known" not in without
    for key in without:
        if key != "start":
            np.testing.assert_array_equal(without[key], v.gather([0, 1, 2])[key], err_msg=key)


# --- what is refused, and what is warned of ------------------------------------------------------

SHORT: dict[str, Any] = {"context_length": 4, "prediction_length": 3, **ROLES}


def plain_windows(ahead: int = 0, **options: Any) -> wd.Windows:
    return wd.Windows(wd.Table.from_arrow(arrow_of(ahead), **INDEX), **SHORT, **options)


def test_rows_of_the_future_that_are_missing_are_named() -> None:
    w, rows = plain_windows(), future_rows(3)
    lacking = pa.concat_tables([rows[:7], rows[8:]])
    with pytest.raises(ValueError, match=r"no row of series 'a' at 2024-01-02 07.* \(1 row is mi"):
        w.latest(future=future_of(lacking))
    with pytest.raises(ValueError, match=r"no rows of 1 series: 'b'; expected the ids"):
        w.latest(future=future_of(rows[:9]))
    twice = pa.concat_tables([rows[:7], rows[6:]])
    with pytest.raises(ValueError, match="has series 'a' twice at 2024-01-02 06"):
        w.latest(future=future_of(twice))
    with pytest.raises(KeyError, match="`future` has no column 'hour'; did you mean 'hours'"):
        w.latest(future=future_of(rows.rename_columns(["id", "time", "hours"])))
    wide = rows.set_column(2, "hour", rows["hour"].cast(pa.int64()))
    with pytest.raises(TypeError, match="'hour' of `future` is int64, expected int8 as in the tab"):
        w.latest(future=future_of(wide))
    with pytest.raises(ValueError, match="`future` has no time stamps, by which rows"):
        w.latest(future=wd.Table.from_arrow(rows.select(["id", "hour"]), id_columns="id"))
    numbers = rows.set_column(1, "time", pa.array(range(12)))
    with pytest.raises(TypeError, match=r"`future` has time stamps of int64, expected datetime64"):
        w.latest(future=future_of(numbers))
    late = rows.set_column(1, "time", rows["time"].cast(pa.timestamp("ns")))
    assert len(w.latest(future=future_of(late))) == 3
    with pytest.raises(TypeError, match="`future` must be a bool or a Table, got a int"):
        w.latest(future=3)
    with pytest.raises(ValueError, match="`step` is '1h', expected future=table with it"):
        w.latest(step="1h")
    with pytest.raises(ValueError, match="expected prediction_length > 0"):
        w.latest().latest(future=True)


def test_known_covariates_that_cannot_be_computed_are_named() -> None:
    table = wd.Table.from_arrow(arrow_of(0), **INDEX).with_calendar("weekday", encoding="scaled")
    names = {**SHORT, "known_covariates": ["weekday", "hour"]}
    with pytest.raises(
        ValueError,
        match="known covariates other than calendar features, 'hour', cannot be computed: expected "
        "future=frame with ids, times and 'hour' of these rows, rows with unknown targets",
    ):
        wd.Windows(table, **names).latest(future=True)


def test_times_with_and_without_a_zone_are_not_matched() -> None:
    rows = future_rows(3)
    zoned = rows.set_column(1, "time", rows["time"].cast(pa.timestamp("s", "Europe/Berlin")))
    with pytest.raises(
        ValueError, match="`future` has time stamps in the time zone Europe/Berlin, and the tab"
    ):
        plain_windows().latest(future=future_of(zoned))
    past = arrow_of(0)
    past = past.set_column(1, "time", past["time"].cast(pa.timestamp("s", "UTC")))
    w = wd.Windows(wd.Table.from_arrow(past, **INDEX), **SHORT)
    with pytest.raises(
        ValueError, match="the table has time stamps in the time zone UTC, and `future` has some"
    ):
        w.latest(future=future_of(rows))
    np.testing.assert_array_equal(
        w.latest(future=future_of(zoned)).gather([0, 1, 2])["future_known"],
        plain_windows().latest(future=future_of(rows)).gather([0, 1, 2])["future_known"],
    )


def test_the_step_to_the_future_may_be_given() -> None:
    rows = future_rows(9)
    thirds = pa.concat_tables([rows[i : i + 1] for i in range(len(rows)) if i % 3 == 2])
    batch = plain_windows().latest(future=future_of(thirds), step="3h").gather([0, 1, 2])
    hours = [[(rows + 2 + 3 * j + n) % 24 for j in range(3)] for n, rows in enumerate(LENGTHS)]
    assert batch["future_known"][..., 0].tolist() == hours


def test_categories_of_the_future_have_the_codes_of_the_table() -> None:
    past = {"load": np.arange(6.0), "kind": ["x", "y", None, "x", "z", "x"], "t": np.arange(6)}
    table = wd.Table.from_arrow(pa.table(past), timestamp_column="t", categories="kind")
    w = wd.Windows(table, context_length=2, prediction_length=3, known_covariates="kind")
    after = pa.table({"kind": ["z", None, "y"], "t": [6, 7, 8]})
    future = wd.Table.from_arrow(after, timestamp_column="t", categories="kind")
    with pytest.warns(UserWarning, match="'kind' in 1 of 3 rows, first of series 0 at 7; they are"):
        batch = w.latest(future=future).gather([0])
    assert batch["future_known"].ravel().tolist() == [2, 0, 1]
    assert batch["future_known_mask"].ravel().tolist() == [True, False, True]
    other = pa.table({"kind": ["z", "w", "y"], "t": [6, 7, 8]})
    future = wd.Table.from_arrow(other, timestamp_column="t", categories="kind")
    with pytest.raises(ValueError, match="'kind' of `future` has the category 'w', which the tab"):
        w.latest(future=future)


def test_rows_that_are_no_future_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"3 series have a target within their last 3 rows.*'a', 'b"
    ):
        plain_windows().latest(future=True)
    with pytest.raises(ValueError, match="3 series have a target within their last 3 rows"):
        plain_windows(2).latest(future=True)
    with pytest.warns(
        UserWarning, match="targets of 3 series are unknown for more than the last 3"
    ):
        plain_windows(4).latest(future=True)


def test_the_future_of_a_part_is_behind_it() -> None:
    train, validation, test = plain_windows(3).split(validation_rows=5, test_rows=6)
    series = [pa.table(series_of(name, rows, 3)) for name, rows in zip(NAMES, LENGTHS, strict=True)]
    for part, left in ((train, 11), (validation, 6)):
        batch = part.latest(future=True).gather([0, 1, 2])
        for number, rows in enumerate(LENGTHS):
            end = rows + 3 - left
            for key, low, high in (("past", end - 4, end), ("future", end, end + 3)):
                hours = series[number]["hour"].to_pylist()[low:high]
                assert batch[f"{key}_known"][number, :, 0].tolist() == hours
    assert test.latest(future=True).locate([0, 1, 2])[1].tolist() == [
        end - 7 for end in test.table.offsets[1:].tolist()
    ]
    with pytest.raises(ValueError, match=r"3 rows after this part .* 1 series: 'a'; expected"):
        plain_windows(3).subset(rows=(0, 32)).latest(future=True)


def test_short_series_come_padded_or_are_named() -> None:
    data = pa.concat_tables([arrow_of(3)[:12], arrow_of(3)[33:]])
    table = wd.Table.from_arrow(data, **INDEX)
    options: dict[str, Any] = {**SHORT, "context_length": 25}
    with pytest.warns(UserWarning, match="series are shorter than a window"):
        w = wd.Windows(table, **options)
    assert np.diff(table.offsets).tolist() == [12, 44, 20]
    for future in (False, future_of(future_rows(30))):
        with pytest.warns(
            UserWarning, match=r"2 of 3 series .* context of 25 rows .*: 'a', 'c'; pad"
        ):
            w.latest(future=future)


@pytest.mark.parametrize("rows", [3, 6, 8])
def test_a_table_of_contexts_alone_has_a_forecast(rows: int) -> None:
    """Its rows are fewer than those of a window, as of a table that is read to be forecast."""
    stamps = np.datetime64("2024-01-01T00", "h") + np.arange(40)
    load = np.arange(40.0)
    roles: dict[str, Any] = {
        "context_length": 6, "prediction_length": 4, "target_columns": "load",
        "known_covariates": ["hour_sin", "hour_cos"],
    }  # fmt: skip

    def table_from(first: int) -> wd.Table:
        columns = {"load": load[first:], "time": stamps[first:]}
        return wd.Table.from_columns(columns, timestamp_column="time").with_calendar("hour")

    recent = table_from(40 - rows)
    with pytest.raises(ValueError, match=r"no window fits.*; expected .* pad='both' to forecast"):
        wd.Windows(recent, **roles, pad="start" if rows < 6 else False)
    found = wd.Windows(recent, **roles, pad="both").latest(future=True).gather([0])
    expected = wd.Windows(table_from(0), **roles).latest(future=True).gather([0])
    inside = min(rows, 6)
    assert found["past_target_mask"].sum() == inside
    for key in ("past_target", "past_known"):
        np.testing.assert_array_equal(found[key][:, -inside:], expected[key][:, -inside:])
    np.testing.assert_array_equal(found["future_known"], expected["future_known"])


@pytest.mark.parametrize("options", TRAINING[1:5])
def test_filters_leave_no_trace(options: dict[str, Any]) -> None:
    latest, plain = plain_windows(**options).latest(), plain_windows().latest()
    assert latest.fingerprint == plain.fingerprint
    assert (latest.max_missing, latest.max_gap) == (1.0, None)


def test_static_covariates_are_those_of_the_first_row_of_a_series() -> None:
    data = arrow_of(0)
    area = pa.array(np.arange(len(data)), pa.int32())
    data = data.set_column(data.column_names.index("area"), "area", area)
    with pytest.warns(UserWarning, match="static covariates vary within a series"):
        w = wd.Windows(wd.Table.from_arrow(data, **INDEX), **SHORT)
    for latest in (w.latest(), w.latest(future=future_of(future_rows(3)))):
        found = latest.gather(np.arange(3))["static"]
        assert found.ravel().tolist() == w.table.offsets[:-1].tolist()


def test_the_last_windows_that_a_filter_left_are_not_taken_for_the_last() -> None:
    w = plain_windows(3, max_missing=0.3)
    dropped = r"of 3 series were dropped by max_missing: 'a', 'b', 'c'; .* latest\(future=True\)"
    with pytest.warns(UserWarning, match=dropped):
        w.subset(last=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w.subset(mask=np.ones(len(w), bool), last=1)
        plain_windows(3).subset(last=1)
        plain_windows(0, max_gap="2h").subset(last=2)


# --- calendar features of the future -------------------------------------------------------------

CALENDAR = ["hour_sin", "hour_cos", "weekday_sin", "weekday_cos", "age"]


def with_calendar(ahead: int) -> wd.Table:
    table = wd.Table.from_arrow(arrow_of(ahead), **INDEX)
    return table.with_calendar(["hour", "weekday", "age"])


def windows_of(table: wd.Table, **options: Any) -> wd.Windows:
    roles: dict[str, Any] = {**ROLES, "known_covariates": CALENDAR}
    return wd.Windows(table, context_length=4, prediction_length=3, **{**roles, **options})


@pytest.mark.parametrize("options", TRAINING, ids=str)
def test_calendar_features_of_the_future_need_no_table(options: dict[str, Any]) -> None:
    """They are those that a table with the rows of the future has."""
    ahead = 3 * options.get("dilation", 1) + options.get("gap", 0)
    w = windows_of(with_calendar(0), **options)
    v = w.latest(future=True)
    expected = windows_of(with_calendar(ahead), **options).latest(future=True)
    batch, other = v.gather([0, 1, 2]), expected.gather([0, 1, 2])
    assert batch["future_known_mask"].all()
    assert not batch["future_target_mask"][:, -1].any()
    for key in set(batch) - {"start"}:
        np.testing.assert_array_equal(batch[key], other[key], err_msg=key)
    zeros = np.zeros((3, 3 + min(options.get("gap", 0), 0), 2))
    assert v.prediction_table(zeros) == expected.prediction_table(zeros)
    assert v.prediction_table(zeros) == w.latest().prediction_table(zeros)


def test_calendar_features_beside_a_table_of_the_future(tmp_path: Path) -> None:
    options: dict[str, Any] = {"known_covariates": ["hour", *CALENDAR], "dtype": {"hour": "f4"}}
    w = windows_of(with_calendar(0), **options)
    expected = windows_of(with_calendar(3), **options).latest(future=True)
    rows = future_of(future_rows(3))
    # A table of the future begins anew to count the rows of a series.
    for future in (rows, rows.with_calendar(["hour", "weekday", "age"])):
        batch = w.latest(future=future).gather([0, 1, 2])
        for key in set(batch) - {"start"}:
            np.testing.assert_array_equal(batch[key], expected.gather([0, 1, 2])[key], err_msg=key)
    with pytest.raises(ValueError, match="`future` has no rows of 1 series: 'b'"):
        windows_of(with_calendar(0)).latest(future=future_of(future_rows(3)[:9]))
    with pytest.raises(ValueError, match="3 series have a target within their last 3 rows"):
        w.latest(future=True)  # the column "hour" is of the data


def test_derived_tables_remember_their_calendar(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    feather.write_feather(arrow_of(0).combine_chunks(), path, compression="uncompressed")
    mapped = wd.Table.read(path, in_memory=False, **INDEX).with_calendar(["hour", "weekday", "age"])
    expected = windows_of(with_calendar(0)).latest(future=True).gather([0, 1, 2])["future_known"]
    for table in (with_calendar(0), mapped):
        more = table.with_columns({"x": np.zeros(table.num_rows)}).with_missing_counts()
        for derived in (more, pickle.loads(pickle.dumps(table)), pickle.loads(pickle.dumps(more))):
            assert derived.fingerprint in (table.fingerprint, more.fingerprint)
            for w in (windows_of(derived), pickle.loads(pickle.dumps(windows_of(derived)))):
                batch = w.latest(future=True).gather([0, 1, 2])
                np.testing.assert_array_equal(batch["future_known"], expected)
        replaced = table.with_columns({"hour_sin": np.zeros(table.num_rows, np.float32)})
        with pytest.raises(ValueError, match="3 series have a target within their last 3 rows"):
            windows_of(replaced).latest(future=True)


def test_the_calendar_goes_on_by_the_step_that_is_given() -> None:
    months = np.datetime64("2023-01", "M") + np.arange(15)
    columns = {"x": np.arange(15.0), "t": months.astype("M8[D]")}
    table = wd.Table.from_columns(columns, timestamp_column="t")
    table = table.with_calendar("month", encoding="scaled")
    w = wd.Windows(table, context_length=3, prediction_length=3, known_covariates="month")
    with pytest.raises(ValueError, match="steps of about 31 days that differ in length, expected"):
        w.latest(future=True)
    v = w.latest(future=True, step=np.timedelta64(1, "M"))
    np.testing.assert_allclose(v[0]["future_known"][:, 0], np.arange(3, 6) / 11 - 0.5, rtol=1e-6)
    hourly = windows_of(with_calendar(0)).latest(future=True, step="12h").gather([0])
    np.testing.assert_allclose(hourly["future_known"][0, 0, :2], hourly["future_known"][0, 2, :2])
    with pytest.raises(ValueError, match="`step` is '1h', expected future=table with it, or futur"):
        windows_of(with_calendar(3)).latest(future=True, step="1h")


def test_the_calendar_of_a_part_is_that_of_the_rows_after_it() -> None:
    train, _, test = windows_of(with_calendar(0)).split(validation_rows=4, test_rows=4)
    batch = train.latest(future=True).gather([0, 1, 2])
    assert batch["future_target_mask"][:, 0].all()  # these rows are in the table
    v = test.latest(future=True)
    batch = v.gather([0, 1, 2])
    assert not batch["future_target_mask"].any()
    w = windows_of(with_calendar(0)).latest(future=True)
    np.testing.assert_array_equal(batch["future_known"], w.gather([0, 1, 2])["future_known"])
    few = windows_of(with_calendar(0)).subset(rows=(0, 28)).latest(future=True)  # 2 rows follow
    batch = few.gather([0])
    assert batch["future_known_mask"].all()
    np.testing.assert_allclose(10 ** batch["future_known"][0, :, 4] - 2, [28, 29, 30], rtol=1e-5)


def test_series_that_end_without_targets_are_named() -> None:
    """They may have the rows of a future already, which would begin too late."""
    data = pa.concat_tables([arrow_of(3)[:33], arrow_of(0)[30:]])
    table = wd.Table.from_arrow(data, **INDEX).with_calendar(["hour", "weekday", "age"])
    with pytest.warns(
        UserWarning, match="targets of 1 of 3 series are unknown for the last 3 rows: 'a'; their"
    ) as found:
        v = windows_of(table).latest(future=True)
    assert found[0].filename == __file__
    assert v.prediction_table(np.zeros((3, 3, 2)))["time"][0].as_py().hour == 9


@pytest.mark.parametrize("rows", [3, 6])
def test_series_without_a_forecast_do_not_move_that_of_others(rows: int) -> None:
    """A series that is shorter than a context before the rows of the future has no forecast."""
    hours = np.concatenate([np.arange(20), np.arange(rows)])
    load = hours.astype(np.float64)
    load[16:20] = np.nan
    data = {"load": load, "time": np.datetime64("2024-01-01T00") + hours}
    table = wd.Table.from_columns(
        {**data, "id": np.repeat(["a", "b"], [20, rows])}, **INDEX
    ).with_calendar("hour")
    with pytest.warns(UserWarning, match="1 of 2 series are shorter than a window of 10 rows"):
        w = wd.Windows(
            table, context_length=6, prediction_length=4, target_columns="load",
            known_covariates=["hour_sin", "hour_cos"],
        )  # fmt: skip
    with pytest.warns(UserWarning, match="1 of 2 series are shorter than a context of 6 rows.*'b'"):
        v = w.latest(future=True)
    assert v.gather([0])["past_target"][0, :, 0].tolist() == [10.0, 11, 12, 13, 14, 15]
    assert v.prediction_table(np.zeros((1, 4)))["time"][0].as_py().hour == 16


def test_windows_without_known_covariates_have_a_future() -> None:
    w = wd.Windows(with_calendar(0), context_length=4, prediction_length=3, target_columns="load")
    batch = w.latest(future=True).gather([0, 1, 2])
    assert batch["past_target"][:, -1, 0].tolist() == [1029.0, 2040.0, 3016.0]
    assert not batch["future_target_mask"].any()
    unstamped = wd.Table.from_columns({"x": np.arange(9.0)}).with_calendar("age")
    w = wd.Windows(unstamped, context_length=2, prediction_length=1, known_covariates="age")
    with pytest.raises(ValueError, match="1 series has a target within its last 1 row, which is"):
        w.latest(future=True)


def gappy(streamed: Path | None = None) -> wd.Table:
    """Return series of 8 rows: 'b' without its last 4 targets, 'c' without the last but 5th."""
    load = np.arange(24.0)
    load[12:16], load[17:24] = np.nan, np.nan
    load[19] = 1.0
    columns = {"id": np.repeat(NAMES, 8), "t": np.tile(np.arange(8), 3), "load": load}
    options: dict[str, Any] = {"id_columns": "id", "timestamp_column": "t"}
    if streamed is None:
        return wd.Table.from_columns(columns, **options)
    parquet.write_table(pa.table(columns), streamed / "gappy.parquet")
    return wd.Table.read(streamed / "gappy.parquet", in_memory=False, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"context_length": 3}, r"2 of 3 series .* context of 3 rows: 'b', 'c'"),
        ({"context_length": 4}, r"2 of 3 series .* context of 4 rows: 'b', 'c'"),
        ({"context_length": 2, "dilation": 3}, r"2 of 3 series .* context of 4 rows: 'b', 'c'"),
        ({"context_length": 2, "dilation": 5}, r"1 of 3 series .* context of 6 rows: 'c'"),
        ({"context_length": 2, "dilation": 4}, None),
        ({"context_length": 3, "dilation": 2}, None),
        ({"context_length": 5}, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_contexts_without_a_target_are_named(
    options: dict[str, Any], named: str | None, streamed: bool, tmp_path: Path
) -> None:
    w = wd.Windows(gappy(tmp_path if streamed else None), target_columns="load", **options)
    if named is None:
        w.latest()
        return
    message = f"{named}; all of its values are missing$"
    with pytest.warns(UserWarning, match=message) as caught:
        w.latest()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_context_with_one_target_column_or_padding_is_not_missing() -> None:
    table = gappy().with_columns({"price": np.arange(24.0)})
    wd.Windows(table, context_length=3, target_columns=["load", "price"]).latest()
    w = wd.Windows(gappy(), context_length=20, target_columns="load", pad="start")
    assert len(w.latest()) == 3
