"""The bytes of blocks of tables and of their index: written by C++ and read by Python and C++."""

from __future__ import annotations

import numpy as np
import pytest

from support.internals import COUNTED, Entries, pack_entries, unpack_block
from support.internals import parse_block_index as parse_index
from windeck._core import EmbeddingCore
from windeck.checkpoint.format import DEAD, INDEX_LINE, ROW, BlockSize, TableShape, last_key

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


@pytest.mark.parametrize(("dtype", "golden"), [("float32", FLOAT32), ("bfloat16", BFLOAT16)])
def test_blocks_have_the_published_bytes(dtype: str, golden: str) -> None:
    shape = TableShape(2, 1, dtype)
    row = np.array([[1, -2, 0.5, 3]], np.float32)
    bits = (row.view(np.uint32) >> 16).astype(np.uint16)
    last = DEAD if dtype == "float32" else COUNTED
    entries = Entries(
        keys=np.array([2**40, 3, -5]),
        versions=np.array([7, 8, 9]),
        frequencies=np.array([1, 2, 0]),
        seen=np.array([5, 6, 0]),
        states=np.array([COUNTED, ROW, last], np.uint8),
        values=row if dtype == "float32" else bits,
    )
    (block,) = pack_entries(entries, shape, [])
    assert bytes(block.payload) == bytes.fromhex(golden)
    assert block.line() == bytes.fromhex(LINES[dtype])
    assert INDEX_LINE.itemsize == len(block.line()) == 32

    size = BlockSize(3, 1, int(last == DEAD))
    index = parse_index("index", [memoryview(block.line())], (0, 1024))
    assert index.size(0) == size
    assert index.payload_bytes(shape).tolist() == [size.bytes(shape)] == [len(block.payload)]
    found = index.check("block", 0, unpack_block("block", block.payload, shape, size))
    for name in ("keys", "versions", "frequencies", "seen", "states", "values"):
        np.testing.assert_array_equal(getattr(found, name), getattr(entries, name))
    assert last_key(block.payload) == -5

    core = EmbeddingCore(2, slots=1, dtype=dtype)
    wrong = core.insert_blocks([block.payload], block.line(), 0, 1024)
    if last == DEAD:  # C++ inserts whole tables only.
        assert wrong == 0
        return
    assert wrong is None
    (again,) = core.snapshot().blocks(0, 1024, dim=2, slots=1, most=1 << 19, borders=[])
    assert bytes(again[0]) == bytes.fromhex(golden)
