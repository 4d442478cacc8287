"""Which file has changed since a state was saved, told by two numbers instead of a list.

Every shard i = 0, 1, ... gets a digest h_i of its size, its counts and some of its pages. A state
keeps a = sum of h_i and b = sum of (i + 1) * h_i modulo the prime p = 2^61 - 1, the first two
syndromes of a code that corrects one error: if shard j alone has changed by d, then a moves by d
and b by (j + 1) * d, so the quotient of the two is j + 1. Several changes move them to a quotient
that is a shard's number with a chance of S / p only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container, Sequence

__all__ = ["PRIME", "changed_shard", "explained", "file_digest", "syndromes"]

PRIME = 2**61 - 1
PAGE = 4096
#: Pages read of each file, the first and the last among them.
PAGES = 8


def file_digest(path: str, numbers: Sequence[int]) -> int:
    """A digest of a file in [0, PRIME): of its size, of `numbers`, and of up to 8 of its pages.

    Names and times do not enter, so that data may move. O(1) time.
    """
    state = hashlib.blake2b(digest_size=16)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        for number in (size, *numbers):
            state.update(number.to_bytes(8, "little", signed=True))
        for place in _places(size):
            state.update(os.pread(handle, PAGE, place))
    finally:
        os.close(handle)
    return int.from_bytes(state.digest(), "little") % PRIME


def _places(size: int) -> list[int]:
    """Where the pages begin that stand for a file: all of them in a small one."""
    last = max(size - PAGE, 0)
    if last <= (PAGES - 1) * PAGE:
        return list(range(0, size, PAGE))
    return [last * page // (PAGES - 1) for page in range(PAGES)]


def syndromes(digests: Sequence[int]) -> str:
    """The two sums as a fingerprint holds them: ``"a:b"`` in hexadecimal.

    Examples
    --------
    >>> syndromes([5, 7, 11])
    '17:34'
    """
    first = sum(digests) % PRIME
    second = sum((place + 1) * digest for place, digest in enumerate(digests)) % PRIME
    return f"{first:x}:{second:x}"


def changed_shard(was: object, now: object, shards: int) -> int | None:
    """The number of the one shard that has changed, or None where it is not just one.

    Parameters
    ----------
    was, now
        Syndromes, saved and current.
    shards
        How many shards there are, now as then.

    Examples
    --------
    >>> changed_shard(syndromes([5, 7, 11]), syndromes([5, 8, 11]), 3)
    1
    >>> changed_shard(syndromes([5, 7, 11]), syndromes([5, 11, 7]), 3) is None
    True
    """
    before, after = _parsed(was), _parsed(now)
    if before is None or after is None:
        return None
    moved, weighted = (after[0] - before[0]) % PRIME, (after[1] - before[1]) % PRIME
    if not moved:
        return None
    place = weighted * pow(moved, -1, PRIME) % PRIME
    return place - 1 if 1 <= place <= shards else None


def _parsed(text: object) -> tuple[int, int] | None:
    """The two sums; None for what is none, as a state may come from anywhere."""
    try:
        first, second = (int(part, 16) for part in str(text).split(":"))
    except ValueError:
        return None
    return first % PRIME, second % PRIME


def explained(
    field: str, was: object, now: object, options: Container[str], paths: Sequence[str]
) -> str | None:
    """One sentence on a field of a fingerprint that differs; None where its values say it all.

    Parameters
    ----------
    was, now
        The values, saved and current; None where there is none.
    options
        The fields that say how documents are read.
    paths
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
    if field != "contents":
        return None
    shard = changed_shard(was, now, len(paths))
    if shard is not None:
        return f"{paths[shard]} has changed since the state was saved"
    return f"several of the {len(paths):,} files have changed since the state was saved"
