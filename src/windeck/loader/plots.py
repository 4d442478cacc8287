"""The samples of the next steps of a loader, as points."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from windeck._util.plots import new_axes
from windeck._util.validation import check_integer
from windeck.loader.mixture import Mixture
from windeck.sources import Indices, Stream

__all__ = ["plot_steps"]

#: Points that are drawn.
_MOST_POINTS = 20_000
#: Sequences that are drawn: their documents are looked up one by one.
_MOST_SEQUENCES = 4_000

Points: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class DrawnLoader(Protocol):
    """The members of a `windeck.Loader` that are read for a drawing."""

    epochs: int | None
    max_steps: int | None

    @property
    def stream(self) -> Stream: ...

    @property
    def step(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def steps_left(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def __len__(self) -> int: ...

    def samples(self, step: int, *, rank: int | None = None) -> Indices: ...

    def documents(self, step: int, *, rank: int | None = None) -> list[list[Any]]: ...


def plot_steps(loader: DrawnLoader, steps: int, ax: Any) -> Any:
    """Draw the samples of the next steps of a `Loader`; see `Loader.plot`."""
    many = check_integer("steps", steps, least=1)
    ax = new_axes(ax)
    by_document = _has_documents(loader)
    found = _documents(loader, many) if by_document else _samples(loader, many)
    is_mixture = found.shape[1] > 3
    # Of a mixture the part is the colour, else the rank is.
    colors = found[:, 2] if is_mixture else found[:, 1]
    names = loader.stream.names if isinstance(loader.stream, Mixture) else None
    for number in np.unique(colors).tolist():
        chosen = found[colors == number]
        label = f"rank {number}" if names is None else names[number]
        ax.plot(
            chosen[:, 0], chosen[:, -1], ".", color=f"C{number % 10}", label=label, markersize=3
        )
    ax.set_xlabel("step")
    ax.set_ylabel("document, of those drawn" if by_document else "sample")
    ax.set_title(f"samples of {len(np.unique(found[:, 0])):,} steps from step {loader.step:,}")
    ax.legend(loc="upper right")
    return ax


def _has_documents(loader: DrawnLoader) -> bool:
    """Return whether samples are sequences of documents: these are numbered in shuffled order."""
    try:
        loader.documents(loader.step, rank=0)
    except TypeError:
        return False
    return True


def _documents(loader: DrawnLoader, steps: int) -> Points:
    """Return rows as `_samples`, with the number of the first document in place of the sample.

    Documents that are drawn are numbered in the order of their corpora.
    """
    points = _samples(loader, steps, most=_MOST_SEQUENCES)
    first: list[tuple[Any, ...]] = []
    for step in np.unique(points[:, 0]).tolist():
        for rank in range(loader.world_size):
            pieces = loader.documents(step, rank=rank)
            first += [tuple(row[0][:3]) if row else () for row in pieces]
    numbers = {document: number for number, document in enumerate(sorted(set(first)))}
    points[:, -1] = [numbers[document] for document in first]
    return points


def _samples(loader: DrawnLoader, steps: int, most: int = _MOST_POINTS) -> Points:
    """Return rows (step, rank, sample), or of a mixture (step, rank, part, sample)."""
    left = _steps_left(loader)
    if left == 0:
        raise ValueError("the loader is at its end, expected steps to draw")
    parts = []
    points = 0
    for step in range(loader.step, loader.step + (steps if left is None else min(steps, left))):
        for rank in range(loader.world_size):
            samples = loader.samples(step, rank=rank)
            columns = samples[:, None] if samples.ndim == 1 else samples[:, :2]
            numbers = np.broadcast_to(np.array([step, rank]), (len(columns), 2))
            parts.append(np.concatenate([numbers, columns], axis=1))
            points += len(columns)
        if points >= most:
            break
    return np.concatenate(parts)


def _steps_left(loader: DrawnLoader) -> int | None:
    """Return the steps until `epochs` or `max_steps` is reached; None without such an end."""
    ends = []
    if loader.max_steps is not None:
        ends.append(max(0, loader.max_steps - loader.step))
    if loader.epochs is not None:
        later = max(0, loader.epochs - loader.epoch - 1)
        ends.append(loader.steps_left + (later * len(loader) if later else 0))
    return min(ends, default=None)
