"""The protocol of a key-value store of bytes. Stores need no base class.

Every method raises ValueError once the store is closed, TypeError for what is not bytes,
ValueError for a key or value outside the limits below, and the errors of
`windeck.checkpoint.stores.errors` for failures from outside. All methods may be called from
several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

__all__ = ["LARGEST_BATCH", "LARGEST_KEY", "LARGEST_VALUE", "DirectView", "Facts", "Items"]
__all__ += ["PartStore", "Pieces", "Snapshot", "Store", "View", "Wanted"]

Self = TypeVar("Self")

# The same for all, so that any store can be copied into any other. Redis sets the second.
#: Bytes of a key; a key has at least one.
LARGEST_KEY = 65_535
#: Bytes of a value.
LARGEST_VALUE = 512 * 1024 * 1024
#: Bytes of all keys and values in one `put_many`: room for one of the largest.
LARGEST_BATCH = LARGEST_VALUE + LARGEST_KEY


# No dataclass, here and elsewhere on the way to a manifest: importing that module takes as long as
# starting the interpreter, and `windeck view URL ls` does little else.
class Pieces:
    """A value in two parts, stored as one, so that the parts need not be joined first.

    Attributes
    ----------
    head
        Its first bytes.
    body
        The others, of one byte each. They must not change before the call that stores them asks
        for the next pair, or returns.
    body_crc
        The CRC32C of `body`, from which a store may compute its own checksum.

    Examples
    --------
    >>> from windeck._core import crc32c
    >>> value = Pieces(b"head", memoryview(b"body"), crc32c(b"body"))
    >>> len(value), bytes(value)
    (8, b'headbody')
    """

    __slots__ = ("body", "body_crc", "head")

    def __init__(self, head: bytes, body: memoryview, body_crc: int) -> None:
        self.head, self.body, self.body_crc = head, body, body_crc

    def __len__(self) -> int:
        return len(self.head) + len(self.body)

    def __bytes__(self) -> bytes:
        return b"".join((self.head, self.body))


#: Pairs of a key and a value, to be written.
Items: TypeAlias = Iterable[tuple[bytes, "bytes | Pieces"]]


class Facts(NamedTuple):
    """Properties of a backend beyond the protocol.

    Attributes
    ----------
    backend
        Its name: ``"rocksdb"``.
    atomic_batches
        After a crash, or to another reader, a `put_many` or `delete_many` is there whole or not
        at all.
    snapshots
        `snapshot` works. Without it, read what is never overwritten: a generation's keys.
    shared
        Any number of processes may open it for writing, each rank its own. Otherwise one process
        opens it, and the others hand over parts: `windeck.checkpoint.stores.write_part`.
    shared_readers
        Any number of processes may open it for reading.
    ordered
        A scan costs what it returns. Otherwise it looks at every key there is, once.
    """

    backend: str
    atomic_batches: bool
    snapshots: bool
    shared: bool
    shared_readers: bool
    ordered: bool


class Values(Protocol):
    """Gives the value of a key, as every view and every dict of bytes does."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of a key, or None."""
        ...


@runtime_checkable
class View(Protocol):
    """Reads keys and values."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, in their order; None for each that is not there."""
        ...

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in ascending order of keys.

        Parameters
        ----------
        prefix
            What keys begin with.
        start, stop
            Of these, only the keys k with start <= k < stop.

        Raises
        ------
        CorruptStoreError
            Where the data cannot be read on. A scan that ends without an error is complete: it has
            every key that was there from its begin to its end.
        """
        ...

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        """The keys `scan` would give, without their values."""
        ...


#: A key, and writable bytes for the value's first ones and for the others: in all as many.
Wanted: TypeAlias = tuple[bytes, memoryview, memoryview]


@runtime_checkable
class DirectView(View, Protocol):
    """A view that can read values to where they are wanted. Optional: what has no such method, or
    answers None, is asked with `get`."""

    def get_many_into(self, wanted: Sequence[Wanted], *, cached: bool = True) -> list[int | None]:
        """Read values into memory, the first bytes of each into its head, the others to its body.

        Parameters
        ----------
        cached
            Whether the bodies are read at once. What is wanted later may go past the processor's
            caches.

        Returns
        -------
        list of int or None
            The CRC32C of each body, when the value of the key, as `get` would give it, is there and
            agrees with the store's own checksum. None for any reason why not, a value that is
            missing, damaged or of another size included; both may then hold anything.
        """
        ...


class Snapshot(View, Protocol):
    """A view of one moment. Close it: it keeps old data from being cleaned up."""

    def close(self) -> None:
        """Let the moment go; closing twice is no error."""
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
    """A key-value store, open."""

    @property
    def url(self) -> str:
        """Where it is, without any password."""
        ...

    @property
    def facts(self) -> Facts:
        """What holds for the backend beyond this protocol."""
        ...

    def put_many(self, items: Items) -> None:
        """Write pairs, of equal keys the last. Readers see them at once; `sync` makes them last.

        Raises
        ------
        ValueError
            When keys and values have more than `LARGEST_BATCH` bytes: use `bulk_load`.
        """
        ...

    def bulk_load(self, items: Items) -> int:
        """Write many pairs in ascending order of keys, in bounded memory, the fastest way.

        Values of existing keys are replaced. Before this returns, the pairs are as safe as after
        `sync` in RocksDB and LevelDB. RocksDB shows all of them or none; in the others a load that
        failed or was killed may leave some behind.

        Returns
        -------
        int
            Pairs written.

        Raises
        ------
        ValueError
            When a key does not come after the one before it.
        """
        ...

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Remove keys; one that is not there is no error."""
        ...

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        """Remove the keys `scan` would give with the same arguments; `b""` alone means all."""
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        """Write `value` if the key still has the value `expected` (None: is absent), in one step.

        Returns
        -------
        bool
            Whether it was written. Of several writers with one `expected`, one gets True.
        """
        ...

    def sync(self) -> None:
        """Return once all that was written survives the end of this process and of the machine.

        Raises
        ------
        OSError
            When that cannot be had, with the reason.
        """
        ...

    def snapshot(self) -> Snapshot:
        """A consistent view of this moment.

        Raises
        ------
        io.UnsupportedOperation
            Where the backend has none (`facts.snapshots` is False).
        """
        ...

    def close(self) -> None:
        """Close it; closing twice is no error. This is no `sync`."""
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
    """A store that one process opens and other processes fill (`facts.shared` is False).

    The others write parts, beside the database and without opening it::

        write_part("rocksdb:///data/run", f"{generation}-{rank}", items)   # each rank
        store.ingest_parts([f"{generation}-{r}" for r in range(ranks)])    # the one that opened it
    """

    def ingest_parts(self, names: Sequence[str]) -> None:
        """Take parts in, later ones over earlier ones, and remove their files.

        RocksDB shows all of them or none. What is taken in is as safe as after `sync`.

        Raises
        ------
        FileNotFoundError
            When a part was not written or has been taken in; nothing is changed then.
        """
        ...

    def parts(self, *, unfinished: bool = False) -> list[str]:
        """The names of the parts written and not taken in, sorted.

        With `unfinished`, also of those that are being written, or whose writer was killed.
        """
        ...

    def drop_parts(self, names: Sequence[str]) -> None:
        """Remove parts that will not be taken in, also what a killed writer left of one.

        One that is not there is no error; one that is being written must not be named.
        """
        ...
