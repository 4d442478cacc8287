"""Splits by numbers of rows, rolling folds, and subsets by window: a plain model of each."""

from __future__ import annotations

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


def whole_in(case: ref.Case, window: ref.Window, low: int, high: int) -> bool:
    """Return true if all rows of a window lie in [low, high), padding aside.

    Padded windows belong to a range that begins, or ends, with their series.
    """
    begin, end = case.offsets[window[0] : window[0] + 2]
    rows = ref.rows_of(case, window[1])
    return all(low <= row < high or row < begin == low or row >= end == high for row in rows)


def future_in(case: ref.Case, window: ref.Window, low: int, high: int) -> bool:
    begin, end = case.offsets[window[0] : window[0] + 2]
    return low < high and all(
        low <= row < high or row >= end == high or row < begin == low
        for row in ref.deciding_rows(case, window[1])
    )


@settings(QUIET, max_examples=100)
@given(drawn_cases(), st.integers(0, 20), st.integers(0, 20))
def test_split_by_last_rows(drawn: Drawn, validation: int, test: int) -> None:
    windows, every = windows_of(drawn)
    case, parts = drawn.case, ([], [], [])  # type: tuple[Any, tuple[list[ref.Window], ...]]
    for window in every:
        begin, end = case.offsets[window[0] : window[0] + 2]
        second = max(end - test, begin)
        first = max(second - validation, begin)
        if whole_in(case, window, begin, first):
            parts[0].append(window)
        elif future_in(case, window, first, second):
            parts[1].append(window)
        elif future_in(case, window, second, end):
            parts[2].append(window)
    wanted = (1, validation, test)
    if any(asked and not found for asked, found in zip(wanted, parts, strict=True)):
        with pytest.raises(ValueError, match="part of the split holds no window"):
            windows.split(validation_rows=validation, test_rows=test)
        return
    split = windows.split(validation_rows=validation, test_rows=test)
    assert [located(part) for part in split] == list(parts)


def expected_fold(
    case: ref.Case, every: list[ref.Window], k: int, number: int, options: dict[str, Any]
) -> list[list[ref.Window]]:
    parts: list[list[ref.Window]] = [[], [], []]
    for window in every:
        begin, end = case.offsets[window[0] : window[0] + 2]
        size = options.get("test_rows") or (end - begin) // (k + 1)
        step = options.get("step_rows") or size
        stop = max(end - step * (k - 1 - number), begin)
        test = max(stop - size, begin)
        gap = max(test - options["gap_rows"], begin)
        first = max(gap - options["validation_rows"], begin)
        start = max(first - (options.get("train_rows") or end), begin)
        if whole_in(case, window, start, first):
            parts[0].append(window)
        if future_in(case, window, first, gap):
            parts[1].append(window)
        if future_in(case, window, test, stop):
            parts[2].append(window)
    return parts


@settings(QUIET, max_examples=150)
@given(drawn_cases(), st.integers(1, 4), st.data())
def test_folds_equal_the_model(drawn: Drawn, k: int, data: st.DataObject) -> None:
    windows, every = windows_of(drawn)
    options: dict[str, Any] = {
        "test_rows": data.draw(st.sampled_from([None, 1, 3, 6])),
        "step_rows": data.draw(st.sampled_from([None, 1, 4])),
        "train_rows": data.draw(st.sampled_from([None, None, 8])),
        "validation_rows": data.draw(st.sampled_from([0, 0, 4])),
        "gap_rows": data.draw(st.sampled_from([0, 2])),
    }
    expected = [expected_fold(drawn.case, every, k, n, options) for n in range(k)]
    wanted = (True, options["validation_rows"] > 0, True)
    short = [
        part == [] for parts in expected for part, asked in zip(parts, wanted, strict=True) if asked
    ]
    if any(short):
        with pytest.raises(ValueError, match=r"part of fold \d of \d holds no window"):
            windows.folds(k, **options)
        return
    tested = [window for parts in expected for window in parts[2]]
    if len(set(tested)) < len(tested):
        with pytest.raises(ValueError, match=r"test parts of folds \d and \d of \d share \d+ wind"):
            windows.folds(k, **options)
        return
    for fold, parts in zip(windows.folds(k, **options), expected, strict=True):
        assert [located(part) for part in fold] == parts
        for part in fold:
            report = part.explain()
            assert report.windows == len(part) == report.fitting - sum(report.dropped.values())


def time_series_split(
    rows: int, k: int, test_rows: int = 0, gap_rows: int = 0, train_rows: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Return the samples of scikit-learn's ``TimeSeriesSplit``, by its definition."""
    size = test_rows or rows // (k + 1)
    folds = []
    for start in range(rows - k * size, rows, size):
        end = start - gap_rows
        first = max(end - train_rows, 0) if train_rows else 0
        folds.append((list(range(first, end)), list(range(start, start + size))))
    return folds


@pytest.mark.parametrize("rows", [20, 23, 100])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"test_rows": 3}, {"gap_rows": 2}, {"train_rows": 5}])
def test_folds_of_one_step_are_those_of_scikit_learn(
    rows: int, k: int, options: dict[str, int]
) -> None:
    w = wd.Windows(wd.Table.from_columns({"x": np.arange(float(rows))}), context_length=1)
    folds: Any = w.folds(k, **options)
    found = [(f.train.window_starts().tolist(), f.test.window_starts().tolist()) for f in folds]
    assert found == time_series_split(rows, k, **options)


def test_rolling_origins_of_a_horizon() -> None:
    """k origins, `step_rows` apart, each with one window of `prediction_length` rows a series."""
    table = wd.Table.from_columns({"x": np.arange(150.0)}, offsets=[0, 60, 150])
    w = wd.Windows(table, context_length=10, prediction_length=6)
    folds = w.folds(3, test_rows=6, step_rows=2)
    assert [located(fold.test) for fold in folds] == [
        [(series, end - 6 - 2 * later - 10) for series, end in enumerate([60, 150])]
        for later in (2, 1, 0)
    ]
    for fold in folds:
        for series in (0, 1):
            first = min(row for s, row in located(fold.test) if s == series) + 10
            last = max(row for s, row in located(fold.train) if s == series) + 15
            assert last == first - 1
        assert not len(fold.validation)
        assert fold.with_scaler(wd.Scaler.fit(fold.train)).test.scaler is not None
    assert "outside the fold or across one of its borders" in str(folds[0].train.explain())


def test_a_window_is_in_one_test_part() -> None:
    """Ids, time and cutoff are unique in the forecasts of all folds; smaller steps are an error."""
    day = np.datetime64("2024-01-01") + np.arange(60)
    columns = {"y": np.arange(120.0), "day": np.tile(day, 2), "id": np.repeat(["a", "b"], 60)}
    table = wd.Table.from_columns(columns, timestamp_column="day", id_columns="id")
    w = wd.Windows(table, context_length=5, prediction_length=3)
    with pytest.raises(
        ValueError,
        match=r"test parts of folds 1 and 2 of 4 share 2 windows, .* `step_rows` of at least 6: "
        r"`test_rows` 8 minus a future of 3 rows, plus 1$",
    ):
        w.folds(4, test_rows=8, step_rows=5)
    rows = []
    for fold in w.folds(4, test_rows=8, step_rows=6):
        points = fold.test.prediction_table(np.zeros((len(fold.test), 3)), cutoff=True)
        rows += points.select(["id", "day", "cutoff"]).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows) == 4 * 2 * 6 * 3
    # A filter has dropped the shared window.
    with pytest.raises(ValueError, match="share 2 windows"):
        w.folds(2, test_rows=12, step_rows=9)
    y = columns["y"].copy()
    y[[43, 103]] = np.nan
    table = wd.Table.from_columns(columns | {"y": y}, timestamp_column="day", id_columns="id")
    w = wd.Windows(table, context_length=5, prediction_length=3, max_missing=0)
    folds = w.folds(2, test_rows=12, step_rows=9)
    assert not {*located(folds[0].test)} & {*located(folds[1].test)}


def test_numbers_beyond_the_series_mean_all_of_it() -> None:
    table = wd.Table.from_columns({"x": np.arange(50.0)}, offsets=[0, 10, 50])
    w = wd.Windows(table, context_length=2, prediction_length=1)
    split = w.split(test_rows=20)
    assert {s for s, _ in located(split.train)} == {1}
    assert [r for s, r in located(split.test) if s == 0] == list(range(8))
    with pytest.raises(
        ValueError, match=r"the train part of the split holds no window .*by=.rows."
    ):
        w.split(test_rows=2**62, validation_rows=2**62)
    with pytest.raises(ValueError, match="the train part of fold 1 of 1 holds no window"):
        w.folds(1, test_rows=2**62)
    with pytest.raises(ValueError, match="the train part of fold 1 of 999 holds no window"):
        w.folds(999, test_rows=1, step_rows=2**62)


# --- subsets by window ---------------------------------------------------------------------------


@settings(QUIET, max_examples=100)
@given(drawn_cases(), st.data())
def test_subset_by_indices_and_mask(drawn: Drawn, data: st.DataObject) -> None:
    windows, every = windows_of(drawn)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every))))
    expected = [window for window, kept in zip(every, mask, strict=True) if kept]
    numbers = data.draw(st.permutations(np.flatnonzero(mask).tolist()))
    if not expected:
        with pytest.raises(ValueError, match="the subset holds no window"):
            windows.subset(mask=mask)
        return
    for subset in (windows.subset(mask=mask), windows.subset(indices=numbers)):
        assert located(subset) == expected
        assert subset.explain().windows == len(expected)
        series, rows = map(np.array, zip(*expected, strict=True))
        assert subset.index_of(series, rows).tolist() == list(range(len(expected)))
        again = np.random.default_rng(len(expected)).random(len(expected)) < 0.7
        if again.any():
            kept = [window for window, one in zip(expected, again, strict=True) if one]
            assert located(subset.subset(mask=again)) == kept


@pytest.mark.filterwarnings("ignore:the last windows of .* were dropped:UserWarning")
@settings(QUIET, max_examples=80)
@given(drawn_cases(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_subset_of_the_last_windows(drawn: Drawn, last: int, seed: int) -> None:
    windows, every = windows_of(drawn)
    mask = np.random.default_rng(seed).random(len(every)) < 0.6
    for source, listed in (
        (windows, every),
        (windows, [w for w, m in zip(every, mask, strict=True) if m]),
    ):
        if not listed:
            continue
        source = source if listed is every else source.subset(mask=mask)
        expected = []
        for series, _ in enumerate(pairwise(drawn.case.offsets)):
            expected += [window for window in listed if window[0] == series][-last:]
        assert located(source.subset(last=last)) == expected


def test_subsets_of_windows_split_and_pickle_like_others() -> None:
    w = wd.Windows(wd.Table.from_columns({"x": np.arange(40.0)}), context_length=3)
    odd = w.subset(mask=np.arange(38) % 2 == 1)
    assert [located(part) for part in odd.split(validation_rows=6, test_rows=6)] == [
        [(0, row) for row in range(*span, 2)] for span in ((1, 26), (29, 32), (35, 38))
    ]
    middle = w.subset(indices=range(5, 9))
    assert middle.nbytes == w.nbytes  # no bitmap for windows next to each other
    assert w.subset(indices=[7, 30]).fingerprint != w.subset(indices=[7, 31]).fingerprint
    assert located(w.subset(indices=[30, 7, 12], rows=(0, 20))) == [(0, 7), (0, 12)]


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("split", {"test_rows": -1}, ValueError, "`test_rows` must be at least 0, got -1"),
    ("split", {"test_rows": 0.1}, TypeError, "`test_rows` must be an integer, got float 0.1"),
    ("split", {"test_rows": 3, "test": 0.2}, ValueError, "must not be given with shares.*test=0.2"),
    ("split", {"test_rows": 3, "by": "series"}, ValueError, "must not be given with .*by='series'"),
    ("split", {"validation_rows": 1}, ValueError, "the validation part of the split holds no win"),
    ("folds", {"k": 0}, ValueError, "`k` must be at least 1, got 0"),
    ("folds", {"k": 2, "test_rows": 0}, ValueError, "`test_rows` must be at least 1, got 0"),
    ("folds", {"k": 2, "gap_rows": -1}, ValueError, "`gap_rows` must be at least 0, got -1"),
    ("folds", {"k": 90}, ValueError, "the test part of fold 1 of 90 holds no window, expected f"),
    ("subset", {"indices": [3, 3]}, ValueError, "`indices` must name each window once, got 3 more"),
    ("subset", {"indices": [95]}, IndexError, r"window 95 is out of range, expected \[0, 95\)"),
    ("subset", {"indices": [2, 95, 0]}, IndexError, "window 95 is out of range"),
    ("subset", {"indices": [2, -1, 0]}, IndexError, "window -1 is out of range"),
    ("subset", {"indices": [0.5]}, TypeError, "`indices` must be integers"),
    ("subset", {"indices": []}, ValueError, "the subset holds no window"),
    ("subset", {"mask": [True]}, ValueError, r"`mask` must be bool of shape \(95,\), .* \(1,\)"),
    ("subset", {"mask": np.ones(95)}, ValueError, "`mask` must be bool of .*, got float64"),
    ("subset", {"mask": np.ones(95, bool), "indices": [1]}, ValueError, "must not both be given"),
    ("subset", {"last": 0}, ValueError, "`last` must be at least 1, got 0"),
]


@pytest.mark.parametrize(("method", "options", "error", "message"), BAD)
def test_bad_arguments(
    method: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = wd.Table.from_columns({"x": np.arange(100.0)})
    w = wd.Windows(table, context_length=4, prediction_length=2)
    with pytest.raises(error, match=message):
        getattr(w, method)(**options)
