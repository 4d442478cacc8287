"""What the disk is told to begin with: whole pages, each once, none before it is written."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from store_servers import need
from windeck.checkpoint.stores import open_store, writeback
from windeck.checkpoint.stores.writeback import Writeback

Call = tuple[int, int, int, int]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    found: list[Call] = []

    def begin(file: int, offset: int, size: int, flags: int) -> int:
        assert offset + size <= os.fstat(file).st_size, "not written yet"
        found.append((file, offset, size, flags))
        return -1  # an error is left to fsync

    monkeypatch.setattr(writeback, "_begin", begin)
    monkeypatch.setattr(writeback, "STEP_BYTES", 10_000)
    return found


def check(calls: list[Call], size: int) -> None:
    """Stretches follow one another from the begin of the file, of whole pages and large enough."""
    at = 0
    for _, offset, length, flags in calls:
        assert (offset, offset % 4096, length % 4096, flags) == (at, 0, 0, 2)
        assert length > 10_000 - 4096
        at += length
    assert at <= size < at + 10_000


def test_growing_by_any_steps(calls: list[Call], tmp_path: Path) -> None:
    draw = random.Random(3)
    with open(tmp_path / "x", "wb", buffering=0) as file:
        ahead, size = Writeback(file.fileno()), 0
        for _ in range(300):
            size += file.write(bytes(draw.choice([1, 100, 4095, 4096, 9_999, 50_000])))
            ahead.reached(size)
            check(calls, size)
    assert len(calls) > 100


def test_a_table_is_begun_with_before_it_is_finished(calls: list[Call], tmp_path: Path) -> None:
    need("rocksdb")
    model = {b"%03d" % i: random.Random(i).randbytes(30_000) for i in range(50)}
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        before = 0

        def watched() -> object:
            nonlocal before
            yield from model.items()
            before = len(calls)

        store.bulk_load(watched())  # type: ignore[arg-type]
        assert dict(store.scan()) == model
    assert before >= 48
    size = max(path.stat().st_size for path in (tmp_path / "x").glob("*.sst"))
    check(calls, size)


def test_without_the_call_files_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need("rocksdb")
    monkeypatch.setattr(writeback, "_begin", None)
    monkeypatch.setattr(writeback, "STEP_BYTES", 10_000)
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load([(b"a", bytes(100_000))])
        assert store.get(b"a") == bytes(100_000)


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
def test_linux_has_the_call(tmp_path: Path) -> None:
    begin = writeback._find()
    assert begin is not None
    with open(tmp_path / "x", "wb", buffering=0) as file:
        file.write(bytes(100_000))
        assert begin(file.fileno(), 0, 8192, 2) == 0
        assert begin(file.fileno(), -1, 8192, 2) == -1  # arguments arrive as they should
    assert (tmp_path / "x").read_bytes() == bytes(100_000)
