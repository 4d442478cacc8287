"""Random configurations of windows: every key of a batch equals the reference."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from models import reference as ref
from support.cases import Drawn, drawn_cases
from support.internals import planted
from windeck import Windows

QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


def library_windows(drawn: Drawn, expected: list[ref.Window]) -> Windows | None:
    """Return the windows, or None where there are none and an error is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # series too short are counted elsewhere
        if expected:
            return drawn.windows()
        with pytest.raises(ValueError, match="no window"):
            drawn.windows()
    return None


def check(drawn: Drawn) -> None:
    """Compare all results for one case with the reference."""
    expected = ref.windows(drawn.case)
    windows = library_windows(drawn, expected)
    if windows is None:
        return
    assert len(windows) == len(expected)
    series, rows = windows.locate(np.arange(len(expected)))
    assert list(zip(series.tolist(), rows.tolist(), strict=True)) == expected
    assert windows.index_of(series, rows).tolist() == list(range(len(expected)))
    assert windows.window_starts().tolist() == [row for _, row in expected]
    check_report(windows, drawn.case)
    check_covered(windows, drawn.case, expected)
    rng = np.random.default_rng(len(expected))
    chosen = rng.integers(0, len(expected), size=min(6, len(expected)))
    batch = windows.gather(chosen)
    wanted = ref.batch(drawn.case, [expected[i] for i in chosen])
    assert set(batch) == set(wanted)
    for key, array in wanted.items():
        assert batch[key].dtype == array.dtype, key
        np.testing.assert_array_equal(batch[key], array, err_msg=key, strict=True)


def check_report(windows: Windows, case: ref.Case) -> None:
    """Compare the counts of `explain` with those of the reference."""
    fitting = ref.fitting(case)
    reasons = [ref.dropped_for(case, w) for w in fitting]
    report = windows.explain()
    assert report.fitting == len(fitting)
    optional = {"past": case.min_observed_past, "future": case.min_observed_future}
    unused = {reason for reason, least in optional.items() if not least}
    assert not unused & set(report.dropped)
    for reason in {"missing", "past", "future", "gap"} - unused:
        assert report.dropped[reason] == reasons.count(reason)
    assert report.windows == len(windows)


def check_covered(windows: Windows, case: ref.Case, expected: list[ref.Window]) -> None:
    """Compare the rows that windows read with those of the steps of every window."""
    read = {
        (series, row)
        for series, start in expected
        for row in ref.rows_of(case, start)
        if case.offsets[series] <= row < case.offsets[series + 1]
    }
    with planted("coverage.ROWS_AT_A_TIME", 7):
        first, stop, series = windows.covered_rows()
    stretches = list(zip(series.tolist(), first.tolist(), stop.tolist(), strict=True))
    found = [(s, row) for s, a, b in stretches for row in range(a, b)]
    assert found == sorted(read)
    assert all(a < b for _, a, b in stretches)
    assert all(s != t or b < c for (s, _, b), (t, c, _) in pairwise(stretches))
    assert [one.dtype for one in (first, stop, series)] == [np.dtype(np.int64)] * 3


@settings(QUIET, max_examples=400)
@given(drawn_cases())
def test_batches_equal_the_reference(drawn: Drawn) -> None:
    check(drawn)


@pytest.mark.slow
@settings(QUIET, max_examples=20_000, derandomize=False)
@given(drawn_cases())
def test_many_more_batches_equal_the_reference(drawn: Drawn) -> None:
    check(drawn)
