"""`prepare` writes what polars sorts, for any ids, times, types and formats of files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import windeck as wd
from support.prepare_cases import (
    SMALL,
    assert_sorted_as_by_polars,
    contents,
    unsorted_rows,
    write_file,
    write_files,
    written,
)

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[str], str | None, int, list[str]]:
    """Draw rows, id columns, the time column, a number of files and their formats."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    count = sum(lengths)
    order = np.random.default_rng(draw(st.integers(0, 1000))).permutation(count)
    series = np.repeat(np.arange(len(lengths)), lengths)[order]
    step = draw(st.sampled_from([1, 1, 3]))  # 3 makes rows with the same time
    names = draw(st.permutations(["b", "", "ä", "a", "aa", "\U0001f600"]))
    columns = {
        "site": pa.array(names).take(series),
        "number": pa.array(np.arange(count)),
        "unit": pa.array(series % 3 - 1),
        "time": pa.array((np.arange(count) // step - 20)[order]),
        "load": pa.array(np.arange(count) / 8),
    }
    ids = draw(st.sampled_from([["site"], ["unit"], ["unit", "site"], []]))
    time = draw(st.sampled_from(["time", "time", None]))
    files = draw(st.integers(1, 5))
    suffixes = draw(st.lists(st.sampled_from([".parquet", ".arrow"]), min_size=1, max_size=2))
    return pa.table(columns), ids, time, files, suffixes


@given(cases(), st.sampled_from([1024, 2500, 1 << 20]))
@settings(max_examples=40)
def test_ragged_series_across_unsorted_files(case: Any, file_bytes: int) -> None:
    rows, ids, time, files, suffixes = case
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "in", rows, files, suffixes)
        result = wd.prepare(
            folder / "in",
            folder / "out",
            id_columns=ids,
            timestamp_column=time,
            duplicates="keep",
            file_bytes=file_bytes,
            row_group_bytes=1024,
            threads=1,
        )
        keys = [*ids, *([time] if time else [])]
        assert_sorted_as_by_polars(folder / "out", rows, keys)
        assert (
            result.series == len(set(zip(*(rows[one].to_pylist() for one in ids), strict=True)))
            or 1
        )
        table = wd.Table.read(
            folder / "out", id_columns=ids, timestamp_column=time, columns=["number", "load"]
        )
        sort = pl.DataFrame(rows).sort(*keys, maintain_order=True) if keys else pl.DataFrame(rows)
        assert table["number"].tolist() == sort["number"].to_list()


@given(st.integers(0, 3), st.sampled_from(["first", "last", "error"]))
@settings(max_examples=20)
def test_rows_with_the_same_ids_and_time(seed: int, duplicates: Any) -> None:
    rng = np.random.default_rng(seed)
    count = 300
    rows = pa.table(
        {
            "site": pa.array(["a", "b", "c"]).take(rng.integers(0, 3, count)),
            "time": rng.integers(0, 30, count),
            "number": np.arange(count),
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "in", rows, 3)

        def call() -> wd.Prepared:
            return wd.prepare(
                folder / "in",
                folder / "out",
                id_columns="site",
                timestamp_column="time",
                duplicates=duplicates,
                file_bytes=1024,
            )

        if duplicates == "error":
            with pytest.raises(ValueError, match=r"series '[abc]' has several rows with time \d+"):
                call()
            assert not list((folder / "out").glob("manifest.json"))
            return
        result = call()
        expected = (
            pl.DataFrame(rows)
            .sort("site", "time", maintain_order=True)
            .unique(["site", "time"], keep=duplicates, maintain_order=True)
        )
        assert pl.DataFrame(written(folder / "out")).select(expected.columns).equals(expected)
        assert result.duplicates_dropped == count - len(expected)


def test_a_duplicate_is_named_with_its_series_and_time(tmp_path: Path) -> None:
    rows = unsorted_rows()
    write_files(tmp_path / "in", pa.concat_tables([rows, rows.slice(7, 1)]), 2)
    site, time = rows["site"][7].as_py(), rows["time"][7].as_py()
    with pytest.raises(ValueError, match=f"'{site}' has several rows with time {time:%Y-%m-%d}"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, file_bytes=SMALL)


def test_one_series_without_times_is_divided_into_files_in_the_order_of_the_sources(
    tmp_path: Path,
) -> None:
    rows = pa.table({"site": ["a"] * 3000, "number": np.arange(3000)})
    write_files(tmp_path / "in", rows, 7)
    result = wd.prepare(tmp_path / "in", tmp_path / "out", id_columns="site", file_bytes=SMALL)
    assert len(result.files) > 10
    assert max(file.rows for file in result.files) < 3 * 3000 / len(result.files)
    assert written(tmp_path / "out")["number"].to_pylist() == list(range(3000))


@pytest.mark.parametrize("daily", [False, True])
def test_files_have_about_the_size_asked_for(tmp_path: Path, daily: bool) -> None:
    """Also where each source file has all series of one day, as logs have."""
    rows = unsorted_rows(series=40, length=200)
    if daily:
        rows = rows.sort_by("time")
    write_files(tmp_path / "in", rows, 30)
    result = wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, file_bytes=16 << 10)
    mean = result.rows / len(result.files)
    assert len(result.files) > 12
    assert max(file.rows for file in result.files) < 1.7 * mean


def test_types_are_those_that_a_table_reads(tmp_path: Path) -> None:
    rows = unsorted_rows()
    count = rows.num_rows
    rng = np.random.default_rng(1)
    nulls = rng.random(count) < 0.2
    extra = {
        "flag": pa.array(rng.random(count) < 0.5, mask=nulls),
        "small": pa.array(rng.integers(0, 200, count).astype("u1"), mask=nulls),
        "big": pa.array(rng.integers(0, 2**63, count).astype("u8")),
        "half": pa.array(rng.standard_normal(count).astype("f2"), mask=nulls),
        "single": pa.array(rng.standard_normal(count).astype("f4"), mask=nulls),
        "wind": pa.array(["N", "E", None]).take(rng.integers(0, 3, count)).dictionary_encode(),
        "text": pa.array(["x", "y"]).take(rng.integers(0, 2, count)).cast(pa.large_string()),
        "codes": pa.array([5, 7]).take(rng.integers(0, 2, count)).dictionary_encode(),
        "empty": pa.array(np.full(count, np.nan), mask=np.ones(count, dtype=bool)),
    }
    for name, column in extra.items():
        rows = rows.append_column(name, column)
    write_files(tmp_path / "in", rows, 3, (".parquet", ".arrow"))
    wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, file_bytes=8 << 10)
    tables = [
        wd.Table.read(tmp_path / name, **KEYS, sort=True, categories=["text"])
        for name in ("in", "out")
    ]
    order = {name: number for number, name in enumerate(tables[0].series_names)}
    assert tables[1].series_names == tuple(sorted(order))
    for name in tables[0].column_names:
        one, two = (table.column(name) for table in tables)
        assert one.dtype == two.dtype, name
        for number, series in enumerate(tables[1].series_names):
            a = slice(*tables[0].offsets[order[series] :][:2].tolist())
            b = slice(*tables[1].offsets[number : number + 2].tolist())
            assert one.observed(a).tolist() == two.observed(b).tolist()
            values = one.values[a], two.values[b]
            if one.categories is not None and two.categories is not None:
                texts = [
                    [(*names, None)[code] for code in codes]
                    for names, codes in zip((one.categories, two.categories), values, strict=True)
                ]
                assert texts[0] == texts[1]
            else:
                np.testing.assert_array_equal(*values)
    assert parquet.read_schema(tmp_path / "out" / "part-00000.parquet").field("wind").type == (
        pa.dictionary(pa.int32(), pa.string())
    )


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ns")),
        *(pa.date32(), pa.date64(), pa.int32(), pa.uint16()),
    ],
    ids=str,
)
def test_times_of_any_type(tmp_path: Path, kind: Any) -> None:
    days = pa.array(np.random.default_rng(0).permutation(500).astype("i4"))
    times = days.cast(kind) if pa.types.is_integer(kind) else days.cast(pa.date32()).cast(kind)
    write_files(tmp_path / "in", pa.table({"time": times, "day": days}), 3)
    wd.prepare(tmp_path / "in", tmp_path / "out", timestamp_column="time", file_bytes=SMALL)
    table = wd.Table.read(tmp_path / "out", timestamp_column="time")
    source = wd.Table.read(tmp_path / "in", timestamp_column="time")
    assert table["day"].tolist() == list(range(500))
    assert table.timestamps is not None
    assert source.timestamps is not None
    assert (table.timestamps == source.timestamps).all()


def test_dtype_casts_floating_columns_only(tmp_path: Path) -> None:
    rows = unsorted_rows()
    write_files(tmp_path / "in", rows, 2)
    result = wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, dtype="float16")
    assert (result.columns["load"], result.columns["number"]) == ("halffloat", "int64")
    expected = pl.DataFrame(rows).sort("site", "time")["load"].to_numpy().astype("f2")
    assert written(tmp_path / "out")["load"].to_numpy().tolist() == expected.tolist()
    large = rows.set_column(2, "load", pa.array([1e5, *[0.0] * (rows.num_rows - 1)]))
    write_files(tmp_path / "large", large, 2)
    with pytest.raises(OverflowError, match=r"'load' of '.*0.parquet' has 100000.0 in row 0, too"):
        wd.prepare(tmp_path / "large", tmp_path / "out2", **KEYS, dtype="float16")


def test_csv_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    texts = [
        "b;02.01.2024;1,5;3\na;01.01.2024;2,5;4\n",
        "b;01.01.2024;0;5\n",
        "a;02.01.2024;;1,25\n",
    ]
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"{number}.csv").write_text(text, encoding="latin-1")
    wd.prepare(
        tmp_path / "in",
        tmp_path / "out",
        **KEYS,
        header=["site", "time", "load", "wind"],
        delimiter=";",
        decimal=",",
        encoding="latin-1",
        timestamp_format="%d.%m.%Y",
    )
    table = wd.Table.read(tmp_path / "out", **KEYS)
    assert table.series_names == ("a", "b")
    np.testing.assert_array_equal(table["load"], [2.5, np.nan, 0, 1.5])
    # Whole numbers in some files, and fractions in others.
    assert table["wind"].tolist() == [4, 1.25, 5, 3]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a,north,1", "timestamp column 'time' of '.*1.csv' is string; expected timestamps"),
        ("a,1.5,1", "timestamp column 'time' of '.*1.csv' is double; expected timestamps"),
        ("1.5,1,1", "id column 'site' of '.*1.csv' is double; expected strings or integers"),
    ],
)
def test_csv_with_keys_of_a_wrong_type(
    tmp_path: Path, on_error: Any, line: str, words: str
) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate(["a,1,2", line]):
        (tmp_path / "in" / f"{number}.csv").write_text(f"site,time,load\n{text}\n")
    with pytest.raises(TypeError, match=words):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, on_error=on_error)


def test_csv_longer_than_a_file_is_read_in_blocks_with_the_types_of_all_its_values(
    tmp_path: Path,
) -> None:
    count = 80_000
    order = np.random.default_rng(0).permutation(count)
    lines = [
        f"s{row % 3},{row},{row if place < 70_000 else row + 0.5}"
        for place, row in enumerate(order)
    ]
    path = tmp_path / "long.csv"
    path.write_text("site,time,load\n" + "\n".join(lines) + "\n")
    assert path.stat().st_size > 1 << 20
    wd.prepare(path, tmp_path / "out", **KEYS, file_bytes=256 << 10)
    found, expected = (
        wd.Table.read(tmp_path / "out", **KEYS),
        wd.Table.read(path, **KEYS, sort=True),
    )
    assert found["load"].dtype == np.float64
    for number, name in enumerate(found.series_names):
        other = expected.series_names.index(name)
        a, b = found.offsets[number : number + 2], expected.offsets[other : other + 2]
        assert (found["load"][slice(*a)] == expected["load"][slice(*b)]).all()


def test_rows_do_not_depend_on_threads_and_memory(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(length=200), 9)
    several: dict[str, dict[str, Any]] = {
        "one": {"threads": 1},
        "more": {"threads": 3, "memory_budget": 4e8},
    }
    for name, options in several.items():
        wd.prepare(tmp_path / "in", tmp_path / name, **KEYS, file_bytes=SMALL, **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "more")
    assert len(contents(tmp_path / "one")) > 10


@pytest.mark.parametrize("kind", ["standard", "minmax", "robust", "mean_abs"])
@pytest.mark.parametrize("sample", [100, 10_000, None])
def test_scalers_equal_those_fitted_by_hand(tmp_path: Path, kind: Any, sample: int | None) -> None:
    rows = unsorted_rows()
    write_files(tmp_path / "in", rows, 3)
    start, stop = "2024-01-05", "2024-02-10T12:00"
    result = wd.prepare(
        tmp_path / "in",
        tmp_path / "out",
        **KEYS,
        file_bytes=SMALL,
        scaler=[kind],
        sample=sample,
        seed=3,
        train=(start, stop),
    )
    frame = pl.DataFrame(rows).sort("site", "time")
    time = frame["time"].to_numpy()
    train = frame.filter((time >= np.datetime64(start)) & (time < np.datetime64(stop)))
    assert 100 < len(train) < len(frame)
    table = wd.Table.from_arrow(train, **KEYS)
    expected = wd.Scaler.fit(table, kind=kind, sample=sample, seed=3)
    assert result.scalers == {kind: expected}
    assert wd.Prepared.read(tmp_path / "out").scalers[kind] == expected


def test_a_training_range_without_rows(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 1)
    with pytest.raises(ValueError, match="no row has a time in train="):
        wd.prepare(
            tmp_path / "in", tmp_path / "out", **KEYS, scaler="minmax", train=("2030-01-01", None)
        )


@pytest.mark.parametrize(
    ("train", "error"),
    [("x", TypeError), (("x", None), ValueError), ((None, "2024-01-01T00:00+2"), ValueError)],
)
def test_wrong_training_ranges(tmp_path: Path, train: Any, error: type[Exception]) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 1)
    with pytest.raises(error, match="`train` must be"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, scaler="minmax", train=train)


def test_a_budget_that_is_too_small_names_what_works(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 2)
    with pytest.raises(
        MemoryError, match=r"one worker takes about \d+ MB, more than memory_budget"
    ):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, memory_budget="200 MB")
    wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, memory_budget="250MB", file_bytes="8MiB")


def test_one_row_and_empty_files(tmp_path: Path) -> None:
    rows = unsorted_rows().slice(0, 1)
    (tmp_path / "in").mkdir()
    write_file(tmp_path / "in" / "0.parquet", rows.slice(0, 0))
    write_file(tmp_path / "in" / "1.parquet", rows)
    (tmp_path / "in" / "2.csv").write_text("site,time,load,number\n")
    result = wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS)
    assert (result.rows, result.series, [source.rows for source in result.sources]) == (
        1,
        1,
        [0, 1, 0],
    )
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "in" / "1.parquet").unlink()
    with pytest.raises(ValueError, match="has no rows"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS)


@pytest.mark.parametrize("column", ["site", "time"])
def test_ids_and_times_must_not_be_null(tmp_path: Path, column: str) -> None:
    rows = unsorted_rows()
    place = rows.schema.get_field_index(column)
    values = rows[column].to_pylist()
    values[17] = None
    rows = rows.set_column(place, column, pa.array(values, rows.schema.field(place).type))
    write_files(tmp_path / "in", rows, 1)
    with pytest.raises(ValueError, match=rf"column '{column}' of '.*0.parquet' is null in row 17"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_mixed_schemas_are_errors_that_name_files_and_types(tmp_path: Path, on_error: Any) -> None:
    rows = unsorted_rows()
    write_files(tmp_path / "in", rows, 2)
    other = rows.set_column(2, "load", rows["number"].cast(pa.string()))
    write_file(tmp_path / "in" / "2.parquet", other)
    with pytest.raises(
        ValueError, match=r"'load' is double in '.*0.parquet' but string in '.*2.parq"
    ):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, on_error=on_error)
    write_file(tmp_path / "in" / "2.parquet", rows.drop_columns(["load"]))
    with pytest.raises(ValueError, match=r"2.parquet' has no column 'load'"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, on_error=on_error)
    (tmp_path / "in" / "2.parquet").unlink()
    (tmp_path / "in" / "2.csv").write_text("site,time,load,number\na,2024-01-01,x,1\n")
    with pytest.raises(
        ValueError, match=r"'(load|time)' is .* in '.*0.parquet' but .* in '.*2.csv'"
    ):
        wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, on_error=on_error)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"duplicates": "drop"},
            ValueError,
            "`duplicates` must be one of error, first, last, keep",
        ),
        ({"engine": "dask"}, ValueError, "`engine` must be one of local, ray"),
        ({"scaler": "max"}, ValueError, "`scaler` must be one of"),
        ({"file_bytes": 10}, ValueError, "`file_bytes` must be"),
        ({"file_bytes": "10 apples"}, ValueError, "`file_bytes` must be bytes as text"),
        ({"columns": "lode"}, KeyError, "did you mean 'load'"),
        ({"id_columns": "load"}, TypeError, "id column 'load'"),
        ({"timestamp_column": "load"}, TypeError, "timestamp column 'load'"),
        ({"threads": 0}, ValueError, "`threads` must be"),
        ({"train": (0, 1), "timestamp_column": None}, ValueError, "`train` must be None without"),
    ],
)
def test_wrong_options(tmp_path: Path, options: Any, error: type[Exception], words: str) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 1)
    with pytest.raises(error, match=words):
        wd.prepare(tmp_path / "in", tmp_path / "out", **{**KEYS, **options})


def test_progress_counts_the_bytes_of_both_passes(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(length=200), 9)
    calls: list[tuple[int, int]] = []
    options: Any = {**KEYS, "file_bytes": SMALL, "threads": 1}
    wd.prepare(
        tmp_path / "in", tmp_path / "out", **options, progress=lambda *call: calls.append(call)
    )
    ends = [place for place, (done, total) in enumerate(calls) if done == total]
    assert len(ends) == 2
    assert ends[1] == len(calls) - 1
    sizes = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert calls[0][1] == pytest.approx(sizes, rel=0.01)


def test_windows_of_a_streamed_table_are_those_in_memory(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 4)
    with pytest.raises(ValueError, match="windeck prepare"):
        wd.Table.read(tmp_path / "in", **KEYS, in_memory=False)
    wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, file_bytes=SMALL, row_group_bytes=1024)
    memory = wd.Table.read(tmp_path / "out", **KEYS)
    streamed = wd.Table.read(tmp_path / "out", **KEYS, in_memory=False, group_bytes=4096)
    batches = []
    for table in (memory, streamed.with_missing_counts()):
        windows = wd.Windows(table, context_length=7, prediction_length=2, target_columns="load")
        batches.append(windows.gather(np.arange(len(windows))))
    assert batches[0].keys() == batches[1].keys()
    for name, values in batches[0].items():
        np.testing.assert_array_equal(values, batches[1][name])


def test_sources_are_read_from_urls_and_other_file_systems(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    rows = unsorted_rows()
    write_files(tmp_path / "in", rows, 4, (".parquet", ".arrow"))
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "in"), "/windeck-prepare", recursive=True)
    try:
        result = wd.prepare(
            "memory://windeck-prepare", tmp_path / "out", **KEYS, file_bytes=SMALL, threads=2
        )
        assert all(one.path.startswith("memory://windeck-prep") for one in result.sources)
        assert_sorted_as_by_polars(tmp_path / "out", rows, ["site", "time"])
        wd.prepare(
            "windeck-prepare/*", tmp_path / "out2", **KEYS, file_bytes=SMALL, filesystem=memory
        )
        assert_sorted_as_by_polars(tmp_path / "out2", rows, ["site", "time"])
    finally:
        memory.rm("/windeck-prepare", recursive=True)
    with pytest.raises(ValueError, match=r"`dest` is the URL .*, expected scratch="):
        wd.prepare(tmp_path / "in", "memory://out", **KEYS)
