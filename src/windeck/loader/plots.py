"""The samples of the next steps of a loader, as points."""

from __future__ import annotations

from typing import Any

import numpy as np

from windeck._util.plots import new_axes
from windeck._util.validation import check_integer

__all__ = ["plot_steps"]

#: Points that are drawn.
_MOST_POINTS = 20_000


def plot_steps(loader: Any, steps: int, ax: Any) -> Any:
    """Draw the samples of the next steps of a `Loader`; see `Loader.plot`."""
    many = check_integer("steps", steps, least=1)
    ax = new_axes(ax)
    found = _samples(loader, many)
    is_mixture = found.shape[1] > 3
    # Of a mixture the part is the colour, else the rank is.
    colors = found[:, 2] if is_mixture else found[:, 1]
    names = getattr(loader.stream, "names", None) if is_mixture else None
    for number in np.unique(colors).tolist():
        chosen = found[colors == number]
        label = f"rank {number}" if names is None else names[number]
        ax.plot(
            chosen[:, 0], chosen[:, -1], ".", color=f"C{number % 10}", label=label, markersize=3
        )
    ax.set_xlabel("step")
    ax.set_ylabel("sample")
    ax.set_title(f"samples of {len(np.unique(found[:, 0])):,} steps from step {loader.step:,}")
    ax.legend(loc="upper right")
    return ax


def _samples(loader: Any, steps: int) -> np.ndarray[Any, np.dtype[np.int64]]:
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
        if points >= _MOST_POINTS:
            break
    return np.concatenate(parts)


def _steps_left(loader: Any) -> int | None:
    """Return the steps until `epochs` or `max_steps` is reached; None without such an end."""
    ends = []
    if loader.max_steps is not None:
        ends.append(max(0, loader.max_steps - loader.step))
    if loader.epochs is not None:
        later = max(0, loader.epochs - loader.epoch - 1)
        ends.append(loader.steps_left + (later * len(loader) if later else 0))
    return min(ends, default=None)
