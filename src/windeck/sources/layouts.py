"""Layouts of batches: dtypes and shapes of rows, and gathers into given arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windeck._core import empty_rows
from windeck.sources.members import BatchMethods, check_rows
from windeck.sources.protocols import Batch

__all__ = [
    "Layout",
    "are_written",
    "check_out",
    "check_written",
    "common_layout",
    "difference",
    "is_written",
    "layout_of",
    "unlike_rows",
]

#: dtype and shape of one row, by key.
Layout: TypeAlias = "dict[str, tuple[np.dtype[Any], tuple[int, ...]]]"


def layout_of(data: BatchMethods) -> Layout:
    """Return dtype and shape of a row of a source or stream by key. Gathers no rows."""
    rows = data.gather_rows(np.empty(0, np.int64))
    if not rows:
        raise TypeError("the source returned an empty dict, expected a dict of arrays")
    for key, array in rows.items():
        if array.dtype.hasobject:
            raise TypeError(f"{key!r} is an array of objects, expected a NumPy array of values")
        if array.shape[:1] != (0,):
            raise ValueError(
                f"{key!r} has shape {array.shape} in a batch of no rows, expected 0 rows: whole() "
                "returns arrays of the whole batch"
            )
    return _layout_of_arrays(rows)


def common_layout(parts: Mapping[str, BatchMethods]) -> Layout:
    """Return the layout of rows of several parts, which must have it in common.

    Layouts are compared before and after `present`.

    Parameters
    ----------
    parts
        Members of sources or streams, by their names for errors.

    Raises
    ------
    TypeError, ValueError
        If a batch of a part is no dict of arrays, or if a part differs from the first; it names the
        part and the key.
    """
    seen: list[tuple[Layout, Layout, dict[str, str]]] = []
    first = next(iter(parts))
    for name, part in parts.items():
        try:
            layout = layout_of(part)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name} does not fit: {error}") from None
        views = _layout_of_arrays(part.complete(empty_rows(layout, 0)))
        seen.append((layout, views, dict(part.torch_dtypes)))
        differs = difference(layout, seen[0][0]) or difference(views, seen[0][1])
        if seen[-1][2] != seen[0][2]:
            differs = differs or f"has torch dtypes {seen[-1][2]} and not {seen[0][2]}"
        if differs:
            raise ValueError(
                f"batches of all parts must be alike: {name} {differs}, unlike {first}"
            )
    return seen[0][0]


def difference(one: Layout, other: Layout) -> str | None:
    """Return a description of the first difference of two layouts, or None."""
    for key in [*one, *other]:
        if key not in other:
            return f"has a key {key!r}"
        if key not in one:
            return f"has no key {key!r}"
        if one[key] != other[key]:
            return f"has {key!r} as {_describe(one[key])} and not {_describe(other[key])}"
    return None


def unlike_rows(batch: Batch, out: Batch, count: int) -> TypeError:
    """Return the error for rows of a part that do not fit into `count` rows of a batch."""
    check_rows(batch, count)
    differs = difference(_layout_of_arrays(batch), _layout_of_arrays(out))
    return TypeError(f"a batch {differs}: rows of a source must be alike in all batches")


def check_out(out: Batch, layout: Layout, count: int) -> None:
    """Raise an error if `out` is no dict of arrays of this layout and number of rows."""
    if not isinstance(out, dict):
        raise TypeError(f"`out` must be a dict of arrays, got {type(out).__name__}")
    for key, array in out.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"`out` has {key!r} of type {type(array).__name__}, expected an array")
        if array.shape[:1] != (count,):
            raise ValueError(f"`out` has {key!r} of shape {array.shape}, expected {count} rows")
    differs = difference(_layout_of_arrays(out), layout)
    if differs:
        raise ValueError(f"`out` {differs}, unlike the rows of this stream")


def check_written(batch: Batch, out: Batch) -> None:
    """Raise a TypeError if a source did not write into `out`."""
    for key, array in out.items():
        if not is_written(array, batch.get(key)):
            raise TypeError(
                f"the source gave an array of its own for {key!r} instead of writing into `out`"
            )


def are_written(out: Batch, rows: Batch) -> bool:
    """Return whether the rows of a gather are the arrays that it was given to write into."""
    return isinstance(rows, Mapping) and all(
        is_written(array, rows.get(key)) for key, array in out.items()
    )


def is_written(target: NDArray[Any], found: NDArray[Any] | None) -> bool:
    """Return whether a gathered array is the array that was given to write into, all of it."""
    if found is target or not target.size:
        return True
    return (
        isinstance(found, np.ndarray)
        and found.ctypes.data == target.ctypes.data
        and (found.dtype, found.shape) == (target.dtype, target.shape)
        and found.strides == target.strides
    )


def _layout_of_arrays(batch: Batch) -> Layout:
    return {key: (array.dtype, array.shape[1:]) for key, array in batch.items()}


def _describe(of_key: tuple[np.dtype[Any], tuple[int, ...]]) -> str:
    dtype, shape = of_key
    return f"{dtype} of shape (k{''.join(f', {size}' for size in shape)})"
