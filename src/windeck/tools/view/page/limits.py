"""How much of a checkpoint a page holds, and how that is said on it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Limits", "Spent"]


@dataclass(frozen=True)
class Limits:
    """What a page holds at most.

    Attributes
    ----------
    whole
        Elements of a tensor that is shown whole.
    values
        Numbers of all tensors together.
    read_bytes
        Bytes of tensors and tables that are read for statistics, each counted once.
    places
        Places of NaNs, of infinities and of largest values, of each tensor.
    rows, columns
        Rows of a table, and numbers of each.
    bins
        Of a histogram.
    plain, letters
        Plain values, and letters of each.
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
class Spent:
    """What was used up of the limits."""

    limits: Limits
    values: int = 0
    read_bytes: int = 0
    #: Tensors and tables without statistics, and without values, for want of room.
    unread: list[str] = field(default_factory=list)
    unshown: int = 0
    #: Plain values that are left out.
    plain: int = 0

    def may_read(self, name: str, count: int) -> bool:
        """Whether so many more bytes may be read; if so, they are."""
        if self.read_bytes + count > self.limits.read_bytes:
            self.unread.append(name)
            return False
        self.read_bytes += count
        return True

    def may_show(self, count: int) -> bool:
        """Whether so many more numbers may be shown; if so, they are."""
        if self.values + count > self.limits.values:
            self.unshown += 1
            return False
        self.values += count
        return True

    def sentences(self) -> list[str]:
        """What the page says about itself."""
        limits = self.limits
        said = [
            f"Tensors of up to {limits.whole:,} elements are shown whole; of larger ones some at "
            "the beginning, in the middle and at the end.",
            f"Statistics and histograms count every element. Of NaNs, infinities and the largest "
            f"values, the first {limits.places} places of each tensor are told.",
            f"Of an embedding table: the first {limits.rows} ids in the order they are stored, "
            f"{limits.columns} numbers of each.",
        ]
        if self.unread:
            said.append(
                f"{len(self.unread):,} were not read as a whole, and have no statistics, since "
                f"{limits.read_bytes:,} bytes were allowed for that."
            )
        if self.unshown:
            said.append(
                f"{self.unshown:,} tensors have no values here, since the page holds up to "
                f"{limits.values:,}."
            )
        if self.plain:
            said.append(
                f"{self.plain:,} plain values are left out: the page has the first "
                f"{limits.plain:,}."
            )
        return said
