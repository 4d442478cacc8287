"""Stored values: a checked header, and a payload.

The header has 64 bytes, little-endian::

    0  magic "wdkv"   4  format u16   6  kind u8   7  codec u8   8  object u64
    16 part u32      20  index u32   24  generation u64         32  save u64
    40 stored u64    48  plain u64   56  CRC32C of the payload  60  CRC32C of bytes 0 to 59

`object`, `part` and `index` identify the value within a save; `generation` and `save`, a random
number of each save, identify the save. So decoding detects flipped bytes, and also values that were
swapped, truncated or left by another save. `stored` and `plain` are the bytes of the payload with
and without codec. The only codec so far is 0, none.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from windeck._core import crc32c
from windeck._util.validation import check_format
from windeck.checkpoint.stores import LARGEST_VALUE, CorruptStoreError, Pieces, View
from windeck.checkpoint.stores.protocol import portions_by_bytes, read_bytes

__all__ = ["FORMAT", "HEADER_BYTES", "LARGEST_PAYLOAD", "Kind", "Label", "decode", "encode"]
__all__ += ["Wanted", "encode_pieces", "header", "read_payloads", "with_generation"]

FORMAT = 1
HEADER_BYTES = 64
LARGEST_PAYLOAD = LARGEST_VALUE - HEADER_BYTES
#: Least bytes of a payload that `read_payloads` reads by `get_unchecked`: RocksDB's blocks of this
#: size have no hash index, which the engine would use without checks.
LARGE_BYTES = 64 << 10
#: Bytes that a value counts in addition to its payload: a batch has at most a thousand of 1 MiB.
KEY_BYTES = 1 << 10
_MAGIC = b"wdkv"
_LAYOUT = struct.Struct("<4sHBBQIIQQQQI")
_SUM = struct.Struct("<I")


class Kind(IntEnum):
    """Kind of a value."""

    HEAD = 1
    NEXT = 2
    MANIFEST = 3
    SHARD = 4
    CHUNK = 5
    BLOCK = 6
    INDEX = 7
    DIGESTS = 8


class Label(NamedTuple):
    """Identity of a value: its kind, its save and its numbers within the save.

    Attributes
    ----------
    object, part, index
        For a chunk: the number of the tensor among those of its writer, the writer, the number of
        the chunk. For a block of a table and a value of its index likewise. In a writer's manifest
        and its digests, `part` is the writer. In digests, `index` is the number of the value.
        Otherwise 0.
    generation, save
        The save that wrote the value; 0 in HEAD and NEXT.
    """

    kind: Kind
    generation: int = 0
    save: int = 0
    object: int = 0
    part: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which is not used


def encode(label: Label, *payload: Any) -> bytes:
    """Return a value: the header and a copy of the payload.

    Parameters
    ----------
    payload
        Contiguous buffers, which are concatenated.

    Raises
    ------
    ValueError
        When the payload is larger than `LARGEST_PAYLOAD`.

    Examples
    --------
    >>> value = encode(Label(Kind.CHUNK, generation=3), b"hello")
    >>> len(value), bytes(decode(b"key", value, Label(Kind.CHUNK, generation=3)))
    (69, b'hello')
    """
    data = b"".join(payload)
    return header(label, len(data), crc32c(data)) + data


def encode_pieces(label: Label, payload: Any) -> Pieces:
    """Return a value in two pieces: the header, and the payload, which is not copied."""
    data = memoryview(payload).cast("B")
    payload_sum = crc32c(data)
    return Pieces(header(label, data.nbytes, payload_sum), data, payload_sum)


def header(label: Label, size: int, payload_sum: int) -> bytes:
    """Return the header for a payload of `size` bytes with the CRC32C `payload_sum`.

    Raises
    ------
    ValueError
        When the payload is larger than `LARGEST_PAYLOAD`.
    """
    if size > LARGEST_PAYLOAD:
        raise ValueError(f"a value has {size:,} bytes, expected at most {LARGEST_PAYLOAD:,}")
    head = _LAYOUT.pack(
        _MAGIC, FORMAT, label.kind, 0, label.object, label.part, label.index,
        label.generation, label.save, size, size, payload_sum,
    )  # fmt: skip
    return head + _SUM.pack(crc32c(head))


def save_of(value: bytes) -> int | None:
    """Return the number of the save in a header, unverified; None for a value without a header."""
    return int(_LAYOUT.unpack_from(value)[8]) if len(value) >= HEADER_BYTES else None


def with_generation(value: bytes, generation: int) -> bytes:
    """Return a value that was checked, with another generation in its header.

    Examples
    --------
    >>> value = encode(Label(Kind.CHUNK, generation=3), b"hello")
    >>> with_generation(value, 4) == encode(Label(Kind.CHUNK, generation=4), b"hello")
    True
    """
    fields = [*_LAYOUT.unpack_from(value)]
    fields[7] = generation
    head = _LAYOUT.pack(*fields)
    return b"".join((head, _SUM.pack(crc32c(head)), memoryview(value)[HEADER_BYTES:]))


def decode(
    key: bytes, value: bytes | None, expected: Label, *, length: int | None = None
) -> memoryview:
    """Check a value, and return a view of its payload.

    Parameters
    ----------
    key
        Key of the value, for messages.
    value
        The value, or None if it is missing.
    expected
        The expected label.
    length
        The expected bytes of the payload, if known.

    Raises
    ------
    CorruptStoreError
        When the value is damaged. The message names the key, what was found and what was expected.
    ValueError
        For a value of a later format.

    Notes
    -----
    O(n) time, without allocations: lengths in the header are compared with the size of the value.
    """
    name = key.decode(errors="replace")
    if value is None:
        raise CorruptStoreError(f"{name} is missing, expected a {_name(expected.kind)}")
    if len(value) < HEADER_BYTES:
        raise _damaged(name, f"{len(value)} bytes", f"a header of {HEADER_BYTES}")
    head, header_sum = _LAYOUT.unpack_from(value), _SUM.unpack_from(value, HEADER_BYTES - 4)[0]
    if head[0] != _MAGIC:
        raise _damaged(name, f"a value that begins with {head[0]!r}", f"{_MAGIC!r}")
    actual = crc32c(memoryview(value)[: HEADER_BYTES - 4])
    if actual != header_sum:
        raise _damaged(name, f"a header with CRC32C {actual:08x}", f"{header_sum:08x} as it says")
    _, version, kind, codec, item, part, index, generation, save, stored, plain, payload_sum = head
    check_format(name, version, FORMAT)
    if (found := Label(kind, generation, save, item, part, index)) != expected:
        raise _mismatch(name, found, expected)
    payload = memoryview(value)[HEADER_BYTES:]
    if codec != 0 or plain != stored:
        raise _damaged(name, f"codec {codec} of {plain:,} bytes", f"codec 0 of {stored:,}")
    if stored != len(payload):
        raise _damaged(
            name, f"a payload of {len(payload):,} bytes", f"{stored:,} as its header says"
        )
    if length is not None and stored != length:
        raise _damaged(name, f"a payload of {stored:,} bytes", f"{length:,}")
    actual = crc32c(payload)
    if actual != payload_sum:
        raise _damaged(name, f"a payload with CRC32C {actual:08x}", f"{payload_sum:08x}")
    return payload


#: The key of a value, its expected label, and the expected bytes of its payload.
Wanted: TypeAlias = tuple[bytes, Label, int]


def read_payloads(view: View, wanted: Iterable[Wanted]) -> Iterator[memoryview]:
    """Read values of a store and check them; yield their payloads in order.

    The values are requested in batches of `Facts.read_bytes`. A payload may be dropped before the
    next is requested, so a large batch need not be in memory twice.

    Raises
    ------
    OSError, ValueError
        As `decode` does, and as `get` of the store does for damage that it detects.

    Notes
    -----
    The checksum of a large value is compared once, here, if the store has a method `get_unchecked`
    (see `windeck.checkpoint.stores.View`). A value that is wrong or absent there is read again with
    the store's own checks, whose errors name the file.
    """
    unchecked: Callable[[bytes], bytes | None] | None = getattr(view, "get_unchecked", None)
    for batch in portions_by_bytes(wanted, lambda one: one[2] + KEY_BYTES, read_bytes(view)):
        checked = [key for key, _, length in batch if unchecked is None or length < LARGE_BYTES]
        found = deque(view.get_many(checked) if checked else ())
        for key, label, length in batch:
            if unchecked is None or length < LARGE_BYTES:
                yield decode(key, found.popleft(), label, length=length)
                continue
            try:
                payload = decode(key, unchecked(key), label, length=length)
            except CorruptStoreError:
                payload = decode(key, view.get(key), label, length=length)
            yield payload


def _mismatch(name: str, found: Label, expected: Label) -> CorruptStoreError:
    """Return the error for the first field of two labels that differs."""
    fields = zip(Label._fields, found, expected, strict=True)
    field, was, wanted = next(item for item in fields if item[1] != item[2])
    if field == "kind":
        known = was in Kind.__members__.values()
        was_kind = _name(Kind(was)) if known else f"kind {was}"
        return _damaged(name, was_kind, _name(expected.kind))
    return _damaged(name, f"a value of {field} {was}", f"{field} {wanted}")


def _name(kind: Kind) -> str:
    names = {Kind.MANIFEST: "manifest", Kind.SHARD: "writer's manifest"}
    names |= {Kind.INDEX: "table's index", Kind.DIGESTS: "list of digests"}
    return names.get(kind, kind.name.lower())


def _damaged(name: str, found: str, expected: str) -> CorruptStoreError:
    return CorruptStoreError(f"{name} is damaged: found {found}, expected {expected}")
