"""Members of sources and streams: a typed object for each, with defaults for missing members.

It is made once, where a user hands over a source or stream, and no other module looks for members.
Members that make batches are looked up once. Members that may take time, or whose value may
change, are looked up when they are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from windeck._util.text import plural
from windeck.sources.protocols import (
    Batch,
    Counts,
    DeviceSource,
    Expect,
    Fingerprint,
    Indices,
    Order,
    OrderFactory,
    Source,
    Stream,
)

__all__ = [
    "BatchMethods",
    "DeviceMethods",
    "SourceMembers",
    "StreamMembers",
    "check_rows",
    "check_source",
    "gather_rows",
    "is_stream",
    "not_a_batch",
    "not_an_array",
    "other_rows",
    "present",
    "source_members",
    "stream_members",
    "whole",
]

T = TypeVar("T")


def is_stream(data: object) -> TypeGuard[Stream]:
    """Return True for a stream, which has `epoch_length`, and False for a source."""
    return _read(data, "epoch_length") is not _MISSING


def source_members(data: object) -> SourceMembers:
    """Return the members of a source, with defaults for those that it lacks.

    Raises
    ------
    TypeError
        If `__len__`, `gather` or `fingerprint` is missing.
    """
    check_source(data)
    return SourceMembers(cast(Source, data))


def stream_members(data: object, *, name: str = "`stream`") -> StreamMembers:
    """Return the members of a stream; `name` is that of the argument, for the error.

    Raises
    ------
    TypeError
        If `data` has no `epoch_length`.
    """
    if not is_stream(data):
        raise TypeError(
            f"{name} must be a stream, got {type(data).__name__}: wrap a source in windeck.Stream"
        )
    return StreamMembers(data)


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


def check_rows(rows: Batch, count: int | None) -> None:
    """Raise a TypeError for rows that are no dict of arrays of `count` rows; None for any."""
    if not isinstance(rows, Mapping):
        raise not_a_batch(rows)
    for key, array in rows.items():
        if not isinstance(array, np.ndarray):
            raise not_an_array(key, array)
        if count is not None and array.shape[:1] != (count,):
            raise other_rows(key, array.shape, count)


def not_a_batch(rows: object) -> TypeError:
    """Return the error for rows that are no dict."""
    found = "None" if rows is None else f"a {type(rows).__name__}"
    return TypeError(f"the source returned {found}, expected a dict of arrays")


def not_an_array(key: str, value: object) -> TypeError:
    """Return the error for a value of a batch that is no array."""
    return TypeError(
        f"the source returned a {type(value).__name__} for {key!r}; the values of a batch "
        "must be NumPy arrays"
    )


def other_rows(key: str, shape: Sequence[int], count: int) -> TypeError:
    """Return the error for an array of another shape than that of `count` rows."""
    return TypeError(
        f"the source returned {key!r} of shape {tuple(shape)} for {plural(count, 'sample')}, "
        f"expected {plural(count, 'row')}"
    )


def gather_rows(data: object, indices: Indices, out: Batch | None = None, **options: Any) -> Batch:
    """Return rows of a source or stream by its `gather_rows`, or its `gather` if it has none."""
    return BatchMethods.of(data).gather_rows(indices, out, **options)


def whole(data: object, rows: Batch) -> Batch:
    """Return the arrays of the whole batch of these rows; none for most sources."""
    return BatchMethods.of(data).whole_arrays(rows)


def present(data: object, batch: dict[str, T]) -> dict[str, T]:
    """Return a batch of arrays or tensors with the source's views in place of its buffers."""
    shown: Callable[[dict[str, T]], dict[str, T]] | None = _method(data, "present")
    return batch if shown is None else shown(batch)


# Lookups of members by name.


_MISSING: Any = object()
#: Types of members that are true or false.
_FLAGS = (bool, int, np.bool_)


def _read(data: object, name: str) -> Any:
    """Return a member, or `_MISSING`.

    An AttributeError of another name in its property is the property's own, and raised.
    """
    try:
        return getattr(data, name)
    except AttributeError as error:
        if error.name in (None, name) or inspect.getattr_static(data, name, None) is None:
            return _MISSING
        raise


def _has(data: object, name: str) -> bool:
    # Statically first: a fingerprint may be a property that takes time.
    return inspect.getattr_static(data, name, None) is not None or _read(data, name) is not _MISSING


def _offered(data: object, name: str, *kinds: type) -> Any:
    """Return a member, of one of some types if there are any; None if it is missing."""
    found = _read(data, name)
    if found is None or found is _MISSING:
        return None
    if kinds and not isinstance(found, kinds):
        raise TypeError(
            f"`{name}` of {type(data).__name__} is {found!r:.100}, expected a {kinds[0].__name__}"
        )
    return found


def _method(data: object, name: str) -> Callable[..., Any] | None:
    """Return a method; None if it is missing."""
    found: Callable[..., Any] | None = _offered(data, name)
    if found is not None and not callable(found):
        raise TypeError(f"`{name}` of {type(data).__name__} is {found!r:.100}, expected a method")
    return found


def _required(data: object, name: str) -> Callable[..., Any]:
    """Return a method; raise a TypeError if it is missing."""
    found = _method(data, name)
    if found is None:
        raise TypeError(f"{type(data).__name__} has no {name}()")
    return found


@dataclass(frozen=True, eq=False)
class BatchMethods:
    """The members of a source or stream that make batches.

    Attributes
    ----------
    data
        The source or stream.
    gather
        Its `gather_rows`, or `gather`.
    whole, wholes, present
        Those of its `presenter`, or its own; None if it has none. See `RowSource`.
    """

    data: object
    gather: Callable[..., Batch]
    whole: Callable[[Batch], Batch] | None
    wholes: Callable[[Batch, int], Mapping[str, list[NDArray[Any]]]] | None
    present: Callable[[dict[str, Any]], dict[str, Any]] | None

    @classmethod
    def of(cls, data: object) -> BatchMethods:
        """Look up the members of a source or stream."""
        presenter = _offered(data, "presenter") if is_stream(data) else None
        shown = data if presenter is None else presenter
        return cls(
            data,
            _method(data, "gather_rows") or _required(data, "gather"),
            _method(shown, "whole"),
            _method(shown, "wholes"),
            _method(shown, "present"),
        )

    # Facts of `BatchOptions`; a gather alone needs the last one.

    @cached_property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a dtype that NumPy lacks, and that dtype."""
        return _offered(self.data, "torch_dtypes", dict, Mapping) or {}

    @cached_property
    def supports_threads(self) -> bool:
        """True if `gather` takes ``threads=``."""
        return bool(_offered(self.data, "supports_threads", *_FLAGS))

    @cached_property
    def independent_rows(self) -> bool:
        """True if several batches may be gathered by one call."""
        return bool(_offered(self.data, "independent_rows", *_FLAGS))

    def gather_rows(self, indices: Indices, out: Batch | None = None, **options: Any) -> Batch:
        """Return the rows of a batch; a source need not take `out` or options that are not used.

        Raises
        ------
        TypeError
            For anything else than a dict of arrays, and for another number of rows than that of
            `indices` if rows are independent of each other; otherwise they may be ragged.
        """
        if out is not None:
            options["out"] = out
        rows = self.gather(indices, **options)
        check_rows(rows, len(indices) if self.independent_rows else None)
        return rows

    def threads_option(self, threads: int | None) -> dict[str, Any]:
        """Return the keyword ``threads=`` for `gather_rows`, or nothing if it is not taken."""
        return {"threads": threads} if threads is not None and self.supports_threads else {}

    def whole_arrays(self, rows: Batch) -> Batch:
        """Return the arrays of the whole batch of these rows; none for most sources."""
        return {} if self.whole is None else dict(self.whole(rows))

    def presented(self, batch: dict[str, T]) -> dict[str, T]:
        """Return a batch of arrays or tensors with views in place of buffers."""
        return batch if self.present is None else self.present(batch)

    def complete(self, rows: Batch) -> Batch:
        """Return the batch of some rows, as `gather` of the source returns it."""
        if self.whole is None and self.present is None:
            return rows
        return self.presented({**rows, **self.whole_arrays(rows)})

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMethods.of, (self.data,)


@dataclass(frozen=True, eq=False)
class DeviceMethods:
    """The members of a `DeviceSource` that make batches on its device.

    Attributes
    ----------
    device
        The `torch.device`.
    gather
        Returns the rows of samples of the source, or of its `base`.
    in_base
        Returns samples of the source as samples of its `base`; None without `base`.
    whole
        Returns the arrays of the whole batch; None if there are none.
    present
        Returns the batch with views in place of buffers; None if there are none.
    """

    device: Any
    gather: Callable[[Any], dict[str, Any]]
    in_base: Callable[[Any], Any] | None
    whole: Callable[[dict[str, Any]], dict[str, Any]] | None
    present: Callable[[dict[str, Any]], dict[str, Any]] | None

    @classmethod
    def of(cls, data: object) -> DeviceMethods | None:
        """Look up the members of a source; None for a source that is not on a device."""
        if _method(data, "gather_tensors") is None:
            return None
        source = cast(DeviceSource, data)
        base = _offered(data, "base")
        rows = source if base is None else base
        return cls(
            source.device,
            _method(rows, "gather_row_tensors") or rows.gather_tensors,
            _method(data, "base_samples"),
            _method(data, "whole_tensors"),
            _method(data, "present"),
        )


class _Members:
    """Members that sources and streams have in common."""

    def __init__(self, data: object) -> None:
        self._data = data

    # Not in the constructor: the presenter of a stream may be the source of an epoch.
    @cached_property
    def methods(self) -> BatchMethods:
        """The members that make batches."""
        return BatchMethods.of(self._data)

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of every sample; None if samples differ or have none."""
        found: int | None = _offered(self._data, "tokens_per_sample")
        return found

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """Return the reason why a field of the fingerprint differs, or None."""
        explain = _method(self._data, "explain_change")
        return None if explain is None else explain(field, was, now)

    @property
    def blocks_of(self) -> Callable[[Indices], tuple[Indices, Indices]]:
        """The function from samples to pairs (row, block); a TypeError for data without blocks."""
        found: Callable[[Indices], tuple[Indices, Indices]] = _required(self._data, "blocks_of")
        return found

    def block_bytes(self) -> Indices:
        """Return the bytes of each block: int64 of shape (blocks,).

        Raises
        ------
        TypeError
            If the source does not state them.
        """
        found = _offered(self._data, "block_bytes")
        if found is None:
            raise TypeError(
                f"{type(self._data).__name__} does not state its blocks by `block_bytes`"
            )
        return np.asarray(found, dtype=np.int64)

    def bytes_behind_blocks(self) -> Indices:
        """Return the bytes that are read next to each block: int64 of shape (blocks,)."""
        blocks = len(self.block_bytes())
        found = _offered(self._data, "bytes_behind_blocks")
        extra: Indices = np.asarray(0 if found is None else found, dtype=np.int64)
        return np.broadcast_to(extra, (blocks,))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data,)


class SourceMembers(_Members):
    """A source with all that a source may offer; see `windeck.sources.protocols`."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.source = source

    # Not in the constructor: an unpickled source that refers to its members is incomplete then.
    @cached_property
    def _at_epoch(self) -> Callable[..., Source] | None:
        return _method(self.source, "at_epoch")

    @property
    def is_shuffled_inside(self) -> bool:
        """True for an `EpochSource`, which shuffles its own contents."""
        return self._at_epoch is not None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the data."""
        return self.source.fingerprint

    def at_epoch(self, epoch: int, *, seed: int) -> SourceMembers:
        """Return the source of one epoch: of an `EpochSource` its own, otherwise this one."""
        if self._at_epoch is None:
            return self
        return SourceMembers(self._at_epoch(epoch, seed=seed))

    def shuffled(self) -> Source:
        """Return the source that is served with ``shuffle=True``."""
        shuffled: Callable[[], Source] | None = _method(self.source, "shuffled")
        return self.source if shuffled is None else shuffled()

    @property
    def has_rows(self) -> bool:
        """True if the source itself has `gather_rows`, and not only the sources of its epochs."""
        return _method(self.source, "gather_rows") is not None

    def default_order(self, otherwise: OrderFactory) -> OrderFactory:
        """Return the source's order factory of ``shuffle=True``, or another one if it has none."""
        found: OrderFactory | None = _method(self.source, "default_order")
        return otherwise if found is None else found

    @property
    def expect(self) -> Expect | None:
        """The function to call before each gather, if any."""
        found: Expect | None = _method(self.source, "expect")
        return found

    @cached_property
    def expect_of_batches(self) -> Expect | None:
        """This function as it was when it was first asked for, which every batch does."""
        return self.expect

    def check_growth(self, larger: Source) -> None:
        """Raise a ValueError if a larger source does not continue this one."""
        check: Callable[[Source], None] | None = _method(self.source, "check_growth")
        if check is not None:
            check(larger)

    def documents(self, samples: Iterable[int]) -> list[list[Any]]:
        """Return the documents in each sample; raise a TypeError for a source without documents."""
        find: Callable[[int], list[Any]] = _required(self.source, "documents")
        return [find(sample) for sample in samples]

    def sequences_of(self, document: Any) -> Indices:
        """Return the samples of a document; raise a TypeError for a source without documents."""
        find: Callable[[Any], Indices] = _required(self.source, "sequences_of")
        return find(document)

    @property
    def counts_served(self) -> bool:
        """True if the source counts tokens and documents."""
        return _method(self.source, "count_served") is not None

    def count_served(self, ranges: Indices, *, documents: bool) -> Counts:
        """Return tokens, documents begun, and documents finished in ranges of samples."""
        count: Callable[..., Counts] | None = _method(self.source, "count_served")
        return (None, None, None) if count is None else count(ranges, documents=documents)

    @cached_property
    def on_device(self) -> DeviceMethods | None:
        """The members that make batches on a device; None for a source in host memory."""
        return DeviceMethods.of(self.source)


class StreamMembers(_Members):
    """A stream with all that a stream may offer; see `windeck.sources.protocols`."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stream = stream

    @property
    def epoch_length(self) -> int | None:
        """Number of positions in an epoch; None if there are no epochs."""
        return self.stream.epoch_length

    @property
    def presenter(self) -> object:
        """The object that has `whole`, `wholes` and `present`, or none of them."""
        found = _offered(self.stream, "presenter")
        return self.stream if found is None else found

    # States.

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the stream."""
        return self.stream.fingerprint

    def fingerprint_at(self, position: int) -> Fingerprint:
        """Return the fields that a state at a position depends on."""
        at: Callable[[int], Fingerprint] | None = _method(self.stream, "fingerprint_at")
        return self.stream.fingerprint if at is None else at(position)

    def without_retired(self, fields: Fingerprint, position: int) -> Fingerprint:
        """Return a saved fingerprint without what it has of data that were retired since."""
        without = _method(self.stream, "without_retired")
        return fields if without is None else without(fields, position)

    # Samples and documents.

    def samples(self, positions: Any) -> Indices:
        """Return the samples at some positions; raise a TypeError if the stream cannot."""
        find: Callable[[Any], Indices] = _required(self.stream, "samples")
        return find(positions)

    def position_of(self, samples: Any, *, epoch: int) -> Indices:
        """Return the positions of samples; raise a TypeError if the stream cannot."""
        find: Callable[..., Indices] = _required(self.stream, "position_of")
        return find(samples, epoch=epoch)

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """Return the epoch of a sample at a position: by default that of the position.

        Raises
        ------
        TypeError
            If the stream has neither `epoch_of` nor `epoch_length`.
        """
        length = None if self.finds_epochs else self.epoch_length
        if length is not None:
            return at // length
        find: Callable[..., int] = _required(self.stream, "epoch_of")
        return int(find(sample, at=at))

    @property
    def finds_epochs(self) -> bool:
        """True if the stream has `epoch_of`."""
        return _method(self.stream, "epoch_of") is not None

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position; raise a TypeError if the stream cannot."""
        find: Callable[[int], int] = _required(self.stream, "epoch_at")
        return find(position)

    def order_at(self, epoch: int) -> Order:
        """Return the order of an epoch; raise a TypeError if the stream has none."""
        find: Callable[[int], Order] = _required(self.stream, "order_at")
        return find(epoch)

    def documents_at(self, positions: Any) -> list[list[Any]]:
        """Return the documents at some positions; raise a TypeError if the stream cannot."""
        find: Callable[[Any], list[list[Any]]] = _required(self.stream, "documents_at")
        return find(positions)

    @property
    def finds_documents(self) -> bool:
        """True if the stream has `document_runs`."""
        return _method(self.stream, "document_runs") is not None

    def document_runs(self, document: Any, *, at: int, epoch: int | None) -> Sequence[Any]:
        """Return epochs and positions of a document; raise a TypeError if the stream cannot."""
        find: Callable[..., Sequence[Any]] = _required(self.stream, "document_runs")
        return find(document, at=at, epoch=epoch)

    def document_positions(self, document: Any, *, at: int, epoch: int | None) -> Indices:
        """Return the positions of a document; raise a TypeError if the stream cannot."""
        find: Callable[..., Indices] = _required(self.stream, "document_positions")
        return find(document, at=at, epoch=epoch)

    @property
    def served(self) -> Callable[..., Any] | None:
        """The method of `CountedStream`, or None."""
        found: Callable[..., Any] | None = _method(self.stream, "served")
        return found
