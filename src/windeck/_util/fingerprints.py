"""Fingerprints of data and orders, which saved positions are compared with.

A position means the same sample only over the same data in the same order. The fingerprint of a
source or stream is a flat ``dict[str, str | int]``: sizes and options as they are, contents as
digests. It holds no path, time, world size or batch size, so that data may move and training may
be distributed differently.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Explain",
    "check_fingerprint",
    "digest",
    "checked_order_name",
    "order_name",
    "sample_rows",
]

#: (field, saved value or None, current value or None) -> a sentence, or None.
Explain: TypeAlias = "Callable[[str, Any, Any], str | None]"

#: Last parts of the names of fields that follow from others: from options, or from the data.
CONSEQUENCES = ("samples", "windows", "starts")

#: Number of rows whose digest represents a long column.
SAMPLED_ROWS = 4096


def digest(*parts: object) -> str:
    """Hash values to 32 hexadecimal digits, the same on every machine and in every process.

    Parameters
    ----------
    *parts
        ``None``, bool, int, float, str, bytes, NumPy arrays and scalars, and lists, tuples and
        dicts of these. Kind, length and (for arrays) dtype and shape are hashed as well, so
        that ``("ab", "c")`` differs from ``("a", "bc")``, and 1 from True.

    Returns
    -------
    str
        BLAKE2b of the canonical bytes. O(bytes) time.

    Raises
    ------
    TypeError
        For a value of any other type, and for arrays of Python objects.

    Examples
    --------
    >>> digest("load", 3) == digest("load", 3)
    True
    >>> digest(np.arange(3)) == digest(np.arange(3.0))
    False
    """
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        _update(state, part)
    return state.hexdigest()


def check_fingerprint(
    saved: Mapping[str, str | int],
    current: Mapping[str, str | int],
    explain: Explain | None = None,
) -> None:
    """Compare the fingerprint of a saved state with the current one.

    Parameters
    ----------
    saved, current
        The two fingerprints.
    explain
        Function of a field that differs and both values; returns a reason, or None.

    Raises
    ------
    ValueError
        With the reason of `explain` for the first field that it has one for; otherwise with the
        first field that differs and both values, options before the numbers that follow from them.

    Examples
    --------
    >>> check_fingerprint({"size": 3, "seed": 7}, {"size": 3, "seed": 8})
    Traceback (most recent call last):
        ...
    ValueError: the state does not belong to this data: its fingerprint has seed = 7, here it is 8
    """
    fields = [
        field
        for field in dict.fromkeys([*current, *saved])
        if saved.get(field) != current.get(field)
    ]
    # A changed file also changes totals: report the field that has a reason first.
    for field in fields if explain else ():
        # The keys of a foreign state may be of any type.
        known = explain if isinstance(field, str) else None
        reason = known and known(field, saved.get(field), current.get(field))
        if reason:
            raise ValueError(f"the state does not belong to this data: {reason}")
    for field in sorted(fields, key=_follows):
        was, now = saved.get(field), current.get(field)
        raise ValueError(
            "the state does not belong to this data: its fingerprint has "
            f"{_describe(field, was)}, here it is {'missing' if now is None else repr(now)}"
        )


def sample_rows(n: int) -> NDArray[np.int64]:
    """Return the rows to hash in place of all `n`: evenly spread, including first and last.

    Parameters
    ----------
    n
        Number of rows, 0 or more.

    Returns
    -------
    int64 array of shape (min(n, 4096),)
        Ascending and distinct; all rows if there are at most 4,096.

    Examples
    --------
    >>> sample_rows(3)
    array([0, 1, 2])
    >>> sample_rows(10**12)[[0, -1]]
    array([           0, 999999999999])
    """
    if n < 0:
        raise ValueError(f"`n` must be at least 0, got {n}")
    count = min(n, SAMPLED_ROWS)
    # Python integers: i * (n - 1) exceeds 64 bits for n near 2^63.
    rows = [i * (n - 1) // max(1, count - 1) for i in range(count)]
    return np.array(rows, dtype=np.int64)


def order_name(factory: Callable[..., object]) -> str:
    """Return the name of an order factory with its options, equal in every process.

    Parameters
    ----------
    factory
        A class or function ``f(size, *, seed, epoch)``, or a `functools.partial` of one. Arrays
        among the options appear as digests. windeck's own are named without their module. Another
        callable object is named by its type, and by its `repr` if its type defines one.

    Returns
    -------
    str
        For example ``"Permutation"`` or ``"BlockPermutation(block_size=256)"``.

    Examples
    --------
    >>> import fractions
    >>> order_name(functools.partial(fractions.Fraction, 1, denominator=3))
    'fractions.Fraction(1, denominator=3)'
    """
    if isinstance(factory, functools.partial):
        options = [_option(value) for value in factory.args]
        options += [f"{name}={_option(value)}" for name, value in sorted(factory.keywords.items())]
        return f"{order_name(factory.func)}({', '.join(options)})"
    kind: Any = type(factory)
    is_object = not hasattr(factory, "__qualname__")
    named: Any = kind if is_object else factory
    module = str(getattr(named, "__module__", "") or "")
    name = str(named.__qualname__)
    if module.split(".")[0] not in ("windeck", "builtins", ""):
        name = f"{module}.{name}"
    if is_object and kind.__repr__ is not object.__repr__:
        name = f"{name}:{factory!r}"
    return name


def checked_order_name(factory: Callable[..., object]) -> str:
    """Return the name of an order factory for a fingerprint.

    Raises
    ------
    ValueError
        For a lambda: all lambdas of a function have the same name.

    Examples
    --------
    >>> checked_order_name(lambda size, *, seed, epoch: range(size))
    Traceback (most recent call last):
        ...
    ValueError: the order is a lambda, which a state cannot tell from another; expected a class, a \
function made with def, or a functools.partial of one
    """
    name = order_name(factory)
    if "<lambda>" in name:
        raise ValueError(
            "the order is a lambda, which a state cannot tell from another; expected a class, a "
            "function made with def, or a functools.partial of one"
        )
    return name


def _option(value: object) -> str:
    if isinstance(value, np.ndarray) or (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) > 8
    ):
        return f"#{digest(np.asarray(value))}"
    return order_name(value) if callable(value) else repr(value)


def _follows(field: object) -> bool:
    """Return True for a field that follows from others. Keys of a foreign state may be no texts."""
    return str(field).split(".")[-1] in CONSEQUENCES


def _describe(field: str, value: str | int | None) -> str:
    return f"no {field}" if value is None else f"{field} = {value!r}"


def _update(state: hashlib.blake2b, part: object) -> None:
    if isinstance(part, (list, tuple)):
        state.update(b"l%d:" % len(part))
        for item in part:
            _update(state, item)
    elif isinstance(part, Mapping):
        state.update(b"d%d:" % len(part))
        for key, value in part.items():
            _update(state, key)
            _update(state, value)
    else:
        for content in _canonical(part):
            state.update(b"%d:" % len(content))
            state.update(content)


def _canonical(part: object) -> tuple[bytes, ...]:
    """Return kind and bytes of one value; arrays as little-endian and C-contiguous."""
    if isinstance(part, (np.ndarray, np.generic)):
        array = np.asarray(part)
        if array.dtype.hasobject:
            raise TypeError(f"expected numbers, strings or times in an array, got {array.dtype}")
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        shape = ",".join(map(str, np.shape(part)))
        return b"array", array.dtype.str.encode(), shape.encode(), array.tobytes()
    if part is None:
        return (b"none",)
    if isinstance(part, (bool, int, float)):
        return type(part).__name__.encode(), repr(part).encode()
    if isinstance(part, str):
        return b"str", part.encode()
    if isinstance(part, (bytes, bytearray, memoryview)):
        return b"bytes", bytes(part)
    raise TypeError(
        f"expected None, bool, int, float, str, bytes or an array, got {type(part).__name__}"
    )
