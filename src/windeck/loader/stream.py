"""Streams: the endless sequence of a source's epochs, each in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from windeck._core import Permutation, checked_bulk
from windeck._util.fingerprints import checked_order_name, order_name
from windeck._util.indices import as_positions
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.epochs import EpochMap
from windeck.loader.served import Served, count_epochs, count_places, kept_ranges
from windeck.loader.transforms import Function, MappedStream
from windeck.loader.visits import EpochPositions, sort_positions
from windeck.orders import Sequential
from windeck.sources import Batch, Fingerprint, Indices, Order, OrderFactory, Source
from windeck.sources import Stream as StreamProtocol
from windeck.sources.layouts import check_written
from windeck.sources.members import BatchMethods, SourceMembers, is_stream, source_members
from windeck.windows.windows import native_gather

__all__ = ["EpochRows", "Stream", "as_stream", "check_order_factory", "epoch_rows"]

#: Epochs whose counts of tokens and documents are kept.
COUNTED_EPOCHS = 1024


@dataclass(frozen=True, eq=False)
class EpochRows:
    """The functions that gather the rows of positions of one epoch, looked up once.

    They do not check places. The endless epoch of a mixture has its positions as samples.

    Attributes
    ----------
    start, stop
        The position at which the epoch begins, and that after its last one.
    slice
        Returns the samples at places [start, stop) of the epoch.
    take
        Returns the samples at some places of the epoch.
    gather
        Returns the rows of samples.
    supports_threads
        True if `gather` takes ``threads=``.
    batches
        Returns batches of places by one native call; None if there is none. Its arguments are those
        of ``_core.Gather.batches``, without the order.
    row_bytes
        Bytes of a row of them.
    """

    start: int
    stop: int
    slice: Callable[[int, int], Indices]
    take: Callable[[Indices], Indices]
    gather: Callable[..., Batch]
    supports_threads: bool
    batches: Callable[..., list[dict[str, Any]]] | None = None
    row_bytes: int = 0

    @classmethod
    def in_sequence(
        cls,
        start: int,
        stop: int,
        gather: Callable[..., Batch],
        supports_threads: bool,
        batches: Callable[..., list[dict[str, Any]]] | None = None,
        row_bytes: int = 0,
    ) -> EpochRows:
        """Return the functions of an epoch whose places are its samples."""
        numbers = partial(np.arange, dtype=np.int64)
        functions = numbers, np.asarray, gather, supports_threads, batches, row_bytes
        return cls(start, stop, *functions)


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
        first, *later = self._epochs.ranges
        self._first = first.source
        #: One source of all epochs, which does not shuffle its own contents; otherwise None.
        self._plain_source = None if later or first.source.is_shuffled_inside else first.source
        self._reads_ahead = self._plain_source is not None and first.source.expect is not None
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
                return one.source.explain_change(field.removeprefix(prefix), was, now)
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
        return self._first.methods.supports_threads

    @property
    def independent_rows(self) -> bool:
        """True if several batches of the source may be gathered by one call."""
        return all(one.source.methods.independent_rows for one in self._epochs.ranges)

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a dtype that NumPy lacks, and that dtype."""
        return self._first.methods.torch_dtypes

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
        is_array = type(positions) is np.ndarray and positions.dtype == np.int64
        if is_array and positions.ndim == 1 and len(positions) and len(epochs.ranges) == 1:
            length = epochs.ranges[0].length
            epoch = positions.item(0) // length
            order = epochs.order_at(epoch) if epoch >= 0 else None
            # The usual orders check their places themselves, which saves passes over them.
            if type(order) is Permutation or type(order) is Sequential:
                places = positions - epoch * length
                try:
                    if type(order) is Permutation:
                        samples = order.take(places)
                    else:  # Each place is its sample.
                        samples, _ = checked_bulk(places, length, "position", None)
                    return [(slice(0, len(places)), epoch, places, samples)]
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
        """Return the blocks of data at positions; see `windeck.sources.BlockSource`.

        Returns
        -------
        two int64 arrays of shape (j,)
            Pairs (row, block): ``positions[row]`` has data in the block. Blocks of a source in
            `grown` are numbered after those of the sources before it.
        """
        rows, blocks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for here, epoch, places in self._epochs.split(as_positions(positions)):
            samples = self.order_at(epoch).take(places)
            row, block = self._epochs.source_at(epoch).blocks_of(samples)
            number = self._epochs.ranges.index(self._epochs.range_of(epoch))
            rows.append(row + here.start)
            blocks.append(block + self._first_blocks[number])
        return np.concatenate(rows), np.concatenate(blocks)

    @property
    def block_bytes(self) -> Indices:
        """Bytes of each block, int64; see `windeck.sources.BlockSource`."""
        found = [one.source.block_bytes() for one in self._epochs.ranges]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def bytes_behind_blocks(self) -> Indices:
        """Bytes that are read next to each block, int64; see `windeck.sources.BlockSource`."""
        return np.concatenate([one.source.bytes_behind_blocks() for one in self._epochs.ranges])

    @cached_property
    def _first_blocks(self) -> list[int]:
        """The number of the first block of each source."""
        if len(self._epochs.ranges) == 1:
            return [0]
        counts = [len(one.source.block_bytes()) for one in self._epochs.ranges]
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
            samples = self.order_at(epoch).take(places).tolist()
            found += self._epochs.source_at(epoch).documents(samples)
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
        samples = self._epochs.source_at(number).sequences_of(document)
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
        return self._first.tokens_per_sample

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
        return self._shown.complete(self.gather_rows(positions, out, threads=threads))

    def gather_rows(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """Return the rows of a batch, before `whole` and `present`; parameters as for `gather`."""
        found = self._split(positions)
        plain = self._plain_source
        if plain is not None:
            if self._reads_ahead:
                self._announce(plain, [(epoch, places) for _, epoch, places, _ in found])
            wanted = found[0][3] if len(found) == 1 else np.concatenate([one[3] for one in found])
            methods = plain.methods
            options = {} if threads is None else methods.threads_option(threads)
            return methods.gather_rows(wanted, out, **options)
        of_epochs = []
        for rows, epoch, places, wanted in found:
            target = out and {key: array[rows] for key, array in out.items()}
            source = self._epochs.source_at(epoch)
            if len(self._epochs.ranges) > 1:
                self._release_others(epoch)
            self._announce(source, [(epoch, places)])
            options = {}
            if threads is not None:
                options = self._epochs.range_of(epoch).source.methods.threads_option(threads)
            of_epoch = source.methods.gather_rows(wanted, target, **options)
            if target:
                check_written(of_epoch, target)
            of_epochs.append(of_epoch)
        if out is not None:
            return out
        if len(of_epochs) == 1:
            return of_epochs[0]
        return {
            key: np.concatenate([of_epoch[key] for of_epoch in of_epochs]) for key in of_epochs[0]
        }

    def _announce(self, source: SourceMembers, by_epoch: list[tuple[int, Indices]]) -> None:
        """Tell a source that reads ahead which places of which epochs are gathered next."""
        expect = source.expect_of_batches
        if expect is None or not len(by_epoch[0][1]):
            return
        last, epochs = by_epoch[-1][0], self._epochs
        goes_on = len(epochs.ranges) == 1 or epochs.range_of(last) is epochs.range_of(last + 1)
        following = partial(self.order_at, last + 1) if goes_on else None
        expect([(epochs.order_at(epoch), places) for epoch, places in by_epoch], following)

    def _release_others(self, epoch: int) -> None:
        """Tell the other sources, when an epoch of another one begins, that nothing is next."""
        ranges = self._epochs.ranges
        here = self._epochs.range_of(epoch)
        before, self._used = self._used, ranges.index(here)
        for one in ranges if before != self._used else ():
            expect = one.source.expect
            if expect is not None and one.source.source is not here.source.source:
                expect([], None)

    def whole(self, rows: Batch) -> Batch:
        """Return the source's arrays of the whole batch; see `RowSource`."""
        return self._shown.whole_arrays(rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch as the source presents it; see `RowSource`."""
        return self._shown.presented(batch)

    @property
    def presenter(self) -> object:
        """The object that has `whole` and `present`, or neither: a source or one of an epoch."""
        return self._shown.data

    @cached_property
    def _shown(self) -> BatchMethods:
        """The members of the presenter."""
        only_epochs_have_rows = self._first.is_shuffled_inside and not self._first.has_rows
        return (self._epochs.source_at(0) if only_epochs_have_rows else self._first).methods

    def map(
        self,
        function: Function,
        *,
        columns: str | Iterable[str] | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Mapping[str, Any]] | None = None,
    ) -> MappedStream:
        """Return this stream with a function applied to its batches, in the background thread.

        Random numbers depend on the position of each row alone, so they are the same for any batch
        size and number of ranks, and after a resume.

        Parameters
        ----------
        function
            ``function(batch, random)`` returns the arrays of the new batch, made of NumPy arrays;
            `random` has ``uniform``, ``normal`` and ``integers`` for each row. With `collate`:
            ``function(sample, generator)``, for each row of a batch.
        columns
            Keys that the function gets; None for all. Others are left as they are, and its arrays
            are added to them.
        seed
            Seed of the random numbers, an int in [0, 2^64).
        collate
            Function that makes a batch of the list of samples, such as one that pads them.

        Raises
        ------
        TypeError, ValueError
            If a function is not callable, has no name for the fingerprint (a lambda, a closure), or
            if samples are collated twice.

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
        return MappedStream(self, function, columns=columns, seed=seed, collate=collate)

    def __repr__(self) -> str:
        name = order_name(self.order)
        return f"Stream({self.source!r}, order={name}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(Stream, order=self._order, seed=self.seed, grown=self._grown)
        return again, (self.source,)


def epoch_rows(stream: Stream, position: int) -> EpochRows | None:
    """Return the functions that gather in the epoch of a position, as `Stream.gather_rows` does.

    None if `gather_rows` does more than that: it tells a source that reads ahead what comes next,
    and chooses among the sources of a stream that grows.
    """
    epochs = stream._epochs
    if len(epochs.ranges) > 1:
        return None
    here = epochs.ranges[0]
    epoch = here.epoch_at(position)
    order, source = epochs.order_at(epoch), epochs.source_at(epoch)
    if source.expect is not None or type(order) not in (Permutation, Sequential):
        return None
    start = here.epoch_start(epoch)
    span, gather = (start, start + here.length), source.methods.gather
    supports_threads = here.source.methods.supports_threads
    batches, row_bytes = None, 0
    if (native := native_gather(source.methods.data, gather)) is not None:
        permutation = None if type(order) is Sequential else order
        batches, row_bytes = partial(native.batches, permutation), native.row_bytes
    functions = gather, supports_threads
    if type(order) is Sequential:
        return EpochRows.in_sequence(*span, *functions, batches, row_bytes)
    return EpochRows(*span, order.slice, order.take, *functions, batches, row_bytes)


def as_stream(
    data: Source | StreamProtocol,
    *,
    shuffle: bool = False,
    order: OrderFactory | None = None,
    seed: int | None = None,
) -> StreamProtocol:
    """Return the stream that a loader reads: `data` itself, or a `Stream` over a source.

    Raises
    ------
    TypeError
        For shuffle, order or seed with a stream, which has its own.
    ValueError
        For a seed of a source in sequence, and for `shuffle` with `Sequential`.
    """
    if not is_stream(data):
        source = source_members(data)
        served = source.source
        if order is None and source.is_shuffled_inside:
            served = source.shuffled() if shuffle else served
        elif order is None and not shuffle:
            if seed is not None:
                check_integer("seed", seed, most=2**64 - 1)
                raise ValueError(
                    f"`seed` has no effect without shuffle=True, got seed={seed!r} for samples in "
                    "sequence; expected shuffle=True or an `order`, or no seed"
                )
            order = Sequential
        if shuffle and order is Sequential:
            raise ValueError("`shuffle` is True and `order` is Sequential, expected one of them")
        return Stream(served, order=order, seed=0 if seed is None else seed)
    for name, given in (("shuffle", shuffle), ("order", order), ("seed", seed)):
        if given is not None and given is not False:
            raise TypeError(
                f"`{name}` must not be given to the loader of a stream, which has an order of its "
                "own; expected `order` and `seed` in Stream(...), or `seed` in Mixture(...), whose "
                "parts are shuffled unless they are streams of another order"
            )
    return data


def check_order_factory(order: object) -> None:
    """Raise a TypeError for an order that is not callable."""
    if not callable(order):
        raise TypeError(
            f"`order` must be a factory f(size, *, seed, epoch), got {type(order).__name__}; "
            "pass the class, not an instance"
        )


def _prefixed(prefix: str, fields: Fingerprint) -> dict[str, str | int]:
    return {f"{prefix}{name}": value for name, value in fields.items()}
