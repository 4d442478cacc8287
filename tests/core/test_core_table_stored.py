"""Insertion of stored blocks, against insertion of the same entries as columns."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from models.table_model import EXTREMES, told_by
from windeck._core import EmbeddingCore, bucket_of, pack_blocks

DIM, SLOTS = 3, 1
LINE = struct.Struct("<qIIIIII")


def make_columns(count: int, seed: int) -> dict[str, Any]:
    """Columns of sorted entries, about a third of them without a row."""
    draw = np.random.default_rng(seed)
    keys = np.unique(np.append(draw.integers(-(2**62), 2**62, count - len(EXTREMES)), EXTREMES))
    keys = keys[np.lexsort((keys, bucket_of(keys)))]
    numbers = {
        name: draw.integers(0, 2**62, len(keys)) for name in ("versions", "frequencies", "seen")
    }
    admitted = draw.random(len(keys)) < 0.7
    values = draw.standard_normal((int(admitted.sum()), DIM * (1 + SLOTS))).astype(np.float32)
    return {"keys": keys, **numbers, "admitted": admitted, "values": values}


def make_blocks(columns: dict[str, Any], most: int = 2000) -> tuple[list[bytearray], list[bytes]]:
    found = pack_blocks(
        columns["keys"], columns["versions"], columns["frequencies"], columns["seen"],
        columns["admitted"].view(np.uint8), columns["values"],
        dim=DIM, slots=SLOTS, most=most, borders=[],
    )  # fmt: skip
    lines = [
        LINE.pack(key, first, last, entries, rows, dead, 0)
        for _, _, entries, rows, dead, key, first, last in found
    ]
    return [bytearray(block[0]) for block in found], lines


def inserted(columns: dict[str, Any], first: int = 0, end: int = 1024) -> dict[int, Any]:
    core = EmbeddingCore(DIM, slots=SLOTS)
    buckets = bucket_of(columns["keys"])
    inside = (buckets >= first) & (buckets < end)
    rows = columns["values"][inside[columns["admitted"]]]
    some = {name: value[inside] for name, value in columns.items() if name != "values"}
    core.insert(**some, values=rows)
    return told_by(core)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("group", [1, 7, 1000])
def test_blocks_give_what_columns_give(threads: int, group: int) -> None:
    columns = make_columns(1500, group)
    payloads, lines = make_blocks(columns)
    assert len(payloads) > 20
    for first, end in [(0, 1024), (100, 611), (512, 512), (1000, 1024)]:
        core, after = EmbeddingCore(DIM, slots=SLOTS), None
        for start in range(0, len(payloads), group):
            some = payloads[start : start + group]
            index = b"".join(lines[start : start + group])
            assert core.insert_blocks(some, index, first, end, after=after, threads=threads) is None
            (count,) = struct.unpack_from("<I", some[-1])
            (after,) = struct.unpack_from("<q", some[-1], 24 + 8 * (count - 1))
        assert told_by(core) == inserted(columns, first, end)


def test_any_changed_byte_before_the_rows_is_found_or_changes_numbers_only() -> None:
    """A byte of fields, ids and states; versions and counts may have any value in their range."""
    columns = make_columns(300, 3)
    payloads, lines = make_blocks(columns)
    number = 2
    (count,) = struct.unpack_from("<I", payloads[number])
    whole = inserted(columns)
    for at in [*range(24 + 8 * count), *range(24 + 32 * count, 24 + 33 * count)]:
        some = [bytearray(payload) for payload in payloads]
        some[number][at] ^= 0x80
        core = EmbeddingCore(DIM, slots=SLOTS)
        wrong = core.insert_blocks(some, b"".join(lines), 0, 1024)
        if wrong is None:  # a single state can change only together with another one
            assert 24 <= at < 24 + 8 * count
            assert told_by(core).keys() != whole.keys()
            continue
        assert wrong == number
        assert len(core) == core.counted == 0
    for field in range(6):  # of the line: any other number, but the last is not looked at
        other = list(LINE.unpack(lines[number]))
        other[field] += 1
        changed = [*lines[:number], LINE.pack(*other), *lines[number + 1 :]]
        core = EmbeddingCore(DIM, slots=SLOTS)
        assert core.insert_blocks(payloads, b"".join(changed), 0, 1024) == number


def test_blocks_have_to_follow_each_other() -> None:
    columns = make_columns(300, 4)
    payloads, lines = make_blocks(columns)
    core = EmbeddingCore(DIM, slots=SLOTS)
    turned, index = payloads[::-1], b"".join(lines[::-1])
    assert core.insert_blocks(turned, index, 0, 1024) == 1
    assert core.insert_blocks(payloads[:1] * 2, lines[0] * 2, 0, 1024) == 1
    last = int(columns["keys"][-1])
    assert core.insert_blocks(payloads, b"".join(lines), 0, 1024, after=last) == 0
    assert core.insert_blocks([], b"", 0, 1024) is None
    assert len(core) == 0


def test_known_ids_and_wrong_arguments_leave_the_table_as_it_was() -> None:
    columns = make_columns(300, 5)
    payloads, lines = make_blocks(columns)
    index = b"".join(lines)
    core = EmbeddingCore(DIM, slots=SLOTS)
    core.lookup(columns["keys"][100:101], insert=True)
    before, known = told_by(core), int(columns["keys"][100])
    with pytest.raises(ValueError, match=f"id {known} is in the table already"):
        core.insert_blocks(payloads, index, 0, 1024)
    with pytest.raises(ValueError, match="more payloads than lines"):
        core.insert_blocks(payloads, index[:-1], 0, 1024)
    with pytest.raises(ValueError, match="aligned"):
        core.insert_blocks([memoryview(bytearray(200))[1:]], index, 0, 1024)
    with pytest.raises(TypeError, match="buffer is of type int"):
        core.insert_blocks([7], index, 0, 1024)
    assert told_by(core) == before
    narrow = EmbeddingCore(DIM, slots=SLOTS, end_bucket=100)
    with pytest.raises(ValueError, match="expected one of"):
        narrow.insert_blocks(payloads, index, 0, 1024)
    assert len(narrow) == narrow.counted == 0
    assert EmbeddingCore(DIM + 1, slots=SLOTS).insert_blocks(payloads, index, 0, 1024) == 0
    number = 24 + 8 * struct.unpack_from("<I", payloads[0])[0]  # the first version
    payloads[0][number : number + 8] = struct.pack("<q", -1)
    fresh = EmbeddingCore(DIM, slots=SLOTS)
    with pytest.raises(ValueError, match="version of id"):
        fresh.insert_blocks(payloads, index, 0, 1024)
    assert len(fresh) == fresh.counted == 0


def test_a_snapshot_is_not_changed_by_an_insertion() -> None:
    columns = make_columns(900, 6)
    payloads, lines = make_blocks(columns)
    core = EmbeddingCore(DIM, slots=SLOTS)
    half = len(payloads) // 2
    assert core.insert_blocks(payloads[:half], b"".join(lines[:half]), 0, 1024) is None
    before = told_by(core)
    with core.snapshot() as snapshot:
        assert core.insert_blocks(payloads[half:], b"".join(lines[half:]), 0, 1024) is None
        other = EmbeddingCore(DIM, slots=SLOTS)
        other.insert(**snapshot.read(0, 1024))
    assert told_by(other) == before
    assert told_by(core) == inserted(columns)


def test_removed_ids_come_back() -> None:
    columns = make_columns(200, 7)
    payloads, lines = make_blocks(columns)
    core = EmbeddingCore(DIM, slots=SLOTS)
    core.lookup(columns["keys"], insert=True)
    core.remove(columns["keys"])
    with core.snapshot() as snapshot:
        assert len(snapshot.dead()[0]) == len(columns["keys"])
    assert core.insert_blocks(payloads, b"".join(lines), 0, 1024) is None
    with core.snapshot() as snapshot:
        assert len(snapshot.dead()[0]) == 0
