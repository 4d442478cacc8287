"""Slices of columns as values, against joins of bytes and sums of the whole."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from windeck._core import crc32c, crc32c_slices


def model(
    fronts: list[bytes], columns: list[Any], stops: list[int], body: Any, body_stops: list[int]
) -> list[tuple[bytes, int, int]]:
    found = []
    places = zip(pairwise([0, *stops]), pairwise([0, *body_stops]), strict=True)
    for front, ((start, stop), (first, end)) in zip(fronts, places, strict=True):
        head = front + b"".join(column[start:stop].tobytes() for column in columns)
        head += bytes(-len(head) % 8)
        rows = body[first:end].tobytes()
        found.append((head, crc32c(head + rows), crc32c(rows)))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_slices_equal_the_model(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.choice([0, 1, 2, 9])
    stops = np.cumsum([draw.choice([0, 1, 3, 700]) for _ in range(count)]).tolist()
    ends = np.cumsum([draw.choice([0, 1, 5]) for _ in range(count)]).tolist()
    size, rows = [*stops, 0][count - 1] if count else 0, ends[-1] if count else 0
    bits = np.random.default_rng(seed)
    columns = [bits.integers(0, 99, size).astype(kind) for kind in ("i8", "u1", "f4")]
    columns = draw.sample(columns, draw.randrange(4))
    body = bits.random((rows, draw.choice([1, 1000])), np.float32)
    fronts = [bytes(range(draw.choice([0, 5, 24]))) for _ in range(count)]
    found = crc32c_slices(fronts, columns, stops, body, ends)
    assert found == model(fronts, columns, stops, body, ends)


def test_what_does_not_fit_is_refused() -> None:
    eight = bytes(8)
    cases: list[tuple[tuple[Any, ...], type[Exception], str]] = [
        (([b""], [eight], [3], b"", [0]), ValueError, "has 8 bytes, expected a multiple of its 3"),
        (([b""], [eight], [0], b"", [0]), ValueError, "has 8 bytes, expected a multiple of its 0"),
        (([b""], [eight], [8], b"x", [0]), ValueError, "has 1 bytes, expected a multiple of its 0"),
        (([b""], [eight], [], b"", [0]), ValueError, "stops has 0 numbers, expected 1 as there"),
        (([b""], [eight], [8], b"", [0, 1]), ValueError, "body_stops has 2 numbers, expected 1"),
        (([b"", b""], [eight], [8, 4], b"", [0, 0]), ValueError, "stops has 4 after 8, expected"),
        (([b""], [eight], [-8], b"", [0]), ValueError, "stops is -8, expected"),
        (([b""], [eight], [8.0], b"", [0]), TypeError, "stops is of type float, expected"),
        (([b""], [np.zeros(8)[::2]], [4], b"", [0]), ValueError, "the buffer is strided"),
        (([b""], [8], [8], b"", [0]), TypeError, "buffer is of type int, expected bytes"),
        ((["x"], [eight], [8], b"", [0]), TypeError, "a front is of type str, expected bytes"),
    ]
    for given, kind, message in cases:
        with pytest.raises(kind, match=message):
            crc32c_slices(*given)
