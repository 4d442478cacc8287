"""Frames of pandas that cannot be a table, or only in part."""

from __future__ import annotations

from typing import Any

import pytest

import windeck as wd

pd = pytest.importorskip("pandas")


TWO_HOURS = pd.date_range("2024-01-01", periods=2, freq="h")
MIXED_TIMES = [TWO_HOURS[0].tz_localize("Europe/Berlin"), TWO_HOURS[1]]


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            pd.DataFrame({"t": pd.Series(MIXED_TIMES, dtype=object), "y": [1, 2]}),
            {"timestamp_column": "t"},
            "column 't' has times with a time zone, such as 2024-01-01 00:00:00.01:00, and without "
            "one, such as 2024-01-01 01:00:00; expected all with one or all without",
        ),
        (
            pd.DataFrame({"y": [1, 2]}, index=pd.timedelta_range("0h", periods=2, freq="h")),
            {},
            r"the index has timedelta64\[.*\] in its level 'series_id'; expected times, periods,",
        ),
        (pd.DataFrame({"y": [1, 2]}, index=[0.5, 1.5]), {}, "the index has float64 in its level"),
        (pd.DataFrame({"y": [1, 2]}, index=[True, False]), {}, "the index has bool in its level"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), {}, "the data has 2 columns named 'a'"),
        (pd.DataFrame([[1, 2]], columns=[1, "1"]), {}, "the data has 2 columns named '1'"),
        (pd.DataFrame([[1, 2]], columns=[None, "a"]), {}, "column 1 of the data has no name"),
        (
            pd.DataFrame([[1, 2]], columns=pd.Index([pd.NA, "a"], dtype=object)),
            {},
            "column 1 of the data has no name",
        ),
        (
            pd.DataFrame({"c": ["a"], "v": [1]}),
            {"columns": ["v"], "categories": ["c"]},
            "categories has 'c', which is not among the columns= to read",
        ),
        (
            pd.DataFrame({"y": [1, 2]}, index=["2024-01-01", "2024-01-02"]),
            {},
            "the index, 'series_id', has texts such as '2024-01-01', with which each of 2 rows is "
            r"a series; if they are times, convert them: frame.index = pd.to_datetime",
        ),
        (
            pd.DataFrame({"t": ["2024-01-01", "2024-01-02"], "y": [1, 2]}),
            {"timestamp_column": "t"},
            r"is (large_)?string; expected timestamps, dates or integers \(pandas.to_datetime and",
        ),
        (
            pd.DataFrame({"id": [1, 2], "y": [1, 2]}),
            {"id_columns": "id", "timestamp_column": "id"},
            "`timestamp_column` is 'id', which is one of `id_columns` too",
        ),
        (
            pd.DataFrame({"y": [1, "a"]}),
            {},
            "onversion failed for column y with type object: Could not convert 'a' with type str",
        ),
    ],
)
def test_nasty_frames_are_clear_errors(frame: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        wd.Table.from_pandas(frame, **options)


def test_columns_that_are_not_asked_for_are_not_converted() -> None:
    frame = pd.DataFrame({"id": ["a", "a"], "t": TWO_HOURS, "y": [1, 2], "bad": [1, "x"]})
    names: dict[str, Any] = {"id_columns": "id", "timestamp_column": "t"}
    table = wd.Table.from_pandas(frame, columns="y", **names)
    assert (table.column_names, table["y"].tolist()) == (("y",), [1, 2])
    indexed = wd.Table.from_pandas(frame.set_index(["id", "t"]), columns=["y"])
    assert indexed.fingerprint == table.fingerprint
    with pytest.raises(KeyError, match="z"):
        wd.Table.from_pandas(frame.drop(columns="bad"), columns="z", **names)


def test_series_of_one_row_may_be_named_by_an_index_of_texts() -> None:
    table = wd.Table.from_pandas(pd.DataFrame({"y": [1, 2]}, index=["a", "2024-01-01"]))
    assert table.series_names == ("a", "2024-01-01")


def test_objects_of_times_of_one_kind_are_read() -> None:
    zones = [
        TWO_HOURS[0].tz_localize("Europe/Berlin"),
        TWO_HOURS[1].tz_localize("America/New_York"),
    ]
    for times in (list(TWO_HOURS), zones):
        frame = pd.DataFrame({"t": pd.Series(times, dtype=object), "y": [1, 2]})
        table = wd.Table.from_pandas(frame, timestamp_column="t")
        assert table.num_rows == 2
