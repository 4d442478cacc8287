"""Corpora for the tests: the same documents as files of every form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import feather, ipc, parquet

from support.internals import planted
from windeck import Documents
from windeck._core import TokenShard

Docs = Sequence[Sequence[int]]


def write_batches(path: Path, docs: Docs, *, dtype: str = "uint16", column: str = "tokens") -> None:
    """Write one record batch for each document, as fms-fsdp reads it."""
    schema = pa.schema([(column, pa.from_numpy_dtype(np.dtype(dtype)))])
    with ipc.new_file(str(path), schema) as writer:
        for doc in docs:
            batch = pa.record_batch([pa.array(np.asarray(doc, dtype=dtype))], schema=schema)
            writer.write_batch(batch)


def lists(docs: Docs, *, dtype: str = "uint16", column: str = "tokens", **more: Any) -> pa.Table:
    """Return a list column with one row for each document."""
    kind = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
    return pa.table({column: pa.array([list(doc) for doc in docs], kind), **more})


def write_lists(path: Path, docs: Docs, *, dtype: str = "uint16", column: str = "tokens") -> None:
    """Write a list column to an uncompressed Arrow file."""
    table = lists(docs, dtype=dtype, column=column)
    feather.write_feather(table, path, compression="uncompressed", chunksize=3)


def write_compressed(path: Path, docs: Docs) -> None:
    """Write a list column to a compressed Arrow file."""
    feather.write_feather(lists(docs), path, compression="lz4")


def write_parquet(path: Path, docs: Docs) -> None:
    """Write a list column to a Parquet file of several row groups."""
    parquet.write_table(lists(docs), path, row_group_size=2)


#: Every form of a shard, with the suffix it goes by.
WRITERS: dict[str, tuple[str, Callable[[Path, Docs], None]]] = {
    "batches": ("arrow", write_batches),
    "lists": ("arrow", write_lists),
    "compressed": ("arrow", write_compressed),
    "parquet": ("parquet", write_parquet),
}


def write_corpus(
    root: Path, shards: Mapping[str, Docs], *, form: str = "lists", counts: bool = False
) -> Path:
    """Write the corpus ``{"c4/x.part3": docs}``, with a count file if requested."""
    suffix, write = WRITERS[form]
    rows = ["dataset/filename,documents,tokens"]
    for name, docs in shards.items():
        path = root / f"dataset={name}.{suffix}"
        os.makedirs(path.parent, exist_ok=True)
        write(path, docs)
        rows.append(f"/dataset={name}.{suffix},{len(docs)},{sum(map(len, docs))}")
    if counts:
        write_counts(root, rows)
    return root


def write_counts(root: Path, rows: Sequence[str], name: str = "x_counts.csv") -> Path:
    """Write a count file of these lines."""
    (root / "meta").mkdir(exist_ok=True)
    path = root / "meta" / name
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def open_file(path: Path | str, *beside: str, column: str = "tokens", **options: Any) -> TokenShard:
    """Open a file of documents as a corpus that has no other, or others in the folder after it.

    A corpus has a token: a file without any is opened beside one that has some.
    """
    path = Path(path)
    documents = Documents(path.parent, files=[path.name, *beside], column=column, **options)
    assert documents.shard_path(0) == str(path)
    return documents.open(0)


def stated_counts(root: Path, **options: Any) -> Documents | None:
    """Open a corpus by the counts that metadata state; None if a file has to be read for them."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    with planted("readers.DocumentOptions.open", refuse):
        try:
            return Documents(root, **options)
        except NotImplementedError:
            return None


#: Four shards of two datasets: part 10 after part 3, an empty file, empty documents.
SHARDS: dict[str, Docs] = {
    "wiki/en/y.part0": [[7, 8], [9]],
    "c4/x.part10": [[], [50, 51, 52, 53, 54]],
    "c4/x.part3": [[1, 2, 3], [4], [], [5, 6]],
    "c4/x.part4": [],
}
#: The same in the order of numbers.
ORDER = ("c4/x.part3", "c4/x.part4", "c4/x.part10", "wiki/en/y.part0")
EVERY = [list(doc) for name in ORDER for doc in SHARDS[name]]
