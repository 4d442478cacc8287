"""The last context of each series, and predictions as a table: compared with plain loops."""

from __future__ import annotations

import datetime as dt
import pickle
import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings

import windeck as wd
from models import reference as ref
from support.cases import Drawn, drawn_cases

QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


def located(windows: wd.Windows) -> list[ref.Window]:
    series, rows = windows.locate(np.arange(len(windows)))
    return list(zip(series.tolist(), rows.tolist(), strict=True))


def latest(case: ref.Case) -> list[ref.Window]:
    """Return the last context of each series that has one."""
    found = []
    for series, (begin, end) in enumerate(pairwise(case.offsets)):
        start = end - (case.context_length - 1) * case.dilation - 1
        inside = case.context_length
        if case.pad in (True, "start", "both"):
            inside = case.min_context_length or 1
        if begin < end and ref.past_rows(case, start)[-inside] >= begin:
            found.append((series, start))
    return found


@settings(QUIET, max_examples=200)
@given(drawn_cases())
def test_latest_contexts_equal_the_model(drawn: Drawn) -> None:
    case = drawn.case
    assume(ref.windows(case))
    expected = latest(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = drawn.windows().latest()
    assert located(w) == expected
    past = replace(case, prediction_length=0, pad=case.pad in (True, "start", "both"))
    batch, wanted = w.gather(np.arange(len(w))), ref.batch(past, expected)
    assert set(batch) == set(wanted)
    for key, array in wanted.items():
        np.testing.assert_array_equal(batch[key], array, err_msg=key, strict=True)


def hourly(rows: int = 30, series: int = 2) -> wd.Table:
    stamps = np.datetime64("2024-02-28", "h") + np.arange(rows)
    columns = {
        "x": np.arange(float(rows * series)),
        "t": np.concatenate([stamps + 1000 * i for i in range(series)]),
        "id": np.repeat([f"s{i}" for i in range(series)], rows),
    }
    return wd.Table.from_columns(columns, timestamp_column="t", id_columns="id")


def test_latest_contexts_of_parts_end_with_their_part() -> None:
    w = wd.Windows(hourly(), context_length=4, prediction_length=2, max_missing=0.5)
    train, validation, test = w.split(validation_rows=5, test_rows=5)
    assert located(train.latest()) == [(0, 16), (1, 46)]
    assert located(validation.latest()) == [(0, 21), (1, 51)]
    assert located(test.latest()) == located(w.latest()) == [(0, 26), (1, 56)]
    assert located(w.subset(series="s1").latest()) == [(1, 56)]
    assert located(w.subset(indices=[3]).latest()) == [(0, 26)]
    assert located(w.subset(rows=(None, 12)).latest()) == [(0, 8)]
    scaled = train.with_scaler(wd.Scaler.fit(train)).latest()
    assert scaled.scaler is not None
    assert scaled.fingerprint != w.latest().fingerprint
    assert located(pickle.loads(pickle.dumps(scaled))) == [(0, 16), (1, 46)]
    assert repr(w.latest()) == "Windows(2 windows: 4 past; past_target)"


def test_windows_that_are_dropped_have_a_latest_context_all_the_same() -> None:
    table = wd.Table.from_columns({"x": np.array([1.0] * 9 + [np.nan])})
    w = wd.Windows(table, context_length=3, prediction_length=1, max_missing=0.0)
    assert located(w.latest()) == [(0, 7)]
    assert w.latest()[0]["past_target_mask"].ravel().tolist() == [True, True, False]


def test_short_series_have_no_latest_context() -> None:
    table = wd.Table.from_columns({"x": np.arange(12.0)}, offsets=[0, 2, 12])
    with pytest.warns(UserWarning, match="1 of 2 series are shorter than a window"):
        w = wd.Windows(table, context_length=4, prediction_length=1)
    with pytest.warns(UserWarning, match="1 of 2 series are shorter than a context of 4") as found:
        assert located(w.latest()) == [(1, 8)]
    assert found[0].filename == __file__
    padded = wd.Windows(table, context_length=4, prediction_length=1, pad="both")
    assert located(padded.latest()) == [(0, -2), (1, 8)]
    with pytest.raises(ValueError, match="no series has a context of 4 rows in these windows"):
        padded.split(test_rows=1).validation.latest()


# --- predictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "dilation"), [(0, 1), (3, 1), (-2, 1), (1, 2)])
@pytest.mark.parametrize("of_latest", [True, False])
def test_prediction_tables_equal_a_loop(gap: int, dilation: int, of_latest: bool) -> None:
    table = hourly()
    w = wd.Windows(table, context_length=3, prediction_length=3, gap=gap, dilation=dilation)
    if of_latest:
        w = w.latest()
    numbers = np.random.default_rng(0).permutation(len(w))[:7]
    predictions = np.random.default_rng(1).normal(
        size=(len(numbers), 5 if of_latest else 3 + min(gap, 0))
    )
    assert table.timestamps is not None
    expected = []
    for number, values in zip(numbers, predictions, strict=True):
        series, start = w.locate(int(number))
        last = start + 2 * dilation
        first = next(row for row in range(start + 3 * dilation + gap, 99, dilation) if row > last)
        zero = table.timestamps[table.offsets[series]]
        for step, value in enumerate(values):
            row = first + step * dilation - table.offsets[series]
            expected.append((f"s{series}", (zero + row).astype("M8[s]").item(), value))
    found = w.prediction_table(predictions, numbers)
    assert found.column_names == ["id", "t", "x"]
    assert list(zip(*found.to_pydict().values(), strict=True)) == expected


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_predictions_have_the_layout_of_batches(horizon: int) -> None:
    """The truth as a prediction lands in its own column and row, also if the shape is square."""
    data = {"x": np.arange(10.0), "y": -np.arange(10.0)}
    table = wd.Table.from_columns(data)
    for layout in ("btc", "bct"):
        w = wd.Windows(table, context_length=3, prediction_length=horizon, layout=layout)
        found = w.prediction_table(w.gather(range(len(w)))["future_target"]).to_pydict()
        assert found["x"] == found["row"]
        assert found["y"] == [-row for row in found["row"]]
        words = "columns x, y by steps, got" if layout == "bct" else "by steps by columns x, y, got"
        with pytest.raises(ValueError, match=words):
            w.prediction_table(np.zeros((len(w), 5, 4)))


def test_predictions_of_rows_in_the_table_have_its_stamps() -> None:
    stamps = np.array([0, 1, 2, 5, 6, 9, 10], dtype="M8[us]")
    table = wd.Table.from_columns({"x": np.arange(7.0), "t": stamps}, timestamp_column="t")
    w = wd.Windows(table, context_length=2, prediction_length=2)
    found = w.prediction_table(np.zeros((4, 2)))["t"].to_numpy()
    assert found.tolist() == stamps[[2, 3, 3, 4, 4, 5, 5, 6]].tolist()
    w = wd.Windows(table, context_length=2)  # without a future, of any horizon
    after = w.prediction_table(np.zeros((1, 4)), [3])["t"].to_numpy()
    assert after.astype(np.int64).tolist() == [9, 10, 11, 12]
    said = w.prediction_table(np.zeros((1, 4)), [3], step=dt.timedelta(microseconds=5))
    assert said["t"].to_numpy().astype(np.int64).tolist() == [9, 10, 15, 20]


@pytest.mark.parametrize(
    ("gap", "shape", "message"),
    [
        (0, (2,), "have 2 steps, expected 3: the windows have prediction_length=3; windows.latest"),
        (0, (4,), "have 4 steps, expected 3: the windows have"),
        (2, (1,), "have 1 step, expected 3: the windows have"),
        (-2, (3,), "have 3 steps, expected 1: the windows have prediction_length=3, of which the "
         r"first 2 are past steps; windows.latest\(\) has no future, and takes any number$"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["points", "quantiles", "samples", "levels"])
@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
def test_predictions_have_as_many_steps_as_the_future(
    gap: int, shape: tuple[int, ...], message: str, kind: str, layout: Any
) -> None:
    w = wd.Windows(hourly(), context_length=3, prediction_length=3, gap=gap, layout=layout)
    given: Any = np.zeros((len(w), *shape, *([2] if kind in ("quantiles", "samples") else [])))
    if layout == "columns":
        given = {"x": given}
    options: dict[str, Any] = {}
    if kind == "quantiles":
        options["quantiles"] = [0.1, 0.9]
    elif kind == "samples":
        options["samples"] = True
    elif kind == "levels":
        given = {0.1: given, 0.9: given}
    with pytest.raises(ValueError, match=f"`predictions` {message}"):
        w.prediction_table(given, **options)
    latest = w.latest()
    parts = given if kind == "levels" else {0: given}
    first = {key: {"x": one["x"][:2]} if layout == "columns" else one[:2]
             for key, one in parts.items()}  # fmt: skip
    found = latest.prediction_table(first if kind == "levels" else first[0], **options)
    assert len(found) == 2 * shape[0] * (2 if kind == "samples" else 1)


def test_columns_ids_and_tensors() -> None:
    import torch

    table = wd.Table.from_columns(
        {
            "load": np.arange(8.0),
            "wind": np.arange(8.0),
            "t": np.tile(np.arange(4) * 10, 2),
            "site": np.repeat(["a", "b"], 4),
            "meter": np.repeat([7, 8], 4),
        },
        timestamp_column="t",
        id_columns=["site", "meter"],
    )
    w = wd.Windows(table, context_length=2).latest()
    found = w.prediction_table(torch.ones(2, 3, 2, dtype=torch.bfloat16, requires_grad=True))
    assert found.schema.names == ["site", "meter", "t", "load", "wind"]
    assert found["meter"].to_pylist() == [7, 7, 7, 8, 8, 8]
    assert found["t"].to_pylist() == [40, 50, 60] * 2
    assert found["wind"].type == pa.float32()
    quantiles = w.prediction_table(np.zeros((2, 1, 3)), columns=["q10", "q50", "q90"])
    assert quantiles.column_names[-3:] == ["q10", "q50", "q90"]
    plain = wd.Windows(wd.Table.from_columns({"x": np.arange(9.0)}, offsets=[0, 4, 9]),
                       context_length=2)  # fmt: skip
    found = plain.latest().prediction_table(np.zeros((2, 2)))
    assert found.to_pydict() == {"series_id": [0, 0, 1, 1], "row": [4, 5, 5, 6], "x": [0.0] * 4}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("2023-11-30", ["2024-01-31", "2024-02-29", "2024-03-31"]),  # last days
        ("2023-11-15", ["2024-01-15", "2024-02-15", "2024-03-15"]),
        ("2023-11-01", ["2024-01-01", "2024-02-01", "2024-03-01"]),
    ],
)
def test_months(first: str, expected: list[str]) -> None:
    month = np.datetime64(first, "M") + np.arange(-9, 2)
    day = int(first[-2:])
    stamps = (month + 1).astype("M8[D]") - 1 if day == 30 else month.astype("M8[D]") + day - 1
    table = wd.Table.from_columns({"x": np.arange(11.0), "t": stamps}, timestamp_column="t")
    w = wd.Windows(table, context_length=2).latest()
    zeros = np.zeros((1, 3))
    with pytest.raises(ValueError, match=r"series 0 has steps of about 3\d days that"):
        w.prediction_table(zeros)
    found = w.prediction_table(zeros, step=np.timedelta64(1, "M"))["t"].to_pylist()
    assert [str(day) for day in found] == expected
    months = wd.Table.from_columns({"x": np.arange(11.0), "t": month}, timestamp_column="t")
    found = wd.Windows(months, context_length=2).latest().prediction_table(zeros)["t"]
    assert [str(stamp)[:7] for stamp in found.to_pylist()] == ["2024-01", "2024-02", "2024-03"]


def test_series_without_a_step_take_the_usual_one() -> None:
    table = wd.Table.from_columns(
        {"x": np.arange(4.0), "t": np.array([0, 7, 14, 100])}, offsets=[0, 3, 4],
        timestamp_column="t",
    )  # fmt: skip
    w = wd.Windows(table, context_length=1).latest()
    assert w.prediction_table(np.zeros((2, 1)))["t"].to_pylist() == [21, 107]
    one = wd.Table.from_columns({"x": np.zeros(1), "t": np.zeros(1, int)}, timestamp_column="t")
    w = wd.Windows(one, context_length=1).latest()
    with pytest.raises(ValueError, match="no series has two different time stamps, expected `step"):
        w.prediction_table(np.zeros((1, 1)))
    assert w.prediction_table(np.zeros((1, 1)), step=3)["t"].to_pylist() == [3]


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (np.zeros((3, 4)), {}, ValueError, r"must have shape \(2, horizon, 1\), .* got \(3, 4, 1\)"),
    (np.zeros(2), {}, ValueError, r"`predictions` must have shape .* got \(2,\)"),
    (np.zeros((2, 4, 2)), {}, ValueError, r"by columns x, got \(2, 4, 2\)"),
    (np.zeros((2, 1)), {"columns": "t"}, ValueError, "column 't' is in the table"),
    (np.zeros((1, 1)), {"indices": [2]}, IndexError, "2 is out of range for 2 windows"),
    (np.zeros((2, 0)), {}, ValueError, "`predictions` have 0 steps, expected 1 or more"),
    (np.full((2, 1), {}), {}, TypeError, "`predictions` must be real numbers, got object"),
    (np.zeros((2, 1, 2)), {"columns": ["a", "a"]}, ValueError, "`columns` has 'a' twice, expected"),
    (np.zeros((2, 1, 2)), {"columns": [1, 2]}, TypeError, "`columns` must be names, got 1"),
    (np.zeros((2, 1)), {"step": True}, TypeError, "`step` must be a duration or an alias, got T"),
    (np.zeros((2, 1)), {"step": 1.5}, TypeError, "`step` must be a timedelta64, .* got 1.5"),
    (np.zeros((2, 1)), {"step": "-1h"}, ValueError, "`step` must be an integer, a duration"),
]


@pytest.mark.parametrize(("predictions", "options", "error", "message"), BAD)
def test_bad_predictions(
    predictions: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    w = wd.Windows(hourly(), context_length=3).latest()
    with pytest.raises(error, match=message):
        w.prediction_table(predictions, **options)


def test_months_need_days_that_all_months_have() -> None:
    stamps = np.array(["2024-01-28", "2024-02-29", "2024-03-30"], dtype="M8[D]")
    table = wd.Table.from_columns({"x": np.arange(3.0), "t": stamps}, timestamp_column="t")
    w = wd.Windows(table, context_length=1).latest()
    with pytest.raises(ValueError, match="a series ends after the 28th of a month but not on its"):
        w.prediction_table(np.zeros((1, 1)), step=np.timedelta64(1, "M"))
    numbers = wd.Table.from_columns({"x": np.zeros(3), "t": np.arange(3)}, timestamp_column="t")
    with pytest.raises(TypeError, match="`step` must be an integer, as the timestamps are int64"):
        wd.Windows(numbers, context_length=1).latest().prediction_table(
            np.zeros((1, 1)), step=np.timedelta64(1, "M")
        )
