"""Saving only the chunks that changed: digests of all of them, compared with the last save's.

A value under ``ns/d/<generation>/<writer>/<n>`` holds 16 bytes for each chunk of a writer's
tensors, in the order of its items and of their chunks, those it did not write again among them.
Loading never looks at it.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from windeck._util.parallel import parallel_map
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.chunks import chunk_items, cut, lies_in_memory
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.manifests import Commit, read_head, read_manifest
from windeck.checkpoint.format.references import may_grow
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.format.values import Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError
from windeck.checkpoint.stores.protocol import Items, Values
from windeck.checkpoint.write.plans import Plan
from windeck.columns.dtypes import torch_dtype

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Numbered: TypeAlias = tuple[int, _Bytes]

__all__ = ["Base", "Increment", "base_values", "find_base"]

_DIGEST_BYTES = 16
#: Bytes of a value of digests: those of 64 GiB in chunks of 1 MiB.
_VALUE_BYTES = 1 << 20


@dataclass(frozen=True)
class Base:
    """The generation in force, for an incremental save to refer to.

    Attributes
    ----------
    commit
        What HEAD says of it.
    entries, tables
        Its tensors and its tables, by name.
    digests
        By writer and item, those of the item's chunks. Not there for a save that was not
        incremental.
    """

    commit: Commit
    entries: Mapping[str, Entry]
    tables: Mapping[str, TableEntry]
    digests: Mapping[tuple[int, int], bytes]


def find_base(values: Values, plan: Plan) -> Base | None:
    """What an incremental save may refer to; None where it has to write everything.

    Parameters
    ----------
    values
        The store; or, for who cannot open it, what `base_values` of it are.

    Warns
    -----
    RuntimeWarning
        When the last save's manifest or digests are damaged. Then all is written anew, too.
    """
    namespace = plan.namespace
    commits = read_head(values, namespace)[1]
    if not commits or commits[0].generation != plan.base:  # none, or a save that cannot be ours
        return None
    commit = commits[0]
    if not may_grow(commit, plan.longest_chain):
        return None
    try:
        manifest = read_manifest(values, namespace, commit)
        digests = _digests(values, namespace, commit, manifest["tensors"])
    except CorruptStoreError as error:
        warnings.warn(f"{error.strerror}: all is written anew", RuntimeWarning, stacklevel=2)
        return None
    return Base(commit, manifest["tensors"], manifest["tables"], digests)


def base_values(values: Values, plan: Plan) -> dict[bytes, bytes]:
    """What `find_base` reads, by key; nothing where it finds none. Warns as it does."""
    noted = _Noted(values)
    return noted.found if find_base(noted, plan) is not None else {}


class _Noted:
    """Values, and those of them that were asked for."""

    def __init__(self, values: Values) -> None:
        self._values, self.found = values, dict[bytes, bytes]()

    def get(self, key: bytes, /) -> bytes | None:
        value = self._values.get(key)
        if value is not None:
            self.found[key] = value
        return value


def _digests(
    values: Values, namespace: str, commit: Commit, entries: Mapping[str, Entry]
) -> dict[tuple[int, int], bytes]:
    counts: dict[int, dict[int, int]] = {}
    for entry in entries.values():
        for part in entry.parts:
            counts.setdefault(part.writer, {})[part.item] = _count(entry, part)
    found: dict[tuple[int, int], bytes] = {}
    for writer, items in counts.items():
        every = _read(values, namespace, commit, writer, sum(items.values()) * _DIGEST_BYTES)
        at = 0
        for item in sorted(items) if every is not None else ():
            assert every is not None
            stop = at + items[item] * _DIGEST_BYTES
            found[writer, item], at = every[at:stop], stop
    return found


def _count(entry: Entry, part: Part) -> int:
    """Chunks of a part."""
    step = chunk_items(torch_dtype(entry.dtype), entry.chunk_bytes)
    return -(-math.prod(shape_of(part.box)) // step)


def _read(values: Values, namespace: str, commit: Commit, writer: int, size: int) -> bytes | None:
    """All digests of a writer, of which there are so many bytes; None where it left none."""
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
class _Item:
    """One of a writer's: what the last save says of it, and what this one finds."""

    former: Part | None
    expected: bytes
    digests: bytearray = field(default_factory=bytearray)
    kept: list[list[int]] = field(default_factory=list)


def _digest(data: _Bytes) -> tuple[_Bytes, bytes]:
    return data, hashlib.sha256(data.data).digest()[:_DIGEST_BYTES]


class Increment:
    """What one writer of an incremental save need not write.

    Parameters
    ----------
    base
        From `find_base`.
    """

    def __init__(self, base: Base | None) -> None:
        self._base = base
        self._items: dict[int, _Item] = {}

    def add(
        self, item: int, name: str, dtype: str, shape: Sequence[int], box: Box, chunk_bytes: int
    ) -> None:
        """Tell of a tensor, or of a box of one, before its first chunk; items ascend."""
        self._items[item] = _Item(None, b"")
        entry = self._base.entries.get(name) if self._base else None
        wanted = (name, dtype, tuple(shape), chunk_bytes)
        if self._base is None or entry is None:
            return
        if (entry.name, entry.dtype, entry.shape, entry.chunk_bytes) != wanted:
            return
        for part in entry.parts:
            if part.box == box:
                expected = self._base.digests.get((part.writer, part.item), b"")
                self._items[item] = _Item(part, expected)

    def changed(self, item: int, tensor: torch.Tensor, chunk_bytes: int) -> Iterator[_Numbered]:
        """Of an item's chunks, which this one is called once for, those that have to be written.

        Yields
        ------
        number, data
            To be used before the next is asked for.
        """
        chunks = cut(tensor, chunk_bytes)
        # Hashed ahead in other threads, while this one writes; but not what shares one buffer.
        in_memory = lies_in_memory(tensor)
        found = parallel_map(chunks, _digest) if in_memory else map(_digest, chunks)
        for number, (data, digest) in enumerate(found):
            if self._is_new(self._items[item], number, digest):
                yield number, data

    def _is_new(self, here: _Item, number: int, digest: bytes) -> bool:
        here.digests += digest
        at = number * _DIGEST_BYTES
        if here.former is None or here.expected[at : at + _DIGEST_BYTES] != digest:
            return True
        source = list(here.former.source(number))
        if here.kept and here.kept[-1][1] == number and here.kept[-1][2:] == source:
            here.kept[-1][1] = number + 1
        else:
            here.kept.append([number, number + 1, *source])
        return False

    def kept(self, item: int) -> dict[str, Any]:
        """What a part of the manifest says about it: nothing, where all was written."""
        kept = self._items[item].kept
        return {"kept": kept} if kept else {}

    def pairs(self, namespace: str, generation: int, save: int, writer: int) -> Items:
        """The digests, for the save after this one, once all chunks were asked for."""
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
