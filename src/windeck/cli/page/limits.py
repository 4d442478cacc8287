"""Limits of the HTML page, and what is used of them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Budget", "Limits"]


@dataclass(frozen=True)
class Limits:
    """Limits of the contents of a page.

    Attributes
    ----------
    whole
        Elements of a tensor that is shown as a whole.
    values
        Numbers of all tensors.
    read_bytes
        Bytes of tensors and tables that are read for statistics, each counted once.
    places
        Positions of NaNs, of infinities and of largest values, for each tensor.
    rows, columns
        Rows of a table, and numbers of a row.
    bins
        Bins of a histogram.
    plain, letters
        Plain values, and letters of one.
    """

    whole: int = 512
    values: int = 200_000
    read_bytes: int = 8 << 30
    places: int = 10
    rows: int = 100
    columns: int = 8
    bins: int = 64
    plain: int = 5000
    letters: int = 2000


@dataclass
class Budget:
    """The used part of the limits."""

    limits: Limits
    values: int = 0
    read_bytes: int = 0
    #: Tensors and tables without statistics, and without values, because of the limits.
    unread: list[str] = field(default_factory=list)
    unshown: int = 0
    #: Plain values that are left out.
    plain: int = 0

    def take_bytes(self, name: str, count: int) -> bool:
        """Return whether `count` more bytes may be read, and count them."""
        if self.read_bytes + count > self.limits.read_bytes:
            self.unread.append(name)
            return False
        self.read_bytes += count
        return True

    def take_values(self, count: int) -> bool:
        """Return whether `count` more numbers may be shown, and count them."""
        if self.values + count > self.limits.values:
            self.unshown += 1
            return False
        self.values += count
        return True

    def sentences(self) -> list[str]:
        """Return what the page says about its limits."""
        limits = self.limits
        lines = [
            f"Tensors of up to {limits.whole:,} elements are shown whole; of larger ones some at "
            "the beginning, in the middle and at the end.",
            f"Statistics and histograms count every element. Of NaNs, infinities and the largest "
            f"values, the first {limits.places} places of each tensor are told.",
            f"Of an embedding table: the first {limits.rows} ids in the order they are stored, "
            f"{limits.columns} numbers of each.",
        ]
        if self.unread:
            lines.append(
                f"{len(self.unread):,} were not read as a whole, and have no statistics, since "
                f"{limits.read_bytes:,} bytes were allowed for that."
            )
        if self.unshown:
            lines.append(
                f"{self.unshown:,} tensors have no values here, since the page holds up to "
                f"{limits.values:,}."
            )
        if self.plain:
            lines.append(
                f"{self.plain:,} plain values are left out: the page has the first "
                f"{limits.plain:,}."
            )
        return lines
