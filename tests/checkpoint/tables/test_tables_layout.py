"""The bytes of blocks of tables and of their index: written by C++ and read by Python and C++."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.table_model import ModelCore, ModelTable
from windeck import checkpoint
from windeck._core import EmbeddingCore
from windeck.checkpoint.format import INDEX_LINE, BlockSize, TableShape, keys, last_key
from windeck.checkpoint.stores import Store

#: The ids 2^40, 3 and -5 in the buckets 2, 121 and 287: counted, with a row, and dead or counted.
COLUMNS = (
    "0000000000010000 0300000000000000 fbffffffffffffff"  # ids
    "0700000000000000 0800000000000000 0900000000000000"  # versions
    "0100000000000000 0200000000000000 0000000000000000"  # frequencies
    "0500000000000000 0600000000000000 0000000000000000"  # seen
)
#: Entries, rows, dead, dim, slots and dtype; states, padded; the row 1, -2, 0.5 and 3.
FLOAT32 = (
    "03000000 01000000 01000000 02000000 01000000 00000000"
    + COLUMNS
    + "00 01 02 0000000000"
    + "0000803f 000000c0 0000003f 00004040"
)
BFLOAT16 = (
    "03000000 01000000 00000000 02000000 01000000 01000000"
    + COLUMNS
    + "00 01 00 0000000000"
    + "803f 00c0 003f 4040"
)
LINES = {
    "float32": "0000000000010000 02000000 1f010000 03000000 01000000 01000000 00000000",
    "bfloat16": "0000000000010000 02000000 1f010000 03000000 01000000 00000000 00000000",
}


IDS = [2**40, 3, -5]
VALUES = np.array([1, -2, 0.5, 3], np.float32)


def stored(store: Store, generation: int) -> tuple[bytes, bytes]:
    """Return the payload of the first block of a generation, and that of its index."""
    block = store.get(keys.block("windeck", generation, 0, 0, 0))
    index = store.get(keys.index("windeck", generation, 0, 0, 0))
    assert block is not None
    assert index is not None
    return block[64:], index[64:]


def fill(core: ModelCore) -> None:
    core.put(2**40, 7, 1, 5, None)
    core.put(3, 8, 2, 6, VALUES)
    core.clock = 9


def assert_rows(store: Store, dead: int) -> None:
    """Assert that the ids come back, the last of them counted or not at all."""
    with checkpoint.open(store) as saved:
        rows = saved.table("t").rows(IDS)
    assert rows.found.tolist() == [True, True, not dead]
    assert rows.versions.tolist() == [7, 8, 0 if dead else 9]
    assert rows.frequencies.tolist() == [1, 2, 0]
    assert rows.seen.tolist() == [5, 6, 0]
    assert rows.admitted.tolist() == [False, True, False]
    np.testing.assert_array_equal(rows.values, VALUES.reshape(1, 4))


def assert_published(payload: bytes, line: bytes, dtype: str, dead: int) -> None:
    golden = FLOAT32 if dtype == "float32" else BFLOAT16
    assert payload == bytes.fromhex(golden)
    assert line == bytes.fromhex(LINES[dtype])
    assert INDEX_LINE.itemsize == len(line) == 32
    assert BlockSize(3, 1, dead).bytes(TableShape(2, 1, dtype)) == len(payload)
    assert last_key(memoryview(payload)) == -5


def test_blocks_of_deltas_have_the_published_bytes(memory: Store) -> None:
    """A save of ids that one of them was removed from since."""
    core = ModelCore(2, 1)
    core.fill([*range(100, 150), -5], np.random.default_rng(0))
    options: dict[str, Any] = {"embeddings": {"t": ModelTable(core)}, "incremental": True}
    checkpoint.save(memory, step=1, **options)
    fill(core)
    del core.ids[-5]
    core.gone[-5] = 9
    checkpoint.save(memory, step=2, **options)
    payload, line = stored(memory, 2)
    assert_published(payload, line, "float32", dead=1)
    assert_rows(memory, dead=1)
    # C++ inserts whole tables only.
    assert EmbeddingCore(2, slots=1).insert_blocks([memoryview(payload)], line, 0, 1024) == 0


def test_blocks_of_bfloat16_have_the_published_bytes(memory: Store) -> None:
    """Written from the native table and by it, and read by Python and C++."""
    core = ModelCore(2, 1)
    fill(core)
    core.put(-5, 9, 0, 0, None)
    table, found = EmbeddingCore(2, slots=1, dtype="bfloat16"), core.snapshot().read(0, 1024)
    found["values"] = (found["values"].view(np.uint32) >> 16).astype(np.uint16)
    table.insert(*found.values())
    table.set_clock(core.clock)
    checkpoint.save(memory, step=1, embeddings={"t": ModelTable(table)})
    payload, line = stored(memory, 1)
    assert_published(payload, line, "bfloat16", dead=0)
    assert_rows(memory, dead=0)
    again = EmbeddingCore(2, slots=1, dtype="bfloat16")
    assert again.insert_blocks([memoryview(payload)], line, 0, 1024) is None
    (block,) = again.snapshot().blocks(0, 1024, dim=2, slots=1, most=1 << 19, borders=[])
    assert bytes(block[0]) == payload
    model = ModelCore(2, 1)
    checkpoint.load(memory, embeddings={"t": ModelTable(model)}, cast=True)
    assert model.told() == core.told()
