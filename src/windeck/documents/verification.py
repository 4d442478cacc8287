"""Digests of shards, as a saved state holds them, and explanations of changes since."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence

from windeck._core import TokenShard, default_threads
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck.documents.counts import Counts, Totals, check_totals
from windeck.documents.discovery import Listing
from windeck.documents.protocol import Int64s
from windeck.documents.readers import Reading
from windeck.io import filesystem

__all__ = ["PRIME", "explained", "file_digest", "open_checked", "sums", "verify"]


PRIME = 2**61 - 1
PAGE = 4096
#: Pages read of each file, the first and the last among them.
PAGES = 8


def file_digest(path: str, numbers: Sequence[int]) -> int:
    """A digest of a file in [0, PRIME): of its size, of `numbers`, and of up to 8 of its pages.

    Names and times do not enter, so that data may move. O(1) time.
    """
    state = hashlib.blake2b(digest_size=16)
    with filesystem.RangeReader(path) as file:
        for number in (file.size, *numbers):
            state.update(number.to_bytes(8, "little", signed=True))
        for place in _places(file.size):
            state.update(file.read(place, PAGE))
    return int.from_bytes(state.digest(), "little") % PRIME


def _places(size: int) -> list[int]:
    """Where the pages begin that stand for a file: all of them in a small one."""
    last = max(size - PAGE, 0)
    if last <= (PAGES - 1) * PAGE:
        return list(range(0, size, PAGE))
    return [last * page // (PAGES - 1) for page in range(PAGES)]


def sums(digests: Sequence[int]) -> str:
    """Return ``"a:b"`` in hexadecimal: the sum of h_i, and of (i + 1) h_i, modulo PRIME.

    The second sum changes when files trade places. The form is part of saved states.

    Examples
    --------
    >>> sums([5, 7, 11])
    '17:34'
    """
    first = sum(digests) % PRIME
    second = sum((place + 1) * digest for place, digest in enumerate(digests)) % PRIME
    return f"{first:x}:{second:x}"


def explained(
    field: str, was: object, now: object, options: Container[str], listing: Listing
) -> str | None:
    """Explain in one sentence why a field of a fingerprint differs; None where its values suffice.

    Parameters
    ----------
    was, now
        The values, saved and current; None where there is none.
    options
        The fields that say how documents are read.
    listing
        The files there are now.
    """
    if was is None or now is None:
        return None
    if field in options:
        what = f"documents were read with {field} = {was!r}"
        return f"{what} when the state was saved, and are with {field} = {now!r} now"
    if field == "datasets":
        return f"datasets were {was} when the state was saved, and are {now} now"
    if field == "files":
        return (
            f"the corpus had {was} files when the state was saved and has {now} now; "
            "expected the same ones, which files= can name"
        )
    if field == "contents":
        files = f"the {len(listing.paths):,} files below {listing.root!r}"
        return f"one or more of {files} have changed since the state was saved"
    return None


_CHUNK = 1 << 20


def open_checked(
    listing: Listing, reading: Reading, counts: Counts, size: int, shard: int
) -> TokenShard:
    """Open a shard that has to be what it was when the corpus was made.

    Raises
    ------
    ValueError
        Its size or its counts are others, with both numbers; or it is damaged.
    OSError
        It is gone, or cannot be read.
    """
    path = listing.path(shard)
    _check_size(path, filesystem.size(path), size)
    opened = reading.open(path)
    check_totals(path, Totals(*opened.totals()), counts.of(shard), counts.who(shard))
    return opened


def verify(
    listing: Listing,
    reading: Reading,
    counts: Counts,
    sizes: Int64s,
    *,
    progress: Progress,
    threads: int | None,
    open_files: int,
) -> None:
    """Read all shards to their ends, and compare counts; for errors see `open_checked`."""

    def one(shard: int) -> None:
        path, size = listing.path(shard), int(sizes[shard])
        _check_size(path, _read_through(path), size)
        open_checked(listing, reading, counts, size, shard)

    with report_progress(progress, "verifying files", len(listing.paths)) as advance:
        workers = min(threads or default_threads(), open_files)
        run_in_threads(one, len(listing.paths), workers, advance, portion=1)


def _read_through(path: str) -> int:
    """Read a file, so that the disk says now what it cannot read; its bytes."""
    buffer, size = bytearray(_CHUNK), 0
    with filesystem.open_input(path) as file:
        while got := file.readinto(buffer):
            size += got
    return size


def _check_size(path: str, found: int, size: int) -> None:
    if found != size:
        raise ValueError(
            f"{path!r} has {found:,} bytes and had {size:,} when the corpus was opened; expected "
            "files that stay as they are"
        )
