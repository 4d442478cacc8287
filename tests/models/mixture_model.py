"""A model of mixtures: one sample at a time, with a counter for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import floor, gcd
from typing import Any

Entries = list[tuple[int, list[int]]]


def slots(counts: Sequence[int]) -> list[int]:
    """Return the parts of one period, by Tijdeman's chairman assignment.

    With k parts, part i has the share f of all slots and x of those before slot t (the first is 1).
    It may have slot t when f * t - x is at least 1 / (2k - 2), and needs its next one before that
    grows beyond 1 - 1 / (2k - 2); of those that may, the one whose last chance comes first gets it,
    and of equals the first. Here all is in integers, multiplied by the period and by 2k - 2.
    """
    common = gcd(*counts)
    sizes = {part: count // common for part, count in enumerate(counts) if count}
    period, scale = sum(sizes.values()), max(1, 2 * len(sizes) - 2)
    table: list[int] = []
    served = dict.fromkeys(sizes, 0)
    for slot in range(1, period + 1):
        chances = {
            part: (scale - 1 + served[part] * scale) * period // (count * scale)
            for part, count in sizes.items()
            if (count * slot - served[part] * period) * scale >= period
        }
        chosen = min(chances, key=lambda part: chances[part])
        served[chosen] += 1
        table.append(chosen)
    return table


class Counted:
    """The (part, number within the part) at every position below `size`."""

    def __init__(self, entries: Entries, size: int) -> None:
        self.served: list[tuple[int, int]] = []
        counters = [0] * len(entries[0][1])
        tables = [(start, slots(counts)) for start, counts in entries]
        for position in range(size):
            start, table = [entry for entry in tables if entry[0] <= position][-1]
            part = table[(position - start) % len(table)]
            self.served.append((part, counters[part]))
            counters[part] += 1


def rows_of(batch: Mapping[str, Any], key: str) -> list[Any]:
    """Return the rows of a batch's array or tensor as lists."""
    rows: list[Any] = batch[key].tolist()
    return rows


class Shared:
    """Exact shares by Huffman's tree, in fractions: which part has the next position.

    A node is ``[size, number, part]`` or ``[size, number, left, right]``; the number counts nodes
    as they are made, and parts of size 0 have none.
    """

    def __init__(self, sizes: list[int]) -> None:
        nodes: list[list[Any]] = []
        for part, size in enumerate(sizes):
            if size:
                nodes.append([size, len(nodes), part])
        made = len(nodes)
        while len(nodes) > 1:
            nodes.sort(key=lambda node: (node[0], node[1]))
            one, other = nodes[0], nodes[1]
            left, right = (other, one) if other[0] > one[0] else (one, other)
            nodes = [*nodes[2:], [one[0] + other[0], made, left, right]]
            made += 1
        self.root = nodes[0]

    def part(self, position: int) -> tuple[int, int]:
        """Return the part at a position, and the number of its earlier ones."""
        node, place = self.root, position
        while len(node) == 4:
            share = Fraction(node[2][0], node[0])
            before, after = (floor(n * share + Fraction(1, 2)) for n in (place, place + 1))
            node, place = (node[2], before) if after > before else (node[3], place - before)
        return node[2], place


class CountedInLanes:
    """The (part, own position) at every position below `size`, with a counter for each lane.

    A lane goes through the table on its own, from place lane * unit on.
    """

    def __init__(self, entries: Entries, lanes: int, unit: int, size: int) -> None:
        self.served: list[tuple[int, int]] = []
        counters = [[0] * len(entries[0][1]) for _ in range(lanes)]
        places = [0] * lanes
        starts = {start: slots(counts) for start, counts in entries}
        table: list[int] = []
        for position in range(size):
            if position in starts:
                table = starts[position]
                places = [lane * unit for lane in range(lanes)]
            lane = position // unit % lanes
            part = table[places[lane] % len(table)]
            self.served.append((part, counters[lane][part] * lanes + lane))
            counters[lane][part] += 1
            places[lane] += 1
