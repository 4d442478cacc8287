"""Tests of large chunks read straight into their targets, from all stores, and damaged."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.store_servers import EMBEDDED, need
from support.stored_keys import data_keys
from windeck import checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
CHUNK = 128 << 10


def filled(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of random bits, NaNs included."""
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    data = bytearray(random.Random(str(shape)).randbytes(count))
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def model() -> dict[str, torch.Tensor]:
    return {
        "float": filled(300, 700),
        "small": filled(5),
        "bfloat": filled(1_000_003, dtype=torch.bfloat16),
        "strided": filled(400, 500).t(),
        "complex": filled(3, 40_000, dtype=torch.complex64),
        "deep": filled(4, 50, 9, 71, dtype=torch.float64),
    }


def test_into_targets_of_all_layouts(store: Store) -> None:
    saved = model()
    checkpoint.save(store, step=1, model=saved, chunk_bytes=CHUNK)
    plain = {name: torch.zeros(v.shape, dtype=v.dtype) for name, v in saved.items()}
    checkpoint.load(store, model=plain)
    assert all(same(plain[name], saved[name]) for name in saved)
    turned = {
        name: torch.zeros(v.shape[::-1], dtype=v.dtype).permute(tuple(range(v.ndim))[::-1])
        for name, v in saved.items()
    }
    checkpoint.load(store, model=turned)
    assert all(same(turned[name], saved[name]) for name in saved)
    cast = {name: torch.zeros(v.shape, dtype=torch.complex128) for name, v in saved.items()}
    checkpoint.load(store, model=cast, cast=True)
    assert all(same(cast[name], saved[name].to(torch.complex128)) for name in saved)
    other = {"again": torch.zeros(300, 700), **{n: torch.zeros_like(v) for n, v in saved.items()}}
    with checkpoint.open(store) as found:  # two targets of one tensor
        found.read_into("model/float", [other["again"], other["float"]])
    assert same(other["again"], saved["float"])
    assert same(other["float"], saved["float"])


def test_slices_cut_chunks_anywhere(store: Store) -> None:
    saved, draw = model(), random.Random(1)
    checkpoint.save(store, step=1, model=saved, chunk_bytes=CHUNK)
    with checkpoint.open(store) as found:
        for _ in range(60):
            name = draw.choice(sorted(saved))
            box = []
            for size in saved[name].shape[: draw.randrange(1, 4)]:
                first = draw.randrange(size)
                box.append(slice(first, draw.randrange(first + 1, size + 1)))
            assert same(found.slice(f"model/{name}", tuple(box)), saved[name][tuple(box)])


def test_a_damaged_chunk_is_found_out(store: Store) -> None:
    saved = {"a": filled(100_000), "b": filled(100_000), "c": filled(9)}
    checkpoint.save(store, step=1, model=saved, chunk_bytes=CHUNK)
    chunks = {key: store.get(key) for key in data_keys(store, "t")}
    assert len(chunks) == 9
    fifth = keys.chunk("windeck", 1, 0, 1, 0)
    value = chunks[fifth]
    assert value is not None
    target = {name: torch.zeros_like(v) for name, v in saved.items()}
    wrong = (
        value[:-1] + bytes([value[-1] ^ 1]),
        bytes([value[0] ^ 1]) + value[1:],
        value[:-1],
        value + b"\0",
        value[:63],
        chunks[keys.chunk("windeck", 1, 0, 0, 0)] or b"",
    )
    for data in wrong:
        store.put_many([(fifth, data)])
        for _ in range(2):  # as it was put, and as it lies in a table
            with pytest.raises(CorruptStoreError, match=rf"{fifth.decode()} is damaged: found .*"):
                checkpoint.load(store, model=target)
            store.sync()
    store.delete_many([fifth])
    for _ in range(2):
        match = rf"{fifth.decode()} is missing.*; at least [12] of 3 .* the targets are invalid"
        with pytest.raises(CorruptStoreError, match=match):
            checkpoint.load(store, model=target)
        store.sync()
    store.bulk_load([(fifth, value)])
    checkpoint.load(store, model=target)
    assert all(same(target[name], saved[name]) for name in saved)


def test_chunks_that_have_no_place_share_memory_that_grows(tmp_path: Path) -> None:
    """Of a thread: for chunks of 80, 128 and 96 KB that go to columns, read one after the other."""
    need("rocksdb")
    saved = {f"{rows}": filled(rows, 100) for rows in (200, 330, 240)}
    url = f"rocksdb://{tmp_path}/x"
    checkpoint.save(url, step=1, model=saved, chunk_bytes=CHUNK)
    target = {name: torch.zeros(100, len(v)).t() for name, v in saved.items()}
    checkpoint.load(url, model=target)
    assert all(same(target[name], saved[name]) for name in saved)


def test_whole_values_of_another_place_are_found_out_in_tables(tmp_path: Path) -> None:
    """Chunks that are whole, but not those that belong there."""
    need("rocksdb")
    saved = {"a": filled(32_768), "b": filled(40_000), "c": filled(50_000)}
    with open_store("memory://") as memory:
        for _ in range(2):
            checkpoint.save(memory, step=1, model=saved, chunk_bytes=CHUNK)
        values = dict(memory.scan())
        checkpoint.gc(memory, keep=1)
        kept = dict(memory.scan())
    ours = keys.chunk("windeck", 2, 0, 1, 0)
    others = (
        keys.chunk("windeck", 2, 0, 0, 0),  # of another tensor
        keys.chunk("windeck", 2, 0, 2, 0),
        keys.chunk("windeck", 1, 0, 1, 0),  # of another save
    )
    for number, other in enumerate((ours, *others)):
        url = f"rocksdb://{tmp_path}/{number}"
        with open_store(url) as store:
            store.bulk_load(sorted({**kept, ours: values[other]}.items()))
        target = {name: torch.zeros_like(v) for name, v in saved.items()}
        with open_store(f"{url}?readonly=1") as store:
            if other == ours:
                checkpoint.load(store, model=target)
                assert all(same(target[name], saved[name]) for name in saved)
                continue
            with pytest.raises(CorruptStoreError, match=rf"{ours.decode()} is damaged: found .*"):
                checkpoint.load(store, model=target)


def test_flipped_bytes_of_the_table_file(tmp_path: Path) -> None:
    need("rocksdb")
    saved = {"a": filled(100_000), "b": filled(70_000)}
    url = f"rocksdb://{tmp_path}/x"
    checkpoint.save(url, step=1, model=saved, chunk_bytes=CHUNK)
    table = max((tmp_path / "x").glob("*.sst"), key=lambda path: path.stat().st_size)
    data, draw = table.read_bytes(), random.Random(2)
    outcomes = {"right": 0, "found out": 0}
    for at in [*draw.sample(range(len(data) - 1700), 60), *range(len(data) - 1700, len(data), 23)]:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        table.write_bytes(damaged)
        target = {name: torch.zeros_like(v) for name, v in saved.items()}
        try:
            checkpoint.load(url, model=target)
        except CorruptStoreError as error:
            assert "invalid" in str(error) or "opening failed" in str(error) or "HEAD" in str(error)  # noqa: PT017
            outcomes["found out"] += 1
        else:
            assert all(same(target[name], saved[name]) for name in saved)
            outcomes["right"] += 1
    assert outcomes["found out"] >= 60
    assert outcomes["right"] < 60


HUGE = """
import sys, torch
from windeck import checkpoint
count = (1 << 31) + 1000
tensor = torch.empty(count, dtype=torch.int8)
block = torch.arange(251, dtype=torch.int8)  # of a prime number of bytes: no chunk is like another
tensor[: count // 251 * 251].view(-1, 251).copy_(block)
tensor[-1000:] = 7
checkpoint.save(sys.argv[1], step=1, model={"t": tensor})
with checkpoint.open(sys.argv[1]) as found:
    assert torch.equal(found.slice("model/t", slice(count - 2000, count)), tensor[-2000:])
    middle = slice((1 << 31) - 300, (1 << 31) + 300)
    assert torch.equal(found.slice("model/t", middle), tensor[middle])
target = torch.zeros(count, dtype=torch.int8)
checkpoint.load(sys.argv[1], model={"t": target})
assert torch.equal(target, tensor)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", EMBEDDED)
def test_more_than_two_to_the_31_elements(kind: str, fresh: Fresh) -> None:
    subprocess.run([sys.executable, "-c", HUGE, fresh(kind)], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_device(store: Store) -> None:
    saved = model()
    there = {name: value.cuda() for name, value in saved.items()}
    checkpoint.save(store, step=1, model=there, chunk_bytes=CHUNK)
    target = {name: torch.zeros_like(value) for name, value in there.items()}
    checkpoint.load(store, model=target)
    assert all(value.is_cuda and same(value.cpu(), saved[n]) for n, value in target.items())
    turned = {"strided": torch.zeros(400, 500, device="cuda").t()}
    checkpoint.load(store, model=turned, strict=False)
    assert same(turned["strided"].cpu(), saved["strided"])
    plain = {name: torch.zeros_like(value) for name, value in saved.items()}
    checkpoint.load(store, model=plain)
    assert all(same(plain[name], saved[name]) for name in saved)
