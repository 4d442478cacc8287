"""A model of mixtures: one sample at a time, with a counter for each part."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import Any

from support.internals import assign_slots

Entries = list[tuple[int, list[int]]]


class Counted:
    """The (part, number within the part) at every position below `size`."""

    def __init__(self, entries: Entries, size: int) -> None:
        self.served: list[tuple[int, int]] = []
        counters = [0] * len(entries[0][1])
        for position in range(size):
            start, counts = [entry for entry in entries if entry[0] <= position][-1]
            table = assign_slots(counts)
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

    A lane goes through the table on its own, from place lane * unit on. `before[p]` are the counts
    of each lane and part before position p.
    """

    def __init__(self, entries: Entries, lanes: int, unit: int, size: int) -> None:
        self.served: list[tuple[int, int]] = []
        self.before: list[list[list[int]]] = []
        counters = [[0] * len(entries[0][1]) for _ in range(lanes)]
        places = [0] * lanes
        starts = {start: assign_slots(counts) for start, counts in entries}
        table: list[int] = []
        for position in range(size):
            if position in starts:
                table = starts[position]
                places = [lane * unit for lane in range(lanes)]
            lane = position // unit % lanes
            part = table[places[lane] % len(table)]
            self.before.append([list(of_lane) for of_lane in counters])
            self.served.append((part, counters[lane][part] * lanes + lane))
            counters[lane][part] += 1
            places[lane] += 1
