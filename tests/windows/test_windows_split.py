"""Splits and subsets of windows, compared with the part of each window computed one by one."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import windeck as wd
from models import reference as ref
from support.cases import Drawn, drawn_cases

QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


def windows_of(drawn: Drawn) -> tuple[wd.Windows, list[ref.Window]]:
    expected = ref.windows(drawn.case)
    assume(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return drawn.windows(), expected


def located(windows: wd.Windows) -> list[ref.Window]:
    series, rows = windows.locate(np.arange(len(windows)))
    return list(zip(series.tolist(), rows.tolist(), strict=True))


def part_by_borders(case: ref.Case, window: ref.Window, borders: list[tuple[int, int]]) -> int:
    """Return 0, 1, 2 for train, validation, test; -1 for a window across a border."""
    series, start = window
    first, second = borders[series]
    # Steps before and after the series are in the parts of its first and its last row.
    begin, last = case.offsets[series], case.offsets[series + 1] - 1
    rows = [max(min(row, last), begin) for row in ref.deciding_rows(case, start)]
    parts = {int(row >= first) + int(row >= second) for row in rows}
    return parts.pop() if len(parts) == 1 else -1


def check_split(drawn: Drawn, borders: list[tuple[int, int]], **options: Any) -> None:
    windows, every = windows_of(drawn)
    case = drawn.case
    parts = [part_by_borders(case, window, borders) for window in every]
    expected = [[w for w, p in zip(every, parts, strict=True) if p == n] for n in range(3)]
    wanted = (1, options["validation"], options["test"])
    if any(asked != 0 and not found for asked, found in zip(wanted, expected, strict=True)):
        with pytest.raises(ValueError, match="part of the split holds no window"):
            windows.split(**options)
        return
    split = windows.split(**options)
    assert [located(part) for part in split] == expected
    for part, found in zip(split, expected, strict=True):
        report = part.explain()
        assert report.windows == len(part) == report.fitting - sum(report.dropped.values())
        assert report.dropped["border"] == parts.count(-1)
        if found:
            batch = part.gather([len(found) - 1])
            wanted_batch = ref.batch(case, [found[-1]])
            for key, array in wanted_batch.items():
                np.testing.assert_array_equal(batch[key], array, err_msg=key)


def test_padded_windows_of_a_series_that_begins_behind_a_border() -> None:
    """They have rows of one part alone."""
    day = np.datetime64("2024-01-01") + np.r_[0:10, 31:41]
    data = {"x": np.arange(20.0), "t": day}
    table = wd.Table.from_columns(data, timestamp_column="t", offsets=[0, 10, 20])
    windows = wd.Windows(table, context_length=4, pad="start")
    assert [len(part) for part in windows.split("2024-01-20", 0)] == [10, 10, 0]
    assert [len(part) for part in windows.split("2024-01-20", "2024-02-05")] == [10, 4, 3]


@settings(QUIET, max_examples=250)
@given(drawn_cases(), st.sampled_from([0.0, 0.1, 0.25, 0.4]), st.sampled_from([0.0, 0.2, 0.33]))
def test_split_by_shares_of_rows(drawn: Drawn, validation: float, test: float) -> None:
    borders = []
    for begin, end in pairwise(drawn.case.offsets):
        second = end - round((end - begin) * test)
        borders.append((second - round((end - begin) * validation), second))
    check_split(drawn, borders, validation=validation, test=test)


@settings(QUIET, max_examples=150)
@given(drawn_cases(), st.integers(-450, 60), st.integers(0, 40), st.booleans())
def test_split_by_time_stamps(drawn: Drawn, at: int, later: int, no_test: bool) -> None:
    case = drawn.case
    stamps = case.stamps
    assume(stamps is not None)
    assert stamps is not None
    borders = []
    for begin, end in pairwise(case.offsets):
        rows = range(begin, end)
        first = min((r for r in rows if stamps[r] >= at), default=end)
        second = min((r for r in rows if stamps[r] >= at + later), default=end)
        borders.append((first, end if no_test else second))
    test = 0 if no_test else np.datetime64(at + later, "m")
    check_split(drawn, borders, validation=np.datetime64(at, "m"), test=test)


def lies_in(case: ref.Case, window: ref.Window, rows: Any, time: Any) -> bool:
    """Return true if all rows of a window, padding left out, are in two ranges of rows and time."""
    begin, end = case.offsets[window[0]], case.offsets[window[0] + 1]
    # A window cut by the start or the end of its series has the first or the last row of it.
    own = [min(row, end - 1) for row in ref.rows_of(case, window[1]) if row >= begin]
    own.append(max(window[1], begin))
    ranges = [(own, rows)]
    if time is not None and case.stamps is not None:
        ranges.append(([case.stamps[row] for row in own], time))
    return all(
        (low is None or low <= value) and (high is None or value < high)
        for values, (low, high) in ranges
        for value in values
    )


@settings(QUIET, max_examples=150)
@given(drawn_cases(), st.data())
def test_subset_of_rows_time_and_series(drawn: Drawn, data: st.DataObject) -> None:
    windows, every = windows_of(drawn)
    case = drawn.case
    start = data.draw(st.integers(0, case.offsets[-1]))
    stop = data.draw(st.integers(start, case.offsets[-1]))
    series = data.draw(st.sets(st.integers(0, len(case.offsets) - 2), min_size=1))
    time = None
    if case.stamps is not None:
        time = sorted(data.draw(st.tuples(st.integers(-450, 60), st.integers(-450, 60))))

    expected = [w for w in every if w[0] in series and lies_in(case, w, (start, stop), time)]
    options: dict[str, Any] = {"series": series, "rows": (start, stop)}
    if time is not None:
        options["time"] = tuple(np.datetime64(one, "m") for one in time)
    if not expected:
        with pytest.raises(ValueError, match="the subset holds no window"):
            windows.subset(**options)
        return
    subset = windows.subset(**options)
    assert located(subset) == expected
    assert subset.explain().windows == len(subset)


@settings(QUIET, max_examples=100)
@given(drawn_cases(), st.data())
def test_subset_of_a_part(drawn: Drawn, data: st.DataObject) -> None:
    """Contexts of a part may reach back before its rows; those of a subset of it may not."""
    windows, _ = windows_of(drawn)
    case = drawn.case
    number = st.integers(0, 12)
    try:
        if data.draw(st.booleans()):
            parts = windows.split(validation_rows=data.draw(number), test_rows=data.draw(number))
        else:
            fold = {"train_rows": 9, "validation_rows": 7, "test_rows": 8}
            parts = windows.folds(data.draw(st.integers(1, 2)), **fold)[-1]
    except ValueError:
        assume(False)
    part = data.draw(st.sampled_from(parts))
    limit = st.none() | st.integers(0, case.offsets[-1])
    for _ in range(2):  # of the part, and of a subset of it
        start, stop, time = data.draw(limit), data.draw(limit), None
        assume(start is None or stop is None or start <= stop)
        rows = (start, stop)
        options: dict[str, Any] = {"rows": rows}
        if case.stamps is not None:
            stamp = st.none() | st.sampled_from([*case.stamps, min(case.stamps, default=0) - 1])
            time = data.draw(stamp), data.draw(stamp)
            options["time"] = tuple(s if s is None else np.datetime64(s, "m") for s in time)
        expected = [window for window in located(part) if lies_in(case, window, rows, time)]
        if not expected:
            with pytest.raises(ValueError, match="the subset holds no window"):
                part.subset(**options)
            return
        part = part.subset(**options)
        assert located(part) == expected


def test_rows_of_a_part_are_those_of_whole_windows() -> None:
    table = wd.Table.from_columns({"x": np.arange(100.0)})
    windows = wd.Windows(table, context_length=24, prediction_length=4)
    part = windows.split(validation_rows=20, test_rows=20).validation
    assert part.window_starts().tolist() == list(range(36, 53))
    with pytest.raises(ValueError, match="the subset holds no window"):
        part.subset(rows=(60, None))
    assert part.subset(rows=(40, None)).window_starts().tolist() == list(range(40, 53))


# --- what a split promises ----------------------------------------------------------------------


def load_table(series: int = 3, rows: int = 100) -> wd.Table:
    stamps = np.datetime64("2020-01-01", "h") + np.arange(rows)
    return wd.Table.from_columns(
        {
            "load": np.random.default_rng(0).normal(size=series * rows),
            "t": np.tile(stamps, series),
            "id": np.repeat([f"s{i}" for i in range(series)], rows),
        },
        timestamp_column="t",
        id_columns="id",
    )


def test_no_target_of_training_is_seen_later() -> None:
    w = wd.Windows(load_table(), context_length=10, prediction_length=5, gap=2)
    split = w.split(validation=0.2, test=0.1)
    rows = [
        {(s, r + o) for s, r in located(part) for o in range(*span)}
        for part, span in zip(split, [(0, 17), (12, 17), (12, 17)], strict=True)
    ]
    assert not rows[0] & (rows[1] | rows[2])
    assert not rows[1] & rows[2]
    # Validation's context may reach back into the rows of training.
    assert min(r for s, r in located(split.validation) if s == 0) == 70 - 12
    assert max(r for s, r in rows[0] if s == 0) == 69
    assert split.train.explain().dropped == {
        "missing": 0, "gap": 0, "border": 3 * 2 * 4, "others": 3 * (16 + 6)
    }  # fmt: skip


def test_split_may_be_split_again() -> None:
    w = wd.Windows(load_table(1), context_length=4, prediction_length=1)
    train = w.split(validation=0.2, test=0.0).train
    again = train.split(validation=0.25, test=0.0)
    assert [row for _, row in located(again.validation)] == list(range(56, 76))
    assert len(w.split(0.2, 0.0).test) == 0


def test_time_stamps_are_understood_in_many_forms() -> None:
    w = wd.Windows(load_table(), context_length=4, prediction_length=1)
    expected = located(w.split("2020-01-03", "2020-01-04").train)
    east = dt.timezone(dt.timedelta(hours=3))
    forms = [
        (dt.date(2020, 1, 3), dt.date(2020, 1, 4)),
        (dt.datetime(2020, 1, 3), dt.datetime(2020, 1, 4)),
        (dt.datetime(2020, 1, 3, 3, tzinfo=east), "2020-01-04T00:00"),
        ("2020-01-03T00:00Z", "2020-01-04 02:00+0200"),
        (np.datetime64("2020-01-03", "ns"), "2020-01-03T19:00:00-05:00"),
    ]
    for validation, test in forms:
        assert located(w.split(validation, test).train) == expected
    numbers = wd.Table.from_columns(
        {"x": np.arange(9.0), "t": np.arange(9) * 10}, timestamp_column="t"
    )
    w = wd.Windows(numbers, context_length=1, prediction_length=1)
    assert [len(part) for part in w.split(35, 60)] == [3, 2, 3]
    assert [len(part) for part in w.split(0, 60)] == [5, 0, 3]


def test_series_are_dealt_out_whole_and_by_seed() -> None:
    w = wd.Windows(load_table(10, 20), context_length=4, prediction_length=1)
    split = w.split(validation=0.2, test=0.1, by="series", seed=5)
    series = [sorted({s for s, _ in located(part)}) for part in split]
    assert [len(one) for one in series] == [7, 2, 1]
    assert sorted(s for one in series for s in one) == list(range(10))
    assert sum(map(len, split)) == len(w)
    assert all(located(part) == sorted(located(part)) for part in split)
    same = w.split(validation=0.2, test=0.1, by="series", seed=5)
    assert [located(part) for part in same] == [located(part) for part in split]
    others = {str(located(w.split(by="series", seed=seed).test)) for seed in range(10)}
    assert len(others) > 3


def test_a_filter_is_carried_into_parts() -> None:
    load = np.random.default_rng(0).normal(size=5000)
    load[np.random.default_rng(1).random(5000) < 0.05] = np.nan
    table = wd.Table.from_columns({"load": load}, offsets=[0, 2000, 2100, 5000])
    w = wd.Windows(table, context_length=6, prediction_length=2, max_missing=0.2)
    kept = located(w)
    for part in (*w.split(0.2, 0.2), w.subset(series=[2]), w.subset(rows=(13, 2071))):
        assert set(located(part)) < set(kept)
        assert len(part) > 9
        for key, array in part.gather(np.arange(len(part))).items():
            if key == "past_target_mask":
                assert array.sum(axis=(1, 2)).min() >= 5
    unfiltered = wd.Windows(table, context_length=6, prediction_length=2)
    whole = set(located(unfiltered.split(0.2, 0.2)[0]))
    assert set(located(w.split(0.2, 0.2)[0])) == whole & set(kept)


def test_a_scaler_learns_nothing_of_validation_and_test() -> None:
    rng = np.random.default_rng(0)
    load = rng.normal(size=3000)
    for begin in range(0, 3000, 1000):
        load[begin + 700 : begin + 1000] = 1e6
    table = wd.Table.from_columns({"load": load}, offsets=[0, 1000, 2000, 3000])
    w = wd.Windows(table, context_length=20, prediction_length=5, stride=5)
    for part, sample in ((w.split(0.2, 0.1).train, None), (w.split(0.2, 0.1).train, 500)):
        scaler = wd.Scaler.fit(part, sample=sample)
        assert abs(scaler.statistics["mean"].item()) < 0.2
        assert abs(scaler.statistics["std"].item() - 1) < 0.2
    # All rows of training are read, and no others.
    first, stop, series = w.split(0.2, 0.1).train.covered_rows()
    assert list(zip(first, stop, series, strict=True)) == [
        (0, 700, 0),
        (1000, 1700, 1),
        (2000, 2700, 2),
    ]
    exact = wd.Scaler.fit(w.split(0.2, 0.1).train, sample=None)
    seen = np.concatenate([load[a:b] for a, b in zip(first, stop, strict=True)])
    np.testing.assert_allclose(exact.statistics["mean"].item(), seen.mean())
    np.testing.assert_allclose(exact.statistics["std"].item(), seen.std())
    by_series = w.split(0.34, 0.0, by="series").train
    assert wd.Scaler.fit(by_series, sample=None).counts.item() == 2000


def test_split_scales_all_parts_alike() -> None:
    split = wd.Windows(load_table(), context_length=4, prediction_length=1).split()
    scaled = split.with_scaler(wd.Scaler.fit(split.train))
    assert all(part.scaler == scaled.train.scaler for part in scaled)
    assert len(scaled.test) == len(split.test)


def test_subset_by_name() -> None:
    w = wd.Windows(load_table(), context_length=4)
    assert {s for s, _ in located(w.subset(series="s1"))} == {1}
    assert {s for s, _ in located(w.subset(series=["s2", "s0"]))} == {0, 2}
    assert {s for s, _ in located(w.subset(series=2))} == {2}
    assert len(w.subset(rows=slice(10, None))) == len(w) - 10
    assert len(w.subset(time=("2020-01-02", None))) == 3 * (76 - 3)
    assert w.subset() is w


def test_subset_explains_itself() -> None:
    w = wd.Windows(load_table(), context_length=4, prediction_length=2)
    text = str(w.subset(series="s1").explain())
    assert text == (
        "95 windows of 6 rows (4 past, 2 future)\n"
        "  285 fit into 3 series\n"
        "  190 dropped outside the subset\n"
        "  at most 2.76 kB on a device"
    )


def test_fingerprints_of_parts_differ() -> None:
    w = wd.Windows(load_table(), context_length=4, prediction_length=2)
    by_series = w.split(by="series", validation=0.3, test=0.3)
    parts = [w, *w.split(), *by_series, w.subset(rows=(3, 200))]
    assert len({str(part.fingerprint) for part in parts}) == len(parts)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"validation": 1.0}, ValueError, r"`validation` must be a share in \[0, 1\), got 1.0"),
    ({"test": -0.1}, ValueError, r"`test` must be a share in \[0, 1\), got -0.1"),
    ({"validation": 0.6, "test": 0.5}, ValueError, "must have a sum below 1, got 0.6 and 0.5"),
    ({"validation": 3}, ValueError, r"`validation` must be a share in \[0, 1\), got 3"),
    ({"validation": None}, TypeError, "part of a split must be a share .*, got None"),
    ({"validation": True}, TypeError, "part of a split must be a share .*, got True"),
    ({"validation": [0.1]}, TypeError, r"must be a share .*, got \[0.1\] \(list\)"),
    ({"validation": "2020-01-03"}, ValueError, "must be two shares, or two time stamps"),
    (
        {"validation": "2020-01-04", "test": "2020-01-03"},
        ValueError,
        "`validation` must begin before `test`",
    ),
    (
        {"validation": "soon", "test": 0},
        ValueError,
        "a time stamp must be one such as .*, got 'soon'",
    ),
    ({"validation": "3:00Z", "test": 0}, ValueError, "a time stamp must be .*, got '3:00Z'"),
    (
        {"validation": "NaT", "test": 0},
        ValueError,
        "a time stamp must be one such as .*, got 'NaT'",
    ),
    ({"validation": "2030-01-01", "test": 0}, ValueError, "the validation part of the split holds"),
    ({"validation": 0.005}, ValueError, "expected a series of 300 rows or more, .* has 100"),
    ({"by": "rows"}, ValueError, "`by` must be 'time' or 'series', got 'rows'"),
    ({"by": "series", "validation": 0.5, "test": 0.4}, ValueError, "leave none for training"),
    ({"by": "series", "validation": "2020"}, TypeError, "a split by series must be a share, got"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_splits(options: dict[str, Any], error: type[Exception], message: str) -> None:
    w = wd.Windows(load_table(), context_length=4, prediction_length=2)
    with pytest.raises(error, match=message):
        w.split(**options)


@pytest.mark.parametrize("shares", [(0.2, 0.2), (0.0, 0.1), (0.3, 0.05), (0.45, 0.45)])
@pytest.mark.parametrize("stride", [1, 3, 12])
@pytest.mark.parametrize("pad", [False, True])
def test_the_error_names_the_shortest_series_that_can_be_split(
    shares: tuple[float, float], stride: int, pad: bool
) -> None:
    options: dict[str, Any] = {"context_length": 5, "prediction_length": 4, "stride": stride}

    def windows(rows: int) -> wd.Windows:
        table = wd.Table.from_columns({"x": np.arange(float(rows))})
        return wd.Windows(table, **options, pad=pad)

    with pytest.raises(ValueError, match="the longest has 9") as caught:
        windows(9).split(*shares)
    least = int(re.findall(r"expected a series of (\d+) rows", str(caught.value))[0])
    for rows in range(9, least):
        with pytest.raises(ValueError, match=f"a series of {least} rows or more, .* {rows}$"):
            windows(rows).split(*shares)
    train, validation, test = windows(least).split(*shares)
    assert len(train)
    assert len(test)
    assert bool(len(validation)) == bool(shares[0])


@pytest.mark.parametrize("rows", [(8, 8), (0, 14), (30, 20)])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("pad", [False, "start", "end"])
def test_the_error_of_a_split_by_rows_names_the_shortest_series(
    rows: tuple[int, int], stride: int, pad: Any
) -> None:
    options: dict[str, Any] = {"context_length": 12, "prediction_length": 3, "stride": stride}

    def windows(rows: int) -> wd.Windows:
        table = wd.Table.from_columns({"x": np.arange(float(rows))})
        return wd.Windows(table, **options, pad=pad)

    validation, test = rows
    with pytest.raises(ValueError, match=r"the longest has 16$") as caught:
        windows(16).split(validation_rows=validation, test_rows=test)
    least = int(re.findall(r"expected a series of (\d+) rows or more", str(caught.value))[0])
    with pytest.raises(ValueError, match=f"a series of {least} rows or more, .* {least - 1}$"):
        windows(least - 1).split(validation_rows=validation, test_rows=test)
    parts = windows(least).split(validation_rows=validation, test_rows=test)
    assert [len(part) > 0 for part in parts] == [True, validation > 0, True]


def test_the_error_of_a_split_names_rows_that_are_too_few_for_a_part() -> None:
    table = wd.Table.from_columns({"x": np.arange(99.0), "t": np.arange(99)}, timestamp_column="t")
    w = wd.Windows(table, context_length=12, prediction_length=3)
    with pytest.raises(ValueError, match=r"the test part .* expected `test_rows` of 3 or more$"):
        w.split(validation_rows=5, test_rows=2)
    with pytest.raises(ValueError, match=r"the validation .* `validation_rows` of 3 or more$"):
        w.split(validation_rows=2, test_rows=2)
    # Contexts of training do not reach back.
    with pytest.raises(ValueError, match=r"the train part .* expected 15 rows or more of some"):
        w.split(14, 50)
    with pytest.raises(ValueError, match=r"the validation part .* expected 3 rows or more of some"):
        w.split(20, 22)


def test_the_error_of_a_split_that_a_filter_empties() -> None:
    x = np.arange(200.0)
    x[150:] = np.nan
    w = wd.Windows(
        wd.Table.from_columns({"x": x}), context_length=4, prediction_length=2, max_missing=0.0
    )
    with pytest.raises(ValueError, match="2 rows or more of some series in it, with windows that"):
        w.split()
    far = wd.Windows(wd.Table.from_columns({"x": np.arange(9.0)}), context_length=4)
    with pytest.raises(ValueError, match=r"expected a series of \d+ rows or more"):
        far.split(1e-15, 0)


def test_splits_by_time_need_time_stamps() -> None:
    w = wd.Windows(wd.Table.from_columns({"x": np.arange(50.0)}), context_length=4)
    with pytest.raises(ValueError, match="by time stamps, but the table has no timestamp column"):
        w.split("2020-01-01", "2020-02-01")
    with pytest.raises(ValueError, match=r"`time` is .*, but the table has no timestamp column"):
        w.subset(time=("2020-01-01", None))


BAD_SUBSETS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"series": "s9"}, KeyError, "no series 's9' among 3; near matches: s"),
    ({"series": 3}, IndexError, "series 3 is out of range, the table has 3 series"),
    ({"rows": (5, 2)}, ValueError, r"`rows` must be a range within 300 rows, got \(5, 2\)"),
    ({"rows": (0, 301)}, ValueError, "`rows` must be a range within 300 rows"),
    ({"rows": slice(0, 9, 2)}, ValueError, "`rows` must be a range without a step"),
    ({"rows": 5}, TypeError, r"`rows` must be a pair \(start, stop\), .*, got 5"),
    ({"rows": (0.5, 7)}, TypeError, r"`rows` must be an integer, got float 0.5"),
    ({"time": "2020"}, TypeError, "`time` must be a pair .*, got '2020'"),
    ({"time": (5, None)}, TypeError, "a time stamp must be a date .* are datetime64.*, got 5"),
    ({"rows": (0, 3)}, ValueError, "the subset holds no window"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_SUBSETS)
def test_bad_subsets(options: dict[str, Any], error: type[Exception], message: str) -> None:
    w = wd.Windows(load_table(), context_length=4, prediction_length=2)
    with pytest.raises(error, match=message):
        w.subset(**options)
