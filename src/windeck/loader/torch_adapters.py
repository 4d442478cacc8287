"""Adapters for torch's DataLoader: a map-style dataset, an iterable dataset and a sampler.

With `MapDataset` torch's sampler selects the samples of a batch, and windeck gathers the batch in
one native call. With `IterDataset` the stream defines the batches, and each contains the position
to save.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Tensors, as_tensors, gather_tensors
from windeck.loader.sharding import Sharding, check_ranks, current_ranks
from windeck.loader.state import load_position, load_stream_position, make_state, stream_state
from windeck.loader.stream import check_order_factory
from windeck.sources import (
    Fingerprint,
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
    workers: worker k of N makes the steps k, k + N, k + 2N, ... Each batch contains the position
    after it under ``"position"``, an int64 tensor of shape (1,), which frameworks can copy to a
    device and concatenate. Save that of the last batch trained on. A loop does not move `position`,
    because it runs in other processes; move it before the next loop::

        dataset = wd.IterDataset(wd.Stream(windows, seed=7), batch_size=256)
        loader = DataLoader(dataset, batch_size=None, num_workers=2)
        for batch in loader:
            ...
            dataset.position = batch["position"]

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
    The remainder of an epoch is split among the ranks as in `Loader`. Persistent workers see a
    moved position at their next loop. Workers get the dataset by fork or pickle: streams and
    sources must be picklable for spawn.
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
        self._start = _SharedPosition(check_integer("position", position, most=LIMIT - 1))
        self._sharding()  # Raises for a batch size that does not fit.

    @property
    def position(self) -> int:
        """The position at which the next loop begins."""
        return self._start.position

    @position.setter
    def position(self, position: int) -> None:
        self._start.move(check_integer("position", position, most=LIMIT - 1))

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
        if worker is None:
            return self._batches(self.position, 0, 1)
        start = self._start.in_worker(worker.seed - worker.id)
        return self._batches(start, worker.id, worker.num_workers)

    def _batches(self, start: int, first: int, stride: int) -> Iterator[dict[str, Any]]:
        sharding, rank = self._sharding(), current_ranks(self._ranks)[0]
        for step in range(first, sharding.steps_left(start), stride):
            step_start = sharding.jump(start, step)
            batch = gather_tensors(self.stream, sharding.positions(step_start, rank))
            if "position" in batch:
                raise ValueError("the source has a key 'position', which is reserved for batches")
            yield {**batch, "position": torch.tensor([sharding.step_end(step_start)])}

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return a state for `load_state_dict` of this class and of `Loader`.

        Parameters
        ----------
        position
            Position of the last batch trained on; by default that of the dataset.
        """
        number = self.position if position is None else check_integer("position", position)
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

    def _sharding(self) -> Sharding:
        ranks = current_ranks(self._ranks)[1]
        return Sharding(self.stream.epoch_length or LIMIT, self.batch_size, ranks)

    def _check_sharded_once(self) -> None:
        cure = "do not let a trainer prepare its DataLoader, or pass it a windeck.Loader"
        _check_sharded_once("IterDataset", current_ranks(self._ranks), cure)

    def __getstate__(self) -> dict[str, Any]:
        self._check_sharded_once()  # A spawned worker cannot see the DataLoader that starts it.
        # A worker has no process group: it uses the ranks of the process that starts it.
        return {**self.__dict__, "_ranks": current_ranks(self._ranks)}


class _SharedPosition:
    """The start position of loops, for a dataset whose copies are in worker processes.

    All workers of a loop must begin at the same position, but the trainer may move it as soon as
    the first of them has delivered a batch, when the last may not have started. In their first
    loop they use the position they were started with. In later loops persistent workers read it
    from shared memory, to which the first worker that begins a loop writes the loop's start.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._loops = 0
        # The next position; then loader, number and start of the last loop that has begun.
        self._shared = torch.tensor([position, -1, -1, 0], device="cpu")
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def move(self, position: int) -> None:
        self.position = position
        self._shared[0] = position

    def in_worker(self, loader: int) -> int:
        """Return the start of the worker's next loop; `loader` identifies the DataLoader."""
        self._loops += 1
        if self._loops == 1:
            return self.position
        # Read the next position first: if this loop has no entry yet, no batch of it has been
        # delivered, so the position has not been moved since.
        following = int(self._shared[0])
        last_loader, last_loop, start = self._shared[1:].tolist()
        if (last_loader, last_loop) == (loader, self._loops):
            return int(start)
        self._shared[3] = following
        self._shared[1], self._shared[2] = loader, self._loops
        return following


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
        self._position = 0
        self._start = 0
        self._is_fresh = True  # No loop has begun since the position was last set,
        self._is_loaded = False  # by a state.
        self._rounds(0)  # Raises if `drop_last` would drop every sample.

    @property
    def position(self) -> int:
        """The position after the samples requested from all ranks together."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next loop, or of the running one."""
        return self._position // self.size

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
        if self._is_fresh and number == self.epoch:
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
        running = self._is_fresh or self._position < self._end(self._start)
        return self._samples_left(self._start if running else 0)

    def __iter__(self) -> Iterator[int]:
        cure = "give it rank=0 and world_size=1, or do not let a trainer prepare its DataLoader"
        _check_sharded_once("OrderSampler", current_ranks(self._ranks), cure)
        if not self._is_fresh:
            self._move(self._end(self._start))
        self._is_fresh = self._is_loaded = False
        return self._loop(self._start)

    def _loop(self, start: int) -> Iterator[int]:
        rank, ranks = current_ranks(self._ranks)
        rounds = self._rounds(start)
        epoch, place = divmod(start, self.size)
        order = self.order(self.size, seed=self.seed, epoch=epoch)
        end = self._end(start)
        mine = range(place + rank, min(self.size, place + rounds * ranks), ranks)
        for first in range(0, len(mine), CHUNK):
            samples = order.take(np.array(mine[first : first + CHUNK], np.int64)).tolist()
            for taken, sample in enumerate(samples, first + 1):
                self._position = min(start + taken * ranks, end)
                yield sample
        self._position = end

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """Return the position, with a fingerprint of size, order and seed. Fit for JSON.

        Parameters
        ----------
        consumed
            Number of samples this rank has trained on in the running loop (steps times batch
            size). By default the number requested, which is larger if a DataLoader prefetches
            with workers.
        """
        position = self._position
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
        self._position = self._start = position
        self._is_fresh = True

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
