"""The loader: at position P, rank r of W trains on [P + r*B, P + (r+1)*B), then P += W*B.

All that moves while training is one integer. What is at a position is the stream's business, how
positions are dealt that of `windeck.loader.sharding`, and how a batch becomes tensors that of
`windeck.loader.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray

from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Assembler, Tensors, can_pin, target_device
from windeck.loader.history import History
from windeck.loader.prefetch import Loop
from windeck.loader.queries import (
    Visit,
    asked_of,
    handed_out,
    is_document,
    place_of,
    step_at,
    visit,
)
from windeck.loader.sharding import Deal, Exclusions, check_ranks, current_ranks
from windeck.loader.state import restored, saved
from windeck.loader.stream import as_stream
from windeck.sources import OrderFactory, Source
from windeck.sources import Stream as StreamProtocol

__all__ = ["Loader"]

#: (dataset_id, shard_id, doc_id), or (a part's name, a document).
_Document: TypeAlias = "tuple[str, Any, Any] | tuple[str, Any]"


class Loader:
    """Iterates batches of a source or a stream: dicts of tensors, resumable from one integer.

    One ``for`` loop runs to the end of the current epoch, the next one through the next epoch.
    After ``break``, and after `load_state_dict`, a loop goes on from the position::

        loader = wd.Loader(windows, batch_size=256, shuffle=True, seed=7, epochs=3)
        while loader.epoch < 3:
            for batch in loader:
                ...
                state = {"loader": loader.state_dict(), ...}

    Parameters
    ----------
    data
        A source (`windeck.sources.Source`) or a stream (`windeck.sources.Stream`).
    batch_size
        Samples in a batch of one rank, at most those of an epoch.
    shuffle
        Whether a source is served in the order of `Permutation`, anew in every epoch; otherwise
        as stored.
    order
        An order factory to use instead, for a source.
    seed
        Of the order, an int in [0, 2^64); None means 0.
    rank, world_size
        Which of how many processes this is. Left out, they are torch.distributed's, looked at
        when they are needed, so that the loader may be made before the process group.
    drop_last
        Whether the rest of an epoch that is no full batch on every rank is dropped. Otherwise
        it is split evenly: of R samples rank r gets [r*R//W, (r+1)*R//W), which is an **empty
        batch** on some ranks where R < W. Every rank makes the same number of steps either way.
    epochs
        No batch comes from this epoch or later ones: a bound on epochs, not on loops.
    prefetch
        Batches made ahead in a background thread; 0 makes each when it is asked for.
    threads
        For sources that compute a batch in several threads; None leaves it to the source.
    pin_memory
        Whether batches are gathered straight into page-locked memory.
    device
        Where batches go, ahead and on a stream of their own; ``"cuda"`` pins by itself.

    Raises
    ------
    TypeError
        For shuffle, order or seed together with a stream, which has its own, and for numbers
        that are no integers.
    ValueError
        For a batch larger than an epoch, a rank not below the world size, `drop_last` where it
        would drop all, and `epochs` with a stream that has none, which would never end.

    Notes
    -----
    A batch is the user's: writable, and never touched again by the library.

    Examples
    --------
    >>> class Squares:
    ...     fingerprint = {"squares": 5}
    ...     def __len__(self):
    ...         return 5
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices**2}
    >>> loader = Loader(Squares(), batch_size=2)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [4, 9], [16]]
    >>> loader.position, loader.epoch
    (5, 1)
    """

    def __init__(
        self,
        data: Source | StreamProtocol,
        *,
        batch_size: int,
        shuffle: bool = False,
        order: OrderFactory | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        epochs: int | None = None,
        prefetch: int = 2,
        threads: int | None = None,
        pin_memory: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.stream: Any = as_stream(data, shuffle=shuffle, order=order, seed=seed)
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self.drop_last = bool(drop_last)
        self.epochs = None if epochs is None else check_integer("epochs", epochs)
        self.prefetch = check_integer("prefetch", prefetch)
        self._ranks = check_ranks(rank, world_size)
        if self.epochs is not None and self.stream.epoch_length is None:
            raise ValueError(
                f"epochs is {self.epochs}, but {type(self.stream).__name__} has no epochs to "
                "count; expected a loop that ends at a step or a position"
            )
        self._epoch_length: int = self.stream.epoch_length or LIMIT
        self._exclusions = Exclusions()
        self._deal()  # Tells of what does not fit.
        self._position = 0
        self._step = 0
        self._version = 0
        #: What legs of a state mean that say nothing of epochs.
        self._usual = getattr(self.stream, "first_epoch_length", self._epoch_length)
        self._history = History(self._usual)
        self._assemble = Assembler(
            self.stream,
            threads=None if threads is None else check_integer("threads", threads, least=1),
            pin_memory=can_pin(pin_memory),
            device=target_device(device),
        )

    # Where it stands.

    @property
    def rank(self) -> int:
        """Which process this is."""
        return current_ranks(self._ranks)[0]

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return current_ranks(self._ranks)[1]

    @property
    def position(self) -> int:
        """The position in the stream up to which all ranks together were handed samples."""
        return self._position

    @property
    def step(self) -> int:
        """Batches handed out since the run began: the number of the next one."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._deal().begin(self._position) // self._epoch_length

    @property
    def steps_left(self) -> int:
        """Batches until the end of the epoch; 0 when `epochs` is reached."""
        if self.epochs is not None and self.epoch >= self.epochs:
            return 0
        deal = self._deal()
        return deal.steps_left(deal.begin(self._position))

    def __len__(self) -> int:
        """Batches in the whole of the current epoch, on every rank."""
        if self._epoch_length == LIMIT:
            raise TypeError("the stream has no epochs, so the loader has no length")
        return self._deal().steps_left(self.epoch * self._epoch_length)

    # Batches.

    def __iter__(self) -> Iterator[Tensors]:
        return Loop(self)

    def peek(self) -> Tensors:
        """The next batch, without moving.

        Raises
        ------
        IndexError
            When there is none because `epochs` is reached.
        """
        deal = self._deal()
        start = deal.begin(self._position)
        if self.epochs is not None and start // self._epoch_length >= self.epochs:
            raise IndexError(f"there is no batch to look at: epochs={self.epochs} is reached")
        return self._assemble(deal.positions(start, self.rank)).hand_over()

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """All it takes to go on: a few integers, fit for JSON, and the same on every rank.

        It counts what was handed out, not what was prefetched. `position` is the state proper,
        `fingerprint` and `order_version` guard it, `excluded` are ranges left out, and `step`
        and `legs` let steps of the past be named after a change of batch or world size.
        """
        self._note()
        return {
            **saved(self.stream, self._position),
            "step": self._step,
            "legs": self._history.saved(),
            "excluded": [list(pair) for pair in self._exclusions.ranges],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, with any batch size, world size and prefetching.

        Also takes the state of an `IterDataset`, and any with the three fields that matter.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`; nothing is changed then.
        """
        position = restored(self.stream, state)
        step = check_integer("step", state.get("step", 0))
        history = History.of(state.get("legs", []), self._usual)
        exclusions = Exclusions.of(state.get("excluded", []))
        self._position, self._step = position, step
        self._history, self._exclusions = history, exclusions
        self._version += 1

    # Samples and steps, computed.

    def samples(self, step: int, *, rank: int | None = None) -> NDArray[np.int64]:
        """The samples handed out, or to be handed out, at a step.

        Parameters
        ----------
        step
            Number of a batch since the run began, from 0; `step` is the next one's.
        rank
            Whose share; this rank's by default.

        Returns
        -------
        int64 array of shape (k,)
            Samples of the source in the order of rows. Exact also for steps of before a change
            of batch or world size; a rank there was not gets none. O(excluded ranges).
        """
        samples: NDArray[np.int64] = asked_of(self.stream, "samples")(self._dealt(step, rank))
        return samples

    def documents(self, step: int, *, rank: int | None = None) -> list[list[Any]]:
        """The documents handed out, or to be handed out, at a step.

        Parameters
        ----------
        step, rank
            As for `samples`.

        Returns
        -------
        list of lists
            For each row of the batch its pieces, ``(dataset_id, shard_id, doc_id, start, stop)``.

        Raises
        ------
        TypeError
            When the stream knows of no documents.
        """
        pieces: list[list[Any]] = asked_of(self.stream, "documents_at")(self._dealt(step, rank))
        return pieces

    def step_of(self, sample: Any, *, epoch: int | None = None) -> int | None:
        """The step at which a sample is handed out to some rank in an epoch, or None.

        Parameters
        ----------
        sample
            A sample of the source; of a mixture ``(part, sample)``, as `samples` has it.
        epoch
            The current one by default; of a mixture that of the part.

        Returns
        -------
        int or None
            None where the sample is excluded, dropped at the end of the epoch, or before the
            position at which the run began.
        """
        return step_at(self, place_of(self, sample, epoch))

    @overload
    def visited(self, sample: int, *, epoch: int | None = None) -> bool: ...
    @overload
    def visited(self, sample: _Document, *, epoch: int | None = None) -> Visit: ...
    @overload
    def visited(self, sample: Any, *, epoch: int | None = None) -> bool | Visit: ...
    def visited(self, sample: Any, *, epoch: int | None = None) -> bool | Visit:
        """Whether a sample or a document was handed out to some rank, and when.

        Parameters
        ----------
        sample
            A sample as for `step_of`; or a document ``(dataset_id, shard_id, doc_id)``, in a
            mixture also ``(part's name, document)``.
        epoch
            As for `step_of`.

        Returns
        -------
        bool or Visit
            For a document a `Visit`, which is true when all of its sequences were handed out,
            and says at which steps. O(its sequences).

        Raises
        ------
        KeyError, IndexError
            For a document that is not there.
        TypeError
            When the stream knows of no samples or no documents.
        """
        if is_document(sample):
            return visit(self, tuple(sample), epoch)
        return handed_out(self, place_of(self, sample, epoch))

    def exclude(self, start: int, stop: int) -> None:
        """Leave the positions [start, stop) of the stream out, from now on and after resuming.

        Positions before the loader's own have been handed out, and stay so.

        Raises
        ------
        ValueError
            For an empty or negative range.
        """
        first = check_integer("start", start)
        last = check_integer("stop", stop, least=first + 1)
        self._note()
        first = max(first, self._position)
        if first < last:
            self._exclusions = Exclusions([*self._exclusions.ranges, (first, last)])
            self._version += 1

    def __repr__(self) -> str:
        return (
            f"Loader({self.stream!r}, batch_size={self.batch_size}, drop_last={self.drop_last}, "
            f"position={self._position})"
        )

    # Inside.

    def _deal(self) -> Deal:
        n, ranks = self._epoch_length, self.world_size
        return Deal(n, self.batch_size, ranks, self.drop_last, self._exclusions)

    def _note(self) -> None:
        """Let the history know how the next step is dealt."""
        self._history.note(self._step, self._position, self._deal())

    def _dealt(self, step: int, rank: int | None) -> NDArray[np.int64]:
        """The positions of a rank's share of a step."""
        self._note()
        deal, start = self._history.find(check_integer("step", step), self._exclusions)
        share = self.rank if rank is None else check_integer("rank", rank)
        if rank is None and share >= deal.world_size:
            return np.empty(0, np.int64)
        check_ranks(share, deal.world_size)
        return deal.positions(start, share)
