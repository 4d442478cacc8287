"""A model of a token shard: its documents as plain lists, after filters."""

from __future__ import annotations

from collections.abc import Sequence

from windeck._core import TokenShard

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def stripped(document: Sequence[int], strip: Sequence[int]) -> list[int]:
    kept = list(document)
    while kept and kept[-1] in strip:
        kept.pop()
    while kept and kept[0] in strip:
        kept.pop(0)
    return kept


def filtered(
    raw: Sequence[Sequence[int]], strip: Sequence[int], min_length: int
) -> list[list[int] | None]:
    """Return each document after the filters, None for those that they drop."""
    documents = [stripped(document, strip) for document in raw]
    return [None if len(tokens) < min_length else tokens for tokens in documents]


def assert_equals(
    shard: TokenShard,
    raw: Sequence[Sequence[int]],
    dtype: str,
    strip: Sequence[int] = (),
    min_length: int = 0,
) -> None:
    """Assert that the shard holds exactly these documents, filtered."""
    expected = filtered(raw, strip, min_length)
    kept = [tokens for tokens in expected if tokens is not None]
    assert len(shard) == len(raw)
    assert shard.dtype == dtype
    assert shard.lengths().tolist() == [-1 if t is None else len(t) for t in expected]
    found = [shard.document(number) for number in range(len(raw))]
    assert all(array.dtype == dtype and array.flags.writeable for array in found)
    assert [array.tolist() for array in found] == [tokens or [] for tokens in expected]
    assert shard.totals() == (len(raw), sum(map(len, raw)), len(kept), sum(map(len, kept)))
