"""For those who keep their DataLoader: sources and streams as torch's two kinds of dataset.

With `MapDataset` torch's sampler decides which samples make a batch, and windeck fetches the batch
in one native call. With `IterDataset` the stream decides as well, and every batch carries the
position to save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Tensors, as_tensors, gathered
from windeck.loader.sharding import Deal, check_ranks, current_ranks
from windeck.loader.state import load_position, make_state, restored, saved
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
    """The batch as it is: `MapDataset` has made it whole already.

    torch's DataLoader calls its ``collate_fn`` also on what ``__getitems__`` returns, so it has
    to be told that nothing is left to do.
    """
    return batch


class MapDataset(Dataset[Tensors]):
    """A source as a map-style dataset that fetches whole batches.

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
        """One sample, without the batch's axis; or a batch, for a sequence of indices.

        What a source says of a whole batch is said of a batch of one.
        """
        if isinstance(index, (Sequence, np.ndarray, torch.Tensor)) and np.ndim(index):
            return self.__getitems__(np.asarray(index).tolist())
        number = check_integer("index", index, least=-LIMIT)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} is out of range of {len(self)} samples")
        rows = gather_rows(self.source, np.array([number % len(self)]))
        of_all = whole(self.source, rows)
        bits = getattr(self.source, "torch_dtypes", {})
        batch = present(self.source, as_tensors({**rows, **of_all}, bits))
        return {key: tensor if key in of_all else tensor[0] for key, tensor in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """A batch, in one call of the source; torch's DataLoader asks so by itself."""
        return gathered(self.source, np.asarray(indices, dtype=np.int64))


class IterDataset(IterableDataset[dict[str, Any]]):
    """A stream as an iterable dataset of batches, for ``DataLoader(batch_size=None)``.

    One loop runs from `position` to the end of its epoch, in stream order with any number of
    workers: worker k of N makes the steps k, k + N, k + 2N, ... Each batch has the position after
    it under ``"position"``, an int. Save the one of the last batch trained on. A loop never moves
    `position` by itself, for it runs in other processes; move it before the next loop::

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
        As for `Loader`: torch.distributed's where they are left out, looked at in the process
        that starts the workers.
    position
        Where to begin.

    Notes
    -----
    What is left of an epoch is split among the ranks as `Loader` does it. Workers that persist
    see a moved position at their next loop. Workers are handed the dataset by fork or pickle:
    streams and sources have to be picklable for spawn.
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
                f"expected a stream, got {type(stream).__name__}: wrap a source in windeck.Stream"
            )
        self.stream = stream
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self._ranks = check_ranks(rank, world_size)
        self._start = _Start(check_integer("position", position, most=LIMIT - 1))
        self._deal()

    @property
    def position(self) -> int:
        """Where the next loop begins."""
        return self._start.position

    @position.setter
    def position(self, position: int) -> None:
        self._start.move(check_integer("position", position, most=LIMIT - 1))

    def __len__(self) -> int:
        """Batches from `position` to the end of its epoch.

        Raises
        ------
        TypeError
            For a stream without epochs, which has no end.
        """
        if self.stream.epoch_length is None:
            raise TypeError("the stream has no epochs, so the dataset has no length")
        return self._deal().steps_left(self.position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            return self._batches(self.position, 0, 1)
        start = self._start.in_worker(worker.seed - worker.id)
        return self._batches(start, worker.id, worker.num_workers)

    def _batches(self, start: int, first: int, stride: int) -> Iterator[dict[str, Any]]:
        deal, rank = self._deal(), current_ranks(self._ranks)[0]
        for step in range(first, deal.steps_left(start), stride):
            begin = deal.jump(start, step)
            batch = gathered(self.stream, deal.positions(begin, rank))
            if "position" in batch:
                raise ValueError("the source has a key 'position', which batches use themselves")
            yield {**batch, "position": deal.advance(begin)}

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """A state that `load_state_dict` here and of `Loader` take.

        Parameters
        ----------
        position
            That of the last batch trained on; that of the dataset by default.
        """
        where = self.position if position is None else check_integer("position", position)
        return saved(self.stream, where)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to where a state was saved, by this or by a `Loader`.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`, and for a state that excludes positions.
        """
        position = restored(self.stream, state)
        if state.get("excluded"):
            raise ValueError("the state excludes positions, which only a Loader can leave out")
        self.position = position

    def _deal(self) -> Deal:
        ranks = current_ranks(self._ranks)[1]
        return Deal(self.stream.epoch_length or LIMIT, self.batch_size, ranks)

    def __getstate__(self) -> dict[str, Any]:
        # A worker has no process group: it takes the ranks of the process that starts it.
        return {**self.__dict__, "_ranks": current_ranks(self._ranks)}


class _Start:
    """Where loops begin, for a dataset whose copies live in worker processes.

    All workers of a loop have to begin at one position, though the trainer may move it as soon
    as the first of them has delivered, and the last may not even run by then. In their first
    loop that is the position they were started with. Workers that persist find later ones in
    shared memory, where the first of them to begin a loop writes down where.
    """

    def __init__(self, position: int) -> None:
        self.position = position
        self._loops = 0
        # The next position; and of the last loop begun: whose, which, and where.
        self._shared = torch.tensor([position, -1, -1, 0], device="cpu")
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def move(self, position: int) -> None:
        self.position = position
        self._shared[0] = position

    def in_worker(self, loader: int) -> int:
        """Where the worker's next loop begins; `loader` is the same for all workers of one."""
        self._loops += 1
        if self._loops == 1:
            return self.position
        # In this sequence: where nothing is written down yet, nothing has been delivered, and
        # the position read before has not been moved.
        following = int(self._shared[0])
        whose, which, start = self._shared[1:].tolist()
        if (whose, which) == (loader, self._loops):
            return int(start)
        self._shared[3] = following
        self._shared[1], self._shared[2] = loader, self._loops
        return following


#: Positions looked up at a time.
CHUNK = 4096


class OrderSampler(Sampler[int]):
    """Samples in the order of an order factory, for a DataLoader of anyone's dataset.

    A drop-in for RandomSampler and DistributedSampler that keeps no list: position p of the run
    is place p % n of epoch p // n, and rank r of W takes every W-th position from its turn on.
    Its state is the position, for any later world size and batch size.

    Parameters
    ----------
    size
        How many samples the dataset has, or the dataset.
    order
        An order factory ``f(size, *, seed, epoch)``.
    seed
        An int in [0, 2^64).
    rank, world_size
        As for `Loader`: torch.distributed's where they are left out.
    drop_last
        Whether what is left of an epoch after whole turns of all ranks is dropped. Otherwise
        the first ranks get one sample more than the last, and possibly one batch more: with
        DistributedDataParallel, whose ranks have to make equally many steps, say True.

    Notes
    -----
    Each ``for`` loop is an epoch of its own. A loop given up in the middle is not taken up
    again by the next one, because a DataLoader with workers asks for samples ahead of those it
    hands out; `load_state_dict` does take it up. For the same reason say
    ``state_dict(consumed=...)`` when there are workers.

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
        if not callable(order):
            raise TypeError(
                f"order has to be a factory f(size, *, seed, epoch), got {type(order).__name__}; "
                "pass the class, not an instance"
            )
        self.order = order
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self.drop_last = bool(drop_last)
        self._ranks = check_ranks(rank, world_size)
        self._position = 0
        self._start = 0
        self._fresh = True
        self._turns()

    @property
    def position(self) -> int:
        """The position up to which all ranks together were asked for samples."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the next loop, or of the one that is running."""
        return self._position // self.size

    @property
    def fingerprint(self) -> Fingerprint:
        """Size, order and seed; of the dataset's contents it knows nothing."""
        return {"samples": self.size, "order": checked_order_name(self.order), "seed": self.seed}

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be that of an epoch.

        Nothing happens when a loaded state is in the middle of that epoch, so that trainers may
        call this before every loop.
        """
        number = check_integer("epoch", epoch, most=LIMIT // self.size - 1)
        if not (self._fresh and number == self.epoch):
            self._move(number * self.size)

    def __len__(self) -> int:
        """How many samples this rank gets in the next loop, or gets in the running one."""
        running = self._fresh or self._position < self._end(self._start)
        return self._share(self._start if running else 0)

    def __iter__(self) -> Iterator[int]:
        if not self._fresh:
            self._move(self._end(self._start))
        self._fresh = False
        return self._loop(self._start)

    def _loop(self, start: int) -> Iterator[int]:
        rank, ranks = current_ranks(self._ranks)
        turns = self._turns(start)
        epoch, place = divmod(start, self.size)
        order = self.order(self.size, seed=self.seed, epoch=epoch)
        end = self._end(start)
        mine = range(place + rank, min(self.size, place + turns * ranks), ranks)
        for first in range(0, len(mine), CHUNK):
            samples = order.take(np.array(mine[first : first + CHUNK], np.int64)).tolist()
            for taken, sample in enumerate(samples, first + 1):
                self._position = min(start + taken * ranks, end)
                yield sample
        self._position = end

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """The position, with a fingerprint of size, order and seed. Fit for JSON.

        Parameters
        ----------
        consumed
            How many samples this rank has trained on in the running loop (steps times batch
            size). Left out, it is as many as were asked for, which is more when a DataLoader
            works ahead with workers.
        """
        position = self._position
        if consumed is not None:
            all_of_it = self._share(self._start)
            taken = check_integer("consumed", consumed, most=all_of_it)
            turns = self._start + taken * current_ranks(self._ranks)[1]
            position = self._end(self._start) if taken == all_of_it else turns
        return make_state(position, self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, with any world size.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`; nothing is changed then.
        """
        self._move(load_position(state, self.fingerprint))

    def _move(self, position: int) -> None:
        self._position = self._start = position
        self._fresh = True

    def _end(self, position: int) -> int:
        """The end of the epoch of a position."""
        return (position // self.size + 1) * self.size

    def _share(self, start: int) -> int:
        """How many samples this rank gets from `start` to the end of its epoch."""
        rank, ranks = current_ranks(self._ranks)
        left = self._end(start) - start
        return left // ranks if self.drop_last else (left - rank + ranks - 1) // ranks

    def _turns(self, start: int = 0) -> int:
        """Turns of all ranks from `start` to the end of its epoch, the last one maybe not full."""
        ranks = current_ranks(self._ranks)[1]
        left = self._end(start) - start
        if self.drop_last and ranks > self.size:
            raise ValueError(
                f"drop_last would drop everything: {ranks} ranks, but {self.size} samples"
            )
        return left // ranks if self.drop_last else -(-left // ranks)
