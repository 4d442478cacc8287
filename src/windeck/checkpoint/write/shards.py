"""The state that one process saves, and the shard of a save that it writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.boxes import Box, slices
from windeck.checkpoint.format.chunks import iter_chunks
from windeck.checkpoint.format.manifests import encode_json
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
from windeck.checkpoint.write.plans import MIN_CHUNK_BYTES, MIN_CHUNKS, Plan
from windeck.columns.dtypes import dtype_name

__all__ = ["LocalState", "ShardWriter", "encode_chunks"]


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
        self.tensors: dict[str, LocalTensor] = {}
        self._first_names: dict[Any, str] = {}
        self._names: set[str] = set()
        self._alone = alone
        present = {name: value for name, value in given.items() if value is not None}
        self.trees = {name: self._encode(name, value) for name, value in present.items()}
        # Fail before anything is written for text and numbers that JSON cannot hold.
        encode_json(self.trees)

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


@dataclass(frozen=True)
class _TensorItem:
    """A piece to be written, and its number."""

    number: int
    piece: TensorPiece
    chunk_bytes: int

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return self.piece.tensor.numel() * self.piece.tensor.dtype.itemsize


class ShardWriter:
    """Writes one writer's shard of a save.

    Parameters
    ----------
    plan, writer
        Of the save; the writer's number.
    state
        The state of the writer.
    is_chosen
        Returns whether this writer writes a box of a tensor of a name; None: it writes the tensors
        that it owns.
    base
        The save that an incremental one refers to; None: everything is written.
    tables
        The embedding tables of the writer.
    lent
        Tensors to be written first, and then released.
    """

    def __init__(
        self,
        plan: Plan,
        writer: int,
        state: LocalState,
        *,
        is_chosen: Callable[[str, Box], bool] | None = None,
        base: BaseSave | None = None,
        tables: TablesWriter | None = None,
        lent: LentTensors | None = None,
    ) -> None:
        self.plan, self.writer, self.state = plan, writer, state
        self._lent = lent if lent is not None and lent.names else None
        self._digests = ChunkDigests(base) if plan.incremental else None
        self._tables = tables
        if base is not None and tables is not None:
            tables.use_base(base.commit.save)
        self._items: dict[str, list[_TensorItem]] = {}
        number = 0
        for name, local in self._in_order(state.tensors):
            size = self._chunk_bytes(local)
            self._items[name] = []
            for piece in _chosen_pieces(name, local, is_chosen):
                self._items[name].append(_TensorItem(number, piece, size))
                if self._digests is not None:
                    dtype = dtype_name(local.dtype)
                    self._digests.add(number, name, dtype, local.shape, piece.box, size)
                number += 1
        lent_items = (self._items[name] for name in self._lent.names) if self._lent else ()
        self._lent_numbers = {item.number for items in lent_items for item in items}
        self._release(())

    def _in_order(self, tensors: Mapping[str, LocalTensor]) -> list[tuple[str, LocalTensor]]:
        """Return tensors in the order in which they are written."""
        items = list(tensors.items())
        if (lent := self._lent) is not None:
            items.sort(key=lambda item: item[0] not in lent.names)
        return items

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
            label = Label(Kind.BLOCK, self.plan.generation, self.plan.save, part=self.writer)
            yield "e", self._tables.blocks(self.plan.namespace, label)
            yield "i", self._tables.index(self.plan.namespace, label)
        if self._lent is None:
            yield from self._tensor_loads()

    def _tensor_loads(self) -> Iterator[tuple[str, Items]]:
        if any(self._items.values()):
            yield "t", self._chunks()
            if self._digests is not None:
                of = self.plan.namespace, self.plan.generation, self.plan.save
                yield "d", self._digests.pairs(*of, self.writer)

    def write(self, store: Store) -> None:
        """Write the shard into an open store; it is durable after a `sync`."""
        for kind, items in self.bulk_loads():
            # The index of a table's blocks is too small for a bulk load of its own.
            (store.put_many if kind == "i" else store.bulk_load)(items)

    def manifest(self) -> dict[str, Any]:
        """Return the writer's manifest, after `bulk_loads` was exhausted."""
        found: dict[str, Any] = {
            "plan": self.plan.digest,
            "step": self.plan.step,
            "writer": self.writer,
            "tensors": [self._entry(name) for name in self.state.tensors],
            "trees": self.state.trees,
        }
        if self._tables:
            found["tables"] = self._tables.manifest_entries(self.writer)
        return found

    def _chunks(self) -> ParallelItems:
        """Return the chunks, in a part for each tensor, so that several threads can write."""
        every = (item for items in self._items.values() for item in items)
        return ParallelItems([(item.size, partial(self._encode, item)) for item in every])

    def _encode(self, item: _TensorItem) -> Items:
        yield from encode_chunks(
            self.plan.namespace,
            self.plan.generation,
            self.plan.save,
            item.number,
            item.piece.tensor,
            item.chunk_bytes,
            writer=self.writer,
            digests=self._digests,
        )
        if item.number in self._lent_numbers:
            self._release((item.number,))

    def _entry(self, name: str) -> dict[str, Any]:
        local = self.state.tensors[name]
        entry: dict[str, Any] = {
            "name": name,
            "dtype": dtype_name(local.dtype),
            "shape": list(local.shape),
        }
        size = self._chunk_bytes(local)
        if size != self.plan.chunk_bytes:
            entry["chunk_bytes"] = size
        entry["parts"] = [self._part(item) for item in self._items[name]]
        return entry

    def _part(self, item: _TensorItem) -> dict[str, Any]:
        kept = {} if self._digests is None else self._digests.kept(item.number)
        return {"box": [list(side) for side in item.piece.box], "item": item.number, **kept}

    def _chunk_bytes(self, local: LocalTensor) -> int:
        return self.plan.chunk_bytes_of(local.shape, local.dtype.itemsize)


def _chosen_pieces(
    name: str, local: LocalTensor, is_chosen: Callable[[str, Box], bool] | None
) -> Iterator[TensorPiece]:
    """Yield the boxes of a tensor that this writer writes."""
    for piece in local.pieces:
        if local.is_owner if is_chosen is None else is_chosen(name, piece.box):
            yield from split_piece(piece, local.shape, MIN_CHUNKS, MIN_CHUNK_BYTES)
