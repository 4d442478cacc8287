"""Tables on their way into a store: one snapshot of each, full or what changed since a save."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import as_json
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, encode
from windeck.checkpoint.stores.protocol import Items, Pieces
from windeck.checkpoint.tables.bases import clock_at, remember
from windeck.checkpoint.tables.blocks import Block
from windeck.checkpoint.tables.cutting import blocks_of
from windeck.checkpoint.tables.index import LINES, line
from windeck.checkpoint.tables.links import Shard
from windeck.checkpoint.tables.shapes import Shape, Size
from windeck.checkpoint.writers.ahead import one_ahead

__all__ = ["Exports", "check_table"]

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
        for blocks in one_ahead(calls, limit=_AHEAD_BYTES):
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
