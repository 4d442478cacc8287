"""The protocol of a key-value store of bytes, and the validation that all stores share.

A store is any object with the methods of `Store`; there is no base class. What the module of a new
store has, and how it is found by its URL, is in `windeck.checkpoint.stores.urls`. Every method
raises ValueError once the store is closed, TypeError for an argument that is not bytes, ValueError
for a key or value outside the limits below, and for failures from outside one of

=====================  ============================================================================
CorruptStoreError      what is stored is not what was written, or part of it is missing
ConnectionError        the server is gone, restarting or loading; nothing listens there
TimeoutError           the server did not answer in time
PermissionError        wrong password, or not allowed; a store opened for reading only
BlockingIOError        another process, or this one, has the database open
FileNotFoundError      there is no database, and none was to be made; there is no such part
FileExistsError        something else is at the path: another kind of database, other files
OSError, errno ENOSPC  the disk is full (EFBIG, EDQUOT: a limit on files is reached)
OSError, errno ENOMEM  the Redis server is out of memory
OSError, errno EROFS   the Redis server is a read-only replica
=====================  ============================================================================

All of these are OSErrors. All methods may be called from several threads.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

__all__ = [
    "LARGEST_BATCH",
    "LARGEST_KEY",
    "LARGEST_VALUE",
    "CorruptStoreError",
    "Facts",
    "Items",
    "ParallelItems",
    "PartStore",
    "Pieces",
    "Snapshot",
    "Store",
    "Values",
    "View",
    "check_batch",
    "check_compare_and_set",
    "check_key",
    "check_keys",
    "check_value",
    "follow_writes",
    "portions_by_bytes",
    "portions_by_size",
    "is_empty_range",
    "iter_ascending",
    "iter_ascending_pieces",
    "key_range",
    "order_writes",
    "prefix_end",
    "read_bytes",
]

Self = TypeVar("Self")
Item = TypeVar("Item")

# The same for all stores, so that any store can be copied into any other. Redis sets LARGEST_VALUE.
#: Bytes of a key; a key has at least one.
LARGEST_KEY = 65_535
#: Bytes of a value.
LARGEST_VALUE = 512 * 1024 * 1024
#: Bytes of all keys and values in one `put_many`: one of the largest values fits.
LARGEST_BATCH = LARGEST_VALUE + LARGEST_KEY


class CorruptStoreError(OSError):
    """Error for stored data that is damaged or incomplete. Its errno is EBADMSG.

    Examples
    --------
    >>> issubclass(CorruptStoreError, OSError)
    True
    """

    def __init__(self, message: str) -> None:
        super().__init__(errno.EBADMSG, message)


@dataclass(frozen=True, eq=False, slots=True)
class Pieces:
    """A value in two parts, stored as one, so that the parts need not be joined first.

    Attributes
    ----------
    head
        The first bytes.
    body
        The remaining bytes, with items of one byte. They must not change until the call that stores
        them asks for the next pair or returns.
    body_crc
        The CRC32C of `body`, from which a store may compute its own checksum.

    Examples
    --------
    >>> from windeck._core import crc32c
    >>> value = Pieces(b"head", memoryview(b"body"), crc32c(b"body"))
    >>> len(value), bytes(value)
    (8, b'headbody')
    """

    head: bytes
    body: memoryview
    body_crc: int

    def __len__(self) -> int:
        return len(self.head) + len(self.body)

    def __bytes__(self) -> bytes:
        return b"".join((self.head, self.body))


#: Pairs of a key and a value, to be written.
Items: TypeAlias = Iterable[tuple[bytes, "bytes | Pieces"]]


#: Minimum bytes of a range that `ParallelItems.split` returns.
MIN_SPLIT_BYTES = 16 << 20


class ParallelItems:
    """Items of a bulk load in parts that several threads can produce at the same time.

    A store may iterate over all items in order, or over the ranges that `split` returns.

    Parameters
    ----------
    parts
        The approximate bytes of each part, and a function that returns its pairs. Keys ascend
        within a part and from part to part. Parts are independent, so threads need no lock.
    in_order
        Returns the pairs of all parts for one thread, which may use more threads to make them.
        By default the parts are iterated one after the other.

    Examples
    --------
    >>> first, second = [(b"a", b"1"), (b"b", b"2")], [(b"c", b"3")]
    >>> items = ParallelItems([(40 << 20, lambda: first), (40 << 20, lambda: second)])
    >>> list(items)
    [(b'a', b'1'), (b'b', b'2'), (b'c', b'3')]
    >>> [list(part) for part in items.split(2)]
    [[(b'a', b'1'), (b'b', b'2')], [(b'c', b'3')]]
    """

    def __init__(
        self,
        parts: Sequence[tuple[int, Callable[[], Items]]],
        *,
        in_order: Callable[[], Items] | None = None,
    ) -> None:
        self._parts = list(parts)
        self._in_order = in_order or partial(_chained, self._parts)

    def __iter__(self) -> Iterator[tuple[bytes, bytes | Pieces]]:
        return iter(self._in_order())

    def split(self, most: int) -> list[Items]:
        """Split into at most `most` ranges of similar size, in the order of keys."""
        total = sum(size for size, _ in self._parts)
        count = max(1, min(most, total // MIN_SPLIT_BYTES, len(self._parts)))
        if count == 1:
            return [self]
        ranges: list[list[tuple[int, Callable[[], Items]]]] = [[] for _ in range(count)]
        before = 0
        for size, make in self._parts:
            # Into the range that holds the middle of the part.
            ranges[min(count - 1, (2 * before + size) * count // (2 * total or 1))].append(
                (size, make)
            )
            before += size
        return [_chained(part) for part in ranges if part]


def _chained(
    parts: Sequence[tuple[int, Callable[[], Items]]],
) -> Iterator[tuple[bytes, bytes | Pieces]]:
    for _, make in parts:
        yield from make()


#: Default of `Facts.read_bytes`.
READ_BYTES = 1 << 20


class Facts(NamedTuple):
    """Properties of a backend beyond the protocol.

    Attributes
    ----------
    backend
        Its name: ``"rocksdb"``.
    atomic_batches
        A `put_many` or `delete_many` is visible completely or not at all, to other readers and
        after a crash.
    snapshots
        `snapshot` works. Without snapshots, read only keys that are never overwritten, such as
        those of a generation.
    shared
        Any number of processes may open the store for writing. Otherwise one process opens it, and
        the others write parts: `windeck.checkpoint.stores.write_part`.
    shared_readers
        Any number of processes may open the store for reading.
    ordered
        The cost of a scan is proportional to its result. Otherwise a scan visits every key.
    read_bytes
        Bytes of values to read by one call, for full speed: many where a call takes a round trip,
        otherwise so few that they stay in the processor's cache until they are used.
    """

    backend: str
    atomic_batches: bool
    snapshots: bool
    shared: bool
    shared_readers: bool
    ordered: bool
    read_bytes: int = READ_BYTES


class Values(Protocol):
    """A mapping of keys to values that can be read: a view, or a dict of bytes."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a key, or None if it is absent."""
        ...


@runtime_checkable
class View(Protocol):
    """Read access to keys and values.

    Optional: ``get_unchecked(key)`` is `get` without the checksums of the store, where these take
    longer than reading. It is used for large values with a checksum of their own, and may return a
    damaged value, or None for a damaged key. Then `get` is used, which raises the error.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if it is absent."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys in their order, None for each absent key."""
        ...

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values in ascending order of keys.

        Parameters
        ----------
        prefix
            Prefix of all keys returned.
        start, stop
            Return only keys k with start <= k < stop.

        Raises
        ------
        CorruptStoreError
            When data cannot be read. A scan that ends without an error is complete: it returned
            every key that was present during the whole scan.
        """
        ...

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        """Iterate over the keys that `scan` returns, without their values."""
        ...


class Snapshot(View, Protocol):
    """A view of the store at one moment. Close it, since it keeps old data from being removed."""

    def close(self) -> None:
        """Release the snapshot; closing twice is no error."""
        ...

    def __enter__(self: Self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


@runtime_checkable
class Store(View, Protocol):
    """An open key-value store."""

    @property
    def url(self) -> str:
        """URL of the store, without password."""
        ...

    @property
    def facts(self) -> Facts:
        """Properties of the backend beyond this protocol."""
        ...

    def put_many(self, items: Items) -> None:
        """Write pairs; of equal keys the last one counts.

        The pairs are visible at once and durable after `sync`.

        Raises
        ------
        ValueError
            When keys and values have more than `LARGEST_BATCH` bytes: use `bulk_load`.
        """
        ...

    def bulk_load(self, items: Items) -> int:
        """Write many pairs in ascending order of keys: the fastest way, in bounded memory.

        Values of existing keys are replaced. In RocksDB and LevelDB the pairs are durable, as after
        `sync`, when this returns. RocksDB shows all of them or none; in other stores a load that
        failed or was killed may leave some pairs.

        Parameters
        ----------
        items
            Pairs of a key and a value. With a method ``split(most)``, which returns them as up to
            `most` iterables in the order of keys, RocksDB writes these with several threads.

        Returns
        -------
        int
            Number of pairs written.

        Raises
        ------
        ValueError
            When keys are not in ascending order.
        """
        ...

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Remove keys; absent keys are no error."""
        ...

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        """Remove the keys that `scan` returns for the same arguments; ``b""`` alone means all.

        RocksDB and LevelDB also free their space on the disk, which rewrites tables that have some
        of the keys and others. If the disk is too full for that, an OSError says so; the keys are
        removed.
        """
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        """Write `value` if the key has the value `expected` (None: is absent), as one atomic step.

        Returns
        -------
        bool
            True if the value was written. Of several writers with the same `expected`, exactly one
            gets True.
        """
        ...

    def sync(self) -> None:
        """Make everything written so far durable: it survives a crash of process and machine.

        Raises
        ------
        OSError
            When that is not possible, with the reason.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Return a consistent view of the current contents.

        Raises
        ------
        io.UnsupportedOperation
            When the backend has no snapshots (`facts.snapshots` is False).
        """
        ...

    def close(self) -> None:
        """Close the store, without `sync`; closing twice is no error."""
        ...

    def __enter__(self: Self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


@runtime_checkable
class PartStore(Store, Protocol):
    """A store that one process opens, and that other processes fill (`facts.shared` is False).

    The other processes write parts beside the database, without opening it::

        write_part("rocksdb:///data/run", f"{generation}-{rank}", items)   # each rank
        store.ingest_parts([f"{generation}-{r}" for r in range(ranks)])    # the opener
    """

    def ingest_parts(self, names: Sequence[str]) -> None:
        """Add the pairs of parts to the store, and remove the parts.

        Later parts replace keys of earlier ones. RocksDB shows all parts or none. The pairs are
        durable, as after `sync`.

        Raises
        ------
        FileNotFoundError
            When a part was not written or was ingested before; then nothing is changed.
        """
        ...

    def parts(self, *, unfinished: bool = False) -> list[str]:
        """Return the sorted names of the parts that were written and not ingested.

        With `unfinished`, include parts that are being written or whose writer was killed.
        """
        ...

    def drop_parts(self, names: Sequence[str]) -> None:
        """Remove parts that will not be ingested, including files of killed writers.

        Absent parts are no error. Parts that are being written must not be removed.
        """
        ...


def read_bytes(view: View) -> int:
    """Return the bytes of the values to read by one call; a snapshot has no facts.

    Examples
    --------
    >>> from windeck.checkpoint.stores import open_store
    >>> read_bytes(open_store("memory://"))
    1048576
    """
    facts: Facts | None = getattr(view, "facts", None)
    return READ_BYTES if facts is None else facts.read_bytes


def order_writes(store: Store, *, before: bytes | None = None) -> None:
    """Let no later write survive a crash without all writes so far.

    A store may have a method `order_writes` for this, if it keeps the order of writes anyway.
    Otherwise what was written is made durable.

    Parameters
    ----------
    before
        The key of the next write, a `compare_and_set`, if `sync` or `order_writes` follow it.
    """
    order = getattr(store, "order_writes", None)
    if order is None:
        store.sync()
    else:
        order(before)


def follow_writes(store: Store) -> None:
    """Let no later write of this client survive a crash without what other clients wrote so far.

    They have ordered or synced their writes. Only a store that may lose those in a restart, without
    its clients, has a method `follow_writes` for this.
    """
    follow = getattr(store, "follow_writes", None)
    if follow is not None:
        follow()


def check_key(key: object) -> bytes:
    """Return the key; raise TypeError or ValueError if it is not valid."""
    if type(key) is not bytes:
        raise TypeError(f"expected a key of type bytes, got {type(key).__name__}")
    if not 0 < len(key) <= LARGEST_KEY:
        raise ValueError(f"expected a key of 1 to {LARGEST_KEY:,} bytes, got {len(key):,}")
    return key


def check_keys(keys: Iterable[bytes]) -> list[bytes]:
    """Return the keys as a list. A single key raises TypeError, since its items are integers."""
    return [check_key(key) for key in keys]


def check_value(key: bytes, value: object) -> bytes:
    """Return the value as bytes; raise TypeError or ValueError, naming the key, if not valid."""
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


def check_compare_and_set(key: object, expected: object, value: object) -> None:
    """Check the arguments of `Store.compare_and_set`."""
    checked = check_key(key)
    check_value(checked, value)
    if expected is not None:
        check_value(checked, expected)


def check_batch(items: Items) -> dict[bytes, bytes]:
    """Return the checked pairs of one `put_many`, the last of equal keys."""
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


def iter_ascending(items: Items) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of one `bulk_load`, checked one by one, with values as bytes."""
    for key, value in iter_ascending_pieces(items):
        yield key, value if type(value) is bytes else bytes(value)


def iter_ascending_pieces(items: Items) -> Iterator[tuple[bytes, bytes | Pieces]]:
    """Yield the pairs of one `bulk_load`, checked one by one, with values as they were given."""
    before = b""
    for key, value in items:
        if check_key(key) <= before:
            raise ValueError(f"expected keys in ascending order, got {key!r} after {before!r}")
        yield key, _check_pieces(key, value)
        before = key


def portions_by_size(
    items: Iterable[tuple[bytes, bytes]], size: int
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield pairs in lists of at most `size` bytes, or of one larger pair.

    Examples
    --------
    >>> pairs = [(b"a", b"12"), (b"b", b"34"), (b"c", b"56")]
    >>> [len(portion) for portion in portions_by_size(pairs, 6)]
    [2, 1]
    """
    return portions_by_bytes(items, lambda pair: len(pair[0]) + len(pair[1]), size)


def portions_by_bytes(
    items: Iterable[Item], bytes_of: Callable[[Item], int], limit: int
) -> Iterator[list[Item]]:
    """Yield items in lists of at most `limit` bytes, or of one larger item.

    Examples
    --------
    >>> list(portions_by_bytes([5, 1, 2, 9], lambda size: size, 6))
    [[5, 1], [2], [9]]
    """
    portion: list[Item] = []
    held = 0
    for item in items:
        size = bytes_of(item)
        if portion and held + size > limit:
            yield portion
            portion, held = [], 0
        portion.append(item)
        held += size
    if portion:
        yield portion


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after all keys that begin with `prefix`, or None if there is none.

    Examples
    --------
    >>> prefix_end(b"a/"), prefix_end(b"a\\xff"), prefix_end(b"\\xff")
    (b'a0', b'b', None)
    """
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


def key_range(prefix: bytes, start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """Return the range [first, end) of keys of a scan; `end` is None for a range without end.

    Examples
    --------
    >>> key_range(b"a/", b"a/3", None)
    (b'a/3', b'a0')
    """
    for name, value in (("prefix", prefix), ("start", start), ("stop", stop)):
        if type(value) is not bytes and (value is not None or name == "prefix"):
            raise TypeError(f"expected {name} of type bytes, got {type(value).__name__}")
    first = max(prefix, start or b"")
    ends = [end for end in (prefix_end(prefix), stop) if end is not None]
    return first, min(ends) if ends else None


def is_empty_range(span: Sequence[bytes | None]) -> bool:
    """Return True if a range of `key_range` is empty."""
    first, end = span
    return end is not None and first is not None and first >= end
