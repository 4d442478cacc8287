"""Tests of durability: HEAD names synced values only, and only unnamed values are removed.

The store is a dict with several connections, as to a server: a value is durable once the connection
that wrote it has synced.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import windeck as wd
from support.internals import original
from windeck import checkpoint
from windeck.checkpoint.dcp import StoreWriter
from windeck.checkpoint.safetensors import export, import_
from windeck.checkpoint.stores import MappingStore, StoreURL

URL = "connections://one"


class Place:
    """The pairs that all connections see, and those that each has not synced."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.connections: list[Connection] = []
        self.heads = self.removed = 0

    def unsafe(self) -> set[bytes]:
        """Return the keys that are not synced, without the numbers, which may be lost."""
        every = set().union(*(one.written for one in self.connections))
        return {key for key in every if not key.endswith(b"/NEXT")}

    def opened(self, url: StoreURL) -> Connection:
        self.connections.append(Connection(self))
        return self.connections[-1]


class Connection(MappingStore):
    """A connection to the store."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.values, url=URL, facts=MappingStore({}).facts._replace(shared=True))
        self.place, self.written = place, set[bytes]()

    def put_many(self, items: Any) -> None:
        pairs = dict(items)
        super().put_many(pairs.items())
        self.written |= pairs.keys()

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = list(keys)
        if not any(key.endswith(b"/HEAD") for key in gone):
            heads = {key for key in self.place.unsafe() if key.endswith(b"/HEAD")}
            assert not heads, "something is removed while HEAD may come back that needs it"
            self.place.removed += len(gone)
        super().delete_many(gone)
        self.written |= set(gone)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        if key.endswith(b"/HEAD"):
            assert self.place.unsafe() == set(), "HEAD is to show what is not durable"
            self.place.heads += b'"kept":[{' in value  # not an empty one
        done = super().compare_and_set(key, expected, value)
        self.written |= {key} if done else set()
        return done

    def sync(self) -> None:
        super().sync()
        self.written.clear()


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(40.0) + 100 * step, "b": torch.arange(9)}


def table() -> wd.EmbeddingTable:
    found = wd.EmbeddingTable(2, optimizer="sgd", lr=0.1)
    found.core.lookup(np.arange(-20, 20), insert=True)
    return found


def save(folder: Path) -> None:
    checkpoint.save(URL, step=1, model=state(1), embeddings={"user": table()}, chunk_bytes=16)


def save_what_changed(folder: Path) -> None:
    for step in (1, 2):
        model = {**state(1), "w": state(step)["w"]}
        checkpoint.save(URL, step=step, model=model, incremental=True, chunk_bytes=16)


def merge(folder: Path) -> None:
    plan = checkpoint.begin(URL, step=1, writers=2, incremental=True)
    checkpoint.save_shard(URL, plan, writer=0, model=state(1))
    checkpoint.save_shard(URL, plan, writer=1, embeddings={"user": table()})
    checkpoint.merge(URL, plan)


def save_by_dcp(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a single process
        dcp_save({"model": state(1)}, storage_writer=StoreWriter(URL, step=1))


def import_a_file(folder: Path) -> None:
    checkpoint.save("memory://durable", step=1, model=state(1))
    (file,) = export("memory://durable", folder / "m.safetensors")
    import_(file, URL)


def copy(folder: Path) -> None:
    save(folder)
    checkpoint.copy(URL, URL, target_namespace="other")
    checkpoint.save(URL, step=2, model=state(2))
    checkpoint.copy(URL, URL, target_namespace="other", replace=True)


def collect(folder: Path) -> None:
    for step in range(3):
        checkpoint.save(URL, step=step, model=state(step))
    assert checkpoint.gc(URL, keep=1) == [1, 2]


def rows(folder: Path) -> None:
    checkpoint.export(URL, table(), "user")


ACTS: dict[Callable[[Path], None], int] = {save: 1, save_what_changed: 2, merge: 1}
ACTS |= {save_by_dcp: 1, import_a_file: 1, copy: 5, collect: 4, rows: 0}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_nothing_shows_that_could_be_lost(
    act: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = Place()
    monkeypatch.setitem(original("urls._registered"), "connections", place.opened)
    act(tmp_path)
    assert place.heads == ACTS[act]
    assert place.values
    assert place.unsafe() == set(), "the call returned and something could be lost"
    assert bool(place.removed) == (act in (copy, collect))


def test_an_exported_file_is_durable_before_it_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced, named = dict[int, int](), list[Path]()
    fsync, replace = os.fsync, os.replace

    def sync(file: int) -> None:
        fsync(file)
        found = os.fstat(file)
        synced[found.st_ino] = found.st_size

    def name(source: Path, target: Path) -> None:
        found = source.stat()
        assert synced.get(found.st_ino) == found.st_size, f"{target.name} could be cut short"
        named.append(Path(target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", name)
    checkpoint.save("memory://durable-file", step=1, model=state(1))
    (file,) = export("memory://durable-file", tmp_path / "m.safetensors")
    assert named == [file]
    parts = export("memory://durable-file", tmp_path / "p.safetensors", shard_bytes=100)
    assert len(parts) == 3
    assert named[1:] == parts
