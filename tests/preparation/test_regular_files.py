"""`prepare` with a step writes what `Table.regularize` makes of the sorted rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.prepare_cases import contents, write_files, written
from windeck.cli.main import main

KEYS: dict[str, Any] = {"id_columns": ["site", "unit"], "timestamp_column": "time"}
HOUR = 3_600_000


def irregular_rows(lengths: list[int], seed: int, every: int, zone: str | None = None) -> Any:
    """Return rows of series in random order, at random multiples of `every` ms with gaps."""
    rng = np.random.default_rng(seed)
    series = np.repeat(np.arange(len(lengths)), lengths)
    ticks = np.concatenate([np.cumsum(rng.integers(0, 4, length)) for length in lengths])
    rows = len(series)
    count = [None if rng.random() < 0.2 else int(one) for one in rng.integers(0, 3, rows)]
    load = rng.integers(-99, 99, rows) / 8
    data = pa.table(
        {
            "site": pa.array(["b", "", "ä", "a", "aa"]).take(series % 5),
            "unit": pa.array(series // 5),
            "time": pa.array(ticks * every, pa.timestamp("ms", zone)),
            "load": pa.array(load, mask=rng.random(rows) < 0.2),
            "count": pa.array(count, pa.int16()),
            "kind": pa.array(rng.choice(["x", "y"], rows)),
            "on": pa.array(rng.random(rows) < 0.5),
        }
    )
    return data.take(rng.permutation(rows))


def regular(folder: Path, data: Any, options: dict[str, Any], **sizes: Any) -> Any:
    """Prepare data on a grid and return what is written; compare with the table in memory."""
    write_files(folder / "in", data, 3, [".parquet", ".arrow"])
    wd.prepare(folder / "in", folder / "plain", **KEYS, duplicates="keep", **sizes)
    plain = wd.Table.read(folder / "plain", **KEYS, categories=["kind"])
    try:
        expected = plain.regularize(**options)
    except ValueError:
        with pytest.raises(ValueError, match=r"is not on the grid|has several rows for"):
            wd.prepare(folder / "in", folder / "out", **KEYS, **options, **sizes)
        return None
    result = wd.prepare(folder / "in", folder / "out", **KEYS, **options, **sizes, threads=1)
    found = wd.Table.read(folder / "out", **KEYS, categories={"kind": plain_names(expected)})
    assert found.fingerprint == expected.fingerprint
    assert result.rows == expected.num_rows
    assert result.series == expected.num_series
    assert result.duplicates_dropped == plain.num_rows - kept_rows(expected, data)
    check_ends(result, folder / "out")
    return found


def plain_names(table: wd.Table) -> list[str]:
    return list(table.column("kind").categories or ())


def kept_rows(table: wd.Table, data: Any) -> int:
    """Return the rows that were not added: of these alone the column of bools has a value."""
    assert not data["on"].null_count
    return int(table.column("on").observed().sum())


def check_ends(result: wd.Prepared, folder: Path) -> None:
    """Compare the first and the last row of each file with its description."""
    rows = written(folder)
    ticks = rows["time"].cast(pa.int64()).to_pylist()
    done = 0
    for file in result.files:
        for described, row in ((file.first, done), (file.last, done + file.rows - 1)):
            assert described == [rows["site"][row].as_py(), rows["unit"][row].as_py(), ticks[row]]
        done += file.rows


OPTIONS = st.fixed_dictionaries(
    {
        "off_grid": st.sampled_from(["error", "nearest", "floor"]),
        "duplicates": st.sampled_from(["error", "first", "last"]),
    },
    optional={"origin": st.sampled_from(["1970-01-01T01", "2024-01-01T00:30"])},
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=7),
    OPTIONS,
    st.sampled_from(["1h", "90min", "5h", "D"]),
    st.sampled_from([1024, 4000, 1 << 20]),
    st.integers(0, 100),
)
def test_files_equal_the_table_in_memory(
    lengths: list[int], options: Any, step: str, file_bytes: int, seed: int
) -> None:
    data = irregular_rows(lengths, seed, HOUR)
    sizes = {"file_bytes": file_bytes, "row_group_bytes": 1024}
    with tempfile.TemporaryDirectory() as folder:
        regular(Path(folder), data, {"step": step, **options}, **sizes)


@pytest.mark.parametrize("step", ["D", "W", "MS"])
def test_days_of_a_zone_and_means(tmp_path: Path, step: str) -> None:
    data = irregular_rows([200, 90, 1], 1, 7 * HOUR, "America/Havana")
    same = {"count": pa.array([7], pa.int16()), "kind": pa.array(["x"]), "on": pa.array([True])}
    for name, value in same.items():
        place = data.column_names.index(name)
        data = data.set_column(place, name, value.take(pa.array([0] * len(data))))
    options = {"off_grid": "floor", "time_zone": "America/Havana", "duplicates": "mean"}
    found = regular(tmp_path, data, {"step": step, **options}, file_bytes=1024)
    assert found.time_zone == "America/Havana"
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 1


def test_days_of_files_of_a_zone_need_one(tmp_path: Path) -> None:
    write_files(tmp_path / "in", irregular_rows([40], 1, HOUR, "Europe/Berlin"), 1)
    with pytest.raises(ValueError, match=r"expected time_zone='Europe/Berlin' for days.*'UTC'"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, step="D", off_grid="floor")


def test_a_column_without_a_mean(tmp_path: Path) -> None:
    data = irregular_rows([40], 1, HOUR)
    options = {"step": "D", "off_grid": "floor", "duplicates": "mean"}
    write_files(tmp_path / "in", data, 1)
    with pytest.raises(ValueError, match="column 'count' of int16 has several values for the step"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, **options)  # type: ignore[arg-type]
    assert not [path for path in (tmp_path / "out").glob("*") if not path.name.startswith(".")]


def test_a_long_gap_between_two_files(tmp_path: Path) -> None:
    ticks = np.arange(3000)
    ticks[1500:] += 50_000
    data = pa.table({"time": pa.array(ticks), "load": pa.array(ticks / 8)})
    write_files(tmp_path / "in", data, 2)
    options: dict[str, Any] = {"step": 1, "timestamp_column": "time", "file_bytes": 2000}
    result = wd.prepare(tmp_path / "in", tmp_path / "out", **options, row_group_bytes=1024)
    found = wd.Table.read(tmp_path / "out", timestamp_column="time", in_memory=False)
    assert (found.num_rows, len(result.files)) == (53_000, 24)
    assert found.timestamps is not None
    assert (found.timestamps[0:53_000] == np.arange(53_000)).all()
    groups = [file.row_groups for file in result.files]
    assert max(file.rows / count for file, count in zip(result.files, groups, strict=True)) <= 64
    assert found.with_missing_counts().column("load").missing == 50_000


def test_one_wrong_time(tmp_path: Path) -> None:
    data = irregular_rows([30, 20], 0, HOUR)
    wrong = data.slice(0, 1).set_column(2, "time", pa.array([10**13], pa.timestamp("ms")))
    write_files(tmp_path / "in", pa.concat_tables([data, wrong]), 2)
    options: dict[str, Any] = {"step": "1h", "duplicates": "first", **KEYS}
    with pytest.raises(
        ValueError,
        match=r"the grid would have 2,7\d\d,\d+ rows, more than max_rows=100,000, and the longest "
        r"gap of series \('.*', 0\) is from 1970-01-0.* to 2286-11-20 17:46:40; expected no",
    ):
        wd.prepare(tmp_path / "in", tmp_path / "out", **options, off_grid="floor")
    with pytest.raises(ValueError, match=r"not on the grid \(steps of 1h from 1970-01-01"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **options, max_rows=10**9)
    files: dict[str, Any] = {"file_bytes": 1024, "row_group_bytes": 1024}
    write_files(tmp_path / "right", irregular_rows([30, 20], 0, HOUR), 2)
    rows = wd.prepare(tmp_path / "right", tmp_path / "out", **options, **files).rows
    with pytest.raises(
        ValueError, match=f"the grid has {rows} rows in . files, more than max_rows"
    ):
        wd.prepare(tmp_path / "right", tmp_path / "less", **options, **files, max_rows=rows - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"origin": "2024-01-01"}, "`origin` is '2024-01-01', of a grid of time; expected `step`"),
        ({"off_grid": "floor"}, "`off_grid` is 'floor', of a grid of time; expected `step`"),
        ({"duplicates": "mean"}, "duplicates='mean' is for rows of one step; expected `step`"),
        ({"step": "1h", "duplicates": "keep"}, "duplicates='keep' keeps several rows of a step"),
        ({"step": "1h", "origin": "first"}, "`origin` must be a time or an integer for files"),
        ({"step": "1h", "timestamp_column": None}, "`step` is '1h', of time stamps; expected"),
        ({"step": 5}, "`step` must be a duration such as '1h', as the timestamps are"),
        ({"step": "1h", "off_grid": "up"}, "`off_grid` must be one of error, nearest, floor"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_files(tmp_path / "in", irregular_rows([4], 0, HOUR), 1)
    with pytest.raises((TypeError, ValueError), match=message):
        wd.prepare(tmp_path / "in", tmp_path / "out", **{**KEYS, **options})


def test_scalers_are_those_of_the_table(tmp_path: Path) -> None:
    data = irregular_rows([60, 50], 3, HOUR).select(["site", "unit", "time", "load"])
    write_files(tmp_path / "in", data, 2)
    options: dict[str, Any] = {"step": "1h", "duplicates": "last", "file_bytes": 1024, **KEYS}
    result = wd.prepare(
        tmp_path / "in",
        tmp_path / "out",
        **options,
        scaler="standard",
        train=(None, "1970-01-04T08"),
    )
    table = wd.Table.read(tmp_path / "out", **KEYS)
    assert table.timestamps is not None
    training = table.timestamps.astype(np.int64) < 80 * HOUR
    kept = wd.Table.from_columns({"load": table["load"][training]})
    assert result.scalers["standard"].to_json() == wd.Scaler.fit(kept).to_json()


def test_the_command_has_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = irregular_rows([60, 50], 3, HOUR, "Europe/Berlin")
    write_files(tmp_path / "in", data, 2)
    words = "--id site,unit --time time --quiet --step D --off-grid floor --duplicates last"
    more = "--origin 1970-01-01 --time-zone Europe/Berlin --max-rows 900"
    main(["prepare", "in", "out", *words.split(), *more.split()])
    wd.prepare(
        *("in", "same"),
        **KEYS,
        step="D",
        off_grid="floor",
        duplicates="last",
        time_zone="Europe/Berlin",
        max_rows=900,
    )
    names = [name for name in contents(tmp_path / "out") if name.endswith(".parquet")]
    assert names
    for name in names:
        assert contents(tmp_path / "out")[name] == contents(tmp_path / "same")[name]
