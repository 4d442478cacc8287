"""Tests of `verify`: all damage is reported with its place, and intact values pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from support.checkpoint_parts import save_parts
from support.internals import plant
from support.store_servers import EMBEDDED, KINDS
from support.stored_keys import data_keys, data_pairs, parsed
from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint import verify
from windeck.checkpoint.format import Kind, Label, decode, encode, encode_head, keys
from windeck.checkpoint.stores import CorruptStoreError, MappingStore, Store, open_store

Fresh = Callable[[str], str]


def fill(store: Store, steps: int = 3) -> list[int]:
    """Save a model and a table incrementally, so that generations refer to one another."""
    core, rng = ModelCore(3, 1), np.random.default_rng(1)
    weight = torch.arange(200.0)
    numbers = []
    for step in range(1, steps + 1):
        core.fill(rng.integers(0, 300, 100).tolist(), rng)
        weight[step] = -1
        model = {"w": weight, "b": torch.full((5,), float(step)), "none": torch.empty(0)}
        numbers.append(
            checkpoint.save(store, step=step, model=model, chunk_bytes=80, incremental=True,
                            embeddings={"user": ModelTable(core)}, extra={"lr": 0.1})
        )  # fmt: skip
    return numbers


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_checkpoint_is_whole(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        numbers = fill(store)
        for deep in (False, True):
            report = verify(store, deep=deep)
            assert (report.damages, report.unreferenced_keys) == ([], [])
            assert report.ok
            assert report.generations == numbers[::-1]
        pairs = [*store.scan()]
        data = [value for key, value in pairs if parsed(key)[0] in [*"tei"]]
        others = [value for key, value in pairs if parsed(key)[0] in [*"mds"]]
        assert report.values == len(data)
        assert report.bytes == sum(map(len, data + others))
        only = verify(store, deep=True, generation=numbers[1])
        assert (only.ok, only.generations) == (True, [numbers[1]])
        assert 0 < only.values < report.values


def test_every_byte_of_every_value_that_is_flipped_is_told(memory: Store) -> None:
    fill(memory, 2)
    pairs = dict(memory.scan(b""))
    for key, value in pairs.items():
        for place in {*range(min(len(value), 96)), *range(96, len(value), 7), len(value) - 1}:
            damaged = bytearray(value)
            damaged[place] ^= 1 << place % 8
            memory.put_many([(key, bytes(damaged))])
            report = verify(memory, deep=True)
            assert not report.ok, (key, place)
            named = {damage.key for damage in report.damages if damage.key}
            assert named == {key.decode()}
        memory.put_many([(key, value)])
    assert verify(memory, deep=True).ok


def test_what_several_generations_refer_to_is_told_of_the_newest(memory: Store) -> None:
    numbers = fill(memory)
    last = b"~windeck~%016x/t/%08x/%08x/%08x" % (numbers[0], 0, 0, 9)  # of weight: no step wrote it
    for value in (None, b"x" * 144):
        for deep in (False, True):
            memory.delete_many([last])
            memory.put_many([] if value is None else [(last, value)])
            for only in (None, *numbers):
                found = verify(memory, deep=deep, generation=only).damages
                told = [(damage.key, damage.name, damage.generation) for damage in found]
                newest = numbers[-1] if only is None else only
                expected = [(last.decode(), "model/w", newest)]
                assert told == ([] if value and not deep else expected)


@pytest.mark.parametrize("number", [0, 9])
def test_chunks_of_another_length_are_told(number: int, memory: Store) -> None:
    """A wrong length of a chunk is reported even if its checksum is valid.

    The last chunk of a tensor may be shorter.
    """
    save = checkpoint.save(memory, step=1, model={"w": torch.arange(195.0)}, chunk_bytes=80)
    key = keys.chunk("windeck", save, 0, 0, number)
    label = Label(Kind.CHUNK, save, checkpoint.open(memory).save, 0, 0, number)
    payload = bytes(decode(key, memory.get(key), label))
    assert len(payload) == (80 if number == 0 else 60)
    for wrong in (payload[:-4], payload + bytes(4), payload + bytes(20), b""):
        memory.put_many([(key, encode(label, wrong))])
        (damage,) = verify(memory, deep=True).damages
        assert (damage.key, damage.name) == (key.decode(), "model/w")
        assert f"found a payload of {len(wrong)} bytes, expected {len(payload)}" in damage.problem
    memory.put_many([(key, encode(label, payload))])
    assert verify(memory, deep=True).ok


def test_all_damage_is_told_not_only_the_first(memory: Store) -> None:
    fill(memory, 3)
    chunks = data_keys(memory, "t")
    gone, swapped, cut = chunks[2], (chunks[5], chunks[6]), chunks[9]
    was = dict(data_pairs(memory, "t"))
    memory.delete_many([gone])
    memory.put_many([(swapped[0], was[swapped[1]]), (swapped[1], was[swapped[0]])])
    memory.put_many([(cut, was[cut][:-3])])
    shallow = verify(memory)
    assert [damage.key for damage in shallow.damages] == [gone.decode()]
    assert "is missing, expected a chunk" in shallow.damages[0].problem
    deep = verify(memory, deep=True)
    assert [damage.key for damage in deep.damages] == [
        key.decode() for key in (gone, *swapped, cut)
    ]
    assert {damage.name for damage in deep.damages} <= {"model/w", "model/b"}
    words = [damage.problem for damage in deep.damages]
    assert "expected index" in words[1]
    assert "a payload of" in words[3]


@pytest.mark.parametrize("deep", [False, True])
def test_damage_without_end_is_not_told_without_end(
    memory: Store, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(memory, 2)
    memory.delete_range(b"~windeck~")
    every = [damage.key for damage in verify(memory, deep=deep).damages]
    assert len(every) > 3
    plant(monkeypatch, "verifying.MOST", 3)
    *told, last = verify(memory, deep=deep).damages
    assert [damage.key for damage in told] == every[:3]
    assert last.problem == "verification stopped after 3 damages"


class Worn(MappingStore):
    """A store that cannot read some keys, nor others in one batch with them."""

    lost: frozenset[bytes] = frozenset()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.lost.intersection(keys):
            raise CorruptStoreError(f"a block is damaged, asked for {len(keys)} keys")
        return super().get_many(keys)

    def snapshot(self) -> Any:
        copy: Any = Worn(dict(self.scan()))
        copy.lost = self.lost
        return copy


def test_what_a_store_cannot_give_is_told_and_the_rest_is_read() -> None:
    store: Any = Worn({})
    fill(store)
    chunks = data_keys(store, "t")
    store.lost = frozenset([chunks[3], chunks[7]])
    report = verify(store, deep=True)
    told = [(damage.key, damage.problem) for damage in report.damages]
    words = "a block is damaged, asked for 1 keys"
    assert told == [(chunks[3].decode(), words), (chunks[7].decode(), words)]


def test_a_damaged_manifest_does_not_hide_the_others(memory: Store) -> None:
    numbers = fill(memory, 3)
    manifests = list(memory.keys(b"windeck/m/"))
    memory.delete_many([manifests[1]])
    chunk = next(iter(data_keys(memory, "t")))
    memory.delete_many([chunk])
    report = verify(memory, deep=True)
    assert [damage.generation for damage in report.damages] == [numbers[1], numbers[0]]
    assert [damage.key for damage in report.damages] == [manifests[1].decode(), chunk.decode()]


def test_next_and_head_are_looked_at(memory: Store) -> None:
    fill(memory, 2)
    memory.put_many([(b"windeck/NEXT", encode(Label(Kind.NEXT), (2).to_bytes(8, "little")))])
    (damage,) = verify(memory).damages
    assert damage.problem == "windeck/NEXT is 2, expected more than the current generation, 2"
    memory.delete_many([b"windeck/NEXT"])
    (damage,) = verify(memory).damages
    assert damage.problem == "windeck/NEXT is missing, expected a next"
    memory.put_many([(b"windeck/HEAD", b"nonsense")])
    (damage,) = verify(memory).damages
    assert damage.problem == "windeck/HEAD is damaged: found 8 bytes, expected a header of 64"


@pytest.mark.parametrize("order", [[2, 3, 1], [3, 2, 2, 1], [1, 2, 3]])
def test_a_head_in_another_order_is_told(order: list[int], memory: Store) -> None:
    fill(memory, 3)
    kept = {commit.generation: commit for commit in checkpoint.log(memory)}
    memory.put_many([(b"windeck/HEAD", encode_head([kept[number] for number in order]))])
    (damage,) = verify(memory).damages
    words = f"windeck/HEAD lists generations {order}, expected descending numbers"
    assert (damage.key, damage.problem) == ("windeck/HEAD", words)


def test_what_nobody_refers_to_is_told_and_is_no_damage(memory: Store) -> None:
    numbers = fill(memory, 2)
    ghosts = [
        b"~windeck~00000000000000ff/t/00000000/00000000/00000000",
        b"~windeck~%016x/t/00000000/00000000/0000ffff" % numbers[0],
        b"~windeck~0000000000000001/e/00000009/00000000/00000000", b"~windeck~strange",
    ]  # fmt: skip
    memory.put_many((key, b"x") for key in ghosts)
    report = verify(memory, deep=True)
    assert report.ok
    assert report.unreferenced == 4
    assert sorted(report.unreferenced_keys) == sorted(key.decode() for key in ghosts)
    assert verify(memory, generation=numbers[0]).unreferenced == 0


@pytest.mark.parametrize(("field", "more"), [("rows", 1), ("counted", 2)])
def test_a_table_that_does_not_add_up(field: str, more: int, memory: Store) -> None:
    """Its blocks are whole, and have other numbers than the manifest says."""
    fill(memory, 1)
    (commit,) = checkpoint.log(memory)
    key, label = keys.manifest("windeck", 1), Label(Kind.MANIFEST, 1, commit.save)
    first, rest = bytes(decode(key, memory.get(key), label)).split(b"\n")
    catalog = json.loads(first)
    (table,) = catalog["tables"]
    rows, counted = table["rows"], table["counted"]
    table[field] += more
    value = encode(label, json.dumps(catalog).encode() + b"\n" + rest)
    changed = commit._replace(manifest_bytes=len(value), manifest_crc=crc32c(value))
    memory.put_many([(key, value), (b"windeck/HEAD", encode_head([changed]))])
    (damage,) = verify(memory, deep=True).damages
    assert (damage.name, damage.problem) == (
        "user",
        f"the table user has {rows} rows and {counted} other ids, expected {table['rows']} and "
        f"{table['counted']} from its manifest",
    )


def test_parts_of_several_writers(memory: Store) -> None:
    whole = torch.arange(63.0).view(9, 7)
    save_parts(memory, whole, [[(0, 3), (0, 7)], [(3, 9), (0, 7)]], chunk_bytes=20)
    assert verify(memory, deep=True).ok
    victim = b"~windeck~0000000000000001/t/00000001/00000000/00000002"
    value = bytearray(memory.get(victim) or b"")
    value[70] ^= 1
    memory.put_many([(victim, bytes(value))])
    (damage,) = verify(memory, deep=True).damages
    assert (damage.key, damage.name, damage.generation) == (victim.decode(), "model/w", 1)


def test_no_checkpoint_is_an_error(memory: Store) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at memory:.*: expected the"):
        verify(memory)
    fill(memory, 1)
    with pytest.raises(
        FileNotFoundError, match="there is no generation 9 in windeck, expected one"
    ):
        verify(memory, generation=9)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_damaged_file_of_an_embedded_store(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        checkpoint.save(store, step=1, model={"w": torch.randn(300_000)})
    from pathlib import Path

    folder = Path(url.split("://")[1])
    files = [f for f in folder.iterdir() if f.suffix in (".sst", ".ldb", ".log")]
    largest = max(files, key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 64
    largest.write_bytes(data)
    try:
        with open_store(url) as store:
            report: Any = verify(store, deep=True)
    except OSError:
        return  # the engine itself refused to open it
    assert not report.ok


def test_a_save_of_several_writers_that_was_merged(memory: Store) -> None:
    plan = checkpoint.begin(memory, step=1, writers=2, chunk_bytes=64)
    whole = torch.arange(100.0).view(20, 5)
    for writer, (first, stop) in enumerate(((0, 8), (8, 20))):
        part = checkpoint.Partition(whole[first:stop], offset=(first, 0), shape=(20, 5))
        checkpoint.save_shard(memory, plan, writer=writer, model={"w": part})
    checkpoint.merge(memory, plan)
    report = verify(memory, deep=True)
    assert (report.damages, report.unreferenced_keys) == ([], [])
    spoken = list(memory.keys(b"windeck/s/"))
    if spoken:  # what the writers said is looked at too
        value = bytearray(memory.get(spoken[1]) or b"")
        value[80] ^= 4
        memory.put_many([(spoken[1], bytes(value))])
        (damage,) = verify(memory, deep=True).damages
        assert damage.key == spoken[1].decode()
