"""Layouts of batches: dtypes and shapes of rows, and gathers into given arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windeck.columns.columns import aligned_empty
from windeck.sources.members import BatchMethods
from windeck.sources.protocols import Batch, Indices

__all__ = [
    "Layout",
    "check_out",
    "check_written",
    "common_layout",
    "difference",
    "empty_rows",
    "gather_into",
    "layout_of",
]

#: dtype and shape of one row, by key.
Layout: TypeAlias = "dict[str, tuple[np.dtype[Any], tuple[int, ...]]]"


def layout_of(data: BatchMethods) -> Layout:
    """Return dtype and shape of a row of a source or stream by key. Gathers no rows."""
    rows = data.gather_rows(np.empty(0, np.int64))
    for key, array in rows.items():
        if array.shape[:1] != (0,):
            raise ValueError(
                f"{key!r} has shape {array.shape} in a batch of no rows, expected 0 rows: whole() "
                "returns arrays of the whole batch"
            )
    return {key: (array.dtype, array.shape[1:]) for key, array in rows.items()}


def common_layout(parts: Mapping[str, BatchMethods]) -> Layout:
    """Return the layout of rows of several parts, which must have it in common.

    Layouts are compared before and after `present`.

    Parameters
    ----------
    parts
        Members of sources or streams, by their names for errors.

    Raises
    ------
    ValueError
        If a part differs from the first; it names the part and the key.
    """
    seen: list[tuple[Layout, Layout, dict[str, str]]] = []
    first = next(iter(parts))
    for name, part in parts.items():
        try:
            layout = layout_of(part)
        except ValueError as error:
            raise ValueError(f"{name} does not fit: {error}") from None
        shown = part.complete(empty_rows(layout, 0))
        views = {key: (array.dtype, array.shape[1:]) for key, array in shown.items()}
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


def empty_rows(layout: Layout, count: int) -> Batch:
    """Return uninitialised arrays of `count` rows, each 64-byte aligned."""
    batch: Batch = {}
    for key, (dtype, shape) in layout.items():
        batch[key] = aligned_empty((count, *shape), dtype)
    return batch


def gather_into(
    data: BatchMethods, indices: Indices, rows: Indices, out: Batch, **options: Any
) -> None:
    """Gather samples of a source or stream into `rows` of `out`.

    Adjacent ascending rows are written in place. Other rows, and those of a source that does not
    write into `out`, are copied once, by one call of NumPy for each key.

    Raises
    ------
    TypeError
        If dtypes or shapes differ from those of `out`.
    """
    first, last = int(rows[0]), int(rows[-1])
    adjacent = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    target = {key: array[first : last + 1] for key, array in out.items()} if adjacent else None
    if target is not None:
        options["out"] = target
    batch = data.gather(indices, **options)
    if target is not None and all(_is_in(array, batch.get(key)) for key, array in target.items()):
        return
    expected = {key: (array.dtype, array.shape[1:]) for key, array in out.items()}
    found = {key: (array.dtype, array.shape[1:]) for key, array in batch.items()}
    differs = difference(found, expected)
    if differs:
        raise TypeError(f"a batch {differs}: rows of a source must be alike in all batches")
    for key, array in batch.items():
        out[key][rows] = array


def check_out(out: Batch, layout: Layout, count: int) -> None:
    """Raise a ValueError if arrays to write into do not have this layout and number of rows."""
    for key, array in out.items():
        if array.shape[:1] != (count,):
            raise ValueError(f"`out` has {key!r} of shape {array.shape}, expected {count} rows")
    differs = difference({key: (a.dtype, a.shape[1:]) for key, a in out.items()}, layout)
    if differs:
        raise ValueError(f"`out` {differs}, as the rows of this stream")


def check_written(batch: Batch, out: Batch) -> None:
    """Raise a TypeError if a source did not write into `out`."""
    for key, array in out.items():
        if not _is_in(array, batch.get(key)):
            raise TypeError(
                f"the source gave an array of its own for {key!r} instead of writing into `out`"
            )


def _is_in(target: NDArray[Any], found: NDArray[Any] | None) -> bool:
    """Return whether a gathered array is the array that was given to write into."""
    return not target.size or (found is not None and found.ctypes.data == target.ctypes.data)


def _describe(of_key: tuple[np.dtype[Any], tuple[int, ...]]) -> str:
    dtype, shape = of_key
    return f"{dtype} of shape (k{''.join(f', {size}' for size in shape)})"
