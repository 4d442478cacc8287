"""Options of packing, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._util.validation import check_integer
from windeck.columns import dtypes
from windeck.documents.protocol import Corpus, Int64s

__all__ = ["Options", "dtype_name", "framed_sizes", "key_names"]

ORDERS = ("shards", "global", "mixed", "mixed-global")

#: Keys of a batch that are made on request.
KEYS = ("targets_mask", "document_ids", "max_seqlen")

#: The order of `PackedSequences.shuffled`, by the order before.
MIXED = {"shards": "mixed", "global": "mixed-global"}

#: Epochs whose orders are on a device: batches at a border alternate between two.
DEVICE_EPOCHS = 2

#: cu_seqlens are int32, which limits the tokens in a row.
MAX_LENGTH = 2**31 - 2


@dataclass(frozen=True)
class Options:
    """Validated options of packing; equal options and documents give equal tokens.

    Attributes
    ----------
    length
        Number of inputs in a sequence, L. A sequence spans L + 1 tokens.
    bos, eos
        The frame of every document.
    order
        One of `ORDERS`.
    padded, pad
        Whether sequences hold whole documents and are padded with `pad`.
    dtype
        Dtype of tokens and position_ids: ``"int64"`` or ``"int32"``. Not in the fingerprint.
    mixed_shards
        Shards or blocks in a group of a mixed order. In the fingerprint of mixed orders only.
    keys
        Some of `KEYS`. Not in the fingerprint.
    sequence_bos, sequence_eos
        The first and the last token of every sequence.
    """

    length: int
    bos: int | None
    eos: int | None
    order: str
    padded: bool
    pad: int
    dtype: str
    mixed_shards: int = 8
    keys: tuple[str, ...] = ()
    sequence_bos: int | None = None
    sequence_eos: int | None = None

    def __post_init__(self) -> None:
        check_integer("sequence_length", self.length, least=1, most=MAX_LENGTH)
        if self.order not in ORDERS:
            raise ValueError(f"`order` must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if self.padded and self.is_global:
            raise ValueError(
                "`order` must be 'shards' for padded=True, which packs documents within their "
                f"shard, or 'mixed', got {self.order!r}"
            )
        check_integer("mixed_shards", self.mixed_shards, least=1)
        for key in self.keys:
            if key not in KEYS:
                raise ValueError(f"`keys` must be some of {', '.join(KEYS)}, got {key!r}")
        for name in ("bos", "eos", "pad", "sequence_bos", "sequence_eos"):
            _check_token(name, getattr(self, name), self.dtype)
        if self.stride < 1:
            raise ValueError(
                f"`sequence_length` must be at least 2 with `sequence_eos`, got {self.length}: "
                "a sequence would have no input from a document"
            )
        if self.pad != 0 and not self.padded:
            raise ValueError(f"`pad` must be 0 without padded=True, got {self.pad}")

    @property
    def is_global(self) -> bool:
        """True if documents are shuffled across shards."""
        return self.order in ("global", "mixed-global")

    @property
    def is_mixed(self) -> bool:
        """True if sequences are shuffled in groups."""
        return self.order in MIXED.values()

    @property
    def has_mask(self) -> bool:
        """True if batches have ``targets_mask``."""
        return self.padded or "targets_mask" in self.keys

    @property
    def sequence_frame(self) -> int:
        """Number of tokens that frame every sequence."""
        return (self.sequence_bos is not None) + (self.sequence_eos is not None)

    @property
    def overlap(self) -> int:
        """Number of tokens of documents that a sequence shares with the next one.

        The first token of a sequence is no target, unless a BOS token is before it.
        """
        return 1 if self.sequence_bos is None else 0

    @property
    def content(self) -> int:
        """Number of tokens of documents in a full sequence."""
        return self.length + 1 - self.sequence_frame

    @property
    def stride(self) -> int:
        """Number of tokens of documents from one sequence to the next."""
        return self.content - self.overlap

    @property
    def frame(self) -> int:
        """Number of tokens that frame every document."""
        return (self.bos is not None) + (self.eos is not None)

    @property
    def fields(self) -> dict[str, str | int]:
        """The options as fields of a fingerprint."""
        fields: dict[str, str | int] = {
            "sequence_length": self.length,
            "bos": "none" if self.bos is None else self.bos,
            "eos": "none" if self.eos is None else self.eos,
            "order": self.order,
            "padded": int(self.padded),
        }
        if self.padded:
            fields["pad"] = self.pad
        if self.is_mixed:
            fields["mixed_shards"] = self.mixed_shards
        for name in ("sequence_bos", "sequence_eos"):
            token = getattr(self, name)
            fields[name] = "none" if token is None else token
        return fields


def dtype_name(dtype: Any) -> str:
    """Return "int64" or "int32" for a string, a NumPy or a torch dtype; else raise a ValueError."""
    try:
        name = dtypes.dtype_name(dtype)
    except TypeError:
        name = str(dtype)
    if name not in ("int64", "int32"):
        raise ValueError(f"`dtype` must be 'int64' or 'int32', got {name!r}")
    return name


def key_names(keys: Any) -> tuple[str, ...]:
    """Return keys as a tuple; raise a TypeError for a string or anything else without items."""
    if isinstance(keys, str) or not hasattr(keys, "__iter__"):
        raise TypeError(f"`keys` must be a sequence of strings, got {keys!r}")
    return tuple(keys)


def _check_token(name: str, token: object, dtype: str) -> None:
    if token is None and name != "pad":
        return
    number = check_integer(name, token, least=-(2**63), most=2**63 - 1)
    if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ValueError(f"`{name}` must fit into {dtype}, got {number}")


def framed_sizes(documents: Corpus, frame: int) -> Int64s:
    """Return the tokens of each shard with frames: int64 of shape (S,).

    Raises
    ------
    ValueError
        If there is no shard, or none has a token.
    OverflowError
        If there are more than 2^63 - 1 tokens.
    """
    tokens, kept = documents.shard_tokens, documents.shard_kept
    total = sum(int(t) for t in tokens) + frame * sum(int(k) for k in kept)
    if total == 0:
        stored, left = int(documents.shard_documents.sum()), int(kept.sum())
        raise ValueError(
            f"there is no token to pack in {stored} documents, {stored - left} of them filtered; "
            "expected at least one token"
        )
    if total > np.iinfo(np.int64).max:
        raise OverflowError(f"the documents have {total} tokens, expected fewer than 2^63")
    sizes: Int64s = np.asarray(tokens + frame * kept, dtype=np.int64)
    return sizes
