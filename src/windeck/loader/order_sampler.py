"""A sampler in the order of an order factory, for a DataLoader of any map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from operator import length_hint
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.callers import check_sharded_once
from windeck.loader.sharding import check_ranks, current_ranks
from windeck.loader.state import check_fields, load_position, make_state
from windeck.loader.stream import check_order_factory
from windeck.sources import Fingerprint, Order, OrderFactory

__all__ = ["OrderSampler"]

#: Samples computed at a time by `OrderSampler`.
CHUNK = 4096


@explain_options
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
        An int in [0, 2^64). `Sequential` ignores it.
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
        check_sharded_once("OrderSampler", current_ranks(self._ranks), cure)
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
        KeyError, TypeError, ValueError
            For another world size, and a state without its fields.
        """
        sampler = self._sampler
        if not state or sampler is None:
            return
        check_fields(state, "start", "taken", "world_size")
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
