"""Sets of numbers: unions of intervals, with exact bounds.

A set is the ascending list of places where one goes in or out of it. A place is a number, or
infinity, and 0 or 1 for just before or just behind it: ``[(2, 1), (5, 1)]`` is 2 < x <= 5.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

__all__ = ["ALL", "NONE", "Set", "around", "as_floats", "as_integers", "compared", "complement"]
__all__ += ["mirrored", "rounded", "union"]

Number: TypeAlias = "Fraction | float"
Set: TypeAlias = "list[tuple[Number, int]]"

_INF = math.inf
ALL: Set = [(-_INF, 0), (_INF, 1)]
NONE: Set = []

#: Of a float dtype: bits of the fraction, least exponent of a normal number, greatest number.
_FLOATS: dict[str, tuple[int, int, Fraction]] = {
    "float64": (52, -1022, Fraction(2**53 - 1) * 2**971),
    "float32": (23, -126, Fraction(2**24 - 1) * 2**104),
    "float16": (10, -14, Fraction(65504)),
    "bfloat16": (7, -126, Fraction(255) * 2**120),
    "float8_e4m3fn": (3, -6, Fraction(448)),
    "float8_e4m3fnuz": (3, -7, Fraction(240)),
    "float8_e5m2": (2, -14, Fraction(57344)),
    "float8_e5m2fnuz": (2, -15, Fraction(57344)),
}


def complement(numbers: Set) -> Set:
    """What is not in it."""
    edges = [*numbers]
    for edge in ALL:  # an edge at the very end comes or goes
        edges.remove(edge) if edge in edges else edges.append(edge)
    return sorted(edges)


def union(a: Set, b: Set) -> Set:
    """What is in one or the other.

    Examples
    --------
    >>> union([(1, 0), (3, 0)], [(2, 0), (3, 1), (5, 0), (6, 0)])
    [(1, 0), (3, 1), (5, 0), (6, 0)]
    """
    steps = [(edge, 1 - 2 * (i % 2)) for numbers in (a, b) for i, edge in enumerate(numbers)]
    found: Set = []
    depth = 0
    for edge, step in sorted(steps, key=lambda pair: (pair[0], -pair[1])):  # in before out
        if depth == 0 or depth + step == 0:
            found.append(edge)
        depth += step
    return found


def mirrored(numbers: Set) -> Set:
    """Every x with abs(x) in it."""
    positive = complement(union(complement(numbers), [(-_INF, 0), (0, 0)]))
    return union(positive, [(-value, 1 - side) for value, side in reversed(positive)])


def compared(sign: str, value: float, dtype: str) -> Set:
    """Every x with ``x sign value``, the value rounded to the dtype; not for ``!=``."""
    edge = rounded(value, dtype)
    if (sign, edge) in (("<", -_INF), (">", _INF)):
        return NONE
    first = (-_INF, 0) if "<" in sign else (edge, 1) if sign == ">" else (edge, 0)
    last = (_INF, 1) if ">" in sign else (edge, 0) if sign == "<" else (edge, 1)
    return [first, last]


def around(value: float, tolerance: float) -> Set:
    """Every x with abs(x - value) <= tolerance."""
    if math.isinf(value):
        return [(value, 0), (value, 1)]
    return [(Fraction(value) - Fraction(tolerance), 0), (Fraction(value) + Fraction(tolerance), 1)]


def rounded(value: float, dtype: str) -> Number:
    """To the nearest number of a float dtype, as comparing a tensor with a number does.

    Beyond its greatest number, and for integers and powers of two (e8m0fnu), the value itself.

    Examples
    --------
    >>> float(rounded(0.1, "bfloat16")), rounded(70000, "float16"), rounded(2.5, "int8")
    (0.10009765625, Fraction(70000, 1), Fraction(5, 2))
    """
    if math.isinf(value):
        return value
    exact = Fraction(value)
    part = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
    found = _FLOATS.get(part.get(dtype, dtype))
    if found is None or exact == 0:
        return exact
    digits, least, greatest = found
    power = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    if abs(exact) < Fraction(2) ** power:
        power -= 1
    unit = Fraction(2) ** (max(power, least) - digits)
    near = round(exact / unit) * unit
    return near if abs(near) <= greatest else exact


def as_floats(numbers: Set) -> list[tuple[float, float]]:
    """Closed ranges of the same float64."""
    ends = zip(numbers[::2], numbers[1::2], strict=True)
    found = [(_float(*low), -_float(-high[0], 1 - high[1])) for low, high in ends]
    return [(low, high) for low, high in found if low <= high]


def as_integers(numbers: Set, *, natural: bool) -> list[tuple[int, int]]:
    """Closed ranges of the same integers of 64 bits."""
    least, most = (0, (1 << 64) - 1) if natural else (-(1 << 63), (1 << 63) - 1)
    found = []
    for low, high in zip(numbers[::2], numbers[1::2], strict=True):
        first, last = _integer(*low, least, most), _integer(*high, least, most) - 1
        if first <= last:
            found.append((first, last))
    return found


def _float(value: Number, side: int) -> float:
    """The first float64 behind a place."""
    try:
        near = float(value)
    except OverflowError:
        near = _INF if value > 0 else -_INF
    behind = near >= value if side == 0 else near > value
    return near if behind else math.nextafter(near, _INF)


def _integer(value: Number, side: int, least: int, most: int) -> int:
    """The first integer behind a place, from `least` to one after `most`."""
    if isinstance(value, float) and math.isinf(value):
        return least if value < 0 else most + 1
    first = math.floor(value) + 1 if side else math.ceil(value)
    return min(max(first, least), most + 1)
