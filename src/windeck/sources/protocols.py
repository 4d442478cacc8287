"""Protocols of orders, sources and streams: what each is, and what it may offer besides.

A `Source` has three members, a `Stream` too. Every other protocol is a capability: members that
belong together. No base class is needed, and no capability has to be complete: a member that an
object lacks has a default, which its docstring states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Batch",
    "BatchOptions",
    "BatchedRows",
    "BlockSource",
    "CountedStream",
    "Counts",
    "DeviceRowSource",
    "DeviceSource",
    "DocumentSource",
    "DocumentStream",
    "EpochSource",
    "Expect",
    "ExplainedData",
    "Fingerprint",
    "GrowingSource",
    "Indices",
    "Order",
    "OrderFactory",
    "OrderedStream",
    "PresentedStream",
    "ReadAheadSource",
    "ResumableStream",
    "RowSource",
    "SampleStream",
    "ShuffledSource",
    "Source",
    "Stream",
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

    What a source may offer besides: `BatchOptions`, `RowSource`, `BatchedRows`, `EpochSource`,
    `ShuffledSource`, `BlockSource`, `ReadAheadSource`, `DocumentSource`, `ExplainedData`,
    `GrowingSource`, `DeviceSource` and `DeviceRowSource`.
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
class Stream(Protocol):
    """Endless data: a pure function of the position.

    What a stream may offer besides: `BatchOptions`, `RowSource`, `BatchedRows`, `PresentedStream`,
    `SampleStream`, `OrderedStream`, `DocumentStream`, `CountedStream`, `BlockSource`,
    `ExplainedData` and `ResumableStream`. Their arguments are positions in place of samples.
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


# Batches of sources and streams.


class BatchOptions(Protocol):
    """Facts about `gather`: threads, dtypes that NumPy lacks, and independence of rows."""

    @property
    def supports_threads(self) -> bool:
        """True if `gather` and `gather_rows` take a ``threads=`` keyword; False by default."""
        ...

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a dtype that NumPy lacks, and that dtype.

        ``{"past_target": "bfloat16"}`` for uint16 arrays. Empty by default.
        """
        ...

    @property
    def independent_rows(self) -> bool:
        """True if row k of every array depends on ``indices[k]`` alone; False by default.

        A call with more indices must take no longer for each: loaders then gather the rows of
        several small batches by one call. Otherwise they call the source for each batch.
        """
        ...


@runtime_checkable
class RowSource(Source, Protocol):
    """A source or stream whose batches have more than one row for each sample.

    Its `gather` returns ``present({**rows, **whole(rows)})`` with ``rows = gather_rows(...)``.
    Code that composes batches of several sources, pins them or moves them to a device calls these
    steps one by one. The sources of an `EpochSource` have the three methods too. By default
    `gather_rows` is `gather`, `whole` returns nothing, and `present` returns the batch as it is.
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


class BatchedRows(Protocol):
    """A `RowSource` that computes the arrays of several batches at once."""

    def wholes(self, rows: Batch, count: int) -> Mapping[str, list[NDArray[Any]]]:
        """Return the arrays of `whole` for each of `count` batches of equally many rows, by key.

        By default `whole` is called for each batch.
        """
        ...


class PresentedStream(Protocol):
    """A stream whose `whole`, `wholes` and `present` are those of another object."""

    @property
    def presenter(self) -> object:
        """The object that has these methods, or none of them; by default the stream itself."""
        ...


# Sources.


@runtime_checkable
class EpochSource(Source, Protocol):
    """A source that shuffles itself: its samples by index differ from epoch to epoch.

    By default all epochs have the same samples, and an order shuffles them.
    """

    def at_epoch(self, epoch: int, /, *, seed: int) -> Source:
        """Return the source of one epoch, of the same length."""
        ...


class ShuffledSource(Protocol):
    """An `EpochSource` with another source for ``shuffle=True``."""

    def shuffled(self) -> Source:
        """Return the source that a loader serves with ``shuffle=True``; by default this one."""
        ...


class BlockSource(Protocol):
    """A source that reads its data in blocks, such as files and row groups; or a stream of such.

    `Loader.explain_io` requires the first two members.
    """

    @property
    def block_bytes(self) -> Indices:
        """Bytes of each block: int64 of shape (blocks,)."""
        ...

    def blocks_of(self, samples: Indices) -> tuple[Indices, Indices]:
        """Return pairs (row, block), two int64 arrays: ``samples[row]`` has data in the block."""
        ...

    @property
    def bytes_behind_blocks(self) -> Indices:
        """Bytes that a process reads once next to each block: int64 of shape (blocks,).

        Zeros by default.
        """
        ...


class ReadAheadSource(Protocol):
    """A source of data that are not in memory: it reads ahead in an order that suits its blocks."""

    @property
    def default_order(self) -> OrderFactory:
        """The order factory of ``shuffle=True``; `windeck.Permutation` by default."""
        ...

    @property
    def expect(self) -> Expect | None:
        """A function that a stream calls before it gathers; None, the default, for no such calls.

        Its arguments are ``(epochs, following)``: pairs of an epoch's order and the places in it,
        and a function that returns the order of the epoch after the last of them, None if another
        source serves that one. Without epochs nothing is expected any more.
        """
        ...


class DocumentSource(Protocol):
    """A source whose samples are pieces of documents. Without these members it has none."""

    def documents(self, sample: int) -> list[Any]:
        """Return the pieces of documents in a sample."""
        ...

    def sequences_of(self, document: Any) -> Indices:
        """Return the samples that contain tokens of a document: int64."""
        ...

    def count_served(self, ranges: Indices, *, documents: bool) -> Counts:
        """Return (tokens, documents begun, documents finished) in ranges of samples.

        `ranges` is int64 of shape (k, 2). All epochs must have equally many tokens.
        """
        ...

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of every sample; None, the default, if samples differ or have none."""
        ...


class ExplainedData(Protocol):
    """A source or stream that explains changes of its fingerprint."""

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """Return a reason why a field differs from a saved one; None, the default, for none."""
        ...


class GrowingSource(Protocol):
    """A source that refuses to be replaced by another one that does not continue it."""

    def check_growth(self, larger: object) -> None:
        """Raise a ValueError unless `larger`, a source of ``grown=``, continues this one.

        By default every source does.
        """
        ...


@runtime_checkable
class DeviceSource(Source, Protocol):
    """A source whose data are on a device, and which makes batches there.

    A `Loader` over it calls `gather_tensors` in place of `gather`, without a background thread. A
    source with `at_epoch` has the methods that gather in the sources of its epochs. Of a
    `RowSource` such a source has `present`, for tensors.
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


class DeviceRowSource(Protocol):
    """A `DeviceSource` with arrays of the whole batch, or one that chooses samples of another.

    The source of an epoch may be a choice of samples of a `base`. A `Loader` then chooses the
    samples of many batches at once.
    """

    def gather_row_tensors(self, samples: Any) -> dict[str, Any]:
        """Return `RowSource.gather_rows` as tensors; by default `gather_tensors`."""
        ...

    def whole_tensors(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return `RowSource.whole` as tensors; by default nothing."""
        ...

    @property
    def base(self) -> DeviceSource:
        """The source that has the samples of this source; by default this source."""
        ...

    def base_samples(self, samples: Any) -> Any:
        """Return samples of this source as samples of `base`, an int64 tensor."""
        ...


# Streams.


class SampleStream(Protocol):
    """A stream that finds samples and steps, as `windeck.Stream` and `windeck.Mixture` do."""

    def samples(self, positions: Any) -> Indices:
        """Return the samples at some positions; see `windeck.Stream.samples`."""
        ...

    def position_of(self, samples: Any, *, epoch: int) -> Indices:
        """Return the positions of samples in an epoch: the inverse of `samples`."""
        ...

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """Return the epoch of a sample at a position of a stream without `epoch_length`.

        0 by default.
        """
        ...


class OrderedStream(Protocol):
    """A stream of epochs that each have an order."""

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position."""
        ...

    def order_at(self, epoch: int) -> Order:
        """Return the order of an epoch."""
        ...


class DocumentStream(Protocol):
    """A stream that finds documents."""

    def documents_at(self, positions: Any) -> list[list[Any]]:
        """Return the pieces of documents at each of some positions."""
        ...

    def document_positions(self, document: Any, *, at: int, epoch: int | None) -> Indices:
        """Return the positions of a document; see `windeck.Stream.document_positions`."""
        ...

    def document_runs(self, document: Any, *, at: int, epoch: int | None) -> Sequence[Any]:
        """Return pairs of an epoch and the positions of a document in it, unsorted.

        They are `windeck.loader.visits.EpochPositions`.
        """
        ...


class CountedStream(Protocol):
    """A stream that counts what it has served. By default samples are counted, and no tokens."""

    def served(self, position: int, *, skipped: Sequence[tuple[int, int]], documents: bool) -> Any:
        """Return the counts of `windeck.Loader.served`: a `windeck.loader.served.Served`."""
        ...

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of every sample; None, the default, if samples differ or have none."""
        ...


class ResumableStream(Protocol):
    """A stream of which a state depends on less than the whole fingerprint."""

    def fingerprint_at(self, position: int) -> Fingerprint:
        """Return the fields that a state at a position depends on; by default `fingerprint`."""
        ...

    def without_retired(self, fields: Fingerprint, position: int) -> Fingerprint:
        """Return a saved fingerprint without what it has of data that were retired since.

        By default `fields`.
        """
        ...


#: Tokens, documents begun, and documents finished; None where they are unknown.
Counts: TypeAlias = "tuple[int | None, int | None, int | None]"
#: The function of `ReadAheadSource.expect`.
Expect: TypeAlias = "Callable[[list[tuple[Order, Indices]], Callable[[], Order] | None], None]"
