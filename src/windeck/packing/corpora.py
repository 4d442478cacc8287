"""Members of a corpus: those that packing requires, and those that it uses if the corpus has them.

No other module of packing looks for members of a user's corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from windeck.documents.protocol import Corpus, Int64s

__all__ = ["CorpusMembers", "check_corpus"]

_REQUIRED = (
    "shard_documents",
    "shard_kept",
    "shard_tokens",
    "shard_name",
    "shard_index",
    "open",
    "fingerprint",
)


def check_corpus(documents: object) -> None:
    """Check that an object implements the `Corpus` protocol with consistent counts.

    Raises
    ------
    TypeError
        If a member is missing, or if counts are not int64 arrays.
    ValueError
        If counts differ in length, are negative, or contradict each other.
    """
    missing = [name for name in _REQUIRED if not hasattr(type(documents), name)]
    missing = [name for name in missing if not hasattr(documents, name)]
    if missing:
        raise TypeError(
            "`documents` must be a Documents or implement windeck.documents.protocol.Corpus, got "
            f"{type(documents).__name__} without {', '.join(missing)}"
        )
    counts = [_count(documents, name) for name in _REQUIRED[:3]]
    if len({len(count) for count in counts}) > 1:
        lengths = ", ".join(str(len(count)) for count in counts)
        raise ValueError(
            "shard_documents, shard_kept and shard_tokens must have equal lengths, got " + lengths
        )
    wrong = (counts[1] > counts[0]) | ((counts[1] == 0) & (counts[2] > 0))
    for count in counts:
        wrong |= count < 0
    if wrong.any():
        shard = int(np.flatnonzero(wrong)[0])
        held, kept, tokens = (int(count[shard]) for count in counts)
        raise ValueError(
            f"the counts of shard {shard} are inconsistent: {held} documents, {kept} of them kept, "
            f"with {tokens} tokens"
        )


def _count(documents: object, name: str) -> Int64s:
    count = getattr(documents, name)
    if not isinstance(count, np.ndarray) or count.dtype != np.int64 or count.ndim != 1:
        found = type(count).__name__
        if isinstance(count, np.ndarray):
            found = f"{count.dtype} array of shape {count.shape}"
        raise TypeError(f"`{name}` must be a one-dimensional int64 array, got {found}")
    return count


class CorpusMembers:
    """The members of a `FileCorpus`, with defaults for those that a corpus lacks."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    @property
    def root(self) -> Any:
        """The folder of the files; None without one."""
        return self._offered("root")

    @property
    def shard_bytes(self) -> Int64s:
        """Bytes of each shard: of its file, or of its tokens as int32. int64 of shape (S,)."""
        found: Int64s | None = self._offered("shard_bytes")
        return 4 * self._corpus.shard_tokens if found is None else found

    @property
    def plan_reads(self) -> Callable[..., None] | None:
        """The function that gets the shards opened next; None where it would have no effect."""
        if self._offered("reads_ahead") is False:
            return None
        found: Callable[..., None] | None = self._offered("plan_reads")
        return found

    def explain_reopening(self) -> str | None:
        """Return why not all shards can be open at a time, or None."""
        explain: Callable[[], str | None] | None = self._offered("explain_reopening")
        return None if explain is None else explain()

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """Return why a field of the fingerprint differs, or None."""
        explain: Callable[..., str | None] | None = self._offered("explain_change")
        return None if explain is None else explain(field, was, now)

    def check_growth(self, larger: Corpus) -> None:
        """Raise a ValueError if documents have other names in a larger corpus."""
        check: Callable[[Corpus], None] | None = self._offered("check_growth")
        if check is not None:
            check(larger)

    def _offered(self, name: str) -> Any:
        return getattr(self._corpus, name, None)
