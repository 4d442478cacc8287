"""The header every value begins with, so that a wrong value is never taken for a right one.

64 bytes, little-endian, before the payload::

    0  magic "wdkv"   4  format u16   6  kind u8   7  codec u8   8  object u64
    16 part u32      20  index u32   24  generation u64         32  save u64
    40 stored u64    48  plain u64   56  CRC32C of the payload  60  CRC32C of bytes 0 to 59

`object`, `part` and `index` say which value of a save it is, `generation` and `save` (a random
number drawn once for each save) say of which: so not only a flipped byte is found out, but also a
value that was swapped, left over from another save, or cut short. `stored` and `plain` are the
payload's bytes as stored and without its codec; so far the only codec is 0, none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from windeck._core import crc32c
from windeck.checkpoint.stores import LARGEST_VALUE, CorruptStoreError, Pieces

__all__ = ["FORMAT", "HEADER_BYTES", "LARGEST_PAYLOAD", "Kind", "Label", "decode", "encode"]
__all__ += ["encode_pieces", "header"]

FORMAT = 1
HEADER_BYTES = 64
LARGEST_PAYLOAD = LARGEST_VALUE - HEADER_BYTES
_MAGIC = b"wdkv"
_LAYOUT = struct.Struct("<4sHBBQIIQQQQI")
_SUM = struct.Struct("<I")


class Kind(IntEnum):
    """What a value is."""

    HEAD = 1
    NEXT = 2
    MANIFEST = 3
    SHARD = 4
    CHUNK = 5
    BLOCK = 6
    INDEX = 7
    DIGESTS = 8


class Label(NamedTuple):
    """Which value of which save.

    Attributes
    ----------
    object, part, index
        For a chunk: the tensor's number with its writer, the writer, the chunk's number.
        For a block of a table, and a value of its index: the table's number with its writer, the
        writer, the block's or the value's number. For a writer's manifest `part` is the writer;
        for its digests, too, and `index` the value's number. Else 0.
    generation, save
        Of the save that wrote it; 0 in HEAD and NEXT.
    """

    kind: Kind
    generation: int = 0
    save: int = 0
    object: int = 0
    part: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody asks for


def encode(label: Label, *payload: Any) -> bytes:
    """A value: the header and the payload, copied once.

    Parameters
    ----------
    payload
        bytes or any contiguous buffers, one after the other.

    Raises
    ------
    ValueError
        For a payload that no store takes.

    Examples
    --------
    >>> value = encode(Label(Kind.CHUNK, generation=3), b"hello")
    >>> len(value), bytes(decode(b"key", value, Label(Kind.CHUNK, generation=3)))
    (69, b'hello')
    """
    size = sum(memoryview(part).nbytes for part in payload)
    if size > LARGEST_PAYLOAD:
        raise ValueError(f"a value has {size:,} bytes, expected at most {LARGEST_PAYLOAD:,}")
    total = 0
    for part in payload:
        total = crc32c(part, total)
    return b"".join((header(label, size, total), *payload))


def encode_pieces(label: Label, payload: Any) -> Pieces:
    """The same for one buffer, without a copy: the header, and the payload where it is."""
    data = memoryview(payload).cast("B")
    size = data.nbytes
    if size > LARGEST_PAYLOAD:
        raise ValueError(f"a value has {size:,} bytes, expected at most {LARGEST_PAYLOAD:,}")
    payload_sum = crc32c(data)
    return Pieces(header(label, size, payload_sum), data, payload_sum)


def header(label: Label, size: int, payload_sum: int) -> bytes:
    """The header of a payload of `size` bytes with the CRC32C `payload_sum`."""
    head = _LAYOUT.pack(
        _MAGIC, FORMAT, label.kind, 0, label.object, label.part, label.index,
        label.generation, label.save, size, size, payload_sum,
    )  # fmt: skip
    return head + _SUM.pack(crc32c(head))


def decode(
    key: bytes, value: bytes | None, expected: Label, *, length: int | None = None
) -> memoryview:
    """The payload of a value, a view, after everything about it was checked.

    Parameters
    ----------
    key
        Where it was found, for messages.
    value
        What was found; None: nothing.
    expected
        What it has to be.
    length
        Bytes the payload has to have, where that is known.

    Raises
    ------
    CorruptStoreError
        Naming the key, what was found and what was expected.
    ValueError
        For a value of a later format.

    Notes
    -----
    O(n). Nothing is allocated: lengths are compared with what is there.
    """
    name = key.decode(errors="replace")
    if value is None:
        raise CorruptStoreError(f"{name} is missing, expected a {_name(expected.kind)}")
    if len(value) < HEADER_BYTES:
        raise _wrong(name, f"{len(value)} bytes", f"a header of {HEADER_BYTES}")
    head, stated = _LAYOUT.unpack_from(value), _SUM.unpack_from(value, HEADER_BYTES - 4)[0]
    if head[0] != _MAGIC:
        raise _wrong(name, f"a value that begins with {head[0]!r}", f"{_MAGIC!r}")
    actual = crc32c(memoryview(value)[: HEADER_BYTES - 4])
    if actual != stated:
        raise _wrong(name, f"a header with CRC32C {actual:08x}", f"{stated:08x} as it says")
    _, version, kind, codec, item, part, index, generation, save, stored, plain, payload_sum = head
    if version != FORMAT:
        raise ValueError(
            f"{name} has format {version}, expected {FORMAT}: a later windeck wrote it"
        )
    found = {"kind": kind, "generation": generation, "save": save}
    found |= {"object": item, "part": part, "index": index}
    _compare(name, found, expected)
    payload = memoryview(value)[HEADER_BYTES:]
    if codec != 0 or plain != stored:
        raise _wrong(name, f"codec {codec} of {plain:,} bytes", f"codec 0 of {stored:,}")
    if stored != len(payload):
        raise _wrong(name, f"a payload of {len(payload):,} bytes", f"{stored:,} as its header says")
    if length is not None and stored != length:
        raise _wrong(name, f"a payload of {stored:,} bytes", f"{length:,}")
    actual = crc32c(payload)
    if actual != payload_sum:
        raise _wrong(name, f"a payload with CRC32C {actual:08x}", f"{payload_sum:08x}")
    return payload


def _compare(name: str, found: Mapping[str, int], expected: Label) -> None:
    for field, wanted in expected._asdict().items():
        was = found[field]
        if was != wanted:
            if field == "kind":
                known = was in Kind.__members__.values()
                raise _wrong(name, _name(Kind(was)) if known else f"kind {was}", _name(wanted))
            raise _wrong(name, f"a value of {field} {was}", f"{field} {wanted}")


def _name(kind: Kind) -> str:
    names = {Kind.MANIFEST: "manifest", Kind.SHARD: "writer's manifest"}
    names |= {Kind.INDEX: "table's index", Kind.DIGESTS: "list of digests"}
    return names.get(kind, kind.name.lower())


def _wrong(name: str, found: str, expected: str) -> CorruptStoreError:
    return CorruptStoreError(f"{name} is damaged: found {found}, expected {expected}")
