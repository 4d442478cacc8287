"""Tests of searches, statistics and differences of every dtype, with numbers decoded bit by bit.

The model uses Python's integers and fractions only, neither NumPy nor torch. Half of the codes are
special: zeros of either sign, least and greatest numbers, infinities, NaNs. The others are random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch

from windeck import checkpoint
from windeck.checkpoint import search
from windeck.checkpoint.format import find_commit, read_manifest
from windeck.checkpoint.read import tensor_statistics
from windeck.checkpoint.stores import Store, open_store

#: bits of the exponent, of the fraction, bias, and what the topmost codes mean
FLOATS = {
    "float64": (11, 52, 1023, "ieee"),
    "float32": (8, 23, 127, "ieee"),
    "float16": (5, 10, 15, "ieee"),
    "bfloat16": (8, 7, 127, "ieee"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fn": (4, 3, 7, "finite"),
    "float8_e5m2fnuz": (5, 2, 16, "unsigned zero"),
    "float8_e4m3fnuz": (4, 3, 8, "unsigned zero"),
}
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
SHAPE = (7, 9, 5)
COUNT = math.prod(SHAPE)


def width(name: str) -> int:
    """Return the bits of an element, or of one part of a complex element."""
    name = COMPLEX.get(name, name)
    if name in FLOATS:
        return 1 + sum(FLOATS[name][:2])
    return 8 if name == "bool" else int(name.lstrip("uint"))


def number(name: str, code: int) -> Any:
    """Return the value that the bits encode."""
    if name == "bool":
        return bool(code)
    bits = width(name)
    if name not in FLOATS:
        return code - (1 << bits) if name[0] == "i" and code >> (bits - 1) else code
    exponent_bits, fraction_bits, bias, kind = FLOATS[name]
    sign = -1 if code >> (bits - 1) else 1
    top = (1 << exponent_bits) - 1
    exponent, fraction = code >> fraction_bits & top, code & ((1 << fraction_bits) - 1)
    if kind == "ieee" and exponent == top:
        return math.nan if fraction else sign * math.inf
    if kind == "finite" and exponent == top and fraction + 1 == 1 << fraction_bits:
        return math.nan
    if kind == "unsigned zero" and code == 1 << (bits - 1):
        return math.nan
    if exponent:
        fraction += 1 << fraction_bits
    value = Fraction(fraction, 1 << fraction_bits) * Fraction(2) ** (max(exponent, 1) - bias)
    return math.copysign(float(value), sign)


def edges(name: str) -> list[int]:
    if name == "bool":
        return [0, 1]
    bits = width(name)
    if name not in FLOATS:
        return [0, 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << bits) - 1]
    top, fraction_bits = (1 << FLOATS[name][0]) - 1, FLOATS[name][1]
    exponents, fractions = (0, 1, FLOATS[name][2], top - 1, top), (0, 1, (1 << fraction_bits) - 1)
    found = [e << fraction_bits | f for e, f in product(exponents, fractions)]
    return found + [1 << (bits - 1) | code for code in found]


class Column:
    """A tensor, its codes and its numbers."""

    def __init__(self, name: str, codes: list[int]) -> None:
        part = COMPLEX.get(name, name)
        raw = b"".join(code.to_bytes(width(name) // 8, "little") for code in codes)
        self.tensor = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        self.tensor = self.tensor.view(getattr(torch, name)).reshape(SHAPE)
        self.codes: list[Any] = codes
        self.numbers: list[Any] = [number(part, code) for code in codes]
        if name in COMPLEX:
            self.codes = list(zip(codes[::2], codes[1::2], strict=True))
            self.numbers = [complex(*self.numbers[i : i + 2]) for i in range(0, 2 * COUNT, 2)]


def codes(name: str, picked: random.Random) -> list[int]:
    part = COMPLEX.get(name, name)
    some, most = edges(part), 1 if name == "bool" else (1 << width(name)) - 1
    count = COUNT * (1 + (name in COMPLEX))
    return [picked.choice(some) if picked.random() < 0.5 else picked.randint(0, most)
            for _ in range(count)]  # fmt: skip


def magnitude(value: Any) -> Any:
    if not isinstance(value, complex):
        return abs(value)
    return math.nan if is_nan(value) else math.hypot(value.real, value.imag)


def is_nan(value: Any) -> bool:
    if isinstance(value, complex):
        return value.real != value.real or value.imag != value.imag
    return bool(value != value)


def place(at: int) -> tuple[int, ...]:
    return at // 45, at // 5 % 9, at % 5


@pytest.fixture(params=[*FLOATS, *WHOLE, *COMPLEX])
def case(request: pytest.FixtureRequest) -> Iterator[tuple[str, Store, Column, Column]]:
    """Return a dtype, a store with two generations, and the columns of each."""
    name, picked = request.param, random.Random(request.param)
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    first = codes(name, picked)
    second = [old if picked.random() < 0.8 else new
              for old, new in zip(first, codes(name, picked), strict=True)]  # fmt: skip
    columns = Column(name, first), Column(name, second)
    with open_store("memory://") as store:
        for step, column in enumerate(columns):
            checkpoint.save(
                store, step=step, model={"w": column.tensor}, chunk_bytes=(96, 128)[step]
            )
        yield (name, store, *columns)


def test_search(case: tuple[str, Store, Column, Column]) -> None:
    name, store, column, _ = case
    tests: dict[str, Callable[[Any], bool]] = {
        "nan": is_nan,
        "not nan": lambda v: not is_nan(v),
        "inf": lambda v: math.isinf(magnitude(v)),
        "finite": lambda v: math.isfinite(magnitude(v)),
        "abs == 0": lambda v: v == 0,
        "abs > 0": lambda v: magnitude(v) > 0,
        "value == -0.0": lambda v: v == 0,
        "value == 1": lambda v: v == 1,
        "value != 1": lambda v: v != 1,
    }
    if name not in COMPLEX:
        for bound in (0, 1, -1, 0.5):
            tests |= {
                f"value < {bound}": lambda v, b=bound: v < b,  # type: ignore[misc]
                f"value >= {bound}": lambda v, b=bound: v >= b,  # type: ignore[misc]
                f"abs <= {bound} or nan": lambda v, b=bound: abs(v) <= b or v != v,  # type: ignore[misc]
            }
    for text, test in tests.items():
        found = next(search(store, text, generation=1, limit=COUNT))
        wanted = [(place(i), v) for i, v in enumerate(column.numbers) if test(v)]
        assert repr([(one.index, one.value) for one in found.matches]) == repr(wanted), text
        assert (found.count, found.elements, found.skipped) == (len(wanted), COUNT, "")


def test_statistics(case: tuple[str, Store, Column, Column]) -> None:
    name, store, column, _ = case
    manifest = read_manifest(store, "windeck", find_commit(store, "windeck", 1))
    told = tensor_statistics(store, "windeck", manifest["tensors"]["model/w"], bins=20, largest=4)
    values = [magnitude(v) for v in column.numbers] if name in COMPLEX else column.numbers
    values = [*map(int, values)] if name == "bool" else values
    finite = [(i, v) for i, v in enumerate(values) if math.isfinite(v)]
    assert told["count"] == COUNT
    assert told["nan"] == sum(map(is_nan, values))
    assert told["positive_infinite"] == values.count(math.inf)
    assert told["negative_infinite"] == values.count(-math.inf)
    assert told["zeros"] == sum(v == 0 for v in values)
    assert told["min"] == pytest.approx(min(v for _, v in finite), rel=1e-15, abs=0)
    assert told["max"] == pytest.approx(max(v for _, v in finite), rel=1e-15, abs=0)
    exact = [Fraction(v) for _, v in finite]
    mean = sum(exact) / len(exact)
    most = float(max(map(abs, exact)))
    assert told["mean"] == pytest.approx(float(mean), rel=1e-9, abs=1e-12 * most)
    try:
        deviation = math.sqrt(sum((v - mean) ** 2 for v in exact) / len(exact))
    except OverflowError:
        deviation = math.inf
    assert told["std"] == pytest.approx(deviation, rel=1e-9)
    assert sum(told["histogram"]) == len(finite)
    if name not in COMPLEX:
        largest = sorted(finite, key=lambda pair: (-abs(pair[1]), pair[0]))[:4]
        assert told["largest"] == [(place(i), v) for i, v in largest]


def test_differences(case: tuple[str, Store, Column, Column]) -> None:
    name, store, one, two = case
    changed = [i for i in range(COUNT) if one.codes[i] != two.codes[i]]
    apart: list[float] = []
    for a, b in ((one.numbers[i], two.numbers[i]) for i in changed):
        parts = [(a.real, b.real), (a.imag, b.imag)]
        if all(map(math.isfinite, (*parts[0], *parts[1]))):
            far = [abs(Fraction(x) - Fraction(y)) for x, y in parts]
            try:
                apart.append(float(far[0]) if not far[1] else math.hypot(*map(float, far)))
            except OverflowError:
                continue
    apart = [far for far in apart if math.isfinite(far)]
    (found,) = checkpoint.diff(store, 1, 2).tensors
    assert (found.changed, found.elements, found.index) == (len(changed), COUNT, place(changed[0]))
    assert found.largest == pytest.approx(max(apart), rel=1e-6 if name in COMPLEX else 1e-15, abs=0)
