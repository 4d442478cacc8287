"""Tests of the library's own tables in checkpoints: saved during training, in little memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from models.table_model import ModelTable, told_by
from support.internals import original, plant
from support.programs import assert_little_memory
from support.store_servers import DURABLE, KINDS
from support.stored_keys import data_pairs
from support.threads import at_once
from windeck import checkpoint
from windeck._core import EmbeddingCore
from windeck.checkpoint.format import Kind, Label, decode, encode, find_commit, read_manifest
from windeck.checkpoint.stores import CorruptStoreError, open_store

Fresh = Callable[[str], str]


def trained(steps: int, core: Any = None) -> Any:
    """A table after so many steps, or some more of them: a function of the clock alone."""
    if core is None:
        core = EmbeddingCore(8, slots=1, seed=3)
        core.lookup(np.arange(-10_000, 10_000), insert=True)
    for _ in range(steps):
        rng = np.random.default_rng(core.clock)
        ids = rng.integers(-10_000, 10_000, 3000)
        grads = rng.standard_normal((len(ids), 8)).astype(np.float32)
        core.apply(ids, grads, kind="adagrad", lr=0.1)
    return core


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_table_is_two_shards(
    kind: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "writing.MIN_SPLIT_BYTES", 256 << 10)
    plant(monkeypatch, "protocol.MIN_SPLIT_BYTES", 256 << 10)
    core, small = trained(2), EmbeddingCore(8)
    small.lookup(np.arange(5), insert=True)
    tables = {"a": ModelTable(small), "b": ModelTable(core), "c": ModelTable(small)}
    halves = [(0, 512), (512, 1024)]
    with open_store(fresh(kind)) as store:
        checkpoint.save(store, step=1, embeddings=tables)
        shards = [shard for name in "abc" for shard in links_of(store, name)[0].shards]
        assert [shard.buckets for shard in shards] == [(0, 1024), *halves, (0, 1024)]
        assert [shard.item for shard in shards] == [0, 1, 2, 3]
        assert sum(shard.rows for shard in shards[1:3]) == len(core) == 20_000
        assert told_by(loaded(store)) == told_by(core)

        def fail(self: Any, *arguments: Any) -> Any:
            if self._buckets == halves[1]:
                raise ValueError("the second half cannot be packed")
            return encode_block(self, *arguments)

        told = told_by(core)
        trained(1, core)
        encode_block = original("writing._BlocksWriter._encode_block")
        with monkeypatch.context() as failing:
            plant(failing, "writing._BlocksWriter._encode_block", fail)
            with pytest.raises(ValueError, match="the second half cannot be packed"):
                checkpoint.save(store, step=2, embeddings=tables)
        assert told_by(loaded(store)) == told

        checkpoint.save(store, step=2, embeddings=tables)
        core.remove(np.arange(300))
        core.apply(np.arange(400, 500), np.ones((100, 8), np.float32), kind="adagrad", lr=0.1)
        checkpoint.save(store, step=3, embeddings=tables, incremental=True)
        assert [len(link.shards) for link in links_of(store, "b")] == [1, 2]
        assert {1, 3} <= set(checkpoint.gc(store, keep=1))  # and, in some stores, what failed
        assert told_by(loaded(store)) == told_by(core)
        assert checkpoint.verify(store).damages == []


def links_of(store: Any, name: str) -> Any:
    commit = find_commit(store, "windeck", None)
    return read_manifest(store, "windeck", commit)["tables"][name].links


def loaded(store: Any) -> Any:
    new = EmbeddingCore(8, slots=1)
    checkpoint.load(store, embeddings={"b": ModelTable(new)}, strict=False)
    return new


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("incremental", [False, True])
def test_a_save_while_training_goes_on_is_of_one_moment(
    kind: str, incremental: bool, fresh: Fresh
) -> None:
    core, done = trained(2), threading.Event()
    options: dict[str, Any] = {"embeddings": {"t": ModelTable(core)}, "incremental": incremental}
    with open_store(fresh(kind)) as store:
        checkpoint.save(store, step=0, **options)
        core.remove(np.arange(5))
        worker = threading.Thread(target=train_until, args=(core, done))
        if not incremental:  # else so much may change before that all is written
            worker.start()

        class Slow:
            """A store that waits for steps of training before and after each block it writes."""

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def bulk_load(self, items: Any) -> int:
                return store.bulk_load(self.watched(items))

            def watched(self, items: Any) -> Iterator[Any]:
                if not worker.ident:
                    worker.start()
                for pair in items:
                    clock = core.clock
                    while core.clock < clock + 2:
                        time.sleep(0.001)
                    yield pair

        try:
            checkpoint.save(Slow(), step=1, **options)
        finally:
            done.set()
            worker.join()
        new = EmbeddingCore(8, slots=1)
        checkpoint.load(store, embeddings={"t": ModelTable(new)})
        assert core.clock >= new.clock + 2
        with checkpoint.open(store) as found:
            links = found.tables["t"].links
            assert len(links) == 1 + incremental
            assert found.tables["t"].rows == 20_000 - 5
        expected = trained(2)
        expected.remove(np.arange(5))
        assert told_by(new) == told_by(trained(new.clock - 2, expected))


def train_until(core: Any, done: threading.Event) -> None:
    while not done.is_set():
        trained(1, core)


def test_training_goes_on_from_what_was_saved(fresh: Fresh) -> None:
    """The result is the same after any number of saves, evictions, kills and loads."""
    url, straight, core = fresh("memory"), trained(0), trained(0)
    for turn in range(6):
        for table in (straight, core):
            trained(2, table)
            table.evict(seen_before=2, l2_below=0.02)
            table.lookup(np.arange(turn, 9000, 7), insert=True)
        checkpoint.save(url, step=turn, embeddings={"t": ModelTable(core)}, incremental=True)
        core = EmbeddingCore(8, slots=1, seed=3)
        checkpoint.load(url, embeddings={"t": ModelTable(core)})
        assert told_by(core) == told_by(straight)
        assert (core.clock, core.bytes > 0) == (straight.clock, True)
    with checkpoint.open(url) as found:
        assert len(found.tables["t"].links) > 1


def test_other_threads_may_read_and_save_at_once(fresh: Fresh) -> None:
    core = trained(3)
    stores = [open_store(fresh("memory")) for _ in range(4)]
    options: dict[str, Any] = {"embeddings": {"t": ModelTable(core)}, "incremental": True}
    at_once(4, lambda number: checkpoint.save(stores[number], step=0, **options))
    for store in stores:
        new = EmbeddingCore(8, slots=1)
        checkpoint.load(store, embeddings={"t": ModelTable(new)})
        assert told_by(new) == told_by(core)


MEMORY = """
import resource, sys
import numpy as np
from windeck import checkpoint
from windeck._core import EmbeddingCore
from windeck.checkpoint.stores import open_store

class Table:
    config = {}
    def __init__(self, count):
        self.core = EmbeddingCore(64, slots=1)
        for first in range(0, count, 1 << 14):
            self.core.lookup(np.arange(first, min(first + (1 << 14), count)), insert=True)

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with open_store(sys.argv[1]) as store:
    checkpoint.save(store, step=0, embeddings={"t": Table(10_000)}, namespace="warm")
    checkpoint.load(store, embeddings={"t": Table(0)}, namespace="warm")
    table, before = Table(300_000), peak()
    checkpoint.save(store, step=1, embeddings={"t": table})
    saved, size = peak() - before, table.core.bytes
    del table
    new, before = Table(0), peak()
    checkpoint.load(store, embeddings={"t": new})
    count = sum(len(rows) for rows in checkpoint.open(store).table("t").scan())
    assert (count, len(new.core), new.core.bytes <= 1.5 * size) == (300_000, 300_000, True)
    print(saved, peak() - before)
"""


@pytest.mark.parametrize("kind", DURABLE)
def test_memory_beyond_the_table_is_bounded(kind: str, fresh: Fresh) -> None:
    # 150 MB of rows, so a copy of half of them would show.
    assert_little_memory(MEMORY, fresh(kind))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_damaged_block_of_a_full_save_is_found(kind: str, fresh: Fresh) -> None:
    """Flipped bytes, and blocks whose sums are right but whose ids are in another order."""
    core = trained(1)
    with open_store(fresh(kind)) as store:
        checkpoint.save(store, step=0, embeddings={"t": ModelTable(core)})
        found = dict(data_pairs(store, "e"))
        first, second = sorted(found)[3:5]

        def refused(key: bytes, value: bytes, text: str = "is damaged: found") -> None:
            store.put_many([(key, value)])
            target = EmbeddingCore(8, slots=1)
            with pytest.raises(CorruptStoreError, match=f"{key.decode()} {text}"):
                checkpoint.load(store, embeddings={"t": ModelTable(target)})
            assert len(target) == target.counted == 0
            store.put_many([(key, found[key])])

        for at in range(0, len(found[first]), 9973):
            wrong = bytearray(found[first])
            wrong[at] ^= 1
            refused(first, bytes(wrong))
        label = Label(Kind.BLOCK, *_save_of(store), 0, 0, 3)
        payload = bytearray(decode(first, found[first], label))
        for at, other, text in [
            (24, 1, "is damaged: found id"),  # the first id
            (12, 9, "is damaged: found rows of dim 9"),
            (4, 1, "is damaged: found BlockSize"),
        ]:
            changed = payload.copy()
            changed[at : at + 4] = other.to_bytes(4, "little")
            refused(first, encode(label, changed), text)
        store.delete_many([second])
        target = EmbeddingCore(8, slots=1)
        with pytest.raises(CorruptStoreError, match=f"{second.decode()} is missing"):
            checkpoint.load(store, embeddings={"t": ModelTable(target)})
        store.put_many([(second, found[second])])
        checkpoint.load(store, embeddings={"t": ModelTable(target)})
        assert told_by(target) == told_by(core)


def _save_of(store: Any) -> tuple[int, int]:
    with checkpoint.open(store) as saved:
        return saved.generation, saved.save
