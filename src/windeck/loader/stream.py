"""Which epoch a position belongs to, of what source and in which order, also when data grow."""

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
from windeck._util.indices import as_positions
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.queries import Run, asked_of, positions_of
from windeck.loader.state import explain_change
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

__all__ = ["Epochs", "Span", "Stream", "as_stream"]


#: Orders and per-epoch sources kept: batches of neighbouring epochs alternate at a border.
EPOCHS_KEPT = 4


@dataclass(frozen=True)
class Span:
    """From position `start` on, where epoch `epoch` begins, epochs are those of this source."""

    start: int
    epoch: int
    length: int
    source: Any

    @property
    def reads_epochs(self) -> bool:
        """Whether the source shuffles inside."""
        return callable(getattr(self.source, "at_epoch", None))

    def epoch_at(self, position: int) -> int:
        """The epoch of a position of this span."""
        return self.epoch + (position - self.start) // self.length

    def begin(self, epoch: int) -> int:
        """The position at which an epoch of this span begins."""
        return self.start + (epoch - self.epoch) * self.length


class Epochs:
    """The spans of a stream, with orders and sources of each epoch made when they are needed.

    Parameters
    ----------
    source
        What is served from position 0 on.
    order
        A factory; None for the default.
    seed
        Of the orders.
    grown
        Pairs (position, source): the first epoch to begin there or later is that source's.
    """

    def __init__(
        self, source: Source, order: OrderFactory | None, seed: int, grown: Sequence[Any]
    ) -> None:
        first = Span(0, 0, _length(source), source)
        self.spans = _spans(first, grown)
        self.order: OrderFactory = order or (Sequential if first.reads_epochs else Permutation)
        self._starts = [span.start for span in self.spans]
        self._firsts = [span.epoch for span in self.spans]
        # No bound methods in the caches: a cycle would keep the data until the collector runs.
        self.order_at: Callable[[int], Order] = lru_cache(EPOCHS_KEPT)(
            partial(_order_of, self.order, self.spans, seed)
        )
        self.source_at: Callable[[int], Source] = lru_cache(EPOCHS_KEPT)(
            partial(_source_of, self.spans, seed)
        )
        # What does not fit is told of here, and not in a thread in the middle of training.
        for span in self.spans:
            self.order_at(span.epoch)
        if len(self.spans) > 1:
            common_layout(
                {
                    f"the source from position {span.start}": self.source_at(span.epoch)
                    for span in self.spans
                }
            )

    def span_at(self, position: int) -> Span:
        """The span of a position."""
        return self.spans[bisect_right(self._starts, position) - 1]

    def span_of(self, epoch: int) -> Span:
        """The span of an epoch."""
        return self.spans[bisect_right(self._firsts, epoch) - 1]

    def split(self, positions: Indices) -> Iterator[tuple[slice, int, Indices]]:
        """Runs of positions of one epoch: (rows, epoch, places within the epoch)."""
        span = self.span_at(int(positions[0]) if len(positions) else 0)
        epoch = span.epoch_at(int(positions[0])) if len(positions) else span.epoch
        places = positions - span.begin(epoch)
        if not len(places) or (places.min() >= 0 and places.max() < span.length):
            yield slice(0, len(places)), epoch, places  # Nearly always.
            return
        epochs = self._epochs_of(positions)
        borders = np.flatnonzero(np.diff(epochs)) + 1
        for start, stop in zip([0, *borders], [*borders, len(positions)], strict=True):
            epoch = int(epochs[start])
            begin = self.span_of(epoch).begin(epoch)
            yield slice(start, stop), epoch, positions[start:stop] - begin

    def _epochs_of(self, positions: Indices) -> Indices:
        if len(self.spans) == 1:
            return positions // self.spans[0].length
        which = np.searchsorted(self._starts, positions, side="right") - 1
        starts, firsts = np.array(self._starts), np.array(self._firsts)
        lengths = np.array([span.length for span in self.spans])
        found: Indices = firsts[which] + (positions - starts[which]) // lengths[which]
        return found


def _length(source: Any) -> int:
    check_source(source)
    length = len(source)
    if length < 1:
        raise ValueError("the source has no samples")
    return length


def _spans(first: Span, grown: Sequence[Any]) -> list[Span]:
    """The spans that serve any position; of several entries in one epoch the last one counts."""
    spans, before = [first], -1
    for item in grown:
        try:
            position, source = item
        except (TypeError, ValueError):
            raise TypeError(f"grown has to be pairs (position, source), got {item!r}") from None
        position = check_integer("a position in grown", position, most=LIMIT - 1)
        if position <= before:
            raise ValueError(f"positions in grown have to ascend, got {position} after {before}")
        before, last = position, spans[-1]
        if position <= last.start:  # The last entry's epochs have not begun by then.
            start, epoch = last.start, last.epoch
            spans.pop()
        else:
            epochs = -((last.start - position) // last.length)
            start, epoch = last.start + epochs * last.length, last.epoch + epochs
        found = Span(start, epoch, _length(source), source)
        if start < LIMIT:  # Otherwise positions end before its first epoch.
            spans.append(found)
        if found.reads_epochs != first.reads_epochs:
            raise TypeError(
                f"the source of grown at {position} "
                f"{'shuffles' if found.reads_epochs else 'does not shuffle'} inside, unlike "
                "the source it takes over from"
            )
    return spans


def _span_of(spans: list[Span], epoch: int) -> Span:
    return spans[bisect_right([span.epoch for span in spans], epoch) - 1]


def _order_of(factory: OrderFactory, spans: list[Span], seed: int, epoch: int) -> Order:
    size = _span_of(spans, epoch).length
    order = factory(size, seed=seed, epoch=epoch)
    if len(order) != size:
        raise ValueError(
            f"order {order_name(factory)} has {len(order)} places for a source of {size} samples"
        )
    return order


def _source_of(spans: list[Span], seed: int, epoch: int) -> Source:
    span = _span_of(spans, epoch)
    if not span.reads_epochs:
        plain: Source = span.source
        return plain
    at_epoch: Source = span.source.at_epoch(epoch, seed=seed)
    if len(at_epoch) != span.length:
        raise ValueError(
            f"the source has {span.length} samples, but {len(at_epoch)} in epoch {epoch}: every "
            "epoch has to have the same length"
        )
    return at_epoch


class Stream:
    """A source served for ever, in a new order in every epoch.

    Position p belongs to epoch e = p // n and serves sample ``order(n, seed=seed,
    epoch=e)[p % n]``. A source that shuffles inside (it has ``at_epoch(e, seed=)``) is asked for
    each epoch's contents and served as stored, unless an order is asked for.

    Parameters
    ----------
    source
        Anything with `len`, `gather` and `fingerprint`; see `windeck.sources.Source`.
    order
        An order factory ``f(size, *, seed, epoch)``: `Permutation` (the default), `Sequential`,
        ``functools.partial(BlockPermutation, block_size=256)``, or one's own.
    seed
        An int in [0, 2^64).
    grown
        Pairs (position, bigger source), ascending: the epoch that is running at this position is
        finished over what there was, and from the next one on it is this source that is served.
        Epochs are numbered on. An entry may be added while a run goes on, as long as its epochs
        have not begun.

    Raises
    ------
    ValueError
        For an empty source, a seed out of range, an order of another size than the source, and
        for sources of `grown` that give other keys, dtypes or shapes.
    TypeError
        For something that is no source, or an order that cannot be called.

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
        if order is not None and not callable(order):
            raise TypeError(
                f"order has to be a factory f(size, *, seed, epoch), got {type(order).__name__}; "
                "pass the class, not an instance"
            )
        self.source = source
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self._order = order
        self._grown = tuple(grown)
        self._epochs = Epochs(source, order, self.seed, self._grown)
        self.order: OrderFactory = self._epochs.order

    @property
    def epoch_length(self) -> int | None:
        """Samples in an epoch, n; None where the source grows and epochs differ."""
        lengths = {span.length for span in self._epochs.spans}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def first_epoch_length(self) -> int:
        """Samples in the first epoch; of all of them until the source grows."""
        return self._epochs.spans[0].length

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The source's fields (as ``source.<field>``), the size, the order's name and the seed.

        What `grown` adds follows with the number of its first epoch: ``grown.3.source.<field>``.
        """
        return self.fingerprint_at(LIMIT)

    def fingerprint_at(self, position: int) -> Fingerprint:
        """What a state at a position depends on: all but sources whose epochs come later."""
        first, *later = self._epochs.spans
        order = checked_order_name(self.order)
        fields: dict[str, str | int] = {"samples": first.length, "order": order, "seed": self.seed}
        fields |= _prefixed("source.", first.source.fingerprint)
        for span in later:
            if span.start < position:
                prefix = f"grown.{span.epoch}."
                fields[f"{prefix}samples"] = span.length
                fields |= _prefixed(f"{prefix}source.", span.source.fingerprint)
        return fields

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """A sentence of the source for a field that differs, or None where it has none."""
        for span in self._epochs.spans:
            prefix = f"grown.{span.epoch}.source." if span.epoch else "source."
            if field.startswith(prefix):
                return explain_change(span.source, field.removeprefix(prefix), was, now)
        if not field.startswith("grown.") or (was is not None and now is not None):
            return None
        epoch = field.split(".")[1]
        if now is None:
            return (
                f"when it was saved, the source had grown with epoch {epoch}, which has begun and "
                "is missing here"
            )
        return (
            f"the source grows with epoch {epoch}, which had begun when it was saved, without that "
            "growth"
        )

    @property
    def supports_threads(self) -> bool:
        """Whether `gather` hands ``threads=`` on to the source."""
        return bool(getattr(self.source, "supports_threads", False))

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a type NumPy lacks, and that type."""
        types: Mapping[str, str] = getattr(self.source, "torch_dtypes", {})
        return types

    def order_at(self, epoch: int) -> Order:
        """The order of an epoch. O(1) for the orders of windeck."""
        return self._epochs.order_at(epoch)

    def epoch_at(self, position: int) -> int:
        """The epoch that a position belongs to. O(log grown)."""
        where = check_integer("position", position)
        return self._epochs.span_at(where).epoch_at(where)

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """The epoch of a position, whatever the sample: all of them are in the same one."""
        return self.epoch_at(at)

    def samples(self, positions: ArrayLike) -> Indices:
        """Which samples are served.

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
            For positions that are no integers.
        IndexError
            For a negative position.
        """
        return self._samples(as_positions(positions))

    def _samples(self, wanted: Indices) -> Indices:
        runs = [
            self.order_at(epoch).take(places) for _, epoch, places in self._epochs.split(wanted)
        ]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def position_of(self, samples: ArrayLike, *, epoch: int = 0) -> Indices:
        """At which positions of an epoch samples are served: the inverse of `samples`.

        Parameters
        ----------
        samples
            Integers in [0, n) of shape (k,).

        Returns
        -------
        int64 array of shape (k,)
            Positions in [epoch * n, (epoch + 1) * n), where n never changes.
        """
        wanted = as_positions(samples, "samples")
        span = self._epochs.span_of(check_integer("epoch", epoch))
        if wanted.size and wanted.max() >= span.length:
            raise IndexError(f"sample {wanted.max()} is out of range of {span.length} samples")
        return np.asarray(self.order_at(epoch).index(wanted)) + span.begin(epoch)

    def documents_at(self, positions: ArrayLike) -> list[list[Any]]:
        """The pieces of documents at each of some positions.

        Raises
        ------
        TypeError
            When the source knows of no documents.
        """
        found: list[list[Any]] = []
        for _, epoch, places in self._epochs.split(as_positions(positions)):
            documents = asked_of(self._epochs.source_at(epoch), "documents")
            found += [documents(sample) for sample in self.order_at(epoch).take(places).tolist()]
        return found

    def document_positions(self, document: Any, *, at: int, epoch: int | None = None) -> Indices:
        """At which positions of an epoch sequences of a document are served.

        Parameters
        ----------
        document
            What the source calls a document: ``(dataset_id, shard_id, doc_id)``.
        at
            A position: the epoch that it belongs to is meant.
        epoch
            Another epoch instead.

        Returns
        -------
        int64 array
            Ascending; empty where no sequence holds any of the document.

        Raises
        ------
        TypeError
            When the source knows of no documents.
        """
        return positions_of(self.document_runs(document, at=at, epoch=epoch))

    def document_runs(self, document: Any, *, at: int, epoch: int | None = None) -> list[Run]:
        """The epoch meant, and the positions as `document_positions` gives them."""
        number = self.epoch_at(at) if epoch is None else check_integer("epoch", epoch)
        samples = asked_of(self._epochs.source_at(number), "sequences_of")(document)
        return [Run(number, self.position_of(samples, epoch=number))]

    def gather(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """One batch: row k of every array belongs to ``positions[k]``.

        Parameters
        ----------
        positions
            Integers in [0, 2^63) of shape (k,). One call of the source serves them all, also
            across epochs; a source with `at_epoch` is called once for each epoch.
        out
            Arrays to write into, by key, of k rows: the keys that `gather_rows` gives.
        threads
            For sources that compute in several threads; ignored by others.
        """
        return complete_batch(self._shown_by, self.gather_rows(positions, out, threads=threads))

    def gather_rows(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """The rows of a batch, before `whole` and `present`; parameters as for `gather`."""
        wanted = as_positions(positions)
        first = self._epochs.spans[0]
        if len(self._epochs.spans) == 1 and not first.reads_epochs:
            extra = _threads(first.source, threads)
            return gather_rows(first.source, self._samples(wanted), out, **extra)
        parts = []
        for rows, epoch, places in self._epochs.split(wanted):
            target = out and {key: array[rows] for key, array in out.items()}
            samples = self.order_at(epoch).take(places)
            source = self._epochs.source_at(epoch)
            extra = _threads(self._epochs.span_of(epoch).source, threads)
            part = gather_rows(source, samples, target, **extra)
            check_written(part, target or {})
            parts.append(part)
        if out is not None:
            return out
        if len(parts) == 1:
            return parts[0]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def whole(self, rows: Batch) -> Batch:
        """What the source says of a batch of these rows as a whole; see `RowSource`."""
        return whole(self._shown_by, rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as the source shows it; see `RowSource`."""
        return present(self._shown_by, batch)

    @property
    def _shown_by(self) -> Any:
        """Who knows of `whole` and `present`: the source, or that of an epoch."""
        first = self._epochs.spans[0]
        if first.reads_epochs and not hasattr(first.source, "gather_rows"):
            return self._epochs.source_at(0)
        return first.source

    def __repr__(self) -> str:
        name = order_name(self.order)
        return f"Stream({self.source!r}, order={name}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(Stream, order=self._order, seed=self.seed, grown=self._grown)
        return again, (self.source,)


def as_stream(
    data: Any, *, shuffle: bool = False, order: OrderFactory | None = None, seed: int | None = None
) -> Any:
    """The stream that a loader reads: `data` itself, or a `Stream` over it when it is a source.

    Raises
    ------
    TypeError
        For shuffle, order or seed with a stream, which has its own.
    """
    if not hasattr(data, "epoch_length"):
        if order is None and not shuffle and not hasattr(data, "at_epoch"):
            order = Sequential
        return Stream(data, order=order, seed=0 if seed is None else seed)
    for name, given in (("shuffle", shuffle), ("order", order), ("seed", seed)):
        if given is not None and given is not False:
            raise TypeError(
                f"{name} is the stream's own: give it to {type(data).__name__}(...), not to the "
                "loader"
            )
    return data


def _prefixed(prefix: str, fields: Fingerprint) -> dict[str, str | int]:
    return {f"{prefix}{name}": value for name, value in fields.items()}


def _threads(source: Any, threads: int | None) -> dict[str, Any]:
    """``threads=`` for a source that takes it."""
    takes = threads is not None and getattr(source, "supports_threads", False)
    return {"threads": threads} if takes else {}
