"""What tables in memory were equal to: the saves that a delta of them may be based on.

A delta holds what a table's clock tells of the time since a save. So it is right only for a save
that the table once was equal to, and as long as all that happened since is something the clock
tells of; `history` counts what is not, such as that all was cleared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from windeck._core import bucket_of
from windeck._util.parallel import read_ahead
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import as_json
from windeck.checkpoint.format.table_entries import BUCKETS, ENTRY_BYTES, Shape, Shard, Size
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, encode
from windeck.checkpoint.stores.protocol import Items, Pieces
from windeck.checkpoint.tables.blocks import BLOCK_BYTES, LINES, Block, line, pack
from windeck.checkpoint.tables.entries import Entries, Int64s, merged, of_dead, of_snapshot

__all__ = [
    "Exports",
    "TableSnapshot",
    "blocks_of",
    "check_table",
    "clock_at",
    "entries_of",
    "forget",
    "remember",
]


#: Saves remembered of a table. It keeps the ids of removed rows from the oldest of them on.
_MOST = 8


class _Bases:
    """Of a table, clocks by save and name, oldest first."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.clocks: dict[tuple[int, str], int] = {}


_known: weakref.WeakKeyDictionary[Any, _Bases] = weakref.WeakKeyDictionary()


def remember(core: Any, save: int, name: str, clock: int, history: int) -> None:
    """A table was equal to what a save holds, or will when that is committed.

    Parameters
    ----------
    save, name
        The random number of the save, and the table's name there.
    clock, history
        The table's, then.
    """
    bases = _known.get(core)
    if bases is None or bases.history != history:
        bases = _known[core] = _Bases(history)
    bases.clocks.pop((save, name), None)
    bases.clocks[save, name] = clock
    while len(bases.clocks) > _MOST:
        del bases.clocks[next(iter(bases.clocks))]
    if core.history == history:
        core.forget_dead(min(bases.clocks.values()))
        bases.history = core.history


def forget(core: Any) -> None:
    """A table is equal to nothing that is remembered; the next save of it is full."""
    _known.pop(core, None)


def clock_at(core: Any, save: int, name: str, history: int) -> int | None:
    """The clock of a table when it was equal to a save; None where a delta to it is not right."""
    bases = _known.get(core)
    if bases is None or bases.history != history:
        return None
    return bases.clocks.get((save, name))


#: Bytes of entries read from a snapshot at once: so few that they are still in the cache when they
#: are sent.
READ_BYTES = 1 << 20
# Where ranges of buckets begin when 2 to 8 shards share them: blocks end there, so that readers of
# other shards do not read them too. A table smaller than this is not worth as many blocks.
_BORDERS = sorted({rank * BUCKETS // n for n in range(2, 9) for rank in range(1, n)})
_SMALL_BYTES = 1 << 20
T = TypeVar("T")


class TableSnapshot(Protocol):
    """One moment of a table, as `EmbeddingCore.snapshot` gives it."""

    @property
    def clock(self) -> int: ...

    def counts(self, since: int = -1) -> Int64s: ...

    def read(self, first_bucket: int, end_bucket: int, since: int = -1) -> dict[str, Any]: ...

    def dead(self, since: int) -> tuple[Int64s, Int64s]: ...


def entries_of(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: Shape
) -> Iterator[Entries]:
    """The entries of some buckets in order, some MiB at a time; what changed, or all for -1."""
    for _, read in _reads(snapshot, buckets, since, shape, partial(_read, snapshot, since)):
        yield read()


def blocks_of(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: Shape
) -> Iterator[tuple[int, Callable[[], list[Block]]]]:
    """The same as blocks: calls that make some, each with about the bytes that it gives. Any
    thread may call them, one after the other."""
    whole = int(snapshot.counts(since).sum()) * _entry_bytes(shape)
    borders = _BORDERS if whole >= _SMALL_BYTES else ()
    return _reads(
        snapshot, buckets, since, shape, partial(_packed, snapshot, since, shape, borders)
    )


def _reads(
    snapshot: TableSnapshot,
    buckets: tuple[int, int],
    since: int,
    shape: Shape,
    read: Callable[[int, int, Entries], T],
) -> Iterator[tuple[int, Callable[[], T]]]:
    """Calls of `read` with ranges of buckets, none without entries, and with the dead of each."""
    keys, clocks = snapshot.dead(since) if since >= 0 else (np.empty(0, np.int64),) * 2
    dead, where = of_dead(keys, clocks, shape.width), bucket_of(keys)
    counts = snapshot.counts(since)
    counts = counts + np.bincount(where, minlength=BUCKETS)
    for first, end, size in _ranges(counts.tolist(), buckets, _entry_bytes(shape)):
        start, stop = (int(place) for place in np.searchsorted(where, [first, end]))
        yield size, partial(read, first, end, dead.part(start, stop))


def _read(snapshot: TableSnapshot, since: int, first: int, end: int, dead: Entries) -> Entries:
    found = of_snapshot(snapshot.read(first, end, since))
    return merged([found, dead]) if len(dead) else found


def _packed(
    snapshot: TableSnapshot,
    since: int,
    shape: Shape,
    borders: Sequence[int],
    first: int,
    end: int,
    dead: Entries,
) -> list[Block]:
    direct = getattr(snapshot, "blocks", None)  # of native code: rows are copied once
    if len(dead) or direct is None:
        return pack(_read(snapshot, since, first, end, dead), shape, borders)
    found = direct(
        first, end, since, dim=shape.dim, slots=shape.slots, most=BLOCK_BYTES, borders=borders
    )
    return [Block(*block) for block in found]


def _entry_bytes(shape: Shape) -> int:
    return ENTRY_BYTES + 4 * shape.width


def _ranges(
    counts: Sequence[int], buckets: tuple[int, int], entry: int
) -> Iterator[tuple[int, int, int]]:
    """Ranges of buckets with at most `READ_BYTES`, or of one bucket, and their bytes; none is
    empty."""
    first, end = buckets
    held = 0
    for bucket in range(*buckets):
        size = counts[bucket] * entry
        if held and held + size > READ_BYTES:
            yield first, bucket, held
            first, held = bucket, 0
        held += size
    if held:
        yield first, end, held


#: A delta of more than this share of the ids is no delta: all is written.
_MOST_CHANGED = 0.5
#: Bytes of blocks that may wait for the store.
_AHEAD_BYTES = 4 << 20


def check_table(name: str, table: Any) -> Any:
    """The core of a table; TypeError for what is none."""
    core = getattr(table, "core", None)
    if core is None or not hasattr(core, "snapshot"):
        raise TypeError(
            f"embeddings/{name} is of type {type(table).__name__}, expected a table, which has a "
            "core and a config"
        )
    return core


class Exports:
    """The tables of one save of one writer.

    Made at the beginning of the save, which is the moment that is saved; `close` it at the end.

    Parameters
    ----------
    embeddings
        Tables by name.
    Raises
    ------
    TypeError, ValueError
        For what is no table, or a config that is no plain JSON.
    """

    def __init__(self, embeddings: Mapping[str, Any] | None) -> None:
        self._stack, self._tables = ExitStack(), list[_Export]()
        if not isinstance(embeddings or {}, Mapping):
            raise TypeError(
                f"embeddings is of type {type(embeddings).__name__}, expected a dict of tables"
            )
        try:
            for item, (name, table) in enumerate((embeddings or {}).items()):
                self._tables.append(self._stack.enter_context(_Export(item, name, table)))
        except BaseException:
            self._stack.close()
            raise

    def __bool__(self) -> bool:
        return bool(self._tables)

    def items(self, namespace: str, label: Label) -> Items:
        """The blocks, then the index of them: keys ascend, some MiB are held at a time.

        Parameters
        ----------
        label
            Its generation, save and part (the writer) count.
        """
        yield from self.blocks(namespace, label)
        yield from self.index(namespace, label)

    def base_on(self, save: int) -> None:
        """Write only what changed since a save, of the tables that were equal to it once.

        Parameters
        ----------
        save
            The random number of the save in force.
        """
        for table in self._tables:
            table.base_on(save)

    def blocks(self, namespace: str, label: Label) -> Items:
        """The blocks alone."""
        for table in self._tables:
            yield from table.blocks(namespace, label)

    def index(self, namespace: str, label: Label) -> Items:
        """Their index, once the blocks were written."""
        for table in self._tables:
            yield from table.index(namespace, label)

    def stated(self, writer: int) -> list[dict[str, Any]]:
        """What was written, once it was, as a writer's manifest says it."""
        return [table.stated(writer) for table in self._tables]

    def committed(self, save: int) -> None:
        """All is written: the next delta may be based on that save, should it come into force.

        Whether it did shows then; until then it does no harm to say so.
        """
        for table in self._tables:
            table.committed(save)

    def close(self) -> None:
        """Let the snapshots go."""
        self._stack.close()

    def __enter__(self) -> Exports:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Export:
    """One table: its snapshot, and what was written of it."""

    def __init__(self, item: int, name: str, table: Any) -> None:
        if type(name) is not str:
            raise TypeError(f"embeddings has a key of type {type(name).__name__}, expected str")
        self.core, self.name, self._item = check_table(name, table), name, item
        self._config = _plain(name, table.config)
        self._shape = Shape(self.core.dim, self.core.slots)
        if (longest := Size(1, 1, 0).bytes(self._shape)) > LARGEST_PAYLOAD:
            raise ValueError(
                f"a row of embeddings/{name} has {longest:,} bytes as a block, expected at most "
                f"{LARGEST_PAYLOAD:,}"
            )
        self._buckets = int(self.core.first_bucket), int(self.core.end_bucket)
        self._snapshot = self.core.snapshot()
        self.clock = int(self._snapshot.clock)
        self._since = -1
        self._lines: list[bytes] = []
        self._entries = self._rows = self._dead = self._bytes = 0

    def base_on(self, save: int) -> None:
        clock = clock_at(self.core, save, self.name, int(self._snapshot.history))
        if clock is not None:
            changed = int(self._snapshot.counts(clock).sum())
            if changed <= _MOST_CHANGED * self._snapshot.counts(-1).sum():
                self._since = clock

    def committed(self, save: int) -> None:
        remember(self.core, save, self.name, self.clock, int(self._snapshot.history))

    def blocks(self, namespace: str, label: Label) -> Items:
        calls = blocks_of(self._snapshot, self._buckets, self._since, self._shape)
        # The store writes meanwhile what was packed before.
        for blocks in read_ahead(calls, limit=_AHEAD_BYTES):
            for block in blocks:
                yield self._pair(namespace, label, block)

    def _pair(self, namespace: str, label: Label, block: Block) -> tuple[bytes, Pieces]:
        """A block with its key, noted as written."""
        generation, writer, number = label.generation, label.part, len(self._lines)
        own = Label(Kind.BLOCK, generation, label.save, self._item, writer, number)
        value = block.value(own)
        self._lines.append(line(block))
        self._entries += block.entries
        self._rows += block.rows
        self._dead += block.dead
        self._bytes += len(value)
        return keys.block(namespace, generation, writer, self._item, number), value

    def index(self, namespace: str, label: Label) -> Items:
        generation, writer = label.generation, label.part
        for number, first in enumerate(range(0, len(self._lines), LINES)):
            own = Label(Kind.INDEX, generation, label.save, self._item, writer, number)
            value = encode(own, *self._lines[first : first + LINES])
            self._bytes += len(value)
            yield keys.index(namespace, generation, writer, self._item, number), value

    def stated(self, writer: int) -> dict[str, Any]:
        shard = Shard(
            writer=writer, item=self._item, buckets=self._buckets, since=self._since,
            clock=self.clock, blocks=len(self._lines), entries=self._entries, rows=self._rows,
            dead=self._dead, bytes=self._bytes,
        )  # fmt: skip
        rows = int(self._snapshot.rows)
        return {
            "name": self.name, "dim": self._shape.dim, "dtype": "float32",
            "slots": self._shape.slots, "config": self._config, "clock": self.clock,
            "rows": rows, "counted": int(self._snapshot.counts(-1).sum()) - rows,
            "shard": asdict(shard),
        }  # fmt: skip

    def __enter__(self) -> _Export:
        return self

    def __exit__(self, *_: object) -> None:
        self._snapshot.close()


def _plain(name: str, config: Any) -> Any:
    """A config that JSON keeps as it is."""
    try:
        as_json(config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the config of embeddings/{name} is no plain JSON: {error}") from error
    if not isinstance(config, dict):
        raise TypeError(
            f"the config of embeddings/{name} is of type {type(config).__name__}, expected dict"
        )
    return config
