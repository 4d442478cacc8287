"""Protocols of orders, sources and streams, and functions on any of them.

No base class is needed, only the methods. A source::

    class Squares:
        fingerprint = {"squares": 1000}

        def __len__(self):
            return 1000

        def gather(self, indices, out=None):
            return {"x": indices.astype(np.float32) ** 2}
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from windeck.columns.columns import aligned_empty

__all__ = [
    "Batch",
    "DeviceSource",
    "EpochSource",
    "Fingerprint",
    "Indices",
    "Layout",
    "Order",
    "OrderFactory",
    "RowSource",
    "Source",
    "Stream",
    "check_out",
    "check_source",
    "check_written",
    "complete_batch",
    "common_layout",
    "empty_rows",
    "gather_into",
    "gather_rows",
    "present",
    "whole",
]


#: int64, one-dimensional.
Indices: TypeAlias = NDArray[np.int64]
#: One array for each key; the first axis is that of the samples.
Batch: TypeAlias = dict[str, NDArray[Any]]
#: A flat mapping that JSON can hold; see `windeck._util.fingerprints`.
Fingerprint: TypeAlias = Mapping[str, "str | int"]


@runtime_checkable
class Order(Protocol):
    """A bijection of [0, size): from positions in an epoch to samples."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def slice(self, start: int, stop: int, out: Indices | None = None) -> Indices:
        """Return the samples at positions [start, stop)."""
        ...

    def take(self, indices: Indices, out: Indices | None = None) -> Indices:
        """Return the samples at any positions."""
        ...

    def index(self, samples: Indices) -> Indices:
        """Return the positions of any samples: the inverse of `take`."""
        ...


class OrderFactory(Protocol):
    """Makes the order of one epoch. Equal arguments must always give equal orders."""

    def __call__(self, size: int, /, *, seed: int, epoch: int) -> Order:
        """Return the order of `size` samples; `seed` and `epoch` are in [0, 2^64)."""
        ...


@runtime_checkable
class Source(Protocol):
    """Finite data with random access.

    Three attributes are optional. ``supports_threads = True`` says that `gather` takes a
    ``threads=`` keyword. ``torch_dtypes: dict[str, str]`` names the keys whose arrays hold bits
    of a type NumPy lacks: ``{"past_target": "bfloat16"}`` for uint16 arrays.
    ``independent_rows = True`` says that row k of every array depends on ``indices[k]`` alone and
    that a call with more indices takes no longer for each: loaders then gather the rows of several
    small batches by one call. Without it they call the source for each batch.

    A source that reads its data in blocks, such as files and row groups, may say which: by
    ``block_bytes``, int64 of shape (blocks,), and ``blocks_of(samples)``, which returns pairs
    (row, block) as two int64 arrays: ``samples[row]`` has data in the block. What a process reads
    once with a block beside it may be stated by ``bytes_behind_blocks``, int64 of shape (blocks,).
    `Loader.explain_io` uses them.

    A source of data that are not in memory may have ``default_order``, the order factory of
    ``shuffle=True``, and a function ``expect(parts, following)`` (or None), which a stream calls
    before it gathers: `parts` are pairs of an epoch's order and the places in it, and
    ``following()`` is the order of the epoch after the last of them; None if another source
    serves that one. Without parts nothing is expected any more.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the data: sizes, options, digests of contents."""
        ...

    def gather(self, indices: Indices, out: Batch | None = None) -> Batch:
        """Return a batch: row k of every array belongs to sample ``indices[k]``.

        The arrays are new, writable and contiguous, or those of `out`. `indices` may be empty:
        the arrays then have no rows and their usual dtypes and trailing shapes. Must be
        thread-safe.
        """
        ...


@runtime_checkable
class EpochSource(Source, Protocol):
    """A source that shuffles itself: its samples by index differ from epoch to epoch.

    An optional method ``shuffled()`` returns the source that a loader serves with shuffle=True.
    """

    def at_epoch(self, epoch: int, /, *, seed: int) -> Source:
        """Return the source of one epoch, of the same length."""
        ...


@runtime_checkable
class RowSource(Source, Protocol):
    """A source or stream whose batches have more than one row for each sample.

    Its `gather` returns ``present({**rows, **whole(rows)})`` with ``rows = gather_rows(...)``.
    Code that composes batches of several sources, pins them or moves them to a device calls these
    steps one by one. The sources of an `EpochSource` have the three methods too. An optional method
    ``wholes(rows, count)`` returns the arrays of `whole` for each of `count` batches of equally
    many rows: a list by key.
    """

    def gather_rows(self, indices: Indices, out: Batch | None = None) -> Batch:
        """Return arrays with one row for each index; `out` and empty `indices` as in `gather`."""
        ...

    def whole(self, rows: Batch) -> Batch:
        """Return arrays of the whole batch, computed from all its rows, such as offsets."""
        ...

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch as users see it, with views in place of buffers.

        The values are NumPy arrays or torch tensors on any device, of rows and of the whole batch.
        The method may change the dict.
        """
        ...


@runtime_checkable
class DeviceSource(Source, Protocol):
    """A source whose data are on a device, and which makes batches there.

    A `Loader` over it calls `gather_tensors` in place of `gather`, without a background thread.
    Optional methods are those of a `RowSource`, for tensors: ``gather_row_tensors(samples)``,
    ``whole_tensors(rows)`` and ``present(batch)``. A source with `at_epoch` has the methods that
    gather in the sources of its epochs. Such a source of an epoch may be a choice of samples of
    another `DeviceSource`: with ``base``, that source, and ``base_samples(samples)``, which returns
    its samples as an int64 tensor, a `Loader` chooses those of many batches at once.
    """

    @property
    def device(self) -> Any:
        """The `torch.device`."""
        ...

    def gather_tensors(self, samples: Any) -> dict[str, Any]:
        """Return a batch: row k of every tensor belongs to sample ``samples[k]``.

        `samples` is an int64 tensor of shape (batch,) on the device. The tensors are new, on the
        device, and contiguous.
        """
        ...


@runtime_checkable
class Stream(Protocol):
    """Endless data: a pure function of the position. Optional attributes as for `Source`.

    Optional methods are those of `RowSource`, for positions, and those of `windeck.Stream` and
    `windeck.Mixture`:

    * ``samples(positions)`` and ``position_of(samples, *, epoch)``, to find samples and
      steps; ``epoch_of(sample, *, at)`` if `epoch_length` is None;
    * ``documents_at(positions)`` and ``document_runs(document, *, at, epoch)``, to find documents;
    * ``served(position, *, skipped, documents)``: the counts of `windeck.Loader.served`, and
      ``tokens_per_sample``, the tokens of every sample or None. A source is counted by
      ``count_served(ranges, *, documents)``, which returns (tokens, documents begun, documents
      finished) in ranges of samples; all epochs have equally many tokens;
    * ``fingerprint_at(position)``: the fields that a state at a position depends on;
    * ``without_retired(fields, position)``: a saved fingerprint without what it has of data that
      were retired since;
    * ``explain_change(field, was, now)``: a reason why a field differs, or None. Sources may have
      it too. Sources of `grown` may have ``check_growth(larger)``, which raises a ValueError.
    """

    @property
    def epoch_length(self) -> int | None:
        """Number of positions in an epoch; None if there are no epochs."""
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the stream: fingerprints of its sources, order and seed."""
        ...

    def gather(self, positions: Indices, out: Batch | None = None) -> Batch:
        """Return a batch: row k of every array belongs to ``positions[k]``."""
        ...


def check_source(source: object) -> None:
    """Raise a TypeError if `__len__`, `gather` or `fingerprint` is missing."""
    missing = [name for name in ("__len__", "gather", "fingerprint") if not _has(source, name)]
    if missing:
        name = type(source).__name__
        cures = [_CURES[one.__name__] for one in type(source).__mro__ if one.__name__ in _CURES]
        raise TypeError(
            f"expected a source (with __len__, gather and fingerprint), got {name} without "
            f"{', '.join(missing)}{'; make one of it: ' + cures[0] if cures else ''}"
        )


#: How to make a source of objects that are taken for one, by the names of their classes.
_CURES = {
    "Table": "wd.Windows(table, context_length=...)",
    "Documents": "wd.PackedSequences(documents, sequence_length=...)",
    "Scaler": "wd.Windows(table, context_length=..., scaler=scaler)",
    "Split": "one of its parts, such as split.train",
    "MapDataset": "its attribute `source` is one",
    "IterDataset": "its attribute `stream` has one",
    "DataLoader": "a Loader is used in its place, over wd.Windows(table, context_length=...)",
    "DataFrame": "wd.Windows(wd.Table.from_arrow(frame), context_length=...)",
    "ndarray": 'wd.Windows(wd.Table.from_columns({"x": array}), context_length=...)',
    "Tensor": 'wd.Windows(wd.Table.from_columns({"x": tensor}), context_length=...)',
    "str": "wd.Windows(wd.Table.read(path), context_length=...)",
    "PurePath": "wd.Windows(wd.Table.read(path), context_length=...)",
}


def _has(source: object, name: str) -> bool:
    # Statically first: a fingerprint may be a property that takes time.
    return inspect.getattr_static(source, name, None) is not None or hasattr(source, name)


T = TypeVar("T")
#: dtype and shape of one row, by key.
Layout: TypeAlias = "dict[str, tuple[np.dtype[Any], tuple[int, ...]]]"


def gather_rows(data: Any, indices: Indices, out: Batch | None = None, **extra: Any) -> Batch:
    """Return rows of a source or stream by its `gather_rows`, or its `gather` if it has none."""
    gather = getattr(data, "gather_rows", None) or data.gather
    if out is not None:
        extra["out"] = out
    rows: Batch = gather(indices, **extra)
    return rows


def whole(data: Any, rows: Batch) -> Batch:
    """Return the arrays of the whole batch of these rows; none for most sources."""
    of_rows = getattr(data, "whole", None)
    return {} if of_rows is None else dict(of_rows(rows))


def present(data: Any, batch: dict[str, T]) -> dict[str, T]:
    """Return a batch of arrays or tensors with the source's views in place of its buffers."""
    shown = getattr(data, "present", None)
    return batch if shown is None else shown(batch)


def complete_batch(data: Any, rows: Batch) -> Batch:
    """Return the batch of some rows, as `gather` returns it."""
    if not hasattr(data, "whole") and not hasattr(data, "present"):
        return rows
    return present(data, {**rows, **whole(data, rows)})


def layout_of(data: Any) -> Layout:
    """Return dtype and shape of a row of a source or stream by key. Gathers no rows."""
    rows = gather_rows(data, np.empty(0, np.int64))
    for key, array in rows.items():
        if array.shape[:1] != (0,):
            raise ValueError(
                f"{key!r} has shape {array.shape} in a batch of no rows, expected 0 rows: whole() "
                "returns arrays of the whole batch"
            )
    return {key: (array.dtype, array.shape[1:]) for key, array in rows.items()}


def common_layout(parts: Mapping[str, Any]) -> Layout:
    """Return the layout of rows of several parts, which must have it in common.

    Layouts are compared before and after `present`.

    Parameters
    ----------
    parts
        Sources or streams, by their names for errors.

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
        shown = complete_batch(part, empty_rows(layout, 0))
        views = {key: (array.dtype, array.shape[1:]) for key, array in shown.items()}
        seen.append((layout, views, dict(getattr(part, "torch_dtypes", {}))))
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


def gather_into(data: Any, indices: Indices, rows: Indices, out: Batch, **extra: Any) -> None:
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
    batch = gather_rows(data, indices, target, **extra)
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
