"""Validation of numeric arguments."""

from __future__ import annotations

import numbers
import operator
from typing import Any

__all__ = ["LIMIT", "integer"]


#: Positions are in [0, LIMIT). A stream without epochs has one, of this length.
LIMIT = 2**63 - 1


def integer(name: str, value: object, *, low: int = 0, high: int = LIMIT) -> int:
    """`value` as an int in [low, high], or an error that names it.

    Raises
    ------
    TypeError
        For what is no integer: a float, a bool, a string.
    ValueError
        For an integer out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} has to be an int, got {type(value).__name__} {value!r}")
    if not low <= number <= high:
        bound = f"at least {low}" if number < low else f"at most {high}"
        raise ValueError(f"{name} has to be {bound}, got {number}")
    return number


# Rows and spans stay far inside 64 bits, so that sums of two of them cannot overflow.
_LONGEST = 2**61


def checked_integer(name: str, value: Any, least: int) -> int:
    """The integer `value` if it is at least `least`; a TypeError or ValueError naming it if not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} is {value!r} ({type(value).__name__}), expected an integer"
        ) from None
    if number < least:
        raise ValueError(f"{name} is {number}, expected at least {least}")
    if number > _LONGEST:
        raise OverflowError(f"{name} is {number}, expected at most 2**61 rows")
    return number


def checked_number(name: str, value: Any) -> float:
    """`value` as a float; a TypeError naming it if it is no number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), expected a number")
    return float(value)
