"""A sampler in the order of an order factory, for a DataLoader of any map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from operator import length_hint
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from windeck._core import Permutation
from windeck._util.fingerprints import checked_order_name, order_name
from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.callers import check_sharded_once
from windeck.loader.sharding import Sharding, check_ranks, current_ranks, warn_of_launcher
from windeck.loader.state import check_fields, load_position, make_state
from windeck.loader.stream import check_order_factory
from windeck.sources import Fingerprint, Indices, OrderFactory

__all__ = ["OrderSampler"]

#: Samples of a portion, which `OrderSampler` computes at a time, in whole steps.
_PORTION = 4096


@explain_options
class OrderSampler(Sampler[int]):
    """A sampler in the order of an order factory, for a DataLoader of any map-style dataset.

    A replacement for RandomSampler and DistributedSampler that keeps no list: position p of the
    run is place p % n of epoch p // n. Each rank gets the positions that a `Loader` of the same
    batch size gives it: of every W * B positions rank r of W gets [r*B, (r+1)*B), and of a
    remainder of R < W * B at the end of an epoch [r*R//W, (r+1)*R//W). Its state is the position,
    for any later world size and batch size.

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
    batch_size
        Samples of one rank in one step, B: the `batch_size` of the DataLoader. 1 deals the samples
        one by one, for any DataLoader.
    drop_last
        Whether the remainder of an epoch, of fewer than W * B samples, is dropped. Otherwise the
        ranks share it, and some get one sample more than others. They make the same number of
        batches, unless the remainder has fewer samples than there are ranks: then those that get
        none make one batch less. Use True with DistributedDataParallel, whose ranks must make
        the same number of steps.

    Notes
    -----
    Each ``for`` loop is one epoch. An interrupted loop is not continued by the next one, because
    a DataLoader with workers requests samples before it hands them out; `load_state_dict` does
    continue it. For the same reason use ``state_dict(consumed=...)`` with workers. A rank that has
    taken all its samples is at the end of the epoch, for all ranks.

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
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.size = check_integer("size", len(size) if isinstance(size, Sized) else size, least=1)
        check_order_factory(order)
        self.order = order
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self.batch_size = check_integer("batch_size", batch_size, least=1)
        self.drop_last = bool(drop_last)
        self._ranks = check_ranks(rank, world_size)
        self._start = 0
        #: The last loop; None if none has begun since the position was last set,
        self._loop: _SamplerLoop | None = None
        #: by a state.
        self._is_loaded = False
        self._sharding()  # Raises if `drop_last` would drop every sample.

    def __repr__(self) -> str:
        return (
            f"OrderSampler({self.size}, order={order_name(self.order)}, seed={self.seed}, "
            f"batch_size={self.batch_size}, drop_last={self.drop_last}, position={self.position})"
        )

    @property
    def position(self) -> int:
        """The position after the steps requested from all ranks together."""
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
        rank, sharding = self._sharding()
        running = self._loop is None or self.position < sharding.epoch_end(self._start)
        return sharding.samples_left(self._start if running else 0, rank)

    def __iter__(self) -> Iterator[int]:
        warn_of_launcher(self._ranks)
        cure = "give it rank=0 and world_size=1, or do not let a trainer prepare its DataLoader"
        check_sharded_once("OrderSampler", current_ranks(self._ranks), cure)
        return _SamplerLoop(self)

    def state_dict(self, *, consumed: int | None = None) -> dict[str, Any]:
        """Return the position, with a fingerprint of size, order and seed. Fit for JSON.

        Parameters
        ----------
        consumed
            Number of samples this rank has trained on in the running loop (steps times batch
            size): whole batches of `batch_size`, or all. By default the number requested, which
            is larger if a DataLoader prefetches with workers.

        Raises
        ------
        ValueError
            In the middle of a step, which is no position of all ranks together, and if `consumed`
            is larger than the number of this rank's samples.
        """
        loop = self._loop
        if consumed is None:
            position, taken, total = (
                (self._start, 0, 0) if loop is None else (loop.position, loop.taken, loop.total)
            )
        else:
            rank, sharding = self._sharding()
            total = sharding.samples_left(self._start, rank)
            taken = check_integer("consumed", consumed, most=total)
            position = self._start + taken // self.batch_size * sharding.step_size
            if taken == total:
                position = sharding.epoch_end(self._start)
        if taken % self.batch_size and taken != total:
            raise ValueError(
                f"{taken} samples of this rank end in the middle of a step: a state is saved after "
                f"whole batches of `batch_size` = {self.batch_size}, or after all {total} samples "
                "of the loop; give the sampler the batch size of its DataLoader"
            )
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
            self._start = self._sharding()[1].epoch_end(self._start)
        self._loop, self._is_loaded = loop, False
        return self._start

    def _sharding(self) -> tuple[int, Sharding]:
        """Return the rank, and what each rank gets.

        Raises
        ------
        ValueError
            If `drop_last` would drop every sample.
        """
        rank, ranks = current_ranks(self._ranks)
        return rank, Sharding(self.size, self.batch_size, ranks, self.drop_last)


class _SamplerLoop:
    """The samples of one loop over an `OrderSampler`.

    StatefulDataLoader saves the state, and loads it before the first sample.
    """

    def __init__(self, sampler: OrderSampler) -> None:
        # None once the loop has begun: the sampler refers to its last loop, and cycles are
        # collected late.
        self._sampler: OrderSampler | None = sampler
        self._portion: Iterator[int] = iter(())
        self._requested = 0  # Samples up to the end of the portion.
        self._is_over = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        for sample in self._portion:
            return sample
        if self._sampler is not None:
            self._open(self._sampler, self._sampler._begin(self), 0)
        places = self._next_places()
        if not len(places):
            self._is_over = True
            raise StopIteration
        self._requested += len(places)
        self._portion = iter(self._order.take(places).tolist())
        return next(self._portion)

    @property
    def taken(self) -> int:
        """The number of samples that this rank has taken."""
        return self._requested - length_hint(self._portion)

    @property
    def position(self) -> int:
        """The position after the whole steps that all ranks together have taken."""
        taken, of_full_steps = self.taken, self._full_steps * self._sharding.batch_size
        if self._is_over or self.total == taken > of_full_steps:
            return self._end
        steps = min(taken // self._sharding.batch_size, self._full_steps)
        return self._start + steps * self._sharding.step_size

    def _open(self, sampler: OrderSampler, start: int, taken: int) -> None:
        self._rank, self._sharding = sampler._sharding()
        self._start, self._requested, self._end = start, taken, self._sharding.epoch_end(start)
        epoch, self._place = divmod(start, sampler.size)
        self._full_steps = self._sharding.full_steps(self._place, sampler.size)
        self.total = self._sharding.samples_left(self._place, self._rank)
        self._order = sampler.order(sampler.size, seed=sampler.seed, epoch=epoch)
        self._sampler = None

    def _next_places(self) -> Indices:
        """Return this rank's places of the epoch in the next steps; none at its end."""
        sharding, size = self._sharding, self._sharding.batch_size
        step, before = divmod(self._requested, size)
        if step < self._full_steps:
            steps = range(step, min(step + max(1, _PORTION // size), self._full_steps))
            return sharding.positions_of_steps(self._place, self._rank, steps)[before:]
        if self._requested >= self.total:
            return np.empty(0, np.int64)
        before = self._requested - self._full_steps * size
        remainder = self._place + self._full_steps * sharding.step_size
        return sharding.positions(remainder, self._rank)[before:]

    def state_dict(self) -> dict[str, Any]:
        """Return the loop's start and the number of samples taken; empty before the first."""
        if self._sampler is not None:
            return {}
        sharding = self._sharding
        ranks = {"world_size": sharding.world_size, "batch_size": sharding.batch_size}
        return {"start": self._start, "taken": self.taken, **ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a loop of the sampler, before the first sample.

        Raises
        ------
        KeyError, TypeError, ValueError
            For another world size or batch size, and a state without its fields.
        """
        sampler = self._sampler
        if not state or sampler is None:
            return
        check_fields(state, "start", "taken", "world_size", "batch_size")
        here = {
            "world_size": current_ranks(sampler._ranks)[1],
            "batch_size": sampler.batch_size,
        }
        for name, value in here.items():
            if state[name] != value:
                raise ValueError(
                    f"the StatefulDataLoader was saved with {name} = {state[name]}, here "
                    f"it is {value}: to change it, save `sampler.state_dict(consumed=...)` "
                    "instead, and load that by `sampler.load_state_dict`"
                )
        sampler._move(check_integer("start", state["start"], most=LIMIT - 1))
        sampler._begin(self)
        self._open(sampler, sampler._start, check_integer("taken", state["taken"]))
