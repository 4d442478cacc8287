"""Conditions as text, against Python's own evaluation on exact fractions."""

from __future__ import annotations

import itertools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from windeck.checkpoint.format import intervals
from windeck.checkpoint.readers.where import near, parse


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
        ValueError, match=r"cannot read the condition ['\"].*['\"], expected such as 'abs >"
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
    with pytest.raises(TypeError, match="cannot search in elements of dtype quint8: dtype is"):
        parse("nan").search("quint8")


FLOATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("name", [n for n in FLOATS if hasattr(torch, n)])
def test_rounding_is_that_of_torch(name: str) -> None:
    rng = np.random.default_rng(1)
    values = [*rng.normal(size=300), *np.exp(rng.normal(size=300) * 5), 0.1, 1e-40, 3e-8, 2**-150]
    for value in map(float, values):
        # By float64, whose rounding torch does in one step.
        wanted = torch.tensor(value, dtype=torch.float64).to(getattr(torch, name))
        found = Fraction(intervals.rounded(value, name))
        if abs(found) <= intervals._FLOATS[name][2] and abs(value) < 400:
            assert float(found) == wanted.to(torch.float64).item(), value


@pytest.mark.parametrize("name", [n for n in FLOATS if hasattr(torch, n)])
def test_rounding_at_the_greatest_number(name: str) -> None:
    """Eighths of the last place around it; behind half of one there is none to round to."""
    digits, _, greatest = intervals._FLOATS[name]
    top = torch.finfo(getattr(torch, name)).max
    assert top == greatest
    unit = 2.0 ** (math.frexp(top)[1] - 1 - digits)
    for eighths, sign in itertools.product(range(-12, 9), (1, -1)):
        value = sign * (top + eighths * unit / 8)
        found = intervals.rounded(value, name)
        if eighths < 4:
            wanted = torch.tensor(value, dtype=torch.float64).to(getattr(torch, name))
            assert found == wanted.to(torch.float64).item(), value
        elif eighths > 4:
            assert found == Fraction(value)


def test_sets_are_sets() -> None:
    places = [(Fraction(n), side) for n in range(4) for side in (0, 1)]
    points = [Fraction(n, 2) for n in range(-3, 10)]

    def has(numbers: intervals.Set, x: Fraction) -> bool:
        return sum(value < x or (value == x and side == 0) for value, side in numbers) % 2 == 1

    sets: list[intervals.Set] = [[*pair] for pair in itertools.combinations(places, 2)]
    sets += [[*four] for four in itertools.combinations(places, 4)]
    for a, b in itertools.product(sets[::5], sets[::3]):
        for x in points:
            assert has(intervals.union(a, b), x) == (has(a, x) or has(b, x))
    assert intervals.union([(1, 0), (3, 0)], [(3, 0), (5, 0)]) == [(1, 0), (5, 0)]  # no 3 in it
    for a in sets:
        for x in points:
            assert has(intervals.complement(a), x) != has(a, x)
            assert has(intervals.mirrored(a), x) == has(a, abs(x))


def test_ranges_of_floats_and_integers_are_exact() -> None:
    tiny, one_up = math.nextafter(0, 1), math.nextafter(1, 2)
    assert intervals.as_floats([(Fraction(0), 1), (Fraction(1), 0)]) == [
        (tiny, math.nextafter(1, 0))
    ]
    assert intervals.as_floats([(Fraction(1), 1), (math.inf, 1)]) == [(one_up, math.inf)]
    assert intervals.as_floats([(Fraction(10) ** 400, 0), (math.inf, 1)]) == [(math.inf, math.inf)]
    assert intervals.as_floats([(-(Fraction(10) ** 400), 0), (Fraction(10) ** 400, 1)]) == [
        (-sys.float_info.max, sys.float_info.max)
    ]
    for sign, end in (("<", -math.inf), (">", math.inf)):
        assert intervals.as_floats(intervals.compared(sign, end, "float64")) == []
        ranges = intervals.as_floats(intervals.compared(f"{sign}=", end, "float64"))
        assert ranges == [(end, end)]
    third = Fraction(1, 3)
    ((low, high),) = intervals.as_floats([(third, 0), (third + Fraction(1, 10**30), 1)]) or [(0, 0)]
    assert (low, high) == (0, 0)
    big = Fraction(2**53 + 1)
    assert intervals.as_floats([(big, 1), (big + 5, 0)]) == [(2.0**53 + 2, 2.0**53 + 4)]
    assert intervals.as_integers([(Fraction(1, 2), 0), (Fraction(5, 2), 1)], natural=False) == [
        (1, 2)
    ]
    assert intervals.as_integers([(Fraction(3), 1), (Fraction(4), 0)], natural=False) == []
    assert intervals.as_integers(intervals.ALL, natural=True) == [(0, 2**64 - 1)]
    assert intervals.as_integers(intervals.ALL, natural=False) == [(-(2**63), 2**63 - 1)]
