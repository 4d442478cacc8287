"""Validation of numeric arguments, and of format numbers."""

from __future__ import annotations

import numbers
import operator
import re
from typing import Any

__all__ = ["LIMIT", "check_bytes", "check_format", "check_integer", "check_number"]


#: Positions are in [0, LIMIT). A stream without epochs has one epoch of this length.
LIMIT = 2**63 - 1


def check_integer(name: str, value: Any, *, least: int = 0, most: float = LIMIT) -> int:
    """Return `value` as an int in [least, most].

    Parameters
    ----------
    name
        The name of the argument, for the error message.
    value
        An int, or any object with ``__index__`` except a bool.
    least, most
        Bounds, both included.

    Raises
    ------
    TypeError
        If `value` is not an integer: a float, a bool, a string.
    ValueError
        If it is out of range.

    Examples
    --------
    >>> check_integer("stride", 0, least=1)
    Traceback (most recent call last):
        ...
    ValueError: `stride` must be at least 1, got 0
    """
    if type(value) is int and least <= value <= most:
        return value
    label = f"`{name}`" if name.isidentifier() else name
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{label} must be an integer, got {type(value).__name__} {value!r}"
        ) from None
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ValueError(f"{label} must be {bound}, got {number}")
    return number


def check_bytes(name: str, value: Any, *, least: int = 1, most: float = LIMIT) -> int:
    """Return `value` as a number of bytes in [least, most].

    Parameters
    ----------
    name
        The name of the argument, for the error message.
    value
        An integer, a whole float such as ``8e9``, or text such as ``"64MB"``, ``"1.5 GB"`` (10^9)
        or ``"2 GiB"`` (2^30).
    least, most
        Bounds, both included.

    Raises
    ------
    TypeError
        If `value` is none of these.
    ValueError
        For other text, a float with a fraction, or a number out of range.

    Examples
    --------
    >>> check_bytes("memory_budget", "1.5 GB"), check_bytes("memory_budget", 8e9)
    (1500000000, 8000000000)
    """
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B\s*", value)
        if found is None or (found[3] and not found[2]):
            raise ValueError(f'`{name}` must be bytes as text such as "64MB", got {value!r}')
        base = 1024 if found[3] else 1000
        value = int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " "))
    elif isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"`{name}` must be a whole number of bytes, got {value}")
        value = int(value)
    return check_integer(name, value, least=least, most=most)


def check_format(name: str, found: object, expected: int) -> None:
    """Raise a ValueError for stored data of another format than the only one that is read.

    Parameters
    ----------
    name
        What was read, for the error message.
    found, expected
        The format number that it has, and the one that this release writes.

    Examples
    --------
    >>> check_format("the scaler", 2, 1)
    Traceback (most recent call last):
        ...
    ValueError: the scaler has format 2, expected 1: a later windeck wrote it
    """
    if type(found) is not int or found != expected:
        is_later = type(found) is int and found > expected
        cause = ": a later windeck wrote it" if is_later else ""
        text = "no format" if found is None else f"format {repr(found)[:40]}"
        raise ValueError(f"{name} has {text}, expected {expected}{cause}")


def check_number(name: str, value: Any) -> float:
    """Return `value` as a float; raise a TypeError that names it if it is not a real number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number, got {type(value).__name__} {value!r}")
    return float(value)
