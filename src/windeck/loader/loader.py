"""The loader: batches of tensors from a source or stream, resumable from one position.

With position P, batch size B and world size W, rank r trains on [P + r*B, P + (r+1)*B), then
P += W*B. The stream defines the sample at a position, `windeck.loader.sharding` the positions of
each rank, and `windeck.loader.batch` makes tensors of them.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, overload
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from windeck._util.html import html_table
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_bytes, check_integer
from windeck.loader.agreement import check_agreement
from windeck.loader.batch import (
    BatchBuilder,
    BatchGroup,
    Tensors,
    check_device,
    check_pin_memory,
)
from windeck.loader.batch_groups import EpochIterator, build_groups
from windeck.loader.callers import warn_of_the_rest
from windeck.loader.device import DeviceBatchBuilder, builder_on_device
from windeck.loader.history import StepHistory
from windeck.loader.pace import Pace
from windeck.loader.prefetch import Prefetcher
from windeck.loader.questions import (
    LoaderPoint,
    count_served,
    explain_io,
    step_of,
    step_positions,
    visit_document,
    was_visited,
)
from windeck.loader.read_report import ReadReport
from windeck.loader.served import Served
from windeck.loader.sharding import (
    Exclusions,
    Sharding,
    check_ranks,
    current_ranks,
    warn_of_launcher,
)
from windeck.loader.state import load_stream_position, stream_state
from windeck.loader.stream import as_stream
from windeck.loader.visits import Visit, is_document
from windeck.sources import OrderFactory, Source
from windeck.sources import Stream as StreamProtocol
from windeck.sources.members import StreamMembers, stream_members

__all__ = ["Loader", "iterated_loaders"]

_log = logging.getLogger("windeck")

#: (dataset_id, shard_id, doc_id), or (a part's name, a document).
_Document: TypeAlias = "tuple[str, Any, Any] | tuple[str, Any]"


@explain_options
class Loader:
    """Iterates batches of a source or a stream: dicts of tensors, resumable from one integer.

    One ``for`` loop runs to the end of the current epoch, the next one through the next epoch.
    After ``break``, and after `load_state_dict`, a loop continues from the position::

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
        Samples in a batch of one rank. An epoch with fewer samples is one batch.
    shuffle
        Whether a source is served in the order of `Permutation`, a new one in every epoch;
        otherwise as stored. A source with `shuffled()`, as `PackedSequences`, is served in that
        order instead.
    order
        An order factory to use instead, for a source.
    seed
        Seed of the order, an int in [0, 2^64); None means 0. An error where samples are served in
        sequence, as it has no effect there.
    rank, world_size
        Rank of this process and number of processes. By default those of torch.distributed, read
        when they are first needed, so the loader may be created before the process group.
    drop_last
        Whether the remainder of an epoch that does not fill a batch on every rank is dropped.
        Otherwise it is split evenly: of R samples rank r gets [r*R//W, (r+1)*R//W), which is an
        **empty batch** on some ranks if R < W. Every rank makes the same number of steps either
        way.
    epochs
        End of iteration: no batch comes from this epoch or a later one. It limits epochs, not
        loops: a ``for`` loop is one epoch still. A stream without epochs needs
        `steps_per_epoch` for it. With `restart` every loop is epoch 0.
    prefetch
        Batch groups made ahead in a background thread: 0 for none, or their bytes as text, such as
        ``"64MB"``. A group is a batch, or several small ones of together 0.5 to 1.5 MiB. While the
        training steps are too short for the thread to save time, or the loop takes longer beside
        it, groups are made on request; the loop's time is compared now and then. It is 0 for a
        source on a device, such as ``windows.to("cuda")``, whose batches are made there.
    threads
        Threads for sources that gather in several; None is the source's default. Other sources,
        and those on a device, take no notice of it.
    pin_memory
        Whether batches are in page-locked memory.
    device
        Device to which batches are copied ahead, on a CUDA stream of their own; ``"cuda"`` implies
        pinned memory.
    steps_per_epoch
        Batches in an epoch of a stream that has none, such as a `Mixture`: epoch e is the steps
        [e * S, (e + 1) * S) since the run began, a ``for`` loop ends with it, and the loader has a
        length. Counted in steps, so a change of batch or world size does not move its borders.
    restart
        Whether every ``for`` loop begins at position 0, for validation and test. The loader's own
        position stays 0, and so does that of its state; loops do not affect each other.
    max_steps
        End of iteration: no batch comes after this number since the run began, on every rank, also
        after a resume. With `restart` every loop ends there. Not in the state.
    compare_ranks
        Whether ranks compare data, options and position before the first batch, by one small
        all-gather in the main thread, and raise if they differ. Only with the ranks of
        torch.distributed: all of them have to begin a loop then, unless it is False.
    stall_timeout
        Seconds of waiting for a batch that is made ahead after which the logger "windeck" warns,
        and says what for; None for no warning.

    Raises
    ------
    TypeError
        For shuffle, order or seed together with a stream, which has its own, and for numbers
        that are not integers.
    ValueError
        For a `seed` of samples in sequence, a rank not below the world size, `drop_last` if it
        would drop every sample, `epochs` with a stream that has none and would never end, and
        `steps_per_epoch` with a stream that has epochs. The first batch raises it on every rank if
        ranks differ in data, options or position.

    Notes
    -----
    A batch belongs to the user: it is writable, and the library never uses its memory again.

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
        prefetch: int | str = 2,
        threads: int | None = None,
        pin_memory: bool = False,
        device: torch.device | str | None = None,
        steps_per_epoch: int | None = None,
        restart: bool = False,
        max_steps: int | None = None,
        compare_ranks: bool = True,
        stall_timeout: float | None = 60.0,
    ) -> None:
        stream = as_stream(data, shuffle=shuffle, order=order, seed=seed)
        self._members = stream_members(stream)
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self.drop_last = bool(drop_last)
        self.epochs = None if epochs is None else check_integer("epochs", epochs)
        self.prefetch, self._prefetch_bytes = _check_prefetch(prefetch)
        self.restart = bool(restart)
        self.max_steps = None if max_steps is None else check_integer("max_steps", max_steps)
        self.steps_per_epoch = _check_steps_per_epoch(steps_per_epoch, self._members)
        self.stall_timeout = _check_stall_timeout(stall_timeout)
        self._ranks = check_ranks(rank, world_size)
        if self.epochs is not None and self._is_endless:
            raise ValueError(
                f"`epochs` must be None, got {self.epochs}: {type(self.stream).__name__} has no "
                "epochs; give it epochs with `steps_per_epoch`, or end the loop at a step"
            )
        self._epoch_length = self._members.epoch_length or LIMIT
        self._exclusions = Exclusions()
        self._sharding()  # Raises for a batch size or `drop_last` that does not fit.
        self._position = 0
        self._step = 0
        #: Shared with the copies that `restart` makes.
        self._waited = SimpleNamespace(total=0.0, step=0.0, pace=Pace())
        self._unchecked = SimpleNamespace(ranks=bool(compare_ranks))
        #: Incremented when the loader is moved: batches made ahead before that are discarded.
        self._version = 0
        self._history = StepHistory()
        on_device = builder_on_device(stream, check_device(device), pin_memory)
        if on_device is not None:
            # Its batches are not made by this processor.
            self.prefetch, self._prefetch_bytes = 0, None
        self._build_batch: BatchBuilder | DeviceBatchBuilder = on_device or BatchBuilder(
            self._members,
            threads=None if threads is None else check_integer("threads", threads, least=1),
            pin_memory=check_pin_memory(pin_memory),
            device=check_device(device),
        )

    @property
    def stream(self) -> StreamProtocol:
        """The stream of the batches."""
        return self._members.stream

    # Progress.

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return current_ranks(self._ranks)[0]

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return current_ranks(self._ranks)[1]

    @property
    def position(self) -> int:
        """The position in the stream after the samples handed out to all ranks together."""
        return self._position

    @property
    def step(self) -> int:
        """Batches handed out since the run began: the number of the next one."""
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epoch_by(self._sharding())

    @property
    def waited_seconds(self) -> float:
        """Seconds that loops have waited for batches since the loader was made. Not in the state.

        Divided by the seconds of the loop it is the share of time lost to loading: with
        prefetching the time for which no batch was ready, else the time to make batches.

        Examples
        --------
        >>> import numpy as np, windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
        >>> loader = wd.Loader(wd.Windows(table, context_length=8), batch_size=16)
        >>> for batch in loader:
        ...     metrics = {"data/wait": loader.step_waited_seconds}  # for any logger
        >>> loader.waited_seconds >= loader.step_waited_seconds >= 0
        True
        """
        seconds: float = self._waited.total
        return seconds

    @property
    def step_waited_seconds(self) -> float:
        """Seconds that the loop waited for the last batch; 0 if it was ready."""
        seconds: float = self._waited.step
        return seconds

    @property
    def steps_left(self) -> int:
        """Batches until the end of the epoch; 0 when `epochs` or `max_steps` is reached."""
        if self.epochs is not None and self.epoch >= self.epochs:
            return 0
        left = self._epoch_steps_left
        return left if self.max_steps is None else min(left, max(0, self.max_steps - self._step))

    @property
    def _epoch_steps(self) -> int:
        """Batches in the whole current epoch, whatever ends the iteration."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return self._sharding().steps_left(self.epoch * self._epoch_length)

    @property
    def _begins_epoch(self) -> bool:
        """True if the next batch is the first one of an epoch."""
        if self.steps_per_epoch is not None:
            return self._step % self.steps_per_epoch == 0
        sharding = self._sharding()
        start = sharding.step_start(self._position)
        return start == sharding.step_start(start - start % self._epoch_length)

    @property
    def _epoch_steps_left(self) -> int:
        """Batches until the end of the epoch, whatever ends the iteration."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch - self._step % self.steps_per_epoch
        return self._sharding().steps_left(self._next_start())

    def __len__(self) -> int:
        """Return the number of batches in the whole current epoch, on every rank.

        Without those after `max_steps`, which is the length for a stream without epochs. If it was
        reached before the first batch of the epoch, the length is that without it.
        """
        if self._is_endless:
            if self.max_steps is not None:
                return self.max_steps
            raise TypeError(
                "the stream has no epochs, so the loader has no length; `steps_per_epoch` gives "
                "it one"
            )
        whole = self._epoch_steps
        if self.max_steps is None:
            return whole
        left = self._epoch_steps_left
        return whole - max(0, left - max(0, self.max_steps - self._step)) or whole

    # Batches.

    def __iter__(self) -> Iterator[Tensors]:
        warn_of_launcher(self._ranks)
        if self.restart:
            return EpochIterator(self._at_start())
        if not self._begins_epoch:
            warn_of_the_rest(self._position)
        _iterated[id(self)] = self
        return EpochIterator(self)

    def peek(self) -> Tensors:
        """Return the next batch without moving the position.

        Raises
        ------
        IndexError
            If there is none because `epochs` or `max_steps` is reached.
        """
        if self.max_steps is not None and self._step >= self.max_steps:
            raise IndexError(f"there is no next batch: max_steps={self.max_steps} is reached")
        if self.epochs is not None and self.epoch >= self.epochs:
            raise IndexError(f"there is no next batch: epochs={self.epochs} is reached")
        positions = self._sharding().positions(self._next_start(), self.rank)
        pending = self._build_batch(positions)
        pending.wait()
        return pending.batches[0]

    # State.

    def state_dict(self, *, step: int | None = None) -> dict[str, Any]:
        """Return the state: a few integers and strings, fit for JSON, the same on every rank.

        It counts batches that were handed out, not those prefetched. `position` is sufficient to
        resume, `fingerprint` and `order_version` protect it, `excluded` are the excluded ranges,
        and `step` and `legs` identify past steps after a change of batch or world size.

        Parameters
        ----------
        step
            Batches since the run began after which the state is taken, as counted by a trainer
            that fetches batches ahead; `Loader.step` by default. A past state is computed from the
            recorded changes of batch and world size, a future one with those of today, both with
            the exclusions known now. O(changes of configuration + excluded ranges).

        Raises
        ------
        IndexError
            For a step before the first that the loader has a record of, or after the last that
            `epochs` or `max_steps` allows.

        Examples
        --------
        >>> class Squares:
        ...     fingerprint = {"squares": 5}
        ...     def __len__(self):
        ...         return 5
        ...     def gather(self, indices, out=None):
        ...         return {"x": indices**2}
        >>> loader = Loader(Squares(), batch_size=2)
        >>> [loader.state_dict(step=n)["position"] for n in range(5)]
        [0, 2, 4, 5, 7]
        """
        number, position = self._point(step)
        return {
            **stream_state(self._members, position),
            "step": number,
            "legs": self._history.until(number).to_state(),
            "excluded": [list(pair) for pair in self._exclusions.ranges],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with any batch size, world size and prefetching.

        The state of an `IterDataset`, or any with the first three fields, is accepted too.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`, and for a position other than 0 if the loader
            restarts in every loop; the loader is not changed then.
        """
        position = load_stream_position(self._members, state)
        if position and "step" not in state:
            for name in ("steps_per_epoch", "max_steps"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"the state is at position {position} and does not count steps, which "
                        f"`{name}` needs; expected the state of a Loader"
                    )
        step = check_integer("step", state.get("step", 0), most=LIMIT // 2)
        history = StepHistory.from_state(state.get("legs", []))
        exclusions = Exclusions.from_state(state.get("excluded", []))
        if self.restart and position:
            raise ValueError(
                f"the state is at position {position}, but with `restart` every loop begins at "
                "position 0"
            )
        self._position, self._step = position, step
        self._history, self._exclusions = history, exclusions
        self._version += 1

    # Samples and steps, computed from the position.

    def samples(self, step: int, *, rank: int | None = None) -> NDArray[np.int64]:
        """Return the samples of a past or future step.

        Parameters
        ----------
        step
            Number of a batch since the run began, from 0; `Loader.step` is the next one's.
        rank
            Rank whose samples are returned; this one by default.

        Returns
        -------
        int64 array of shape (k,)
            Samples of the source in the order of rows. Exact also for steps before a change of
            batch or world size; none for this rank if it did not exist then. O(excluded ranges).
        """
        return self._members.samples(step_positions(self._reached(), step, rank))

    def documents(self, step: int, *, rank: int | None = None) -> list[list[Any]]:
        """Return the documents of a past or future step.

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
            If the stream has no documents.
        """
        return self._members.documents_at(step_positions(self._reached(), step, rank))

    def step_of(self, sample: Any, *, epoch: int | None = None) -> int | None:
        """Return the step in which any rank gets a sample in an epoch, or None.

        Parameters
        ----------
        sample
            A sample of the source; for a mixture ``(part, sample)``, as returned by `samples`.
        epoch
            The current epoch by default; for a mixture the epoch of the part.

        Returns
        -------
        int or None
            None if the sample is excluded, dropped at the end of the epoch, or before the
            position at which the run began.
        """
        return step_of(self._reached(), sample, epoch)

    @overload
    def visited(self, sample: int, *, epoch: int | None = None) -> bool: ...
    @overload
    def visited(self, sample: _Document, *, epoch: int | None = None) -> Visit: ...
    @overload
    def visited(self, sample: Any, *, epoch: int | None = None) -> bool | Visit: ...
    def visited(self, sample: Any, *, epoch: int | None = None) -> bool | Visit:
        """Return True if a sample was handed out to any rank; for a document return a `Visit`.

        Parameters
        ----------
        sample
            A sample as for `step_of`; or a document ``(dataset_id, shard_id, doc_id)``, for a
            mixture also ``(part's name, document)``.
        epoch
            As for `step_of`.

        Returns
        -------
        bool or Visit
            A `Visit` is true if all sequences of the document were handed out, and holds their
            steps. O(sequences of the document).

        Raises
        ------
        KeyError, IndexError
            For a document that does not exist, and for a name of different documents in several
            parts of a mixture: pass the part's name, too.
        TypeError
            If the stream has no samples or no documents.
        """
        if is_document(sample):
            return visit_document(self._reached(), tuple(sample), epoch)
        return was_visited(self._reached(), sample, epoch)

    def served(self, step: int | None = None, *, documents: bool = True) -> Served:
        """Return how many samples, tokens and documents were handed out to all ranks together.

        Computed from the position, so exact after a resume, a change of batch or world size, and
        with excluded and dropped samples; for a mixture also for each part. Any logger takes
        ``loader.served().as_dict()``.

        Parameters
        ----------
        step
            Batches since the run began, past or future as for `state_dict`; `Loader.step` by
            default.
        documents
            Whether documents are counted.

        Returns
        -------
        windeck.loader.served.Served
            O(excluded ranges + parts), and O(epochs) with `drop_last`. Documents, and tokens with
            padding, take besides the first use of a shard (of a group, for a mixed order) for every
            excluded range, and documents for every epoch; what is found of the last 1,024 epochs
            is kept.

        Raises
        ------
        IndexError
            As `state_dict`.

        Examples
        --------
        >>> class Squares:
        ...     fingerprint = {"squares": 5}
        ...     def __len__(self):
        ...         return 5
        ...     def gather(self, indices, out=None):
        ...         return {"x": indices**2}
        >>> Loader(Squares(), batch_size=2, drop_last=True).served(step=5).as_dict()
        {'samples': 10, 'epoch': 2.4}
        """
        number, position = self._point(step)
        found = count_served(self._reached(), number, position, documents)
        steps = self.steps_per_epoch
        return found if steps is None else replace(found, epoch=number / steps)

    def explain_io(
        self,
        *,
        world_size: int | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        ranks: Iterable[int] | None = None,
        resident_bytes: int | None = None,
    ) -> ReadReport:
        """Return how many bytes each rank will read in an epoch; nothing is read for it.

        Parameters
        ----------
        world_size, batch_size
            W and B of a run that is planned; those of this loader by default.
        steps
            Steps from the beginning of the current epoch on; by default the whole epoch. For a
            stream without epochs, steps from the current position on, `steps_per_epoch` by default.
        ranks
            Ranks to compute; all by default.
        resident_bytes
            Bytes of blocks that a rank keeps in memory or in its cache: a block that was dropped
            is read again. None for all, so that each rank reads a block once.

        Returns
        -------
        windeck.loader.read_report.ReadReport
            ``print`` shows it. O(samples of these ranks) time.

        Raises
        ------
        TypeError
            If the source does not state its blocks: see `windeck.sources.BlockSource`.
        ValueError
            If the stream has no epochs and `steps` is not given, and for packed documents in the
            global orders.

        Examples
        --------
        >>> from functools import partial
        >>> import numpy as np
        >>> from windeck import Lanes, Sequential
        >>> class Files:  # 4 files of 100 samples of 8 bytes
        ...     fingerprint = {"files": 4}
        ...     block_bytes = np.full(4, 800)
        ...     def __len__(self):
        ...         return 400
        ...     def gather(self, indices, out=None):
        ...         return {"x": indices.copy()}
        ...     def blocks_of(self, samples):
        ...         return np.arange(len(samples)), samples // 100
        >>> loader = Loader(Files(), batch_size=10)
        >>> loader.explain_io(world_size=4).ratio
        4.0
        >>> lanes = partial(Lanes, lanes=4, unit=10, order=Sequential)
        >>> Loader(Files(), order=lanes, batch_size=10).explain_io(world_size=4).ratio
        1.0
        """
        return explain_io(
            self._reached(),
            world_size=world_size,
            batch_size=batch_size,
            steps=self.steps_per_epoch if steps is None else steps,
            ranks=ranks,
            resident_bytes=resident_bytes,
        )

    def exclude(self, start: int, stop: int) -> None:
        """Exclude the positions [start, stop) of the stream, also after resuming.

        Positions before the loader's own have been handed out and are not affected.

        Raises
        ------
        ValueError
            For an empty or negative range.
        """
        first = check_integer("start", start)
        last = check_integer("stop", stop, least=first + 1)
        self._record_step()
        first = max(first, self._position)
        if first < last:
            self._exclusions = Exclusions([*self._exclusions.ranges, (first, last)])
            self._version += 1

    if not TYPE_CHECKING:  # Otherwise every attribute would exist for type checkers.

        def __getitems__(self, indices: object) -> NoReturn:
            # Called by a DataLoader that takes the loader for a dataset of samples.
            raise TypeError(
                "a Loader makes whole batches itself, and a DataLoader asks it for samples; "
                "iterate over it as it is, or give the DataLoader wd.MapDataset(source), or "
                "wd.IterDataset(stream, batch_size=...) and batch_size=None"
            )

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name == "dataset":
                hint = (
                    "; to resume in Hugging Face's Trainer set ignore_data_skip=True and save the "
                    "loader's state, as windeck.checkpoint.transformers.CheckpointTrainer does"
                )
            raise AttributeError(f"'Loader' object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return (
            f"Loader({self.stream!r}, batch_size={self.batch_size}, drop_last={self.drop_last}, "
            f"position={self._position})"
        )

    def plot(self, steps: int = 50, *, ax: Any = None) -> Any:
        """Draw which samples the next steps have: a point for each, a colour for each rank.

        Needs matplotlib: ``pip install 'windeck[plot]'``. Of a mixture the colours are its parts.
        A sequence of documents is drawn at its first document, as the numbers of sequences are in
        the shuffled order. About 20,000 points, or 4,000 sequences, are drawn at most. O(points)
        time; nothing is read.

        Parameters
        ----------
        steps
            Number of steps, at least 1.
        ax : matplotlib Axes, optional
            Axes to draw on. By default those of a new figure of pyplot, which is not shown.

        Returns
        -------
        Axes

        Raises
        ------
        ModuleNotFoundError
            matplotlib is not installed.
        """
        from windeck.loader.plots import plot_steps

        return plot_steps(self, steps, ax)

    def _repr_html_(self) -> str:
        epochs = "endless" if self._epoch_length == LIMIT else f"epoch {self.epoch:,}"
        rows = [
            ("batch size", f"{self.batch_size:,} on each of {self.world_size:,} ranks"),
            ("position", f"{self.position:,}, {epochs}"),
            ("step", f"{self.step:,}"),
            ("waited", f"{self.waited_seconds:.3g} s"),
        ]
        return html_table(f"Loader: {self.stream!r}", ("", ""), rows)

    # Internal.

    @property
    def _is_endless(self) -> bool:
        """True for a stream without epochs that gets none by `steps_per_epoch`."""
        return self._members.epoch_length is None and self.steps_per_epoch is None

    def _at_start(self) -> Loader:
        """Return a loader at position 0 with the same data and options, for one loop."""
        loop = copy.copy(self)
        loop._history = StepHistory()
        return loop

    def _sharding(self) -> Sharding:
        n, ranks = self._epoch_length, self.world_size
        return Sharding(n, self.batch_size, ranks, self.drop_last, self._exclusions)

    def _begin_groups(self, epoch: int | None) -> tuple[int, Prefetcher[BatchGroup]]:
        """Return an epoch, by default the current one, and its groups from the position on."""
        sharding = self._sharding()  # Once: a short epoch begins often.
        self._history.record(self._step, self._position, sharding)
        self._compare_ranks()
        number = self._epoch_by(sharding) if epoch is None else epoch
        left, last = None, number
        if self.epochs is not None and number >= self.epochs:
            left = 0
        elif self.steps_per_epoch is not None or self.max_steps is not None:
            left = self.steps_left if self.epoch == number else 0
            last = 0 if self.steps_per_epoch is not None else number
        build = self._build_batch
        groups = build_groups(sharding, self._position, last, left, self.rank, build)
        ahead = Prefetcher(groups, self.prefetch, self._waited.pace, attrgetter("count"))
        ahead.patience, ahead.on_stall = self.stall_timeout, self._log_stall
        return number, ahead

    def _epoch_by(self, sharding: Sharding) -> int:
        """Return the epoch that the next batch belongs to."""
        if self.steps_per_epoch is not None:
            return self._step // self.steps_per_epoch
        return sharding.step_start(self._position) // self._epoch_length

    def _next_start(self) -> int:
        """Return the position at which the next batch begins."""
        return self._sharding().step_start(self._position)

    def _compare_ranks(self) -> None:
        """Raise a ValueError if ranks are about to read unlike data; only before the first loop.

        In the main thread alone: the order of collective calls of other threads is not defined.
        """
        if not self._unchecked.ranks or self._ranks is not None:
            return
        if not (dist.is_available() and dist.is_initialized()) or self.world_size == 1:
            return
        if threading.current_thread() is not threading.main_thread():
            return
        self._unchecked.ranks = False
        state = stream_state(self._members, self._position)
        fields = {f"the data's {name}": value for name, value in state.pop("fingerprint").items()}
        for name in ("batch_size", "drop_last", "steps_per_epoch", "epochs", "max_steps", "step"):
            fields[f"`{name}`"] = getattr(self, name)
        fields |= {f"`{name}`": value for name, value in state.items()}
        fields["`excluded`"] = [list(pair) for pair in self._exclusions.ranges]
        check_agreement(fields)

    def _log_stall(self) -> None:
        """Log that the next batch has taken longer than `stall_timeout`."""
        _log.warning(
            "rank %d has waited %g s for the batch of step %d, from position %d on of %r",
            *(self.rank, self.stall_timeout, self._step, self._position, self.stream),
        )

    def _record_step(self) -> None:
        """Add the configuration of the next step to the history."""
        self._history.record(self._step, self._position, self._sharding())

    def _point(self, step: int | None) -> tuple[int, int]:
        """Return a step, by default the current one, and the position after as many batches."""
        self._record_step()
        if step is None or step == self._step:
            return self._step, self._position
        number = check_integer("step", step)
        return number, self._position_after(number)

    def _position_after(self, step: int) -> int:
        """Return the position after `step` batches since the run began."""
        position = self._history.after(step, self._exclusions)
        length = self.steps_per_epoch or self._epoch_length
        done = step if self.steps_per_epoch else position
        if self.epochs is not None and step > self._step and done > self.epochs * length:
            raise IndexError(f"step {step} is after the last step of epochs={self.epochs}")
        if self.max_steps is not None and step > max(self._step, self.max_steps):
            raise IndexError(f"step {step} is after the last step of max_steps={self.max_steps}")
        return position

    def _reached(self) -> LoaderPoint:
        """Return the point that the loader has reached."""
        self._record_step()
        history, exclusions = self._history, self._exclusions
        return LoaderPoint(
            self._members, self._sharding(), history, exclusions, self._position, self.rank
        )


#: Loaders with a state that a loop has read, as long as they exist, by id.
_iterated: WeakValueDictionary[int, Loader] = WeakValueDictionary()


def iterated_loaders() -> list[Loader]:
    """Return the loaders of this process that loops have read, but for those that `restart`."""
    loaders = (ref() for ref in _iterated.valuerefs())
    return [loader for loader in loaders if loader is not None]


def _check_prefetch(prefetch: int | str) -> tuple[int, int | None]:
    """Return the number of groups made ahead, at first, and the bytes that bound it."""
    if isinstance(prefetch, str):
        return 1, check_bytes("prefetch", prefetch)
    return check_integer("prefetch", prefetch), None


def _check_stall_timeout(seconds: object) -> float | None:
    """Return the seconds; raise TypeError or ValueError unless they are positive or None."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"`stall_timeout` must be seconds or None, got {type(seconds).__name__}")
    if not seconds > 0:
        raise ValueError(f"`stall_timeout` must be above 0, got {seconds}")
    return float(seconds)


def _check_steps_per_epoch(steps: object, stream: StreamMembers) -> int | None:
    """Return the steps in an epoch of a stream without epochs; raise for a stream with epochs."""
    if steps is None:
        return None
    number = check_integer("steps_per_epoch", steps, least=1)
    if stream.epoch_length is not None:
        name, length = type(stream.stream).__name__, stream.epoch_length
        raise ValueError(
            f"`steps_per_epoch` must be None, got {number}: {name} has epochs of {length} samples, "
            "each in an order of its own, and loops end with them"
        )
    return number
