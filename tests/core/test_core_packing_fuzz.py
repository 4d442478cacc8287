"""Random input to the native calls of packing: answered, or refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.test_core_fuzz import answers
from core.test_core_packing import shard_of
from windeck import _core

Array = np.ndarray[Any, Any]
HUGE = [2**31, 2**45, 2**62, 2**63 - 1]


def number(rng: np.random.Generator, low: int, high: int) -> int:
    if rng.random() < 0.03:
        return int(rng.choice([-1, 1])) * int(rng.choice(HUGE))
    return int(rng.integers(low, high))


def numbers(rng: np.random.Generator, count: int, low: int, high: int) -> Array:
    array = np.array([number(rng, low, high) for _ in range(count)], np.int64)
    return array.astype("int32") if rng.random() < 0.03 else array


def thrown_at_random(seed: int) -> str:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, 99, rng.integers(0, 9)).tolist() for _ in range(rng.integers(5))]
    shard = shard_of(*documents, dtype=str(rng.choice(["uint8", "int64", "uint16"])))
    options = {"seed": number(rng, 0, 9)} if rng.random() < 0.5 else {}
    run = _core.DocumentRun(shard, bos=number(rng, 0, 9), **options)
    rows = int(rng.integers(0, 4))
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 3, rows))])
    if rng.random() < 0.1:
        offsets = numbers(rng, rows + 1, 0, 3)
    pieces = int(offsets[-1]) if 0 <= offsets[-1] < 99 else 3
    batch = _core.pack(
        [run] * int(rng.integers(1, 3)),
        offsets,
        numbers(rng, pieces, 0, 2),
        numbers(rng, pieces, 0, 5),
        numbers(rng, pieces, 0, 5),
        sequence_length=int(rng.integers(1, 12)),
        pad=number(rng, 0, 9) if rng.random() < 0.9 else None,
        threads=number(rng, 1, 4),
    )
    assert batch["tokens"].shape == (len(offsets) - 1, batch["position_ids"].shape[1] + 1)
    return "served"


def test_random_input_is_answered_or_refused() -> None:
    told = answers(thrown_at_random, range(5000))
    assert told["served"] > 1000
    assert told["ValueError"] > 500
