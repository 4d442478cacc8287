"""First passes that are killed anywhere: the next one has the same result, from no half of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.doomed import Points, child
from support.internals import plant
from support.streamed_tables import READ, arrow_table, write_files
from windeck.io import filesystem
from windeck.table import StreamedTable


def read(paths: list[Path], cache_dir: Path | None, **options: Any) -> StreamedTable:
    options = {"categories": ["kind"]} | READ | options
    table = wd.Table.read(paths, in_memory=False, group_bytes=500, cache_dir=cache_dir, **options)
    assert isinstance(table, StreamedTable)
    return table


def told(table: StreamedTable) -> tuple[Any, ...]:
    """Return all that the first pass finds."""
    report = table.report
    assert report is not None
    return (table.fingerprint, table.offsets.tolist(), table.series_names, str(report))


def names_in(folder: Path) -> list[str]:
    """Return the names of files, without those of locks."""
    found = (path.name for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith("lock"))


@pytest.mark.parametrize("kind", ["parquet", "uncompressed"])
@pytest.mark.parametrize("cached", [False, True])
def test_the_next_first_pass_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, cached: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    paths = write_files(arrow_table([60, 40]), data, [50], 20, kind)
    expected, listed = told(read(paths, None)), names_in(data)
    opened = filesystem.open_input
    at, status, kept = 0, -9, 0
    while status == -9:
        cache = tmp_path / f"cache{at}" if cached else None

        def doomed(at: int = at, cache: Path | None = cache) -> None:
            points = Points(at)
            points.watch(monkeypatch)
            points.watch_writes(monkeypatch)

            def counted(*arguments: Any) -> Any:
                points.tick()
                return opened(*arguments)

            plant(monkeypatch, "filesystem.open_input", counted)
            read(paths, cache)

        status = child(doomed)
        assert names_in(data) == listed
        if cache is not None:
            # A result has its name when it is complete.
            whole = [name for name in names_in(cache) if not name.endswith(".tmp")]
            kept += len(whole)
            assert len(whole) <= 1
        for _ in range(2):
            assert told(read(paths, cache)) == expected
        if cache is not None:
            assert [name[-7:] for name in names_in(cache)] == [".object"]
        at += 1
    assert status == 0
    assert at > (12 if cached else 5)
    if cached:
        assert 1 < kept < at - 5  # Killed before and after a result was kept.
