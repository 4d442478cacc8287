"""Native search against torch and NumPy; every code of every dtype of 8 and 16 bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from threads import at_once
from windeck._core import Search, Statistics
from windeck.checkpoint.readers.where import Where, nan, near, parse

INF = float("inf")
SMALL = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
SMALL += ["float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool"]
SMALL = [name for name in SMALL if hasattr(torch, name)]
WIDE = ["float32", "float64", "int32", "int64", "uint32", "uint64"]


def dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def codes(name: str) -> tuple[bytes, np.ndarray[Any, Any]]:
    """All codes of a small dtype, and their values by torch."""
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
    """Elementwise with NumPy, in float64 or Python's integers."""
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
    numbers = values.astype(np.float64)
    for where, wanted in (
        (nan(), np.isnan(numbers)),
        (parse("inf"), np.isinf(numbers)),
        (parse("finite"), np.isfinite(numbers)),
        (parse("nan or inf"), ~np.isfinite(numbers)),
        (parse("not nan"), ~np.isnan(numbers)),
        (parse("nan and inf"), np.zeros(len(numbers), bool)),
    ):
        found, _ = where.search(name).find(raw)
        assert found.tolist() == np.flatnonzero(wanted).tolist(), where


@pytest.mark.parametrize("name", SMALL)
def test_near_is_exact(name: str) -> None:
    raw, values = codes(name)
    for value, tolerance in ((0.1, 0.05), (3, 1), (-2.5, 1e-3), (100, 60), (0, 2.0**-24)):
        low, high = Fraction(value) - Fraction(tolerance), Fraction(value) + Fraction(tolerance)
        numbers = values.astype(np.float64)
        wanted = [i for i, x in enumerate(numbers) if np.isfinite(x) and low <= Fraction(x) <= high]
        assert near(value, tolerance).search(name).find(raw)[0].tolist() == wanted


def wide(name: str, seed: int) -> np.ndarray[Any, Any]:
    """Random bits, with what is special among them."""
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
    with pytest.raises(ValueError, match="distances from 1j and from 0j in one"):
        (near(1j) | parse("abs > 3")).search(name)


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
    assert search.find(b"") == (pytest.approx([]), 0)


def test_random_unions_against_numpy() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=5000).astype(np.float32)
    values[::17] = np.nan
    for _ in range(100):
        a, b, c = np.sort(rng.normal(size=3)).astype(np.float32)
        where: Where = (parse(f"value < {a}") | parse(f"{b} < value <= {c}")) & ~parse("abs < 0.1")
        wanted = ((values < a) | ((b < values) & (values <= c))) & ~(
            np.abs(values) < np.float32(0.1)
        )
        assert where.search("float32").find(values)[0].tolist() == np.flatnonzero(wanted).tolist()


def test_threads_share_a_search() -> None:
    values = wide("float64", 4)
    search = parse("abs > 1 or nan").search("float64")
    wanted = search.find(values)[0].tolist()
    assert at_once(8, lambda _: search.find(values)[0].tolist()) == [wanted] * 8


def test_random_arguments_never_end_the_process() -> None:
    rng = np.random.default_rng(8)
    odd: list[Any] = [
        None,
        -1,
        0,
        3,
        2**63 - 1,
        2**64,
        -(2**63),
        1.5,
        INF,
        float("nan"),
        "x",
        b"12345678",
    ]
    odd += [[], [1], [(1, 2)], [(2, 1)], [(-INF, INF)], {}, np.zeros((3, 4)), np.zeros(8)[::-1], 1j]
    odd += [memoryview(b"abcdefgh"), np.zeros(0), bytearray(16), np.zeros(3, "O"), True, object()]
    names = [*SMALL, *WIDE, "complex64", "complex128", "complex32", "quint8", "", "é"]
    done = 0
    for _ in range(20_000):
        one, two, three, four = (odd[i] for i in rng.integers(0, len(odd), 4))
        try:
            name = names[rng.integers(0, len(names))]
            if rng.random() < 0.5:
                ranges = (
                    one if rng.random() < 0.5 else [(-1, 1)] if "int" in name else [(-1.0, 1.0)]
                )
                center = two if rng.random() < 0.3 else 0
                search = Search(name, ranges, nan=bool(rng.random() < 0.5), center=center)
                search.find(three, limit=four, base=0 if rng.random() < 0.5 else two)
            else:
                some = Statistics(name, edges=one if rng.random() < 0.5 else None,
                                  largest=two if rng.random() < 0.1 else 2)  # fmt: skip
                some.add(three, None if rng.random() < 0.5 else four)
                some.result()
            done += 1
        except (TypeError, ValueError, BufferError, MemoryError, OverflowError):
            pass
    assert done > 500


def test_wrong_arguments_are_one_sentence() -> None:
    search = Search("float32", [(0.0, 1.0)])
    for error, words, call in (
        (ValueError, "dtype is 'float31', expected one of float64, float32,",
         lambda: Search("float31", [])),
        (TypeError, r"ranges has an item of type float, expected a pair \(low, high\)",
         lambda: Search("float32", [1.0])),
        (TypeError, "a bound of ranges is of type str, expected a float",
         lambda: Search("float32", [("a", "b")])),
        (ValueError, "a bound of ranges is nan", lambda: Search("float32", [(float("nan"), 1.0)])),
        (TypeError, "a bound of ranges is of type float, expected an integer",
         lambda: Search("int8", [(0.0, 1)])),
        (ValueError, "a bound of ranges is 18446744073709551616, expected",
         lambda: Search("uint8", [(0, 2**64)])),
        (ValueError, "center is not 0, expected 0 for float32",
         lambda: Search("float32", [], center=1j)),
        (ValueError, "center is not finite", lambda: Search("complex64", [], center=complex(INF))),
        (ValueError, "the buffer has 5 bytes, expected a multiple of 4 for float32",
         lambda: search.find(b"12345")),
        (TypeError, "buffer is of type int, expected bytes", lambda: search.find(3)),
        (ValueError, "the buffer is strided", lambda: search.find(np.zeros(8, np.float32)[::2])),
        (ValueError, "limit is -1, expected", lambda: search.find(b"", limit=-1)),
        (ValueError, "base is 9223372036854775807 for 1 elements, expected positions below 2\\^63",
         lambda: search.find(b"1234", base=2**63 - 1)),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
