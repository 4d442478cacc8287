"""Reads of values from a file, against slices of its bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from windeck._core import crc32c, read_values

SIZE = 500_000
DATA = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8).tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "x").write_bytes(DATA)
    handle = os.open(tmp_path / "x", os.O_RDONLY)
    yield handle
    os.close(handle)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_values_are_slices(file: int, streamed: bool, threads: int) -> None:
    draw = random.Random(1)
    sizes = [0, 1, 63, 64, 65, 65_535, 65_536, 65_537, 200_000]
    for _ in range(30):
        wanted, expected = [], list[bytes | None]()
        for _ in range(draw.randrange(20)):
            head, body, end = (draw.choice(sizes) for _ in range(3))
            head, end = head % 100, end % 100
            at = draw.randrange(SIZE)
            into = bytearray(body + 200)  # at any address, with bytes around it that stay
            start = draw.randrange(200)
            view = memoryview(into)[start : start + body]
            wanted.append((at, bytearray(head), view, bytearray(end)))
            stop = at + head + body + end
            expected.append(DATA[at:stop] if stop <= SIZE else None)
        sums = read_values(file, wanted, streamed=streamed, threads=threads)
        for (_, first, view, last), crc, data in zip(wanted, sums, expected, strict=True):
            assert (crc is None) == (data is None)
            if data is not None:
                assert bytes(first) + bytes(view) + bytes(last) == data
                assert crc == crc32c(view)
            whole = bytes(view.obj)
            if len(view) > 20:  # so that it is found at its place
                before, after = whole.split(bytes(view), 1)
                assert not any(before + after)


def test_a_file_that_cannot_be_read_gives_none(tmp_path: Path) -> None:
    handle = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    try:
        one = (0, bytearray(1), bytearray(1), bytearray(1))
        assert read_values(handle, [one, one], streamed=False) == [None, None]
    finally:
        os.close(handle)


def test_wrong_arguments(file: int) -> None:
    memory = bytearray(4)
    for value, error in [
        ((0, memory, memory), ValueError),
        ((-1, memory, memory, memory), ValueError),
        ((0, memory, memory, b"read-only"), BufferError),
        ((0, memory, memory, 5), TypeError),
        ((0, memory, memoryview(memory)[::2], memory), ValueError),
    ]:
        with pytest.raises(error):
            read_values(file, [value], streamed=False)
