"""Filters, pickles, fingerprints and errors of windows."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.window_tables import table_of
from windeck.columns import parse_duration

# --- filters ----------------------------------------------------------------------------------


def test_windows_with_too_much_missing_are_dropped() -> None:
    load = np.arange(10.0)
    load[3] = np.nan
    options: dict[str, Any] = {"context_length": 2, "prediction_length": 2}
    kept = wd.Windows(table_of(load=load), max_missing=0.24, **options)
    assert kept.window_starts().tolist() == [4, 5, 6]
    assert kept.explain().dropped["missing"] == 4
    assert len(wd.Windows(table_of(load=load), max_missing=0.25, **options)) == 7
    assert kept.nbytes < 200


def test_windows_with_too_few_observed_values_are_dropped() -> None:
    load = np.arange(10.0)
    load[[3, 4]] = np.nan
    table = table_of(load=load)
    options: dict[str, Any] = {"context_length": 2, "prediction_length": 2}
    past = wd.Windows(table, min_observed_past=1, **options)
    assert past.window_starts().tolist() == [0, 1, 2, 4, 5, 6]
    both = wd.Windows(table, min_observed_past=2, min_observed_future=2, **options)
    assert both.window_starts().tolist() == [5, 6]
    assert both.explain().dropped == {"missing": 0, "past": 3, "future": 2, "gap": 0}
    assert "3 dropped with too few observed past values" in str(both.explain())
    assert "2 dropped with too few observed future values" in str(both.explain())
    assert both.fingerprint["min_observed_past"] == 2
    usual = wd.Windows(table, **options)
    assert wd.Windows(table, min_observed_past=0, **options).fingerprint == usual.fingerprint
    assert both.latest().gather([0])["past_target"].ravel().tolist() == [8, 9]
    with pytest.raises(ValueError, match=r"of 1 that fit, 1 have too few observed past values, 0"):
        wd.Windows(table_of(load=load[2:6]), min_observed_past=2, **options)


@pytest.mark.parametrize(
    "max_gap",
    ["30min", "1h", "90min", np.timedelta64(1, "h"), 3600, pytest.param("1hours", id="hours")],
)
def test_windows_do_not_span_a_break(max_gap: Any) -> None:
    stamps = np.datetime64("2020-01-01", "s") + np.array([0, 1, 2, 3, 8, 9, 10]) * 1800
    table = wd.Table.from_columns({"x": np.arange(7.0), "t": stamps}, timestamp_column="t")
    w = wd.Windows(table, context_length=2, max_gap=max_gap)
    assert w.window_starts().tolist() == [0, 1, 2, 4, 5]
    assert w.explain().dropped["gap"] == 1
    text = "30min" if max_gap == "30min" else "90min" if max_gap == "90min" else "1h"
    assert f"1 dropped across a break in time of more than {text}" in str(w.explain())


@pytest.mark.parametrize(("unit", "text"), [("us", "1us"), ("ns", "1ns"), ("s", "1s"), ("h", "1h")])
def test_the_unit_of_a_bare_max_gap_is_stated(unit: Any, text: str) -> None:
    stamps = np.datetime64("2020-01-01", unit) + np.arange(7) * np.timedelta64(3, "h")
    table = wd.Table.from_columns({"x": np.arange(7.0), "t": stamps}, timestamp_column="t")
    message = f"and 6 span a break in time of more than max_gap={text}$"
    with pytest.raises(ValueError, match=message):
        wd.Windows(table, context_length=2, max_gap=1)
    numbers = wd.Table.from_columns(
        {"x": np.arange(7.0), "t": [*range(6), 9]}, timestamp_column="t"
    )
    report = wd.Windows(numbers, context_length=2, max_gap=2).explain()
    assert "1 dropped across a break in time of more than 2\n" in f"{report}\n"


def test_durations_are_read() -> None:
    assert parse_duration("15min") == np.timedelta64(15, "m")
    assert parse_duration(" 2 d") == np.timedelta64(2, "D")
    assert parse_duration("h") == np.timedelta64(1, "h")
    for text in ("", "5", "h1", "-3h", "1h -2m", "1hm", "3 ho", "1,5h", "PT1H", f"{2**70}h"):
        with pytest.raises(ValueError, match="a duration must be a number and a unit such as"):
            parse_duration(text)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["1h", "1H", "60min", "60m", "60T", "3600S", "1 hour", "1 hr", "0.5h30min"],
            (1, "h"),
        ),
        (
            ["15min", "15T", "15m", "900s", "0.25h", "14m60s", "15 minutes"],
            (15, "m"),
        ),
        (["1h30m", "1h30min", "90T", "1.5h", "5400s", "1 hour 30 minutes", "0d1h30m0s"], (90, "m")),
        (["1D", "1d", "24h", "1440min", "1 day", "86400s", "0.5d12h"], (1, "D")),
        (["1W", "1w", "7D", "1 week", "168h"], (1, "W")),
        (["60s", "60S", "1min", "1m", "1T", "60000ms", "60000L", "60000000us"], (1, "m")),
        (["5us", "5U", "5000ns", "5000N", "5\u00b5s", "0.005ms"], (5, "us")),
    ],
)
def test_durations_have_the_spellings_of_numpy_pandas_and_polars(
    texts: list[str], expected: tuple[int, Any]
) -> None:
    wanted = np.timedelta64(*expected)
    for text in texts:
        assert parse_duration(text) == wanted, text
    stamps = np.datetime64("2024-01-01", "ns") + np.arange(5) * np.timedelta64(1, "us")
    table = wd.Table.from_columns({"x": np.arange(5.0), "t": stamps}, timestamp_column="t")
    for text in texts:
        assert len(wd.Windows(table, context_length=2, max_gap=text)) == 4


@pytest.mark.parametrize(
    "text",
    ["1M", "1 month", "2mo", "1MS", "ME", "1q", "1Q", "QS", "1Y", "1y", "1 year", "3B", "1AS"],
)
def test_durations_of_a_calendar_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match="months, years and business days differ in length; give"):
        parse_duration(text)


# --- being a value ----------------------------------------------------------------------------


def test_pickle_and_copy_give_the_same_windows(mixed: wd.Table) -> None:
    w = wd.Windows(mixed, context_length=2, target_columns="load", max_missing=0.2, dtype="float32")
    for other in (pickle.loads(pickle.dumps(w)), copy.copy(w), copy.deepcopy(w)):
        assert len(other) == len(w)
        assert other.fingerprint == w.fingerprint
        np.testing.assert_array_equal(other[3]["past_target"], w[3]["past_target"])


def test_fingerprints_tell_windows_apart() -> None:
    def named(**options: Any) -> dict[str, str | int]:
        return wd.Windows(table, **({"context_length": 3} | options)).fingerprint

    load = np.arange(40.0)
    table = table_of(load=load, other=load)
    base = named()
    assert base == named()
    assert all(isinstance(value, (str, int)) for value in base.values())
    changes: list[dict[str, Any]] = [
        {"context_length": 4},
        {"prediction_length": 1},
        {"stride": 2},
        {"dilation": 2},
        {"gap": -1, "prediction_length": 2},
        {"anchor": "end"},
        {"pad": True},
        {"pad": True, "min_context_length": 2},
        {"pad": "end", "prediction_length": 2},
        {"pad": "both", "prediction_length": 2},
        {"fill": 1.0},
        {"layout": "bct"},
        {"dtype": "float32"},
        {"target_columns": "load"},
    ]
    assert len({str(named(**change)) for change in [{}, *changes]}) == len(changes) + 1
    table = table_of(load=load + 1, other=load)
    assert named() != base


def test_repr_says_what_a_window_is() -> None:
    w = wd.Windows(table_of(), context_length=3, prediction_length=2, gap=1, stride=2, dilation=2)
    assert repr(w) == (
        "Windows(6 windows: 3 past, gap 1, 2 future, every 2 rows; stride 2; "
        "past_target, future_target)"
    )


# --- bad input --------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"context_length": 0}, ValueError, "`context_length` must be at least 1, got 0"),
    ({"context_length": -1}, ValueError, "`context_length` must be at least 1, got -1"),
    ({"prediction_length": -2}, ValueError, "`prediction_length` must be at least 0, got -2"),
    ({"gap": -3}, ValueError, "`gap` must be at least -2, got -3"),
    (
        {"gap": -2, "prediction_length": 2},
        ValueError,
        "`gap` must be at least -1, got -2",
    ),
    ({"pad": "left"}, ValueError, "`pad` must be a bool, 'start', 'end' or 'both', got 'left'"),
    ({"pad": ["end"]}, ValueError, r"`pad` must be a bool, .*, got \['end'\]"),
    ({"pad": "both"}, ValueError, "pad='both' is of past and future, expected `prediction_length`"),
    ({"anchor": "last"}, ValueError, "`anchor` must be 'start' or 'end', got 'last'"),
    ({"min_context_length": 1}, ValueError, "`min_context_length` is 1, expected pad='start'"),
    (
        {"pad": "start", "prediction_length": 2, "min_prediction_length": 1},
        ValueError,
        "`min_prediction_length` is 1, expected pad='end' or 'both' with it",
    ),
    (
        {"pad": True, "min_context_length": 3},
        ValueError,
        "`min_context_length` must be at most 2, got 3",
    ),
    (
        {"pad": "end", "prediction_length": 3, "gap": -1, "min_prediction_length": 1},
        ValueError,
        "`min_prediction_length` must be at least 2, got 1",
    ),
    ({"stride": 0}, ValueError, "`stride` must be at least 1, got 0"),
    ({"dilation": 0}, ValueError, "`dilation` must be at least 1, got 0"),
    ({"context_length": 2.5}, TypeError, r"`context_length` must be an integer, got float 2.5"),
    ({"stride": "3"}, TypeError, r"`stride` must be an integer, got str '3'"),
    ({"context_length": 2**62}, OverflowError, r"must be at most 2\*\*61"),
    ({"dilation": 2**60, "context_length": 9}, OverflowError, "a window must span at most"),
    (
        {"context_length": 30, "prediction_length": 3},
        ValueError,
        r"no window fits: a window spans 33 rows \(30 past, 3 future\), the longest of 1 series "
        "has 20 rows",
    ),
    ({"target_columns": "laod"}, KeyError, r"no column 'laod'.*'load'"),
    ({"past_covariates": ["x"]}, KeyError, "no column 'x'"),
    (
        {"target_columns": []},
        ValueError,
        "`target_columns` must name at least one column, got none",
    ),
    (
        {"known_covariates": ["load", "note"]},
        ValueError,
        "every column of the table is a covariate",
    ),
    (
        {"target_columns": "load", "known_covariates": "load"},
        ValueError,
        "column 'load' must have one role, got target_columns and known_covariates",
    ),
    ({"target_columns": ["load", "load"]}, ValueError, "'load' must have one role, got target_co"),
    ({"layout": "tbc"}, ValueError, "`layout` must be one of btc, bct, columns, got 'tbc'"),
    ({"dtype": "flaot32"}, TypeError, "dtype 'flaot32' is not known"),
    ({"dtype": "complex64"}, TypeError, "`dtype` must be a number or bool of up to 64 bits, got c"),
    ({"dtype": "int64"}, TypeError, "`dtype` must be one of float64, .*, got int64"),
    ({"dtype": {"x": "float32"}}, KeyError, "`dtype` .* a window has no column 'x'"),
    ({"min_observed_past": 99}, ValueError, "`min_observed_past` must be at most 4, got 99"),
    ({"min_observed_future": 1}, ValueError, "`min_observed_future` must be at most 0, got 1"),
    ({"min_observed_past": 0.5}, TypeError, "`min_observed_past` must be an integer, got float"),
    ({"max_missing": 1.5}, ValueError, "`max_missing` must be a share between 0 and 1, got 1.5"),
    ({"max_gap": "1h"}, ValueError, "`max_gap` is '1h', but the table has no timestamp column"),
    ({"fill": np.nan}, ValueError, r"`fill` must be .*, as past_target is int64, got nan"),
    ({"fill": 0.5}, ValueError, r"`fill` must be a whole number in \[.*, got 0.5"),
    ({"fill": 1e30}, ValueError, r"`fill` must be .*, as past_target is int64, got 1e\+30"),
    ({"fill": "a"}, TypeError, r"`fill` must be a number, got str 'a'"),
    ({"fill": None}, TypeError, r"`fill` must be a number, got NoneType None"),
    ({"context_length": True}, TypeError, r"`context_length` must be an integer, got bool True"),
    ({"scaler": 3}, TypeError, "`scaler` must be a Scaler, got a int"),
    ({"max_missing": "1"}, TypeError, r"`max_missing` must be a number, got str '1'"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    table = table_of(load=np.arange(20), note=np.arange(20))
    with pytest.raises(error, match=message):
        wd.Windows(table, **({"context_length": 2} | options))


def test_windows_are_made_of_a_table() -> None:
    with pytest.raises(TypeError, match=r"^`table` must be a Table, got a dict"):
        wd.Windows({"load": np.arange(20)}, context_length=2)  # type: ignore[arg-type]


def test_short_series_are_counted_in_one_warning() -> None:
    table = table_of(20, [0, 3, 5, 20])
    with pytest.warns(UserWarning, match="2 of 3 series are shorter than a window of 6 rows") as w:
        windows = wd.Windows(table, context_length=6)
    assert len(w) == 1
    assert w[0].filename == __file__
    assert windows.explain().short_series == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        windows.with_scaler(wd.Scaler.fit(windows)).subset(rows=(0, 15))


def test_bad_gaps() -> None:
    stamps = np.arange("2020-01-01", "2020-01-09", dtype="M8[D]")
    table = wd.Table.from_columns({"x": np.arange(8), "t": stamps}, timestamp_column="t")
    with pytest.raises(TypeError, match=r"`max_gap` must be a timedelta64, .*, got 1.5 \(float\)"):
        wd.Windows(table, context_length=2, max_gap=1.5)
    month = np.timedelta64(1, "M")
    with pytest.raises(ValueError, match=r"\[D\]; expected a duration such as .*\(31, 'D'\)"):
        wd.Windows(table, context_length=2, max_gap=month)
    months = wd.Table.from_columns(
        {"x": [1.0, 2, 3], "t": np.datetime64("2024-01") + np.arange(3)}, timestamp_column="t"
    )
    assert len(wd.Windows(months, context_length=2, max_gap=month)) == 2
    with pytest.raises(ValueError, match=r"\[M\]; expected a duration such as .*\(1, 'M'\)"):
        wd.Windows(months, context_length=2, max_gap="31D")
    with pytest.raises(ValueError, match="`max_gap` must be a positive duration, got 0"):
        wd.Windows(table, context_length=2, max_gap=0)
    numbers = wd.Table.from_columns({"x": np.arange(8), "t": np.arange(8)}, timestamp_column="t")
    with pytest.raises(
        TypeError, match="`max_gap` must be an integer, as the timestamps are int64, got '1h'"
    ):
        wd.Windows(numbers, context_length=2, max_gap="1h")
    apart = wd.Table.from_columns({"x": np.arange(8), "t": stamps}, timestamp_column="t")
    with pytest.raises(ValueError, match="no window is left: of 7 that fit, 0 have too"):
        wd.Windows(apart, context_length=2, max_gap="1h")


def test_columns_that_would_hide_other_keys_are_refused() -> None:
    options: dict[str, Any] = {"context_length": 2, "layout": "columns"}
    with pytest.raises(ValueError, match="column 'start' has the name of another key"):
        wd.Windows(table_of(start=np.arange(5)), **options)
    table = table_of(load=np.arange(5), load_mask=np.arange(5) * 2)
    for also in ({}, {"masks": True}, {"keys": "load", "masks": True}):
        with pytest.raises(ValueError, match="'load_mask' has the name of the mask of 'load': ren"):
            wd.Windows(table, **options, **also)
    batch = wd.Windows(table, **options, masks=False).gather([1])
    assert batch["load_mask"].tolist() == [[2, 4]]


@pytest.mark.parametrize("indices", [[0.5], np.array([1.0]), ["a"], [[0, 1]], None, [True]])
def test_indices_are_integers(indices: Any) -> None:
    w = wd.Windows(table_of(), context_length=3)
    with pytest.raises(TypeError, match="`indices` must be integers of shape"):
        w.gather(indices)


def test_indices_out_of_range() -> None:
    w = wd.Windows(table_of(), context_length=3)
    for call in (w.locate, lambda i: w.gather([i]), lambda i: w.locate(np.array([0, i]))):
        for index in (18, -1, 2**62):
            with pytest.raises(IndexError, match=f"{index}.*18"):
                call(index)
    with pytest.raises(
        IndexError, match=r"^`indices` must be below 2\^63, got 9223372036854775808$"
    ):
        w.gather(np.array([0, 2**63], dtype=np.uint64))
    with pytest.raises(IndexError, match=r"-19.*18"):
        w[-19]
    with pytest.raises(TypeError, match="`index` must be an integer, got 'a'"):
        w["a"]  # type: ignore[index]


@pytest.mark.parametrize(
    "role", ["target_columns", "known_covariates", "past_covariates", "static_covariates"]
)
def test_ids_and_time_are_no_value_columns(role: str) -> None:
    data = {"site": ["a"] * 9, "at": np.arange(9), "load": np.arange(9.0)}
    table = wd.Table.from_columns(data, id_columns="site", timestamp_column="at")
    named: dict[str, Any] = {role: "site"}
    timed: dict[str, Any] = {role: ["at"]}
    message = f"`{role}` has 'site', which is an id column of the table and no value column"
    with pytest.raises(KeyError, match=message) as caught:
        wd.Windows(table, context_length=2, **named)
    assert "data.append_column('site_value', data['site'])" in str(caught.value)
    with pytest.raises(KeyError, match=f"`{role}` has 'at', which is the time column of the table"):
        wd.Windows(table, context_length=2, **timed)
    arrow = table.to_arrow()
    copied = wd.Table.from_arrow(
        arrow.append_column("site_value", arrow["site"]), id_columns="site",
        timestamp_column="at", categories="site_value",
    )  # fmt: skip
    assert copied.column("site_value").categories == ("a",)


def test_an_id_is_no_categorical_column() -> None:
    table = wd.Table.from_columns({"site": ["a"] * 9, "load": np.arange(9.0)}, id_columns="site")
    with pytest.raises(KeyError, match="`categorical` has 'site', which is an id column"):
        wd.Windows(table, context_length=2, categorical="site")


def test_one_row_is_no_rows() -> None:
    table = wd.Table.from_columns({"load": np.arange(1.0)})
    windows = wd.Windows(table, context_length=1)
    assert repr(table) == "Table(1 row, 1 series, columns load)"
    assert table.explain().splitlines()[::2] == ["1 column, 8 bytes, 1 row", "1 series of 1 row"]
    assert str(windows.explain()).startswith("1 window of 1 row (1 past)\n")
    with pytest.raises(
        ValueError, match=r"spans 2 rows \(2 past\), the longest of 1 series has 1 row$"
    ):
        wd.Windows(table, context_length=2)
