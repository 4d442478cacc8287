"""The keys of checkpoints in a store, as tests look for them."""

from __future__ import annotations

from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import View

__all__ = ["data_generations", "data_keys", "data_pairs", "parsed"]


def data_keys(store: View, letter: str, namespace: str = "windeck") -> list[bytes]:
    """Return the keys of all data of a letter, ascending."""
    found = ((key, keys.parse(namespace, key)) for key in store.keys(f"~{namespace}~".encode()))
    return [key for key, parsed in found if parsed is not None and parsed[0] == letter]


def data_pairs(store: View, letter: str, namespace: str = "windeck") -> list[tuple[bytes, bytes]]:
    """Return the keys and values of all data of a letter, ascending."""
    names = data_keys(store, letter, namespace)
    return [(key, value or b"") for key, value in zip(names, store.get_many(names), strict=True)]


def data_generations(store: View, letter: str = "t", namespace: str = "windeck") -> set[int]:
    """Return the generations that have data of a letter."""
    parsed = (keys.parse(namespace, key) for key in data_keys(store, letter, namespace))
    return {found[1][0] for found in parsed if found is not None}


def parsed(key: bytes, namespace: str = "windeck") -> tuple[str, int]:
    """Return the letter and the generation of a key; of HEAD, NEXT and other keys "" and 0."""
    letter, numbers = keys.parse(namespace, key) or ("", (0,))
    return letter, numbers[0]
