"""How large tables and blocks are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from windeck._util.validation import check_integer

__all__ = [
    "BUCKETS",
    "ENTRY_BYTES",
    "Link",
    "LinkInfo",
    "PRELUDE_BYTES",
    "Piece",
    "Shape",
    "Shard",
    "Size",
    "TableEntry",
    "TableInfo",
    "check_cover",
    "info_of",
    "parse_table",
    "parse_tables",
    "pieces",
    "shard_of",
]


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


#: Numbers of a row, of which a store takes one at a time.
_WIDEST = 1 << 27
_NUMBERS = ("writer", "item", "since", "clock", "blocks", "entries", "rows", "dead", "bytes")


@dataclass(frozen=True)
class Shard:
    """What one writer wrote of a table in one save.

    Attributes
    ----------
    writer, item
        As in the keys of its blocks.
    buckets
        The range it owns.
    since, clock
        It holds what changed after `since` up to `clock`; all, where `since` is -1.
    blocks, entries, rows, dead, bytes
        How many it wrote; bytes are those of the values of blocks and index.
    """

    writer: int
    item: int
    buckets: tuple[int, int]
    since: int
    clock: int
    blocks: int
    entries: int
    rows: int
    dead: int
    bytes: int


@dataclass(frozen=True)
class Link:
    """One save's share of a table."""

    generation: int
    save: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class TableEntry:
    """A table in a manifest.

    Attributes
    ----------
    clock
        Of the newest link.
    rows, counted
        Ids with a row, and ids that are only counted.
    config
        Plain JSON, what the table was made with.
    links
        Newest first.
    """

    name: str
    shape: Shape
    config: Any
    clock: int
    rows: int
    counted: int
    links: tuple[Link, ...]

    @property
    def bases(self) -> set[int]:
        """The generations that hold it."""
        return {link.generation for link in self.links}

    @property
    def bytes(self) -> int:
        """Bytes of the values of all links."""
        return sum(shard.bytes for link in self.links for shard in link.shards)

    def as_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {
            "name": self.name, "dim": self.shape.dim, "dtype": "float32",
            "slots": self.shape.slots, "config": self.config, "clock": self.clock,
            "rows": self.rows, "counted": self.counted,
            "links": [asdict(link) for link in self.links],
        }  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A range of buckets that is read from one shard of a link."""

    link: Link
    shard: Shard
    first: int
    end: int


def pieces(links: Iterable[Link], first: int = 0, end: int = BUCKETS) -> list[list[Piece]]:
    """Of each link, newest first, what is read of it for some buckets, in order.

    Links that newer full shards hide altogether are given as empty lists.
    """
    open_ = [(first, end)] if first < end else []
    found = []
    for link in links:
        own = []
        for shard in sorted(link.shards, key=lambda shard: shard.buckets):
            low, high = shard.buckets
            own += [
                Piece(link, shard, max(a, low), min(b, high))
                for a, b in open_
                if max(a, low) < min(b, high)
            ]
            if shard.since == -1:
                open_ = list(_without(open_, low, high))
        found.append(own)
    return found


def _without(ranges: Iterable[tuple[int, int]], low: int, high: int) -> Iterator[tuple[int, int]]:
    for a, b in ranges:
        if a < min(b, low):
            yield a, min(b, low)
        if max(a, high) < b:
            yield max(a, high), b


def check_cover(name: str, ranges: Iterable[tuple[int, int]]) -> None:
    """ValueError unless the ranges of buckets are all of them, each once."""
    at = 0
    for first, end in sorted(ranges):
        if first != at or not first <= end <= BUCKETS:
            kind = "twice" if first < at else "by nobody"
            raise ValueError(
                f"the table {name} has buckets {min(first, at)} to {max(first, at) - 1} written "
                f"{kind}, expected each of {BUCKETS:,} once"
            )
        at = end
    if at != BUCKETS:
        raise ValueError(
            f"the table {name} has buckets {at} to {BUCKETS - 1} written by nobody, expected each "
            f"of {BUCKETS:,} once"
        )


def parse_tables(
    found: Iterable[Mapping[str, Any]], generation: int, save: int
) -> dict[str, TableEntry]:
    """The tables of a manifest by name; KeyError, TypeError, ValueError for what cannot be."""
    tables: dict[str, TableEntry] = {}
    for given in found:
        table = parse_table(given)
        if table.name in tables:
            raise ValueError(f"the table {table.name} is there twice, expected once")
        if any(k.generation == generation and k.save != save for k in table.links):
            raise ValueError(f"the table {table.name} is of another save than {save}")
        tables[table.name] = table
    return tables


def parse_table(found: Mapping[str, Any]) -> TableEntry:
    """A table of a manifest, everything about it checked but whose generations it may refer to.

    Raises
    ------
    KeyError, TypeError, ValueError
        For what cannot be.
    """
    name = found["name"]
    if type(name) is not str or found["dtype"] != "float32":
        raise ValueError(f"expected a name and float32, found {name!r} of {found['dtype']!r}")
    shape = Shape(
        check_integer("dim", found["dim"], least=1, most=_WIDEST),
        check_integer("slots", found["slots"], most=_WIDEST),
    )
    if shape.width > _WIDEST:
        raise ValueError(f"{name} has rows of {shape.width:,} numbers, expected up to {_WIDEST:,}")
    links = tuple(_link(name, link) for link in found["links"])
    numbers = [link.generation for link in links]
    if not links or numbers != sorted(set(numbers), reverse=True):
        raise ValueError(f"the links of {name} are of generations {numbers}, expected descending")
    chain = pieces(links)
    if not all(chain) or not _ends(chain):
        raise ValueError(f"the links of {name} do not end with full ones, expected so")
    clock, rows, counted = (check_integer(key, found[key]) for key in ("clock", "rows", "counted"))
    return TableEntry(name, shape, found["config"], clock, rows, counted, links)


def _ends(chain: list[list[Piece]]) -> bool:
    full = [(p.first, p.end) for own in chain for p in own if p.shard.since == -1]
    try:
        check_cover("", full)
    except ValueError:
        return False
    return True


def _link(name: str, found: Mapping[str, Any]) -> Link:
    shards = tuple(shard_of(shard) for shard in found["shards"])
    check_cover(name, [shard.buckets for shard in shards])
    generation, save = (check_integer(key, found[key]) for key in ("generation", "save"))
    return Link(generation, save, shards)


def shard_of(found: Mapping[str, Any]) -> Shard:
    """A shard as a writer or a manifest states it, its numbers checked."""
    first, end = (check_integer("buckets", bucket, most=BUCKETS) for bucket in found["buckets"])
    numbers = {
        key: check_integer(key, found[key], least=-1 if key == "since" else 0) for key in _NUMBERS
    }
    shard = Shard(buckets=(first, end), **numbers)
    if shard.rows + shard.dead > shard.entries or shard.blocks > shard.entries or first > end:
        raise ValueError(f"expected a shard whose numbers agree, found {shard}")
    if shard.blocks >= 1 << 32 or shard.since > shard.clock:
        raise ValueError(f"expected a shard whose numbers agree, found {shard}")
    return shard


@dataclass(frozen=True)
class LinkInfo:
    """One save's share of a table: what changed after `since`, or all where that is -1.

    Where shards differ, `since` is the least of theirs.
    """

    generation: int
    clock: int
    since: int
    rows: int
    dead: int
    bytes: int


@dataclass(frozen=True)
class TableInfo:
    """What a saved table is.

    Attributes
    ----------
    rows, counted
        Ids with a row, and ids that are only counted so far.
    bytes
        Of the values that hold it, of all links.
    slots
        Rows of the optimizer beside each embedding.
    links
        Newest first.
    """

    name: str
    dim: int
    rows: int
    counted: int
    bytes: int
    slots: int
    clock: int
    config: Any
    links: tuple[LinkInfo, ...]


def info_of(entry: TableEntry) -> TableInfo:
    """What a table of a manifest is, for people."""
    links = tuple(
        LinkInfo(
            link.generation,
            max(shard.clock for shard in link.shards),
            min(shard.since for shard in link.shards),
            *(sum(getattr(s, name) for s in link.shards) for name in ("rows", "dead", "bytes")),
        )
        for link in entry.links
    )
    return TableInfo(
        entry.name, entry.shape.dim, entry.rows, entry.counted, entry.bytes, entry.shape.slots,
        entry.clock, entry.config, links,
    )  # fmt: skip
