"""Conditions on numbers, such as ``abs > 1e3 or nan``, and the search for elements that meet them.

Elements are compared by their bits, as unsigned integers. The bounds are computed once for a dtype,
exactly, so nothing is rounded, and a search is a few NumPy operations for any dtype. Torch is not
needed.
"""

from __future__ import annotations

import ast
import cmath
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windeck.columns.dtypes import DTYPES, FLOATS, FloatFormat
from windeck.columns.elements import decode_elements, is_numeric, magnitudes

__all__ = ["CompiledPredicate", "Predicate", "nan", "near", "parse", "rounded"]

Number: TypeAlias = "Fraction | float"
#: A function that marks matching elements, given their bits, or complex values.
_Mask: TypeAlias = Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]
_Rule: TypeAlias = Callable[[str], _Mask]
#: First and last bits, as unsigned integers; a range may wrap around the greatest integer.
_Ranges: TypeAlias = "list[tuple[int, int]]"

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
#: float8_e8m0fnu has no zero: the least number, of rank 1, has the bits 0.
_POWERS = FloatFormat(0, -127, 255, False)
#: A rank after all others.
_END = 1 << 70
#: Limit for the letters of a condition, so that parsing cannot exhaust Python's stack.
_LONGEST = 1000
#: Elements compared at a time: they and their marks fit into the processor's cache.
_PORTION = 1 << 16


class CompiledPredicate:
    """A condition made ready for elements of one dtype; see `Predicate.search`."""

    def __init__(self, dtype: str, mask: _Mask) -> None:
        self.dtype, self._mask = dtype, mask

    def find(
        self, buffer: Any, *, limit: int | None = None, base: int = 0
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return positions of elements that meet the condition, and the number of all that do.

        Parameters
        ----------
        buffer
            Little-endian elements, contiguous, of any alignment.
        limit
            Maximum number of positions returned, the first ones; None: all.
        base
            Position of the first element.

        Raises
        ------
        ValueError
            For an incomplete element.

        Notes
        -----
        O(n) time; memory for the positions. Thread-safe.
        """
        if self.dtype in _PARTS:
            elements = decode_elements(self.dtype, buffer)
        else:
            elements = np.frombuffer(buffer, f"<u{DTYPES[self.dtype].itemsize}")
        limit, count = len(elements) if limit is None else limit, 0
        places = [np.empty(0, np.int64)]
        for first in range(0, len(elements), _PORTION):
            marks = self._mask(elements[first : first + _PORTION])
            here = int(np.count_nonzero(marks))
            if here and count < limit:
                places.append(np.flatnonzero(marks)[: limit - count] + (base + first))
            count += here
        return np.concatenate(places), count


class Predicate:
    """A condition on numbers, made by `parse`, `near` and `nan`; supports ``|``, ``&`` and ``~``.

    Examples
    --------
    >>> import numpy as np
    >>> found = parse("abs > 2 or nan").search("float32")
    >>> found.find(np.array([1, -3, np.nan, 2], np.float32))[0].tolist()
    [1, 2]
    """

    def __init__(self, text: str, rule: _Rule) -> None:
        self.text, self._rule = text, rule

    def __repr__(self) -> str:
        return f"<predicate {self.text}>"

    def __or__(self, other: Predicate) -> Predicate:
        def rule(dtype: str) -> _Mask:
            a, b = self._rule(dtype), other._rule(dtype)
            return lambda elements: a(elements) | b(elements)

        return Predicate(f"({self.text}) or ({other.text})", rule)

    def __invert__(self) -> Predicate:
        def rule(dtype: str) -> _Mask:
            mask = self._rule(dtype)
            return lambda elements: ~mask(elements)

        return Predicate(f"not ({self.text})", rule)

    def __and__(self, other: Predicate) -> Predicate:
        def rule(dtype: str) -> _Mask:
            a, b = self._rule(dtype), other._rule(dtype)
            return lambda elements: a(elements) & b(elements)

        return Predicate(f"({self.text}) and ({other.text})", rule)

    def search(self, dtype: str) -> CompiledPredicate:
        """Return the search in elements of a dtype, given by its name in torch.

        Raises
        ------
        TypeError
            For an order of complex numbers, or a dtype that is not numeric.
        """
        if not is_numeric(dtype):
            raise TypeError(f"cannot search in elements of dtype {dtype}: they are not numbers")
        return CompiledPredicate(dtype, self._rule(dtype))


def rounded(value: Number, dtype: str) -> Number:
    """Round to the nearest number of a float dtype, as comparing a tensor with a number does.

    Values beyond its greatest number, and values for other dtypes, are returned unchanged.

    Examples
    --------
    >>> float(rounded(0.1, "bfloat16")), rounded(70000, "float16"), rounded(2.5, "int8")
    (0.10009765625, Fraction(70000, 1), Fraction(5, 2))
    """
    if math.isinf(value):
        return value
    exact = Fraction(value)
    form = FLOATS.get(_PARTS.get(dtype, dtype))
    if form is None:
        return exact
    unit = Fraction(2) ** (_exponent(exact, form.least) - form.digits)
    near = round(exact / unit) * unit
    return near if abs(_rank(near, _PARTS.get(dtype, dtype))) <= form.top else exact


def _exponent(value: Fraction, least: int) -> int:
    """Return the exponent of the power of two below a number, at least `least`."""
    power = abs(value.numerator).bit_length() - value.denominator.bit_length()
    return max(power - (abs(value) < Fraction(2) ** power), least) if value else least


def _rank(value: Number, dtype: str) -> Fraction:
    """Return the rank of a number among the elements of a dtype, in the order of their values.

    The rank of an element is an integer, and other values are in between. Integers are their own
    rank. Among floats, zero has rank 0 and the next number rank 1: without its sign, the rank
    of a float is its bits. Infinity has a rank in each dtype.
    """
    form = _POWERS if dtype == "float8_e8m0fnu" else FLOATS.get(dtype)
    if math.isinf(value):
        return Fraction(math.copysign(_END if form is None else form.top + 1, value))
    exact = Fraction(value)
    if form is None:
        return exact
    exponent = _exponent(exact, form.least)
    rank: Fraction = abs(exact) / Fraction(2) ** (exponent - form.digits)
    rank += (exponent - form.least) * 2**form.digits
    rank = min(rank, form.top + Fraction(1, 2))  # between the greatest number and infinity
    return rank if exact >= 0 else -rank


def _bits(first: int, last: int, dtype: str) -> _Ranges:
    """Return the bits of the elements whose ranks are from `first` to `last`, both included."""
    size = 1 << 8 * DTYPES[dtype].itemsize
    if dtype == "float8_e8m0fnu":
        return _cut(first, last, 1, 255, -1)
    if dtype not in FLOATS:
        least, most = (0, size - 1) if dtype[0] == "u" else (-size // 2, size // 2 - 1)
        if dtype == "bool":  # any other bits than 0 are true
            return [(low, 255 * high) for low, high in _cut(first, last, 0, 1, 0)]
        return [(low % size, high % size) for low, high in _cut(first, last, least, most, 0)]
    _, _, top, infinite = FLOATS[dtype]
    zero = int(dtype.endswith("fnuz"))  # the least negative number: there is no -0
    positive = _cut(first, last, 0, top + infinite, 0)
    return positive + _cut(-last, -first, zero, top + infinite, size // 2)


def _cut(first: int, last: int, least: int, most: int, add: int) -> _Ranges:
    """Return the part of a range that is in another, moved by a number."""
    first, last = max(first, least), min(last, most)
    return [(first + add, last + add)] if first <= last else []


def _nan_bits(dtype: str) -> _Ranges:
    if dtype == "float8_e8m0fnu":
        return [(255, 255)]
    if dtype.endswith("fnuz"):
        return [(128, 128)]
    if dtype not in FLOATS:
        return []
    sign, first = (
        1 << 8 * DTYPES[dtype].itemsize - 1,
        FLOATS[dtype].top + FLOATS[dtype].infinite + 1,
    )
    return [(first, sign - 1), (sign + first, 2 * sign - 1)]


def _within(ranges: Iterable[tuple[int, int]]) -> _Mask:
    """Return a function that marks bits in any of some ranges."""

    def mask(bits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(bits), np.bool_)
        size = 256**bits.itemsize
        for first, last in ranges:  # unsigned integers below `first` wrap around
            moved = bits - bits.dtype.type(first) if first else bits
            found |= moved <= bits.dtype.type((last - first) % size)
        return found

    return mask


def _distance(center: complex, ranges: _Ranges) -> _Mask:
    """Return a function that marks complex numbers whose distance from a center is in ranges."""
    mask = _within(ranges)
    return lambda values: mask(magnitudes(values, center).view(np.uint64))


def nan() -> Predicate:
    """Return the condition that a value is NaN."""

    def rule(dtype: str) -> _Mask:
        if dtype in _PARTS:
            return _distance(0, _nan_bits("float64"))
        return _within(_nan_bits(dtype))

    return Predicate("nan", rule)


def near(value: complex, tolerance: float = 0) -> Predicate:
    """Return the condition that a number is at most `tolerance` from a value, both exact.

    Without a tolerance, the number must equal the value rounded to the dtype, as when a tensor is
    compared with a number.

    Raises
    ------
    TypeError, ValueError
        When value or tolerance is not a number or is NaN, or the tolerance negative or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> near(0.5, 0.1).search("float64").find(np.array([0.3, 0.45, 0.61]))[0].tolist()
    [1]
    """
    kinds: dict[str, tuple[type, ...]] = {"value": (int, float, complex), "tolerance": (int, float)}
    given: Any
    for name, given in (("value", value), ("tolerance", tolerance)):
        if type(given) not in kinds[name]:
            raise TypeError(f"{name} is of type {type(given).__name__}, expected a number")
        _check_size(given)
        if cmath.isnan(given):
            raise ValueError(f"{name} is nan, expected a number; nan needs a separate condition")
    if tolerance < 0 or tolerance == math.inf:
        raise ValueError(f"tolerance is {tolerance}, expected a finite number of at least 0")
    sought: Any = value
    if isinstance(sought, complex) and sought.imag == 0:
        sought = sought.real

    def rule(dtype: str) -> _Mask:
        if dtype in _PARTS:
            if cmath.isinf(sought):
                return _distance(0, _compared_bits("==", math.inf, "float64"))
            center = complex(sought)
            if tolerance == 0:
                sides = (rounded(side, dtype) for side in (center.real, center.imag))
                center = complex(*map(float, sides))
            return _distance(center, _compared_bits("<=", Fraction(tolerance), "float64"))
        if isinstance(sought, complex):
            return _within([])
        if tolerance == 0 or math.isinf(sought):
            return _within(_compared_bits("==", rounded(sought, dtype), dtype))
        ends = (Fraction(sought) - Fraction(tolerance), Fraction(sought) + Fraction(tolerance))
        low, high = (_rank(end, dtype) for end in ends)
        return _within(_bits(math.ceil(low), math.floor(high), dtype))

    words = f"value == {value}" if tolerance == 0 else f"abs(value - {value}) <= {tolerance}"
    return Predicate(words, rule)


def _compared_bits(sign: str, value: Number, dtype: str, *, both: bool = False) -> _Ranges:
    """Return the bits of elements x with ``x sign value``; with `both`, of x and -x for x >= 0."""
    rank = _rank(value, dtype)
    above, below = math.ceil(rank), math.floor(rank)
    first, last = {
        "<": (-_END, above - 1), "<=": (-_END, below), ">": (below + 1, _END),
        ">=": (above, _END), "==": (above, below),
    }[sign]  # fmt: skip
    if not both:
        return _bits(first, last, dtype)
    first = max(first, 0)
    return _bits(first, last, dtype) + _bits(-last, -first, dtype) if first <= last else []


def _compared(subject: str, sign: str, value: float) -> Predicate:
    """Return the condition of a text such as ``abs > 3`` or ``value > 3``."""
    if sign == "!=":  # NaN differs from everything, as in NumPy
        other = ~_compared(subject, "==", value)
        return Predicate(f"{subject} != {value}", other._rule)
    if subject == "value" and sign == "==":
        return near(value)

    def rule(dtype: str) -> _Mask:
        edge = rounded(value, dtype)
        if dtype in _PARTS:
            if subject == "value":
                raise TypeError(f"{dtype} has no order: expected abs {sign} {value}")
            return _distance(0, _compared_bits(sign, edge, "float64"))
        return _within(_compared_bits(sign, edge, dtype, both=subject == "abs"))

    return Predicate(f"{subject} {sign} {value}", rule)


def parse(text: str) -> Predicate:
    """Parse a condition.

    Parameters
    ----------
    text
        ``value`` or ``abs``, one of ``< <= > >= == !=``, a number; ``nan``, ``inf``, ``finite``;
        these joined by ``and``, ``or``, ``not`` and brackets. Also ``-1 <= value < 1``.

    Raises
    ------
    ValueError
        When the text is not a condition.

    Examples
    --------
    >>> parse("abs>1e3 and not inf")
    <predicate (abs > 1000.0) and (not (inf))>
    """
    if not isinstance(text, str):
        raise TypeError(f"a condition is of type {type(text).__name__}, expected str")
    if len(text) > _LONGEST:
        raise ValueError(f"a condition has {len(text):,} letters, expected up to {_LONGEST:,}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unclear(text) from None
    return _read(tree, text)


def _read(node: ast.expr, text: str) -> Predicate:
    if isinstance(node, ast.BoolOp):
        first, *others = (_read(value, text) for value in node.values)
        for other in others:
            first = first | other if isinstance(node.op, ast.Or) else first & other
        return first
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_read(node.operand, text)
    if isinstance(node, ast.Name):
        infinite = float("inf")
        if node.id == "nan":
            return nan()
        if node.id == "inf":
            return Predicate("inf", _compared("abs", "==", infinite)._rule)
        if node.id == "finite":
            return Predicate("finite", _compared("abs", "<", infinite)._rule)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        found = [_pair(sides[i], sign, sides[i + 1], text) for i, sign in enumerate(node.ops)]
        return reduce(and_, found)
    raise _unclear(text)


_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">"), ast.LtE: ("<=", ">="), ast.Gt: (">", "<"), ast.GtE: (">=", "<="),
    ast.Eq: ("==", "=="), ast.NotEq: ("!=", "!="),
}  # fmt: skip


def _pair(left: ast.expr, sign: ast.cmpop, right: ast.expr, text: str) -> Predicate:
    if type(sign) not in _SIGNS:
        raise _unclear(text)
    here, there = _SIGNS[type(sign)]
    if isinstance(left, ast.Name) and left.id in ("value", "abs"):
        return _compared(left.id, here, _number(right, text))
    if isinstance(right, ast.Name) and right.id in ("value", "abs"):
        return _compared(right.id, there, _number(left, text))
    raise _unclear(text)


def _number(node: ast.expr, text: str) -> float:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        found = _number(node.operand, text)
        return -found if isinstance(node.op, ast.USub) else found
    if isinstance(node, ast.Name) and node.id == "inf":
        return float("inf")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        constant: Any = node.value
        _check_size(constant)
        return float(constant) if isinstance(constant, float) else int(constant)
    raise _unclear(text)


def _check_size(value: complex) -> None:
    if isinstance(value, int) and value.bit_length() > 1000:
        raise ValueError("a number has more than 1,000 bits, expected one that float64 can hold")


def _unclear(text: str) -> ValueError:
    return ValueError(
        f"cannot parse the condition {text[:80]!r}, expected for example 'abs > 1e3', "
        "'-1 <= value < 1', 'nan or inf'"
    )
