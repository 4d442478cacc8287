"""Incremental saves: digests of all chunks, compared with the digests of the last save.

A value under ``~ns~<generation>/d/<writer>/<n>`` holds 16 bytes for each chunk of a writer's
tensors, in the order of its items and of their chunks, including the chunks that were not written
again. Loading does not read them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from windeck._util.parallel import parallel_map
from windeck._util.warning import warn
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.chunks import chunk_elements, is_plain, iter_chunks
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.manifests import Commit, can_extend_chain, read_head, read_manifest
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.format.values import Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError
from windeck.checkpoint.stores.protocol import Items, Values
from windeck.checkpoint.write.plans import Plan
from windeck.columns.dtypes import torch_dtype

_Uint8s: TypeAlias = npt.NDArray[np.uint8]
_NumberedChunk: TypeAlias = tuple[int, _Uint8s]

__all__ = ["BaseSave", "ChunkDigests", "find_base", "read_base", "read_base_values"]

_DIGEST_BYTES = 16
#: Bytes of a value of digests: those of 64 GiB in chunks of 1 MiB.
_VALUE_BYTES = 1 << 20


@dataclass(frozen=True)
class BaseSave:
    """The generation in force, which an incremental save may refer to.

    Attributes
    ----------
    commit
        Its record in HEAD.
    entries, tables
        Its tensors and its tables, by name.
    digests
        Digests of the chunks, by writer and item. Empty for a save that was not incremental.
    """

    commit: Commit
    entries: Mapping[str, TensorEntry]
    tables: Mapping[str, TableEntry]
    digests: Mapping[tuple[int, int], bytes]


def read_base(
    values: Values, namespace: str, commit: Commit, longest_chain: int
) -> BaseSave | None:
    """Return the save that an incremental one may refer to; None if everything must be written.

    Parameters
    ----------
    commit, longest_chain
        The commit in force, and the option of `save`.

    Warns
    -----
    RuntimeWarning
        When the last save's manifest or digests are damaged. The result is None then.
    """
    if not can_extend_chain(commit, longest_chain):
        return None
    try:
        manifest = read_manifest(values, namespace, commit)
        digests = _read_digests(values, namespace, commit, manifest["tensors"])
    except CorruptStoreError as error:
        warn(f"{error.strerror}: everything is written", RuntimeWarning)
        return None
    return BaseSave(commit, manifest["tensors"], manifest["tables"], digests)


def find_base(values: Values, plan: Plan) -> BaseSave | None:
    """Do as `read_base` for a plan; return None as well if another save was committed meanwhile.

    Parameters
    ----------
    values
        The store; or the result of `read_base_values`, for a process that cannot open the store.
    """
    commits = read_head(values, plan.namespace).commits
    if not commits or commits[0].generation != plan.base:
        return None
    return read_base(values, plan.namespace, commits[0], plan.longest_chain)


def read_base_values(values: Values, plan: Plan) -> dict[bytes, bytes]:
    """Return the values that `find_base` reads, by key; empty if it finds no base.

    Warns as `find_base` does.
    """
    recorded = _RecordedValues(values)
    return recorded.found if find_base(recorded, plan) is not None else {}


class _RecordedValues:
    """Values that record each value read from them."""

    def __init__(self, values: Values) -> None:
        self._values, self.found = values, dict[bytes, bytes]()

    def get(self, key: bytes, /) -> bytes | None:
        value = self._values.get(key)
        if value is not None:
            self.found[key] = value
        return value


def _read_digests(
    values: Values, namespace: str, commit: Commit, entries: Mapping[str, TensorEntry]
) -> dict[tuple[int, int], bytes]:
    counts: dict[int, dict[int, int]] = {}
    for entry in entries.values():
        step = chunk_elements(torch_dtype(entry.dtype), entry.chunk_bytes)
        for part in entry.parts:
            chunks = -(-math.prod(shape_of(part.box)) // step)
            counts.setdefault(part.writer, {})[part.item] = chunks
    found: dict[tuple[int, int], bytes] = {}
    for writer, items in counts.items():
        size = sum(items.values()) * _DIGEST_BYTES
        digests = _read_writer_digests(values, namespace, commit, writer, size)
        if digests is None:
            continue
        at = 0
        for item in sorted(items):
            stop = at + items[item] * _DIGEST_BYTES
            found[writer, item], at = digests[at:stop], stop
    return found


def _read_writer_digests(
    values: Values, namespace: str, commit: Commit, writer: int, size: int
) -> bytes | None:
    """Return the `size` bytes of digests of a writer; None if it wrote none."""
    found = bytearray()
    for number, start in enumerate(range(0, size, _VALUE_BYTES)):
        key = keys.digests(namespace, commit.generation, writer, number)
        value = values.get(key)
        if value is None and number == 0:
            return None
        label = Label(Kind.DIGESTS, commit.generation, commit.save, 0, writer, number)
        found += decode(key, value, label, length=min(_VALUE_BYTES, size - start))
    return bytes(found)


@dataclass
class _ItemDigests:
    """One item of a writer: its part and digests in the last save and in this save."""

    former: TensorPart | None
    expected: bytes
    digests: bytearray = field(default_factory=bytearray)
    kept: list[list[int]] = field(default_factory=list)


def _hash_chunk(data: _Uint8s) -> tuple[_Uint8s, bytes]:
    return data, hashlib.sha256(data.data).digest()[:_DIGEST_BYTES]


class ChunkDigests:
    """Digests of the chunks of one writer, and the chunks that the last save holds already.

    Parameters
    ----------
    base
        From `find_base`.
    """

    def __init__(self, base: BaseSave | None) -> None:
        self._base = base
        self._items: dict[int, _ItemDigests] = {}

    def add(
        self, item: int, name: str, dtype: str, shape: Sequence[int], box: Box, chunk_bytes: int
    ) -> None:
        """Add a box of a tensor before its first chunk; items ascend."""
        self._items[item] = _ItemDigests(None, b"")
        entry = self._base.entries.get(name) if self._base else None
        wanted = (name, dtype, tuple(shape), chunk_bytes)
        if self._base is None or entry is None:
            return
        if (entry.name, entry.dtype, entry.shape, entry.chunk_bytes) != wanted:
            return
        for part in entry.parts:
            if part.box == box:
                expected = self._base.digests.get((part.writer, part.item), b"")
                self._items[item] = _ItemDigests(part, expected)

    def changed(
        self, item: int, tensor: torch.Tensor, chunk_bytes: int
    ) -> Iterator[_NumberedChunk]:
        """Yield the chunks of an item that have to be written. Call it once for each item.

        Yields
        ------
        number, data
            Valid until the next one is requested.
        """
        chunks = iter_chunks(tensor, chunk_bytes)
        # Hash ahead in other threads while this one writes, unless chunks share one buffer.
        in_memory = is_plain(tensor)
        found = parallel_map(chunks, _hash_chunk) if in_memory else map(_hash_chunk, chunks)
        for number, (data, digest) in enumerate(found):
            if self._record(self._items[item], number, digest):
                yield number, data

    def _record(self, item: _ItemDigests, number: int, digest: bytes) -> bool:
        """Record the digest of a chunk; return whether the chunk has to be written."""
        item.digests += digest
        at = number * _DIGEST_BYTES
        if item.former is None or item.expected[at : at + _DIGEST_BYTES] != digest:
            return True
        source = list(item.former.source(number))
        if item.kept and item.kept[-1][1] == number and item.kept[-1][2:] == source:
            item.kept[-1][1] = number + 1
        else:
            item.kept.append([number, number + 1, *source])
        return False

    def kept(self, item: int) -> dict[str, Any]:
        """Return the manifest's fields on kept chunks of an item; empty if all were written."""
        kept = self._items[item].kept
        return {"kept": kept} if kept else {}

    def pairs(self, namespace: str, generation: int, save: int, writer: int) -> Items:
        """Yield keys and values of the digests, after the chunks of all items were requested."""
        for number, payload in enumerate(self._payloads()):
            label = Label(Kind.DIGESTS, generation, save, 0, writer, number)
            yield keys.digests(namespace, generation, writer, number), encode(label, payload)

    def _payloads(self) -> Iterator[bytes]:
        held = bytearray()
        for item in self._items.values():
            held += item.digests
            while len(held) >= _VALUE_BYTES:
                yield bytes(held[:_VALUE_BYTES])
                del held[:_VALUE_BYTES]
        if held:
            yield bytes(held)
