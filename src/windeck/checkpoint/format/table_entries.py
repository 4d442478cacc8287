"""The embedding tables of a manifest: their sizes, and the saves that wrote their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from windeck._util.validation import check_integer
from windeck.checkpoint.format.table_blocks import DTYPE_CODES, TableShape

__all__ = ["BUCKETS", "LinkInfo", "ShardRange", "TableEntry", "TableInfo", "TableLink"]
__all__ += ["TableShard", "check_buckets", "parse_shard", "parse_table", "parse_tables"]
__all__ += ["ranges_to_read", "table_info"]


#: Number of buckets, to which ids belong by their hash.
BUCKETS = 1024

#: Limit for the floats of a row, since a row must fit into a value of a store.
_WIDEST = 1 << 27
_NUMBERS = ("writer", "item", "since", "clock", "blocks", "entries", "rows", "dead", "bytes")


@dataclass(frozen=True)
class TableShard:
    """A range of buckets of a table that one writer wrote in one save.

    Attributes
    ----------
    writer, item
        Numbers in the keys of its blocks.
    buckets
        The range of its buckets.
    since, clock
        It has the changes after `since` up to `clock`, or all rows if `since` is -1.
    blocks, entries, rows, dead, bytes
        Amounts written; `bytes` counts the values of blocks and index.
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
class TableLink:
    """The part of a table that one save wrote."""

    generation: int
    save: int
    shards: tuple[TableShard, ...]


@dataclass(frozen=True)
class TableEntry:
    """A table in a manifest.

    Attributes
    ----------
    clock
        Clock of the newest link.
    rows, counted
        Number of ids with a row, and of ids that are only counted.
    config
        JSON of the configuration of the table.
    links
        The saves that wrote it, newest first.
    """

    name: str
    shape: TableShape
    config: Any
    clock: int
    rows: int
    counted: int
    links: tuple[TableLink, ...]

    @property
    def bases(self) -> set[int]:
        """Generations that hold data of the table."""
        return {link.generation for link in self.links}

    @property
    def bytes(self) -> int:
        """Bytes of all its values."""
        return sum(shard.bytes for link in self.links for shard in link.shards)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the table in a manifest."""
        return {
            "name": self.name, "dim": self.shape.dim, "dtype": self.shape.dtype,
            "slots": self.shape.slots, "config": self.config, "clock": self.clock,
            "rows": self.rows, "counted": self.counted,
            "links": [asdict(link) for link in self.links],
        }  # fmt: skip


@dataclass(frozen=True)
class ShardRange:
    """A range of buckets to read from one shard of a link."""

    link: TableLink
    shard: TableShard
    first: int
    end: int


def ranges_to_read(
    links: Iterable[TableLink], first: int = 0, end: int = BUCKETS
) -> list[list[ShardRange]]:
    """Return for each link, newest first, the ranges to read for some buckets, ascending.

    The list of a link is empty if newer full shards cover all of it.
    """
    needed = [(first, end)] if first < end else []
    found = []
    for link in links:
        own = []
        for shard in sorted(link.shards, key=lambda shard: shard.buckets):
            low, high = shard.buckets
            own += [
                ShardRange(link, shard, max(a, low), min(b, high))
                for a, b in needed
                if max(a, low) < min(b, high)
            ]
            if shard.since == -1:
                needed = list(_subtract(needed, low, high))
        found.append(own)
    return found


def _subtract(ranges: Iterable[tuple[int, int]], low: int, high: int) -> Iterator[tuple[int, int]]:
    for a, b in ranges:
        if a < min(b, low):
            yield a, min(b, low)
        if max(a, high) < b:
            yield max(a, high), b


def check_buckets(name: str, ranges: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError unless the ranges cover every bucket exactly once."""
    at = 0
    for first, end in sorted(ranges):
        if first != at or not first <= end <= BUCKETS:
            kind = "twice" if first < at else "by no writer"
            raise ValueError(
                f"the table {name} has buckets {min(first, at)} to {max(first, at) - 1} written "
                f"{kind}, expected each of {BUCKETS:,} once"
            )
        at = end
    if at != BUCKETS:
        raise ValueError(
            f"the table {name} has buckets {at} to {BUCKETS - 1} written by no writer, expected "
            f"each of {BUCKETS:,} once"
        )


def parse_tables(
    found: Iterable[Mapping[str, Any]], generation: int, save: int
) -> dict[str, TableEntry]:
    """Parse the tables of a manifest, by name; raise KeyError, TypeError or ValueError."""
    tables: dict[str, TableEntry] = {}
    for given in found:
        table = parse_table(given)
        if table.name in tables:
            raise ValueError(f"the table {table.name} is listed twice, expected once")
        if any(k.generation == generation and k.save != save for k in table.links):
            raise ValueError(f"the table {table.name} belongs to another save, expected {save}")
        tables[table.name] = table
    return tables


def parse_table(found: Mapping[str, Any]) -> TableEntry:
    """Parse a table of a manifest, and check everything except the generations of its links.

    Raises
    ------
    KeyError, TypeError, ValueError
        When it is not valid.
    """
    name = found["name"]
    dtype = found["dtype"]
    if type(name) is not str or dtype not in DTYPE_CODES:
        raise ValueError(f"expected a name and float32 or bfloat16, found {name!r} of {dtype!r}")
    shape = TableShape(
        check_integer("dim", found["dim"], least=1, most=_WIDEST),
        check_integer("slots", found["slots"], most=_WIDEST),
        dtype,
    )
    if shape.width > _WIDEST:
        raise ValueError(f"{name} has rows of {shape.width:,} numbers, expected up to {_WIDEST:,}")
    links = tuple(_parse_link(name, link) for link in found["links"])
    numbers = [link.generation for link in links]
    if not links or numbers != sorted(set(numbers), reverse=True):
        raise ValueError(f"the links of {name} are of generations {numbers}, expected descending")
    chain = ranges_to_read(links)
    if not all(chain) or not _is_complete(chain):
        raise ValueError(f"the last links of {name} must be full for every bucket")
    clock, rows, counted = (check_integer(key, found[key]) for key in ("clock", "rows", "counted"))
    return TableEntry(name, shape, found["config"], clock, rows, counted, links)


def _is_complete(chain: list[list[ShardRange]]) -> bool:
    full = [(p.first, p.end) for own in chain for p in own if p.shard.since == -1]
    try:
        check_buckets("", full)
    except ValueError:
        return False
    return True


def _parse_link(name: str, found: Mapping[str, Any]) -> TableLink:
    shards = tuple(parse_shard(shard) for shard in found["shards"])
    check_buckets(name, [shard.buckets for shard in shards])
    generation, save = (check_integer(key, found[key]) for key in ("generation", "save"))
    return TableLink(generation, save, shards)


def parse_shard(found: Mapping[str, Any]) -> TableShard:
    """Parse a shard of the manifest of a writer or of a generation, and check its numbers."""
    first, end = (check_integer("buckets", bucket, most=BUCKETS) for bucket in found["buckets"])
    numbers = {
        key: check_integer(key, found[key], least=-1 if key == "since" else 0) for key in _NUMBERS
    }
    shard = TableShard(buckets=(first, end), **numbers)
    if shard.rows + shard.dead > shard.entries or shard.blocks > shard.entries or first > end:
        raise ValueError(f"expected a shard with consistent numbers, found {shard}")
    if shard.blocks >= 1 << 32 or shard.since > shard.clock:
        raise ValueError(f"expected a shard with consistent numbers, found {shard}")
    return shard


@dataclass(frozen=True)
class LinkInfo:
    """The part of a table that one save wrote: changes after `since`, or all rows if it is -1.

    `since` is the minimum over the shards.
    """

    generation: int
    clock: int
    since: int
    rows: int
    dead: int
    bytes: int


@dataclass(frozen=True)
class TableInfo:
    """Description of a saved embedding table.

    Attributes
    ----------
    rows, counted
        Number of ids with a row, and of ids that are only counted so far.
    bytes
        Bytes of all its values in the store.
    slots
        Optimizer slots of each embedding.
    links
        The saves that wrote it, newest first.
    dtype
        Of its rows: ``"float32"`` or ``"bfloat16"``.
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
    dtype: str = "float32"


def table_info(entry: TableEntry) -> TableInfo:
    """Return the description of a table of a manifest."""
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
        entry.clock, entry.config, links, entry.shape.dtype,
    )  # fmt: skip
