"""Tests of conditions: their text against Python, their values against NumPy and torch.

They cover every code of each dtype of 8 and 16 bits, and random bits of the wider ones.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from support.threads import at_once
from windeck.checkpoint.read import Predicate, nan, near, parse
from windeck.columns import decode_elements


def holds(text: str, value: float) -> bool:
    found = parse(text).search("float64").find(np.array([value], np.float64))[1]
    return bool(found)


CONDITIONS = """\
value > 1
abs>=2
value == 1.5
value != 1.5
not value < 0
-1 <= value < 1
3 > abs
abs < 1 or abs > 2
abs < 2 and value > 0
nan or value > 2
inf
not (abs < 1 or nan)
value < 1 and value > 1
not inf and not nan
finite
+1 < abs
-3 < value < 1 < abs
0.5 <= abs <= 2 != value
1 < abs < 3 > value > -2 < value != 1.5"""


@pytest.mark.parametrize("text", CONDITIONS.split("\n"))
def test_conditions_mean_what_python_means(text: str) -> None:
    for value in (-math.inf, -2.5, -2, -1, -0.0, 0, 0.5, 1, 1.5, 2, 3, math.inf, math.nan):
        names = {"value": value, "abs": abs(value), "nan": math.isnan(value)}
        words = text.replace("finite", str(math.isfinite(value)))
        words = words.replace("inf", str(math.isinf(value)))
        assert holds(text, value) is bool(eval(words, {}, names)), value


OTHERS = ["", "values > 3", "value >", "abs > x", "value > 3 +", "value in 3", "1 < 2", "abs"]
OTHERS += ["value > '1'", "__import__('os')", "value > 1e", "(" * 300, "value > 1j", "a\0b", "1"]
OTHERS += [
    "value > True",
    "value is 3",
    "value > nan",
    "f(value) > 1",
    "value[0] > 1",
    "1 < abs < x",
]


@pytest.mark.parametrize("text", OTHERS)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"cannot parse the condition ['\"].*['\"], expected for example 'abs >"
    ):
        parse(text)


def test_a_long_row_of_nots() -> None:
    assert holds("not " * 200 + "nan", math.nan)


def test_a_long_row_of_comparisons() -> None:
    text = "1<abs" + "<3>abs" * 165
    assert [holds(text, value) for value in (1, 2, 3)] == [False, True, False]


def test_wrong_conditions_are_one_sentence() -> None:
    with pytest.raises(TypeError, match="a condition is of type int, expected str"):
        parse(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a condition has 2,000 letters, expected up to 1,000"):
        parse("n" * 2000)
    with pytest.raises(ValueError, match=r"a number has more than 1,000 bits"):
        parse(f"value > {10**400}")
    with pytest.raises(ValueError, match="value is nan, expected a number"):
        near(math.nan)
    with pytest.raises(ValueError, match="tolerance is -1, expected a finite number"):
        near(1, -1)
    with pytest.raises(ValueError, match="tolerance is inf, expected a finite number"):
        near(1, math.inf)
    with pytest.raises(TypeError, match="value is of type str, expected a number"):
        near("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot search in elements of dtype quint8: they are no"):
        parse("nan").search("quint8")


FLOATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def elements_equal_to(value: float, name: str) -> list[float]:
    """Return the elements that equal a number, of all small floats or of those near the number."""
    kind = getattr(torch, name)
    if kind.itemsize <= 2:
        bits = np.arange(256**kind.itemsize, dtype=f"<u{kind.itemsize}")
    else:  # the nearest element, and some on each side of it
        nearest = np.float32(np.clip(value, *torch.finfo(kind).max * np.array([-1, 1])))
        around = nearest.view(np.uint32).astype(np.int64) + np.arange(-5, 6)
        bits = np.clip(around, 0, 0xFFFFFFFF).astype("<u4")
    places, count = parse(f"value == {value!r}").search(name).find(bits)
    assert count == len(places)
    if not count:
        return []
    elements = torch.from_numpy(bits[places].view(np.uint8).copy()).view(kind)
    found: list[float] = np.unique(elements.to(torch.float64).numpy()).tolist()
    return found


@pytest.mark.parametrize("name", [n for n in FLOATS if hasattr(torch, n)])
def test_rounding_is_that_of_torch(name: str) -> None:
    rng = np.random.default_rng(1)
    values = [*rng.normal(size=300), *np.exp(rng.normal(size=300) * 5), 0.1, 1e-40, 3e-8, 2**-150]
    checked = 0
    for value in map(float, values):
        # By float64, whose rounding torch does in one step.
        wanted = torch.tensor(value, dtype=torch.float64).to(getattr(torch, name))
        if abs(value) < min(400, torch.finfo(getattr(torch, name)).max):
            assert elements_equal_to(value, name) == [wanted.to(torch.float64).item()], value
            checked += 1
    assert checked > 500


@pytest.mark.parametrize("name", [n for n in FLOATS if hasattr(torch, n)])
def test_rounding_at_the_greatest_number(name: str) -> None:
    """Eighths of the last place around it; behind half of one there is none to round to."""
    top = torch.finfo(getattr(torch, name)).max
    unit = 2.0 ** (math.frexp(top)[1] - 1) * torch.finfo(getattr(torch, name)).eps
    for eighths, sign in itertools.product(range(-12, 9), (1, -1)):
        value = sign * (top + eighths * unit / 8)
        if eighths < 4:
            wanted = torch.tensor(value, dtype=torch.float64).to(getattr(torch, name))
            assert elements_equal_to(value, name) == [wanted.to(torch.float64).item()], value
        elif eighths > 4:
            assert elements_equal_to(value, name) == []


INF = math.inf
SMALL = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
SMALL += ["float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool"]
SMALL = [name for name in SMALL if hasattr(torch, name)]
WIDE = ["float32", "float64", "int32", "int64", "uint32", "uint64"]


def dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def codes(name: str) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return all codes of a small dtype, and their values by torch."""
    size = dtype(name).itemsize
    raw = np.arange(256**size, dtype=f"<u{size}")
    if name == "bool":
        return raw.tobytes(), raw != 0
    values = torch.from_numpy(raw.view(np.uint8).copy()).view(dtype(name))
    if not name.startswith(("float", "bfloat")):
        return raw.tobytes(), values.numpy()
    return raw.tobytes(), values.to(torch.float64).numpy()


def scalars(name: str) -> list[float]:
    if name.startswith(("int", "uint", "bool")):
        return [0, 1, -1, 5, 100, -100, 127, 128, -128, -129, 255, 256, 32767, -32768, 65535, 65536]
    exact = [0.0, 1.0, -1.0, 0.5, 3.0, 448.0, 240.0, 57344.0, 65504.0, 2.0**-24, 2.0**-133]
    return [*exact, *(-x for x in exact), 1e5, -1e5, 1e39, INF, -INF]


def model(values: np.ndarray[Any, Any], subject: str, sign: str, scalar: float) -> Any:
    """Compare elementwise with NumPy, in float64 or Python's integers."""
    if values.dtype.kind in "iub":
        here = values.astype(np.int64 if values.dtype.itemsize < 4 else object)
    else:
        here = values
    if subject == "abs":
        here = abs(here)
    return {
        "<": here < scalar, "<=": here <= scalar, ">": here > scalar, ">=": here >= scalar,
        "==": here == scalar, "!=": here != scalar,
    }[sign]  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_every_code_of_the_small_dtypes(name: str) -> None:
    raw, values = codes(name)
    for given in scalars(name):
        scalar = given
        if "float" in name and "e8m0" not in name:  # a number of the dtype, or beyond all of them
            near_it = torch.tensor(given, dtype=torch.float64).to(dtype(name)).item()
            scalar = near_it if abs(given) <= np.nanmax(values[np.isfinite(values)]) else given
        for subject in ("value", "abs"):
            for sign in ("<", "<=", ">", ">=", "==", "!="):
                if name == "bool":
                    values = values.astype(np.int64)
                wanted = np.flatnonzero(model(values, subject, sign, scalar))
                text = f"{subject} {sign} {scalar}"
                found, count = parse(text).search(name).find(raw)
                assert found.dtype == np.int64
                assert found.tolist() == wanted.tolist(), (text, count)
                assert count == len(wanted)


@pytest.mark.parametrize("name", SMALL)
def test_what_is_no_number_or_infinite(name: str) -> None:
    raw, values = codes(name)
    decode_elements = values.astype(np.float64)
    for where, wanted in (
        (nan(), np.isnan(decode_elements)),
        (parse("inf"), np.isinf(decode_elements)),
        (parse("finite"), np.isfinite(decode_elements)),
        (parse("nan or inf"), ~np.isfinite(decode_elements)),
        (parse("not nan"), ~np.isnan(decode_elements)),
        (parse("nan and inf"), np.zeros(len(decode_elements), bool)),
    ):
        found, _ = where.search(name).find(raw)
        assert found.tolist() == np.flatnonzero(wanted).tolist(), where


@pytest.mark.parametrize("name", SMALL)
def test_near_is_exact(name: str) -> None:
    raw, values = codes(name)
    decoded = values.astype(np.float64)
    exact = [(int(i), Fraction(decoded[i])) for i in np.flatnonzero(np.isfinite(decoded))]
    for value, tolerance in ((0.1, 0.05), (3, 1), (-2.5, 1e-3), (100, 60), (0, 2.0**-24)):
        low, high = Fraction(value) - Fraction(tolerance), Fraction(value) + Fraction(tolerance)
        wanted = [i for i, x in exact if low <= x <= high]
        assert near(value, tolerance).search(name).find(raw)[0].tolist() == wanted


def wide(name: str, seed: int) -> np.ndarray[Any, Any]:
    """Return random bits, and special values."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(name)
    values: np.ndarray[Any, Any] = np.frombuffer(rng.bytes(3001 * kind.itemsize), kind).copy()
    if kind.kind == "f":
        special = [0.0, -0.0, INF, -INF, np.nan, 1.5, -1.5, np.finfo(kind).max, np.finfo(kind).tiny]
        special += [np.finfo(kind).smallest_subnormal, -np.finfo(kind).max, 0.1, 2.0**53]
    else:
        info = np.iinfo(kind)
        special = [0, 1, info.max, info.min, info.max - 1, info.min + 1, 7, 2**31 - 1]
    values[rng.integers(0, 3001, 200)] = rng.choice(np.array(special, kind), 200)
    return values


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("seed", range(3))
def test_wide_dtypes_against_numpy(name: str, seed: int) -> None:
    values = wide(name, seed)
    some = [x.item() for x in values[:40]] + [0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63)]
    if values.dtype.kind == "f":
        some = [float(x) for x in some if x == x] + [INF, -INF]
    for scalar in some:
        if values.dtype.kind == "f":  # a scalar of the dtype, as NumPy and torch round it
            with np.errstate(over="ignore"):
                scalar = float(values.dtype.type(scalar))
        for subject in ("value", "abs"):
            for sign in ("<", "<=", ">", ">=", "==", "!="):
                wanted = np.flatnonzero(model(values, subject, sign, scalar)).tolist()
                where = parse(f"{subject} {sign} {scalar}")
                assert where.search(name).find(values)[0].tolist() == wanted, where


def test_numbers_are_rounded_to_the_dtype_as_torch_does() -> None:
    for name in ("float32", "float64", "float16", "bfloat16"):
        values = torch.tensor([0.1, 0.2, 0.3, -0.1, 0.1000001, 70000.0, INF], dtype=dtype(name))
        raw = values.view(torch.uint8).numpy()
        for scalar in (0.1, 0.3, -0.1, 1e-3):
            for sign in ("<", "<=", ">", ">=", "==", "!="):
                wanted = model(values.to(torch.float64).numpy(), "value", sign,
                               torch.tensor(scalar, dtype=dtype(name)).item())  # fmt: skip
                found = parse(f"value {sign} {scalar}").search(name).find(raw)[0]
                assert found.tolist() == np.flatnonzero(wanted).tolist()
    assert parse("value >= 70000").search("float16").find(b"\x00\x7c\xff\x7b")[0].tolist() == [0]


@pytest.mark.parametrize("name", ["complex32", "complex64", "complex128"])
def test_complex_numbers_go_by_distance(name: str) -> None:
    part = {"complex32": np.float16, "complex64": np.float32, "complex128": np.float64}[name]
    some = [0, -0.0, 1, -1, 3, 4, 0.5, INF, -INF, np.nan, 1e4, 6e-5]
    both = np.array([[a, b] for a in some for b in some], part)
    values = np.empty(len(both), np.complex128)
    values.imag[:] = both[:, 1]
    values.real[:] = both[:, 0]
    is_nan = np.isnan(both).any(axis=1)
    with np.errstate(invalid="ignore"):
        moduli = np.where(is_nan, np.nan, np.abs(values))
    for text, wanted in (
        ("abs > 3", moduli > 3), ("abs <= 5", moduli <= 5), ("abs == 5", moduli == 5),
        ("abs != 5", moduli != 5), ("nan", is_nan), ("inf", np.isinf(moduli)),
        ("finite", np.isfinite(moduli)), ("abs < 2 or nan", (moduli < 2) | is_nan),
        ("value == 4", (both == [4, 0]).all(axis=1)),
        ("value != 4", ~(both == [4, 0]).all(axis=1)),
    ):  # fmt: skip
        found = parse(text).search(name).find(both)[0]
        assert found.tolist() == np.flatnonzero(wanted).tolist(), text
    close = near(3 + 4j, 1.5).search(name).find(both)[0]
    with np.errstate(invalid="ignore"):
        wanted = np.abs(values - (3 + 4j)) <= 1.5
    assert close.tolist() == np.flatnonzero(wanted & ~is_nan).tolist()
    with pytest.raises(TypeError, match=f"{name} has no order: expected abs > 3"):
        parse("value > 3").search(name)
    either = (near(1j) | parse("abs > 3")).search(name).find(both)[0]
    wanted = (values == 1j) | (moduli > 3)
    assert either.tolist() == np.flatnonzero(wanted).tolist()


def test_limits_bases_cuts_and_alignment() -> None:
    values = wide("float32", 9)
    search = parse("abs > 1").search("float32")
    everything, count = search.find(values)
    assert count == len(everything) > 100
    for limit in (0, 1, 7, count, count + 5):
        some, total = search.find(values, limit=limit)
        assert (some.tolist(), total) == (everything[:limit].tolist(), count)
    moved, _ = search.find(values, base=1 << 40)
    assert (moved - (1 << 40)).tolist() == everything.tolist()
    odd = bytearray(1) + values.tobytes()
    assert search.find(memoryview(odd)[1:])[0].tolist() == everything.tolist()
    for cut in (1, 1000, 1023, 1024, 1025, 3000):
        parts = [search.find(values[:cut]), search.find(values[cut:], base=cut)]
        assert np.concatenate([p for p, _ in parts]).tolist() == everything.tolist()
    assert (len(search.find(b"")[0]), search.find(b"")[1]) == (0, 0)
    with pytest.raises(ValueError, match="multiple of element size"):
        search.find(b"12345")


def test_random_unions_against_numpy() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=5000).astype(np.float32)
    values[::17] = np.nan
    for _ in range(100):
        a, b, c = np.sort(rng.normal(size=3)).astype(np.float32)
        where: Predicate = (parse(f"value < {a}") | parse(f"{b} < value <= {c}")) & ~parse(
            "abs < 0.1"
        )
        wanted = ((values < a) | ((b < values) & (values <= c))) & ~(
            np.abs(values) < np.float32(0.1)
        )
        assert where.search("float32").find(values)[0].tolist() == np.flatnonzero(wanted).tolist()


def test_threads_share_a_search() -> None:
    values = wide("float64", 4)
    search = parse("abs > 1 or nan").search("float64")
    wanted = search.find(values)[0].tolist()
    assert at_once(8, lambda _: search.find(values)[0].tolist()) == [wanted] * 8


@pytest.mark.parametrize("name", SMALL)
def test_values_are_those_of_torch(name: str) -> None:
    raw, values = codes(name)
    assert np.array_equal(decode_elements(name, raw), values, equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_subnormal_numbers_count_where_the_processor_flushes_them(name: str) -> None:
    raw = np.array([0, 1, 2, 3], f"<u{dtype(name).itemsize}").tobytes()
    search = parse("value > 0").search(name), parse("value == 0").search(name)
    torch.set_flush_denormal(True)
    try:
        assert [one.find(raw)[0].tolist() for one in search] == [[1, 2, 3], [0]]
    finally:
        torch.set_flush_denormal(False)
