"""Keys of a checkpoint in a store, and names of the parts of an embedded database.

A key has a namespace, a letter for the kind of value, and numbers of fixed width.

=============================================  ===================================================
``ns/HEAD``                                    the committed generations, the current one first
``ns/NEXT``                                    the number of the next generation
``ns/m/<generation>``                          the manifest of a generation
``ns/s/<generation>/<writer>``                 the manifest of one writer
``ns/i/<generation>/<writer>/<object>/<n>``    value n of the index of a table's blocks
``~ns~<generation>/d/<writer>/<n>``            value n of the digests of a writer's chunks
``~ns~<generation>/e/<writer>/<object>/<n>``   block n of a table's rows
``~ns~<generation>/t/<writer>/<object>/<n>``   chunk n of a tensor
=============================================  ===================================================

Small keys, which every save writes, sort before the data of all namespaces, since a namespace has
no ``~`` and no character after it. So an engine that merges small keys has no data between them.
The data of a generation are one range of keys, without keys of another namespace.

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

__all__ = ["LETTERS", "SMALL_LETTERS", "PartName", "block", "check_namespace", "chunk"]
__all__ += ["data_prefix", "digests", "drop_parts", "has_parts", "has_segments", "head", "index"]
__all__ += ["is_nested", "kind_prefix", "list_parts", "make", "manifest", "next_generation"]
__all__ += ["parse", "prefix", "segment_generation", "segment_group", "shard"]

#: The letters of the small keys of a generation, its manifest first.
SMALL_LETTERS = "msi"
#: The letters of the keys of a generation, its manifest first.
LETTERS = SMALL_LETTERS + "det"
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
    b'~run~000000000000000a/d/00000003/00000000'
    """
    return f"~{namespace}~{generation:016x}/d/{writer:08x}/{number:08x}".encode()


def block(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """Return the key of block `number` of table `item` of a writer.

    Examples
    --------
    >>> block("run", 10, 3, 258, 1)
    b'~run~000000000000000a/e/00000003/00000102/00000001'
    """
    return f"~{namespace}~{generation:016x}/e/{writer:08x}/{item:08x}/{number:08x}".encode()


def chunk(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """Return the key of chunk `number` of tensor `item` of a writer.

    Examples
    --------
    >>> chunk("run", 10, 3, 258, 1)
    b'~run~000000000000000a/t/00000003/00000102/00000001'
    """
    return f"~{namespace}~{generation:016x}/t/{writer:08x}/{item:08x}/{number:08x}".encode()


def make(namespace: str, letter: str, generation: int, *numbers: int) -> bytes:
    """Return the key of a letter and numbers; the inverse of `parse`.

    Examples
    --------
    >>> make("run", "t", 10, 3, 258, 1)
    b'~run~000000000000000a/t/00000003/00000102/00000001'
    """
    rest = "".join(f"/{number:08x}" for number in numbers)
    if letter in SMALL_LETTERS:
        return f"{namespace}/{letter}/{generation:016x}{rest}".encode()
    return f"~{namespace}~{generation:016x}/{letter}{rest}".encode()


def parse(namespace: str, key: bytes) -> tuple[str, tuple[int, ...]] | None:
    """Return the letter and the numbers of a key, its generation first; None for another key.

    Examples
    --------
    >>> parse("run", b"~run~000000000000000a/t/00000003/00000102/00000001")
    ('t', (10, 3, 258, 1))
    """
    size = len(namespace) + 2
    if key[:size] == b"~%s~" % namespace.encode():
        found = re.fullmatch(rb"([0-9a-f]{16})/([a-z])((?:/[0-9a-f]{8}){0,3})", key[size:])
        if found is None:
            return None
        letter, numbers = found[2], found[1] + found[3]
    else:
        found = re.fullmatch(rb"([a-z])/([0-9a-f]{16}(?:/[0-9a-f]{8}){0,3})", key[size - 1 :])
        if found is None or key[: size - 1] != f"{namespace}/".encode():
            return None
        letter, numbers = found[1], found[2]
    return letter.decode(), tuple(int(number, 16) for number in numbers.split(b"/"))


def prefix(namespace: str, letter: str, generation: int) -> bytes:
    """Return the prefix of all keys of a letter and a generation that have more numbers.

    Examples
    --------
    >>> prefix("run", "s", 10), prefix("run", "d", 10)
    (b'run/s/000000000000000a/', b'~run~000000000000000a/d/')
    """
    return make(namespace, letter, generation) + b"/"


def data_prefix(namespace: str, generation: int) -> bytes:
    """Return the prefix of all data of a generation.

    Examples
    --------
    >>> data_prefix("run", 10)
    b'~run~000000000000000a/'
    """
    return f"~{namespace}~{generation:016x}/".encode()


def kind_prefix(namespace: str, letter: str) -> bytes:
    """Return the prefix, up to the generation, of the keys of a letter. Data have the same one.

    Examples
    --------
    >>> kind_prefix("run", "m"), kind_prefix("run", "t")
    (b'run/m/', b'~run~')
    """
    return (f"{namespace}/{letter}/" if letter in SMALL_LETTERS else f"~{namespace}~").encode()


def is_nested(namespace: str, key: bytes) -> bool:
    """Return whether a key belongs to a namespace whose name begins with this one and a slash.

    Examples
    --------
    >>> is_nested("run", b"run/s/HEAD"), is_nested("run", b"run/s/m/000000000000000a")
    (True, True)
    >>> is_nested("run", b"run/m/000000000000000a")
    False
    """
    numbers = rb"[a-z]/[0-9a-f]{16}(?:/[0-9a-f]{8}){0,3}"
    pattern = re.escape(f"{namespace}/").encode() + rb".+/(?:HEAD|NEXT|" + numbers + rb")"
    return re.fullmatch(pattern, key) is not None and parse(namespace, key) is None


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
    """Return the prefix of the names of the segments of a save.

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
