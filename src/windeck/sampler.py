"""OrderSampler: shuffling without memory, and exact resume, for any map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from windeck._core import Permutation
from windeck.fingerprint import lasting_name
from windeck.positions import LIMIT, integer
from windeck.protocols import Fingerprint, OrderFactory
from windeck.ranks import check_ranks, current_ranks
from windeck.states import load_position, make_state

__all__ = ["OrderSampler"]

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
        self.size = integer("size", len(size) if isinstance(size, Sized) else size, low=1)
        if not callable(order):
            raise TypeError(
                f"order has to be a factory f(size, *, seed, epoch), got {type(order).__name__}; "
                "pass the class, not an instance"
            )
        self.order = order
        self.seed = integer("seed", seed, high=2**64 - 1)
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
        return {"samples": self.size, "order": lasting_name(self.order), "seed": self.seed}

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be that of an epoch.

        Nothing happens when a loaded state is in the middle of that epoch, so that trainers may
        call this before every loop.
        """
        number = integer("epoch", epoch, high=LIMIT // self.size - 1)
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
            taken = integer("consumed", consumed, high=all_of_it)
            turns = self._start + taken * current_ranks(self._ranks)[1]
            position = self._end(self._start) if taken == all_of_it else turns
        return make_state(position, self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, with any world size.

        Raises
        ------
        KeyError, TypeError, ValueError
            As `windeck.states.load_position`; nothing is changed then.
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
