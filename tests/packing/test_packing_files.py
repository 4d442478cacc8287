"""Packing from files of all formats, and from files that change while they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.packing_model import Model, ModelCorpus
from support.corpora import open_file
from support.internals import plant
from support.packing_cases import packing
from windeck import PackedSequences
from windeck._util import LRUCache

WAYS = [("shards", False), ("global", False), ("shards", True)]


class FileCorpus(ModelCorpus):
    """A model corpus with a file for each shard."""

    folder: Path
    files: LRUCache

    def path(self, shard: int) -> str:
        return str(self.folder / f"shard{shard}.arrow")

    def write(self, folder: Path, form: str, limit: int = 3) -> FileCorpus:
        self.folder, self.files = folder, LRUCache(limit, keep_after_fork=True)
        for shard, documents in enumerate(self.shards):
            kind = pa.from_numpy_dtype(np.dtype(self.dtypes[shard]))
            if form == "batches":
                batches = [pa.record_batch([pa.array(d, kind)], ["tokens"]) for d in documents]
                schema = pa.schema([pa.field("tokens", kind)])
                with pa.ipc.new_file(self.path(shard), schema) as file:
                    for batch in batches:
                        file.write_batch(batch)
                continue
            table = pa.table({"tokens": pa.array(documents, pa.list_(kind))})
            if form == "parquet":
                pq.write_table(table, self.path(shard))
            else:
                with pa.ipc.new_file(self.path(shard), table.schema) as file:
                    file.write_table(table, 7)
        return self

    def open(self, shard: int) -> Any:
        return self.files.get(
            shard,
            lambda: open_file(
                self.path(shard), strip_tokens=self.strip, min_length=self.min_length
            ),
        )


def corpus(dtypes: list[str], **filters: Any) -> FileCorpus:
    rng = np.random.default_rng(len(dtypes))
    sizes = [rng.integers(0, 25, rng.integers(0, 40)) for _ in dtypes]
    shards = [[rng.integers(0, 99, n).tolist() for n in some] for some in sizes]
    return FileCorpus(shards, dtypes, **filters)


@pytest.mark.parametrize("form", ["batches", "lists", "parquet"])
@pytest.mark.parametrize(("order", "padded"), WAYS)
def test_files_of_every_form(form: str, order: str, padded: bool, tmp_path: Path) -> None:
    for number, filters in enumerate(({}, {"strip": [3, 7], "min_length": 4})):
        folder = tmp_path / str(number)
        folder.mkdir()
        dtypes = ["int32", "uint16", "int64", "uint8", "int32", "uint32"]
        files = corpus(dtypes, **filters).write(folder, form)
        model = Model(files, 30, 200, 201, order, padded)
        rows = model.rows(3, 8)
        source = packing(model, dtype="int32").at_epoch(3, seed=8)
        batch = source.gather(range(len(source)), threads=2)
        for key, array in model.batch(rows, "int32").items():
            np.testing.assert_array_equal(batch[key], array, err_msg=key, strict=True)
        assert len(files.files) <= 3


def large(folder: Path, documents: int = 400) -> FileCorpus:
    """Write two shards of many pages."""
    rng = np.random.default_rng(0)
    shards = [[rng.integers(0, 99, 200).tolist() for _ in range(documents)] for _ in range(2)]
    return FileCorpus(shards, ["int64"] * 2).write(folder, "lists")


def cut(path: str) -> None:
    """Truncate a file in place, as copying over it does."""
    os.truncate(path, os.path.getsize(path) // 2)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_that_shrinks_while_it_is_read(threads: int, tmp_path: Path) -> None:
    files = large(tmp_path)
    packed = PackedSequences(files, sequence_length=100)
    everything = range(len(packed))
    expected = packed.gather_rows(everything, threads=threads)["tokens"]
    cut(files.path(1))
    for _ in range(3):
        with pytest.raises(OSError, match=r"shard1.* became shorter while it was mapped"):
            packed.gather(everything, threads=threads)
    # Sequences of the other shard are unchanged.
    whole = [
        sample
        for sample in everything
        if {piece.dataset_id for piece in packed.documents(sample)} == {"even"}
    ]
    assert whole
    assert np.array_equal(packed.gather_rows(whole)["tokens"], expected[whole])


@pytest.mark.parametrize(("order", "padded"), WAYS)
def test_a_file_that_shrinks_before_its_sums_are_made(
    order: str, padded: bool, tmp_path: Path
) -> None:
    files = large(tmp_path)
    packed = packing(Model(files, 100, order=order, padded=padded))
    for shard in range(2):
        files.open(shard)  # mapped from here on
        cut(files.path(shard))
    with pytest.raises(OSError, match=r"became shorter while it was mapped"):
        packed.gather(range(len(packed)))


@pytest.mark.parametrize("shard", [0, 1])
def test_a_file_that_shrinks_under_a_large_block(
    shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "global_shuffle.LARGE_BLOCK", 0)
    files = large(tmp_path)
    packed = PackedSequences(files, sequence_length=100, order="global")
    packed.gather(range(len(packed)))
    cut(files.path(shard))
    with pytest.raises(OSError, match=rf"shard{shard}.* became shorter while it was mapped"):
        packed.gather(range(len(packed)))


def test_a_file_that_is_written_to_is_noticed_or_read_within_its_bounds(tmp_path: Path) -> None:
    """No value of the offsets makes a read exceed the file."""
    files = large(tmp_path, documents=50)
    packed = PackedSequences(files, sequence_length=100)
    packed.gather([0])
    rng = np.random.default_rng(4)
    told = set()
    for _ in range(60):
        for shard in range(2):
            with open(files.path(shard), "r+b") as file:
                size = os.path.getsize(files.path(shard))
                file.seek(int(rng.integers(0, size - 64)))
                file.write(rng.bytes(64))
        try:
            packed.gather(range(len(packed)))
            told.add("served")
        except (OSError, ValueError) as error:
            told.add(type(error).__name__)
    assert told <= {"served", "OSError", "ValueError"}
    assert told - {"served"}
