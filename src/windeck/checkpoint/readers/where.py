"""Conditions on numbers, such as ``abs > 1e3 or nan``, as what the native search looks for.

A condition is a set of numbers, and NaN or not. What a set is for a dtype is worked out once,
exactly, so a search compares nothing but codes of the dtype. Needs no torch.
"""

from __future__ import annotations

import ast
import cmath
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from windeck._core import Search
from windeck.checkpoint.format import intervals
from windeck.checkpoint.format.intervals import NONE, Set

__all__ = ["Where", "nan", "near", "parse"]

_COMPLEX = ("complex32", "complex64", "complex128")
#: Deeper than anybody writes, shallower than Python's stack.
_LONGEST = 1000


@dataclass(frozen=True)
class _Found:
    """What is sought in one dtype; for a complex one, distances from a centre (None: any)."""

    numbers: Set
    nan: bool
    center: complex | None = None


_Rule = Callable[[str], _Found]


class Where:
    """A condition; made by `parse`, `near` and `nan`, joined by ``|``, ``&`` and ``~``.

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
        return f"<where {self.text}>"

    def __or__(self, other: Where) -> Where:
        def rule(dtype: str) -> _Found:
            a, b = self._rule(dtype), other._rule(dtype)
            found = intervals.union(a.numbers, b.numbers)
            return _Found(found, a.nan or b.nan, _center(a, b))

        return Where(f"({self.text}) or ({other.text})", rule)

    def __invert__(self) -> Where:
        def rule(dtype: str) -> _Found:
            was = self._rule(dtype)
            return _Found(intervals.complement(was.numbers), not was.nan, was.center)

        return Where(f"not ({self.text})", rule)

    def __and__(self, other: Where) -> Where:
        def rule(dtype: str) -> _Found:
            a, b = self._rule(dtype), other._rule(dtype)
            outside = map(intervals.complement, (a.numbers, b.numbers))
            found = intervals.complement(intervals.union(*outside))
            return _Found(found, a.nan and b.nan, _center(a, b))

        return Where(f"({self.text}) and ({other.text})", rule)

    def search(self, dtype: str) -> Search:
        """What finds it in elements of a dtype, named as torch does.

        Raises
        ------
        TypeError
            For an order asked of complex numbers, which have none, or a dtype that is no number.
        ValueError
            For distances from several complex numbers at once.
        """
        found = self._rule(dtype)
        if dtype.startswith("float") or dtype == "bfloat16" or dtype in _COMPLEX:
            ranges: list[tuple[float, float]] = intervals.as_floats(found.numbers)
        else:
            natural = dtype.startswith("uint") or dtype == "bool"
            ranges = [*intervals.as_integers(found.numbers, natural=natural)]
        try:
            return Search(dtype, ranges, nan=found.nan, center=found.center or 0)
        except ValueError as error:
            raise TypeError(f"cannot search in elements of dtype {dtype}: {error}") from None


def nan() -> Where:
    """What is not a number."""
    return Where("nan", lambda dtype: _Found(NONE, True))


def near(value: complex, tolerance: float = 0) -> Where:
    """Numbers no farther than `tolerance` from a value, both taken exactly.

    Without a tolerance, those that are equal to it when it is rounded to their dtype, as a tensor
    compared with a number does.

    Raises
    ------
    TypeError, ValueError
        For a value or tolerance that is no number, is NaN, or a tolerance below 0 or infinite.

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
            raise ValueError(f"{name} is nan, expected a number; look for nan by itself")
    if tolerance < 0 or tolerance == float("inf"):
        raise ValueError(f"tolerance is {tolerance}, expected a finite number of at least 0")
    sought: Any = value
    if isinstance(sought, complex) and sought.imag == 0:
        sought = sought.real

    def rule(dtype: str) -> _Found:
        if dtype in _COMPLEX:
            if cmath.isinf(sought):
                return _Found(intervals.around(float("inf"), 0), False)
            center = complex(sought)
            if tolerance == 0:
                parts = (intervals.rounded(part, dtype) for part in (center.real, center.imag))
                center = complex(*map(float, parts))
            return _Found(intervals.around(0, tolerance), False, center)
        if isinstance(sought, complex):
            return _Found(NONE, False)
        if tolerance == 0:
            return _Found(intervals.compared("==", sought, dtype), False)
        return _Found(intervals.around(sought, tolerance), False)

    words = f"value == {value}" if tolerance == 0 else f"abs(value - {value}) <= {tolerance}"
    return Where(words, rule)


def _compared(subject: str, sign: str, value: float) -> Where:
    """``abs > 3`` or ``value > 3``."""
    if subject == "value" and sign in ("==", "!="):
        return near(value) if sign == "==" else ~near(value)

    def rule(dtype: str) -> _Found:
        # NaN differs from everything, as in NumPy, so != is what == is not.
        found = intervals.compared("==" if sign == "!=" else sign, value, dtype)
        if subject == "abs" and dtype in _COMPLEX:
            whole, center = _Found(found, False, 0j), 0j
        elif dtype in _COMPLEX:
            raise TypeError(f"{dtype} has no order: expected abs {sign} {value}")
        else:
            center = None
            whole = _Found(intervals.mirrored(found) if subject == "abs" else found, False)
        if sign == "!=":
            return _Found(intervals.complement(whole.numbers), True, center)
        return whole

    return Where(f"{subject} {sign} {value}", rule)


def _center(a: _Found, b: _Found) -> complex | None:
    if a.center is None or b.center is None or a.center == b.center:
        return b.center if a.center is None else a.center
    raise ValueError(
        f"distances from {a.center} and from {b.center} in one condition, expected one of them"
    )


def parse(text: str) -> Where:
    """The condition a text says.

    Parameters
    ----------
    text
        ``value`` or ``abs``, one of ``< <= > >= == !=``, a number; ``nan``, ``inf``, ``finite``;
        these joined by ``and``, ``or``, ``not`` and brackets. Also ``-1 <= value < 1``.

    Raises
    ------
    ValueError
        Saying what is wrong with the text.

    Examples
    --------
    >>> parse("abs>1e3 and not inf")
    <where (abs > 1000.0) and (not (inf))>
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


def _read(node: ast.expr, text: str) -> Where:
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
            return Where("inf", _compared("abs", "==", infinite)._rule)
        if node.id == "finite":
            return Where("finite", _compared("abs", "<", infinite)._rule)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        found = [_pair(sides[i], sign, sides[i + 1], text) for i, sign in enumerate(node.ops)]
        return reduce(and_, found)
    raise _unclear(text)


_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">"), ast.LtE: ("<=", ">="), ast.Gt: (">", "<"), ast.GtE: (">=", "<="),
    ast.Eq: ("==", "=="), ast.NotEq: ("!=", "!="),
}  # fmt: skip


def _pair(left: ast.expr, sign: ast.cmpop, right: ast.expr, text: str) -> Where:
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
        f"cannot read the condition {text[:80]!r}, expected such as 'abs > 1e3', "
        "'-1 <= value < 1', 'nan or inf'"
    )
