"""Pairs of a bulk load in ranges that several threads can write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise

Pair = tuple[bytes, bytes]


class SplitItems:
    """The pairs of ranges, which are each made by a function."""

    def __init__(self, *ranges: Callable[[], Iterable[Pair]]) -> None:
        self.ranges = ranges

    def __iter__(self) -> Iterator[Pair]:
        return chain.from_iterable(make() for make in self.ranges)

    def split(self, most: int) -> list[Iterable[Pair]]:
        count = max(1, min(most, len(self.ranges)))
        cuts = [i * len(self.ranges) // count for i in range(count + 1)]
        return [SplitItems(*self.ranges[a:b]) for a, b in pairwise(cuts)]
