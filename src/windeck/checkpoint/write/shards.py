"""State to be saved: trees of what is given, and the tensors in them, each memory once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.boxes import Box, slices
from windeck.checkpoint.format.chunks import cut
from windeck.checkpoint.format.manifests import as_json
from windeck.checkpoint.format.values import Kind, Label, encode_pieces
from windeck.checkpoint.stores.lanes import Lanes
from windeck.checkpoint.stores.protocol import Items, Store
from windeck.checkpoint.tables.writing import Exports
from windeck.checkpoint.write.incremental import Base, Increment
from windeck.checkpoint.write.pieces import Piece, Pieces, is_distributed, pieces_of, stretches
from windeck.checkpoint.write.plans import CHUNKS, LEAST_BYTES, Plan
from windeck.columns.dtypes import dtype_name

__all__ = ["Shard", "State", "chunk_pairs", "shard_on"]


#: What has to be a place that `load` can put it back to.
_LOADED_IN_PLACE = ("model", "optimizer")


class State:
    """What one process has of a step.

    Attributes
    ----------
    trees
        What was given, by name, as JSON.
    tensors
        By the name of its first place, what of each tensor is here.

    Parameters
    ----------
    given
        ``model``, ``optimizer``, ...; those that are None are left out.
    alone
        Whether there are no other processes: tensors then have to be here as a whole.
    """

    def __init__(self, given: Mapping[str, Any], *, alone: bool = False) -> None:
        self.tensors: dict[str, Pieces] = {}
        self._same: dict[Any, str] = {}
        self._names: set[str] = set()
        self._alone = alone
        present = {name: value for name, value in given.items() if value is not None}
        self.trees = {name: self._tree(name, value) for name, value in present.items()}
        # As JSON before anything is written: no text that is none, no number too long for it.
        as_json(self.trees)

    def _tree(self, name: str, value: Any) -> Any:
        if hasattr(value, "state_dict") and not isinstance(value, Mapping):
            value = value.state_dict()
        elif name in _LOADED_IN_PLACE and not isinstance(value, Mapping):
            raise TypeError(
                f"{name} is of type {type(value).__name__}, expected a dict or an object with "
                "state_dict, as load does"
            )
        return trees.encode(value, name, self._keep)

    def _keep(self, name: str, value: Any) -> str:
        if name in self._names:
            raise ValueError(f"two tensors have the name {name}, expected one of each name")
        self._names.add(name)
        pieces = pieces_of(name, value)
        if self._alone and not pieces.is_whole:
            raise ValueError(_lonely(name, value, pieces))
        memory = pieces.memory
        first = self._same.setdefault(name if memory is None else memory, name)
        if first == name:
            self.tensors[name] = pieces
        return first


def _lonely(name: str, value: Any, pieces: Pieces) -> str:
    kind = "DTensor" if is_distributed(value) else "Partition"
    held = [str([f"{s.start}:{s.stop}" for s in slices(piece.box)]) for piece in pieces.parts]
    found = " and ".join(held).replace("'", "") or "no elements"
    return (
        f"{name} is a {kind} of shape {pieces.shape} with {found} of it in this process, expected "
        "all: save it with group=, or save_shard"
    )


def chunk_pairs(
    namespace: str,
    generation: int,
    save: int,
    item: int,
    tensor: torch.Tensor,
    chunk_bytes: int,
    *,
    writer: int = 0,
    increment: Increment | None = None,
) -> Items:
    """The chunks of a tensor with their keys, each to be used before the next is asked for.

    Parameters
    ----------
    generation, save, writer
        Of the save: its number, its random number, who of it writes.
    item, tensor
        The number of the tensor among those of the writer, and what is to be written.
    chunk_bytes
        Bytes of a full chunk.
    increment
        Says which chunks need not be written; None: all are.
    """
    every = enumerate(cut(tensor, chunk_bytes))
    for number, data in increment.changed(item, tensor, chunk_bytes) if increment else every:
        label = Label(Kind.CHUNK, generation, save, item, writer, number)
        yield keys.chunk(namespace, generation, writer, item, number), encode_pieces(label, data)


@dataclass(frozen=True)
class _Item:
    """A piece to be written, and its number."""

    number: int
    piece: Piece
    chunk_bytes: int


def _size(item: _Item) -> int:
    return item.piece.tensor.numel() * item.piece.tensor.dtype.itemsize


class Shard:
    """One writer's share of a save.

    Parameters
    ----------
    plan, writer
        Of the save; the writer's number.
    state
        What the writer has.
    chosen
        Whether the writer writes a box of a tensor of a name; None: what is its own.
    increment
        Says which chunks need not be written; None: all are.
    tables
        What it has of embedding tables.
    """

    def __init__(
        self,
        plan: Plan,
        writer: int,
        state: State,
        chosen: Callable[[str, Box], bool] | None = None,
        increment: Increment | None = None,
        tables: Exports | None = None,
    ) -> None:
        self.plan, self.writer, self.state = plan, writer, state
        self._increment, self._tables = increment, tables
        self._items: dict[str, list[_Item]] = {}
        number = 0
        for name, pieces in state.tensors.items():
            size = self._chunk_bytes(pieces)
            self._items[name] = []
            for piece in self._own(name, pieces, chosen):
                self._items[name].append(_Item(number, piece, size))
                if increment is not None:
                    dtype = dtype_name(pieces.dtype)
                    increment.add(number, name, dtype, pieces.shape, piece.box, size)
                number += 1

    def _own(
        self, name: str, pieces: Pieces, chosen: Callable[[str, Box], bool] | None
    ) -> Iterator[Piece]:
        """The boxes of a tensor that are to be written here."""
        for piece in pieces.parts:
            if pieces.mine if chosen is None else chosen(name, piece.box):
                yield from stretches(piece, pieces.shape, CHUNKS, LEAST_BYTES)

    def loads(self) -> Iterator[tuple[str, Items]]:
        """The letter of a kind of keys, and its pairs in ascending order; each to be used up
        before the next. What has no pairs is left out."""
        if self._tables:
            label = Label(Kind.BLOCK, self.plan.generation, self.plan.save, part=self.writer)
            yield "e", self._tables.blocks(self.plan.namespace, label)
            yield "i", self._tables.index(self.plan.namespace, label)
        if any(self._items.values()):
            yield "t", self._chunks()
            if self._increment is not None:
                of = self.plan.namespace, self.plan.generation, self.plan.save
                yield "d", self._increment.pairs(*of, self.writer)

    def write(self, store: Store) -> None:
        """Write all of it into a store that is open here; it is durable after a `sync`."""
        for kind, items in self.loads():
            # The index of a table's blocks is small: a load of its own would cost more.
            (store.put_many if kind == "i" else store.bulk_load)(items)

    def manifest(self) -> dict[str, Any]:
        """What was written, once `loads` was used up."""
        found: dict[str, Any] = {
            "plan": self.plan.digest,
            "step": self.plan.step,
            "writer": self.writer,
            "tensors": [self._entry(name) for name in self.state.tensors],
            "trees": self.state.trees,
        }
        if self._tables:
            found["tables"] = self._tables.stated(self.writer)
        return found

    def _chunks(self) -> Lanes:
        """The chunks, a part for each tensor: several may be written at the same time."""
        every = (item for items in self._items.values() for item in items)
        return Lanes([(_size(item), partial(self._chunks_of, item)) for item in every])

    def _chunks_of(self, item: _Item) -> Items:
        return chunk_pairs(
            self.plan.namespace,
            self.plan.generation,
            self.plan.save,
            item.number,
            item.piece.tensor,
            item.chunk_bytes,
            writer=self.writer,
            increment=self._increment,
        )

    def _entry(self, name: str) -> dict[str, Any]:
        pieces = self.state.tensors[name]
        entry: dict[str, Any] = {
            "name": name,
            "dtype": dtype_name(pieces.dtype),
            "shape": list(pieces.shape),
        }
        size = self._chunk_bytes(pieces)
        if size != self.plan.chunk_bytes:
            entry["chunk_bytes"] = size
        entry["parts"] = [self._part(item) for item in self._items[name]]
        return entry

    def _part(self, item: _Item) -> dict[str, Any]:
        kept = {} if self._increment is None else self._increment.kept(item.number)
        return {"box": [list(run) for run in item.piece.box], "item": item.number, **kept}

    def _chunk_bytes(self, pieces: Pieces) -> int:
        return self.plan.chunk_bytes_of(pieces.shape, pieces.dtype.itemsize)


def shard_on(
    base: Base | None,
    plan: Plan,
    writer: int,
    state: State,
    chosen: Callable[[str, Box], bool] | None = None,
    tables: Exports | None = None,
) -> Shard:
    """A shard of which only what changed since `base` is written, where the plan is incremental."""
    increment = Increment(base) if plan.incremental else None
    if base is not None and tables is not None:
        tables.base_on(base.commit.save)
    return Shard(plan, writer, state, chosen, increment, tables)
