"""Checks of keys, values and ranges, made once, before a store writes or reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from windeck.checkpoint.stores.protocol import (
    LARGEST_BATCH,
    LARGEST_KEY,
    LARGEST_VALUE,
    Items,
    Pieces,
)

__all__ = ["after_prefix", "ascending", "batch", "bounds", "check_key", "check_keys", "check_value"]
__all__ += ["groups", "in_pieces"]


def check_key(key: object) -> bytes:
    """Return the key; TypeError or ValueError if it is not valid."""
    if type(key) is not bytes:
        raise TypeError(f"expected a key of type bytes, got {type(key).__name__}")
    if not 0 < len(key) <= LARGEST_KEY:
        raise ValueError(f"expected a key of 1 to {LARGEST_KEY:,} bytes, got {len(key):,}")
    return key


def check_keys(keys: Iterable[bytes]) -> list[bytes]:
    """Return the keys as a list. A single key is a TypeError: its items are integers."""
    return [check_key(key) for key in keys]


def check_value(key: bytes, value: object) -> bytes:
    """Return the value as bytes; TypeError or ValueError, which name the key, if not valid."""
    checked = _check_pieces(key, value)
    return checked if type(checked) is bytes else bytes(checked)


def _check_pieces(key: bytes, value: object) -> bytes | Pieces:
    if type(value) is not bytes and type(value) is not Pieces:
        raise TypeError(f"expected a value of type bytes for {key!r}, got {type(value).__name__}")
    if len(value) > LARGEST_VALUE:
        raise ValueError(
            f"the value of {key!r} has {len(value):,} bytes, expected at most {LARGEST_VALUE:,}"
        )
    return value


def batch(items: Items) -> dict[bytes, bytes]:
    """Check the pairs of one `put_many`, and keep the last of equal keys."""
    pairs: dict[bytes, bytes] = {}
    size = 0
    for key, given in items:
        value = pairs[check_key(key)] = check_value(key, given)
        size += len(key) + len(value)
        if size > LARGEST_BATCH:
            raise ValueError(
                f"a batch reached {size:,} bytes at {key!r}, expected at most {LARGEST_BATCH:,}: "
                "write several, or use bulk_load"
            )
    return pairs


def ascending(items: Items) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of one `bulk_load`, checked one by one, with values as bytes."""
    for key, value in in_pieces(items):
        yield key, value if type(value) is bytes else bytes(value)


def in_pieces(items: Items) -> Iterator[tuple[bytes, bytes | Pieces]]:
    """Yield the pairs of one `bulk_load`, checked one by one, with values as they were given."""
    before = b""
    for key, value in items:
        if check_key(key) <= before:
            raise ValueError(f"expected keys in ascending order, got {key!r} after {before!r}")
        yield key, _check_pieces(key, value)
        before = key


def groups(items: Iterable[tuple[bytes, bytes]], size: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Group pairs into lists of at most `size` bytes, or of one larger pair.

    Examples
    --------
    >>> [len(group) for group in groups([(b"a", b"12"), (b"b", b"34"), (b"c", b"56")], 6)]
    [2, 1]
    """
    group: list[tuple[bytes, bytes]] = []
    held = 0
    for key, value in items:
        if group and held + len(key) + len(value) > size:
            yield group
            group, held = [], 0
        group.append((key, value))
        held += len(key) + len(value)
    if group:
        yield group


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least key after all that begin with `prefix`; None if there is no such key.

    Examples
    --------
    >>> after_prefix(b"a/"), after_prefix(b"a\\xff"), after_prefix(b"\\xff")
    (b'a0', b'b', None)
    """
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


def bounds(prefix: bytes, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """Return the range [first, end) of keys of a scan; an `end` of None means no end.

    Examples
    --------
    >>> bounds(b"a/", b"a/3", None)
    (b'a/3', b'a0')
    """
    for name, value in (("prefix", prefix), ("start", start), ("stop", stop)):
        if type(value) is not bytes and (value is not None or name == "prefix"):
            raise TypeError(f"expected {name} of type bytes, got {type(value).__name__}")
    first = max(prefix, start or b"")
    ends = [end for end in (after_prefix(prefix), stop) if end is not None]
    return first, min(ends) if ends else None


def is_empty(span: Sequence[bytes | None]) -> bool:
    """Return whether a range of `bounds` can hold no key."""
    first, end = span
    return end is not None and first is not None and first >= end
