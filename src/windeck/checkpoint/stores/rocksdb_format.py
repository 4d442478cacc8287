"""The table files of RocksDB as bytes: block-based tables, format version 5, not compressed.

A table is a sequence of blocks, each followed by five bytes: how it is compressed (0: not) and the
masked CRC32C of the block and that byte. First come the blocks of data, in the order of keys; then
the index, with the last key of each block of data and where the block lies; the properties; the
metaindex, which says where those lie; and 53 bytes at the end of the file, the footer, with the
places of metaindex and index.

A block is a sequence of entries, each a key that may begin with bytes of the one before it, and a
value; then where the entries start that do not, as uint32, and the number of these. The key of a
value is what the user calls so and eight bytes: a sequence number above the kind, 1 for a value.

This is what RocksDB 6.6 and later write and read; see "Rocksdb BlockBasedTable Format" in its wiki.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from windeck._core import crc32c

__all__ = ["FOOTER_BYTES", "TRAILER_BYTES", "VALUE", "entries", "footer", "handle", "index_entries"]
__all__ += ["make_block", "masked", "read_footer", "varint", "varint_at"]

TRAILER_BYTES = 5
FOOTER_BYTES = 53
#: Ends the key of a value in a table that is to be taken in: sequence number 0, kind 1.
VALUE = (1).to_bytes(8, "little")
_FOOTER = struct.Struct("<B40sIQ")
_CRC32C, _VERSION, _MAGIC = 1, 5, 0x88E241B785F4CFF7


def varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first.

    Examples
    --------
    >>> varint(5), varint(300)
    (b'\\x05', b'\\xac\\x02')
    """
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; ValueError for one that does not end in time.

    Examples
    --------
    >>> varint_at(b"\\xac\\x02", 0)
    (300, 2)
    """
    number = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        if byte < 128:
            return number | byte << shift, at
        number |= (byte & 127) << shift
        shift += 7
    raise ValueError("a number does not end")


def handle(offset: int, size: int) -> bytes:
    """Where a block lies."""
    return varint(offset) + varint(size)


def masked(crc: int) -> int:
    """A sum as it is stored beside what was summed, so that sums of sums are none.

    Examples
    --------
    >>> hex(masked(0))
    '0xa282ead8'
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def make_block(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block of few pairs with its trailer, each entry whole."""
    parts, starts, at = list[bytes](), list[int](), 0
    for key, value in pairs:
        head = b"\0" + varint(len(key)) + varint(len(value))
        starts.append(at)
        parts += (head, key, value)
        at += len(head) + len(key) + len(value)
    return seal(b"".join(parts) + starts_of(starts))


def starts_of(starts: Sequence[int]) -> bytes:
    """The end of a block: where whole entries start; an empty block has one start all the same."""
    starts = starts or (0,)
    return struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))


def seal(block: bytes) -> bytes:
    """A block with its trailer."""
    block += b"\0"
    return block + masked(crc32c(block)).to_bytes(4, "little")


def entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a block of data or properties; ValueError where it cannot be one."""
    at, end = 0, _end(block)
    key = b""
    while at < end:
        shared, at = varint_at(block, at)
        more, at = varint_at(block, at)
        size, at = varint_at(block, at)
        if shared > len(key) or at + more + size > end:
            raise ValueError("an entry does not lie in its block")
        key = key[:shared] + block[at : at + more]
        at += more + size
        yield key, block[at - size : at]


def index_entries(block: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Of each block of data the last key, or one after it, and where it lies.

    Keys are the user's and places are whole, as RocksDB writes them unless told otherwise.
    """
    at, end = 0, _end(block)
    while at < end:
        shared, at = varint_at(block, at)
        more, at = varint_at(block, at)
        if shared or at + more > end:
            raise ValueError("an entry of an index is not whole")
        key = block[at : at + more]
        offset, at = varint_at(block, at + more)
        size, at = varint_at(block, at)
        if at > end:
            raise ValueError("an entry does not lie in its block")
        yield key, offset, size


def _end(block: bytes) -> int:
    """Where the entries of a block end."""
    if len(block) < 4:
        raise ValueError("a block is too short")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise ValueError("a block has more starts than room")
    return end


def footer(metaindex: bytes, index: bytes) -> bytes:
    """The end of a file, from the handles of its two last blocks."""
    return _FOOTER.pack(_CRC32C, metaindex + index, _VERSION, _MAGIC)


def read_footer(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Offsets and sizes of metaindex and index; ValueError for a table of another format."""
    kind, handles, version, magic = _FOOTER.unpack(data)
    if (kind, version, magic) != (_CRC32C, _VERSION, _MAGIC):
        raise ValueError("the file is not a table of version 5 with CRC32C sums")
    meta_offset, at = varint_at(handles, 0)
    meta_size, at = varint_at(handles, at)
    index_offset, at = varint_at(handles, at)
    index_size, at = varint_at(handles, at)
    return (meta_offset, meta_size), (index_offset, index_size)
