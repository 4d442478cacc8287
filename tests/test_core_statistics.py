"""Native statistics against exact sums, NumPy's histograms and plain sorting."""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from test_core_search import SMALL, WIDE, codes, wide
from windeck._core import Statistics

Array = np.ndarray[Any, Any]


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
    statistics = Statistics(name, largest=5)
    statistics.add(raw)
    found = statistics.result()
    check(found, plain)
    order = [i for i in range(len(plain)) if math.isfinite(plain[i])]
    order.sort(key=lambda i: (-abs(plain[i]), i))
    assert found["largest"] == [(i, plain[i]) for i in order[:5]]


@pytest.mark.parametrize("name", WIDE)
def test_wide_dtypes(name: str) -> None:
    values = wide(name, 3)
    if name == "float64":  # of magnitudes whose squares float64 can hold
        values[np.abs(values) > 1e150] = -1.25
        values[(np.abs(values) < 1e-150)] = 0
    statistics = Statistics(name, largest=40)
    statistics.add(values)
    found = statistics.result()
    plain = values.tolist()
    check(found, plain)
    order = [i for i in range(len(plain)) if math.isfinite(plain[i])]
    order.sort(key=lambda i: (-abs(plain[i]), i))
    assert found["largest"] == [(i, plain[i]) for i in order[:40]]


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_complex_numbers_count_by_modulus(name: str) -> None:
    part = {"complex32": np.float16, "complex64": np.float32, "complex128": np.float64}[name]
    both = np.random.default_rng(2).normal(size=(4000, 2)).astype(part)
    both[5] = np.inf, 0
    both[6] = np.inf, np.nan
    both[7] = 0, -0.0
    statistics = Statistics(name, edges=[0, 1, 2])
    statistics.add(both)
    found = statistics.result()
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
        statistics = Statistics("float64")
        statistics.add(values)
        found = statistics.result()
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
    statistics = Statistics("float64", edges=edges)
    statistics.add(values)
    found = statistics.result()
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


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


@pytest.mark.parametrize("name", ["float32", "int16", "bfloat16", "complex64"])
def test_cuts_and_merges_change_nothing(name: str) -> None:
    raw = np.random.default_rng(3).bytes(2048 * 9 * getattr(torch, name).itemsize + 8 * 5)
    size = getattr(torch, name).itemsize

    def made() -> Statistics:
        return Statistics(name, edges=[-10, 0, 1, 1000], largest=7)

    whole = made()
    whole.add(raw)
    for step in (2048, 4096, 2048 * 5):
        cut = made()
        for first in range(0, len(raw), step * size):
            cut.add(raw[first : first + step * size])
        assert comparable(cut.result()) == comparable(whole.result())
    joined, parts = made(), []
    for first in range(0, len(raw), 2048 * size):
        part = made()
        part.add(raw[first : first + 2048 * size], base=first // size)
        parts.append(part)
    for part in parts:
        joined.merge(part)
    a, b = comparable(joined.result()), comparable(whole.result())
    assert a.pop("mean") == pytest.approx(b.pop("mean"), rel=1e-14)
    assert a.pop("std") == pytest.approx(b.pop("std"), rel=1e-13)
    assert a == b
    twice = made()
    twice.add(raw)
    twice.merge(twice)
    assert twice.result()["count"] == 2 * whole.result()["count"]
    assert twice.result()["histogram"].tolist() == (2 * whole.result()["histogram"]).tolist()


def test_nothing_and_beyond_float64() -> None:
    empty = Statistics("float32", largest=3)
    empty.add(b"")
    empty.merge(Statistics("float32", largest=3))
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


def test_threads_may_share_one() -> None:
    values = np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    shared = Statistics("float32", edges=[-1, 0, 1], largest=3)
    threads = [threading.Thread(target=lambda: shared.add(values, base=0)) for _ in range(8)]
    threads += [threading.Thread(target=shared.result) for _ in range(8)]
    threads += [threading.Thread(target=lambda: shared.merge(shared.__class__("float32",
                edges=[-1, 0, 1], largest=3))) for _ in range(4)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = Statistics("float32", edges=[-1, 0, 1], largest=3)
    one.add(values)
    found, once = shared.result(), one.result()
    assert found["count"] == 8 * once["count"]
    assert found["histogram"].tolist() == (8 * once["histogram"]).tolist()
    assert found["mean"] == pytest.approx(once["mean"], rel=1e-12)


def test_wrong_arguments_are_one_sentence() -> None:
    made = Statistics("int32", edges=[0, 1])
    for error, words, call in (
        (ValueError, "dtype is 'int33', expected one of", lambda: Statistics("int33")),
        (TypeError, "edges is of type int, expected a sequence of numbers",
         lambda: Statistics("int8", edges=3)),
        (ValueError, "edges has length 1, expected at least 2",
         lambda: Statistics("int8", edges=[1])),
        (ValueError, "edges has length 0, expected at least 2",
         lambda: Statistics("int8", edges=[])),
        (ValueError, "edges has 1.0 at 1, expected finite numbers, each above the one before",
         lambda: Statistics("int8", edges=[1, 1])),
        (ValueError, "edges has inf at 1", lambda: Statistics("int8", edges=[1, math.inf])),
        (ValueError, "largest is -1, expected", lambda: Statistics("int8", largest=-1)),
        (ValueError, "the buffer has 3 bytes, expected a multiple of 4 for int32",
         lambda: made.add(b"123")),
        (ValueError, "base is 9223372036854775807 for 1 elements",
         lambda: made.add(b"1234", base=2**63 - 1)),
        (ValueError, "the other statistics were made with other arguments",
         lambda: made.merge(Statistics("int32", edges=[0, 2]))),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
    assert made.result()["count"] == 0
