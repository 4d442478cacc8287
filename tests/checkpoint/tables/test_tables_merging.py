"""Loading into tables that have ids, with another optimizer, and with another dtype."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.gangs import gang
from support.stored_keys import data_pairs
from windeck import checkpoint
from windeck.checkpoint.stores import CorruptStoreError, Store

Entry = dict[str, Any]
DIM = 3


def make(optimizer: str = "adam", **options: Any) -> wd.EmbeddingTable:
    given = {"lr": 0.5, "scale": 1.0, "seed": 2, "admit_after": 2, **options}
    return wd.EmbeddingTable(DIM, optimizer=optimizer, **given)


def train(table: wd.EmbeddingTable, first: int, end: int, steps: int) -> wd.EmbeddingTable:
    """Train on ids of a range, of which some stay without a row."""
    for step in range(steps):
        ids = torch.arange(first, end)[:: step + 1]
        table(ids).square().sum().backward()
        table.step()
    return table


def contents(*tables: wd.EmbeddingTable) -> dict[int, Entry]:
    """Return the entries of all ids, read from snapshots."""
    out = {}
    for table in tables:
        with table.core.snapshot() as snapshot:
            found = snapshot.read(table.core.first_bucket, table.core.end_bucket)
        rows = iter(found["values"])
        for i, key in enumerate(found["keys"].tolist()):
            out[key] = {
                "version": int(found["versions"][i]),
                "frequency": int(found["frequencies"][i]),
                "seen": int(found["seen"][i]),
                "row": next(rows).tolist() if found["admitted"][i] else None,
            }
    return out


def aged(entry: Entry, by: int) -> Entry:
    """Return an entry whose clocks are moved by some steps; 0 stays 0."""
    moved = {n: max(entry[n] + by, 0) if entry[n] else 0 for n in ("version", "seen")}
    return {**entry, **moved}


def merged(here: dict[int, Entry], saved: dict[int, Entry], mode: str) -> dict[int, Entry]:
    """Merge plain dicts by the documented rules."""
    out = dict(here)
    for key, entry in saved.items():
        own = here.get(key)
        if own is not None and (own["row"] is None) == (entry["row"] is None):
            out[key] = entry if mode == "replace" else own
        elif own is None or own["row"] is None:
            out[key] = entry
    return out


@pytest.mark.parametrize("mode", ["keep", "replace"])
@pytest.mark.parametrize(("here_steps", "saved_steps"), [(2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_merge_is_that_of_dicts(
    mode: str, here_steps: int, saved_steps: int, shards: int, memory: Store
) -> None:
    other = train(make(seed=9), 40, 160, saved_steps)
    checkpoint.save(memory, step=1, embeddings={"t": other})
    whole = train(make(), 0, 100, here_steps)
    borders = [1024 * i // shards for i in range(shards + 1)]
    parts = [make(_buckets=pair) for pair in pairwise(borders)]
    with whole.core.snapshot() as snapshot:
        for part in parts:
            part.core.insert(**snapshot.read(part.core.first_bucket, part.core.end_bucket))
            part.core.set_clock(snapshot.clock)
    here, saved = contents(whole), contents(other)
    assert {entry["row"] is None for entry in here.values()} == {True, False}
    for part in parts:
        checkpoint.load(memory, embeddings={"t": part}, merge=mode)
    clock = max(here_steps, saved_steps)
    assert [part.core.clock for part in parts] == [clock] * shards
    wanted = merged(
        {key: aged(entry, clock - here_steps) for key, entry in here.items()},
        {key: aged(entry, clock - saved_steps) for key, entry in saved.items()},
        mode,
    )
    assert contents(*parts) == wanted
    train(parts[0], 0, 0, 1)  # goes on


def test_a_merge_into_an_empty_table_is_a_load(memory: Store) -> None:
    table = train(make(), 0, 50, 3)
    checkpoint.save(memory, step=1, embeddings={"t": table})
    for mode in ("keep", "replace"):
        again = make()
        checkpoint.load(memory, embeddings={"t": again}, merge=mode)
        assert contents(again) == contents(table)
        assert again.core.clock == table.core.clock


def test_what_is_saved_after_a_merge_is_complete(memory: Store) -> None:
    table, other = train(make(), 0, 50, 3), train(make(seed=9), 20, 80, 4)
    checkpoint.save(memory, step=1, embeddings={"t": other})
    checkpoint.load(memory, embeddings={"t": table}, merge="replace")
    checkpoint.save(memory, step=2, embeddings={"t": table}, incremental=True)
    again = make()
    checkpoint.load(memory, embeddings={"t": again})
    assert contents(again) == contents(table)


def damaged(memory: Store) -> None:
    [key, *_] = [key for key, _ in data_pairs(memory, "e")][-1:]
    value = bytearray(memory.get(key) or b"")
    value[-1] ^= 1
    memory.put_many([(key, bytes(value))])


@pytest.mark.parametrize("mode", ["keep", "replace"])
def test_after_an_error_a_merge_left_nothing(mode: str, memory: Store) -> None:
    other = wd.EmbeddingTable(64, seed=9)
    other(torch.arange(2000, 6000))
    checkpoint.save(memory, step=1, embeddings={"t": other})
    damaged(memory)
    table = wd.EmbeddingTable(64, seed=1)
    train(table, 0, 3000, 2)
    before, clock = contents(table), table.core.clock
    with pytest.raises(CorruptStoreError):
        checkpoint.load(memory, embeddings={"t": table}, merge=mode)
    assert contents(table) == before
    assert table.core.clock == clock
    with pytest.raises(KeyError):  # before anything is read
        checkpoint.load(memory, embeddings={"t": table, "other": make()}, merge=mode)
    assert contents(table) == before


class Refusing:
    """An object whose state is refused after the tables were read."""

    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise ValueError("not this one")


@pytest.mark.parametrize("mode", [None, "replace"])
def test_after_an_error_of_another_target_tables_are_as_before(
    mode: str | None, memory: Store
) -> None:
    other = wd.EmbeddingTable(64, seed=9)
    other(torch.arange(2000, 6000))
    checkpoint.save(memory, step=1, embeddings={"t": other}, optimizer={"n": 1})
    table = wd.EmbeddingTable(64, seed=9)
    if mode is not None:
        train(table, 0, 3000, 2)
    before = contents(table)
    for target in (Refusing(), None):
        loads = pytest.raises(ValueError, match="not this one") if target else nullcontext()
        with loads:
            checkpoint.load(memory, embeddings={"t": table}, optimizer=target, merge=mode)
        assert (contents(table) == before) == bool(target)


def test_without_a_merge_a_table_with_ids_is_refused(memory: Store) -> None:
    table = train(make(), 0, 50, 3)
    checkpoint.save(memory, step=1, embeddings={"t": table})
    before = contents(table)
    with pytest.raises(ValueError, match="expected an empty table: make a new one, or merge into"):
        checkpoint.load(memory, embeddings={"t": table})
    with pytest.raises(ValueError, match="`merge` must be 'keep', 'replace' or None, got 'sum'"):
        checkpoint.load(memory, embeddings={"t": table}, merge="sum")
    assert contents(table) == before


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("adagrad", {"initial_accumulator_value": 0.25}),
    ("adam", {}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
@pytest.mark.parametrize("saved_optimizer", ["sgd", "adagrad", "adam"])
def test_slots_are_reset(
    optimizer: str, options: dict[str, Any], saved_optimizer: str, memory: Store
) -> None:
    """The rows are those saved; the table then trains as one whose rows begin with them."""
    saved = train(make(saved_optimizer), 0, 30, 4)
    checkpoint.save(memory, step=1, embeddings={"t": saved})
    table = make(optimizer, **options)
    if saved_optimizer != optimizer:
        words = f"has optimizer '{optimizer}', expected '{saved_optimizer}' as saved; reset_slots=T"
        with pytest.raises(ValueError, match=words):
            checkpoint.load(memory, embeddings={"t": table})
    checkpoint.load(memory, embeddings={"t": table}, reset_slots=True)
    assert table.core.clock == 0
    slots = options.get("initial_accumulator_value", 0.0)
    wanted = {}
    for key, entry in contents(saved).items():
        row = entry["row"]
        if row is not None:
            row = row[:DIM] + [slots] * (DIM * table.core.slots)
        wanted[key] = {**aged(entry, -4), "row": row}
    assert contents(table) == wanted

    fresh = make(optimizer, **options)  # as torch: a new optimizer on the same rows
    ids = torch.tensor([key for key, entry in wanted.items() if entry["row"] is not None])
    values = np.array([entry["row"] for entry in wanted.values() if entry["row"] is not None])
    none = np.zeros(len(ids), np.int64)
    fresh.core.insert(ids.numpy(), none, none, none, np.ones(len(ids), bool),
                      values.astype(np.float32))  # fmt: skip
    for each in (table, fresh):
        for _ in range(2):
            each(ids).square().sum().backward()
            each.step()
    assert torch.equal(table.eval()(ids), fresh.eval()(ids))
    table.train()
    checkpoint.save(memory, step=2, embeddings={"t": table}, incremental=True)
    again = make(optimizer, **options)
    checkpoint.load(memory, embeddings={"t": again})
    assert contents(again) == contents(table)


def test_slots_are_reset_in_a_merge(memory: Store) -> None:
    saved = train(make("adam"), 20, 60, 5)
    checkpoint.save(memory, step=1, embeddings={"t": saved})
    table = train(make("sgd"), 0, 40, 3)
    here = contents(table)
    checkpoint.load(memory, embeddings={"t": table}, merge="keep", reset_slots=True)
    assert table.core.clock == 3
    cut = {
        key: {**aged(entry, -2), "row": entry["row"] and entry["row"][:DIM]}
        for key, entry in contents(saved).items()
    }
    assert contents(table) == merged(here, cut, "keep")


def reset_and_merge_sharded(rank: int, ranks: int, url: str) -> dict[int, Entry]:
    import torch.distributed as dist

    options: dict[str, Any] = {"lr": 0.5, "scale": 1.0, "seed": 2, "admit_after": 2}
    first = wd.ShardedEmbeddingTable(DIM, optimizer="adam", **options)
    train(first, 0, 40, 3)
    checkpoint.save(url, step=1, embeddings={"t": first}, group=dist.group.WORLD)
    second = wd.ShardedEmbeddingTable(DIM, optimizer="sgd", dtype="bfloat16", **options)
    train(second, 20, 60, 2)
    checkpoint.load(url, embeddings={"t": second}, group=dist.group.WORLD, merge="replace",
                    reset_slots=True, cast=True)  # fmt: skip
    checkpoint.save(url, step=2, embeddings={"t": second}, group=dist.group.WORLD)
    return contents(second)


def test_sharded_tables_reset_merge_and_cast(tmp_path: Any) -> None:
    """Three ranks, then one: the same table as one rank makes of the same steps."""
    url = f"rocksdb://{tmp_path}/three"
    parts = gang(3, reset_and_merge_sharded, url)
    together = {key: entry for part in parts for key, entry in part.items()}
    [alone] = gang(1, reset_and_merge_sharded, f"rocksdb://{tmp_path}/one")
    # Each of the three looked up all ids: counts are three times those of one.
    assert together.keys() == alone.keys()
    again = make("sgd", dtype="bfloat16")
    checkpoint.load(url, embeddings={"t": again})
    assert contents(again) == together


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_bfloat16_is_saved_as_it_is(shards: int, memory: Store) -> None:
    table = train(make("adam", dtype="bfloat16"), -30, 500, 4)
    checkpoint.save(memory, step=1, embeddings={"t": table})
    table(torch.arange(5)).sum().backward()
    table.step()
    table.evict(seen_before=2)
    checkpoint.save(memory, step=2, embeddings={"t": table}, incremental=True)
    with checkpoint.open(memory) as found:
        info = found.tables["t"]
        assert (info.dtype, info.rows) == ("bfloat16", table.rows)
        assert len(info.links) == 2
        rows = found.table("t").rows([1, 2, 3, 10**9])
    values = torch.from_numpy(rows.values)
    assert values.dtype == torch.float32
    assert torch.equal(values[:, :DIM], table(torch.tensor([1, 2, 3]), count=False).float())
    borders = [1024 * i // shards for i in range(shards + 1)]
    parts = [make("adam", dtype="bfloat16", _buckets=pair) for pair in pairwise(borders)]
    for part in parts:
        checkpoint.load(memory, embeddings={"t": part})
        assert part.core.clock == table.core.clock
    assert contents(*parts) == contents(table)


def test_the_format_of_blocks_of_bfloat16(memory: Store) -> None:
    """The documented bytes, taken to pieces."""
    table = wd.EmbeddingTable(3, optimizer="adagrad", scale=1.0, dtype="bfloat16")
    ids = torch.tensor([5, -7])
    table(ids)
    checkpoint.save(memory, step=1, embeddings={"t": table})
    [(_, value)] = data_pairs(memory, "e")
    assert struct.unpack_from("<6I", value, 64) == (2, 2, 0, 3, 1, 1)
    keys = list(struct.unpack_from("<2q", value, 88))
    assert len(value) == 64 + 24 + 33 * 2 + 6 + 2 * 6 * 2
    found = np.frombuffer(value, "<u2", 12, len(value) - 24).reshape(2, 6).copy()
    rows = torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(rows[:, :3], table(torch.tensor(keys), count=False))
    assert not rows[:, 3:].any()


def test_rows_of_bfloat16_take_half_the_bytes(memory: Store) -> None:
    sizes: list[int] = []
    for dtype in ("float32", "bfloat16"):
        table = wd.EmbeddingTable(64, dtype=dtype)
        table(torch.arange(2000))
        checkpoint.save(memory, step=len(sizes), embeddings={"t": table})
        with checkpoint.open(memory) as found:
            sizes.append(found.tables["t"].bytes)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(("saved", "wanted"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_casts_are_asked_for(saved: str, wanted: str, memory: Store) -> None:
    table = train(make("adam", dtype=saved), 0, 200, 3)
    checkpoint.save(memory, step=1, embeddings={"t": table})
    other = make("adam", dtype=wanted)
    words = f"the table t has dtype {wanted}, expected {saved} as saved; cast=True casts"
    with pytest.raises(TypeError, match=words):
        checkpoint.load(memory, embeddings={"t": other})
    assert (other.rows, other.core.counted) == (0, 0)
    checkpoint.load(memory, embeddings={"t": other}, cast=True)
    ids = np.arange(200)
    found, given = (
        torch.from_numpy(each.core.row_values(ids)) if each.core.dtype == "float32"
        else torch.from_numpy(each.core.row_values(ids).view(np.int16)).view(torch.bfloat16)
        for each in (other, table)
    )  # fmt: skip
    rows = table.core.find(ids)
    assert torch.equal(found[rows], given.to(found.dtype)[rows])
    assert other.core.clock == table.core.clock


def test_exported_rows_of_bfloat16(memory: Store) -> None:
    table = train(make("sgd", dtype="bfloat16"), 0, 50, 3)
    assert checkpoint.export(memory, table, "user") == table.rows
    value = np.frombuffer(memory.get(b"windeck/r/user/0") or b"", "<f4").copy()
    assert torch.equal(torch.from_numpy(value), table(torch.tensor([0]), count=False)[0].float())
    again, wide = make("sgd", dtype="bfloat16"), make("sgd")
    with pytest.raises(TypeError, match="has dtype float32, expected bfloat16 as exported"):
        checkpoint.import_rows(memory, wide, "user")
    assert wide.rows == 0
    for each, cast in ((again, False), (wide, True)):
        checkpoint.import_rows(memory, each, "user", cast=cast)
        ids = torch.arange(50)[torch.from_numpy(table.core.find(np.arange(50)))]
        assert torch.equal(each(ids, count=False).float(), table(ids, count=False).float())


def test_a_comparison_tells_dtypes(memory: Store) -> None:
    for step, dtype in enumerate(("float32", "bfloat16")):
        table = make("sgd", dtype=dtype)
        table(torch.arange(9))
        checkpoint.save(memory, step=step, embeddings={"t": table})
    found = checkpoint.diff(memory, 1, 2).tables
    assert "float32, then bfloat16" in found[0].note
