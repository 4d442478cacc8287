"""What packing was asked for, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._util.validation import check_integer
from windeck.columns.dtypes import dtype_name
from windeck.documents.protocol import Corpus, Int64s

__all__ = ["ORDERS", "Options", "check_corpus", "checked_dtype", "framed_sizes"]

ORDERS = ("shards", "global")

#: cu_seqlens are int32, so that a row has to be shorter than that.
LONGEST = 2**31 - 2

_MEMBERS = (
    "shard_documents",
    "shard_kept",
    "shard_tokens",
    "shard_name",
    "shard_index",
    "open",
    "fingerprint",
)


@dataclass(frozen=True)
class Options:
    """How documents become sequences; equal options and documents give equal tokens.

    Attributes
    ----------
    length
        Inputs in a sequence, L; it spans L + 1 tokens.
    bos, eos
        The frame of every document.
    order
        ``"shards"`` or ``"global"``.
    padded, pad
        Whether sequences hold whole documents and are filled up with `pad`.
    dtype
        Of tokens and position_ids: ``"int64"`` or ``"int32"``. Not what is served, only how.
    """

    length: int
    bos: int | None
    eos: int | None
    order: str
    padded: bool
    pad: int
    dtype: str

    def __post_init__(self) -> None:
        check_integer("sequence_length", self.length, least=1, most=LONGEST)
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}, expected one of {', '.join(ORDERS)}")
        if self.padded and self.order == "global":
            raise ValueError(
                "padded packing fits documents within their shard, and order='global' draws them "
                "from all shards; expected order='shards' with padded=True"
            )
        for name in ("bos", "eos", "pad"):
            _check_token(name, getattr(self, name), self.dtype)
        if self.pad != 0 and not self.padded:
            raise ValueError(f"pad is {self.pad}, which only padded=True uses")

    @property
    def frame(self) -> int:
        """Tokens around every document."""
        return (self.bos is not None) + (self.eos is not None)

    @property
    def fields(self) -> dict[str, str | int]:
        """The options as they stand in a fingerprint."""
        fields: dict[str, str | int] = {
            "sequence_length": self.length,
            "bos": "none" if self.bos is None else self.bos,
            "eos": "none" if self.eos is None else self.eos,
            "order": self.order,
            "padded": int(self.padded),
        }
        return {**fields, "pad": self.pad} if self.padded else fields


def checked_dtype(dtype: Any) -> str:
    """The name of a dtype that tokens may have: of a string, a NumPy or a torch dtype."""
    try:
        name = dtype_name(dtype)
    except TypeError:
        name = str(dtype)
    if name not in ("int64", "int32"):
        raise ValueError(f"dtype is {name!r}, expected 'int64' or 'int32'")
    return name


def _check_token(name: str, token: object, dtype: str) -> None:
    if token is None and name != "pad":
        return
    number = check_integer(name, token, least=-(2**63), most=2**63 - 1)
    if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ValueError(f"{name} is {number}, which {dtype} cannot hold")


def check_corpus(documents: object) -> None:
    """Tell of what cannot be packed.

    Raises
    ------
    TypeError
        Naming what is missing, or counts that are no int64 arrays.
    ValueError
        Counts of different lengths, or that cannot be.
    """
    missing = [name for name in _MEMBERS if not hasattr(type(documents), name)]
    missing = [name for name in missing if not hasattr(documents, name)]
    if missing:
        raise TypeError(
            f"documents is of type {type(documents).__name__} without {', '.join(missing)}; "
            "expected Documents, or a corpus with the members of "
            "windeck.documents.protocol.Corpus"
        )
    counts = [_count(documents, name) for name in _MEMBERS[:3]]
    if len({len(count) for count in counts}) > 1:
        raise ValueError(
            f"shard_documents, shard_kept and shard_tokens have {', '.join(map(_size, counts))} "
            "entries, expected one for each shard"
        )
    wrong = (counts[1] > counts[0]) | ((counts[1] == 0) & (counts[2] > 0))
    for count in counts:
        wrong |= count < 0
    if wrong.any():
        shard = int(np.flatnonzero(wrong)[0])
        held, kept, tokens = (int(count[shard]) for count in counts)
        raise ValueError(
            f"shard {shard} has {held} documents, keeps {kept} and has {tokens} tokens in these, "
            "which cannot be"
        )


def _size(count: Int64s) -> str:
    return str(len(count))


def _count(documents: object, name: str) -> Int64s:
    count = getattr(documents, name)
    if not isinstance(count, np.ndarray) or count.dtype != np.int64 or count.ndim != 1:
        found = type(count).__name__
        if isinstance(count, np.ndarray):
            found = f"{count.dtype} array of shape {count.shape}"
        raise TypeError(f"{name} is of type {found}, expected an int64 array of one dimension")
    return count


def framed_sizes(documents: Corpus, frame: int) -> Int64s:
    """Tokens of each shard with frames: int64 of shape (S,).

    Raises
    ------
    ValueError
        For no shard at all, or when none holds a token.
    OverflowError
        For more than 2^63 - 1 tokens.
    """
    tokens, kept = documents.shard_tokens, documents.shard_kept
    total = sum(int(t) for t in tokens) + frame * sum(int(k) for k in kept)
    if total == 0:
        stored, left = int(documents.shard_documents.sum()), int(kept.sum())
        raise ValueError(
            f"there is no token to pack in {stored} documents, {stored - left} of them filtered; "
            "expected a document with a token"
        )
    if total > np.iinfo(np.int64).max:
        raise OverflowError(f"the documents hold {total} tokens, expected less than 2^63")
    sizes: Int64s = np.asarray(tokens + frame * kept, dtype=np.int64)
    return sizes
