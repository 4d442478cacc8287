"""Blocks of a table out of a store: indexes once, blocks some at a time, everything checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, header
from windeck.checkpoint.stores import CorruptStoreError, DirectView, StreamView, View
from windeck.checkpoint.stores.protocol import Wanted
from windeck.checkpoint.tables.blocks import unpack
from windeck.checkpoint.tables.entries import Entries
from windeck.checkpoint.tables.index import LINE_BYTES, LINES, Index, parse
from windeck.checkpoint.tables.links import Link, Piece, Shard
from windeck.checkpoint.tables.shapes import Shape, Size

__all__ = ["Blocks"]

#: Bytes of blocks asked for at once: what was received is still in the processor's cache when the
#: rows are put in.
READ_BYTES = 1 << 20
#: Of a block that is read into memory used again.
_SCRATCH_BYTES = 256 << 10


class Blocks:
    """The blocks of one shard of a link."""

    def __init__(self, view: View, namespace: str, link: Link, shard: Shard, shape: Shape) -> None:
        self._view, self._namespace = view, namespace
        self._link, self._shard, self._shape = link, shard, shape
        self._index: Index | None = None
        self._scratch = np.empty(0, np.uint8)

    @property
    def index(self) -> Index:
        """The index, read when it is first asked for."""
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def read(self, numbers: Iterable[int], *, reuse: bool = False) -> Iterator[tuple[int, Entries]]:
        """Blocks by number, some read at a time.

        Parameters
        ----------
        reuse
            Whether what is given may lie in memory that the next block is read into.
        """
        if reuse and isinstance(self._view, (DirectView, StreamView)):
            numbers = list(numbers)
            if all(self._size(number) <= _SCRATCH_BYTES for number in numbers):
                yield from self._straight(self._view, numbers)
                return
        for group in self._groups(numbers):
            names = [self._key(number) for number in group]
            values = self._view.get_many(names)
            for i, number in enumerate(group):
                value, values[i] = values[i], None  # let go of as soon as it is used
                yield number, self._block(number, self._decoded(number, value))

    def of_piece(self, piece: Piece, *, reuse: bool = False) -> Iterator[Entries]:
        """The entries of a piece's buckets, in order, block by block."""
        before: tuple[int, int] | None = None
        numbers = self.index.touching(piece.first, piece.end)
        for number, found in self.read(numbers, reuse=reuse):
            first = int(self.index.first[number]), int(found.keys[0])
            if before is not None and first <= before:
                raise CorruptStoreError(
                    f"{self._key(number).decode()} is damaged: found id {first[1]} first, expected "
                    "one after the last of the block before"
                )
            before = int(self.index.last[number]), int(found.keys[-1])
            if self.index.first[number] < piece.first or self.index.last[number] >= piece.end:
                found = found.in_buckets(piece.first, piece.end)
            if len(found):
                yield found

    def _groups(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        group: list[int] = []
        held = 0
        for number in numbers:
            size = self.index.size(number).bytes(self._shape)
            if group and held + size > READ_BYTES:
                yield group
                group, held = [], 0
            group.append(number)
            held += size
        if group:
            yield group

    def _straight(
        self, view: DirectView | StreamView, numbers: Iterable[int]
    ) -> Iterator[tuple[int, Entries]]:
        """Blocks, read into memory that is used again."""
        if not len(self._scratch):
            self._scratch = np.empty(_SCRATCH_BYTES, np.uint8)
        head, asked = bytearray(HEADER_BYTES), deque[tuple[int, memoryview]]()

        def wanted() -> Iterator[Wanted]:
            for number in numbers:
                asked.append((number, self._scratch[: self._size(number)].data))
                yield self._key(number), memoryview(head), asked[-1][1]

        if isinstance(view, StreamView):
            answers = view.get_each_into(wanted())
        else:
            answers = (view.get_many_into([one])[0] for one in wanted())
        for crc in answers:
            number, body = asked.popleft()
            if crc is None or head != header(self._label(Kind.BLOCK, number), len(body), crc):
                body = self._decoded(number, self._view.get(self._key(number)))
            yield number, self._block(number, body)

    def _size(self, number: int) -> int:
        return self.index.size(number).bytes(self._shape)

    def _decoded(self, number: int, value: bytes | None) -> memoryview:
        size = self.index.size(number).bytes(self._shape)
        return decode(self._key(number), value, self._label(Kind.BLOCK, number), length=size)

    def _block(self, number: int, payload: memoryview) -> Entries:
        name = self._key(number).decode()
        found = unpack(name, payload, self._shape, self.index.size(number))
        if self._shard.since == -1 and self.index.size(number).dead:
            raise CorruptStoreError(
                f"{name} is damaged: found a removed id, expected none in what is no delta"
            )
        return self.index.check(name, number, found)

    def _read_index(self) -> Index:
        shard, link = self._shard, self._link
        payloads = []
        # One after the other: what the manifest says may be anything, what is there is not.
        for number in range(-(-shard.blocks // LINES)):
            key = self._index_key(number)
            lines = min(LINES, shard.blocks - number * LINES)
            label = self._label(Kind.INDEX, number)
            payloads.append(decode(key, self._view.get(key), label, length=lines * LINE_BYTES))
        name = self._index_key(0).decode()
        found = parse(name, payloads, shard.buckets)
        stated = Size(shard.entries, shard.rows, shard.dead)
        if found.total() != stated:
            raise CorruptStoreError(
                f"{name} is damaged: found {found.total()}, expected {stated} as the manifest of "
                f"generation {link.generation} or a later one says"
            )
        return found

    def _label(self, kind: Kind, number: int) -> Label:
        link, shard = self._link, self._shard
        return Label(kind, link.generation, link.save, shard.item, shard.writer, number)

    def _key(self, number: int) -> bytes:
        shard = self._shard
        return keys.block(self._namespace, self._link.generation, shard.writer, shard.item, number)

    def _index_key(self, number: int) -> bytes:
        shard = self._shard
        return keys.index(self._namespace, self._link.generation, shard.writer, shard.item, number)
