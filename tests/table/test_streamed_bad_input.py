"""Streamed tables with credentials that expire, other clocks, full disks and small budgets."""

from __future__ import annotations

import functools
import io
import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import windeck as wd
from support.object_servers import SECRET, Bucket
from support.streamed_tables import READ, arrow_table, assert_same, write_files
from windeck.io import cache as caching

OPTIONS: dict[str, Any] = {"context_length": 6, "prediction_length": 2, "target_columns": ["load"]}


@pytest.fixture
def bucket(s3: Bucket, tmp_path: Path) -> tuple[Bucket, wd.Windows]:
    """Return a bucket with a table of two files, and its windows in memory."""
    paths = write_files(arrow_table([150, 90]), tmp_path, [100], 30, "parquet")
    for path in paths:
        s3.put(f"t/{path.name}", path.read_bytes())
    memory = wd.Table.read(paths, **READ).with_missing_counts()
    return s3, wd.Windows(memory, **OPTIONS)


def windows_of(bucket: Bucket, **options: Any) -> wd.Windows:
    """Return windows of the table in a bucket, in groups of one block."""
    table = wd.Table.read(
        f"{bucket.url}/t",
        in_memory=False,
        group_bytes=500,
        storage_options=bucket.options,
        **READ | options,
    )
    return wd.Windows(table.with_missing_counts(), **OPTIONS)


def assert_all_same(found: Iterable[Any], expected: Iterable[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def test_credentials_that_expire_in_an_epoch(bucket: tuple[Bucket, wd.Windows]) -> None:
    s3, memory = bucket
    windows = windows_of(s3)
    loader = wd.Loader(windows, batch_size=8, shuffle=True)
    twin = iter(wd.Loader(memory, batch_size=8, order=windows.default_order))
    epoch = iter(loader)
    for _ in range(2):
        assert_same(next(epoch), next(twin))
    fault = s3.proxy.plan("status", "^(GET|HEAD)", amount=403, code="ExpiredToken", times=10**6)
    with pytest.raises(PermissionError, match=r"part\d\.parquet': access is denied") as raised:
        assert_all_same(epoch, twin)
    assert fault.fired
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    # With valid credentials the same loader goes on where it was.
    s3.proxy.faults.clear()
    assert_all_same(loader, twin)
    assert next(twin, None) is None


def test_a_full_cache_disk(
    bucket: tuple[Bucket, wd.Windows], small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "_warned", set())
    s3, memory = bucket
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
    # Any other warning is an error.
    with pytest.warns(UserWarning, match="No space left on device"):
        windows = windows_of(s3, cache_dir=small_disk / "cache")
    expected = wd.Loader(memory, batch_size=8, order=windows.default_order)
    assert_all_same(wd.Loader(windows, batch_size=8, shuffle=True), expected)


@pytest.mark.parametrize("year", [1969, 2100])
def test_clocks_that_differ(tmp_path: Path, year: int) -> None:
    """Times of change before 1970 and in the future are compared, never interpreted."""
    moment = (year - 1970) * 365 * 86_400
    paths = write_files(arrow_table([150, 90]), tmp_path, [100], 30, "parquet")
    for path in paths:
        os.utime(path, (moment, moment))
    options: dict[str, Any] = {"in_memory": False, "cache_dir": tmp_path / "cache", **READ}
    memory = wd.Windows(wd.Table.read(paths, **READ).with_missing_counts(), **OPTIONS)
    for _ in range(2):
        table = wd.Table.read(paths, group_bytes=500, **options).with_missing_counts()
        windows = wd.Windows(table, **OPTIONS)
        expected = wd.Loader(memory, batch_size=8, order=windows.default_order)
        for one, other in zip(
            wd.Loader(windows, batch_size=8, shuffle=True), expected, strict=True
        ):
            assert_same(one, other)
    sink = io.BytesIO()
    parquet.write_table(arrow_table([150, 90], seed=1), sink)
    paths[0].write_bytes(sink.getvalue())
    with pytest.raises(ValueError, match=r"part0\.parquet' changed while the table is in use"):
        list(wd.Loader(windows, batch_size=8, shuffle=True))


@pytest.mark.parametrize("kind", ["parquet", "uncompressed", "lz4"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_least_budget_that_is_named_works(tmp_path: Path, kind: str, lanes: int) -> None:
    paths = write_files(arrow_table([400, 300]), tmp_path, [500], 30, kind)

    def serve(budget: float) -> int:
        table = wd.Table.read(paths, in_memory=False, memory_budget=budget, group_bytes=800, **READ)
        windows = wd.Windows(table, **OPTIONS)
        order = functools.partial(wd.Lanes, lanes=lanes, unit=8, order=windows.default_order)
        return sum(
            len(batch["start"]) for batch in wd.Loader(windows, batch_size=8 * lanes, order=order)
        )

    with pytest.raises(MemoryError, match=r"memory_budget=\d+ .* at least") as first:
        serve(10)
    named = [first.value]
    while True:
        least = int(str(named[-1]).split("memory_budget=")[1].split()[0])
        try:
            assert serve(least) == 700 - 2 * 7
            break
        except MemoryError as error:
            named.append(error)
    # Lanes are known when the first batch is asked for.
    assert len(named) <= (1 if lanes == 1 else 2)
    with pytest.raises(MemoryError, match=f"need memory_budget={least} "):
        serve(least - 1)
