"""Streamed tables: the same series, report and values as in memory, and errors that name files."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import windeck as wd
from support.counted_files import Counted
from support.internals import plant
from support.object_servers import Website
from support.real_data import real_data
from support.streamed_tables import READ, arrow_table, assert_same, read_both, write_files
from windeck.table import StreamedColumn, StreamedTable

KINDS = ["parquet", "uncompressed", "zstd"]


def values(table: wd.Table, name: str) -> tuple[Any, ...]:
    """Return observed rows and the values of those of a column of any table."""
    column = table.column(name)
    if isinstance(column, StreamedColumn):
        column = column.read(slice(None))
    observed = column.observed()
    return observed.tolist(), column.values[observed].tolist(), column.dtype, column.categories


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part_rows", [1, 7, 1000])
def test_series_report_and_values_are_those_in_memory(
    tmp_path: Path, kind: str, part_rows: int
) -> None:
    data = arrow_table([40, 1, 90, 17])
    paths = write_files(data, tmp_path, [0, 40, 41, 100], part_rows, kind)
    memory, streamed = read_both(paths)
    assert streamed.offsets.tolist() == memory.offsets.tolist()
    assert streamed.series_names == memory.series_names
    assert streamed.step == memory.step
    for name in ("backward", "duplicates", "irregular", "breaks", "steps"):
        assert getattr(streamed.report, name).tolist() == getattr(memory.report, name).tolist()
    assert streamed.timestamps[:].tolist() == memory.timestamps.tolist()  # type: ignore[union-attr]
    for name in memory.column_names:
        assert values(streamed, name) == values(memory, name)
        assert streamed.column(name).missing == memory.column(name).missing
    few = streamed.column("load").observed(np.array([147, 3, 3, -1]))
    assert few.tolist() == memory.column("load").observed(np.array([147, 3, 3, -1])).tolist()
    steps = slice(2, 140, 5)
    assert streamed.column("count").values[steps].tolist() == memory["count"][steps].tolist()


def test_options_of_reading(tmp_path: Path) -> None:
    data = arrow_table([40, 30, 50])
    paths = write_files(data, tmp_path, [45], 9, "parquet")
    for options in (
        {"rows": (35, 101)},
        {"rows": (7, None)},
        {"dtype": "float32", "columns": ["load", "wind"], "categories": ()},
        {"categories": {"kind": ("z", "y", "x", "w")}},
        {"id_columns": ["id", "area"]},
        {"id_columns": "area", "categories": True},
        {"id_columns": None, "timestamp_column": None, "columns": ["kind", "flag", "hour"]},
    ):
        memory, streamed = read_both(paths, **options)
        assert streamed.offsets.tolist() == memory.offsets.tolist()
        assert streamed.series_names == memory.series_names
        assert streamed.column_names == memory.column_names
        for name in memory.column_names:
            assert values(streamed, name) == values(memory, name)
        for one, other in zip(
            streamed.explain().splitlines()[:-2], memory.explain().splitlines(), strict=True
        ):
            if "rows, streamed" not in one:
                assert one == other


def test_categories_follow_first_appearance_over_all_files(tmp_path: Path) -> None:
    parts = [["b", "a"], ["c", "a"], [None, "d"]]
    for number, words in enumerate(parts):
        column = pa.array(words, pa.string()).dictionary_encode()
        parquet.write_table(pa.table({"kind": column}), tmp_path / f"{number}.parquet")
    table = wd.Table.read(tmp_path, in_memory=False)
    assert table.column("kind").categories == ("b", "a", "c", "d")
    assert values(table, "kind")[:2] == ([True] * 4 + [False, True], [0, 1, 2, 1, 3])


def test_blocks_are_merged_and_cut_towards_a_target(tmp_path: Path) -> None:
    data = pa.table({"x": np.arange(1000.0)})
    for kind, part_rows, group_bytes, largest in (
        ("uncompressed", 1000, 32 * 80, 10),  # 80 bytes are 10 rows: the batch is cut
        ("uncompressed", 3, 32 * 80, 9),  # ... and merged
        ("parquet", 100, 32 * 80, 100),  # small row groups are never cut
        ("parquet", 3, 32 * 80, 9),
        ("lz4", 100, 32 * 80, 100),  # nor compressed batches
    ):
        paths = write_files(data, tmp_path, [500], part_rows, kind)
        table = wd.Table.read(paths, in_memory=False, group_bytes=group_bytes)
        assert isinstance(table, StreamedTable)
        sizes = np.diff(table.block_offsets)
        assert sizes.sum() == 1000
        assert sizes.max() == largest
        assert (sizes > largest // 2).mean() > 0.8


class TestLargeRowGroups:
    """Row groups larger than a group of blocks are read whole, each of them a group."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Return a file of three row groups, of 5 MB together as a table of two columns."""
        random = np.random.default_rng(0)
        rows = 320_000
        data = pa.table(
            {
                "id": np.repeat(np.arange(10), rows // 10),
                "time": np.arange(rows).astype("M8[s]"),
                "x": random.normal(size=rows),
                "y": random.normal(size=rows),
            }
        )
        path = tmp_path / "a.parquet"
        options: dict[str, Any] = {"use_dictionary": ["id"], "compression": "zstd"}
        parquet.write_table(data, path, row_group_size=120_000, data_page_size=1 << 13, **options)
        return path

    def read(self, path: Path | str, **options: Any) -> StreamedTable:
        options = {"id_columns": "id", "timestamp_column": "time"} | options
        table = wd.Table.read(path, in_memory=False, **options)
        assert isinstance(table, StreamedTable)
        return table

    def test_batches_are_those_in_memory_and_each_row_group_is_read_once(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = self.read(path, group_bytes=1 << 18)
        assert table.block_offsets.tolist() == [0, 120_000, 240_000, 320_000]
        options: dict[str, Any] = {"context_length": 30, "prediction_length": 2, "stride": 7}
        windows = wd.Windows(table, **options)
        memory = wd.Table.read(path, id_columns="id", timestamp_column="time")
        expected = wd.Windows(memory, **options)
        loader = wd.Loader(windows, batch_size=256, shuffle=True, seed=3, epochs=1)
        told = loader.explain_io().bytes_read[0]
        counted = Counted(monkeypatch)
        other = wd.Loader(expected, batch_size=256, order=windows.default_order, seed=3, epochs=1)
        for one, batch in zip(loader, other, strict=True):
            assert (one["past_target"] == batch["past_target"]).all()
            assert (one["start"] == batch["start"]).all()
        # Groups of the next epoch are read ahead, one of a row group of 3 MB.
        assert 0.95 * told < counted.bytes < 1.05 * told + (3 << 20)
        assert told < 1.1 * path.stat().st_size
        assert table.groups.reads <= 4

    def test_states_do_not_depend_on_pages(self, path: Path, tmp_path: Path) -> None:
        """Only on the contents of the file and on `group_bytes`."""
        small, large = (self.read(path, group_bytes=size) for size in (1 << 18, 1 << 25))
        assert small.fingerprint == large.fingerprint | {"group_bytes": 1 << 18}
        assert large.num_blocks == 3
        kept = [
            self.read(path, group_bytes=size, cache_dir=tmp_path / "cache")
            for size in (1 << 18, 1 << 25, 1 << 18, 1 << 25)
        ]
        assert [one.fingerprint for one in kept] == 2 * [small.fingerprint, large.fingerprint]
        again = pickle.loads(pickle.dumps(small))
        assert again.fingerprint == small.fingerprint
        np.testing.assert_array_equal(again.reader.part_offsets, small.reader.part_offsets)
        some = self.read(path, group_bytes=1 << 18, rows=(1000, 250_000))
        memory = wd.Table.read(path, rows=(1000, 250_000), columns=["y"])
        np.testing.assert_array_equal(some.reader.column("y", slice(None)).values, memory["y"])

    @pytest.mark.parametrize("kind", ["row groups", "one page", "zstd"])
    def test_what_does_not_fit_is_refused_with_the_cure(
        self, path: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before anything large is read; with the budget that is named it works."""
        data, other = parquet.read_table(path).combine_chunks(), tmp_path / "other"
        part = "record batch" if kind == "zstd" else "row group"
        if kind == "row groups":
            parquet.write_table(data, other, row_group_size=len(data))
        elif kind == "one page":
            whole: dict[str, Any] = {"data_page_size": 1 << 30}
            if "max_rows_per_page" in signature(parquet.write_table).parameters:
                whole["max_rows_per_page"] = 1 << 30  # earlier versions of pyarrow have no limit
            parquet.write_table(data, other, row_group_size=len(data), **whole)
        else:
            feather.write_feather(data, other, compression="zstd", chunksize=len(data))
        counted = Counted(monkeypatch)
        named = rf"need memory_budget=\d+ .*; {part} 0 of '.*other' has 320,000 rows, .*`windeck p"
        with pytest.raises(MemoryError, match=named) as got:
            wd.Windows(self.read(other, memory_budget=3 << 20), context_length=32)
        assert counted.bytes < 0.5 * other.stat().st_size  # ids and time
        if kind == "zstd":  # a batch is read beside the groups
            most = int(str(got.value).split("of which up to ")[1].split()[0].replace(",", ""))
            for share, fits in ((0.9, True), (1.1, False)):
                few = tmp_path / "few"
                feather.write_feather(data, few, compression="zstd", chunksize=int(share * most))
                small = self.read(few, memory_budget=3 << 20, group_bytes=1)
                if fits:
                    wd.Windows(small, context_length=32)
                else:
                    with pytest.raises(MemoryError, match="record batch 0 of"):
                        wd.Windows(small, context_length=32)
        least = int(str(got.value).split("memory_budget=")[1].split()[0])
        table = self.read(other, memory_budget=least)
        windows = wd.Windows(table, context_length=32)
        memory = wd.Table.read(path, id_columns="id", timestamp_column="time")
        expected = wd.Windows(memory, context_length=32)
        numbers = [5, 300_000, 70_000]
        assert_same_values(windows.gather(numbers), expected.gather(numbers))

    def test_a_budget_of_remote_files_counts_the_row_group_that_is_fetched(
        self, path: Path, tmp_path: Path, web: Website, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unless it is small, or read from a cache on the disk."""
        web.objects["a.parquet"] = path.read_bytes()
        url, columns = f"{web.url}/a.parquet", ("x", "y")
        x, y = (np.array(self.read(path).reader.files[0].file.stored_bytes(c)) for c in columns)
        stored = max(x + y)
        for limit, read in ((stored, 0), (stored - 1, stored)):
            plant(monkeypatch, "row_reader.READING_BYTES", limit)
            assert self.read(url).reader.largest_read(columns) == read
            assert self.read(path).reader.largest_read(columns) == 0
            assert self.read(url, cache_dir=tmp_path).reader.largest_read(columns) == 0


@pytest.mark.parametrize("blocks", [1, 3, 7, 8, 20])
@pytest.mark.parametrize("in_group", [1, 3, 7, 8, 20])
def test_explain_warns_if_few_blocks_make_a_group(
    tmp_path: Path, blocks: int, in_group: int
) -> None:
    data = pa.table({"x": np.arange(100.0 * blocks)})
    (path,) = write_files(data, tmp_path, [], 100, "parquet")
    # A bit of each value says whether it is missing.
    table = wd.Table.read(path, in_memory=False, group_bytes=in_group * 100 * 65 // 8 + 1)
    windows = wd.Windows(table, context_length=5)
    expected = f"the shuffle is coarse: a group has {in_group} of {blocks} blocks, fewer than 8, "
    coarse = in_group < min(8, blocks)
    for text in (str(windows.explain()), table.explain()):
        assert (expected in text) == coarse
        assert ("coarse" in text) == coarse
        assert ("`windeck prepare`" in text) == coarse


def assert_same_values(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found["past_target"], expected["past_target"])


def test_fingerprint_depends_on_contents_that_metadata_shows(tmp_path: Path) -> None:
    data = arrow_table([40, 30])
    paths = write_files(data, tmp_path, [20], 9, "parquet")
    table = read_both(paths)[1]
    moved = tmp_path / "moved"
    moved.mkdir()
    copies = [moved / f"other{path.name}" for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    assert read_both(copies)[1].fingerprint == table.fingerprint
    assert pickle.loads(pickle.dumps(table)).fingerprint == table.fingerprint
    assert read_both(paths, group_bytes=99)[1].fingerprint != table.fingerprint
    other = data.set_column(3, "wind", pa.array(np.arange(70, dtype=np.float32)))
    changed = write_files(other, moved, [20], 9, "parquet")
    differing = {
        field
        for field, value in read_both(changed)[1].fingerprint.items()
        if value != table.fingerprint[field]
    }
    assert differing == {"files"}
    # A state of a table in memory does not belong to a streamed one.
    memory = read_both(paths)[0]
    assert memory.fingerprint.keys() != table.fingerprint.keys()


def test_progress_counts_files_and_parts(tmp_path: Path) -> None:
    paths = write_files(arrow_table([40]), tmp_path, [20], 10, "parquet")
    seen: list[tuple[int, int]] = []
    wd.Table.read(
        paths, in_memory=False, progress=lambda done, total: seen.append((done, total)), **READ
    )
    assert seen == [(1, 2), (2, 2), (1, 4), (2, 4), (3, 4), (4, 4)]


class TestRefused:
    """Options, methods and files that a streamed table refuses, each with a sentence."""

    def read(self, paths: Any, **options: Any) -> wd.Table:
        return wd.Table.read(paths, in_memory=False, **READ | options)

    def test_rows_that_are_not_sorted(self, tmp_path: Path) -> None:
        data = arrow_table([5, 6, 7])
        shuffled = data.take([*range(8), 9, 8, *range(10, 18)])
        parquet.write_table(shuffled, tmp_path / "late.parquet", row_group_size=4)
        with pytest.raises(
            ValueError, match=r"series 's1' goes back in row 9; .* `windeck prepare SRC DEST`"
        ):
            self.read(tmp_path / "late.parquet")
        twice = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
        for path in twice:
            parquet.write_table(data, path)
        with pytest.raises(
            ValueError,
            match=r"series 's0' is not contiguous: .* row 0 .* row 18; .* `windeck prepare",
        ):
            self.read(twice)
        with pytest.raises(ValueError, match="the time goes back in row 18"):
            wd.Table.read(twice, in_memory=False, columns=["load"], timestamp_column="time")

    def test_missing_ids_and_times(self, tmp_path: Path) -> None:
        for column, nulls in (("id", pa.array(["a", "a", None])), ("time", pa.array([1, 2, None]))):
            data = {"id": ["a"] * 3, "time": [1, 2, 3], "x": [1.0, 2.0, 3.0], column: nulls}
            feather.write_feather(pa.table(data), tmp_path / "a.arrow")
            with pytest.raises(ValueError, match=rf"{column}' is (null|missing) in row 2"):
                wd.Table.read(
                    [tmp_path / "a.arrow"],
                    in_memory=False,
                    id_columns="id",
                    timestamp_column="time",
                )

    def test_options_and_methods(self, tmp_path: Path) -> None:
        (path,) = write_files(arrow_table([30]), tmp_path, [], 10, "parquet")
        with pytest.raises(ValueError, match=r"sort=True moves rows.*`windeck prepare"):
            self.read(path, sort=True)
        with pytest.raises(ValueError, match="`group_bytes` is of streamed tables"):
            wd.Table.read(path, group_bytes=100, **READ)
        with pytest.raises(ValueError, match="`group_bytes` must be at least 1, got 0"):
            self.read(path, group_bytes=0)
        with pytest.raises(ValueError, match="`rows` must have a row"):
            self.read(path, rows=(3, 3))
        table = self.read(path)
        calls: list[Callable[[], Any]] = [
            lambda: table["load"],
            lambda: table.with_columns({"a": np.zeros(30)}),
            lambda: table.with_calendar("hour"),
            table.to_torch,
        ]
        for call in calls:
            with pytest.raises(TypeError, match="is not supported for a streamed table"):
                call()
        with pytest.raises(KeyError, match="no column 'laod'; did you mean 'load'"):
            table["laod"]

    def test_other_files(self, tmp_path: Path) -> None:
        (path,) = write_files(arrow_table([30]), tmp_path, [], 10, "parquet")
        (tmp_path / "a.csv").write_text("id,time,load\na,1,2\n")
        (tmp_path / "empty.parquet").write_bytes(b"")
        stream = tmp_path / "stream.arrow"
        with pa.ipc.new_stream(str(stream), pa.schema({"x": pa.int64()})):
            pass
        for name, message in (
            ("a.csv", "expected Parquet or Arrow IPC"),
            ("empty.parquet", "is empty"),
            ("stream.arrow", "is an Arrow IPC stream"),
        ):
            with pytest.raises(ValueError, match=f"{name}.*{message}"):
                self.read([path, tmp_path / name])
        with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
            self.read([path, tmp_path / "none.parquet"])

    def test_mixed_schemas(self, tmp_path: Path) -> None:
        data = arrow_table([30])
        first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
        parquet.write_table(data, first)
        for changed, message in (
            (data.drop_columns("wind"), r"b.parquet' has no column 'wind', which .*a.parquet"),
            (data.append_column("more", data["wind"]), "has a column 'more'"),
            (data.set_column(3, "wind", data["count"]), "'wind' is float in .*a.parquet.* int64"),
        ):
            parquet.write_table(changed, second)
            with pytest.raises(ValueError, match=message):
                self.read([first, second])

    def test_large_samples_of_scalers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (path,) = write_files(arrow_table([90]), tmp_path, [], 10, "parquet")
        table = self.read(path)
        plant(monkeypatch, "scaler_fitting.SAMPLE_BYTES", 64 * 50)
        with pytest.raises(ValueError, match="`sample` must be at most 50 rows of this streamed"):
            wd.Scaler.fit(table, sample=None)
        wd.Scaler.fit(table, sample=50)


class TestChanges:
    """Files that change or are damaged during a run: an error that names the file."""

    @pytest.fixture
    def paths(self, tmp_path: Path) -> list[Path]:
        return write_files(arrow_table([60, 60]), tmp_path, [50], 10, "parquet")

    def expect(self, paths: list[Path], change: Callable[[Path], Any], message: str) -> None:
        table = wd.Table.read(paths, in_memory=False, group_bytes=50, **READ)
        windows = wd.Windows(table, context_length=4, target_columns=["load"])
        expected = wd.Windows(
            wd.Table.read(paths, **READ).with_missing_counts(),
            context_length=4,
            target_columns=["load"],
        )
        loader = wd.Loader(windows, batch_size=3)
        iterator = iter(loader)
        batches = [next(iterator), next(iterator)]
        change(paths[1])
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            batches.extend(iterator)
        for number, batch in enumerate(batches):
            indices = np.arange(3 * number, 3 * number + 3)
            assert_same(batch, expected.gather(indices))

    def test_a_deleted_file(self, paths: list[Path]) -> None:
        self.expect(paths, Path.unlink, r"part1\.parquet")

    def test_a_truncated_file(self, paths: list[Path]) -> None:
        def truncate(path: Path) -> None:
            os.truncate(path, path.stat().st_size // 2)

        self.expect(paths, truncate, r"part1\.parquet' changed while the table is in use")

    def test_a_replaced_file(self, paths: list[Path]) -> None:
        def replace(path: Path) -> None:
            content, status = path.read_bytes(), path.stat()
            path.unlink()
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

        self.expect(paths, replace, r"part1\.parquet' changed while the table is in use")

    @pytest.mark.parametrize("checksums", [True, False])
    def test_a_damaged_page(self, tmp_path: Path, checksums: bool) -> None:
        path = tmp_path / "a.parquet"
        data = arrow_table([400])
        parquet.write_table(
            data, path, row_group_size=100, write_page_checksum=checksums, use_dictionary=False
        )
        chunk = parquet.read_metadata(path).row_group(3).column(2)
        table = wd.Table.read(path, in_memory=False, group_bytes=500, **READ)
        assert isinstance(table, StreamedTable)
        status, content = path.stat(), bytearray(path.read_bytes())
        place = chunk.data_page_offset + (chunk.total_compressed_size // 2 if checksums else 0)
        content[place : place + 8] = bytes(8 * [0xFF])
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        windows = wd.Windows(table, context_length=4, target_columns=["load"])
        windows.gather([0])
        for _ in range(2):
            with pytest.raises(ValueError, match=r"a\.parquet' cannot be read as Parquet"):
                windows.gather([len(windows) - 1])


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        ("parquet", 40_000_000),
        # Row groups of 40 MB: two of them, and a sixteenth for first rows.
        pytest.param("large", 90_000_000, marks=pytest.mark.slow),
        ("uncompressed", 40_000_000),
    ],
)
def test_resident_memory_stays_within_the_budget(tmp_path: Path, kind: str, budget: int) -> None:
    """A table of 240 MB in a process that may hold a part of it."""
    random = np.random.default_rng(0)
    rows = 500_000
    for number in range(6):
        data = pa.table({f"x{c}": random.normal(size=rows) for c in range(10)})
        path = tmp_path / f"{number}.{kind}"
        if kind != "uncompressed":
            part = rows if kind == "large" else 20_000
            parquet.write_table(
                data, path, row_group_size=part, use_dictionary=False, compression="none"
            )
        else:
            feather.write_feather(data, path, compression=kind, chunksize=20_000)
    program = """
        import sys
        import numpy as np, torch
        import windeck as wd

        def resident():
            with open("/proc/self/status") as status:
                return next(int(l.split()[1]) for l in status if l.startswith("VmHWM")) * 1024

        def run(rows):
            table = wd.Table.read(
                sys.argv[2:], in_memory=False, memory_budget=int(sys.argv[1]),
                group_bytes=16_000_000, rows=(0, rows),
            )
            windows = wd.Windows(table, context_length=24, max_missing=0.5)
            windows = windows.with_scaler(wd.Scaler.fit(windows))
            train, validation, _ = windows.split(validation=0.1, test=0)
            for part, batches in ((train, 6000), (validation, 10**9)):
                for number, batch in enumerate(wd.Loader(part, batch_size=32, shuffle=True)):
                    if number == batches:
                        break
            return table.groups.reads

        run(10_000)  # pages of libraries
        before = resident()
        print(run(3_000_000), before, resident())
    """
    found = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(program), str(budget)),
            *map(str, sorted(tmp_path.iterdir())),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    reads, before, peak = map(int, found.stdout.split())
    assert reads > (2 if kind == "large" else 4)
    assert peak - before <= budget + (64 << 20), f"{(peak - before) / 1e6:.0f} MB"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nab", {"id_columns": "series", "timestamp_column": "timestamp"}),
        ("beijing_pm25", {"timestamp_column": "timestamp", "categories": ["cbwd"]}),
    ],
)
def test_real_data_in_several_files(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    source = real_data(f"{name}.parquet")
    table = wd.Table.read(source, **options)
    data = parquet.read_table(source)
    if "id_columns" in options:  # sort by series and time, as `windeck prepare` does
        data = data.set_column(0, "series", data["series"].cast(pa.string()))
        data = data.sort_by([("series", "ascending"), ("timestamp", "ascending")])
    edges = np.linspace(0, len(data), 5).astype(int).tolist()
    paths = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        paths.append(tmp_path / f"{number}.parquet")
        parquet.write_table(data.slice(start, stop - start), paths[-1], row_group_size=5000)
    memory = wd.Table.read(paths, **options)
    streamed = wd.Table.read(paths, in_memory=False, group_bytes=400_000, **options)
    assert len(streamed) == len(table)
    target = [memory.column_names[0]]
    windows = {"context_length": 48, "prediction_length": 24, "target_columns": target}
    scaler = wd.Scaler.fit(memory, columns=target)
    assert wd.Scaler.fit(streamed, columns=target) == scaler
    one = wd.Windows(streamed.with_missing_counts(), scaler=scaler, **windows)  # type: ignore[arg-type]
    other = wd.Windows(memory, scaler=scaler, **windows)  # type: ignore[arg-type]
    loaders = [
        wd.Loader(one, batch_size=512, shuffle=True, seed=5),
        wd.Loader(other, batch_size=512, order=one.default_order, seed=5),
    ]
    for found, expected in itertools.islice(zip(*loaders, strict=True), 40):
        assert_same(found, expected)
