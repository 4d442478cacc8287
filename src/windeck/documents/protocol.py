"""What packing asks of a corpus: shards of documents, how many, and a way to open one.

`windeck.Documents` is one, made of files. A corpus of one's own (generated, remote, in memory) has
the same few members, and makes its shards with ``windeck._core.TokenShard.from_arrays``.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from windeck._core import TokenShard
from windeck.sources import Fingerprint

__all__ = ["Corpus", "Int64s"]

Int64s: TypeAlias = NDArray[np.int64]


@runtime_checkable
class Corpus(Protocol):
    """Documents in S shards, numbered s = 0, 1, ..., S - 1 in one lasting order.

    Document i of the corpus is document ``i - shard_documents[:s].sum()`` of the shard s it falls
    into. A filtered document keeps its place and has no tokens.
    """

    @property
    def shard_documents(self) -> Int64s:
        """Documents in each shard, filtered ones included: int64 of shape (S,)."""
        ...

    @property
    def shard_kept(self) -> Int64s:
        """Documents in each shard that no filter leaves out: int64 of shape (S,)."""
        ...

    @property
    def shard_tokens(self) -> Int64s:
        """Tokens of these in each shard, without frames: int64 of shape (S,)."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """What the corpus is: options, sizes, digests of contents; never paths or times."""
        ...

    def shard_name(self, shard: int, /) -> tuple[str, int]:
        """(dataset_id, shard_id) of shard s, as users know it: ``("c4", 3)``."""
        ...

    def shard_index(self, dataset_id: str, shard_id: int, /) -> int:
        """The inverse of `shard_name`.

        Raises
        ------
        KeyError
            When there is no such shard; the message is one sentence.
        """
        ...

    def open(self, shard: int, /) -> TokenShard:
        """The documents of shard s. Called from several threads.

        Raises
        ------
        ValueError
            When it does not hold what `shard_documents` and the others say; with both numbers.
        """
        ...

    def explain_change(self, field: str, was: object, now: object, /) -> str | None:
        """A sentence on why a field of the fingerprint differs from a saved one, if there is any.

        "the corpus had 12 files and has 13 now" says more than two digests.
        """
        ...
