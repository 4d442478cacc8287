"""The format of a store in files: immutable segments of values, and a list of these.

A segment is a file of values, one after the other in ascending order of keys, and an index::

    count u32, bytes of each key u16[count], bytes of each value u32[count],
    CRC32C of each value u32[count], the keys

Its name ends in a hash of its contents, so a name never has two contents.

A list is two lines: ``windeck-segments 1 <bytes> <CRC32C>`` of the second line, which is JSON::

    {"segments": [[name, bytes, bytes of values, CRC32C of index, [[first key, last key], ...]],
                  ...],
     "values": {key: base64 of a small value, ...}}

A segment has a pair of keys for each prefix of its keys, so few segments are looked into for a key.

Sizes and offsets are checked before they are used.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from windeck._core import crc32c
from windeck._util.validation import check_format, check_integer
from windeck.checkpoint.stores.protocol import LARGEST_KEY, LARGEST_VALUE, CorruptStoreError

__all__ = ["SegmentFile", "ValuePlace", "encode_list", "encode_segment", "parse_index"]
__all__ += ["parse_list"]

_MAGIC = "windeck-segments"
_FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9-]{1,200}")
#: Errors of code that parses invalid JSON.
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class SegmentFile(NamedTuple):
    """Description of a segment: all that a list says of it.

    Attributes
    ----------
    name
        Name of the file: that of its group, a hyphen and a hash of its contents.
    size, values_size
        Bytes of the file, and of the values in it; the others are the index.
    index_crc
        CRC32C of the index.
    ranges
        In ascending order, the first and the last key of each range of its keys.
    """

    name: str
    size: int
    values_size: int
    index_crc: int
    ranges: tuple[tuple[bytes, bytes], ...]

    @property
    def group(self) -> str:
        """Name of the group that it was written for."""
        return self.name.rpartition("-")[0]


class ValuePlace(NamedTuple):
    """Offset of a value in its segment, its bytes and their CRC32C."""

    offset: int
    size: int
    crc: int


def encode_segment(
    group: str,
    pairs: Sequence[tuple[bytes, bytes]],
    prefix_of: Callable[[bytes], bytes] = lambda key: b"",
) -> tuple[SegmentFile, list[bytes]]:
    """Return the description and the contents of a segment, as buffers.

    Parameters
    ----------
    group
        Letters, digits and hyphens.
    pairs
        At least one, in ascending order of keys.
    prefix_of
        A function that returns a prefix of a key. Keys of one prefix are one range.

    Examples
    --------
    >>> segment, contents = encode_segment("g", [(b"a", b"12"), (b"b", b"3")])
    >>> parse_index("g", segment, contents[-1])[b"b"][:2]
    (2, 1)
    """
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    count = len(pairs)
    head = struct.pack(
        f"<I{count}H{count}I{count}I", count, *map(len, keys), *map(len, values),
        *map(crc32c, values),
    )  # fmt: skip
    contents = [*values, b"".join((head, *keys))]
    hashed = blake2b(digest_size=16)
    for buffer in contents:
        hashed.update(buffer)
    size, index = sum(map(len, contents)), contents[-1]
    name, ranges = f"{group}-{hashed.hexdigest()}", _key_ranges(keys, prefix_of)
    return SegmentFile(name, size, size - len(index), crc32c(index), ranges), contents


def _key_ranges(
    keys: Sequence[bytes], prefix_of: Callable[[bytes], bytes]
) -> tuple[tuple[bytes, bytes], ...]:
    some = (list(own) for _, own in groupby(keys, prefix_of))
    return tuple((own[0], own[-1]) for own in some)


def parse_index(name: str, segment: SegmentFile, data: bytes) -> dict[bytes, ValuePlace]:
    """Return the places of the values of a segment, by key and in order of keys.

    Raises
    ------
    CorruptStoreError
        When the index is not valid, or that of another segment. `name` is for the message.
    """
    try:
        return _parse_index(segment, data)
    except (struct.error, ValueError) as error:
        raise CorruptStoreError(f"{name} is damaged: its index cannot be read: {error}") from error


def _parse_index(segment: SegmentFile, data: bytes) -> dict[bytes, ValuePlace]:
    (count,) = struct.unpack_from("<I", data)
    at = 4 + 10 * count
    if not 0 < count <= len(data) or at > len(data):
        raise ValueError(f"it has {len(data):,} bytes, expected more for {count:,} values")
    numbers = struct.unpack_from(f"<{count}H{count}I{count}I", data, 4)
    lengths, sizes, sums = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    if at + sum(lengths) != len(data) or sum(sizes) != segment.values_size:
        raise ValueError(
            f"its keys have {sum(lengths):,} bytes and its values {sum(sizes):,}, expected "
            f"{len(data) - at:,} and {segment.values_size:,}"
        )
    if max(sizes) > LARGEST_VALUE:
        raise ValueError(f"a value has {max(sizes):,} bytes, expected at most {LARGEST_VALUE:,}")
    ends = list(accumulate(lengths, initial=at))
    keys = [data[start:end] for start, end in pairwise(ends)]
    if any(a >= b for a, b in pairwise((b"", *keys))):
        raise ValueError("its keys are not in ascending order")
    first, last = segment.ranges[0][0], segment.ranges[-1][1]
    if (keys[0], keys[-1]) != (first, last):
        raise ValueError(
            f"its keys are {keys[0]!r} to {keys[-1]!r}, expected {first!r} to {last!r}"
        )
    offsets = accumulate(sizes, initial=0)
    return dict(zip(keys, map(ValuePlace, offsets, sizes, sums), strict=True))


def encode_list(segments: Iterable[SegmentFile], values: Mapping[bytes, bytes]) -> bytes:
    """Encode a list of segments, and small values."""
    content = {
        "segments": [
            [*one[:4], [[key.decode("latin-1") for key in pair] for pair in one.ranges]]
            for one in sorted(segments)
        ],
        "values": {
            key.decode("latin-1"): base64.b64encode(values[key]).decode() for key in sorted(values)
        },
    }
    data = json.dumps(content, separators=(",", ":")).encode()
    return f"{_MAGIC} {_FORMAT} {len(data)} {crc32c(data):08x}\n".encode() + data


def parse_list(name: str, data: bytes) -> tuple[list[SegmentFile], dict[bytes, bytes]]:
    """Parse a list of segments; return these and the small values.

    Raises
    ------
    CorruptStoreError
        When it is damaged. `name` is for the message.
    ValueError
        For a later format.
    """
    line, _, rest = data.partition(b"\n")
    found = re.fullmatch(rb"%s (\d{1,9}) (\d{1,18}) ([0-9a-f]{8})" % _MAGIC.encode(), line)
    if found is None:
        raise CorruptStoreError(f"{name} is damaged: expected a list of segments")
    check_format(name, int(found[1]), _FORMAT)
    actual = len(rest), crc32c(rest)
    if actual != (int(found[2]), int(found[3], 16)):
        raise CorruptStoreError(
            f"{name} is damaged: found {actual[0]:,} bytes with CRC32C {actual[1]:08x}, expected "
            f"{int(found[2]):,} with {found[3].decode()}"
        )
    try:
        content = json.loads(rest)
        segments = [_parse_segment(*one) for one in content["segments"]]
        values = {
            _key(key): base64.b64decode(value, validate=True)
            for key, value in content["values"].items()
        }
    except _UNREADABLE as error:
        raise CorruptStoreError(f"{name} cannot be read as a list of segments: {error}") from error
    return sorted(segments), values


def _parse_segment(name: str, size: int, values: int, crc: int, pairs: Any) -> SegmentFile:
    if type(name) is not str or _NAME.fullmatch(name) is None or "-" not in name:
        raise ValueError(f"expected the name of a segment, found {str(name)[:80]!r}")
    for what, number in (("bytes", size), ("values", values), ("CRC32C", crc)):
        check_integer(f"{what} of {name}", number)
    ranges = tuple((_key(first), _key(last)) for first, last in pairs)
    ends = [key for pair in ranges for key in pair]
    if values > size - 4 or crc >= 1 << 32 or not ends or ends != sorted(ends):
        raise ValueError(f"the numbers or keys of {name} are not valid")
    return SegmentFile(name, size, values, crc, ranges)


def _key(text: str) -> bytes:
    key = text.encode("latin-1")
    if not 0 < len(key) <= LARGEST_KEY:
        raise ValueError(f"expected a key of 1 to {LARGEST_KEY:,} bytes, found {len(key):,}")
    return key
