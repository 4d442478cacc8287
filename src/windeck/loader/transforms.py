"""A transform stage: functions of batches or samples, computed where batches are gathered.

A mapped stream gathers only positions. The function then makes the batch from all of them at once,
so that streams, loaders and pinned memory need to know nothing of it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from windeck._core import hash_words
from windeck._util.fingerprints import order_name
from windeck._util.indices import as_positions
from windeck._util.options import explain_options
from windeck._util.validation import check_integer
from windeck.loader.row_random import RowRandom
from windeck.loader.served import Served, serve
from windeck.loader.visits import EpochPositions
from windeck.sources import Batch, Fingerprint, Indices, Order, Stream
from windeck.sources.members import StreamMembers, stream_members

__all__ = ["MappedStream"]

#: (arrays of a batch, random numbers) -> arrays, or (a sample, a generator) -> anything.
Function: TypeAlias = "Callable[[Batch, Any], Any]"
_numbers = itertools.count(1)


@explain_options
class MappedStream:
    """A stream whose batches are those of another one, changed by a function.

    Made by ``map`` of `Stream` and `Mixture`. The function runs in the loader's background thread,
    on NumPy arrays, before they become tensors.

    Parameters
    ----------
    stream
        A stream.
    function
        ``function(batch, random)`` returns the arrays of the new batch. `random` is a
        `windeck.loader.row_random.RowRandom`. With `collate`: ``function(sample, generator)``, for
        each row; a sample has row k of every array that has one row for each sample, and the list
        of row k of every `JaggedTable` column (``<key>`` with ``<key>_offsets`` beside it).
    columns
        Keys that the function gets. The others pass by it: its arrays are added to them.
    seed
        Seed of the random numbers.
    collate
        Function that makes a batch of the list of samples, such as one that pads them.

    Notes
    -----
    The fingerprint has the names of the functions with the options of a `functools.partial`, so a
    function needs a name: no lambda, closure, method of an object or object without a `repr`. The
    source gathers with its default number of threads: `threads` of a loader does not reach it.
    """

    def __init__(
        self,
        stream: Stream,
        function: Function,
        *,
        columns: str | Iterable[str] | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        for name, given in (("function", function), ("collate", collate)):
            if not callable(given) and not (name == "collate" and given is None):
                raise TypeError(f"`{name}` must be callable, got {type(given).__name__}")
        self.stream = stream
        self._function, self._collate = function, collate
        self._columns = (columns,) if isinstance(columns, str) else columns and tuple(columns)
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        inner = isinstance(stream, MappedStream) and stream._is_collated
        if inner and collate is not None:
            raise ValueError(
                f"`collate` must be None for {_name_of(function)}, a function of samples: those of "
                "`stream` are collated already"
            )
        self._is_collated: bool = inner or collate is not None
        #: Number of the function among those applied one after the other, from 1.
        self._depth: int = stream._depth + 1 if isinstance(stream, MappedStream) else 1
        field = "map" if self._depth == 1 else f"map{self._depth}"
        self._fields: dict[str, str | int] = {field: _name_of(function), f"{field}.seed": self.seed}
        if self._columns is not None:
            self._fields[f"{field}.columns"] = ", ".join(map(repr, self._columns))
        if collate is not None:
            self._fields[f"{field}.collate"] = _name_of(collate)
        self._name = self._fields[field]
        self._key = _new_key()

    @property
    def stream(self) -> Stream:
        """The stream whose batches are changed; another one that is set takes its place."""
        return self._members.stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._members = stream_members(stream)

    @property
    def epoch_length(self) -> int | None:
        """Number of positions in an epoch of the stream; None if there are no epochs."""
        return self._members.epoch_length

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Dtypes of the stream: the function keeps the bits of such arrays, or renames them."""
        return self._members.methods.torch_dtypes

    @property
    def fingerprint(self) -> Fingerprint:
        """The fields of the stream, the name of the function and the seed."""
        return {**self._members.fingerprint, **self._fields}

    def fingerprint_at(self, position: int) -> Fingerprint:
        """Return the fingerprint that a state at a position depends on."""
        return {**self._members.fingerprint_at(position), **self._fields}

    def gather(self, positions: ArrayLike, out: Batch | None = None) -> Batch:
        """Return the changed batch of some positions; `out` is for `gather_rows`."""
        rows = self.gather_rows(positions, out)
        return self.present({**rows, **self.whole(rows)})

    def gather_rows(self, positions: ArrayLike, out: Batch | None = None) -> Batch:
        """Return the positions themselves; `whole` makes the batch."""
        wanted = as_positions(positions)
        if out is None:
            return {self._key: wanted.copy()}
        out[self._key][:] = wanted
        return out

    def whole(self, rows: Batch) -> Batch:
        """Return all arrays of the batch of these positions."""
        return self._batch(rows[self._key])[0]

    def _batch(self, positions: Indices) -> tuple[Batch, set[str]]:
        """Return the batch, and which of its arrays belong to the batch as a whole."""
        batch, of_all = _unchanged(self._members, positions)
        # Functions with one seed get other numbers.
        seed = self.seed if self._depth == 1 else hash_words(self.seed, self._depth)
        random = RowRandom(seed, positions)
        columns = self._columns
        kept = {} if columns is None else batch
        given = batch if columns is None else _select(batch, columns)
        if self._collate is None:
            made: Any = self._function(given, random)
        else:
            samples = _samples(batch, given, of_all, len(positions), self._name)
            made = self._collate(
                [self._function(one, random.generator(row)) for row, one in enumerate(samples)]
            )
        if not isinstance(made, Mapping):
            raise TypeError(
                f"{self._name} returned a {type(made).__name__}, expected a dict of arrays"
            )
        changed = {
            key: np.require(array, requirements="W") for key, array in {**kept, **made}.items()
        }
        return changed, of_all & changed.keys()

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch without the positions."""
        del batch[self._key]
        return batch

    def map(
        self,
        function: Function,
        *,
        columns: str | Iterable[str] | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Mapping[str, Any]] | None = None,
    ) -> MappedStream:
        """Return a stream that applies another function to these batches; see `MappedStream`."""
        return MappedStream(self, function, columns=columns, seed=seed, collate=collate)

    # What does not depend on the contents of batches. A TypeError is raised where the stream lacks
    # the method.

    def blocks_of(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return pairs (row, block) of the stream for some positions."""
        return self._members.blocks_of(positions)

    @property
    def block_bytes(self) -> Indices:
        """Bytes of each block that the stream reads: int64 of shape (blocks,)."""
        return self._members.block_bytes()

    @property
    def bytes_behind_blocks(self) -> Indices:
        """Bytes that are read next to each block: int64 of shape (blocks,)."""
        return self._members.bytes_behind_blocks()

    def samples(self, positions: ArrayLike) -> Indices:
        """Return the samples at some positions; see `Stream.samples`."""
        return self._members.samples(positions)

    def position_of(self, samples: ArrayLike, *, epoch: int = 0) -> Indices:
        """Return the positions of samples in an epoch; see `Stream.position_of`."""
        return self._members.position_of(samples, epoch=epoch)

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """Return the epoch of a sample when the stream is at a position."""
        return self._members.epoch_of(sample, at=at)

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position; see `Stream.epoch_at`."""
        return self._members.epoch_at(position)

    def order_at(self, epoch: int) -> Order:
        """Return the order of an epoch; see `Stream.order_at`."""
        return self._members.order_at(epoch)

    def documents_at(self, positions: ArrayLike) -> list[list[Any]]:
        """Return the documents at some positions; see `Stream.documents_at`."""
        return self._members.documents_at(positions)

    def document_positions(self, document: Any, *, at: int, epoch: int | None = None) -> Indices:
        """Return the positions of a document; see `Stream.document_positions`."""
        return self._members.document_positions(document, at=at, epoch=epoch)

    def document_runs(
        self, document: Any, *, at: int, epoch: int | None = None
    ) -> Sequence[EpochPositions]:
        """Return the epochs and positions of a document; see `Stream.document_runs`."""
        return self._members.document_runs(document, at=at, epoch=epoch)

    def served(
        self, position: int, *, skipped: Sequence[tuple[int, int]] = (), documents: bool = True
    ) -> Served:
        """Return counts of samples, tokens and documents; see `Stream.served`."""
        return serve(self._members, position, skipped, documents)

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens of every sample of the stream, or None."""
        return self._members.tokens_per_sample

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """Return the reason why a field of the fingerprint differs, or None."""
        return self._members.explain_change(field, was, now)

    def without_retired(self, fields: Fingerprint, position: int) -> Fingerprint:
        """Return a saved fingerprint without retired data; see `Mixture.without_retired`."""
        return self._members.without_retired(fields, position)

    def __repr__(self) -> str:
        return f"MappedStream({self.stream!r}, {self._name})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _key=_new_key())


def _unchanged(stream: StreamMembers, positions: Indices) -> tuple[Batch, set[str]]:
    """Return the batch of a stream, and which of its arrays belong to the batch as a whole."""
    if isinstance(stream.stream, MappedStream):
        return stream.stream._batch(positions)
    rows = stream.methods.gather_rows(positions)
    of_all = stream.methods.whole_arrays(rows)
    return stream.methods.presented({**rows, **of_all}), set(of_all)


def _samples(
    batch: Batch, given: Batch, of_all: set[str], rows: int, name: str | int
) -> Iterator[dict[str, Any]]:
    """Yield the sample of each row: its values, and its lists.

    Lists are end to end in one array, with ``<key>_offsets`` of shape (rows + 1,) beside it, which
    are also those of ``<key>_weights``. Other arrays of the whole batch are left out.
    """
    offsets = {
        key.removesuffix("_offsets"): array.tolist()
        for key, array in batch.items()
        if key.endswith("_offsets") and np.shape(array) == (rows + 1,)
    }
    lists = {key: offsets[key] for key in given if key in offsets}
    for key in offsets:
        if (weights := f"{key}_weights") in given and weights in of_all:
            lists[weights] = offsets[key]
    rest = of_all | lists.keys() | {f"{key}_offsets" for key in offsets}
    single = [key for key in given if key not in rest]
    expected = {**dict.fromkeys(single, rows), **{key: lists[key][-1] for key in lists}}
    for key, length in expected.items():
        if np.shape(given[key])[:1] != (length,):
            raise ValueError(
                f"samples for {name} cannot be taken from a batch in which {key!r} has shape "
                f"{np.shape(given[key])}, expected a first axis of {length}"
            )
    for row in range(rows):
        sample = {key: given[key][row] for key in single}
        for key, starts in lists.items():
            sample[key] = given[key][starts[row] : starts[row + 1]]
        yield sample


def _defined(kind: type) -> set[str]:
    """Return the names that a class and its bases define, those of `object` left out."""
    return {name for base in kind.__mro__ if base is not object for name in vars(base)}


def _new_key() -> str:
    """Return a name for positions: mapped parts of a mixture must not be taken for one another."""
    return f"positions of map {next(_numbers)}"


def _select(batch: Batch, columns: Iterable[str]) -> Batch:
    for key in columns:
        if key not in batch:
            raise KeyError(f"the batch has no key {key!r} for the function, only {list(batch)}")
    return {key: batch[key] for key in columns}


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for a fingerprint.

    Raises
    ------
    ValueError
        For a lambda, a closure, a method of an object, and an object without a `repr` of its own.
    """
    name = order_name(function)
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    kind = None
    if "<lambda>" in name:
        kind = "a lambda"
    elif getattr(inner, "__closure__", None):
        kind = "a closure"
    elif inspect.ismethod(inner) and not inspect.isclass(inner.__self__):
        kind = "a method of an object"
    elif not inspect.isroutine(inner) and "__repr__" not in _defined(type(inner)):
        kind = "an object without a repr of its own"
    if kind is not None:
        raise ValueError(
            f"the function is {kind}, which a state cannot tell from another; expected a function "
            "made with def at the top of a module, or a functools.partial of one"
        )
    return name
