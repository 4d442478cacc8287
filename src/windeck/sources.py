"""What windeck expects of orders, sources and streams: shapes, not base classes.

Whatever has these methods takes part; a source of one's own is ten lines::

    class Squares:
        fingerprint = {"squares": 1000}

        def __len__(self):
            return 1000

        def gather(self, indices, out=None):
            return {"x": indices.astype(np.float32) ** 2}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Batch",
    "EpochSource",
    "Fingerprint",
    "Indices",
    "Layout",
    "Order",
    "OrderFactory",
    "RowSource",
    "Source",
    "Stream",
    "as_positions",
    "check_out",
    "check_source",
    "check_written",
    "common_layout",
    "empty_rows",
    "gather_into",
    "gather_rows",
    "present",
    "presented",
    "whole",
]


#: int64, one-dimensional.
Indices: TypeAlias = NDArray[np.int64]
#: One array for each key, the samples along the first axis.
Batch: TypeAlias = dict[str, NDArray[Any]]
#: Flat, and fit for JSON; see `windeck._util.fingerprints`.
Fingerprint: TypeAlias = Mapping[str, "str | int"]


@runtime_checkable
class Order(Protocol):
    """A bijection of [0, size): at which place of the epoch which sample is served."""

    def __len__(self) -> int:
        """The size."""
        ...

    def slice(self, start: int, stop: int, out: Indices | None = None) -> Indices:
        """The samples at the places [start, stop), in the order of places."""
        ...

    def take(self, indices: Indices, out: Indices | None = None) -> Indices:
        """The samples at any places."""
        ...

    def index(self, samples: Indices) -> Indices:
        """The places of any samples: the inverse of `take`."""
        ...


class OrderFactory(Protocol):
    """Makes the order of one epoch. Equal arguments make equal orders, for ever."""

    def __call__(self, size: int, /, *, seed: int, epoch: int) -> Order:
        """The order of `size` samples; `seed` and `epoch` are in [0, 2^64)."""
        ...


@runtime_checkable
class Source(Protocol):
    """Finite data with random access.

    Two attributes are optional. ``supports_threads = True`` says that `gather` takes a
    ``threads=`` keyword. ``torch_dtypes: dict[str, str]`` names the keys whose arrays hold bits
    of a type NumPy lacks: ``{"past_target": "bfloat16"}`` for uint16 arrays.
    """

    def __len__(self) -> int:
        """Samples there are."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """What the data is: sizes, options, digests of contents."""
        ...

    def gather(self, indices: Indices, out: Batch | None = None) -> Batch:
        """One batch: row k of every array belongs to sample ``indices[k]``.

        The arrays are new, writable and contiguous, or those of `out`. `indices` may be empty:
        the arrays then have no rows and their usual dtypes and trailing shapes. Called from
        several threads at once.
        """
        ...


@runtime_checkable
class EpochSource(Source, Protocol):
    """A source that shuffles inside: its contents by place differ from epoch to epoch."""

    def at_epoch(self, epoch: int, /, *, seed: int) -> Source:
        """The source of one epoch, of the same length."""
        ...


@runtime_checkable
class RowSource(Source, Protocol):
    """A source, or likewise a stream, whose batches are more than their rows.

    Its `gather` gives ``present({**rows, **whole(rows)})`` with ``rows = gather_rows(...)``, and
    whoever puts batches together from several places, pins them or moves them to a device goes
    these steps one by one. A source that shuffles inside has the three methods too.
    """

    def gather_rows(self, indices: Indices, out: Batch | None = None) -> Batch:
        """Arrays with one row for each index; `out`, dtypes and empty `indices` as in `gather`."""
        ...

    def whole(self, rows: Batch) -> Batch:
        """Arrays that belong to the batch as a whole, made of all its rows: where parts end."""
        ...

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as users see it: views in place of buffers.

        The values are NumPy arrays or torch tensors on any device, rows and whole together. The
        dict is the callee's to change.
        """
        ...


@runtime_checkable
class Stream(Protocol):
    """Endless data: a pure function of the position. Optional attributes as for `Source`.

    Optional methods are those of `RowSource`, over positions, and, as `windeck.Stream` and
    `windeck.Mixture` have them:

    * ``samples(positions)`` and ``position_of(samples, *, epoch)``, for a loader to name samples
      and steps; ``epoch_of(sample, *, at)`` where `epoch_length` is None;
    * ``documents_at(positions)`` and ``document_runs(document, *, at, epoch)``, to name documents;
    * ``fingerprint_at(position)``: what of the fingerprint a state at a position depends on;
    * ``explain_change(field, was, now)``: a sentence for a field that differs, or None. Sources
      may have it too.
    """

    @property
    def epoch_length(self) -> int | None:
        """Positions in an epoch; None where there are no epochs."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """What the stream is: that of its sources, and order and seed."""
        ...

    def gather(self, positions: Indices, out: Batch | None = None) -> Batch:
        """One batch: row k of every array belongs to ``positions[k]``."""
        ...


def check_source(source: object) -> None:
    """Tell of what is no source, before a first batch is asked for or a first state saved.

    Raises
    ------
    TypeError
        When `__len__`, `gather` or `fingerprint` is missing.
    """
    missing = [name for name in ("__len__", "gather", "fingerprint") if not _has(source, name)]
    if missing:
        raise TypeError(
            f"expected a source (with __len__, gather and fingerprint), got "
            f"{type(source).__name__} without {', '.join(missing)}"
        )


def as_positions(values: ArrayLike, name: str = "positions") -> Indices:
    """`values` as a one-dimensional int64 array.

    Raises
    ------
    TypeError, ValueError, IndexError
        For what is no integer, has another shape, or is outside [0, 2^63), under its `name`.
    """
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} have to be integers, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name} have to be one-dimensional, got shape {array.shape}")
    if array.min() < 0:
        raise IndexError(f"{name} begin at 0, got {array.min()}")
    if array.dtype == np.uint64 and array.max() >= 2**63:
        raise IndexError(f"{name} end below 2^63, got {array.max()}")
    return array.astype(np.int64, copy=False)


def _has(source: object, name: str) -> bool:
    # Statically first: a fingerprint may be a property that hashes for a while.
    return inspect.getattr_static(source, name, None) is not None or hasattr(source, name)


T = TypeVar("T")
#: dtype and shape of one row, by key.
Layout: TypeAlias = "dict[str, tuple[np.dtype[Any], tuple[int, ...]]]"


def gather_rows(data: Any, indices: Indices, out: Batch | None = None, **extra: Any) -> Batch:
    """The rows of a source or stream: its `gather_rows`, or its `gather` where it has none."""
    gather = getattr(data, "gather_rows", None) or data.gather
    if out is not None:
        extra["out"] = out
    rows: Batch = gather(indices, **extra)
    return rows


def whole(data: Any, rows: Batch) -> Batch:
    """The arrays of the whole batch that these rows make; none for most sources."""
    of_rows = getattr(data, "whole", None)
    return {} if of_rows is None else dict(of_rows(rows))


def present(data: Any, batch: dict[str, T]) -> dict[str, T]:
    """A batch of arrays or tensors as the source shows it: its views in place of its buffers."""
    shown = getattr(data, "present", None)
    return batch if shown is None else shown(batch)


def presented(data: Any, rows: Batch) -> Batch:
    """Rows as the batch they make, which is what `gather` returns."""
    if not hasattr(data, "whole") and not hasattr(data, "present"):
        return rows
    return present(data, {**rows, **whole(data, rows)})


def layout_of(data: Any) -> Layout:
    """The rows of a source or stream by key: their dtype and shape. Asks for no rows."""
    rows = gather_rows(data, np.empty(0, np.int64))
    for key, array in rows.items():
        if array.shape[:1] != (0,):
            raise ValueError(
                f"{key!r} has shape {array.shape} in a batch of no rows, expected 0 rows: what is "
                "of the whole batch belongs into whole()"
            )
    return {key: (array.dtype, array.shape[1:]) for key, array in rows.items()}


def common_layout(parts: Mapping[str, Any]) -> Layout:
    """The rows of parts whose batches are alike, before `present` and after it.

    Parameters
    ----------
    parts
        Sources or streams, by what an error calls them.

    Raises
    ------
    ValueError
        Naming a part and a key that differ from the first part's.
    """
    seen: list[tuple[Layout, Layout, dict[str, str]]] = []
    first = next(iter(parts))
    for name, part in parts.items():
        try:
            layout = layout_of(part)
        except ValueError as error:
            raise ValueError(f"{name} does not fit: {error}") from None
        shown = presented(part, empty_rows(layout, 0))
        views = {key: (array.dtype, array.shape[1:]) for key, array in shown.items()}
        seen.append((layout, views, dict(getattr(part, "torch_dtypes", {}))))
        differs = difference(layout, seen[0][0]) or difference(views, seen[0][1])
        if seen[-1][2] != seen[0][2]:
            differs = differs or f"has torch dtypes {seen[-1][2]} and not {seen[0][2]}"
        if differs:
            raise ValueError(
                f"what is served as one has to give batches alike: {name} {differs}, unlike {first}"
            )
    return seen[0][0]


def difference(one: Layout, other: Layout) -> str | None:
    """What of the first layout is not so in the second, or None."""
    for key in [*one, *other]:
        if key not in other:
            return f"has a key {key!r}"
        if key not in one:
            return f"has no key {key!r}"
        if one[key] != other[key]:
            return f"has {key!r} as {_said(one[key])} and not {_said(other[key])}"
    return None


def empty_rows(layout: Layout, count: int) -> Batch:
    """Arrays of `count` rows to write into, each 64-byte aligned."""
    batch: Batch = {}
    for key, (dtype, shape) in layout.items():
        size = count * math.prod(shape) * dtype.itemsize
        room = np.empty(size + 63, np.uint8)
        start = -room.ctypes.data % 64
        batch[key] = room[start : start + size].view(dtype).reshape(count, *shape)
    return batch


def gather_into(data: Any, indices: Indices, rows: Indices, out: Batch, **extra: Any) -> None:
    """Gather rows of a source or stream into rows of `out`, which ascend.

    Straight into place where these lie side by side; otherwise, and for a source that does not
    write into what it is given, with one copy by one call of NumPy for each key.

    Raises
    ------
    TypeError
        When its rows do not fit.
    """
    first, last = int(rows[0]), int(rows[-1])
    beside = last - first + 1 == len(rows)
    target = {key: array[first : last + 1] for key, array in out.items()} if beside else None
    batch = gather_rows(data, indices, target, **extra)
    if target is not None and all(_is_in(array, batch.get(key)) for key, array in target.items()):
        return
    expected = {key: (array.dtype, array.shape[1:]) for key, array in out.items()}
    found = {key: (array.dtype, array.shape[1:]) for key, array in batch.items()}
    differs = difference(found, expected)
    if differs:
        raise TypeError(f"a batch {differs}: the rows of a source have to be alike in all batches")
    for key, array in batch.items():
        out[key][rows] = array


def check_out(out: Batch, layout: Layout, count: int) -> None:
    """Tell of arrays to write into that do not fit, before a source writes a part of them.

    Raises
    ------
    ValueError
        Naming the key.
    """
    for key, array in out.items():
        if array.shape[:1] != (count,):
            raise ValueError(f"`out` has {key!r} of shape {array.shape}, expected {count} rows")
    differs = difference({key: (a.dtype, a.shape[1:]) for key, a in out.items()}, layout)
    if differs:
        raise ValueError(f"`out` {differs}, as the rows of this stream")


def check_written(batch: Batch, out: Batch) -> None:
    """Tell of a source that ignores `out`: what is returned is `out`, so nobody would notice.

    Raises
    ------
    TypeError
        Naming the key.
    """
    for key, array in out.items():
        if not _is_in(array, batch.get(key)):
            raise TypeError(
                f"the source gave an array of its own for {key!r} instead of writing into `out`"
            )


def _is_in(target: NDArray[Any], found: NDArray[Any] | None) -> bool:
    """Whether an array that was gathered is the one it was to be written into."""
    return not target.size or (found is not None and found.ctypes.data == target.ctypes.data)


def _said(of_key: tuple[np.dtype[Any], tuple[int, ...]]) -> str:
    dtype, shape = of_key
    return f"{dtype} of shape (k{''.join(f', {size}' for size in shape)})"
