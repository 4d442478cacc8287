"""Corpora of `text_oracle` in the forms that the library reads: in memory, and as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from models.text_oracle import Corpus, Packing, Shard
from windeck._core import TokenShard


class Lists:
    """A corpus in memory that implements `windeck.documents.protocol`.

    Filters are the task of a corpus, so those of a `Packing` are applied here.
    """

    def __init__(
        self, corpus: Corpus, packing: Packing, name: str = "lists", dtype: str = "int32"
    ) -> None:
        self.name, self.packing, self.dtype = name, packing, dtype
        self.shards = [self._made(number, shard) for number, shard in enumerate(corpus)]
        totals = np.array([shard.totals() for shard in self.shards], np.int64).reshape(-1, 4)
        self.shard_documents = np.ascontiguousarray(totals[:, 0])
        self.shard_kept = np.ascontiguousarray(totals[:, 2])
        self.shard_tokens = np.ascontiguousarray(totals[:, 3])
        self.contents = repr(corpus)

    def _made(self, number: int, shard: Shard) -> TokenShard:
        strip = self.packing.strip
        return TokenShard.from_arrays(
            np.array([token for document in shard for token in document], self.dtype),
            np.concatenate([[0], np.cumsum([len(document) for document in shard])]).astype("i8"),
            strip=np.array(strip, np.int64) if strip else None,
            min_length=self.packing.min_length,
            name=f"{self.name}/{number}",
        )

    def __len__(self) -> int:
        return int(self.shard_documents.sum())

    def shard_name(self, shard: int) -> tuple[str, int]:
        return self.name, shard

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        if dataset_id != self.name or not 0 <= shard_id < len(self.shards):
            raise KeyError(f"there is no {(dataset_id, shard_id)} in {self.name!r}")
        return shard_id

    def open(self, shard: int) -> TokenShard:
        return self.shards[shard]

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        return {"lists": self.contents, "packing": repr(self.packing)}

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        return None


def write(corpus: Corpus, folder: Path, kind: str, dtype: str = "uint16") -> None:
    """Write every shard as a file ``text.part<number>.arrow`` or ``.parquet`` in `folder`.

    `kind` is "batches" (a record batch a document), "lists" (rows of a list column, two record
    batches) or "parquet".
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens = pa.from_numpy_dtype(np.dtype(dtype))
    for number, shard in enumerate(corpus):
        suffix = "parquet" if kind == "parquet" else "arrow"
        path = folder / f"text.part{number}.{suffix}"
        column = pa.array(shard, pa.list_(tokens))
        table = pa.table({"other": pa.array(range(len(shard))), "tokens": column})
        if kind == "parquet":
            parquet.write_table(table, path, row_group_size=3)
        elif kind == "lists":
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table, max_chunksize=max(1, (len(shard) + 1) // 2))
        else:
            schema = pa.schema({"tokens": tokens})
            with pa.ipc.new_file(path, schema) as file:
                for document in shard:
                    file.write_batch(pa.record_batch([pa.array(document, tokens)], schema=schema))
