"""How large tables and blocks are."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUCKETS", "ENTRY_BYTES", "PRELUDE_BYTES", "Shape", "Size"]

#: Ids fall into so many buckets, by their hash.
BUCKETS = 1024
#: Bytes of a block before its arrays, and of an entry beside its row.
PRELUDE_BYTES = 24
ENTRY_BYTES = 33


@dataclass(frozen=True)
class Shape:
    """Of a table: an embedding of `dim` numbers and `slots` of the optimizer as long."""

    dim: int
    slots: int

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return (1 + self.slots) * self.dim


@dataclass(frozen=True)
class Size:
    """Of a block: how many entries, and of these with a row, and dead."""

    entries: int
    rows: int
    dead: int

    def bytes(self, shape: Shape) -> int:
        """Bytes of its payload."""
        head = PRELUDE_BYTES + ENTRY_BYTES * self.entries
        return head + -head % 8 + 4 * shape.width * self.rows
