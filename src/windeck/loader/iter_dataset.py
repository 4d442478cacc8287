"""An iterable dataset of a stream's batches, for a DataLoader with any number of workers.

The stream defines the batches, and each contains the position to save.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy.random  # noqa: F401  Workers seed it: forked ones need not import it.
import torch
from torch.utils.data import IterableDataset, get_worker_info

from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Tensors, gather_batches
from windeck.loader.batch_groups import next_count
from windeck.loader.callers import check_not_collated, check_sharded_once
from windeck.loader.sharding import Sharding, check_ranks, current_ranks, warn_of_launcher
from windeck.loader.shared_position import SharedPosition
from windeck.loader.state import check_fields, load_stream_position, stream_state
from windeck.sources import Stream
from windeck.sources.members import StreamMembers, stream_members

__all__ = ["IterDataset"]


@explain_options
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
        self.stream = stream
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self._ranks = check_ranks(rank, world_size)
        #: The pid of a worker that was sent the dataset, and the ranks of its main process.
        self._sent: tuple[int, tuple[int, int]] | None = None
        self._shared = SharedPosition(check_integer("position", position, most=LIMIT - 1))
        self._loop: _DatasetLoop | None = None  # The last one that began in this process.
        self._sharding()  # Raises for a batch size that does not fit.

    @property
    def stream(self) -> Stream:
        """The stream; another one that is set is served by the next loop."""
        return self._members.stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._members = stream_members(stream)

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
        check_not_collated()
        worker = get_worker_info()
        workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        start, number = self._shared.begin(partial(_loop_end, self._members))
        rank = self._current_ranks()[0]
        self._loop = _DatasetLoop(
            self._members, self._sharding(), rank, workers, self._shared, start, number
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
        return stream_state(self._members, number)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move to the position in a state of this class or of a `Loader`.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.loader.state.load_position`, and for a state that excludes positions.
        """
        position = load_stream_position(self._members, state)
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
        warn_of_launcher(self._ranks, is_forked_worker=not self._is_sent())
        cure = "do not let a trainer prepare its DataLoader, or pass it a windeck.Loader"
        check_sharded_once("IterDataset", self._current_ranks(), cure)

    def _current_ranks(self) -> tuple[int, int]:
        # A worker that was spawned has no process group.
        if self._sent and self._is_sent() and get_worker_info() is not None:
            return self._sent[1]
        return current_ranks(self._ranks)

    def _is_sent(self) -> bool:
        """Return True in a process that was sent the dataset, and not forked."""
        return self._sent is not None and self._sent[0] == os.getpid()

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


def _loop_end(stream: StreamMembers, start: int) -> int | None:
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
        stream: StreamMembers,
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
        self._group_size = 1

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
            self._made = self._make_group(self._start)
        batch = self._made.pop()
        size = self.sharding.step_size
        self._reached = min(self._start + (self._step + 1) * size, self._end)
        self._step += self.workers
        batch["position"] = torch.tensor([self._reached], device="cpu")
        return batch

    def _make_group(self, start: int) -> list[Tensors]:
        """Make the batches of this worker's next steps by one gather, the last one first."""
        steps = range(self._step, self._full, self.workers)[: self._group_size]
        while True:
            if steps:
                positions = self.sharding.positions_of_steps(start, self.rank, steps)
            else:  # A partial batch at the end.
                last = start + self._step * self.sharding.step_size
                positions = self.sharding.positions(last, self.rank)
            count = max(1, len(steps))
            try:
                batches = gather_batches(self.stream.methods, positions, count)
                break
            except Exception:
                if count == 1:
                    raise
                steps = steps[:1]  # The error belongs to one of the batches: it is raised there.
        if "position" in batches[0]:
            raise ValueError("the source has a key 'position', which is reserved for batches")
        if self.stream.methods.independent_rows:
            nbytes = sum(tensor.nbytes for tensor in batches[0].values()) * count
            self._group_size = next_count(count, nbytes)
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
        check_fields(state, *self._layout(), "step")
        for field, now in self._layout().items():
            if state[field] != now:
                raise ValueError(
                    f"the StatefulDataLoader was saved with {field} = {state[field]}, here it is "
                    f'{now}: to change it, save `dataset.state_dict(batch["position"])` instead, '
                    "and load that by `dataset.load_state_dict`"
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
