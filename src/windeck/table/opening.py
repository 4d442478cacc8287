"""Files of a table: read into memory, mapped, or streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from windeck._util.progress import Progress, check_progress
from windeck._util.validation import check_bytes
from windeck.io import reading
from windeck.io.cache import checked_cache
from windeck.io.data_files import Paths, resolve
from windeck.io.filesystem import is_remote
from windeck.io.options import Categories, ReadOptions, budget_bytes, is_interleaved
from windeck.io.reading import LoadedColumns
from windeck.table.construction import Reopening, describe_reopening
from windeck.table.streamed import GROUP_BYTES, StreamedContents, open_streamed

__all__ = ["Opened", "StreamedFiles", "open_files"]


class StreamedFiles(NamedTuple):
    """Columns that stay in their files, bytes of groups of rows, and the bytes for two of them."""

    contents: StreamedContents
    group_bytes: int
    memory_budget: float | None


class Opened(NamedTuple):
    """Columns in memory or mapped, with how to map them again; or streamed files."""

    loaded: LoadedColumns | None
    reopening: Reopening | None = None
    streamed: StreamedFiles | None = None


def open_files(
    path: Paths,
    options: ReadOptions,
    categories: Categories,
    *,
    storage: str,
    in_memory: bool,
    memory_budget: float | str | None,
    group_bytes: float | str | None,
    progress: Progress,
    located: Mapping[str, Any],
) -> Opened:
    """Open files for `Table.read`, whose arguments these are.

    Parameters
    ----------
    located
        Arguments of `resolve`: file system, its options, and the cache of remote files.

    Raises
    ------
    ValueError
        Options exclude each other, and the errors of `Table.read`.
    """
    interleaved = is_interleaved(storage)
    budget = budget_bytes(memory_budget)
    check_progress(progress)
    if group_bytes is not None:
        group_bytes = check_bytes("group_bytes", group_bytes)
    if interleaved and not in_memory:
        raise ValueError("storage='rows' copies all values; it needs in_memory=True")
    if options.zone is not None and not in_memory:
        raise ValueError(
            "`time_zone` changes time stamps, which in_memory=False leaves as they are in the "
            "files; expected in_memory=True, or files with times in UTC"
        )
    if in_memory and group_bytes is not None:
        raise ValueError("`group_bytes` is of streamed tables; expected in_memory=False")
    files = resolve(path, **located)
    if in_memory:
        return Opened(reading.read_files(files, options, interleaved, budget))
    given = budget is not None or group_bytes is not None
    if given or any(map(is_remote, files)) or not reading.is_mappable(files, options):
        cache = checked_cache(located["cache_dir"], located["cache_bytes"])
        contents = open_streamed(
            files, options, memory_budget=budget, progress=progress, cache=cache
        )
        return Opened(None, None, StreamedFiles(contents, int(group_bytes or GROUP_BYTES), budget))
    reopening = describe_reopening(files, options, categories)
    return Opened(reading.read_mapped(files, options), reopening)
