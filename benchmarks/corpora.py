"""Token corpora for the benchmarks: of generated lengths in memory, and as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windeck._core import TokenShard, hash_words

#: Documents in a shard of a `Generated` corpus.
SHARD = 100_000
#: Different shards there are; the others are these again.
KINDS = 4


class Generated:
    """`shards` shards of 100,000 documents of generated lengths, 46 tokens on average.

    A corpus by the protocol of `windeck.documents.protocol`. Shards share four sets of
    offsets, and one buffer of tokens that is all zeros: what is left is what an index costs.
    """

    def __init__(self, shards: int) -> None:
        kinds = [self._made(kind) for kind in range(KINDS)]
        self._kinds = [shard for shard, _ in kinds]
        tokens = np.array([count for _, count in kinds], np.int64)
        self.shard_documents = np.full(shards, SHARD, np.int64)
        self.shard_kept = self.shard_documents
        self.shard_tokens = tokens[np.arange(shards) % KINDS]

    @staticmethod
    def _made(kind: int) -> tuple[TokenShard, int]:
        lengths = np.random.default_rng(kind).geometric(1 / 46, SHARD)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = np.zeros(offsets[-1], np.uint16)
        return TokenShard.from_arrays(tokens, offsets, name=f"kind {kind}"), int(offsets[-1])

    def __len__(self) -> int:
        return len(self.shard_documents) * SHARD

    def shard_name(self, shard: int) -> tuple[str, int]:
        return "generated", shard

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        if dataset_id != "generated" or not 0 <= shard_id < len(self.shard_documents):
            raise KeyError(f"there is no {(dataset_id, shard_id)}")
        return shard_id

    def open(self, shard: int) -> TokenShard:
        return self._kinds[shard % KINDS]

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        return {"generated": len(self), "tokens": int(self.shard_tokens.sum())}

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        return None


def web_like(documents: int, seed: int) -> list[NDArray[np.uint16]]:
    """Documents as long as those of the web: lognormal, 700 tokens on average."""
    rng = np.random.default_rng(hash_words(seed, documents))
    lengths = np.clip(rng.lognormal(6, 1.1, documents), 8, 100_000).astype(int)
    return [rng.integers(10, 50_000, length).astype(np.uint16) for length in lengths]


def write(path: Path, documents: list[NDArray[np.uint16]], kind: str) -> None:
    """One Arrow file: `kind` "batches" has a record batch a document, "lists" a list column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "batches":
        schema = pa.schema({"tokens": pa.uint16()})
        with pa.ipc.new_file(path, schema) as file:
            for tokens in documents:
                file.write_batch(pa.record_batch([pa.array(tokens)], schema=schema))
        return
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in documents])])
    values = pa.array(np.concatenate(documents))
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    with pa.ipc.new_file(path, pa.schema({"tokens": column.type})) as file:
        file.write_batch(pa.record_batch([column], names=["tokens"]))
