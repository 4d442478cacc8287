"""The random numbers of rows that `Stream.map` gives to a function."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import windeck as wd
from models.oracle import Numbers

__all__ = ["row_random"]

_GIVEN: list[Any] = []


def _keep(batch: Any, random: Any) -> Any:
    _GIVEN.append(random)
    return batch


def row_random(seed: int, positions: ArrayLike) -> Any:
    """Return what a function gets that maps the samples at positions, with a seed."""
    wd.Stream(Numbers(8)).map(_keep, seed=seed).gather(np.asarray(positions, np.int64))
    return _GIVEN.pop()
