"""A model of mixtures: one sample at a time, with a counter for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck.loader.schedule import assign_slots

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
