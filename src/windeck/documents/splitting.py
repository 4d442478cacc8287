"""Splits of documents by a hash of their names, which stay as they are when a corpus grows."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import NamedTuple

from windeck._core import TokenShard
from windeck._util.fingerprints import digest
from windeck.documents.discovery import ShardList

__all__ = ["HashRange", "splits_of", "take_splits"]

_HASHES = 2**64


class HashRange(NamedTuple):
    """The documents whose hash under a seed is in [first, last], 64-bit integers.

    `level` is the number of earlier splits with the same seed that the documents are in. From 1 on
    it enters the hash, so that the hashes of all splits are independent.
    """

    seed: int
    first: int
    last: int
    level: int = 0

    def __str__(self) -> str:
        level = f"+{self.level}" if self.level else ""
        return f"{self.seed}{level}:{self.first:x}-{self.last:x}"


def splits_of(
    validation: float, test: float, seed: int, earlier: tuple[HashRange, ...] = ()
) -> tuple[HashRange, HashRange, HashRange]:
    """Return the splits for training, validation and test.

    `earlier` has the splits that the documents are in, where a split is split again.
    Validation has the least hashes and test the greatest, so that a document stays in its split
    when the share of another one changes.

    Raises
    ------
    TypeError, ValueError
        If a share is not in [0, 1), or if both are 1 or more together.
    """
    counts = []
    for name, share in (("validation", validation), ("test", test)):
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise TypeError(f"`{name}` must be a share of the documents, got {share!r}")
        if not 0 <= share < 1:
            raise ValueError(f"`{name}` must be in [0, 1), got {share!r}")
        counts.append(round(Fraction(share) * _HASHES))
    low, high = counts[0], _HASHES - counts[1]
    if low >= high:
        raise ValueError(
            f"`validation` and `test` must be below 1 together, got {validation!r} and {test!r}"
        )
    level = sum(split.seed == seed for split in earlier)
    nothing = HashRange(seed, 1, 0, level)
    return (
        HashRange(seed, low, high - 1, level),
        HashRange(seed, 0, low - 1, level) if low else nothing,
        HashRange(seed, high, _HASHES - 1, level) if high < _HASHES else nothing,
    )


def take_splits(
    opened: TokenShard, shards: ShardList, shard: int, splits: tuple[HashRange, ...]
) -> TokenShard:
    """Return a shard with the documents outside of any split filtered. The memory is shared.

    The hash of a document depends on the seed, the level, its dataset, its part number (of
    files without one: the path in the dataset) and its place in the shard. It is part of
    saved states.
    """
    dataset = int(shards.dataset[shard])
    name: int | bytes = int(shards.part[shard])
    if dataset in shards.unnumbered:
        name = os.fsencode(shards.path_in_dataset(shard))
    for split in splits:
        level = [split.level] if split.level else []
        key = int(digest("split", split.seed, shards.dataset_ids[dataset], name, *level)[:16], 16)
        opened = opened.part(key, split.first, split.last)
    return opened
