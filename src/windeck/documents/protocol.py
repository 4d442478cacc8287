"""The `Corpus` protocol: the interface that packing requires of a collection of documents.

`windeck.Documents` implements it for files. A user-defined corpus (generated, remote, in memory)
implements the same members and creates its shards with ``windeck._core.TokenShard.from_arrays``.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from windeck._core import TokenShard
from windeck.sources import Fingerprint

__all__ = ["Corpus", "FileCorpus", "Int64s"]

Int64s: TypeAlias = NDArray[np.int64]


@runtime_checkable
class Corpus(Protocol):
    """Documents in S shards, numbered s = 0, 1, ..., S - 1 in a fixed order.

    Document i of the corpus belongs to the shard s that contains it, and has the number
    ``i - shard_documents[:s].sum()`` there. A filtered document keeps its number and has no tokens.
    """

    @property
    def shard_documents(self) -> Int64s:
        """Documents in each shard, filtered ones included: int64 of shape (S,)."""
        ...

    @property
    def shard_kept(self) -> Int64s:
        """Documents in each shard that pass all filters: int64 of shape (S,)."""
        ...

    @property
    def shard_tokens(self) -> Int64s:
        """Tokens of the kept documents in each shard, without frames: int64 of shape (S,)."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """Options, sizes and digests of contents that identify the corpus; no paths or times."""
        ...

    def shard_name(self, shard: int, /) -> tuple[str, int]:
        """Return the user-visible name of shard s, (dataset_id, shard_id): ``("c4", 3)``."""
        ...

    def shard_index(self, dataset_id: str, shard_id: int, /) -> int:
        """Return the number of a shard: the inverse of `shard_name`.

        Raises
        ------
        KeyError
            If there is no such shard. The message is one sentence.
        """
        ...

    def open(self, shard: int, /) -> TokenShard:
        """Open the documents of shard s. Called from several threads.

        Raises
        ------
        ValueError
            If the shard does not hold the numbers of documents and tokens that `shard_documents`,
            `shard_kept` and `shard_tokens` state. The message gives both numbers.
        """
        ...

    def explain_change(self, field: str, was: object, now: object, /) -> str | None:
        """Return a sentence that explains why a fingerprint field differs from a saved one.

        For example "the corpus had 12 files and has 13 now". None if the two values suffice.
        """
        ...


class FileCorpus(Corpus, Protocol):
    """A corpus of files. Each of these members is optional for packing."""

    @property
    def root(self) -> str:
        """The folder of the files, in which ``cache=True`` keeps counts; none by default."""
        ...

    @property
    def shard_bytes(self) -> Int64s:
        """Bytes of the file of each shard, int64 of shape (S,); by default 4 for each token."""
        ...

    @property
    def reads_ahead(self) -> bool:
        """False if `plan_reads` has no effect and need not be called; True by default."""
        ...

    def plan_reads(self, order: Any, shard: int, follows: bool) -> None:
        """Note that shards are opened in an order from `shard` on; see `Documents.plan_reads`."""
        ...

    def explain_reopening(self) -> str | None:
        """Return why not all shards can be open at a time; None, the default, if they can."""
        ...

    def check_growth(self, larger: Any) -> None:
        """Raise a ValueError if documents have other names in a larger corpus."""
        ...
