"""Series that lose every window to a filter are named, in a warning and in the report."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

ROWS, CONTEXT = 6, 3


def data(bad: list[int], series: int = 16) -> Any:
    """Return series of which some have one value and steps that grow, and the last is short."""
    x, time, ids = [], [], []
    for number in range(series):
        rows = ROWS if number < series - 1 else CONTEXT - 1
        values, steps = np.ones(rows), np.ones(rows)
        if number in bad:
            values[1:], steps[:] = np.nan, 9
        x.append(values)
        time.append(np.cumsum(steps).astype(np.int64))
        ids += [f"s{number}"] * rows
    return pa.table({"id": ids, "t": np.concatenate(time), "x": np.concatenate(x)})


FILTERS: list[dict[str, Any]] = [
    {"max_missing": 0.5},
    {"max_gap": 3},
    {"min_observed_past": 2},
    {"prediction_length": 1, "min_observed_future": 1},
    {"max_missing": 0.5, "max_gap": 3},
]


def made(table: wd.Table, options: dict[str, Any]) -> tuple[wd.Windows, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        windows = wd.Windows(table, context_length=CONTEXT, **options)
    assert {warning.filename for warning in caught} == {__file__}
    return windows, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("options", FILTERS)
@pytest.mark.parametrize("bad", [[], [3], [0, 2, 4], list(range(1, 13))])
def test_lost_series_are_named(bad: list[int], options: dict[str, Any], tmp_path: Path) -> None:
    parquet.write_table(data(bad), tmp_path / "a.parquet", row_group_size=10)
    named: dict[str, Any] = {"id_columns": "id", "timestamp_column": "t"}
    names = ", ".join(repr(f"s{number}") for number in bad[:10]) + ", ..." * (len(bad) > 10)
    text = f"{len(bad)} series lost every window to a filter: {names}"
    for in_memory in (True, False):
        table = wd.Table.read(tmp_path / "a.parquet", in_memory=in_memory, **named)
        windows, messages = made(table, options)
        assert "1 of 16 series are shorter than a window" in messages[0]
        report = windows.explain()
        assert report.lost_series == len(bad)
        assert report.lost_names == tuple(f"s{number}" for number in bad[:10])
        served = {table.series_names[one] for one in windows.locate(np.arange(len(windows)))[0]}
        assert {f"s{number}" for number in range(15)} - served == {f"s{number}" for number in bad}
        if bad:
            assert messages[1:] == [f"{text}; `explain()` has the reasons"]
            assert f"  {text}" in str(report).splitlines()
        else:
            assert not messages[1:]
            assert "lost" not in str(report)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # derived windows and copies do not warn again
            for derived in (
                pickle.loads(pickle.dumps(windows)),
                windows.subset(series="s13"),
                windows.split(0.0, 0.0).train,
            ):
                assert derived.explain().lost_series == len(bad)


def test_a_report_counts_the_breaks_that_windows_cross() -> None:
    hours = np.delete(np.arange(60), [20, 21, 40])
    columns = {"y": np.ones(57), "t": np.datetime64("2024-01-01", "h") + hours}
    table = wd.Table.from_columns(columns, timestamp_column="t")
    windows = wd.Windows(table, context_length=4, prediction_length=2)
    line = "  2 breaks in time, which windows cross unless max_gap= is given"
    for part in (windows, windows.split(0.2, 0.2).train, windows.joined()):
        assert line in str(part.explain()).splitlines()
    filtered = wd.Windows(table, context_length=4, prediction_length=2, max_gap="1h")
    regular = wd.Windows(table.regularize("1h"), context_length=4, prediction_length=2)
    for windows in (filtered, regular):
        assert "break" not in str(windows.explain()).replace("dropped across a break", "")
