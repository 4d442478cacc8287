"""Metadata beside files decide which of them are data: in every reader, or an error says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

#: Rows that a reader finds: one of each file, its number.
Rows = list[int]


def put(root: Path, name: str, number: int | None = None, text: str | None = None) -> None:
    """Write a file of one row, its number, or a file of text."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_text(text)
        return
    table = pa.table(
        {
            "load": [float(number or 0)],
            "tokens": pa.array([[number, number]], pa.list_(pa.int32())),
        }
    )
    if path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as file:
            file.write_table(table)
    else:
        parquet.write_table(table, path)


def log(root: Path, version: int, *actions: dict[str, Any]) -> None:
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    put(root, f"_delta_log/{version:020}.json", text=lines)


def add(path: str, /, values: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": values or {}, "dataChange": True, **more}}


def remove(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, **more}}


PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def meta(*columns: str, **configuration: str) -> dict[str, Any]:
    return {"metaData": {"partitionColumns": list(columns), "configuration": configuration}}


def delta(root: Path) -> Rows:
    for number in range(5):
        put(root, f"part-{number}.parquet", number)
    log(root, 0, PROTOCOL, meta(), add("part-0.parquet"), add("part-1.parquet"))
    log(root, 1, add("part-2.parquet"), remove("part-0.parquet"))
    log(root, 2, add("part-0.parquet"), remove("part-2.parquet"), {"commitInfo": {}})
    put(root, "_delta_log/.00000000000000000001.json.crc", text="x")
    return [0, 1]


def delta_checkpointed(root: Path) -> Rows:
    delta(root)
    put(root, "_delta_log/00000000000000000002.checkpoint.parquet", 9)
    put(root, "_delta_log/_last_checkpoint", text='{"version":2}')
    return [0, 1]


def delta_partitioned(root: Path) -> Rows:
    put(root, "site=North Sea/a.parquet", 1)
    put(root, "site=North Sea/b.parquet", 2)
    put(root, "site=b/c.parquet", 3)
    north = {"site": "North Sea"}
    log(root, 0, PROTOCOL, meta("site"), add("site=North%20Sea/a.parquet", north))
    log(root, 1, add("site=b/c.parquet", {"site": "b"}))
    return [1, 3]


def delta_without_its_first_version(root: Path) -> str:
    delta_checkpointed(root)
    (root / "_delta_log/00000000000000000000.json").unlink()
    return "a Delta table with a log without its first version.*deltalake"


def delta_with_deleted_rows(root: Path) -> str:
    put(root, "a.parquet", 1)
    vector = {"storageType": "u", "pathOrInlineDv": "ab", "cardinality": 1}
    log(root, 0, {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}})
    log(root, 1, add("a.parquet"))
    log(root, 2, add("a.parquet", deletionVector=vector), remove("a.parquet"))
    return "a Delta table with deleted rows in 'a.parquet'.*deltalake"


def delta_with_mapped_columns(root: Path) -> str:
    put(root, "a.parquet", 1)
    log(root, 0, PROTOCOL, meta(**{"delta.columnMapping.mode": "name"}), add("a.parquet"))
    return "columns that are mapped by name.*deltalake"


def delta_of_a_later_reader(root: Path) -> str:
    put(root, "a.parquet", 1)
    log(root, 0, {"protocol": {"minReaderVersion": 3, "readerFeatures": ["later"]}})
    return "the features later.*deltalake"


def delta_that_lost_a_file(root: Path) -> str:
    delta(root)
    (root / "part-1.parquet").unlink()
    return "list 'part-1.parquet', which does not exist"


def delta_of_another_folder(root: Path) -> str:
    put(root, "a.parquet", 1)
    log(root, 0, PROTOCOL, meta(), add("s3://bucket/a.parquet"))
    return "a file in another folder"


def iceberg(root: Path) -> str:
    put(root, "data/00000-0.parquet", 1)
    put(root, "metadata/v2.metadata.json", text="{}")
    put(root, "metadata/snap-1.avro", text="x")
    return "an Iceberg table.*pyiceberg"


def hudi(root: Path) -> str:
    put(root, "a.parquet", 1)
    put(root, ".hoodie/hoodie.properties", text="x=1")
    return "a Hudi table"


def lance(root: Path) -> str:
    put(root, "_versions/1.manifest", text="x")
    put(root, "data/a.lance", text="x")
    return "a Lance dataset.*to_table"


def temporary(root: Path) -> Rows:
    put(root, "site=a/part-0.parquet", 1)
    put(root, "_temporary/0/task_1/part-7.parquet", 7)
    put(root, "site=a/_temporary/0/part-8.parquet", 8)
    put(root, "site=a/.hive-staging_1/part-9.parquet", 9)
    put(root, "site=a/.part-0.parquet.crc", text="crc!")
    put(root, "_SUCCESS", text="")
    return [1]


def spark(root: Path) -> Rows:
    put(root, "part-0-tid-1-c.parquet", 1)
    put(root, "part-0-tid-2-c.parquet", 2)
    put(root, "_started_1", text="")
    put(root, "_committed_1", text='{"added":["part-0-tid-1-c.parquet"],"removed":[]}')
    put(root, "_started_2", text="")
    change = {"added": ["part-0-tid-2-c.parquet"], "removed": ["part-0-tid-1-c.parquet"]}
    put(root, "_committed_2", text=json.dumps(change))
    return [2]


def spark_unfinished(root: Path) -> str:
    spark(root)
    put(root, "part-0-tid-3-c.parquet", 3)
    put(root, "_started_3", text="")
    return "the transaction 3, which '_started_3' began"


def saved(root: Path, **more: Any) -> Rows:
    """A dataset that `save_to_disk` wrote, with a cache and an older file beside it."""
    put(root, "data-00000-of-00002.arrow", 1)
    put(root, "data-00001-of-00002.arrow", 2)
    put(root, "data-00000-of-00001.arrow", 3)
    put(root, "cache-0123.arrow", 4)
    files = [{"filename": f"data-0000{n}-of-00002.arrow"} for n in range(2)]
    put(root, "state.json", text=json.dumps({"_data_files": files, "_split": "train", **more}))
    return [1, 2]


def saved_selection(root: Path) -> str:
    saved(root, _indices_data_files=[{"filename": "indices.arrow"}])
    put(root, "indices.arrow", 9)
    return r"names a file of indices.*flatten_indices\(\)"


def saved_selection_of_later_versions(root: Path) -> str:
    saved(root, _indices_files=[{"filename": "indices.arrow"}])
    return r"flatten_indices\(\)"


def saved_and_lost(root: Path) -> str:
    saved(root)
    (root / "data-00001-of-00002.arrow").unlink()
    return "lists 'data-00001-of-00002.arrow', which does not exist"


def saved_and_cut(root: Path) -> str:
    saved(root, _indices_files=[{"filename": "indices.arrow"}])
    text = (root / "state.json").read_text()
    put(root, "state.json", text=text[: len(text) // 2])
    return r"state\.json.* cannot be read as JSON"


def saved_and_nested(root: Path) -> str:
    saved(root)
    put(root, "state.json", text="[" * 200_000 + "]" * 200_000)
    return r"state\.json.* cannot be read as JSON"


def spark_cut(root: Path) -> str:
    spark(root)
    put(root, "_committed_2", text='{"added":["part-0-tid-2')
    return "_committed_.* cannot be read as JSON"


def not_saved(root: Path) -> Rows:
    put(root, "a.parquet", 1)
    put(root, "_versions/old.parquet", 2)
    put(root, "state.json", text='{"_indices": [1], "mine": true}')
    put(root, "metadata/notes.json", text="{}")
    return [1]


CASES: list[Callable[[Path], Rows | str]] = [
    *(delta, delta_checkpointed, delta_partitioned, delta_without_its_first_version),
    *(delta_with_deleted_rows, delta_with_mapped_columns, delta_of_a_later_reader),
    *(delta_that_lost_a_file, delta_of_another_folder, iceberg, hudi, lance, temporary),
    *(spark, spark_unfinished, saved, saved_selection, saved_selection_of_later_versions),
    *(saved_and_lost, saved_and_cut, saved_and_nested, spark_cut, not_saved),
]


def in_memory_copy(root: Path, name: str) -> Any:
    """Copy a folder to the file system in memory of fsspec, which is remote for windeck."""
    system = fsspec.filesystem("memory")
    system.put(str(root), f"/{name}", recursive=True)
    return f"memory://{name}"


def loads(table: Any) -> Rows:
    windows = wd.Windows(table, context_length=1, target_columns=["load"])
    values = windows.gather(np.arange(len(windows)))["past_target"]
    return sorted(values[:, 0, 0].astype(int).tolist())


def read(path: Any) -> Rows:
    return loads(wd.Table.read(path, columns=["load"]))


def read_streamed(path: Any) -> Rows:
    return loads(wd.Table.read(path, columns=["load"], in_memory=False, memory_budget=1e9))


def read_all_below(path: Any) -> Rows:
    return read(f"{path}/**/*.[ap][ra]r*")


def estimate(path: Any) -> Rows:
    return [0] * (wd.Table.estimate(path, columns=["load"]) // 8)


def documents(path: Any) -> Rows:
    found = wd.Documents(path)
    return sorted(int(found[number][0]) for number in range(len(found)))


def jagged(path: Any) -> Rows:
    table = wd.JaggedTable.read(path, lists=["tokens"], columns=[])
    return sorted(table.gather(np.arange(len(table)))["tokens"][::2].tolist())


READERS = (read, read_all_below, estimate, documents, jagged, read_streamed)


@pytest.mark.parametrize("place", ["local", "remote"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_reader(case: Callable[[Path], Rows | str], place: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    expected = case(root)
    where = str(root) if place == "local" else in_memory_copy(root, f"committed/{case.__name__}")
    streams = any(root.glob("*.arrow"))
    for reader in READERS:
        if reader is read_streamed and streams:
            continue  # Files of `save_to_disk` are streams, which are not read in parts.
        if reader is read_all_below and case is lance:
            continue  # No file of it matches.
        if isinstance(expected, str):
            with pytest.raises((ValueError, FileNotFoundError), match=expected):
                reader(where)
        elif reader is estimate:
            assert len(reader(where)) == len(expected)
        else:
            assert reader(where) == expected, reader.__name__


def test_prepare(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    rows = delta(tmp_path / "root")
    wd.prepare(tmp_path / "root", tmp_path / "prepared", columns=["load"])
    assert read(tmp_path / "prepared") == rows
    (tmp_path / "hudi").mkdir()
    hudi(tmp_path / "hudi")
    with pytest.raises(ValueError, match="Hudi"):
        wd.prepare(tmp_path / "hudi", tmp_path / "other", columns=["load"])


@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_partition_of_a_table(place: str, tmp_path: Path) -> None:
    """Metadata above a folder count too: it is a partition, or the folder of data."""
    delta_partitioned(tmp_path / "delta")
    (tmp_path / "iceberg").mkdir()
    iceberg(tmp_path / "iceberg")
    put(tmp_path, "iceberg/data/hour=1/site=a/1.parquet", 1)
    put(tmp_path, "iceberg/data/hour=1/2.parquet", 2)
    # A table in a folder that is called data.
    put(tmp_path, "data/site=a/1.parquet", 1)
    put(tmp_path, "data/site=a/2.parquet", 2)
    one = add("site=a/1.parquet", {"site": "a"})
    log(tmp_path / "data", 0, PROTOCOL, meta("site"), one)
    root = str(tmp_path) if place == "local" else in_memory_copy(tmp_path, "committed/parts")
    assert read(f"{root}/delta/site=North Sea") == [1]
    assert read(f"{root}/delta/site=*/*.parquet") == [1, 3]
    assert read(f"{root}/delta/site=North Sea/*.parquet") == [1]
    assert documents(f"{root}/delta/site=North Sea") == [1]
    for part in ("data", "data/hour=1", "data/hour=1/*.parquet", "data/hour=1/site=a"):
        with pytest.raises(ValueError, match="Iceberg"):
            read(f"{root}/iceberg/{part}")
    assert read(f"{root}/data/site=a") == [1]
    if place == "remote":
        system = fsspec.filesystem("memory")
        path = "/committed/parts/delta/site=North Sea"
        assert loads(wd.Table.read(path, columns=["load"], filesystem=system)) == [1]
    # A file that is named is read.
    assert read(f"{root}/delta/site=North Sea/b.parquet") == [2]
    assert read([f"{root}/delta/site=North Sea/{name}.parquet" for name in "ab"]) == [1, 2]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delta_partitioned(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert read(".") == read("*/*.parquet") == [1, 3]
    assert read("site=North Sea") == read("site=North Sea/*.parquet") == [1]
    monkeypatch.chdir(tmp_path / "site=North Sea")
    assert read(".") == read("*.parquet") == read("../site=N*/*.parquet") == [1]
    assert documents(".") == [1]


def test_datasets_by_partition(tmp_path: Path) -> None:
    """A log in the root of a corpus counts for its datasets."""
    put(tmp_path, "dataset=a/x.part0.parquet", 1)
    put(tmp_path, "dataset=a/x.part1.parquet", 2)
    log(tmp_path, 0, PROTOCOL, meta("dataset"), add("dataset=a/x.part1.parquet", {"dataset": "a"}))
    assert documents(tmp_path) == [2]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_splits_of_a_dataset_dict(place: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        saved(tmp_path / "both" / name)
    put(tmp_path / "both", "dataset_dict.json", text='{"splits": ["train", "test"]}')
    root = str(tmp_path) if place == "local" else in_memory_copy(tmp_path, "committed/splits")
    with pytest.raises(ValueError, match="the splits 'train', 'test'; expected the folder of one"):
        read(f"{root}/both")
    assert read(f"{root}/both/train") == [1, 2]
    found = wd.Documents(f"{root}/both")
    assert {found.locate(number)[0] for number in range(len(found))} == {"train", "test"}


def test_saved_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"load": [1.0, 2.0, 3.0]})
    whole.select([2, 0]).save_to_disk(tmp_path / "some")
    assert read(tmp_path / "some") == [1, 3]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_folders_that_a_pattern_names(place: str, tmp_path: Path) -> None:
    put(tmp_path, "_temporary/0/a.parquet", 1)
    put(tmp_path, "_raw/b.parquet", 2)
    root = str(tmp_path) if place == "local" else in_memory_copy(tmp_path, "committed/named")
    assert read(f"{root}/_raw/*.parquet") == [2]
    assert read(f"{root}/_*/*.parquet") == [2]
    assert read(f"{root}/_temporary/**/*.parquet") == [1]
    with pytest.raises(FileNotFoundError, match="expected the name of the folder"):
        read(f"{root}/*/*.parquet")


def test_patterns_of_documents_pass_metadata_elsewhere(tmp_path: Path) -> None:
    put(tmp_path, "good/a.parquet", 1)
    put(tmp_path, "bad/b.parquet", 2)
    put(tmp_path, "bad/.hoodie/hoodie.properties", text="")
    found = wd.Documents(tmp_path, files="good/*.parquet")
    assert [tokens.tolist() for tokens in found] == [[1, 1]]
    with pytest.raises(ValueError, match="Hudi"):
        wd.Documents(tmp_path)
