"""A model of the loader in plain Python, without code of the library.

It lists positions one by one, so it is slow and simple.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Share = list[int]


@dataclass(frozen=True)
class Run:
    """A loader's settings."""

    size: int
    batch_size: int
    world_size: int = 1
    drop_last: bool = False
    excluded: Collection[int] = ()


def one_step(run: Run, position: int) -> tuple[list[Share], int]:
    """Return the positions of every rank in the step after `position`, and its end."""
    while True:
        end = (position // run.size + 1) * run.size
        rest = [p for p in range(position, end) if p not in run.excluded]
        full = run.batch_size * run.world_size
        if len(rest) >= full:
            dealt = rest[:full]
            shares = [dealt[r * run.batch_size :][: run.batch_size] for r in range(run.world_size)]
            return shares, dealt[-1] + 1
        if rest and not run.drop_last:
            cuts = [r * len(rest) // run.world_size for r in range(run.world_size + 1)]
            return [rest[cuts[r] : cuts[r + 1]] for r in range(run.world_size)], end
        position = end


def steps(run: Run, position: int = 0) -> Iterator[tuple[list[Share], int]]:
    """Yield all steps after `position`, endlessly."""
    while True:
        shares, position = one_step(run, position)
        yield shares, position


def epoch_of(run: Run, position: int) -> list[list[Share]]:
    """Return the steps of one ``for`` loop from `position` on: those of one epoch."""
    dealt: list[list[Share]] = []
    for shares, _ in steps(run, position):
        epoch = min(p for share in shares for p in share) // run.size
        if dealt and epoch != min(p for share in dealt[0] for p in share) // run.size:
            return dealt
        dealt.append(shares)
    raise AssertionError


class Turn:
    """An order: place i of epoch e holds (7 * seed + 3 * e + i) mod size."""

    def __init__(self, size: int, /, *, seed: int = 0, epoch: int = 0) -> None:
        self.size, self.by = size, 7 * seed + 3 * epoch

    def __len__(self) -> int:
        return self.size

    def slice(
        self, start: int, stop: int, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        return self.take(np.arange(start, stop), out)

    def take(
        self, indices: NDArray[np.int64], out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        result = np.empty_like(indices) if out is None else out
        result[:] = (indices + self.by) % self.size
        return result

    def index(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return (samples - self.by) % self.size


def turned(size: int, position: int, seed: int = 0) -> int:
    """Return the sample at a position in the order of `Turn`."""
    return (7 * seed + 3 * (position // size) + position % size) % size


class Numbers:
    """A source of `size` samples; sample i is the number i and a row of four numbers."""

    def __init__(self, size: int, name: str = "numbers") -> None:
        self.size, self.name = size, name
        #: Called with the indices of every batch; tests use it to raise errors.
        self.watch: Callable[[NDArray[np.int64]], object] | None = None

    def __len__(self) -> int:
        return self.size

    @property
    def fingerprint(self) -> dict[str, str | int]:
        return {"name": self.name, "size": self.size}

    def gather(
        self, indices: NDArray[np.int64], out: dict[str, NDArray[np.generic]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        if self.watch is not None:
            self.watch(indices)
        rows = (indices[:, None] * 4 + np.arange(4)).astype(np.float32)
        batch: dict[str, NDArray[np.generic]] = {"sample": indices.copy(), "row": rows}
        if out is None:
            return batch
        for key, array in batch.items():
            out[key][:] = array
        return out
