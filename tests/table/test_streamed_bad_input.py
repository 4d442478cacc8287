"""Streamed tables with credentials that expire, other clocks, full disks and small budgets."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import shutil
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import windeck as wd
from support.internals import plant
from support.object_servers import SECRET, Bucket, Website
from support.streamed_tables import READ, arrow_table, assert_same, write_files

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
    plant(monkeypatch, "cache._warned", set())
    s3, memory = bucket
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
    # Any other warning is an error.
    with pytest.warns(UserWarning, match="No space left on device"):
        windows = windows_of(s3, cache_dir=small_disk / "cache")
    expected = wd.Loader(memory, batch_size=8, order=windows.default_order)
    assert_all_same(wd.Loader(windows, batch_size=8, shuffle=True), expected)


def run_epochs(
    url: str, options: dict[str, Any], paths: list[Path], seed: int, barrier: Any
) -> None:
    """Compare two epochs of a table in a bucket with those in memory, in a process of its own."""
    memory = wd.Windows(wd.Table.read(paths, **READ).with_missing_counts(), **OPTIONS)
    barrier.wait(120)
    table = wd.Table.read(url, in_memory=False, group_bytes=500, **READ | options)
    windows = wd.Windows(table.with_missing_counts(), **OPTIONS)
    for epoch in range(2):
        loader = wd.Loader(windows, batch_size=8, shuffle=True, seed=seed + epoch)
        twin = wd.Loader(memory, batch_size=8, order=windows.default_order, seed=seed + epoch)
        assert_all_same(loader, twin)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.4, 5])
def test_two_runs_with_one_cache(
    bucket: tuple[Bucket, wd.Windows], tmp_path: Path, share: float
) -> None:
    """Files of both fit the cache, or each run drops what the other one reads."""
    s3, _ = bucket
    paths = sorted(tmp_path.glob("*.parquet"))
    sizes = [path.stat().st_size for path in paths]
    limit, cache = int(share * sum(sizes)) + max(sizes), tmp_path / "cache"
    options = {"storage_options": s3.options, "cache_dir": cache, "cache_bytes": limit}
    context = multiprocessing.get_context("spawn")  # Threads of other tests may go on here.
    barrier = context.Barrier(2)
    arguments = [(f"{s3.url}/t", options, paths, seed, barrier) for seed in (1, 5)]
    runs = [context.Process(target=run_epochs, args=one) for one in arguments]
    for one in runs:
        one.start()
    for one in runs:
        one.join(300)
        one.kill()
    assert [one.exitcode for one in runs] == [0, 0]
    kept = [path for path in cache.iterdir() if path.suffix in (".object", ".tmp")]
    assert kept
    assert sum(path.stat().st_size for path in kept) <= limit


def test_a_file_of_another_time_and_the_same_size(tmp_path: Path) -> None:
    """A file that is put back from a copy is older, not newer."""
    paths = write_files(arrow_table([150, 90]), tmp_path, [100], 30, "uncompressed")
    windows = wd.Windows(wd.Table.read(paths, in_memory=False, group_bytes=500, **READ), **OPTIONS)
    contents = paths[0].read_bytes()
    paths[0].write_bytes(contents[:-2000] + bytes(10) + contents[-1990:])
    os.utime(paths[0], (1000, 1000))
    with pytest.raises(ValueError, match=r"part0\.arrow' changed while the table is in use"):
        list(wd.Loader(windows, batch_size=8, shuffle=True))


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


@pytest.mark.parametrize("tags", [True, False], ids=["ETag", "no ETag"])
@pytest.mark.parametrize("year", [1971, 2100])
def test_a_server_with_another_clock(tmp_path: Path, web: Website, year: int, tags: bool) -> None:
    """The time of change of an object is compared, also where it goes back."""
    web.answers.modified, web.answers.tags = (year - 1970) * 365 * 86_400, tags
    (path,) = write_files(arrow_table([150, 90]), tmp_path, [], 30, "parquet")
    web.objects["a.parquet"] = path.read_bytes()
    options: dict[str, Any] = {"in_memory": False, "cache_dir": tmp_path / "cache", **READ}
    memory = wd.Windows(wd.Table.read(path, **READ).with_missing_counts(), **OPTIONS)
    for _ in range(2):
        table = wd.Table.read(f"{web.url}/a.parquet", group_bytes=500, **options)
        windows = wd.Windows(table.with_missing_counts(), **OPTIONS)
        expected = wd.Loader(memory, batch_size=8, order=windows.default_order)
        for one, other in zip(
            wd.Loader(windows, batch_size=8, shuffle=True), expected, strict=True
        ):
            assert_same(one, other)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # a thread may still read ahead
    table = wd.Table.read(f"{web.url}/a.parquet", group_bytes=500, in_memory=False, **READ)
    windows = wd.Windows(table, **OPTIONS)
    # As many bytes with other values, changed a day before by the clock of a server set back.
    web.answers.modified -= 86_400
    content = web.objects["a.parquet"]
    web.objects["a.parquet"] = content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]
    with pytest.raises(ValueError, match=r"a\.parquet' changed while the table is in use"):
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
