"""States of other formats, whose elements are read by functions, and their import in one commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from windeck.checkpoint.background import settle
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.chunks import chunk_elements
from windeck.checkpoint.format.manifests import check_manifest
from windeck.checkpoint.format.values import Kind, Label, encode_pieces
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.protocol import Items, Pieces
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.writing import TablesWriter
from windeck.checkpoint.write.commits import begin_save, check_numbers, commit_manifest
from windeck.checkpoint.write.merging import merge_tables
from windeck.columns.dtypes import torch_dtype

__all__ = ["ForeignPart", "ForeignState", "ForeignTensor", "import_state"]

#: A function of the numbers of two elements that returns the bytes of the elements [first, stop).
ReadElements: TypeAlias = Callable[[int, int], Any]


class ForeignPart(NamedTuple):
    """A box of a tensor, and the function that reads its elements in row-major order."""

    box: Box
    read: ReadElements


class ForeignTensor(NamedTuple):
    """A tensor: its dtype and shape, and parts that cover each element once."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[ForeignPart, ...]


@dataclass(frozen=True)
class ForeignState:
    """The contents of files of another format.

    Attributes
    ----------
    step
        The step in the files, or 0.
    trees
        State by root, as JSON; see `windeck.checkpoint.format.state_json`.
    tensors
        By the names that the trees give them, in the order in which they are to be read.
    """

    step: int
    trees: dict[str, Any]
    tensors: Mapping[str, ForeignTensor]

    def manifest(self, chunk_bytes: int) -> dict[str, Any]:
        """Return the manifest of a save whose items are the parts of all tensors, in order."""
        found, item = [], 0
        for name, tensor in self.tensors.items():
            parts = []
            for part in tensor.parts:
                box = [list(side) for side in part.box]
                parts.append({"box": box, "writer": 0, "item": item})
                item += 1
            entry = {"name": name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
            found.append({**entry, "parts": parts})
        return {"chunk_bytes": chunk_bytes, "tensors": found, "trees": self.trees}

    def items(self, chunk_bytes: int) -> list[ForeignItem]:
        """Return the parts of all tensors, in order."""
        parts = chain(*([(t.dtype, part) for part in t.parts] for t in self.tensors.values()))
        return [ForeignItem.of(n, *pair, chunk_bytes) for n, pair in enumerate(parts)]


class ForeignItem(NamedTuple):
    """A part as an item of a save: its number, its elements, and the elements of a full chunk."""

    number: int
    read: ReadElements
    size: int
    step: int

    @staticmethod
    def of(number: int, dtype: str, part: ForeignPart, chunk_bytes: int) -> ForeignItem:
        """Return the item of a part."""
        size, step = math.prod(shape_of(part.box)), chunk_elements(torch_dtype(dtype), chunk_bytes)
        return ForeignItem(number, part.read, size, step)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.step)

    def value(self, generation: int, save: int, chunk: int) -> Pieces:
        """Return the value of a chunk in a save."""
        first = chunk * self.step
        data = self.read(first, min(first + self.step, self.size))
        return encode_pieces(Label(Kind.CHUNK, generation, save, self.number, 0, chunk), data)


def import_state(
    store: Store | str,
    state: ForeignState,
    *,
    step: int | None = None,
    namespace: str,
    chunk_bytes: int,
    embeddings: Mapping[str, Any] | None = None,
) -> int:
    """Save a state, chunk by chunk, and embedding tables, in one commit; return its generation.

    Parameters
    ----------
    step
        None: that of the state.
    namespace, chunk_bytes, embeddings
        As for `checkpoint.save`.
    """
    keys.check_namespace(namespace)
    number = state.step if step is None else step
    check_numbers({"step": number, "chunk_bytes": chunk_bytes})
    manifest = state.manifest(chunk_bytes)
    settle()
    with TablesWriter(embeddings) as tables, opened(store) as place:
        begun = begin_save(place, namespace, number, takeover=True, lower_step=True)
        generation, save = begun.generation, begun.save
        check_manifest(manifest, generation, save)
        if tables:
            label = Label(Kind.BLOCK, generation, save)
            place.bulk_load(tables.blocks(namespace, label))
            place.put_many(tables.index(namespace, label))
            written = [(0, tables.manifest_entries(0))]
            merged = merge_tables(written, generation=generation, save=save, base={})
            manifest["tables"] = [table.as_json() for table in merged]
        place.bulk_load(_chunks(state, namespace, generation, save, chunk_bytes))
        commit_manifest(place, begun, manifest)
        tables.remember(save)
        return generation


def _chunks(
    state: ForeignState, namespace: str, generation: int, save: int, chunk_bytes: int
) -> Items:
    """Yield keys and values, each valid until the next one is requested."""
    for item in state.items(chunk_bytes):
        for number in range(item.chunks):
            key = keys.chunk(namespace, generation, 0, item.number, number)
            yield key, item.value(generation, save, number)
