"""Tests of statistics, compared with exact sums, NumPy's counts and plain sorting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint.test_predicates import SMALL, WIDE, codes, wide
from windeck import checkpoint
from windeck.checkpoint import search
from windeck.checkpoint.format import find_commit, read_manifest
from windeck.checkpoint.read import Statistics, tensor_statistics
from windeck.checkpoint.stores import Store


def from_here(base: int) -> Callable[[Any], list[tuple[int, ...]]]:
    """Indices of positions in a buffer that begins at `base`."""
    return lambda places: [(int(place) + base,) for place in places]


def check(found: dict[str, Any], values: list[Any]) -> None:
    """Compare with Python's numbers: ints or floats."""
    finite = [x for x in values if math.isfinite(x)]
    assert found["count"] == len(values)
    assert found["nan"] == sum(x != x for x in values)
    assert found["positive_infinite"] == sum(x == math.inf for x in values)
    assert found["negative_infinite"] == sum(x == -math.inf for x in values)
    assert found["zeros"] == sum(x == 0 for x in values)
    if not finite:
        assert all(found[name] is None for name in ("min", "max", "mean", "std", "abs_max"))
        return
    assert (found["min"], found["max"]) == (min(finite), max(finite))
    assert type(found["min"]) is type(finite[0])
    assert found["abs_max"] == max(map(abs, finite))
    mean = sum(map(Fraction, finite)) / len(finite)
    spread = sum((Fraction(x) - mean) ** 2 for x in finite) / len(finite)
    scale = float(max(map(abs, finite)))
    assert found["mean"] == pytest.approx(float(mean), rel=1e-14, abs=scale * 1e-16)
    assert found["std"] == pytest.approx(math.sqrt(spread), rel=1e-12, abs=scale * 1e-15)


@pytest.mark.parametrize("name", SMALL)
def test_all_codes_of_the_small_dtypes(name: str) -> None:
    raw, values = codes(name)
    whole = values.dtype.kind in "iub"
    plain = [int(x) for x in values] if whole else values.tolist()
    made = Statistics(name, largest=5)
    made.add(raw, from_here(0))
    found = made.result()
    check(found, plain)
    order = [i for i in range(len(plain)) if math.isfinite(plain[i])]
    order.sort(key=lambda i: (-abs(plain[i]), i))
    assert found["largest"] == [((i,), plain[i]) for i in order[:5]]


@pytest.mark.parametrize("name", WIDE)
def test_wide_dtypes(name: str) -> None:
    values = wide(name, 3)
    if name == "float64":  # of magnitudes whose squares float64 can hold
        values[np.abs(values) > 1e150] = -1.25
        values[(np.abs(values) < 1e-150)] = 0
    made = Statistics(name, largest=40)
    made.add(values, from_here(0))
    found = made.result()
    plain = values.tolist()
    check(found, plain)
    order = [i for i in range(len(plain)) if math.isfinite(plain[i])]
    order.sort(key=lambda i: (-abs(plain[i]), i))
    assert found["largest"] == [((i,), plain[i]) for i in order[:40]]


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_complex_numbers_count_by_modulus(name: str) -> None:
    part = {"complex32": np.float16, "complex64": np.float32, "complex128": np.float64}[name]
    both = np.random.default_rng(2).normal(size=(4000, 2)).astype(part)
    both[5] = np.inf, 0
    both[6] = np.inf, np.nan
    both[7] = 0, -0.0
    made = Statistics(name, edges=[0, 1, 2])
    made.add(both)
    found = made.result()
    moduli = np.hypot(*both.astype(np.float64).T)
    moduli[6] = np.nan
    check(found, moduli.tolist())
    kept = moduli[np.isfinite(moduli)]
    assert found["histogram"].tolist() == np.histogram(kept, [0, 1, 2])[0].tolist()
    assert found["above"] == int((moduli > 2).sum())


def test_far_from_zero_the_deviation_stays_right() -> None:
    rng = np.random.default_rng(7)
    for offset in (0.0, 1e3, 1e8, -1e12):
        values = rng.normal(size=20_000) + offset
        made = Statistics("float64")
        made.add(values, from_here(0))
        found = made.result()
        exact = values.astype(np.longdouble)
        assert found["std"] == pytest.approx(float(exact.std()), rel=1e-9)
        assert found["mean"] == pytest.approx(float(exact.mean()), rel=1e-15)
    one = Statistics("float32")
    one.add(np.full(100_000, 0.1, np.float32))
    assert one.result()["std"] == pytest.approx(0, abs=1e-12)
    assert one.result()["mean"] == float(np.float32(0.1))


EDGES: list[list[float]] = [
    [0, 1], [-3, -1, 0, 0.5, 4], list(np.linspace(-2, 2, 65)), list(np.linspace(-0.3, 0.7, 8)),
    [-1e300, 0, 1e300], [2.0**k for k in range(-20, 20)], [0.1 * k for k in range(100)],
]  # fmt: skip


@pytest.mark.parametrize("edges", EDGES, ids=len)
def test_histograms_are_those_of_numpy(edges: list[float]) -> None:
    rng = np.random.default_rng(11)
    values = np.concatenate([rng.normal(size=5000), edges, np.nextafter(edges, -np.inf)])
    values = np.concatenate([values, np.nextafter(edges, np.inf), [np.inf, -np.inf, np.nan, -0.0]])
    made = Statistics("float64", edges=edges)
    made.add(values, from_here(0))
    found = made.result()
    # By hand: NumPy's own shortcut for even bins may be off at an edge.
    wanted = [
        int(((values >= low) & ((values < high) | (last & (values == high)))).sum())
        for low, high, last in zip(
            edges, edges[1:], [False] * (len(edges) - 2) + [True], strict=False
        )
    ]
    assert found["histogram"].tolist() == wanted
    assert found["below"] == (values < edges[0]).sum()
    assert found["above"] == (values > edges[-1]).sum()
    assert found["edges"].tolist() == list(map(float, edges))
    inside = sum(wanted) + found["below"] + found["above"] + found["nan"]
    assert inside == found["count"]


@pytest.mark.parametrize("name", ["float32", "int16", "bfloat16", "complex64"])
def test_cuts_change_nothing(name: str) -> None:
    size = getattr(torch, name).itemsize
    raw = np.random.default_rng(3).bytes(70_001 * size)
    results = []
    for step in (70_001, 32_768, 1_000, 999):
        cut = Statistics(name, edges=[-10, 0, 1, 1000], largest=7)
        for first in range(0, 70_001, step):
            cut.add(raw[first * size : (first + step) * size], from_here(first))
        results.append({k: np.asarray(v).tolist() if k != "largest" else v
                        for k, v in cut.result().items()})  # fmt: skip
    for key in ("mean", "std"):
        first, *others = (found.pop(key) for found in results)
        assert others == pytest.approx([first] * 3, rel=1e-13)
    assert results[1:] == results[:1] * 3


def test_nothing_and_beyond_float64() -> None:
    empty = Statistics("float32", largest=3)
    empty.add(b"")
    check(empty.result(), [])
    assert empty.result()["largest"] == []
    huge = Statistics("float64")
    huge.add(np.array([1.7e308, 1.7e308, -1.0]))
    found = huge.result()
    assert (found["std"], found["max"]) == (math.inf, 1.7e308)
    assert found["mean"] == pytest.approx(1.7e308 / 1.5)
    wide_apart = Statistics("float64")
    wide_apart.add(np.array([1e200, -1e200]))
    assert (wide_apart.result()["mean"], wide_apart.result()["std"]) == (0, math.inf)


def test_many_bins_are_counted_as_few() -> None:
    values = np.random.default_rng(4).normal(size=3000)
    values[:4] = math.inf, -math.inf, math.nan, 0.5
    edges = np.linspace(-1, 0.5, 301)
    made = Statistics("float64", edges=edges)
    made.add(values)
    found = made.result()
    wanted = [
        int(((values >= low) & (values < high)).sum()) for low, high in itertools.pairwise(edges)
    ]
    wanted[-1] += int((values == 0.5).sum())
    assert found["histogram"].tolist() == wanted
    assert (found["below"], found["above"]) == ((values < -1).sum(), (values > 0.5).sum())


def test_largest_of_equal_ones_are_the_first(memory: Store) -> None:
    values = torch.zeros(300_000)
    values[[299_999, 5, 70_000, 200_000]] = torch.tensor([-3.0, 3.0, 2.0, -2.0])
    checkpoint.save(memory, step=1, model={"w": values}, chunk_bytes=400_000)
    found = read_manifest(memory, "windeck", find_commit(memory, "windeck", None))["tensors"]
    told = tensor_statistics(memory, "windeck", found["model/w"], largest=6)
    places = [(place[0], value) for place, value in told["largest"]]
    assert places == [(5, 3.0), (299_999, -3.0), (70_000, 2.0), (200_000, -2.0), (0, 0.0), (1, 0.0)]


#: Values of each dtype that are on an edge of it.
EDGE_VALUES: dict[str, list[Any]] = {
    "float32": [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -3.4028234663852886e38, 1.0],
    "float64": [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-1074, 1e150, -1.0],
    "bfloat16": [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-133, 255 * 2.0**120],
    "float16": [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-24, 65504.0],
    "float8_e4m3fn": [0.0, -0.0, math.nan, 448.0, -448.0, 2.0**-9],
    "float8_e5m2": [0.0, -0.0, math.inf, math.nan, -57344.0, 2.0**-16],
    "int64": [0, -1, 2**63 - 1, -(2**63), 2**53 + 1, 7],
    "int32": [0, -(2**31), 2**31 - 1],
    "uint64": [0, 1, 2**63 - 1],
    "uint8": [0, 255, 1, 1, 128],
    "int8": [0, -128, 127],
    "bool": [True, False, True],
}


@pytest.mark.parametrize("name", EDGE_VALUES)
@pytest.mark.parametrize("empty", [False, True])
def test_edges_of_each_dtype_in_a_checkpoint(name: str, empty: bool, memory: Store) -> None:
    values = [] if empty else EDGE_VALUES[name]
    kind = getattr(torch, name)
    whole = "int" in name or name == "bool"
    tensor = torch.tensor(values, dtype=kind if whole else torch.float64).to(kind)
    checkpoint.save(memory, step=1, model={"w": tensor})
    entry = read_manifest(memory, "windeck", find_commit(memory, "windeck", None))["tensors"]
    told = tensor_statistics(memory, "windeck", entry["model/w"], bins=4, largest=2)
    numbers = [*map(int, values)] if whole else values
    check(told, numbers)
    finite = [(i, x) for i, x in enumerate(numbers) if math.isfinite(x)]
    finite.sort(key=lambda pair: (-abs(pair[1]), pair[0]))
    assert told["largest"] == [((i,), x) for i, x in finite[:2]]
    assert (told["histogram"] is None) == empty
    assert empty or int(told["histogram"].sum()) == len(finite)
    tests: dict[str, Callable[[Any], bool]] = {
        "nan": lambda x: x != x, "inf": lambda x: abs(x) == math.inf,
        "value == 0": lambda x: x == 0, "abs > 0": lambda x: abs(x) > 0,
        "value < 0 or nan": lambda x: x < 0 or x != x, "value >= 1": lambda x: x >= 1,
        "value == 9223372036854775807": lambda x: x == 2**63 - 1,
        "abs >= 9223372036854775808": lambda x: abs(x) >= 2**63,
    }  # fmt: skip
    for text, test in tests.items():
        (found,) = search(memory, text)
        places = [(i,) for i, x in enumerate(numbers) if test(x)]
        assert [match.index for match in found.matches] == places, text
        assert (found.count, found.elements) == (len(places), len(values))
