"""Mixtures: one stream of several, in given shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from windeck._util.html import html_table
from windeck._util.indices import as_positions
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.epochs import default_order
from windeck.loader.schedule import own_ranges
from windeck.loader.served import Served, add_up, kept_ranges, serve
from windeck.loader.stream import EpochRows, Stream, epoch_rows
from windeck.loader.transforms import Function, MappedStream
from windeck.loader.visits import (
    AmbiguousDocumentError,
    EpochPositions,
    data_fields,
    sort_positions,
)
from windeck.loader.weights import (
    MixtureWeights,
    check_parts,
    check_schedule,
    explain_part_seed,
    explain_weights_change,
    part_seed,
    quote_name,
)
from windeck.orders import Lanes
from windeck.sources import Batch, Fingerprint, Indices, Source, empty_rows
from windeck.sources import Stream as StreamProtocol
from windeck.sources.layouts import are_written, check_out, common_layout, unlike_rows
from windeck.sources.members import (
    StreamMembers,
    check_rows,
    is_stream,
    not_a_batch,
    source_members,
    stream_members,
)

__all__ = ["Mixture", "position_rows"]

#: An int, float, Fraction or Decimal of at least 0.
Weight: TypeAlias = Any


@explain_options
class Mixture:
    """A stream of several sources or streams, in shares given by weights.

    Each position serves the next sample of one part. After any number of positions each part has
    its exact share to within two samples. Each part has its own epochs: a small one begins again
    while a large one continues.

    Parameters
    ----------
    parts
        Pairs (source or stream, weight) by name. A source becomes a `Stream` whose seed is a hash
        of `seed` and its name. A weight is an int, float, `Fraction` or `Decimal` of at least 0;
        a float means the decimal it is written as. Shares count samples. A part given as None has
        been retired: it has no data any more, and the last entry of the schedule gives it weight 0.
    seed
        An int in [0, 2^64), for parts given as sources.
    schedule
        Pairs (position, weights by name), ascending: the weights from this position on. Samples
        already served do not change, and every part continues from its own position. An entry may
        be added later, as long as its position has not been passed. A part with weight 0 is not
        served.
    lanes, unit
        Unit u = p // unit of the positions belongs to lane u % lanes, and each lane draws from a
        stretch of its own of every part, in the shares of the weights. W ranks with batches of B
        samples read lanes / W lanes each if W * B == lanes * unit and W divides `lanes`. Sources
        get the order `Lanes` over their usual one; give streams ``partial(Lanes, lanes=lanes,
        order=...)``, and mixtures as many lanes, both with ``unit=1``. A schedule then changes at
        multiples of lanes * unit. With one lane `unit` has no effect.

    Raises
    ------
    TypeError
        For a part that is not a source or stream, and for weights that are not numbers.
    ValueError
        For weights that are negative, NaN, infinite or all 0; for a schedule that is not ascending
        or does not name exactly the parts; and for parts whose batches differ in keys, dtypes or
        shapes.

    Notes
    -----
    Shares with a common denominator of at most 2^62 are exact; others are rounded by at most 2^-62,
    as `explain` shows. A part may be a mixture. Construction gathers an empty batch from each part,
    and takes O(4,096 + parts * log(parts)) time and O(4,096 + parts) memory for each entry of the
    schedule, with lanes O(lanes * (unit + parts)) more.

    With lanes, each lane, and each step of lanes * unit positions, has the shares to within four
    samples of each part.

    Examples
    --------
    >>> class Count:
    ...     fingerprint = {"count": 100}
    ...     def __len__(self):
    ...         return 100
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices.copy()}
    >>> mixture = Mixture({"web": (Count(), 0.75), "books": (Count(), 0.25)}, seed=7)
    >>> part, number = mixture.locate(range(8))
    >>> [mixture.names[i] for i in part]
    ['web', 'web', 'books', 'web', 'web', 'web', 'books', 'web']
    >>> number
    array([0, 1, 0, 2, 3, 4, 1, 5])
    >>> mixture.shares
    {'web': 0.75, 'books': 0.25}
    """

    #: A mixture has no epochs; its parts do.
    epoch_length: None = None

    def __init__(
        self,
        parts: Mapping[str, tuple[Source | StreamProtocol | None, Weight]],
        *,
        seed: int = 0,
        schedule: Sequence[tuple[int, Mapping[str, Weight]]] = (),
        lanes: int = 1,
        unit: int = 1,
    ) -> None:
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self._given = check_parts(parts)
        self._schedule = check_schedule(schedule)
        weights = {name: weight for name, (_, weight) in self._given.items()}
        self._weights = MixtureWeights(weights, self._schedule, lanes, unit)
        self._slots = self._weights.schedule
        self._streams: list[StreamMembers | None] = [
            None if data is None else _as_part(name, data, self.seed, self._weights.lanes)
            for name, (data, _) in self._given.items()
        ]
        #: The stream of each part by name; None for a retired one.
        self.parts: dict[str, StreamProtocol | None] = {
            name: None if stream is None else stream.stream
            for name, stream in zip(self._given, self._streams, strict=True)
        }
        #: The position after the last sample of each retired part.
        self._ends = {
            part: self._end_of_retired(part)
            for part, stream in enumerate(self._streams)
            if stream is None
        }
        live = {name: part for name, part in self._named_streams() if part is not None}
        self._layout = common_layout(
            {f"part {name!r}": part.methods for name, part in live.items()}
        )
        #: The epoch that each part was in last; None for a part that is gathered by its stream.
        self._epochs = [
            None if stream is None else _epoch_of_part(stream, 0) for stream in self._streams
        ]
        #: The first part with data, for what is the same in all.
        self._first = next(iter(live.values()))

    def _end_of_retired(self, part: int) -> int:
        end = self._slots.end_of(part)
        if end is None:
            start, name = self._slots.starts[-1], self.names[part]
            raise ValueError(
                f"part {name!r} is None, but it has a share of {self.shares_at(start)[name]:g} "
                f"from position {start} on: a part may be retired where the last entry of "
                "`schedule` gives it weight 0"
            )
        return end

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts; `locate` and `samples` return indices into this tuple."""
        return self._weights.names

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part at position 0, after rounding."""
        return self.shares_at(0)

    def shares_at(self, position: int) -> dict[str, float]:
        """Return the share of each part at a position, after rounding."""
        return self._weights.shares_at(check_integer("position", position))

    def explain(self) -> str:
        """Return text with the requested and the rounded shares of every schedule entry."""
        return self._weights.explain()

    # Positions, samples and documents.

    def locate(self, positions: ArrayLike) -> tuple[Indices, Indices]:
        """Return the part that serves each position, and the position in that part.

        Parameters
        ----------
        positions
            Integers in [0, 2^63) of shape (k,).

        Returns
        -------
        two int64 arrays of shape (k,)
            The part, as an index into `names`, and the position in that part's stream. O(1) each.

        Raises
        ------
        TypeError, IndexError
            For positions that are not integers, or negative.
        """
        return self._slots.locate(as_positions(positions))

    def position_of_part(self, name: str, positions: ArrayLike) -> Indices:
        """Return the positions that serve a part's own positions; the inverse of `locate`.

        Returns
        -------
        int64 array of shape (k,)
            Positions of the mixture; -1 if none, because the part has no weight any more. O(1)
            each.

        Raises
        ------
        KeyError
            For a name that no part has.
        """
        wanted = as_positions(positions)
        return self._slots.position_of(self._part(name), wanted)

    def position_in_part(self, name: str, position: int) -> int:
        """Return the number of samples of a part before a position: the position in its stream.

        With lanes: the position after the last of them. Samples of other lanes that are due
        before it may follow; the part has no sample at it or after it before `position`.
        """
        ends = self._slots.ends_before(check_integer("position", position))
        return int(ends[self._part(name)])

    def _named_streams(self) -> Iterator[tuple[str, StreamMembers | None]]:
        return zip(self._given, self._streams, strict=True)

    @property
    def _live(self) -> list[StreamMembers]:
        """The streams of the parts that have data."""
        return [stream for stream in self._streams if stream is not None]

    def _stream(self, part: int) -> StreamMembers:
        """Return the stream of a part; raise a ValueError for one without data."""
        stream = self._streams[part]
        if stream is None:
            raise ValueError(
                f"part {self.names[part]!r} is retired (its source is None), so its samples, all "
                f"before position {self._ends[part]}, cannot be read; give its source to read them"
            )
        return stream

    def _part(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"the mixture has no part {name!r}, only {', '.join(self.names)}")
        return self.names.index(name)

    def samples(self, positions: ArrayLike) -> Indices:
        """Return the samples at some positions.

        Returns
        -------
        int64 array of shape (k, 2)
            The part, as an index into `names`, and its sample. For a part that is a mixture the
            second column is its part, and so on; rows that need fewer columns end with -1.

        Raises
        ------
        TypeError
            If a part has no method `samples`.
        """
        part, numbers = self.locate(positions)
        found = np.full((len(part), 1 + max(self._sample_widths)), -1, np.int64)
        found[:, 0] = part
        for index, rows in _group_by_part(part):
            samples = self._stream(index).samples(numbers[rows])
            found[rows, 1 : 1 + self._sample_widths[index]] = samples.reshape(len(rows), -1)
        return found

    def position_of(self, samples: ArrayLike, *, epoch: int = 0) -> Indices:
        """Return the positions of samples in an epoch of their part.

        Parameters
        ----------
        samples
            Integers of shape (k, 2), as returned by `samples`.
        epoch
            The epoch of the part.

        Returns
        -------
        int64 array of shape (k,)
            Positions; -1 if none serves the sample, because its part has no weight any more.
        """
        number = check_integer("epoch", epoch)
        wanted = self._check_samples(samples)
        found = np.empty(len(wanted), np.int64)
        for part, rows in _group_by_part(wanted[:, 0]):
            samples_of_part = self._samples_of_part(wanted[rows], part)
            positions = self._stream(part).position_of(samples_of_part, epoch=number)
            found[rows] = self._to_mixture(part, positions)
        return found

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """Return the epoch of a sample's part when the mixture is at a position."""
        position = check_integer("at", at)
        row = self._check_samples(np.asarray([sample]))
        part = int(row[0, 0])
        own_sample = self._samples_of_part(row, part)[0]
        own_position = int(self._slots.first_after(position)[part])
        return self._stream(part).epoch_of(own_sample, at=own_position)

    def blocks_of(self, positions: ArrayLike) -> tuple[Indices, Indices]:
        """Return the blocks of data at positions as pairs (row, block); see `Stream.blocks_of`.

        Blocks of a part are numbered after those of the parts before it.
        """
        part, numbers = self.locate(positions)
        counts = [0 if one is None else len(one.block_bytes()) for one in self._streams]
        rows, blocks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, mine in _group_by_part(part):
            row, block = self._stream(index).blocks_of(numbers[mine])
            rows.append(mine[row])
            blocks.append(block + sum(counts[:index]))
        return np.concatenate(rows), np.concatenate(blocks)

    @property
    def block_bytes(self) -> Indices:
        """Bytes of each block of all parts, int64."""
        return np.concatenate([stream.block_bytes() for stream in self._live])

    @property
    def bytes_behind_blocks(self) -> Indices:
        """Bytes that are read with each block beside it, of all parts, int64."""
        return np.concatenate([stream.bytes_behind_blocks() for stream in self._live])

    def documents_at(self, positions: ArrayLike) -> list[list[Any]]:
        """Return the pieces of documents at each of some positions.

        Raises
        ------
        TypeError
            If a part has no documents.
        """
        part, numbers = self.locate(positions)
        found: list[list[Any]] = [[] for _ in range(len(part))]
        for index, rows in _group_by_part(part):
            pieces = self._stream(index).documents_at(numbers[rows])
            for row, pieces_of_row in zip(rows.tolist(), pieces, strict=True):
                found[row] = pieces_of_row
        return found

    def document_runs(
        self, document: Any, *, at: int, epoch: int | None = None
    ) -> list[EpochPositions]:
        """Return the epoch and positions of a document in each part; see `document_positions`."""
        number = None if epoch is None else check_integer("epoch", epoch)
        before = self._slots.first_after(check_integer("at", at)).tolist()
        parts: Sequence[int] = range(len(self.names))
        if isinstance(document, tuple) and len(document) == 2 and document[0] in self.names:
            parts, document = [self.names.index(document[0])], document[1]
            self._stream(parts[0])
        found: list[EpochPositions] = []
        holders: dict[str, Fingerprint] = {}
        errors: list[Exception] = []
        for part in parts:
            stream = self._streams[part]
            if stream is None or not stream.finds_documents:
                continue
            try:
                of_part = stream.document_runs(document, at=before[part], epoch=number)
            except AmbiguousDocumentError:
                raise
            except (KeyError, IndexError, TypeError) as error:
                errors.append(error)
            else:
                holders[self.names[part]] = data_fields(stream.fingerprint)
                found += [
                    EpochPositions(own_epoch, self._to_mixture(part, positions))
                    for own_epoch, positions in of_part
                ]
        first, *others = holders.values() or [{}]
        if any(fields != first for fields in others):
            pairs = " or ".join(str((name, document)) for name in holders)
            raise AmbiguousDocumentError(
                f"the parts {', '.join(holders)} of the mixture each have a document {document}; "
                f"expected its part, too: {pairs}"
            )
        if not found:
            # A missing document says more than a part without documents.
            errors.sort(key=lambda error: isinstance(error, TypeError))
            worst = errors[0] if errors else TypeError("no part of the mixture has documents")
            if self._ends:
                retired = ", ".join(repr(self.names[part]) for part in self._ends)
                worst = type(worst)(f"{worst.args[0]}; retired parts are not searched: {retired}")
            raise worst
        return found

    def document_positions(self, document: Any, *, at: int, epoch: int | None = None) -> Indices:
        """Return the positions of the sequences of a document in an epoch of their part.

        Parameters
        ----------
        document
            ``(dataset_id, shard_id, doc_id)``, searched for in all parts; or ``(name, document)``
            for that part only.
        at
            A position of the mixture: the epochs that the parts are in there are used.
        epoch
            An epoch of the parts to use instead.

        Returns
        -------
        int64 array
            Ascending. O(sequences of the document), and the cost of the parts.

        Raises
        ------
        KeyError, IndexError
            For a document that no part has, and for a name of different documents in several parts.
        TypeError
            If no part has documents.
        """
        return sort_positions(self.document_runs(document, at=at, epoch=epoch))

    def served(
        self, position: int, *, skipped: Sequence[tuple[int, int]] = (), documents: bool = True
    ) -> Served:
        """Return counts of samples, tokens and documents before a position, also for each part.

        Parameters are those of `Stream.served`; see `Loader.served`. O(parts * ranges), and the
        cost of the parts. Documents of a retired part are unknown, so those of all parts together
        are None. Its tokens are known if all sequences of the other parts have as many.
        """
        kept = kept_ranges(position, skipped)
        slots = self._slots
        before, ends = slots.lanes_before(position), slots.ends_before(position)
        # The samples before the end of each part that are served at a later position.
        lane = np.arange(slots.lanes)[:, None]
        bounds = [(before, np.maximum(before, (ends - lane - 1) // slots.lanes + 1))]
        for pair in skipped:
            low, high = (slots.lanes_before(min(bound, position)) for bound in pair)
            bounds.append((low, high))
        parts = {}
        for part, (name, stream) in enumerate(self._named_streams()):
            own = [one for low, high in bounds for one in own_ranges(low[:, part], high[:, part])]
            end = int(ends[part])
            if stream is not None:
                counts = serve(stream, end, own, documents)
                if stream.epoch_length is not None:
                    passed = int(before[:, part].sum()) / stream.epoch_length
                    counts = replace(counts, epoch=passed)
                parts[name] = counts
                continue
            samples = sum(stop - start for start, stop in kept_ranges(end, own))
            each = 0 if not samples else self.tokens_per_sample
            parts[name] = Served(samples, None if each is None else samples * each)
        return Served(
            sum(stop - start for start, stop in kept),
            add_up(counts.tokens for counts in parts.values()),
            add_up(counts.documents_begun for counts in parts.values()),
            add_up(counts.documents_finished for counts in parts.values()),
            parts=parts,
        )

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens that `served` counts for each sample; None if samples differ or have none."""
        if "targets_mask" in self._layout:  # A retired part may have had padding.
            return None
        found = {stream.tokens_per_sample for stream in self._live}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _sample_widths(self) -> list[int]:
        """The number of columns of each part's samples."""
        none = np.empty(0, np.int64)
        # A retired part has no samples to show.
        found: list[Indices] = [
            none if stream is None else stream.samples(none) for stream in self._streams
        ]
        return [array.shape[1] if array.ndim > 1 else 1 for array in found]

    def _check_samples(self, samples: ArrayLike) -> Indices:
        array = np.asarray(samples)
        columns = 1 + max(self._sample_widths)
        if array.ndim != 2 or array.shape[1] != columns or array.dtype.kind not in "iu":
            raise TypeError(
                f"samples of a mixture must be rows of {columns} integers that begin with the "
                f"part, got {array.dtype} of shape {array.shape}"
            )
        for part in (array[:, 0].min(), array[:, 0].max()) if len(array) else ():
            if not 0 <= part < len(self.names):
                raise IndexError(f"part {part} is out of range for {len(self.names)} parts")
        return array.astype(np.int64)

    def _samples_of_part(self, samples: Indices, part: int) -> Indices:
        """Return the columns of samples that are the part's own."""
        width = self._sample_widths[part]
        return samples[:, 1] if width == 1 else samples[:, 1 : 1 + width]

    def _to_mixture(self, part: int, positions: Indices) -> Indices:
        """Return the positions of the mixture for positions of a part; -1 stays -1."""
        found = self._slots.position_of(part, np.maximum(positions, 0))
        return np.where(positions < 0, -1, found)

    # Batches.

    @property
    def supports_threads(self) -> bool:
        """True if any part takes ``threads=``."""
        return any(stream.methods.supports_threads for stream in self._live)

    @property
    def independent_rows(self) -> bool:
        """True if several batches of every part may be gathered by one call."""
        return all(stream.methods.independent_rows for stream in self._live)

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a dtype that NumPy lacks, and that dtype."""
        return self._first.methods.torch_dtypes

    def gather(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """Return one batch: row k of every array belongs to ``positions[k]``.

        Each part is called once, for all of its rows; parameters as for `Stream.gather`.
        """
        return self._first.methods.complete(self.gather_rows(positions, out, threads=threads))

    def gather_rows(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """Return the rows of a batch, before `whole` and `present`; parameters as for `gather`."""
        wanted = as_positions(positions)
        if out is not None:
            check_out(out, self._layout, len(wanted))
        return self._gather(wanted, out, threads)

    def _gather(
        self, positions: Indices, out: Batch | None = None, threads: int | None = None
    ) -> Batch:
        """Return the rows of checked positions."""
        part, numbers = self._slots.locate(positions)
        groups, in_lanes = _group_by_part(part), self._slots.lanes > 1
        if len(groups) == 1 and out is None and not in_lanes:  # The rows of the part are the batch.
            rows_of_part = self._gather_part(groups[0][0], numbers, None, threads)
            check_rows(rows_of_part, len(numbers))
            return rows_of_part
        batch = empty_rows(self._layout, len(part)) if out is None else out
        for index, rows in groups:
            if in_lanes:  # Lanes may be in two epochs of a part, each of which is one call then.
                rows = rows[np.argsort(numbers[rows])]
            first, last = int(rows[0]), int(rows[-1])
            target: Batch | None = None
            if last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all()):
                target = {key: array[first : last + 1] for key, array in batch.items()}
            found = self._gather_part(index, numbers[rows], target, threads)
            if target is None or not are_written(target, found):
                _copy_rows(found, rows, batch)
        return batch

    def _gather_part(
        self, part: int, numbers: Indices, out: Batch | None, threads: int | None
    ) -> Batch:
        """Return the rows of a part's own positions; a source may not write into `out`."""
        options: dict[str, Any] = {} if out is None else {"out": out}
        epoch = self._epochs[part]
        if epoch is not None:
            places = numbers - epoch.start
            # Negative ones are large as unsigned numbers.
            if np.maximum.reduce(places.view(np.uint64)) < epoch.stop - epoch.start:
                if threads is not None and epoch.supports_threads:
                    options["threads"] = threads
                return epoch.gather(epoch.take(places), **options)
        stream = self._stream(part)
        if epoch is not None:  # The part is at another epoch, which the next batches may be in.
            self._epochs[part] = _epoch_of_part(stream, int(numbers[-1]))
            options = {}  # The stream would refuse a source that does not write into `out`.
        options |= stream.methods.threads_option(threads)
        return stream.methods.gather(numbers, **options)

    @property
    def presenter(self) -> object:
        """The object that has `whole` and `present`, or neither: that of a part."""
        return self._first.presenter

    def whole(self, rows: Batch) -> Batch:
        """Return the parts' arrays of the whole batch; see `RowSource`."""
        return self._first.methods.whole_arrays(rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch as the parts present it; see `RowSource`."""
        return self._first.methods.presented(batch)

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
        """
        return MappedStream(self, function, columns=columns, seed=seed, collate=collate)

    # Fingerprint.

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Seed, shares, the whole schedule, and the fields of every part."""
        return self.fingerprint_at(LIMIT)

    def fingerprint_at(self, position: int) -> Fingerprint:
        """Return the fingerprint of everything that determines the samples before a position.

        A state at the position depends on these fields. Schedule entries that begin at the
        position or later are not in them, and neither are parts that only these entries serve:
        they may be added or changed during a run.
        """
        before = self._slots.ends_before(position)
        fields = {"seed": self.seed, **self._weights.fields(position)}
        for part in self._weights.parts_before(position):
            prefix = _prefix(self.names[part])
            if part in self._ends:
                fields[f"{prefix}retired"] = self._ends[part]
                continue
            fields_of_part = self._stream(part).fingerprint_at(int(before[part]))
            fields |= {f"{prefix}{field}": value for field, value in fields_of_part.items()}
        return fields

    def without_retired(self, fields: Fingerprint, position: int) -> Fingerprint:
        """Return the fingerprint of a state at a position as it is since parts were retired.

        A state that was saved before has the fields of their data.

        Raises
        ------
        ValueError
            If a retired part has samples from the position on, and if a part that was retired
            when the state was saved has a source.
        """
        for part, end in self._ends.items():
            if position < end:
                raise ValueError(
                    f"the state is at position {position}, but part {self.names[part]!r}, whose "
                    f"source is None, has samples until position {end}; expected its source"
                )
        found, before = dict(fields), self._slots.ends_before(position)
        for part in self._weights.parts_before(position):
            prefix, stream = _prefix(self.names[part]), self._streams[part]
            was_retired = f"{prefix}retired" in found
            own = {name: found[name] for name in found if str(name).startswith(prefix)}
            if stream is None:
                inner: Fingerprint = {"retired": self._ends[part]} if own else {}
            elif was_retired:
                raise ValueError(
                    f"part {self.names[part]!r} was retired when the state was saved, but has a "
                    "source here; expected None"
                )
            else:
                saved = {name.removeprefix(prefix): value for name, value in own.items()}
                inner = stream.without_retired(dict(saved), int(before[part]))
                if inner == saved:
                    continue
            found = {name: value for name, value in found.items() if name not in own}
            found |= {f"{prefix}{name}": value for name, value in inner.items()}
        return found

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """Return a sentence that explains a changed field of the fingerprint, or None."""
        for name, stream in self._named_streams():
            prefix = _prefix(name)
            if field == f"{prefix}seed" and was == part_seed(self.seed, name):
                return explain_part_seed(name, was, now)
            if field.startswith(prefix) and stream is not None:
                explanation = stream.explain_change(field.removeprefix(prefix), was, now)
                return explanation and f"in part {name!r}, {explanation}"
        return explain_weights_change(field, was, now)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {self.parts[name]!r}" for name in self.names)
        lanes, unit = self._weights.lanes, self._weights.unit
        more = f", lanes={lanes}, unit={unit}" if lanes > 1 else ""
        return f"Mixture({{{parts}}}, shares={self.shares}, seed={self.seed}{more})"

    def _repr_html_(self) -> str:
        shares = self.shares
        rows = [(name, f"{shares[name]:.4g}", repr(self.parts[name])) for name in self.names]
        caption = f"Mixture of {len(rows):,} parts, seed {self.seed}"
        return html_table(caption, ("part", "share", "source"), rows, self.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        weights = self._weights
        options: dict[str, Any] = {"seed": self.seed, "schedule": self._schedule}
        options |= {"lanes": weights.lanes, "unit": weights.unit}
        return partial(Mixture, **options), (self._given,)


def _prefix(name: str) -> str:
    """Return the prefix of a part's fields in the fingerprint."""
    return f"part.{quote_name(name)}."


def _as_part(name: str, data: Source | StreamProtocol, seed: int, lanes: int) -> StreamMembers:
    """Return a part as a stream; the seeds of sources are independent hashes."""
    if is_stream(data):
        return stream_members(data)
    try:
        source = source_members(data)
        order = None if lanes == 1 else partial(Lanes, lanes=lanes, order=default_order(source))
        return stream_members(Stream(source.source, order=order, seed=part_seed(seed, name)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"part {name!r} is invalid: {error}") from None


def position_rows(mixture: Mixture) -> EpochRows:
    """Return the functions that gather the rows of a mixture's positions without checks."""
    return EpochRows.in_sequence(0, LIMIT, mixture._gather, True)


def _epoch_of_part(stream: StreamMembers, position: int) -> EpochRows | None:
    """Return the functions that gather in the epoch of a part's own position, if there are any."""
    # Not for a stream of another type: it may gather in a way of its own.
    return epoch_rows(stream.stream, position) if type(stream.stream) is Stream else None


def _group_by_part(part: Indices) -> list[tuple[int, Indices]]:
    """Return each part that occurs, ascending, with its rows."""
    rows = np.argsort(part, kind="stable")
    counts = np.bincount(part)
    numbers = np.flatnonzero(counts)  # a mixture may have many more parts than a batch has rows
    ends = np.add.accumulate(counts[numbers]).tolist()
    return [
        (number, rows[start:end])
        for number, start, end in zip(numbers.tolist(), [0, *ends], ends, strict=False)
    ]


def _copy_rows(found: Batch, rows: Indices, out: Batch) -> None:
    """Copy the rows of a part to their places in a batch.

    Raises
    ------
    TypeError
        If keys, dtypes or shapes differ from those of `out`, or the number of rows.
    """
    if not isinstance(found, Mapping):
        raise not_a_batch(found)
    for key, target in out.items():
        array = found.get(key)
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != target.dtype
            or array.shape != (len(rows), *target.shape[1:])
            or len(found) != len(out)
        ):
            raise unlike_rows(found, out, len(rows))
        target[rows] = array
