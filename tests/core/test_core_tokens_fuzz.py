"""TokenShard and Cumulative under random input: always an exception or the right answer.

Much of what is thrown at them is wrong in some way. A crash would end the test run.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from core.test_core_fuzz import answers, fuzzed, number
from models import token_model as model
from models.token_model import INTEGERS
from windeck._core import Cumulative, TokenShard

JUNK: list[Any] = [None, 0, -1, 2**70, 1.5, "x", b"x", [], [1], (), {}, object(), True, [[1], 2]]


def junk(rng: np.random.Generator, value: Any, odds: float = 0.03) -> Any:
    return JUNK[int(rng.integers(len(JUNK)))] if rng.random() < odds else value


def filters(rng: np.random.Generator) -> dict[str, Any]:
    strip = rng.integers(-2, 4, int(rng.integers(0, 3)))
    return {
        "strip": junk(rng, fuzzed(rng, strip)),
        "min_length": junk(rng, number(rng, 0, 3)),
        "name": junk(rng, "it"),
    }


def documents_of(values: Any, offsets: Any) -> list[list[int]]:
    tokens, edges = np.asarray(values).tolist(), np.asarray(offsets).tolist()
    return [tokens[a:b] for a, b in itertools.pairwise(edges)]


def try_arrays(rng: np.random.Generator) -> str:
    dtype = str(rng.choice(INTEGERS))
    values = fuzzed(rng, rng.integers(0, 4, int(rng.integers(0, 20))).astype(dtype))
    edges = np.sort(rng.integers(0, np.size(values) + 1, int(rng.integers(1, 6))))
    for place in range(len(edges)):
        edges[place] = edges[place] if rng.random() < 0.95 else number(rng, -1, 25)
    edges = fuzzed(rng, edges)
    values, edges, options = junk(rng, values), junk(rng, edges), filters(rng)
    shard = TokenShard.from_arrays(values, edges, **options)
    return checked(rng, shard, documents_of(values, edges), str(values.dtype), options)


def checked(
    rng: np.random.Generator, shard: Any, raw: Any, dtype: str, options: dict[str, Any]
) -> str:
    strip = [] if options["strip"] is None else np.asarray(options["strip"]).tolist()
    model.assert_equals(shard, raw, dtype, strip, options["min_length"])
    shard.document(junk(rng, number(rng, -1, len(shard) + 1), 0.2))
    shard.lengths(junk(rng, fuzzed(rng, np.empty(len(shard), np.int64)), 0.2))
    return "equal"


def stretched(rng: np.random.Generator, addresses: list[int], size: int) -> tuple[Any, ...]:
    """A region near the buffers, which they may lie in, or reach over."""
    low = min(addresses, default=0) - int(rng.integers(-3, 9)) * 8
    high = max(addresses, default=0) + size + int(rng.integers(-9, 9)) * 8
    return max(low, 0), high - low, number(rng, -1, 0)


def try_stream(rng: np.random.Generator) -> str:
    dtype = str(rng.choice(INTEGERS))
    lists = bool(rng.random() < 0.7)
    kind = pa.type_for_alias(dtype)
    rows: list[Any] = [rng.integers(0, 4, int(n)).tolist() for n in rng.integers(0, 5, 6)]
    if lists:
        rows = [row if rng.random() < 0.9 else None for row in rows]
        form = (pa.list_, pa.large_list)[int(rng.integers(2))](kind)
        column = pa.chunked_array([pa.array(rows[:4], form), pa.array(rows[4:], form)])
    else:
        column = pa.chunked_array([pa.array(row, kind) for row in rows])
    if rng.random() < 0.1:
        column = pa.chunked_array([["a"], ["b"]] if rng.random() < 0.5 else [[0.5]])
    buffers = [b for chunk in column.chunks for b in chunk.buffers() if b and b.size]
    region = None
    if rng.random() < 0.5:
        region = stretched(rng, [b.address for b in buffers], max(b.size for b in buffers))
    options = filters(rng)
    shard = TokenShard.from_stream(
        junk(rng, column), region=junk(rng, region), owner=column, **options
    )
    return checked(rng, shard, [row or [] for row in rows], dtype, options)


def try_cumulative(rng: np.random.Generator) -> str:
    sizes = np.array([number(rng, 0, 5) for _ in range(int(rng.integers(0, 7)))], np.int64)
    found = Cumulative(junk(rng, fuzzed(rng, sizes)))
    total = found.total
    positions = np.array([number(rng, 0, max(min(total, 2**40), 1)) for _ in range(4)])
    positions = junk(rng, fuzzed(rng, positions))
    part, within = found.find(positions)
    assert (found.before(part) + within == positions).all()
    assert (found.before(part + 1) > positions).all()
    found.before(junk(rng, fuzzed(rng, part)))
    return "equal"


def test_random_input_is_answered_or_refused() -> None:
    for attempt in (try_arrays, try_stream, try_cumulative):
        told = answers(lambda seed: attempt(np.random.default_rng(seed)), range(4000))  # noqa: B023
        assert told["equal"] > 400
        assert told["TypeError"] > 50
        assert told["ValueError"] > 50
