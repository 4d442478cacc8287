"""Blocks of tables against a model that lays them out byte by byte."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pytest

from models.table_model import EXTREMES, bucket
from windeck._core import EmbeddingCore, crc32c, pack_blocks

COUNTED, ROW, DEAD = 0, 1, 2
#: Of an entry: id, version, frequency, seen, state, and the bytes of its row.
Entry = tuple[Any, ...]


def laid_out(entries: list[Entry], dim: int, slots: int) -> bytes:
    states = [entry[4] for entry in entries]
    out = struct.pack(
        "<6I", len(entries), states.count(ROW), states.count(DEAD), dim, slots, 0
    )  # fmt: skip
    for column in range(4):
        out += b"".join(struct.pack("<q", entry[column]) for entry in entries)
    out += bytes(states)
    return out + bytes(-len(out) % 8) + b"".join(entry[5] for entry in entries)


def parts(entries: list[Entry], most: int, borders: list[int]) -> list[list[Entry]]:
    """Entries in blocks: bucket after bucket, each to those before if it fits."""
    size = [33 + len(entry[5]) for entry in entries]
    found: list[list[int]] = [[]]
    numbers = range(len(entries))
    for place in sorted({bucket(entry[0]) for entry in entries}):
        own = [i for i in numbers if bucket(entries[i][0]) == place]
        last = found[-1]
        if last:
            before = bucket(entries[last[-1]][0])
            crossed = any(before < border <= place for border in borders)
            if crossed or sum(size[i] for i in [*last, *own]) > most:
                found.append([])
        while sum(size[i] for i in [*found[-1], *own]) > most and len(own) > 1:
            fit = max(
                [n for n in range(1, len(own)) if sum(size[i] for i in own[:n]) <= most] or [1]
            )
            found[-1] += own[:fit]
            own = own[fit:]
            found.append([])
        found[-1] += own
    return [[entries[i] for i in some] for some in found if some]


def expected(
    entries: list[Entry], dim: int, slots: int, most: int, borders: list[int]
) -> list[tuple[Any, ...]]:
    found = []
    for some in parts(entries, most, borders):
        payload = laid_out(some, dim, slots)
        states = [entry[4] for entry in some]
        found.append((
            payload, crc32c(payload), len(some), states.count(ROW), states.count(DEAD), some[0][0],
            bucket(some[0][0]), bucket(some[-1][0]),
        ))  # fmt: skip
    return found


def told(blocks: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(bytes(block[0]), *block[1:]) for block in blocks]


def some_entries(rng: np.random.Generator, count: int, width: int, *, same: bool) -> list[Entry]:
    """In order of (bucket, id); where they are the `same`, all have a row."""
    ids = {int(key) for key in rng.integers(-(2**63), 2**63 - 1, count)} | set(
        EXTREMES[: count % 9]
    )
    few = {bucket(key) for key in ids if rng.random() < 0.3} | {bucket(0)}
    # Many in few buckets, so that some are cut.
    ids |= {key for key in range(1500) if bucket(key) in few} if count > 50 else set()
    found = []
    for key in sorted(ids, key=lambda key: (bucket(key), key)):
        state = ROW if same else int(rng.integers(0, 3))
        row = rng.bytes(4 * width) if state == ROW else b""
        found.append((key, *(int(n) for n in rng.integers(0, 2**62, 3)), state, row))
    return found


def columns(entries: list[Entry], width: int) -> list[Any]:
    numbers = [np.array([entry[i] for entry in entries], np.int64) for i in range(4)]
    states = np.array([entry[4] for entry in entries], np.uint8)
    values = np.frombuffer(b"".join(entry[5] for entry in entries), np.float32)
    return [*numbers, states, values.reshape(-1, width)]


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("most", [0, 40, 200, 1000, 10**6])
@pytest.mark.parametrize(("dim", "slots"), [(1, 0), (3, 1), (16, 0), (5, 2)])
def test_columns_become_the_models_blocks(dim: int, slots: int, most: int, same: bool) -> None:
    rng = np.random.default_rng(dim + slots + most)
    width = dim * (1 + slots)
    for count in (0, 1, 2, 60):
        entries = some_entries(rng, count, width, same=same)
        row = 33 + 4 * width
        for borders, limit in itertools.product(
            ([], [512], [512] * 256, [0, 1, 100, 512, 1023]),
            {most, most // row * row},  # also what so many rows have and no byte more
        ):
            rules: dict[str, Any] = {"dim": dim, "slots": slots, "most": limit, "borders": borders}
            found = pack_blocks(*columns(entries, width), **rules)
            assert told(found) == expected(entries, dim, slots, limit, borders)
            for block in found:
                assert block[0].readonly
                assert block[0].itemsize == 1


@pytest.mark.parametrize("admit_after", [1, 2])
@pytest.mark.parametrize(("dim", "slots"), [(1, 0), (7, 1), (64, 0)])
def test_a_snapshot_gives_the_same_blocks(dim: int, slots: int, admit_after: int) -> None:
    rng = np.random.default_rng(dim)
    core = EmbeddingCore(dim, slots=slots, admit_after=admit_after)
    ids = rng.integers(-(2**63), 2**63 - 1, 900)
    for step in range(3):
        core.lookup(rng.choice(ids, 450), insert=True)
        core.apply(ids[step::3], rng.random((300, dim), np.float32), kind="sgd", lr=0.5)
    with core.snapshot() as snapshot:
        for first, end, since in ((0, 1024, -1), (3, 700, -1), (0, 1024, 2), (9, 9, -1)):
            found = snapshot.read(first, end, since)
            states = found["admitted"].view(np.uint8)
            numbers = [found[name] for name in ("keys", "versions", "frequencies", "seen")]
            for most in (100, 5000, 10**6):
                rules: dict[str, Any] = {"dim": dim, "slots": slots, "most": most, "borders": [512]}
                rows = [row.tobytes() for row in found["values"]]
                entries = [
                    (*(int(column[i]) for column in numbers), int(states[i]),
                     rows[int(states[:i].sum())] if states[i] else b"")
                    for i in range(len(states))
                ]  # fmt: skip
                packed = told(snapshot.blocks(first, end, since, **rules))
                assert packed == expected(entries, dim, slots, most, [512])
                assert packed == told(pack_blocks(*[*numbers, states, found["values"]], **rules))


def test_blocks_outlive_what_they_were_made_of() -> None:
    core = EmbeddingCore(4)
    core.lookup(np.arange(5000), insert=True)
    rules: dict[str, Any] = {"dim": 4, "slots": 0, "most": 10_000, "borders": []}
    with core.snapshot() as snapshot:
        found = [snapshot.blocks(0, 1024, **rules) for _ in range(3)]
    core.clear()
    del snapshot, core
    assert len({bytes(b"".join(block[0] for block in blocks)) for blocks in found}) == 1
    assert all(crc32c(block[0]) == block[1] for blocks in found for block in blocks)


def test_what_does_not_fit_is_refused() -> None:
    none, row = np.zeros(2, np.int64), np.zeros((1, 3), np.float32)
    states = np.array([1, 0], np.uint8)
    good: dict[str, Any] = {
        "keys": np.array([0, 1]), "versions": none, "frequencies": none, "seen": none,
        "states": states, "values": row, "dim": 3, "slots": 0, "most": 50, "borders": [],
    }  # fmt: skip
    assert len(pack_blocks(**good)) == 2
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"versions": none[:1]}, ValueError, "versions has 1 entries, expected 2, as many as keys"),
        ({"seen": np.zeros(3, np.int64)}, ValueError, "seen has 3 entries, expected 2"),
        ({"frequencies": np.zeros(2)}, TypeError, "frequencies has dtype float64, expected int64"),
        ({"states": states[:1]}, ValueError, "states has 1 entries, expected 2, as many as keys"),
        ({"states": none}, TypeError, "states has dtype int64, expected uint8"),
        ({"states": states * 3}, ValueError, "states has 3, expected 0, 1 or 2"),
        ({"states": states * 0}, ValueError, r"values has shape \(1, 3\), expected \(0, 3\)"),
        ({"values": row[:0]}, ValueError, r"values has shape \(0, 3\), expected \(1, 3\)"),
        ({"values": row.astype("f8")}, TypeError, "values has dtype float64, expected float32"),
        ({"dim": 2}, ValueError, r"values has shape \(1, 3\), expected \(1, 2\)"),
        ({"dim": 0}, ValueError, "dim is 0, expected an integer from 1"),
        ({"slots": 2**40}, ValueError, f"slots is {2**40}, expected an integer from 0"),
        ({"most": -1}, ValueError, "most is -1, expected an integer from 0"),
        ({"most": 1.5}, TypeError, "most is of type float, expected an integer"),
        ({"borders": [1024]}, ValueError, "a border is 1024, expected an integer from 0 to 1023"),
        ({"borders": [-1]}, ValueError, "a border is -1, expected"),
    ]
    for wrong, kind, message in cases:
        with pytest.raises(kind, match=message):
            pack_blocks(**{**good, **wrong})
    core = EmbeddingCore(3)
    rules: dict[str, Any] = {"dim": 3, "slots": 0, "most": 100, "borders": []}
    with core.snapshot() as snapshot:
        with pytest.raises(ValueError, match="make rows of 6 floats, expected 3 as the snapshot"):
            snapshot.blocks(0, 1024, **{**rules, "slots": 1})
        with pytest.raises(ValueError, match="end_bucket is 1025, expected"):
            snapshot.blocks(0, 1025, **rules)
        assert snapshot.blocks(0, 1024, **rules) == []
    with pytest.raises(ValueError, match="the snapshot is closed, expected one that is open"):
        snapshot.blocks(0, 1024, **rules)
