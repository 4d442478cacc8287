"""Verification of shards: digests for saved states, and comparison with counts and sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from windeck._core import TokenShard, default_threads
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck.documents.counts import CorpusCounts, ShardCounts, check_counts
from windeck.documents.discovery import ShardList
from windeck.documents.protocol import Int64s
from windeck.documents.readers import DocumentOptions
from windeck.documents.splitting import take_splits
from windeck.io import filesystem

__all__ = ["PRIME", "combine_digests", "file_digest", "open_checked", "verify"]


PRIME = 2**61 - 1
PAGE = 4096
#: Pages read of each file, including the first and the last.
PAGES = 8


def file_digest(path: str, numbers: Sequence[int]) -> int:
    """Return a digest in [0, PRIME) of a file's size, of `numbers`, and of up to 8 of its pages.

    Names and times are not part of it, so that data may move. O(1) time.
    """
    state = hashlib.blake2b(digest_size=16)
    with filesystem.RangeReader(path) as file:
        for number in (file.size, *numbers):
            state.update(number.to_bytes(8, "little", signed=True))
        for page in file.read_many([(place, PAGE) for place in _page_offsets(file.size)]):
            state.update(page)
    return int.from_bytes(state.digest(), "little") % PRIME


def _page_offsets(size: int) -> list[int]:
    """Return the offsets of the pages to hash: all pages of a small file, else 8 spread evenly."""
    last = max(size - PAGE, 0)
    if last <= (PAGES - 1) * PAGE:
        return list(range(0, size, PAGE))
    return [last * page // (PAGES - 1) for page in range(PAGES)]


def combine_digests(digests: Sequence[int]) -> str:
    """Return ``"a:b"`` in hexadecimal: the sum of h_i, and of (i + 1) h_i, modulo PRIME.

    The second sum depends on the order of the files. The format is part of saved states.

    Examples
    --------
    >>> combine_digests([5, 7, 11])
    '17:34'
    """
    first = sum(digests) % PRIME
    second = sum((place + 1) * digest for place, digest in enumerate(digests)) % PRIME
    return f"{first:x}:{second:x}"


_PORTION = 1 << 20


def open_checked(
    shards: ShardList,
    options: DocumentOptions,
    counts: CorpusCounts,
    size: int,
    shard: int,
    needed_at: Callable[[str], int | None] = lambda key: None,
) -> TokenShard:
    """Open a shard and check that it has not changed since the corpus was created.

    For `needed_at` see `filesystem.load`.

    Raises
    ------
    ValueError
        If its size or its counts differ (the message has both numbers), or if it is damaged.
    OSError
        If it does not exist or cannot be read.
    """
    path = filesystem.load(shards.path(shard), needed_at)
    _check_size(path, filesystem.size(path), size)
    opened = take_splits(options.open(path), shards, shard, options.splits)
    found = ShardCounts(*opened.totals())
    check_counts(path, found, counts.shard(shard), counts.origin(shard))
    return opened


def verify(
    shards: ShardList,
    options: DocumentOptions,
    counts: CorpusCounts,
    sizes: Int64s,
    *,
    progress: Progress,
    threads: int | None,
    open_files: int,
) -> None:
    """Read all shards completely and compare their counts; for errors see `open_checked`."""

    def verify_shard(shard: int) -> None:
        path, size = shards.path(shard), int(sizes[shard])
        _check_size(path, _read_through(path), size)
        open_checked(shards, options, counts, size, shard)

    with report_progress(progress, "verifying files", len(shards.paths)) as advance:
        workers = min(threads or default_threads(), open_files)
        run_in_threads(verify_shard, len(shards.paths), workers, advance, portion=1)


def _read_through(path: str) -> int:
    """Read a whole file, so that read errors of the disk occur now, and return its size."""
    buffer, size = bytearray(_PORTION), 0
    with filesystem.open_input(path) as file:
        while got := file.readinto(buffer):
            size += got
    return size


def _check_size(path: str, found: int, size: int) -> None:
    if found != size:
        raise ValueError(
            f"{path!r} has {found:,} bytes, but had {size:,} when the corpus was opened; the file "
            "has changed"
        )
