"""The names of the parts that writers leave beside an embedded database.

``<namespace>-<generation>-<save>-<writer>-<attempt>-<kind>``: the first is a hash, the others are
hexadecimal. The kind is the letter of the keys, and for the writer's manifest, which is written
last, ``s`` and the letters of those before it: an attempt without it was not finished.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

from windeck.checkpoint.stores import PartStore, Store

__all__ = ["PartName", "drop_parts", "has_parts", "parts_of"]

_PATTERN = re.compile(
    r"([0-9a-f]{16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,8})-([0-9a-f]{8})-([a-z]{1,9})"
)


class PartName(NamedTuple):
    """A name, taken apart.

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
        """That of a part of a save to a namespace."""
        return PartName(_hash(namespace), generation, save, writer, attempt, kind)

    @staticmethod
    def parse(text: str) -> PartName | None:
        """None for the name of a part that no save of ours writes."""
        found = _PATTERN.fullmatch(text)
        if found is None:
            return None
        generation, save, writer = (int(found[i], 16) for i in (2, 3, 4))
        return PartName(found[1], generation, save, writer, found[5], found[6])

    @property
    def text(self) -> str:
        """As the store knows it."""
        numbers = f"{self.generation:x}-{self.save:x}-{self.writer:x}"
        return f"{self.namespace}-{numbers}-{self.attempt}-{self.kind}"


def has_parts(store: object) -> TypeGuard[PartStore]:
    """Whether other processes hand a store parts."""
    return hasattr(store, "ingest_parts")


def parts_of(store: Store, namespace: str, *, unfinished: bool = False) -> list[PartName]:
    """The parts written for a namespace and not taken in; none where the store has no parts.

    With `unfinished`, also those that are being written, or whose writer was killed.
    """
    if not has_parts(store):
        return []
    found = (PartName.parse(text) for text in store.parts(unfinished=unfinished))
    return [name for name in found if name is not None and name.namespace == _hash(namespace)]


def drop_parts(store: Store, names: Iterable[PartName]) -> None:
    """Remove parts, and what is left of those that were not finished."""
    gone = [name.text for name in names]
    if gone and has_parts(store):
        store.drop_parts(gone)


def _hash(namespace: str) -> str:
    return hashlib.blake2b(namespace.encode(), digest_size=8).hexdigest()
