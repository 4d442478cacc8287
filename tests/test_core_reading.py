"""Stretches of a file, read to their places, against slices of its bytes and sums of these."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windeck._core import crc32c, read_summed

DATA = random.Random(0).randbytes(700_000)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    handle = os.open(path, os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_stretches_equal_the_model(file: int, seed: int, cached: bool) -> None:
    draw = random.Random(seed)
    stretches, expected = list[tuple[int, int, Any, int]](), list[tuple[bytes, int, int, bytes]]()
    for _ in range(draw.choice([0, 1, 2, 9])):
        front, back = draw.choice([0, 1, 134]), draw.choice([0, 13])
        size = draw.choice([0, 1, 200, 5000, 262_144, 300_001])
        offset = draw.randrange(len(DATA) - front - size - back + 1)
        body = np.full(size + 3, 0xEE, np.uint8)[draw.randrange(4) :][:size]
        stretches.append((offset, front, body, back))
        begin, end = offset + front, offset + front + size
        both, alone = crc32c(DATA[offset:end]), crc32c(DATA[begin:end])
        expected.append((DATA[offset:begin], both, alone, DATA[end : end + back]))
    assert read_summed(file, stretches, cached=cached) == expected
    for offset, front, body, _ in stretches:
        assert body.tobytes() == DATA[offset + front :][: body.size]
    assert os.lseek(file, 0, os.SEEK_CUR) == 0


def test_memory_of_any_items_is_filled(file: int) -> None:
    body = np.zeros((3, 5), np.float64)
    read_summed(file, [(7, 0, body, 0)])
    assert body.tobytes() == DATA[7:127]


@pytest.mark.parametrize("cached", [False, True])
def test_large_stretches_equal_the_model(tmp_path: Path, cached: bool) -> None:
    """So large that they are mapped, in another order than in the file."""
    path, sizes, stretches = tmp_path / "file", [1 << 20, 5, 3 << 20, 70_000], list[Any]()
    path.write_bytes(DATA * 8)
    data, at = path.read_bytes(), 77
    for size in sizes:
        stretches.insert(0, (at, 134, bytearray(size), 13))
        at += 134 + size + 13 + 1
    with path.open("rb") as file:
        found = read_summed(file.fileno(), stretches, cached=cached)
    for (offset, front, body, back), (before, both, alone, behind) in zip(
        stretches, found, strict=True
    ):
        begin, end = offset + front, offset + front + len(body)
        assert body == data[begin:end]
        assert (before, behind) == (data[offset:begin], data[end : end + back])
        assert (both, alone) == (crc32c(data[offset:end]), crc32c(data[begin:end]))


def test_what_cannot_be_is_refused(file: int) -> None:
    body, last = bytearray(10), 2**63 - 1
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (-1, [], ValueError, "file is -1, expected an integer from 0 to 2147483647"),
        ("x", [], TypeError, "file is of type str, expected an integer"),
        (file, [(0, 1, body)], TypeError, "a stretch is of type tuple, expected a tuple of offset"),
        (file, [None], TypeError, "a stretch is of type NoneType, expected a tuple of offset"),
        (file, [(-1, 0, body, 0)], ValueError, "offset is -1, expected an integer from 0"),
        (file, [(0, -1, body, 0)], ValueError, "front is -1, expected an integer from 0 to 104857"),
        (file, [(0, 0, body, 2**20 + 1)], ValueError, "back is 1048577, expected an integer from"),
        (file, [(last - 9, 0, body, 0)], ValueError, f"offset is {last - 9}, expected an integer"),
        (file, [(0, 0, 5, 0)], TypeError, "buffer is of type int, expected bytes or another"),
        (file, [(0, 0, b"ten bytes.", 0)], ValueError, "the buffer is read-only, expected one to"),
        (file, [(0, 0, memoryview(body)[::2], 0)], ValueError, "the buffer is strided, expected"),
        (file, [(0.0, 0, body, 0)], TypeError, "offset is of type float, expected an integer"),
    ]
    for handle, stretches, kind, message in cases:
        with pytest.raises(kind, match=message):
            read_summed(handle, stretches)
    assert body == bytes(10)


@pytest.mark.parametrize("stretch", [(699_999, 2, 0, 0), (699_990, 0, 11, 0), (699_990, 5, 5, 1)])
def test_a_file_that_ends_too_early_is_an_error(
    file: int, stretch: tuple[int, int, int, int]
) -> None:
    offset, front, size, back = stretch
    message = "the file ends at byte 700000, expected a stretch to end there or before"
    with pytest.raises(ValueError, match=message):
        read_summed(file, [(0, 3, bytearray(9), 4), (offset, front, bytearray(size), back)])


def test_what_the_system_refuses_is_an_oserror(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        read_summed(handle, [(0, 0, bytearray(1), 0)])
    os.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_summed(handle, [(0, 0, bytearray(1), 0)])
