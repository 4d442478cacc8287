"""The synthetic load curve: it has the shapes it claims, and it says what it is."""

import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from windeck.tools.synthetic import HOLIDAYS, load_curve, write_load_curve


def loads(sites: int, days: int, seed: int = 0) -> np.ndarray:
    table = load_curve(sites=sites, days=days, missing=0, seed=seed)
    return np.asarray(table["load"].to_numpy().reshape(sites, days, 24))


def test_shape_order_and_types() -> None:
    table = load_curve(sites=3, days=10)
    assert table.num_rows == 3 * 10 * 24
    names = table["site"].combine_chunks().to_pylist()
    assert names == sorted(names)
    stamps = table["timestamp"].to_numpy().reshape(3, 240)
    assert (np.diff(stamps, axis=1) == np.timedelta64(3600, "s")).all()
    assert (stamps == stamps[0]).all()


def test_equal_seeds_give_equal_tables_and_other_seeds_do_not() -> None:
    assert load_curve(sites=2, days=9, seed=5).equals(load_curve(sites=2, days=9, seed=5))
    assert not load_curve(sites=2, days=9, seed=5).equals(load_curve(sites=2, days=9, seed=6))


def test_days_weeks_and_years_show() -> None:
    load = loads(8, 730)
    relative = load / load.mean(axis=(1, 2), keepdims=True)
    by_hour = relative.mean(axis=(0, 1))
    assert by_hour[18] > 1.15 * by_hour[3]
    weekday = (np.datetime64("2021-01-01").astype(np.int64) + np.arange(730) + 3) % 7
    by_day = relative.mean(axis=(0, 2))
    assert by_day[weekday < 5].mean() > 1.05 * by_day[weekday == 6].mean()
    assert by_day[:31].mean() > 1.05 * by_day[120:151].mean()


def test_holidays_are_quiet_and_marked() -> None:
    table = load_curve(sites=4, days=365, missing=0)
    marked = table["holiday"].to_numpy().reshape(4, 365, 24)
    assert marked[0, :, 0].sum() == len(HOLIDAYS)
    assert (marked == marked[:, :, :1]).all()
    load = table["load"].to_numpy().reshape(4, 365, 24)
    noon = load[:, :, 12] / load.mean(axis=(1, 2))[:, None]
    workdays = (np.datetime64("2021-01-01").astype(np.int64) + np.arange(365) + 3) % 7 < 5
    off = marked[0, :, 0] & workdays
    assert noon[:, off].mean() < 0.95 * noon[:, workdays & ~off].mean()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_missing_is_about_the_share_asked_for(share: float) -> None:
    table = load_curve(sites=6, days=365, missing=share)
    found = table["load"].null_count / table.num_rows
    assert math.isclose(found, share, rel_tol=0.25, abs_tol=0)
    assert table["temperature"].null_count == 0


def test_the_file_says_that_it_is_synthetic(tmp_path: Path) -> None:
    path = write_load_curve(tmp_path / "load.parquet", sites=1, days=2, seed=3)
    metadata = pq.read_schema(path).metadata
    assert metadata[b"synthetic"] == b"windeck load curve, seed 3"


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="at least 1 site and 1 day, not 0 and 5"):
        load_curve(sites=0, days=5)
    with pytest.raises(ValueError, match=r"share in \[0, 1\), not 1"):
        load_curve(missing=1)
