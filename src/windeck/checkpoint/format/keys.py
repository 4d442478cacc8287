"""Keys of a checkpoint in a store, and names of the parts of an embedded database.

A key has a namespace, a letter for the kind of value, and numbers of fixed width.

=============================================  ===================================================
``ns/HEAD``                                    the committed generations, the current one first
``ns/NEXT``                                    the number of the next generation
``ns/m/<generation>``                          the manifest of a generation
``ns/s/<generation>/<writer>``                 the manifest of one writer
``ns/t/<generation>/<writer>/<object>/<n>``    chunk n of a tensor
``ns/e/<generation>/<writer>/<object>/<n>``    block n of a table's rows
``ns/i/<generation>/<writer>/<object>/<n>``    value n of the index of these blocks
``ns/d/<generation>/<writer>/<n>``             value n of the digests of a writer's chunks
=============================================  ===================================================

Numbers are hexadecimal, so keys sort as the numbers do. Keys have no braces: in a Redis Cluster the
whole key is the hash tag, so the chunks of a checkpoint spread over all servers. Only `ns/HEAD` and
`ns/NEXT` are set by compare-and-set, each of them alone.

A part is written beside an embedded database by a process that does not have it open. Its name is
``<namespace>-<generation>-<save>-<writer>-<attempt>-<kind>``: a hash and hexadecimal numbers. The
kind is the letter of its keys. The writer's manifest is written last. Its kind is ``s`` and the
letters of the parts before it; without it, the attempt is unfinished.

In an object store, values are in segments. Names of those of a save begin with the hash of the
namespace and two hexadecimal numbers: ``<namespace>-<generation>-<save>-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from windeck.checkpoint.stores import PartStore, Store

if TYPE_CHECKING:
    from windeck.checkpoint.stores.objects import ObjectStore

__all__ = ["LETTERS", "PartName", "block", "check_namespace", "chunk", "digests", "drop_parts"]
__all__ += ["generation_prefixes", "has_parts", "has_segments", "head", "index", "is_nested"]
__all__ += ["list_parts"]
__all__ += ["manifest", "next_generation", "parse_numbers", "segment_generation", "segment_group"]
__all__ += ["shard"]

#: The letters of the keys of a generation, its manifest first.
LETTERS = "msdeit"
_NAMESPACE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/")
_LIKE_KEYS = re.compile(r"/[a-z]/[0-9a-f]{16}(/|$)")
_PART_NAME = (
    r"([0-9a-f]{16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,8})-([0-9a-f]{8})-([a-z]{1,9})"
)


def check_namespace(namespace: str) -> str:
    """Return the namespace; raise TypeError or ValueError if it is not valid.

    Examples
    --------
    >>> check_namespace("runs/seven")
    'runs/seven'
    """
    if not isinstance(namespace, str):
        raise TypeError(f"expected a namespace of type str, got {type(namespace).__name__}")
    if not 0 < len(namespace) <= 200 or not _NAMESPACE.issuperset(namespace):
        raise ValueError(
            "expected a namespace of 1 to 200 letters, digits, -, _, . and /, got "
            f"{namespace[:40]!r}"
        )
    if _LIKE_KEYS.search(namespace):
        raise ValueError(
            f"expected a namespace that is not named as keys of another one are, got {namespace!r}"
        )
    return namespace


def head(namespace: str) -> bytes:
    """Return the key of the record of committed generations."""
    return f"{namespace}/HEAD".encode()


def next_generation(namespace: str) -> bytes:
    """Return the key of the record of the next generation number."""
    return f"{namespace}/NEXT".encode()


def manifest(namespace: str, generation: int) -> bytes:
    """Return the key of the manifest of a generation.

    Examples
    --------
    >>> manifest("run", 10)
    b'run/m/000000000000000a'
    """
    return f"{namespace}/m/{generation:016x}".encode()


def shard(namespace: str, generation: int, writer: int) -> bytes:
    """Return the key of the manifest of one writer.

    Examples
    --------
    >>> shard("run", 10, 3)
    b'run/s/000000000000000a/00000003'
    """
    return f"{namespace}/s/{generation:016x}/{writer:08x}".encode()


def chunk(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """Return the key of chunk `number` of tensor `item` of a writer.

    Examples
    --------
    >>> chunk("run", 10, 3, 258, 1)
    b'run/t/000000000000000a/00000003/00000102/00000001'
    """
    return f"{namespace}/t/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def block(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """Return the key of block `number` of table `item` of a writer.

    Examples
    --------
    >>> block("run", 10, 3, 258, 1)
    b'run/e/000000000000000a/00000003/00000102/00000001'
    """
    return f"{namespace}/e/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def index(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """Return the key of value `number` of the index of a table's blocks.

    Examples
    --------
    >>> index("run", 10, 3, 258, 0)
    b'run/i/000000000000000a/00000003/00000102/00000000'
    """
    return f"{namespace}/i/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def digests(namespace: str, generation: int, writer: int, number: int) -> bytes:
    """Return the key of value `number` of the digests of a writer's chunks.

    Examples
    --------
    >>> digests("run", 10, 3, 0)
    b'run/d/000000000000000a/00000003/00000000'
    """
    return f"{namespace}/d/{generation:016x}/{writer:08x}/{number:08x}".encode()


def parse_numbers(namespace: str, key: bytes) -> tuple[int, ...] | None:
    """Return the numbers in a key, its generation first, or None for another kind of key.

    Examples
    --------
    >>> parse_numbers("run", b"run/t/000000000000000a/00000003/00000102/00000001")
    (10, 3, 258, 1)
    """
    found = re.fullmatch(
        re.escape(f"{namespace}/").encode() + rb"[a-z]/([0-9a-f]{16}(?:/[0-9a-f]{8}){0,3})", key
    )
    return tuple(int(number, 16) for number in found[1].split(b"/")) if found else None


def is_nested(namespace: str, key: bytes) -> bool:
    """Return whether a key belongs to a namespace whose name begins with this one and a slash.

    Examples
    --------
    >>> is_nested("run", b"run/t/HEAD"), is_nested("run", b"run/t/m/000000000000000a")
    (True, True)
    >>> is_nested("run", b"run/m/000000000000000a")
    False
    """
    numbers = rb"[a-z]/[0-9a-f]{16}(?:/[0-9a-f]{8}){0,3}"
    pattern = re.escape(f"{namespace}/").encode() + rb".+/(?:HEAD|NEXT|" + numbers + rb")"
    return re.fullmatch(pattern, key) is not None and parse_numbers(namespace, key) is None


def generation_prefixes(namespace: str, generation: int) -> tuple[bytes, ...]:
    """Return the prefixes of all keys of a generation, its manifest first."""
    data = (f"{namespace}/{letter}/{generation:016x}/".encode() for letter in LETTERS[1:])
    return (manifest(namespace, generation), *data)


class PartName(NamedTuple):
    """A parsed name of a part.

    Examples
    --------
    >>> name = PartName.of("run", 7, 255, 3, "00c0ffee", "t")
    >>> name.text, PartName.parse(name.text) == name
    ('fb4b0d4947c68395-7-ff-3-00c0ffee-t', True)
    """

    namespace: str
    generation: int
    save: int
    writer: int
    attempt: str
    kind: str

    @staticmethod
    def of(
        namespace: str, generation: int, save: int, writer: int, attempt: str, kind: str
    ) -> PartName:
        """Return the name of a part of a save to a namespace."""
        return PartName(_hash(namespace), generation, save, writer, attempt, kind)

    @staticmethod
    def parse(text: str) -> PartName | None:
        """Parse a name; return None for a part that windeck.checkpoint did not write."""
        found = re.fullmatch(_PART_NAME, text)
        if found is None:
            return None
        generation, save, writer = (int(found[i], 16) for i in (2, 3, 4))
        return PartName(found[1], generation, save, writer, found[5], found[6])

    @property
    def text(self) -> str:
        """Name of the part in the store."""
        numbers = f"{self.generation:x}-{self.save:x}-{self.writer:x}"
        return f"{self.namespace}-{numbers}-{self.attempt}-{self.kind}"


def has_parts(store: object) -> TypeGuard[PartStore]:
    """Return True if a store can ingest parts of other processes."""
    return hasattr(store, "ingest_parts")


def list_parts(store: Store, namespace: str, *, unfinished: bool = False) -> list[PartName]:
    """Return the parts of a namespace that were not ingested; none for a store without parts.

    With `unfinished`, include parts that are being written or whose writer was killed.
    """
    if not has_parts(store):
        return []
    found = (PartName.parse(text) for text in store.parts(unfinished=unfinished))
    return [name for name in found if name is not None and name.namespace == _hash(namespace)]


def drop_parts(store: Store, names: Iterable[PartName]) -> None:
    """Remove parts, including unfinished ones."""
    texts = [name.text for name in names]
    if texts and has_parts(store):
        store.drop_parts(texts)


def has_segments(store: object) -> TypeGuard[ObjectStore]:
    """Return True if a store holds copies of checkpoints in segments."""
    return hasattr(store, "write_segments")


def segment_group(namespace: str, generation: int, save: int) -> str:
    """Return what the names of the segments of a save begin with.

    Examples
    --------
    >>> segment_group("run", 10, 255)
    'fb4b0d4947c68395-000000000000000a-00000000000000ff'
    """
    return f"{_hash(namespace)}-{generation:016x}-{save:016x}"


def segment_generation(namespace: str, name: str) -> int | None:
    """Return the generation of a segment, or None for one of another namespace.

    Examples
    --------
    >>> segment_generation("run", segment_group("run", 10, 255) + "-00c0ffee")
    10
    """
    found = re.fullmatch(_hash(namespace) + r"-([0-9a-f]{16})-[0-9a-f]{16}-[0-9a-f]+", name)
    return int(found[1], 16) if found else None


def _hash(namespace: str) -> str:
    return blake2b(namespace.encode(), digest_size=8).hexdigest()
