"""Bytes of any length are gathered from all ranks."""

from __future__ import annotations

from support.gangs import gang
from windeck._util import gather_bytes


def gathered(rank: int, ranks: int) -> list[bytes]:
    return gather_bytes(bytes([rank]) * (rank * 3))


def test_bytes_of_any_length_are_gathered() -> None:
    assert gang(3, gathered) == [[b"", b"\1" * 3, b"\2" * 6]] * 3
