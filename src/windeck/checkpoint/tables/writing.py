"""Writing of tables: full or as deltas, and the saves that a delta may be based on.

A delta holds the entries that changed after the table's clock at another save. So it is correct
only if the table was equal to that save once, and if everything since changed the clock. The
table's `history` counts the changes that did not, such as clearing the table.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from windeck._core import EmbeddingCore, bucket_of
from windeck._util.parallel import THREADS, read_ahead
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import encode_json
from windeck.checkpoint.format.table_blocks import (
    BLOCK_BYTES,
    INDEX_LINES,
    BlockSize,
    TableShape,
)
from windeck.checkpoint.format.table_entries import (
    BUCKETS,
    TableShard,
)
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, encode
from windeck.checkpoint.stores.protocol import MIN_SPLIT_BYTES, Items, ParallelItems, Pieces
from windeck.checkpoint.tables.blocks import (
    Block,
    pack_entries,
)
from windeck.checkpoint.tables.entries import (
    Entries,
    Int64s,
    entries_from_removed,
    entries_from_snapshot,
    merge_entries,
)

__all__ = [
    "TableSnapshot",
    "TablesWriter",
    "check_table",
    "check_tables",
    "check_tables_of_modules",
    "forget_saves",
    "iter_entries",
    "remember_save",
    "table_shape",
]


#: Saves remembered of a table. It keeps the ids of removed rows since the oldest of them.
_MAX_SAVES = 8


class _KnownSaves:
    """Clocks of a table at the saves that it was equal to, by save and name, oldest first."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.clocks: dict[tuple[int, str], int] = {}


_known_saves: weakref.WeakKeyDictionary[Any, _KnownSaves] = weakref.WeakKeyDictionary()


def remember_save(core: Any, save: int, name: str, clock: int, history: int) -> None:
    """Record that a table was equal to a save, even if that save is not committed yet.

    Parameters
    ----------
    save, name
        The random number of the save, and the table's name there.
    clock, history
        Of the table at that time.
    """
    known = _known_saves.get(core)
    if known is None or known.history != history:
        known = _known_saves[core] = _KnownSaves(history)
    known.clocks.pop((save, name), None)
    known.clocks[save, name] = clock
    while len(known.clocks) > _MAX_SAVES:
        del known.clocks[next(iter(known.clocks))]
    if core.history == history:
        core.forget_dead(min(known.clocks.values()))
        known.history = core.history


def forget_saves(core: Any) -> None:
    """Forget the saves that a table was equal to, so that the next save of it is full."""
    _known_saves.pop(core, None)


def _clock_at_save(core: Any, save: int, name: str, history: int) -> int | None:
    """Return the clock of a table when it was equal to a save; None if it never was."""
    known = _known_saves.get(core)
    if known is None or known.history != history:
        return None
    return known.clocks.get((save, name))


#: Bytes of entries read from a snapshot at once, so few that they are still in the cache when they
#: are sent.
READ_BYTES = 2 << 20
# First buckets of the ranges that 2 to 8 shards own. Blocks end there, so that a block is read for
# one shard only; but not in a table below `_SMALL_BYTES`, which would get too many small blocks.
_SHARD_BORDERS = sorted({rank * BUCKETS // n for n in range(2, 9) for rank in range(1, n)})
_SMALL_BYTES = 1 << 20
T = TypeVar("T")


class TableSnapshot(Protocol):
    """The state of a table at one moment, as `EmbeddingCore.snapshot` returns it."""

    @property
    def clock(self) -> int: ...

    def counts(self, since: int = -1) -> Int64s: ...

    def read(self, first_bucket: int, end_bucket: int, since: int = -1) -> dict[str, Any]: ...

    def dead(self, since: int) -> tuple[Int64s, Int64s]: ...


def iter_entries(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: TableShape
) -> Iterator[Entries]:
    """Yield the entries of some buckets that changed after `since` (-1: all), in order.

    About `READ_BYTES` at a time.
    """
    read = partial(_read_entries, snapshot, since)
    for _, call in _calls_of_ranges(snapshot, buckets, since, shape, read):
        yield call()


def _iter_blocks(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: TableShape, threads: int
) -> Iterator[tuple[int, Callable[[], list[Block]]]]:
    """Yield calls that return blocks of these entries, each with about the bytes of its result.

    Any thread may make the calls, one after the other. Each call packs with several threads.
    """
    total = int(snapshot.counts(since).sum()) * shape.entry_bytes
    borders = _SHARD_BORDERS if total >= _SMALL_BYTES else ()
    read = partial(_read_blocks, snapshot, since, shape, borders, threads)
    return _calls_of_ranges(snapshot, buckets, since, shape, read)


def _calls_of_ranges(
    snapshot: TableSnapshot,
    buckets: tuple[int, int],
    since: int,
    shape: TableShape,
    read: Callable[[int, int, Entries], T],
) -> Iterator[tuple[int, Callable[[], T]]]:
    """Yield sizes and calls of `read` with ranges of buckets and the dead entries in each.

    Ranges without entries are left out.
    """
    ids, clocks = snapshot.dead(since) if since >= 0 else (np.empty(0, np.int64),) * 2
    dead, dead_buckets = entries_from_removed(ids, clocks, shape), bucket_of(ids)
    counts = snapshot.counts(since) + np.bincount(dead_buckets, minlength=BUCKETS)
    for first, end, size in _split_buckets(counts.tolist(), buckets, shape.entry_bytes):
        start, stop = (int(place) for place in np.searchsorted(dead_buckets, [first, end]))
        yield size, partial(read, first, end, dead.slice(start, stop))


def _read_entries(
    snapshot: TableSnapshot, since: int, first: int, end: int, dead: Entries
) -> Entries:
    found = entries_from_snapshot(snapshot.read(first, end, since))
    return merge_entries([found, dead]) if len(dead) else found


def _read_blocks(
    snapshot: TableSnapshot,
    since: int,
    shape: TableShape,
    borders: Sequence[int],
    threads: int,
    first: int,
    end: int,
    dead: Entries,
) -> list[Block]:
    native = getattr(snapshot, "blocks", None)  # copies rows once
    if len(dead) or native is None:
        return pack_entries(_read_entries(snapshot, since, first, end, dead), shape, borders)
    found = native(
        first, end, since, dim=shape.dim, slots=shape.slots, most=BLOCK_BYTES, borders=borders,
        threads=threads,
    )  # fmt: skip
    return [Block(*block) for block in found]


def _split_buckets(
    counts: Sequence[int], buckets: tuple[int, int], entry_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of buckets with at most `READ_BYTES`, or of one bucket, and their bytes.

    No range is empty.
    """
    first, end = buckets
    held = 0
    for bucket in range(*buckets):
        size = counts[bucket] * entry_bytes
        if held and held + size > READ_BYTES:
            yield first, bucket, held
            first, held = bucket, 0
        held += size
    if held:
        yield first, end, held


#: Above this share of changed ids a table is written in full.
_MAX_CHANGED = 0.5
#: Bytes of blocks that may wait for the store.
_AHEAD_BYTES = 4 << 20


def check_tables(embeddings: Any) -> None:
    """Raise a TypeError unless `embeddings` is a mapping."""
    if not isinstance(embeddings, Mapping):
        raise TypeError(f"`embeddings` must be a dict of tables, got {type(embeddings).__name__}")


def check_tables_of_modules(state: Mapping[str, Any], embeddings: Any, doing: str) -> None:
    """Raise a ValueError for a table in a module of `state` that `embeddings` lacks.

    The state_dict of a module does not contain the rows of its tables, so they would be lost.

    Parameters
    ----------
    state
        Roots by name; those that are modules may have tables.
    embeddings
        Tables by name, or None.
    doing
        ``"saved"`` or ``"loaded"``, for the error.
    """
    embeddings = embeddings or {}
    check_tables(embeddings)
    given = {id(check_table(name, table)) for name, table in embeddings.items()}
    torch = sys.modules.get("torch")  # without it there are no modules
    for root, value in state.items():
        if torch is None or not isinstance(value, torch.nn.Module):
            continue
        for name, module in value.named_modules():
            core = vars(module).get("core")
            if isinstance(core, EmbeddingCore) and id(core) not in given:
                place = f"{root}.{name}" if name else root
                raise ValueError(
                    f"{place} is an embedding table, whose rows are not in the state_dict of a "
                    f"module and would not be {doing}: pass it in `embeddings`, or the state_dict "
                    "of the module to leave it out"
                )


def check_table(name: str, table: Any) -> Any:
    """Return the core of a table; raise a TypeError for a value that is not a table."""
    core = getattr(table, "core", None)
    if core is None or not hasattr(core, "snapshot"):
        raise TypeError(
            f"embeddings/{name} must be a table, which has a core and a config, got "
            f"{type(table).__name__}"
        )
    return core


def table_shape(core: Any) -> TableShape:
    """Return the shape of the rows of a core; one without a dtype has float32."""
    return TableShape(core.dim, core.slots, getattr(core, "dtype", "float32"))


class TablesWriter:
    """Writes the tables of one writer in one save.

    The tables are saved as they are when this is constructed; `close` it after the save. The
    snapshot of each table is closed as soon as its blocks were read.

    Parameters
    ----------
    embeddings
        Tables by name.

    Raises
    ------
    TypeError, ValueError
        For a value that is not a table, or a config that is not plain JSON.
    """

    def __init__(self, embeddings: Mapping[str, Any] | None) -> None:
        self._stack, self._tables = ExitStack(), list[_EmbeddingWriter]()
        self._shards: list[_BlocksWriter] = []
        embeddings = embeddings or {}
        check_tables(embeddings)
        try:
            for name, table in embeddings.items():
                self._tables.append(self._stack.enter_context(_EmbeddingWriter(name, table)))
        except BaseException:
            self._stack.close()
            raise

    def __bool__(self) -> bool:
        return bool(self._tables)

    def use_base(self, save: int) -> None:
        """Write only what changed since a save, of the tables that were equal to it once.

        Parameters
        ----------
        save
            The random number of the save in force.
        """
        for table in self._tables:
            table.use_base(save)

    def blocks(self, namespace: str, label: Label) -> Items:
        """Return the keys, which ascend, and the values of all blocks, to be written once.

        Parameters
        ----------
        label
            Its generation, save and part (the writer) are used.
        """
        every = ((table, shard) for table in self._tables for shard in table.split())
        self._shards = [_BlocksWriter(table, i, *shard) for i, (table, shard) in enumerate(every)]
        return ParallelItems(
            [(shard.size, partial(shard.blocks, namespace, label)) for shard in self._shards],
            in_order=partial(self._blocks_in_order, namespace, label),
        )

    def _blocks_in_order(self, namespace: str, label: Label) -> Items:
        for shard in self._shards:
            yield from shard.blocks(namespace, label, ahead=True)

    def index(self, namespace: str, label: Label) -> Items:
        """Yield the keys and values of the index, after `blocks` was exhausted."""
        for shard in self._shards:
            yield from shard.index(namespace, label)

    def manifest_entries(self, writer: int) -> list[dict[str, Any]]:
        """Return the tables' entries for the writer's manifest, after all was written."""
        return [
            table.manifest_entry(
                shard.entry(writer) for shard in self._shards if shard.table is table
            )
            for table in self._tables
        ]

    def remember(self, save: int) -> None:
        """Record, after all was written, that the next delta may be based on this save.

        This is safe before the commit: a delta is only based on the save in force.
        """
        for table in self._tables:
            table.remember(save)

    def close(self) -> None:
        """Close the snapshots."""
        self._stack.close()

    def __enter__(self) -> TablesWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _EmbeddingWriter:
    """Writes one table from a snapshot, in shards that threads can write at the same time."""

    def __init__(self, name: str, table: Any) -> None:
        if type(name) is not str:
            raise TypeError(f"keys of `embeddings` must be str, got {type(name).__name__}")
        self.core, self.name = check_table(name, table), name
        self._config = _check_config(name, table.config)
        self.shape = table_shape(self.core)
        if (longest := BlockSize(1, 1, 0).bytes(self.shape)) > LARGEST_PAYLOAD:
            raise ValueError(
                f"a row of embeddings/{name} has {longest:,} bytes as a block, expected at most "
                f"{LARGEST_PAYLOAD:,}"
            )
        self._buckets = int(self.core.first_bucket), int(self.core.end_bucket)
        self.snapshot = self.core.snapshot()
        self.clock, self._history = int(self.snapshot.clock), int(self.snapshot.history)
        self.since = -1
        self._all_rows = self._counted = 0  # also those that a delta does not have
        self._unread: list[tuple[int, int]] = []

    def use_base(self, save: int) -> None:
        """Write a delta if the table was equal to the save, and not too much has changed."""
        clock = _clock_at_save(self.core, save, self.name, self._history)
        if clock is not None:
            changed = int(self.snapshot.counts(clock).sum())
            if changed <= _MAX_CHANGED * self.snapshot.counts(-1).sum():
                self.since = clock

    def remember(self, save: int) -> None:
        """Record that the table was equal to a save."""
        remember_save(self.core, save, self.name, self.clock, self._history)

    def split(self) -> list[tuple[tuple[int, int], int]]:
        """Return the buckets and bytes of the shards to be written: one, or two of a large table.

        Call `end_shard` when one was read.
        """
        self._all_rows = int(self.snapshot.rows)
        self._counted = int(self.snapshot.counts(-1).sum()) - self._all_rows
        size = int(self.snapshot.counts(self.since).sum()) * self.shape.entry_bytes
        first, end = self._buckets
        if size < 2 * MIN_SPLIT_BYTES or end - first < 2:
            self._unread = [self._buckets]
        else:  # ids are spread evenly over the buckets
            middle = (first + end) // 2
            self._unread = [(first, middle), (middle, end)]
        return [(buckets, size // len(self._unread)) for buckets in self._unread]

    def end_shard(self) -> None:
        """Close the snapshot after the last shard, so that training copies no more rows for it."""
        self._unread.pop()
        if not self._unread:
            self.snapshot.close()

    def manifest_entry(self, shards: Iterable[TableShard]) -> dict[str, Any]:
        """Return the table's entry for the writer's manifest, after all was written."""
        return {
            "name": self.name, "dim": self.shape.dim, "dtype": self.shape.dtype,
            "slots": self.shape.slots, "config": self._config, "clock": self.clock,
            "rows": self._all_rows, "counted": self._counted,
            "shards": [asdict(shard) for shard in shards],
        }  # fmt: skip

    def __enter__(self) -> _EmbeddingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.snapshot.close()


class _BlocksWriter:
    """Encodes the blocks of a range of buckets of a table, and counts what was written."""

    def __init__(
        self, table: _EmbeddingWriter, item: int, buckets: tuple[int, int], size: int
    ) -> None:
        self.table, self._item, self._buckets, self.size = table, item, buckets, size
        self._lines: list[bytes] = []
        self._entries = self._rows = self._dead = self._bytes = 0

    def blocks(self, namespace: str, label: Label, *, ahead: bool = False) -> Items:
        """Yield keys and values of the blocks.

        Parameters
        ----------
        ahead
            Other threads pack blocks while the store writes those before.
        """
        table, threads = self.table, THREADS if ahead else 1
        calls = _iter_blocks(table.snapshot, self._buckets, table.since, table.shape, threads)
        packed = read_ahead(calls, limit=_AHEAD_BYTES) if ahead else (call() for _, call in calls)
        for blocks in packed:
            for block in blocks:
                yield self._encode_block(namespace, label, block)
        table.end_shard()

    def _encode_block(self, namespace: str, label: Label, block: Block) -> tuple[bytes, Pieces]:
        """Return key and value of a block, after counting it as written."""
        generation, writer, number = label.generation, label.part, len(self._lines)
        own = Label(Kind.BLOCK, generation, label.save, self._item, writer, number)
        value = block.value(own)
        self._lines.append(block.line())
        self._entries += block.entries
        self._rows += block.rows
        self._dead += block.dead
        self._bytes += len(value)
        return keys.block(namespace, generation, writer, self._item, number), value

    def index(self, namespace: str, label: Label) -> Items:
        """Yield keys and values of the index, after `blocks` was exhausted."""
        generation, writer = label.generation, label.part
        for number, first in enumerate(range(0, len(self._lines), INDEX_LINES)):
            own = Label(Kind.INDEX, generation, label.save, self._item, writer, number)
            value = encode(own, *self._lines[first : first + INDEX_LINES])
            self._bytes += len(value)
            yield keys.index(namespace, generation, writer, self._item, number), value

    def entry(self, writer: int) -> TableShard:
        """Return the description of what was written, after `index` was exhausted."""
        return TableShard(
            writer=writer, item=self._item, buckets=self._buckets, since=self.table.since,
            clock=self.table.clock, blocks=len(self._lines), entries=self._entries,
            rows=self._rows, dead=self._dead, bytes=self._bytes,
        )  # fmt: skip


def _check_config(name: str, config: Any) -> Any:
    """Return a config; raise an error unless it is a dict of plain JSON."""
    try:
        encode_json(config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the config of embeddings/{name} is not plain JSON: {error}") from error
    if not isinstance(config, dict):
        raise TypeError(
            f"the config of embeddings/{name} must be a dict, got {type(config).__name__}"
        )
    return config
