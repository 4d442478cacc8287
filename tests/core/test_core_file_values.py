"""Reads of values of table files, against blocks made of their pieces."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from windeck._core import crc32c, read_values

BYTES = np.random.default_rng(1).integers(0, 256, 500_000, dtype=np.uint8).tobytes()
END = b"the end"


def block_of(begin: bytes, value: bytes) -> bytes:
    """Return a block with a sequence number of 0 and its masked checksum."""
    block = begin + bytes(7) + value + END
    crc = crc32c(block)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return block + ((rotated + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def read(
    path: Path,
    wanted: list[tuple[int, bytes, bytearray, memoryview]],
    *,
    streamed: bool = False,
    threads: int = 1,
) -> list[int | None]:
    with open(path, "rb") as file:
        return read_values(file.fileno(), wanted, end=END, streamed=streamed, threads=threads)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_values_are_those_of_their_blocks(tmp_path: Path, streamed: bool, threads: int) -> None:
    draw = random.Random(1)
    sizes = [0, 1, 63, 64, 65, 65_535, 65_536, 65_537, 200_000]
    for _ in range(30):
        wanted, expected, file = [], list[tuple[bytes, bytes]](), b""
        for _ in range(draw.randrange(20)):
            begin, head, body = (
                BYTES[draw.randrange(1000) :][: draw.choice(sizes) % limit]
                for limit in (100, 100, 300_000)
            )
            into = bytearray(len(body) + 200)  # at any address, with bytes around it that stay
            start = draw.randrange(200)
            view = memoryview(into)[start : start + len(body)]
            file += BYTES[: draw.randrange(100)]
            wanted.append((len(file), begin, bytearray(len(head)), view))
            expected.append((head, body))
            file += block_of(begin, head + body)
        (tmp_path / "x").write_bytes(file)
        sums = read(tmp_path / "x", wanted, streamed=streamed, threads=threads)
        for (_, _, first, view), crc, (head, body) in zip(wanted, sums, expected, strict=True):
            assert (bytes(first), bytes(view), crc) == (head, body, crc32c(body))
            assert bytes(view.obj).replace(body, b"", 1).strip(b"\0") == b"" or len(body) < 20


def test_every_damaged_byte_gives_none(tmp_path: Path) -> None:
    good = block_of(b"begin", b"head" + BYTES[:60])
    for at in range(len(good) + 1):
        data = bytearray(good)
        if at < len(good):
            data[at] ^= 1
        (tmp_path / "x").write_bytes(data)
        body = memoryview(bytearray(60))
        found = read(tmp_path / "x", [(0, b"begin", bytearray(4), body)])
        assert found == [None if at < len(good) else crc32c(BYTES[:60])]


@pytest.mark.parametrize(
    ("begin", "head", "body"), [(b"bEgin", 4, 60), (b"begin", 4, 59), (b"begin", 5, 60)]
)
def test_another_block_gives_none(tmp_path: Path, begin: bytes, head: int, body: int) -> None:
    (tmp_path / "x").write_bytes(block_of(b"begin", b"head" + BYTES[:60]))
    wanted = (0, begin, bytearray(head), memoryview(bytearray(body)))
    assert read(tmp_path / "x", [wanted]) == [None]


def test_a_file_that_ends_or_cannot_be_read_gives_none(tmp_path: Path) -> None:
    good = block_of(b"begin", b"head" + BYTES[:60])
    one = (0, b"begin", bytearray(4), memoryview(bytearray(60)))
    for size in range(len(good)):
        (tmp_path / "x").write_bytes(good[:size])
        assert read(tmp_path / "x", [one, one]) == [None, None]
    handle = os.open(tmp_path / "x", os.O_WRONLY)
    try:
        assert read_values(handle, [one], end=END, streamed=False) == [None]
    finally:
        os.close(handle)


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(BYTES)
    memory = bytearray(4)
    for value, error in [
        ((0, memory, memory), ValueError),
        ((-1, memory, memory, memory), ValueError),
        ((0, memory, memory, b"read-only"), BufferError),
        ((0, 5, memory, memory), TypeError),
        ((0, memory, memoryview(memory)[::2], memory), ValueError),
    ]:
        with pytest.raises(error):
            read(tmp_path / "x", [value])  # type: ignore[list-item]
