"""Tests of tables exported with one key for each id: reading without windeck, and importing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windeck as wd
from checkpoint.tables.test_tables import filled
from models.table_model import EXTREMES, ModelCore, ModelTable, bucket, native, told_by
from support.programs import printed
from support.store_servers import KINDS, RedisServer, need
from windeck import checkpoint
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]

REDIS_CLIENT = """
import sys
import numpy
import redis

client = redis.Redis(port=int(sys.argv[1]))
ids = [int(text) for text in sys.argv[2:]]
rows = client.mget([f"shop/r/user/{i}" for i in ids])
for i, row in zip(ids, rows):
    print(i, None if row is None else numpy.frombuffer(row, "<f4").tolist())
"""
ROCKSDB_CLIENT = """
import sys
import numpy
import rocksdict

options = rocksdict.Options(raw_mode=True)
database = rocksdict.Rdict(sys.argv[1], options, access_type=rocksdict.AccessType.read_only())
for i in map(int, sys.argv[2:]):
    row = database.get(b"shop/r/user/%d" % i)
    print(i, None if row is None else numpy.frombuffer(row, "<f4").tolist())
"""


def plain(core: ModelCore, key: int) -> list[float] | None:
    entry = core.ids.get(key)
    return None if entry is None or entry.values is None else entry.values[: core.dim].tolist()


def numbers(core: ModelCore) -> ModelCore:
    """The same with numbers that print as they are."""
    for i, entry in enumerate(core.ids.values()):
        if entry.values is not None:
            entry.values = np.arange(len(entry.values), dtype=np.float32) + i / 8
    return core


@pytest.mark.parametrize("kind", ["redis", "rocksdb"])
def test_a_client_of_ten_lines_without_windeck(
    kind: str, fresh: Fresh, request: pytest.FixtureRequest
) -> None:
    need(kind)
    core = numbers(filled(5, 1, 300))
    url = fresh(kind)
    checkpoint.export(url, ModelTable(core), "user", layout="rows", namespace="shop")
    where, client = url.removeprefix("rocksdb://"), ROCKSDB_CLIENT
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        where, client = str(server.port), REDIS_CLIENT
    ids = [*EXTREMES, *list(core.ids)[20:30], 77, 78]
    told = printed(client, where, *map(str, ids))
    assert told.splitlines() == [f"{key} {plain(core, key)}" for key in ids]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_back(kind: str, fresh: Fresh) -> None:
    core = filled(4, 2, 500)
    with open_store(fresh(kind)) as store:
        store.put_many([(b"windeck/r/users/5", b"another table's"), (b"windeck/HEAD2", b"x")])
        for slots in (False, True):
            count = checkpoint.export(store, ModelTable(core), "user", slots=slots)
            assert count == len(core)
            rows = dict(store.scan(b"windeck/r/user/"))
            width = 4 * (3 if slots else 1)
            assert rows == {
                b"windeck/r/user/%d" % key: entry.values[:width].tobytes()
                for key, entry in core.ids.items()
                if entry.values is not None
            }
            told = json.loads(store.get(b"windeck/r/user") or b"")
            sizes = {"dim": 4, "dtype": "float32", "slots": 2, "rows": count}
            assert told == {"format": 1, **sizes, "clock": 1, "with_slots": slots}
            new = ModelCore(4, 2)
            table = ModelTable(new, slot_value=0.5)
            assert checkpoint.import_rows(store, table, "user") == count
            assert new.clock == core.clock
            for key, entry in new.ids.items():
                assert (entry.version, entry.frequency, entry.seen) == (1, 1, 1)
                was = core.ids[key].values
                kept = was if slots else np.concatenate([was[:4], np.full(8, 0.5, np.float32)])
                assert entry.values.tobytes() == kept.tobytes()
            assert len(new.ids) == count
        assert store.get(b"windeck/r/users/5") == b"another table's"


def test_a_new_export_replaces_rows_and_removes_those_that_went(memory: Store) -> None:
    rng, core = np.random.default_rng(0), filled(3, 0, 400, counted=0)
    checkpoint.export(memory, ModelTable(core), "t")
    core.remove(list(core.ids)[:150])
    core.fill([*list(core.ids)[:9], *range(50)], rng)
    assert checkpoint.export(memory, ModelTable(core), "t") == len(core)
    assert dict(memory.scan(b"windeck/r/t/")) == {
        b"windeck/r/t/%d" % key: entry.values.tobytes() for key, entry in core.ids.items()
    }
    core.remove(list(core.ids))
    assert checkpoint.export(memory, ModelTable(core), "t") == 0
    assert list(memory.keys(b"windeck/r/t/")) == []
    empty = ModelCore(3)
    assert checkpoint.import_rows(memory, ModelTable(empty), "t") == 0


def test_shards_take_their_own_rows(memory: Store) -> None:
    core = filled(3, 0, 400, counted=0)
    checkpoint.export(memory, ModelTable(core), "t")
    part = ModelCore(3, first_bucket=100, end_bucket=300)
    count = checkpoint.import_rows(memory, ModelTable(part), "t")
    assert set(part.ids) == {key for key in core.ids if 100 <= bucket(key) < 300}
    assert count == len(part.ids)


def test_a_saved_table_and_the_native_one(memory: Store) -> None:
    core = filled(8, 1, 3000)
    checkpoint.save(memory, step=1, embeddings={"t": ModelTable(core)})
    with checkpoint.open(memory) as found, open_store("memory://") as other:
        checkpoint.export(other, found.table("t"), "t", slots=True)
        checkpoint.export(memory, ModelTable(native(core)), "t", slots=True)
        rows = dict(memory.scan(b"windeck/r/t"))
        assert rows == dict(other.scan(b"windeck/r/t"))
        assert len(rows) == len(core) + 1
    new = native(ModelCore(8, 1))
    checkpoint.import_rows(memory, ModelTable(new), "t")
    assert {key: told[3] for key, told in told_by(new).items()} == {
        key: told[3] for key, told in core.told().items() if told[3] is not None
    }


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("a/b", {}, ValueError, "`name` must have letters, digits, -, _ and . only, got 'a/b'"),
        (3, {}, ValueError, "`name` must have letters, digits, -, _ and . only, got 3"),
        ("t", {"layout": "blocks"}, ValueError, "`layout` must be 'rows', got 'blocks'; save"),
        ("t", {"namespace": "{"}, ValueError, "expected a namespace of 1 to 200"),
    ],
)
def test_what_cannot_be_exported(
    name: Any, options: Any, error: type[Exception], words: str, memory: Store
) -> None:
    with pytest.raises(error, match=words):
        checkpoint.export(memory, ModelTable(ModelCore(2)), name, **options)
    with pytest.raises(TypeError, match=r"embeddings/t must be a table, .*, got dict"):
        checkpoint.export(memory, {}, "t")
    assert list(memory.keys()) == []


ROWS = [(b"windeck/r/t/1", np.zeros(2, np.float32).tobytes())]
TOLD = {"format": 1, "dim": 2, "dtype": "float32", "slots": 0, "rows": 1, "clock": 3}
TOLD |= {"with_slots": False}


@pytest.mark.parametrize(
    ("rows", "told", "words"),
    [
        ([(b"windeck/r/t/1", b"1234567")], {}, "windeck/r/t/1 has 7 bytes, expected 8"),
        ([(b"windeck/r/t/01", bytes(8))], {}, "t/01' is not the key of an id, expected a key of"),
        ([(b"windeck/r/t/-0", bytes(8))], {}, "t/-0' is not the key of an id"),
        ([(b"windeck/r/t/", bytes(8))], {}, "t/' is not the key of an id"),
        ([(b"windeck/r/t/9223372036854775808", bytes(8))], {}, "8' is not the key of an id"),
        ([(b"windeck/r/t/" + b"9" * 5000, bytes(8))], {}, "9' is not the key of an id"),
        ([], {}, "has 0 rows, expected 1 as exported"),
        (ROWS, {"rows": 2}, "has 1 rows, expected 2 as exported"),
        ([*ROWS, (b"windeck/r/t/2", bytes(8))], {}, "has 2 rows, expected 1 as exported"),
        (ROWS, {"rows": -1}, "windeck/r/t cannot be read as an export: expected numbers"),
        (ROWS, {"clock": 2**62}, "cannot be read as an export: expected numbers"),
        (ROWS, {"dim": 2.0}, "cannot be read as an export: expected numbers"),
        (ROWS, {"with_slots": 1}, "cannot be read as an export: expected true or false"),
        (ROWS, {"dtype": "int8"}, "as an export: expected float32 or bfloat16, found 'int8'"),
    ],
)
def test_rows_that_cannot_be(rows: Any, told: Any, words: str, memory: Store) -> None:
    with pytest.raises(FileNotFoundError, match="there is no export windeck/r/t, expected that k"):
        checkpoint.import_rows(memory, ModelTable(ModelCore(2)), "t")
    value = json.dumps({**TOLD, **told}).encode()
    memory.put_many([*rows, (b"windeck/r/t", value)])
    with pytest.raises(CorruptStoreError, match=words):
        checkpoint.import_rows(memory, ModelTable(ModelCore(2)), "t")


def test_rows_in_front_of_a_damaged_one_are_removed(memory: Store) -> None:
    keys = sorted(b"windeck/r/t/%d" % key for key in range(20_000))
    memory.put_many([(key, bytes(8)) for key in keys])
    memory.put_many(
        [(keys[-1], b""), (b"windeck/r/t", json.dumps({**TOLD, "rows": 20_000}).encode())]
    )
    table = wd.EmbeddingTable(2, optimizer="sgd")
    with pytest.raises(CorruptStoreError, match="has 0 bytes, expected 8"):
        checkpoint.import_rows(memory, table, "t")
    assert table.rows == 0
    memory.put_many([(keys[-1], bytes(8))])
    assert checkpoint.import_rows(memory, table, "t") == table.rows == 20_000


def test_tables_that_rows_do_not_fit(memory: Store) -> None:
    memory.put_many([*ROWS, (b"windeck/r/t", json.dumps(TOLD).encode())])
    with pytest.raises(ValueError, match="t has dim 3 and 0 slots, expected 2 and 0 as exported"):
        checkpoint.import_rows(memory, ModelTable(ModelCore(3)), "t")
    with pytest.raises(ValueError, match="the table t has 3 rows and counts 0 ids"):
        checkpoint.import_rows(memory, ModelTable(filled(2, 0, 3, counted=0)), "t")
    assert checkpoint.import_rows(memory, ModelTable(ModelCore(2, 1)), "t") == 1


@pytest.mark.parametrize("field", TOLD)
def test_every_field_of_an_export_is_needed(field: str, memory: Store) -> None:
    told = {name: value for name, value in TOLD.items() if name != field}
    memory.put_many([*ROWS, (b"windeck/r/t", json.dumps(told).encode())])
    with pytest.raises(CorruptStoreError, match=f"cannot be read as an export: '{field}'"):
        checkpoint.import_rows(memory, ModelTable(ModelCore(2)), "t")


def test_an_export_of_a_later_format_is_no_damage(memory: Store) -> None:
    memory.put_many([(b"windeck/r/t", b'{"format": 2}')])
    with pytest.raises(ValueError, match=r"^windeck/r/t has format 2, expected 1: a later windeck"):
        checkpoint.import_rows(memory, ModelTable(ModelCore(2)), "t")
