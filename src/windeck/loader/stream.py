"""Streams: the endless sequence of a source's epochs, each in its own order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name, order_name
from windeck._util.indices import as_positions, is_int64_vector
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.served import Served, count_epochs, count_places, kept_ranges
from windeck.loader.state import explain_change
from windeck.loader.transforms import Function, MappedStream
from windeck.loader.visits import (
    EpochPositions,
    require_method,
    sort_positions,
    threads_option,
)
from windeck.orders import Sequential
from windeck.sources import (
    Batch,
    Fingerprint,
    Indices,
    Order,
    OrderFactory,
    Source,
    check_source,
    check_written,
    common_layout,
    complete_batch,
    gather_rows,
    present,
    whole,
)

__all__ = ["EpochMap", "EpochRange", "Stream", "as_stream", "check_order_factory", "default_order"]


#: Cached orders and per-epoch sources: batches of neighbouring epochs alternate at a border.
CACHED_EPOCHS = 4
#: Epochs whose counts of tokens and documents are kept.
COUNTED_EPOCHS = 1024


@dataclass(frozen=True)
class EpochRange:
    """The epochs of one source: from `epoch` on, which begins at position `start`."""

    start: int
    epoch: int
    length: int
    source: Any

    @property
    def is_shuffled_inside(self) -> bool:
        """True for an `EpochSource`, which shuffles its own contents."""
        return _is_shuffled_inside(self.source)

    @property
    def default_order(self) -> OrderFactory:
        """The order factory of the source if none is given."""
        return default_order(self.source)

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position of this range."""
        return self.epoch + (position - self.start) // self.length

    def epoch_start(self, epoch: int) -> int:
        """Return the position at which an epoch of this range begins."""
        return self.start + (epoch - self.epoch) * self.length


class EpochMap:
    """Maps positions of a stream to epochs, their sources and their orders.

    Parameters
    ----------
    source
        The source from position 0 on.
    order
        An order factory; None for the default of each source.
    seed
        Seed of the orders.
    grown
        Pairs (position, source): the source of all epochs that begin at the position or later.
    """

    def __init__(
        self, source: Source, order: OrderFactory | None, seed: int, grown: Sequence[Any]
    ) -> None:
        first = EpochRange(0, 0, _source_length(source), source)
        self.ranges = _epoch_ranges(first, grown)
        #: The order factory of each range: blocks of one source do not fit another one.
        self.orders: list[OrderFactory] = [order or one.default_order for one in self.ranges]
        self._starts = [one.start for one in self.ranges]
        self._first_epochs = [one.epoch for one in self.ranges]
        # No bound methods in the caches: such a cycle would keep the data alive until the garbage
        # collector runs.
        self.order_at: Callable[[int], Order] = lru_cache(CACHED_EPOCHS)(
            partial(_make_order, self.orders, self.ranges, seed)
        )
        self.source_at: Callable[[int], Source] = lru_cache(CACHED_EPOCHS)(
            partial(_make_epoch_source, self.ranges, seed)
        )
        # Errors are raised here, not in a background thread in the middle of training.
        for one in self.ranges:
            self.order_at(one.epoch)
        if len(self.ranges) > 1:
            common_layout(
                {
                    f"the source from position {one.start}": self.source_at(one.epoch)
                    for one in self.ranges
                }
            )

    def range_at(self, position: int) -> EpochRange:
        """Return the range of a position."""
        return self.ranges[bisect_right(self._starts, position) - 1]

    def range_of(self, epoch: int) -> EpochRange:
        """Return the range of an epoch."""
        return self.ranges[bisect_right(self._first_epochs, epoch) - 1]

    def split(self, positions: Indices) -> Iterator[tuple[slice, int, Indices]]:
        """Split positions at borders of epochs; yield (rows, epoch, places within the epoch)."""
        first = positions.item(0) if len(positions) else 0
        here = self.range_at(first)
        epoch = here.epoch_at(first)
        places = positions - here.epoch_start(epoch)
        # Negative ones are large as unsigned numbers.
        if not len(places) or np.maximum.reduce(places.view(np.uint64)) < here.length:
            yield slice(0, len(places)), epoch, places  # The usual case: one epoch.
            return
        epochs = self._epochs_of(positions)
        borders = np.flatnonzero(np.diff(epochs)) + 1
        for start, stop in zip([0, *borders], [*borders, len(positions)], strict=True):
            epoch = int(epochs[start])
            epoch_start = self.range_of(epoch).epoch_start(epoch)
            yield slice(start, stop), epoch, positions[start:stop] - epoch_start

    def _epochs_of(self, positions: Indices) -> Indices:
        if len(self.ranges) == 1:
            return positions // self.ranges[0].length
        which = np.searchsorted(self._starts, positions, side="right") - 1
        starts, first_epochs = np.array(self._starts), np.array(self._first_epochs)
        lengths = np.array([one.length for one in self.ranges])
        found: Indices = first_epochs[which] + (positions - starts[which]) // lengths[which]
        return found


def _source_length(source: Any) -> int:
    check_source(source)
    length = len(source)
    if length < 1:
        raise ValueError("the source has no samples")
    return length


def _epoch_ranges(first: EpochRange, grown: Sequence[Any]) -> list[EpochRange]:
    """Return the ranges of epochs; of several entries in one epoch only the last one counts."""
    ranges, before = [first], -1
    for item in grown:
        try:
            position, source = item
        except (TypeError, ValueError):
            raise TypeError(
                f"`grown` must be a list of pairs (position, source), got {item!r}"
            ) from None
        position = check_integer("a position in grown", position, most=LIMIT - 1)
        if position <= before:
            raise ValueError(
                f"the positions in `grown` must be ascending, got {position} after {before}"
            )
        before, last = position, ranges[-1]
        if position <= last.start:  # The last entry's epochs have not begun by then.
            start, epoch = last.start, last.epoch
            ranges.pop()
        else:
            epochs = -((last.start - position) // last.length)
            start, epoch = last.start + epochs * last.length, last.epoch + epochs
        check = getattr(ranges[-1].source, "check_growth", None) if ranges else None
        if check is not None:
            check(source)
        added = EpochRange(start, epoch, _source_length(source), source)
        if start < LIMIT:  # Otherwise positions end before its first epoch.
            ranges.append(added)
        if added.is_shuffled_inside != first.is_shuffled_inside:
            raise TypeError(
                f"the source in `grown` at {position} must "
                f"{'' if first.is_shuffled_inside else 'not '}have at_epoch(), like the first one"
            )
    return ranges


def _number_of_range(ranges: list[EpochRange], epoch: int) -> int:
    return bisect_right([one.epoch for one in ranges], epoch) - 1


def _make_order(
    factories: list[OrderFactory], ranges: list[EpochRange], seed: int, epoch: int
) -> Order:
    number = _number_of_range(ranges, epoch)
    factory, size = factories[number], ranges[number].length
    order = factory(size, seed=seed, epoch=epoch)
    if len(order) != size:
        raise ValueError(
            f"order {order_name(factory)} has {len(order)} places, but the source {size} samples"
        )
    return order


def _make_epoch_source(ranges: list[EpochRange], seed: int, epoch: int) -> Source:
    here = ranges[_number_of_range(ranges, epoch)]
    if not here.is_shuffled_inside:
        plain: Source = here.source
        return plain
    at_epoch: Source = here.source.at_epoch(epoch, seed=seed)
    if len(at_epoch) != here.length:
        raise ValueError(
            f"every epoch of a source must have the same length, got {here.length} samples, but "
            f"{len(at_epoch)} in epoch {epoch}"
        )
    return at_epoch


@explain_options
class Stream:
    """An endless sequence of samples of a source, in a new order in every epoch.

    Position p belongs to epoch e = p // n and serves sample ``order(n, seed=seed,
    epoch=e)[p % n]``. A source that shuffles its own contents, with a method
    ``at_epoch(e, seed=)``, is served as stored in each epoch unless an order is given.

    Parameters
    ----------
    source
        Anything with `len`, `gather` and `fingerprint`; see `windeck.sources.Source`.
    order
        An order factory ``f(size, *, seed, epoch)``: `Permutation` (the default), `Sequential`,
        ``functools.partial(BlockPermutation, block_size=256)``, or another callable. By default
        each source has its own, of its blocks if it is streamed.
    seed
        An int in [0, 2^64). `Sequential` ignores it.
    grown
        Pairs (position, larger source), ascending: the epoch at this position is completed with
        the previous source, and the next epochs serve this one. The numbers of epochs continue. An
        entry may be added during a run, as long as its epochs have not begun.

    Raises
    ------
    ValueError
        For an empty source, a seed out of range, an order of another size than the source, and
        for sources in `grown` with other keys, dtypes or shapes.
    TypeError
        For an object that is not a source, or an order that is not callable.

    Examples
    --------
    >>> class Squares:
    ...     fingerprint = {"squares": 5}
    ...     def __len__(self):
    ...         return 5
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices**2}
    >>> stream = Stream(Squares(), seed=1)
    >>> sorted(stream.gather(np.arange(5, 10))["x"].tolist())  # the second epoch
    [0, 1, 4, 9, 16]
    >>> stream.position_of(stream.samples([7]), epoch=1)
    array([7])
    """

    def __init__(
        self,
        source: Source,
        *,
        order: OrderFactory | None = None,
        seed: int = 0,
        grown: Sequence[tuple[int, Source]] = (),
    ) -> None:
        if order is not None:
            check_order_factory(order)
        self.source = source
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self._order = order
        self._grown = tuple(grown)
        self._epochs = EpochMap(source, order, self.seed, self._grown)
        self.order: OrderFactory = self._epochs.orders[0]
        self._reads_ahead = getattr(source, "expect", None) is not None
        #: True for one source in all epochs, which does not shuffle its own contents.
        ranges = self._epochs.ranges
        self._is_plain = len(ranges) == 1 and not ranges[0].is_shuffled_inside
        #: Number of the source that was used last.
        self._used = 0
        self._count = lru_cache(COUNTED_EPOCHS)(partial(count_places, self._epochs))

    @property
    def epoch_length(self) -> int | None:
        """Samples in an epoch, n; None if the source grows and epochs differ."""
        lengths = {one.length for one in self._epochs.ranges}
        return lengths.pop() if len(lengths) == 1 else None

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The source's fields (as ``source.<field>``), the size, the order's name and the seed.

        Fields of `grown` contain the number of its first epoch: ``grown.3.source.<field>``. The
        order's name is among them (``grown.3.order``) if it is not that of the first source.
        """
        return self.fingerprint_at(LIMIT)

    def fingerprint_at(self, position: int) -> Fingerprint:
        """Return the fingerprint without the sources whose epochs begin at a position or later.

        A state at the position depends on these fields.
        """
        first, *later = self._epochs.ranges
        order = checked_order_name(self.order)
        fields: dict[str, str | int] = {"samples": first.length, "order": order, "seed": self.seed}
        fields |= _prefixed("source.", first.source.fingerprint)
        for one, factory in zip(later, self._epochs.orders[1:], strict=True):
            if one.start < position:
                prefix = f"grown.{one.epoch}."
                fields[f"{prefix}samples"] = one.length
                if (name := checked_order_name(factory)) != order:
                    fields[f"{prefix}order"] = name
                fields |= _prefixed(f"{prefix}source.", one.source.fingerprint)
        return fields

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """Return a sentence that explains a changed field of the fingerprint, or None."""
        for one in self._epochs.ranges:
            prefix = f"grown.{one.epoch}.source." if one.epoch else "source."
            if field.startswith(prefix):
                return explain_change(one.source, field.removeprefix(prefix), was, now)
        if not field.startswith("grown.") or (was is not None and now is not None):
            return None
        epoch = field.split(".")[1]
        if now is None:
            return (
                f"it was saved with a source in `grown` from epoch {epoch} on, which has begun and "
                "is missing here"
            )
        return (
            f"`grown` has a source from epoch {epoch} on, but that epoch had begun without it when "
            "the state was saved"
        )

    @property
    def supports_threads(self) -> bool:
        """True if the source takes ``threads=``, which `gather` passes to it."""
        return bool(getattr(self.source, "supports_threads", False))

    @property
    def independent_rows(self) -> bool:
        """True if several batches of the source may be gathered by one call."""
        return all(getattr(one.source, "independent_rows", False) for one in self._epochs.ranges)

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a dtype that NumPy lacks, and that dtype."""
        types: Mapping[str, str] = getattr(self.source, "torch_dtypes", {})
        return types

    def order_at(self, epoch: int) -> Order:
        """Return the order of an epoch. O(1) for the orders of windeck."""
        return self._epochs.order_at(epoch)

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position. O(log grown)."""
        number = check_integer("position", position)
        return self._epochs.range_at(number).epoch_at(number)

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """Return the epoch of position `at`, which is the same for all samples."""
        return self.epoch_at(at)

    def samples(self, positions: ArrayLike) -> Indices:
        """Return the samples at some positions.

        Parameters
        ----------
        positions
            Integers in [0, 2^63) of shape (k,), from any number of epochs.

        Returns
        -------
        int64 array of shape (k,)
            Samples of the source, or of ``source.at_epoch(epoch, seed=seed)``.

        Raises
        ------
        TypeError
            For positions that are not integers.
        IndexError
            For a negative position.
        """
        return np.concatenate([samples for _, _, _, samples in self._split(positions)])

    def _split(self, positions: Any) -> list[tuple[slice, int, Indices, Indices]]:
        """Return (rows, epoch, places in it, samples) for each epoch of the positions."""
        epochs = self._epochs
        is_vector = type(positions) is np.ndarray and is_int64_vector(positions)
        if is_vector and len(positions) and len(epochs.ranges) == 1:
            length = epochs.ranges[0].length
            epoch = positions.item(0) // length
            order = epochs.order_at(epoch) if epoch >= 0 else None
            # The usual orders check their places themselves, which saves passes over them.
            if type(order) is Permutation or type(order) is Sequential:
                places = positions - epoch * length
                try:
                    return [(slice(0, len(places)), epoch, places, order.take(places))]
                except IndexError:  # Positions of several epochs, or wrong ones.
                    pass
        return [
            (rows, epoch, places, epochs.order_at(epoch).take(places))
            for rows, epoch, places in epochs.split(as_positions(positions))
        ]

    def position_of(self, samples: ArrayLike, *, epoch: int = 0) -> Indices:
        """Return the positions of samples in an epoch; the inverse of `samples`.

        Parameters
        ----------
        samples
            Integers in [0, n) of shape (k,).

        Returns
        -------
        int64 array of shape (k,)
            Positions in [epoch * n, (epoch + 1) * n), if the source does not grow.

        Raises
        ------
        IndexError
            For a sample out of range.
        """
        wanted = as_positions(samples, "samples")
        here = self._epochs.range_of(check_integer("epoch", epoch))
        if wanted.size and wanted.max() >= here.length:
            raise IndexError(f"sample {wanted.max()} is out of range for {here.length} samples")
        return np.asarray(self.order_at(epoch).index(wanted)) + here.epoch_start(epoch)

    def blocks_of(self, positions: ArrayLike) -> tuple[Indices, Indices]:
        """Return the blocks of data at positions; see `windeck.sources.Source`.

        Returns
        -------
        two int64 arrays of shape (j,)
            Pairs (row, block): ``positions[row]`` has data in the block. Blocks of a source in
            `grown` are numbered after those of the sources before it.
        """
        rows, blocks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for here, epoch, places in self._epochs.split(as_positions(positions)):
            found = require_method(self._epochs.source_at(epoch), "blocks_of")
            row, block = found(self.order_at(epoch).take(places))
            number = self._epochs.ranges.index(self._epochs.range_of(epoch))
            rows.append(row + here.start)
            blocks.append(block + self._first_blocks[number])
        return np.concatenate(rows), np.concatenate(blocks)

    @property
    def block_bytes(self) -> Indices:
        """Bytes of each block, int64; see `windeck.sources.Source`."""
        found = [_block_bytes(one.source) for one in self._epochs.ranges]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def bytes_behind_blocks(self) -> Indices:
        """Bytes that are read with each block beside it, int64; see `windeck.sources.Source`."""
        return np.concatenate([_bytes_behind(one.source) for one in self._epochs.ranges])

    @cached_property
    def _first_blocks(self) -> list[int]:
        """The number of the first block of each source."""
        if len(self._epochs.ranges) == 1:
            return [0]
        counts = [len(_block_bytes(one.source)) for one in self._epochs.ranges]
        return [sum(counts[:number]) for number in range(len(counts))]

    def documents_at(self, positions: ArrayLike) -> list[list[Any]]:
        """Return the pieces of documents at each of some positions.

        Raises
        ------
        TypeError
            If the source has no documents.
        """
        found: list[list[Any]] = []
        for _, epoch, places in self._epochs.split(as_positions(positions)):
            documents = require_method(self._epochs.source_at(epoch), "documents")
            found += [documents(sample) for sample in self.order_at(epoch).take(places).tolist()]
        return found

    def document_positions(self, document: Any, *, at: int, epoch: int | None = None) -> Indices:
        """Return the positions of the sequences of a document in an epoch.

        Parameters
        ----------
        document
            A document of the source: ``(dataset_id, shard_id, doc_id)``.
        at
            A position, whose epoch is used.
        epoch
            An epoch to use instead.

        Returns
        -------
        int64 array
            Ascending; empty if no sequence contains tokens of the document.

        Raises
        ------
        TypeError
            If the source has no documents.
        """
        return sort_positions(self.document_runs(document, at=at, epoch=epoch))

    def document_runs(
        self, document: Any, *, at: int, epoch: int | None = None
    ) -> list[EpochPositions]:
        """Return the epoch and the positions of `document_positions`, unsorted."""
        number = self.epoch_at(at) if epoch is None else check_integer("epoch", epoch)
        samples = require_method(self._epochs.source_at(number), "sequences_of")(document)
        return [EpochPositions(number, self.position_of(samples, epoch=number))]

    def served(
        self, position: int, *, skipped: Sequence[tuple[int, int]] = (), documents: bool = True
    ) -> Served:
        """Return counts of samples, tokens and documents before a position; see `Loader.served`.

        Parameters
        ----------
        position
            The position after the last sample.
        skipped
            Ranges [start, stop) of positions that are not counted.
        documents
            Whether documents are counted.

        Examples
        --------
        >>> class Squares:
        ...     fingerprint = {"squares": 5}
        ...     def __len__(self):
        ...         return 5
        ...     def gather(self, indices, out=None):
        ...         return {"x": indices**2}
        >>> Stream(Squares()).served(7, skipped=[(0, 2)]).as_dict()
        {'samples': 5, 'epoch': 1.4}
        """
        ranges = kept_ranges(position, skipped)
        counts = count_epochs(self._epochs, ranges, documents, self._count)
        here = self._epochs.range_at(position)
        passed = here.epoch + (position - here.start) / here.length
        samples = sum(stop - start for start, stop in ranges)
        return Served(samples, *counts, epoch=passed)

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens that `served` counts for each sample; None if samples differ or have none."""
        found: int | None = getattr(self.source, "tokens_per_sample", None)
        return found

    def gather(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """Return one batch: row k of every array belongs to ``positions[k]``.

        Parameters
        ----------
        positions
            Integers in [0, 2^63) of shape (k,). The source is called once, also across epochs; a
            source with `at_epoch`, or that grows, is called once for each epoch.
        out
            Arrays of k rows to write to, with the keys of `gather_rows`.
        threads
            Threads for sources that gather in several; other sources ignore it.
        """
        return complete_batch(self.presenter, self.gather_rows(positions, out, threads=threads))

    def gather_rows(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """Return the rows of a batch, before `whole` and `present`; parameters as for `gather`."""
        found = self._split(positions)
        source = self._epochs.ranges[0].source
        if self._is_plain:
            if self._reads_ahead:
                self._announce(source, [(epoch, places) for _, epoch, places, _ in found])
            wanted = found[0][3] if len(found) == 1 else np.concatenate([one[3] for one in found])
            extra = {} if threads is None else threads_option(source, threads)
            return gather_rows(source, wanted, out, **extra)
        parts = []
        for rows, epoch, places, wanted in found:
            target = out and {key: array[rows] for key, array in out.items()}
            source = self._epochs.source_at(epoch)
            if len(self._epochs.ranges) > 1:
                self._release_others(epoch)
            self._announce(source, [(epoch, places)])
            extra = {}
            if threads is not None:
                extra = threads_option(self._epochs.range_of(epoch).source, threads)
            part = gather_rows(source, wanted, target, **extra)
            if target:
                check_written(part, target)
            parts.append(part)
        if out is not None:
            return out
        if len(parts) == 1:
            return parts[0]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def _announce(self, source: Any, parts: list[tuple[int, Indices]]) -> None:
        """Tell a source that reads ahead which places of which epochs are gathered next."""
        expect = getattr(source, "expect", None)
        if expect is None or not len(parts[0][1]):
            return
        last, epochs = parts[-1][0], self._epochs
        goes_on = len(epochs.ranges) == 1 or epochs.range_of(last) is epochs.range_of(last + 1)
        following = partial(self.order_at, last + 1) if goes_on else None
        expect([(epochs.order_at(epoch), places) for epoch, places in parts], following)

    def _release_others(self, epoch: int) -> None:
        """Tell the other sources, when an epoch of another one begins, that nothing is next."""
        ranges = self._epochs.ranges
        here = self._epochs.range_of(epoch)
        before, self._used = self._used, ranges.index(here)
        for one in ranges if before != self._used else ():
            expect = getattr(one.source, "expect", None)
            if expect is not None and one.source is not here.source:
                expect([], None)

    def whole(self, rows: Batch) -> Batch:
        """Return the source's arrays of the whole batch; see `RowSource`."""
        return whole(self.presenter, rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch as the source presents it; see `RowSource`."""
        return present(self.presenter, batch)

    @property
    def presenter(self) -> Any:
        """The object that has `whole` and `present`, or neither: a source or one of an epoch."""
        first = self._epochs.ranges[0]
        if first.is_shuffled_inside and not hasattr(first.source, "gather_rows"):
            return self._epochs.source_at(0)
        return first.source

    def map(self, function: Function, **options: Any) -> MappedStream:
        """Return this stream with a function applied to its batches, in the background thread.

        Options are ``columns=``, ``seed=`` and ``collate=``; see
        `windeck.loader.transforms.MappedStream`. Random numbers depend on the position of each row
        alone, so they are the same for any batch size and number of ranks, and after a resume.

        Examples
        --------
        >>> class Squares:
        ...     fingerprint = {"squares": 5}
        ...     def __len__(self):
        ...         return 5
        ...     def gather(self, indices, out=None):
        ...         return {"x": indices**2}
        >>> def with_noise(batch, random):
        ...     return {"x": batch["x"] + random.uniform()}
        >>> stream = Stream(Squares()).map(with_noise, seed=3)
        >>> bool(stream.gather([2, 3, 4])["x"][1] == stream.gather([3])["x"][0])
        True
        """
        return MappedStream(self, function, **options)

    def __repr__(self) -> str:
        name = order_name(self.order)
        return f"Stream({self.source!r}, order={name}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(Stream, order=self._order, seed=self.seed, grown=self._grown)
        return again, (self.source,)


def as_stream(
    data: Any, *, shuffle: bool = False, order: OrderFactory | None = None, seed: int | None = None
) -> Any:
    """Return the stream that a loader reads: `data` itself, or a `Stream` over a source.

    Raises
    ------
    TypeError
        For shuffle, order or seed with a stream, which has its own.
    ValueError
        For a seed of a source in sequence, and for `shuffle` with `Sequential`.
    """
    if not hasattr(data, "epoch_length"):
        if order is None and shuffle and hasattr(data, "at_epoch"):
            shuffled = getattr(data, "shuffled", None)
            data = data if shuffled is None else shuffled()
        elif order is None and not shuffle and not hasattr(data, "at_epoch"):
            if seed is not None:
                check_integer("seed", seed, most=2**64 - 1)
                raise ValueError(
                    f"`seed` has no effect without shuffle=True, got seed={seed!r} for samples in "
                    "sequence; expected shuffle=True or an `order`, or no seed"
                )
            order = Sequential
        if shuffle and order is Sequential:
            raise ValueError("`shuffle` is True and `order` is Sequential, expected one of them")
        return Stream(data, order=order, seed=0 if seed is None else seed)
    for name, given in (("shuffle", shuffle), ("order", order), ("seed", seed)):
        if given is not None and given is not False:
            raise TypeError(
                f"`{name}` must not be given to the loader of a stream; pass it to "
                f"{type(data).__name__}(...)"
            )
    return data


def default_order(source: Any) -> OrderFactory:
    """Return the order factory of a source if none is given."""
    if _is_shuffled_inside(source):
        return Sequential
    found: OrderFactory = getattr(source, "default_order", Permutation)
    return found


def _is_shuffled_inside(source: Any) -> bool:
    return callable(getattr(source, "at_epoch", None))


def check_order_factory(order: object) -> None:
    """Raise a TypeError for an order that is not callable."""
    if not callable(order):
        raise TypeError(
            f"`order` must be a factory f(size, *, seed, epoch), got {type(order).__name__}; "
            "pass the class, not an instance"
        )


def _block_bytes(source: Any) -> Indices:
    if not hasattr(source, "block_bytes"):
        raise TypeError(f"{type(source).__name__} does not state its blocks by `block_bytes`")
    return np.asarray(source.block_bytes, dtype=np.int64)


def _prefixed(prefix: str, fields: Fingerprint) -> dict[str, str | int]:
    return {f"{prefix}{name}": value for name, value in fields.items()}


def _bytes_behind(source: Any) -> Indices:
    blocks = len(_block_bytes(source))
    return np.asarray(getattr(source, "bytes_behind_blocks", np.zeros(blocks)), dtype=np.int64)
