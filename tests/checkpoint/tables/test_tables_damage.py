"""Tests of damaged values of tables: a read returns what was saved, or raises."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable, bucket
from support.stored_keys import data_pairs
from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint.format import Kind, Label, keys, manifests, values
from windeck.checkpoint.stores import CorruptStoreError, Store

IDS = sorted([0, -1, 5, 2**63 - 1], key=lambda key: (bucket(key), key))


def save(store: Store) -> tuple[ModelCore, dict[bytes, bytes]]:
    """Save a small table as a link and a delta; return its keys and values."""
    rng, core = np.random.default_rng(0), ModelCore(2, 1)
    core.fill(IDS, rng)
    options: dict[str, Any] = {"model": {"w": torch.ones(2)}, "incremental": True}
    checkpoint.save(store, step=1, embeddings={"t": ModelTable(core)}, **options)
    core.fill([5], rng)
    core.remove([0])
    checkpoint.save(store, step=2, embeddings={"t": ModelTable(core)}, **options)
    pairs = [*data_pairs(store, "e"), *store.scan(b"windeck/i/")]
    assert len(pairs) == 4
    return core, dict(pairs)


def load(store: Store, core: ModelCore) -> None:
    """Load; assert that the result is what was saved."""
    new, target = ModelCore(2, 1), {"w": torch.zeros(2)}
    try:
        checkpoint.load(store, model=target, embeddings={"t": ModelTable(new)})
    except OSError:
        assert not new.ids, "what failed has to leave the table empty"
        assert not target["w"].any()
        raise
    assert new.told() == core.told()


def test_every_flipped_byte_of_every_value(store: Store, kind: str) -> None:
    core, found = save(store)
    for key, value in found.items():
        for at in range(len(value)):
            # The values are the same in all stores.
            for mask in (0x01, 0x80, 0xFF) if kind == "memory" else (1 << at % 8,):
                wrong = value[:at] + bytes([value[at] ^ mask]) + value[at + 1 :]
                store.put_many([(key, wrong)])
                with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged: found"):
                    load(store, core)
        with checkpoint.open(store) as saved, pytest.raises(CorruptStoreError, match=key.decode()):
            saved.table("t").rows(IDS)
        store.put_many([(key, value)])
    load(store, core)


def test_every_truncated_lengthened_and_missing_value(store: Store) -> None:
    core, found = save(store)
    for key, value in found.items():
        for wrong in (*(value[:size] for size in range(len(value))), value + b"\0", value * 2):
            store.put_many([(key, wrong)])
            with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged: found"):
                load(store, core)
        store.delete_many([key])
        kind = "block" if b"/e/" in key else "table's index"
        with pytest.raises(
            CorruptStoreError, match=f"{key.decode()} is missing, expected a {kind}"
        ):
            load(store, core)
        store.put_many([(key, value)])
    load(store, core)


def test_every_pair_of_swapped_values_and_stale_ones(store: Store) -> None:
    core, found = save(store)
    for one in found:
        for two in found:
            if one < two:
                store.put_many([(one, found[two]), (two, found[one])])
                with pytest.raises(CorruptStoreError, match=r"is damaged: found .*, expected"):
                    load(store, core)
                store.put_many([(one, found[one]), (two, found[two])])
    # The same generations of another attempt: all begins anew, numbers too.
    store.delete_range(b"")
    core, new = save(store)
    for key, value in found.items():
        store.put_many([(key, value)])
        with pytest.raises(CorruptStoreError, match=r"a value of save \d+, expected save"):
            load(store, core)
        store.put_many([(key, new[key])])
    load(store, core)


BLOCK = keys.block("windeck", 1, 0, 0, 0)
INDEX = keys.index("windeck", 1, 0, 0, 0)
DELTA = keys.block("windeck", 2, 0, 0, 0)


def put(store: Store, key: bytes, payload: bytes) -> None:
    """Store a value with a forged payload and valid checksums."""
    value = store.get(key)
    assert value is not None
    kind, item = struct.unpack_from("<B", value, 6)[0], struct.unpack_from("<Q", value, 8)[0]
    part, index, generation, save = struct.unpack_from("<IIQQ", value, 16)
    label = Label(Kind(kind), generation, save, item, part, index)
    store.put_many([(key, values.encode(label, payload))])


def forged(value: bytes, at: int, layout: str, *numbers: int) -> bytes:
    payload = bytearray(value[64:])
    struct.pack_into(layout, payload, at, *numbers)
    return bytes(payload)


FOREIGN = next(key for key in range(1, 9999) if bucket(key) < bucket(IDS[1]))


@pytest.mark.parametrize(
    ("key", "at", "layout", "numbers", "words"),
    [
        (
            BLOCK,
            0,
            "<I",
            (2**32 - 1,),
            "BlockSize.entries=4294967295, .*expected BlockSize.entries=4",
        ),
        (BLOCK, 4, "<I", (2**32 - 1,), "rows=4294967295, .*expected BlockSize.entries=4, rows=4"),
        (BLOCK, 12, "<I", (2**32 - 1,), "rows of dim 4294967295 with 1 slots, expected 2 with 1"),
        (BLOCK, 16, "<I", (0,), "rows of dim 2 with 0 slots, expected 2 with 1"),
        (BLOCK, 20, "<I", (1,), "rows of dtype 1, expected 0, float32"),
        (BLOCK, 24, "<qq", (IDS[0], IDS[0]), f"id {IDS[0]} after {IDS[0]}, expected each id once"),
        (BLOCK, 24, "<qq", (IDS[1], IDS[0]), f"id {IDS[0]} after {IDS[1]}, expected each id once"),
        (
            BLOCK,
            24,
            "<q",
            (FOREIGN,),
            "found id .* first and buckets .*, expected .* as in its index",
        ),
        (BLOCK, 24 + 32 * 4, "<BB", (0, 2), "found 2 rows and 1 dead, expected 4 and 0"),
        (BLOCK, 24 + 32 * 4, "<B", (3,), "found 3 rows and 0 dead, expected 4 and 0"),
        (
            INDEX,
            0,
            "<q",
            (IDS[1],),
            "found block 0 out of order, expected it after the block before",
        ),
        (INDEX, 8, "<I", (1024,), "found block 0 out of order"),
        (INDEX, 12, "<I", (1024,), "found block 0 out of order"),
        (INDEX, 16, "<I", (0,), "found block 0 out of order"),
        (INDEX, 16, "<III", (0, 0, 0), "found block 0 out of order"),
        (
            INDEX,
            16,
            "<I",
            (2**32 - 1,),
            "found BlockSize.entries=4294967295, .* as in the manifest of",
        ),
        (INDEX, 20, "<I", (5,), "found block 0 out of order"),
        (
            INDEX,
            20,
            "<I",
            (3,),
            "found BlockSize.entries=4, rows=3, dead=0., expected BlockSize.entries=4",
        ),
        (INDEX, 24, "<I", (1,), "found block 0 out of order"),
        (INDEX, 28, "<I", (1,), "found block 0 out of order"),
        (DELTA, 24 + 32 * 2, "<BB", (1, 1), "found 2 rows and 0 dead, expected 1 and 1"),
    ],
)
def test_values_that_cannot_be(
    key: bytes, at: int, layout: str, numbers: tuple[int, ...], words: str, memory: Store
) -> None:
    core, found = save(memory)
    put(memory, key, forged(found[key], at, layout, *numbers))
    with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged: .*{words}"):
        load(memory, core)


def test_blocks_are_in_order_in_an_index(memory: Store) -> None:
    """Every pair of lines that could be: those that come one after the other are taken.

    Their entries are not as many as the manifest says, so the table is damaged in any case.
    """

    def with_two_blocks(table: dict[str, Any]) -> None:
        table["links"][1]["shards"][0]["blocks"] = 2

    save(memory)
    rewrite(memory, with_two_blocks)
    opened = checkpoint.open(memory)
    ids = sorted(range(3000), key=lambda key: (bucket(key), key))
    near = [key for one in (1, 2, 3) for key in [key for key in ids if bucket(key) == one][:2]]
    lines = [(key, bucket(key), last) for key in near for last in range(bucket(key), 5)]
    taken = 0
    for one in lines:
        for two in lines:
            payload = b"".join(struct.pack("<qIIIIII", *line, 1, 1, 0, 0) for line in (one, two))
            fits = one[2] <= two[1] and (one[1], one[0]) < (two[1], two[0])
            taken += fits
            found = "BlockSize.entries=2, .* as in the manifest" if fits else "block 1 out of order"
            put(memory, INDEX, payload)
            with pytest.raises(CorruptStoreError, match=f"{INDEX.decode()} .* found {found}"):
                opened.table("t").rows([-1])  # which the delta lacks
    assert 0 < taken < len(lines) ** 2


def rewrite(store: Store, change: Callable[[dict[str, Any]], None]) -> None:
    """Store a changed manifest of the current table, and a HEAD that matches it."""
    (commit, *older) = manifests.read_head(store, "windeck").commits
    key = keys.manifest("windeck", commit.generation)
    label = Label(Kind.MANIFEST, commit.generation, commit.save)
    first, rest = bytes(values.decode(key, store.get(key), label)).split(b"\n")
    found = json.loads(first)
    change(found["tables"][0])
    value = values.encode(label, manifests.encode_json(found), b"\n", rest)
    sums: dict[str, Any] = {"manifest_bytes": len(value), "manifest_crc": crc32c(value)}
    now = manifests.Commit(**{**commit._asdict(), **sums})
    store.put_many([(key, value), (keys.head("windeck"), manifests.encode_head([now, *older]))])


def test_a_table_that_needs_what_head_does_not_name(memory: Store) -> None:
    """gc would remove the missing generation."""
    core, _ = save(memory)
    (commit, older) = manifests.read_head(memory, "windeck").commits
    assert commit.bases == (1,)
    head = manifests.encode_head([commit._replace(bases=()), older])
    memory.put_many([(keys.head("windeck"), head)])
    words = r"the table t refers to generation 1, expected one of \[\], the bases in HEAD"
    with pytest.raises(CorruptStoreError, match=words):
        load(memory, core)
    with pytest.raises(CorruptStoreError, match=words):
        checkpoint.open(memory)


def test_a_block_that_ends_before_its_index_says(memory: Store) -> None:
    core, found = save(memory)
    assert bucket(IDS[-1]) < 1023
    put(memory, INDEX, forged(found[INDEX], 12, "<I", 1023))
    words = f"{BLOCK.decode()} is damaged: found id .*, expected .* to 1023 as in its index"
    with pytest.raises(CorruptStoreError, match=words):
        load(memory, core)


def test_a_removed_id_in_what_is_no_delta(memory: Store) -> None:
    core, _ = save(memory)

    def change(table: dict[str, Any]) -> None:
        del table["links"][1]
        table["links"][0]["shards"][0]["since"] = -1

    rewrite(memory, change)
    words = f"{DELTA.decode()} is damaged: found a removed id, expected none outside of a delta"
    with pytest.raises(CorruptStoreError, match=words):
        load(memory, core)


def shard(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        table["links"][-1]["shards"][0].update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(dim=0), "`dim` must be at least 1, got 0"),
        (lambda t: t.update(dim=2.0), "`dim` must be an integer, got float 2.0"),
        (lambda t: t.update(slots=-1), "`slots` must be at least 0, got -1"),
        (lambda t: t.update(dim=2**20, slots=2**20), "rows of 1,099,512,676,352 numbers, expected"),
        (lambda t: t.update(clock=2**63), "`clock` must be at most 9223372036854775807"),
        (lambda t: t.update(dtype="float64"), "expected a name and float32 or bfloat16, found 't'"),
        (lambda t: t.update(name=3), "expected a name and float32 or bfloat16, found 3"),
        (lambda t: t.update(links=[]), r"are of generations \[\], expected descending"),
        (lambda t: t["links"].reverse(), r"are of generations \[1, 2\], expected descending"),
        (lambda t: t["links"][1].update(generation=2), r"of generations \[2, 2\], expected desc"),
        (lambda t: t["links"][0].update(generation=9), r"t refers to generation 9, expected"),
        (lambda t: t["links"].pop(), "the last links of t must be full"),
        (lambda t: t.pop("rows"), "'rows'"),
        (lambda t: t["links"][-1].update(generation=3), r"of generations \[2, 3\], expected desc"),
        (lambda t: t["links"][0].update(save=1), "the table t belongs to another save"),
        (shard(buckets=[0, 1000]), "has buckets 1000 to 1023 written by no writer, expected each"),
        (
            shard(buckets=[1, 1024]),
            "has buckets 0 to 0 written by no writer, expected each of 1,024",
        ),
        (shard(buckets=[0, 1025]), "`buckets` must be at most 1024, got 1025"),
        (shard(buckets=[5, 3]), "expected a shard with consistent numbers"),
        (shard(blocks=2**40, entries=2**40), "expected a shard with consistent numbers"),
        (shard(rows=5), "expected a shard with consistent numbers"),
        (shard(since=2), "expected a shard with consistent numbers"),
        (shard(since=0), "the last links of t must be full"),
        (shard(since=-2), "`since` must be at least -1, got -2"),
    ],
)
def test_manifests_that_cannot_be(change: Any, words: str, memory: Store) -> None:
    core, _ = save(memory)
    rewrite(memory, lambda table: None)
    load(memory, core)
    rewrite(memory, change)
    with pytest.raises(CorruptStoreError, match=f"cannot be read as a manifest: .*{words}"):
        checkpoint.open(memory)


def test_lengths_that_overflow_are_refused_before_anything_is_made(memory: Store) -> None:
    core, _ = save(memory)
    rewrite(memory, shard(blocks=2**32 - 1, entries=2**62, rows=2**62))
    with pytest.raises(CorruptStoreError, match=r"found a payload of 32 bytes, expected 2,097,152"):
        load(memory, core)
    rewrite(memory, shard(blocks=1, entries=2**62, rows=2**62))
    with pytest.raises(
        CorruptStoreError, match=r"found BlockSize.entries=4, .*entries=4611686018427387"
    ):
        load(memory, core)
    rewrite(memory, lambda table: table.update(dim=2**27, slots=0))
    with pytest.raises(
        CorruptStoreError, match=r"/0{8} has 536,871,008 bytes by its index, expected at mo"
    ):
        checkpoint.open(memory).table("t").rows(IDS)


def test_a_manifest_that_refers_to_what_gc_may_take(memory: Store) -> None:
    save(memory)
    (commit, *older) = manifests.read_head(memory, "windeck").commits
    now = manifests.Commit(**{**commit._asdict(), "bases": ()})
    memory.put_many([(keys.head("windeck"), manifests.encode_head([now, *older]))])
    words = r"(the table t refers|refers to chunks) .*generation 1, expected one of \[\]"
    with pytest.raises(CorruptStoreError, match=words):
        checkpoint.open(memory)


def test_ids_in_two_blocks(memory: Store) -> None:
    """A block that begins again where the one before it did not end."""
    core = ModelCore(300)
    ids = [key for key in range(900_000) if bucket(key) == 9]
    core.fill(ids, np.random.default_rng(0))
    checkpoint.save(memory, step=1, embeddings={"t": ModelTable(core)})
    first, second = (keys.block("windeck", 1, 0, 0, number) for number in range(2))
    one, two = memory.get(first), memory.get(second)
    assert one is not None
    assert two is not None
    at = 24 + 8 * (struct.unpack_from("<I", one, 64)[0] - 1)
    last = struct.unpack_from("<q", two, 64 + 24)[0]
    put(memory, first, forged(one, at, "<q", last))
    new = ModelCore(300)
    with pytest.raises(
        CorruptStoreError, match=f"found id {last} first, expected one after the la"
    ):
        checkpoint.load(memory, embeddings={"t": ModelTable(new)})
    assert not new.ids
