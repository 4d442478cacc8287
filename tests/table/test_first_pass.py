"""The first pass finds the series, steps and breaks that a plain reading of all rows finds."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import windeck as wd
from support.internals import original, plant
from support.object_servers import Website
from support.streamed_tables import READ, arrow_table, assert_same, write_files

series = st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(steps=series, part_rows=st.integers(1, 20), numbers=st.booleans())
def test_series_and_steps(steps: list[list[int]], part_rows: int, numbers: bool) -> None:
    """The model counts every step of a series."""
    ids: list[int] = []
    times: list[int] = []
    for number, own in enumerate(steps):
        ids += [7 * number] * (len(own) + 1)
        times += np.cumsum([3 - number, *own]).tolist()
    named = pa.array(ids) if numbers else pa.array(map(str, ids)).dictionary_encode()
    data = pa.table({"id": named, "time": times, "x": np.zeros(len(ids))})
    with tempfile.TemporaryDirectory() as folder:
        parquet.write_table(data, Path(folder) / "a.parquet", row_group_size=part_rows)
        table = wd.Table.read(folder, in_memory=False, id_columns="id", timestamp_column="time")
    assert table.series_names == tuple(dict.fromkeys(ids if numbers else map(str, ids)))
    assert np.diff(table.offsets).tolist() == [len(own) + 1 for own in steps]
    for number, own in enumerate(steps):
        counts = Counter(step for step in own if step > 0)
        usual = min(counts, key=lambda step: (-counts[step], step)) if counts else 0
        report = table.report
        assert report.steps[number] == usual
        assert report.duplicates[number] == own.count(0)
        assert report.irregular[number] == sum(step != usual for step in own)
        assert report.breaks[number] == sum(step > usual > 0 for step in own)


def test_many_different_steps_decide_the_usual_one_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "first_pass.COUNTED_STEPS", 10)
    steps = [1, 1, *range(1, 40), 2, 2, 2, 2, 0]
    data = pa.table({"time": np.cumsum([0, *steps]), "x": np.zeros(len(steps) + 1)})
    parquet.write_table(data, tmp_path / "a.parquet", row_group_size=4)
    report = wd.Table.read(tmp_path / "a.parquet", in_memory=False, timestamp_column="time").report
    assert report.steps.tolist() == [1]
    assert report.irregular.tolist() == [sum(step != 1 for step in steps)]
    assert report.breaks.tolist() == [sum(step > 1 for step in steps)]
    assert report.duplicates.tolist() == [1]


def everything(table: wd.Table) -> tuple[Any, ...]:
    """Return all that the first pass finds, and the fingerprint."""
    report = [
        getattr(table.report, name) for name in ("duplicates", "irregular", "breaks", "steps")
    ]
    words = [table.column(name).categories for name in table.column_names]
    return (
        table.offsets.tolist(),
        table.series_names,
        [counts.tolist() for counts in report],
        (table.report.unit, table.step, words, table.fingerprint),
    )


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each read of the files' rows."""
    found: list[tuple[str, ...]] = []
    for name in ("blocks.RangedParquetFile.batches", "blocks.RangedIpcFile.batches"):
        batches = original(name)

        def counted(self: Any, names: Any, *rest: Any, own: Any = batches, **options: Any) -> Any:
            found.append(tuple(names))
            return own(self, names, *rest, **options)

        plant(monkeypatch, name, counted)
    return found


@pytest.mark.parametrize("kind", ["parquet", "uncompressed", "zstd"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"id_columns": ["id", "area"]},
        {"id_columns": "area", "categories": ["kind", "id"]},
        {"id_columns": None, "categories": ["id", "kind"]},
        {"id_columns": None, "timestamp_column": None, "columns": "kind"},
        {"timestamp_column": None, "rows": (3, 77), "columns": ["load", "kind"]},
        {"timestamp_column": "hours", "columns": "load", "categories": ()},
    ],
)
def test_unchanged_files_are_not_read_again(
    tmp_path: Path, scanned: list[tuple[str, ...]], kind: str, options: dict[str, Any]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    data = arrow_table([40, 3, 30, 17])
    data = data.append_column("hours", pa.array(np.arange(len(data)) // 2))
    paths = write_files(data, folder, [41, 60], 9, kind)
    options = {"in_memory": False, "group_bytes": 4096, **READ, **options}
    plain = wd.Table.read(paths, **options)
    scanned.clear()
    first = wd.Table.read(paths, **options, cache_dir=tmp_path / "cache")
    assert scanned
    scanned.clear()
    # From anywhere: of paths only the names below the folder of all files count.
    moved = folder.rename(tmp_path / "moved")
    paths = [moved / path.name for path in paths]
    second = wd.Table.read(paths, **options, cache_dir=tmp_path / "cache")
    assert scanned == []
    assert everything(first) == everything(second) == everything(plain)
    windows = [
        wd.Windows(table, context_length=2, target_columns=table.column_names[0], max_gap=max_gap)
        for max_gap in [None if options["timestamp_column"] is None else second.step]
        for table in (second, wd.Table.read(paths, **options))
    ]
    assert_same(*(one.gather(np.arange(len(one))) for one in windows))


def test_ids_of_all_integers_and_texts_are_kept(tmp_path: Path) -> None:
    for number, ids in enumerate(
        [
            pa.array([2**64 - 1, 2**64 - 1, 0, 5], pa.uint64()),
            pa.array([-(2**63), 0, 7, 7], pa.int64()),
            pa.array(["", "\x00", "a\n", "é" * 99]),
            pa.array(["b", "a", "a", "c"]).dictionary_encode(),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        table = pa.table({"id": ids, "other": ids, "x": np.arange(4.0)})
        parquet.write_table(table, folder / "a.parquet")
        for columns in ("id", ["id", "other"]):
            read = partial(wd.Table.read, folder, in_memory=False, id_columns=columns, columns="x")
            names = read().series_names
            for _ in range(2):
                again = read(cache_dir=tmp_path / "cache").series_names
                assert again == names
                assert list(map(type, again)) == list(map(type, names))


def test_a_changed_file_or_option_is_read_again(
    tmp_path: Path, scanned: list[tuple[str, ...]]
) -> None:
    paths = write_files(arrow_table([40, 30, 17]), tmp_path, [41, 60], 9, "parquet")

    def check(reads: bool, **changed: Any) -> None:
        options = {"in_memory": False, **READ, **changed}
        expected = everything(wd.Table.read(paths, **options))
        scanned.clear()
        found = wd.Table.read(paths, **options, cache_dir=tmp_path / "cache")
        assert everything(found) == expected
        assert bool(scanned) == reads

    check(True)
    check(False)
    check(False, columns=["load", "kind"])  # The same ids, times and categories.
    check(True, rows=(0, 86))
    check(True, id_columns=["id", "area"])
    check(True, categories={"kind": ("z", "y", "x")})
    os.utime(paths[1], ns=(0, 5_000_000_000))
    check(True)
    check(False)
    paths[1].rename(tmp_path / "part1a.parquet")
    paths[1] = tmp_path / "part1a.parquet"
    check(True)
    # Other series, in a file of as many bytes with the same time of change.
    before = paths[2].stat()
    ids = pa.table({"id": ["t1", "t2"], "time": np.arange(2).astype("M8[s]"), "load": [0.0, 1.0]})
    parquet.write_table(ids, tmp_path / "one.parquet")
    swapped = ids.set_column(0, "id", pa.array(["t1", "t3"]))
    parquet.write_table(swapped, tmp_path / "other.parquet")
    assert (tmp_path / "one.parquet").stat().st_size == (tmp_path / "other.parquet").stat().st_size
    paths.pop()
    for name in ("one.parquet", "other.parquet"):
        target = tmp_path / "last.parquet"
        target.write_bytes((tmp_path / name).read_bytes())
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        paths[2:] = [target]
        check(True, columns="load", categories=())


def test_damage_anywhere_is_noticed(
    tmp_path: Path, scanned: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # It takes most of the time.
    columns = {"id": ["a", "a", "b"], "time": [1, 3, 2], "x": [0.0, 1.0, 2.0]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    options: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time", "in_memory": False}
    read = partial(wd.Table.read, tmp_path / "a.parquet", **options, cache_dir=tmp_path / "cache")
    expected = everything(read())
    (kept,) = (tmp_path / "cache").glob("*.object")
    whole = kept.read_bytes()
    places = {*range(100), *range(0, len(whole), 3), *range(len(whole) - 100, len(whole))}
    flipped = [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in places
    ]
    cut = [whole[:size] for size in range(0, len(whole), 19)]
    for damaged in (*flipped, *cut, whole + b"\0", bytes(len(whole)), whole * 2):
        kept.write_bytes(damaged)
        scanned.clear()
        assert everything(read()) == expected
        assert scanned
        assert kept.read_bytes() == whole
    scanned.clear()
    assert everything(read()) == expected
    assert not scanned


@pytest.mark.parametrize(
    "change",
    [
        {"first": [0, 3]},
        {"first": [1, 2]},
        {"first": [0, 0]},
        {"first": [0, -2]},
        {"first": [0, None]},
        {"first": ["0", "x"]},
        {"id0": ["a", "a"]},
        {"id0": None},
        {"rows": 2},
        {"rows": 4},
        {"rows": "3"},
        {"times": None},
        {"span": [1]},
        {"span": ["x", 3]},
        {"categories": {}},
        {"categories": None},
    ],
)
def test_contents_of_another_form_are_not_used(
    tmp_path: Path,
    scanned: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    """Files with the right checksum, as of another program."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # It takes most of the time.
    data = pa.table({"id": ["a", "a", "b"], "time": [1, 3, 2], "x": ["u", "v", "u"]})
    parquet.write_table(data, tmp_path / "a.parquet")
    options: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time", "in_memory": False}
    options |= {"categories": "x", "cache_dir": tmp_path / "cache"}
    read = partial(wd.Table.read, tmp_path / "a.parquet", **options)
    expected = everything(read())
    (kept,) = (tmp_path / "cache").glob("*.object")
    trailer = len(sealed(b""))
    whole = kept.read_bytes()[:-trailer]

    def is_used(contents: bytes) -> bool:
        kept.write_bytes(sealed(contents))
        scanned.clear()
        assert everything(read()) == expected
        return not scanned

    assert is_used(whole)
    stored = pa.ipc.open_file(whole).read_all()
    other = json.loads(stored.schema.metadata[b"windeck first pass 1"])
    for name, values in change.items():
        if name in other:
            other[name] = values
        elif values is None:
            stored = stored.drop_columns([name])
        else:
            place = stored.schema.get_field_index(name)
            stored = stored.set_column(place, name, pa.array(values))
    stored = stored.replace_schema_metadata({"windeck first pass 1": json.dumps(other)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(stored)
    assert not is_used(sink.getvalue().to_pybytes())
    assert not is_used(b"")
    assert not is_used(whole[:-9])


def sealed(contents: bytes) -> bytes:
    """Return a file of the cache: contents with their size and checksum."""
    checksum = hashlib.blake2b(contents, digest_size=16).digest()
    return contents + b"wdcache1" + len(contents).to_bytes(8, "little") + checksum


def test_remote_files_are_told_apart_by_their_etags(
    web: Website, tmp_path: Path, scanned: list[tuple[str, ...]]
) -> None:
    """Objects of one size, time of change and, in all but the pages, one content."""
    contents = []
    for load in (1.0, 2.0):
        columns = {"id": ["a", "b", "b"], "load": [0.0, load, 3.0]}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.table(columns).schema) as writer:
            writer.write_table(pa.table(columns))
        contents.append(sink.getvalue().to_pybytes())
    assert len(contents[0]) == len(contents[1])
    web.objects["data/part0.arrow"] = contents[0]
    url = f"{web.url}/data/part0.arrow"
    options: dict[str, Any] = {"in_memory": False, "id_columns": "id", "cache_dir": tmp_path}
    table = wd.Table.read(url, **options)
    expected = everything(table)
    scanned.clear()
    assert everything(wd.Table.read(url, **options)) == expected
    assert scanned == []
    assert table.column("load").values[1:2].tolist() == [1.0]
    web.objects["data/part0.arrow"] = contents[1]
    with pytest.raises(ValueError, match=r"part0\.arrow' changed .* and ETag .*, expected"):
        table.column("load").values[1:2]
    scanned.clear()
    assert wd.Table.read(url, **options).column("load").values[1:2].tolist() == [2.0]
    assert ("id",) in scanned
