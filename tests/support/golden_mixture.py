"""Golden values of mixtures: slots, seeds of parts, and a schedule.

``python tests/support/golden_mixture.py > tests/golden/mixture_v1.json`` writes them. They change
with `ORDER_VERSION` only, because saved positions depend on them.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from models.oracle import Numbers
from windeck import Mixture

#: Weights of each mixture, and of the entries of its schedule.
WAYS: dict[str, tuple[list[float], list[tuple[int, list[float]]]]] = {
    "exact": ([0.7, 0.2, 0.1], []),
    "single": ([3], []),
    "even": ([1, 1, 1, 1, 1, 1, 1], []),
    "rounded": ([0.7001, 0.2003, 0.0996], []),
    "lifted": ([1, 1e-6, 0, 1e-9], []),
    "scheduled": ([2, 1, 0], [(33, [1, 0, 3]), (1001, [0.12345, 0.5, 0.37655])]),
    "tokens": ([627.3e9, 1.2e12, 3.4e9, 88e9], []),
    "digits": ([0.09003057317038046, 0.24472847105479767, 0.6652409557748219], []),
    "many": ([1 / n for n in range(1, 101)], []),
}
FAR = 10**15


def weights(values: list[float]) -> dict[str, float]:
    return {f"part {number}": value for number, value in enumerate(values)}


def golden(way: str) -> dict[str, Any]:
    """Return the first slots, a digest of over two periods, far positions, and the parts' seeds."""
    first, schedule = WAYS[way]
    parts = {name: (Numbers(100), weight) for name, weight in weights(first).items()}
    entries = [(at, weights(changed)) for at, changed in schedule]
    mixture = Mixture(parts, seed=7, schedule=entries)
    part, number = mixture.locate(np.arange(10_000))
    far = mixture.locate(np.arange(FAR, FAR + 8))
    streams: dict[str, Any] = mixture.parts
    text = " ".join(f"{p}:{n}" for p, n in zip(part.tolist(), number.tolist(), strict=True))
    return {
        "parts": part[:40].tolist(),
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "far": [values.tolist() for values in far],
        "seeds": [streams[name].seed for name in mixture.names],
    }


if __name__ == "__main__":
    print(json.dumps({way: golden(way) for way in WAYS}, indent=1))
