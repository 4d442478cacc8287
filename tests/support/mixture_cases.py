"""Mixtures for tests, with parts of `packed_model`."""

from __future__ import annotations

from typing import Any

from models.packed_model import Packed
from windeck import Mixture

C4, WIKI, BOOKS = [3, 9, 1, 6, 2, 7], [5, 5, 4], [13, 1, 1, 20]


def packed_parts(**options: Any) -> dict[str, Packed]:
    return {
        "c4": Packed(C4, name="c4", **options),
        "wiki": Packed(WIKI, name="wiki", salt=10**5, **options),
        "books": Packed(BOOKS, name="books", salt=2 * 10**5, **options),
    }


def mixed(weights: dict[str, Any], seed: int = 0, **options: Any) -> Mixture:
    parts = packed_parts()
    return Mixture({name: (parts[name], w) for name, w in weights.items()}, seed=seed, **options)
