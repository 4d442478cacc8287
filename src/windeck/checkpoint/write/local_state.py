"""The state of a step that one process holds, and the writer of its values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from windeck._util.progress import report_bytes
from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.boxes import Box, slices
from windeck.checkpoint.format.chunks import (
    MIN_CHUNK_BYTES,
    MIN_CHUNKS,
    chunk_bytes_of,
    iter_chunks,
)
from windeck.checkpoint.format.values import Kind, Label, encode_pieces
from windeck.checkpoint.stores.protocol import Items, ParallelItems, Store
from windeck.checkpoint.tables.writing import TablesWriter
from windeck.checkpoint.write.copies import LentTensors
from windeck.checkpoint.write.incremental import BaseSave, ChunkDigests
from windeck.checkpoint.write.local_tensors import (
    LocalTensor,
    TensorPiece,
    is_distributed,
    split_piece,
    to_local_tensor,
)
from windeck.columns.dtypes import dtype_name

__all__ = ["LocalState", "StateWriter", "encode_chunks"]


#: Roots that have to be a dict or an object with `state_dict`, so that `load` can fill them.
_LOADED_IN_PLACE = ("model", "optimizer")


class LocalState:
    """The state of a step that one process holds.

    Attributes
    ----------
    trees
        The given values as JSON, by root.
    tensors
        The local part of each tensor, by the name of its first place.

    Parameters
    ----------
    given
        ``model``, ``optimizer``, ...; roots that are None are left out.
    alone
        Whether this process saves alone, so that tensors have to be whole.
    """

    def __init__(self, given: Mapping[str, Any], *, alone: bool = False) -> None:
        self.trees: dict[str, Any] = {}
        self.tensors: dict[str, LocalTensor] = {}
        self._first_names: dict[Any, str] = {}
        self._names: set[str] = set()
        self._alone = alone
        for name, value in given.items():
            if value is not None:
                self.trees[name] = self._encode(name, value)

    def _encode(self, name: str, value: Any) -> Any:
        if hasattr(value, "state_dict") and not isinstance(value, Mapping):
            value = value.state_dict()
        elif name in _LOADED_IN_PLACE and not isinstance(value, Mapping):
            raise TypeError(
                f"`{name}` must be a dict or an object with state_dict, got {type(value).__name__}"
            )
        return state_json.encode(value, name, self._add)

    def _add(self, name: str, value: Any) -> str:
        """Add a tensor; return the name that its data are stored under."""
        if name in self._names:
            raise ValueError(f"two tensors have the name {name}, expected one of each name")
        self._names.add(name)
        local = to_local_tensor(name, value)
        if self._alone and not local.is_whole:
            raise ValueError(_incomplete_message(name, value, local))
        memory = local.memory
        first = self._first_names.setdefault(name if memory is None else memory, name)
        if first == name:
            self.tensors[name] = local
        return first


def _incomplete_message(name: str, value: Any, local: LocalTensor) -> str:
    kind = "DTensor" if is_distributed(value) else "Partition"
    held = [str([f"{s.start}:{s.stop}" for s in slices(piece.box)]) for piece in local.pieces]
    found = " and ".join(held).replace("'", "") or "no elements"
    return (
        f"{name} is a {kind} of shape {local.shape} with {found} of it in this process, expected "
        "all: save it with group=, or save_shard"
    )


def encode_chunks(
    namespace: str,
    generation: int,
    save: int,
    item: int,
    tensor: torch.Tensor,
    chunk_bytes: int,
    *,
    writer: int = 0,
    digests: ChunkDigests | None = None,
) -> Items:
    """Yield the chunks of a tensor with their keys, each valid until the next one is requested.

    Parameters
    ----------
    generation, save, writer
        Number of the save, its random number, and the writer's number.
    item, tensor
        Number of the tensor among those of the writer, and the tensor.
    chunk_bytes
        Bytes of a full chunk.
    digests
        Skips the chunks that need not be written; None: all are written.
    """
    chunks = enumerate(iter_chunks(tensor, chunk_bytes))
    for number, data in digests.changed(item, tensor, chunk_bytes) if digests else chunks:
        label = Label(Kind.CHUNK, generation, save, item, writer, number)
        yield keys.chunk(namespace, generation, writer, item, number), encode_pieces(label, data)


class _TensorItem(NamedTuple):
    """A piece to be written, its number, and the bytes of its elements."""

    number: int
    piece: TensorPiece
    size: int


class _TensorItems(NamedTuple):
    """The pieces of a tensor that a writer writes, and the bytes of a chunk of it."""

    chunk_bytes: int
    items: list[_TensorItem]


def _no_progress(nbytes: int) -> None:
    """Report nothing."""


class StateWriter:
    """Writes the values that one writer of a save has: of tensors and of tables.

    Parameters
    ----------
    namespace, generation, save
        Of the save: its number and its random number.
    state
        The state of the writer.
    chunk_bytes
        Maximum bytes of a chunk.
    writer, writers
        The writer's number, and the number of writers.
    is_chosen
        Returns whether this writer writes a box of a tensor of a name; None: it writes the tensors
        that it owns.
    incremental, base
        Whether digests are written, so that a later save can refer to this one; and the save that
        this one refers to. None: everything is written.
    tables
        The embedding tables of the writer.
    lent
        Tensors to be written first, and then released.
    """

    def __init__(
        self,
        namespace: str,
        generation: int,
        save: int,
        state: LocalState,
        *,
        chunk_bytes: int,
        writer: int = 0,
        writers: int = 1,
        is_chosen: Callable[[str, Box], bool] | None = None,
        incremental: bool = False,
        base: BaseSave | None = None,
        tables: TablesWriter | None = None,
        lent: LentTensors | None = None,
    ) -> None:
        self._of, self._writer, self._state = (namespace, generation, save), writer, state
        self._chunk_bytes, self._writers = chunk_bytes, writers
        self._lent = lent if lent is not None and lent.names else None
        self._digests = ChunkDigests(base) if incremental else None
        self._tables = tables
        if base is not None and tables is not None:
            tables.use_base(base.commit.save)
        self._tensors: dict[str, _TensorItems] = {}
        self._count = 0
        self._advance: Callable[[int], None] = _no_progress
        for name, local in state.tensors.items() if self._lent is None else self._lent_first():
            self._add(name, local, is_chosen)
        names = () if self._lent is None else self._lent.names
        self._lent_numbers = {item.number for name in names for item in self._tensors[name].items}
        if self._lent is not None:
            self._release(())

    def _lent_first(self) -> list[tuple[str, LocalTensor]]:
        """Return the tensors in the order in which they are written."""
        names = self._lent.names if self._lent is not None else ()
        return sorted(self._state.tensors.items(), key=lambda item: item[0] not in names)

    def _add(
        self, name: str, local: LocalTensor, is_chosen: Callable[[str, Box], bool] | None
    ) -> None:
        """Add the pieces of a tensor that this writer writes."""
        width = local.dtype.itemsize
        chunk_bytes = chunk_bytes_of(local.shape, width, self._chunk_bytes, self._writers)
        items: list[_TensorItem] = []
        for whole in local.pieces:
            if not (local.is_owner if is_chosen is None else is_chosen(name, whole.box)):
                continue
            for piece in split_piece(whole, local.shape, MIN_CHUNKS, MIN_CHUNK_BYTES):
                number, size = self._count, piece.tensor.numel() * width
                items.append(_TensorItem(number, piece, size))
                self._count += 1
                if self._digests is not None:
                    dtype = dtype_name(local.dtype)
                    self._digests.add(number, name, dtype, local.shape, piece.box, chunk_bytes)
        self._tensors[name] = _TensorItems(chunk_bytes, items)

    def _release(self, numbers: Collection[int]) -> None:
        """Release the lent tensors if no others than these items are left of them."""
        self._lent_numbers.difference_update(numbers)
        if self._lent is not None and not self._lent_numbers:
            self._lent.release()

    def bulk_loads(self) -> Iterator[tuple[str, Items]]:
        """Yield the letter of a kind of keys and its pairs in ascending order.

        Kinds without pairs are left out. Each iterator has to be exhausted before the next.
        """
        if self._lent is not None:
            yield from self._tensor_loads()
        if self._tables:
            namespace, generation, save = self._of
            label = Label(Kind.BLOCK, generation, save, part=self._writer)
            yield "e", self._tables.blocks(namespace, label)
            yield "i", self._tables.index(namespace, label)
        if self._lent is None:
            yield from self._tensor_loads()

    def _tensor_loads(self) -> Iterator[tuple[str, Items]]:
        if self._count:
            yield "t", self._chunks()
            if self._digests is not None:
                yield "d", self._digests.pairs(*self._of, self._writer)

    def write(self, store: Store) -> None:
        """Write the values into an open store; they are durable after a `sync`."""
        total = sum(item.size for tensor in self._tensors.values() for item in tensor.items)
        with report_bytes("saving", total) as self._advance:
            self._write(store)

    def _write(self, store: Store) -> None:
        for kind, items in self.bulk_loads():
            # The index of a table's blocks is small, and its keys sort with other small ones. Data
            # are never in one table of an engine with these: see docs/design.
            (store.put_many if kind == "i" else store.bulk_load)(items)

    def entries(self) -> list[dict[str, Any]]:
        """Return the manifest's entries of the tensors, after `bulk_loads` was exhausted."""
        return [self._entry(name, local) for name, local in self._state.tensors.items()]

    def table_entries(self) -> list[dict[str, Any]]:
        """Return the writer's entries of the tables, after `bulk_loads` was exhausted."""
        return self._tables.manifest_entries(self._writer) if self._tables else []

    def _chunks(self) -> ParallelItems:
        """Return the chunks, in a part for each tensor, so that several threads can write."""
        return ParallelItems(
            [
                (item.size, partial(self._encode, item, tensor.chunk_bytes))
                for tensor in self._tensors.values()
                for item in tensor.items
            ]
        )

    def _encode(self, item: _TensorItem, chunk_bytes: int) -> Items:
        chunks = encode_chunks(
            *self._of,
            item.number,
            item.piece.tensor,
            chunk_bytes,
            writer=self._writer,
            digests=self._digests,
        )
        left = item.size
        for chunk in chunks:
            yield chunk
            written = min(chunk_bytes, left)
            left -= written
            self._advance(written)
        self._advance(left)  # of an incremental save: chunks that did not change
        if item.number in self._lent_numbers:
            self._release((item.number,))

    def _entry(self, name: str, local: LocalTensor) -> dict[str, Any]:
        chunk_bytes, items = self._tensors[name]
        entry: dict[str, Any] = {
            "name": name,
            "dtype": dtype_name(local.dtype),
            "shape": local.shape,
        }
        if chunk_bytes != self._chunk_bytes:
            entry["chunk_bytes"] = chunk_bytes
        entry["parts"] = [
            {
                "box": item.piece.box,
                "item": item.number,
                **({} if self._digests is None else self._digests.kept(item.number)),
            }
            for item in items
        ]
        return entry
