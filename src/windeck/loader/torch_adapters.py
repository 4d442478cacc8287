"""Adapters for torch's DataLoader: a map-style dataset, an iterable dataset and a sampler.

With `MapDataset` torch's sampler selects the samples of a batch, and windeck gathers the batch in
one native call. With `IterDataset` the stream defines the batches, and each contains the position
to save.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import partial
from operator import length_hint
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Tensors, as_tensors, gather_batches, gather_tensors
from windeck.loader.runs import next_count
from windeck.loader.sharding import Sharding, check_ranks, current_ranks
from windeck.loader.shared_position import SharedPosition
from windeck.loader.state import load_position, load_stream_position, make_state, stream_state
from windeck.loader.stream import check_order_factory
from windeck.sources import (
    Fingerprint,
    Order,
    OrderFactory,
    Source,
    Stream,
    check_source,
    gather_rows,
    present,
    whole,
)

__all__ = ["IterDataset", "MapDataset", "OrderSampler", "collate"]


Indexing: TypeAlias = "int | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor"


def collate(batch: Any) -> Any:
    """Return the batch unchanged: the ``collate_fn`` for `MapDataset`.

    torch's DataLoader calls ``collate_fn`` also on the result of ``__getitems__``, which is
    already a complete batch.
    """
    return batch


class MapDataset(Dataset[Tensors]):
    """A map-style dataset of a source that gathers whole batches.

    Parameters
    ----------
    source
        A `windeck.sources.Source`.

    Examples
    --------
    >>> class Squares:
    ...     fingerprint = {"squares": 5}
    ...     def __len__(self):
    ...         return 5
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices**2}
    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader(MapDataset(Squares()), batch_size=2, collate_fn=collate)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [4, 9], [16]]
    """

    def __init__(self, source: Source) -> None:
        check_source(source)
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Indexing) -> Tensors:
        """Return one sample, without the batch's axis; or a batch, for a sequence of indices.

        Arrays of the whole batch are those of a batch of one.
        """
        if isinstance(index, (Sequence, np.ndarray, torch.Tensor)) and np.ndim(index):
            return self.__getitems__(np.asarray(index).tolist())
        number = check_integer("index", index, least=-LIMIT)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} is out of range for {len(self)} samples")
        rows = gather_rows(self.source, np.array([number % len(self)]))
        of_all = whole(self.source, rows)
        bits = getattr(self.source, "torch_dtypes", {})
        batch = present(self.source, as_tensors({**rows, **of_all}, bits))
        return {key: tensor if key in of_all else tensor[0] for key, tensor in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """Return a batch, in one call of the source; torch's DataLoader calls this method."""
        return gather_tensors(self.source, np.asarray(indices, dtype=np.int64))


class IterDataset(IterableDataset[dict[str, Any]]):
    """An iterable dataset of a stream's batches, for ``DataLoader(batch_size=None)``.

    One loop runs from `position` to the end of its epoch, in stream order with any number of
    workers: worker k of N makes the steps k, k + N, k + 2N, ... The next loop is the next epoch.
    Each batch contains the position after it under ``"position"``, an int64 tensor of shape (1,),
    which frameworks can copy to a device and concatenate. Save that of the last batch trained on::

        dataset = wd.IterDataset(wd.Stream(windows, seed=7), batch_size=256)
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        for epoch in range(3):
            for batch in loader:
                ...
                saved = dataset.state_dict(batch["position"])

    Parameters
    ----------
    stream
        A `windeck.sources.Stream`.
    batch_size
        Samples in a batch of one rank.
    rank, world_size
        As for `Loader`: torch.distributed's by default, read in the process that starts the
        workers.
    position
        Position of the first batch.

    Notes
    -----
    A loop that is left by ``break`` is not continued: the next one is the next epoch, with any
    number of workers. Workers have made batches ahead, and only the training loop knows the last
    one that it used. To continue after it, set ``dataset.position = batch["position"]``: the
    position set last decides. Set it before ``iter(loader)`` or after the first batch; an iterator
    counts as a loop even if no batch is taken from it. After a loop over a stream without epochs
    the position must be set.

    The remainder of an epoch is split among the ranks as in `Loader`. Workers get the dataset by
    fork or pickle: streams and sources must be picklable for spawn. Other processes that get a
    copy have a position of their own.

    torchdata's StatefulDataLoader saves and continues its loops exactly, with the same batch size,
    world size and number of workers.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        position: int = 0,
    ) -> None:
        if not hasattr(stream, "epoch_length"):
            raise TypeError(
                f"`stream` must be a stream, got {type(stream).__name__}: wrap a source in "
                "windeck.Stream"
            )
        self.stream = stream
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self._ranks = check_ranks(rank, world_size)
        #: The pid of a worker that was sent the dataset, and the ranks of its main process.
        self._sent: tuple[int, tuple[int, int]] | None = None
        self._shared = SharedPosition(check_integer("position", position, most=LIMIT - 1))
        self._loop: _DatasetLoop | None = None  # The last one that began in this process.
        self._sharding()  # Raises for a batch size that does not fit.

    @property
    def position(self) -> int:
        """The position at which the next loop begins.

        Raises
        ------
        RuntimeError
            After a loop over a stream without epochs, until the position is set.
        """
        following = self._shared.following
        if following is None:
            raise RuntimeError(NO_POSITION)
        return following

    @position.setter
    def position(self, position: int) -> None:
        self._shared.move(check_integer("position", position, most=LIMIT - 1))

    def __len__(self) -> int:
        """Return the number of batches from `position` to the end of its epoch.

        Raises
        ------
        TypeError
            For a stream without epochs, which has no end.
        """
        if self.stream.epoch_length is None:
            raise TypeError("the stream has no epochs, so the dataset has no length")
        return self._sharding().steps_left(self.position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._check_sharded_once()
        worker = get_worker_info()
        workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        start, number = self._shared.begin(partial(_loop_end, self.stream))
        rank = self._current_ranks()[0]
        self._loop = _DatasetLoop(
            self.stream, self._sharding(), rank, workers, self._shared, start, number
        )
        return self._loop

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return a state for `load_state_dict` of this class and of `Loader`.

        Parameters
        ----------
        position
            Position of the last batch trained on. By default that of the dataset or, in a loop
            without workers, the position after the last batch.

        Raises
        ------
        RuntimeError
            Without `position`, if workers have begun a loop since the position was last set: the
            dataset does not know the batches that were handed out.
        """
        number = self._reached() if position is None else check_integer("position", position)
        return stream_state(self.stream, number)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to the position in a state of this class or of a `Loader`.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`, and for a state that excludes positions.
        """
        position = load_stream_position(self.stream, state)
        if state.get("excluded"):
            raise ValueError("the state excludes positions, which only a Loader supports")
        self.position = position

    def _reached(self) -> int:
        """Return the position to save."""
        if self._loop is not None and get_worker_info() is not None:
            return self._loop.position
        loops, is_open = self._shared.loops()
        if not is_open:
            return self.position
        if self._loop is not None and self._loop.number == loops:
            return self._loop.position
        raise RuntimeError(
            "workers have begun a loop since the position was last set, and the dataset does not "
            'know the last batch trained on: pass its batch["position"] to state_dict(), or set '
            "`position` to it"
        )

    def _sharding(self) -> Sharding:
        ranks = self._current_ranks()[1]
        return Sharding(self.stream.epoch_length or LIMIT, self.batch_size, ranks)

    def _check_sharded_once(self) -> None:
        cure = "do not let a trainer prepare its DataLoader, or pass it a windeck.Loader"
        _check_sharded_once("IterDataset", self._current_ranks(), cure)

    def _current_ranks(self) -> tuple[int, int]:
        # A worker that was spawned has no process group.
        if self._sent and self._sent[0] == os.getpid() and get_worker_info() is not None:
            return self._sent[1]
        return current_ranks(self._ranks)

    def __getstate__(self) -> dict[str, Any]:
        self._check_sharded_once()  # A spawned worker cannot see the DataLoader that starts it.
        return {**self.__dict__, "_loop": None, "_sent": self._current_ranks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _sent=(os.getpid(), state["_sent"]))


#: The error of a loop without a start.
NO_POSITION = (
    "the last loop was over a stream without epochs, so the next one has no beginning: set "
    '`position` of the dataset to the "position" of the last batch trained on'
)


def _loop_end(stream: Stream, start: int) -> int | None:
    """Return the position after a loop from `start` on; None for a stream without epochs."""
    n = stream.epoch_length
    return (start // n + 1) * n if n else None


class _DatasetLoop:
    """The batches of one worker in one loop over an `IterDataset`.

    It refers to the dataset's attributes and not to the dataset, which refers to its last loop:
    memory in cycles is freed late.
    """

    def __init__(
        self,
        stream: Stream,
        sharding: Sharding,
        rank: int,
        workers: tuple[int, int],
        shared: SharedPosition,
        start: int | None,
        number: int,
    ) -> None:
        self.stream, self.sharding, self.rank, self.shared = stream, sharding, rank, shared
        self.worker, self.workers = workers
        self.number = number
        self._begin(start)

    def _begin(self, start: int | None) -> None:
        self._start = self._reached = start
        self._step = self.worker
        self._steps = 1 if start is None else self.sharding.steps_left(start)
        self._full = 0 if start is None else self.sharding.full_steps(start, self._steps)
        self._end = 0 if start is None else self.sharding.epoch_end(start)
        self._start_state: dict[str, Any] | None = None
        self._made: list[Tensors] = []  # Batches of the next steps, the last one first.
        self._run_size = 1

    @property
    def position(self) -> int:
        """The position after the last batch."""
        if self._reached is None:
            raise RuntimeError(NO_POSITION)
        return self._reached

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._step >= self._steps:
            raise StopIteration
        if self._start is None:
            raise RuntimeError(NO_POSITION)
        if not self._made:
            self._made = self._make_run(self._start)
        batch = self._made.pop()
        size = self.sharding.step_size
        self._reached = min(self._start + (self._step + 1) * size, self._end)
        self._step += self.workers
        batch["position"] = torch.tensor([self._reached], device="cpu")
        return batch

    def _make_run(self, start: int) -> list[Tensors]:
        """Make the batches of this worker's next steps by one gather, the last one first."""
        steps = range(self._step, self._full, self.workers)[: self._run_size]
        while True:
            if steps:
                positions = self.sharding.run_positions(start, self.rank, steps)
            else:  # A partial batch at the end.
                last = start + self._step * self.sharding.step_size
                positions = self.sharding.positions(last, self.rank)
            count = max(1, len(steps))
            try:
                batches = gather_batches(self.stream, positions, count)
                break
            except Exception:
                if count == 1:
                    raise
                steps = steps[:1]  # The error belongs to one of the batches: it is raised there.
        if "position" in batches[0]:
            raise ValueError("the source has a key 'position', which is reserved for batches")
        if getattr(self.stream, "independent_rows", False):
            nbytes = sum(tensor.nbytes for tensor in batches[0].values()) * count
            self._run_size = next_count(count, nbytes)
        batches.reverse()
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the stream at the loop's start, and the number of the next step.

        StatefulDataLoader saves one for each worker, after a batch of this worker.
        """
        if self._start_state is None:
            if self._start is None:
                raise RuntimeError(NO_POSITION)
            self._start_state = {**stream_state(self.stream, self._start), **self._layout()}
        return {**self._start_state, "step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a loop; the next loop begins at the end of its epoch.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`, and for another batch size, world size or
            number of workers.
        """
        start = load_stream_position(self.stream, state)
        for field, now in self._layout().items():
            if state[field] != now:
                raise ValueError(
                    f"the StatefulDataLoader was saved with {field} = {state[field]}, here it is "
                    f'{now}: to change it, save `dataset.state_dict(batch["position"])` instead, '
                    "as in the recipe for torchdata in docs/frameworks.md"
                )
        self._begin(start)
        self._step = check_integer("step", state["step"])
        if self._step > self.worker:
            last = self.sharding.jump(start, self._step - self.workers)
            self._reached = self.sharding.step_end(last)
        self.shared.resume(_loop_end(self.stream, start))

    def _layout(self) -> dict[str, int]:
        return {
            "batch_size": self.sharding.batch_size,
            "world_size": self.sharding.world_size,
            "num_workers": self.workers,
            "worker": self.worker,
        }


def _check_sharded_once(name: str, ranks: tuple[int, int], cure: str) -> None:
    """Raise if a sampler or DataLoader that shards what it reads is reading the share of a rank.

    accelerate and Lightning wrap samplers and datasets without telling them, so this looks for
    such a wrapper among the callers, once a loop.
    """
    frame = sys._getframe() if ranks[1] > 1 else None
    while frame is not None:
        reader = frame.f_locals.get("self")
        if isinstance(reader, (DataLoader, IterableDataset, Sampler)):
            shards = [
                getattr(reader, "num_processes", 1),
                getattr(reader, "num_replicas", 1),
                getattr(getattr(reader, "state", None), "num_processes", 1),
            ]
            if shards != [1, 1, 1]:
                raise ValueError(
                    f"{name} serves rank {ranks[0]} of {ranks[1]}, and {type(reader).__name__} "
                    "would shard its samples again, so that most are never served; "
                    f"{cure}: see docs/frameworks.md"
                )
        frame = frame.f_back


#: Samples computed at a time by `OrderSampler`.
CHUNK = 4096


class OrderSampler(Sampler[int]):
    """A sampler in the order of an order factory, for a DataLoader of any map-style dataset.

    A replacement for RandomSampler and DistributedSampler that keeps no list: position p of the
    run is place p % n of epoch p // n, and rank r of W gets the r-th of every W positions. Its
    state is the position, for any later world size and batch size.

    Parameters
    ----------
    size
        Number of samples in the dataset, or the dataset.
    order
        An order factory ``f(size, *, seed, epoch)``.
    seed
        An int in [0, 2^64).
    rank, world_size
        As for `Loader`: torch.distributed's by default.
    drop_last
        Whether the remainder of an epoch that does not give every rank a sample is dropped.
        Otherwise the first ranks get one sample more than the last, and possibly one batch more.
        Use True with DistributedDataParallel, whose ranks must make equally many steps.

    Notes
    -----
    Each ``for`` loop is one epoch. An interrupted loop is not continued by the next one, because
    a DataLoader with workers requests samples before it hands them out; `load_state_dict` does
    continue it. For the same reason use ``state_dict(consumed=...)`` with workers.

    Examples
    --------
    >>> sampler = OrderSampler(10, seed=1)
    >>> loop = iter(sampler)
    >>> first = [next(loop) for _ in range(4)]
    >>> resumed = OrderSampler(10, seed=1)
    >>> resumed.load_state_dict(sampler.state_dict())
    >>> sorted(first + list(resumed))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        size: int | Sized,
        *,
        order: OrderFactory = Permutation,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.size = check_integer("size", len(size) if isinstance(size, Sized) else size, least=1)
        check_order_factory(order)
        self.order = order
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self.drop_last = bool(drop_last)
        self._ranks = check_ranks(rank, world_size)
        self._start = 0
        #: The last loop; None if none has begun since the position was last set,
        self._loop: _SamplerLoop | None = None
        #: by a state.
        self._is_loaded = False
        self._rounds(0)  # Raises if `drop_last` would drop every sample.

    @property
    def position(self) -> int:
        """The position after the samples requested from all ranks together."""
        return self._start if self._loop is None else self._loop.position

    @property
    def epoch(self) -> int:
        """The epoch of the next loop, or of the running one."""
        return self.position // self.size

    @property
    def fingerprint(self) -> Fingerprint:
        """Size, order and seed; the contents of the dataset are not included."""
        return {"samples": self.size, "order": checked_order_name(self.order), "seed": self.seed}

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next loop.

        It has no effect if a loaded state is in the middle of that epoch, so trainers may call it
        before every loop.

        Raises
        ------
        ValueError
            For another epoch than that of a state that was loaded and not continued yet: a trainer
            that counts epochs from 0 would repeat samples.
        """
        number = check_integer("epoch", epoch, most=LIMIT // self.size - 1)
        if self._loop is None and number == self.epoch:
            return
        if self._is_loaded:
            raise ValueError(
                f"the loaded state is in epoch {self.epoch}, but the trainer begins with epoch "
                f"{number}; with accelerate, call set_epoch(sampler.epoch) on the DataLoader that "
                "it has prepared"
            )
        self._move(number * self.size)

    def __len__(self) -> int:
        """Return the number of this rank's samples in the next loop, or in the running one."""
        running = self._loop is None or self.position < self._end(self._start)
        return self._samples_left(self._start if running else 0)

    def __iter__(self) -> Iterator[int]:
        cure = "give it rank=0 and world_size=1, or do not let a trainer prepare its DataLoader"
        _check_sharded_once("OrderSampler", current_ranks(self._ranks), cure)
        return _SamplerLoop(self)

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """Return the position, with a fingerprint of size, order and seed. Fit for JSON.

        Parameters
        ----------
        consumed
            Number of samples this rank has trained on in the running loop (steps times batch
            size). By default the number requested, which is larger if a DataLoader prefetches
            with workers.
        """
        position = self.position
        if consumed is not None:
            total = self._samples_left(self._start)
            taken = check_integer("consumed", consumed, most=total)
            position = self._start + taken * current_ranks(self._ranks)[1]
            if taken == total:
                position = self._end(self._start)
        return make_state(position, self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with any world size.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`; the sampler is not changed then.
        """
        self._move(load_position(state, self.fingerprint))
        self._is_loaded = True

    def _move(self, position: int) -> None:
        self._start = position
        self._loop = None

    def _begin(self, loop: _SamplerLoop) -> int:
        """Begin a loop at its first sample; return its start.

        DataLoader also makes iterators that it does not use.
        """
        if self._loop is not None:
            self._start = self._end(self._start)
        self._loop, self._is_loaded = loop, False
        return self._start

    def _samples(self, start: int) -> tuple[range, Order]:
        """Return this rank's places from `start` to the end of its epoch, and their order."""
        rank, ranks = current_ranks(self._ranks)
        epoch, place = divmod(start, self.size)
        end = min(self.size, place + self._rounds(start) * ranks)
        return range(place + rank, end, ranks), self.order(self.size, seed=self.seed, epoch=epoch)

    def _end(self, position: int) -> int:
        """Return the end of the epoch of a position."""
        return (position // self.size + 1) * self.size

    def _samples_left(self, start: int) -> int:
        """Return the number of this rank's samples from `start` to the end of its epoch."""
        rank, ranks = current_ranks(self._ranks)
        left = self._end(start) - start
        return left // ranks if self.drop_last else (left - rank + ranks - 1) // ranks

    def _rounds(self, start: int) -> int:
        """Return the number of rounds, of one sample per rank, to the end of the epoch."""
        ranks = current_ranks(self._ranks)[1]
        left = self._end(start) - start
        if self.drop_last and ranks > self.size:
            raise ValueError(
                f"`drop_last` would drop every sample: {ranks} ranks, but {self.size} samples"
            )
        return left // ranks if self.drop_last else -(-left // ranks)


class _SamplerLoop:
    """The samples of one loop over an `OrderSampler`.

    StatefulDataLoader saves the state, and loads it before the first sample.
    """

    def __init__(self, sampler: OrderSampler) -> None:
        # None once the loop has begun: the sampler refers to its last loop, and cycles are
        # collected late.
        self._sampler: OrderSampler | None = sampler
        self._chunk: Iterator[int] = iter(())
        self._taken = 0  # Samples up to the end of the chunk.
        self._is_over = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        for sample in self._chunk:
            return sample
        if self._sampler is not None:
            self._open(self._sampler, self._sampler._begin(self), 0)
        places = self._places[self._taken : self._taken + CHUNK]
        if not places:
            self._is_over = True
            raise StopIteration
        self._taken += len(places)
        self._chunk = iter(self._order.take(np.array(places, np.int64)).tolist())
        return next(self._chunk)

    @property
    def position(self) -> int:
        """The position after the samples that all ranks together have taken."""
        taken = self._taken - length_hint(self._chunk)
        return self._end if self._is_over else min(self._start + taken * self._ranks, self._end)

    def _open(self, sampler: OrderSampler, start: int, taken: int) -> None:
        self._start, self._taken, self._end = start, taken, sampler._end(start)
        self._ranks = current_ranks(sampler._ranks)[1]
        self._places, self._order = sampler._samples(start)
        self._sampler = None

    def state_dict(self) -> dict[str, Any]:
        """Return the loop's start and the number of samples taken; empty before the first."""
        if self._sampler is not None:
            return {}
        taken = self._taken - length_hint(self._chunk)
        return {"start": self._start, "taken": taken, "world_size": self._ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a loop of the sampler, before the first sample.

        Raises
        ------
        ValueError
            For another world size.
        """
        sampler = self._sampler
        if not state or sampler is None:
            return
        ranks = current_ranks(sampler._ranks)[1]
        if state["world_size"] != ranks:
            raise ValueError(
                f"the StatefulDataLoader was saved with world_size = {state['world_size']}, here "
                f"it is {ranks}: to change it, save `sampler.state_dict(consumed=...)` instead, as "
                "in the recipe for torchdata in docs/frameworks.md"
            )
        sampler._move(check_integer("start", state["start"], most=LIMIT - 1))
        sampler._begin(self)
        self._open(sampler, sampler._start, check_integer("taken", state["taken"]))
