"""Keys of a checkpoint in a store: a namespace, a letter for the kind, numbers of fixed width.

=============================================  ===================================================
``ns/HEAD``                                    which generation is in force
``ns/NEXT``                                    the next number of a generation
``ns/m/<generation>``                          the manifest of a generation
``ns/s/<generation>/<writer>``                 what one writer wrote
``ns/t/<generation>/<writer>/<object>/<n>``    chunk n of a tensor
``ns/e/<generation>/<writer>/<object>/<n>``    block n of a table's rows
``ns/i/<generation>/<writer>/<object>/<n>``    value n of the index of these blocks
``ns/d/<generation>/<writer>/<n>``             value n of the digests of a writer's chunks
=============================================  ===================================================

Numbers are hexadecimal, so keys sort as the numbers do. There are no braces: in a Redis Cluster the
whole key is the hash tag, each chunk is alone in its slot, and a checkpoint spreads over all
servers. `ns/HEAD` and `ns/NEXT` alone are compared and set, each by itself.
"""

from __future__ import annotations

import re

__all__ = [
    "LETTERS",
    "block",
    "check_namespace",
    "chunk",
    "digests",
    "generation_of",
    "generations",
]
__all__ += ["head", "index", "manifest", "next_generation", "numbers", "of_generation", "shard"]

#: Of all that belongs to a generation, its manifest first.
LETTERS = "msdeit"
_NAMESPACE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/")


def check_namespace(namespace: str) -> str:
    """The namespace itself; ValueError if it cannot be one.

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
    return namespace


def head(namespace: str) -> bytes:
    """The key of the record that says which generation is in force."""
    return f"{namespace}/HEAD".encode()


def next_generation(namespace: str) -> bytes:
    """The key of the record that deals out the numbers of generations."""
    return f"{namespace}/NEXT".encode()


def manifest(namespace: str, generation: int) -> bytes:
    """The key of a generation's manifest.

    Examples
    --------
    >>> manifest("run", 10)
    b'run/m/000000000000000a'
    """
    return f"{namespace}/m/{generation:016x}".encode()


def generations(namespace: str) -> bytes:
    """What the keys of all manifests begin with."""
    return f"{namespace}/m/".encode()


def generation_of(namespace: str, key: bytes) -> int | None:
    """The generation whose manifest a key is; None for a key that is none's.

    Examples
    --------
    >>> generation_of("run", b"run/m/000000000000000a")
    10
    """
    found = re.fullmatch(re.escape(f"{namespace}/m/").encode() + rb"([0-9a-f]{16})", key)
    return int(found[1], 16) if found else None


def shard(namespace: str, generation: int, writer: int) -> bytes:
    """The key of what one writer says it wrote.

    Examples
    --------
    >>> shard("run", 10, 3)
    b'run/s/000000000000000a/00000003'
    """
    return f"{namespace}/s/{generation:016x}/{writer:08x}".encode()


def chunk(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """The key of chunk `number` of the tensor that a writer numbered `item`.

    Examples
    --------
    >>> chunk("run", 10, 3, 258, 1)
    b'run/t/000000000000000a/00000003/00000102/00000001'
    """
    return f"{namespace}/t/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def block(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """The key of block `number` of the table that a writer numbered `item`.

    Examples
    --------
    >>> block("run", 10, 3, 258, 1)
    b'run/e/000000000000000a/00000003/00000102/00000001'
    """
    return f"{namespace}/e/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def index(namespace: str, generation: int, writer: int, item: int, number: int) -> bytes:
    """The key of value `number` of the index of a table's blocks.

    Examples
    --------
    >>> index("run", 10, 3, 258, 0)
    b'run/i/000000000000000a/00000003/00000102/00000000'
    """
    return f"{namespace}/i/{generation:016x}/{writer:08x}/{item:08x}/{number:08x}".encode()


def digests(namespace: str, generation: int, writer: int, number: int) -> bytes:
    """The key of value `number` of the digests of what a writer's chunks hold.

    Examples
    --------
    >>> digests("run", 10, 3, 0)
    b'run/d/000000000000000a/00000003/00000000'
    """
    return f"{namespace}/d/{generation:016x}/{writer:08x}/{number:08x}".encode()


def numbers(namespace: str, key: bytes) -> tuple[int, ...] | None:
    """The numbers in a key, its generation first; None for a key that none of ours could be.

    Examples
    --------
    >>> numbers("run", b"run/t/000000000000000a/00000003/00000102/00000001")
    (10, 3, 258, 1)
    """
    found = re.fullmatch(
        re.escape(f"{namespace}/").encode() + rb"[a-z]/([0-9a-f]{16}(?:/[0-9a-f]{8}){0,3})", key
    )
    return tuple(int(number, 16) for number in found[1].split(b"/")) if found else None


def of_generation(namespace: str, generation: int) -> tuple[bytes, ...]:
    """What the keys of a generation begin with, its manifest first: without it there is none."""
    data = (f"{namespace}/{letter}/{generation:016x}/".encode() for letter in LETTERS[1:])
    return (manifest(namespace, generation), *data)
