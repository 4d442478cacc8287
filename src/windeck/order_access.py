"""How an order written in Python is read: the item, slice, take and index of every order.

An order gives two vectorised functions, ``_samples(positions)`` and ``_positions(samples)``, for
int64 arrays that were checked already; the functions here check, and call them. The checks are
the native ones, so all orders refuse the same things in the same words.
"""

from __future__ import annotations

from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from windeck import _core

IndexArray = npt.NDArray[np.int64]


class Arithmetic(Protocol):
    """Both directions of an order, for checked arrays."""

    @property
    def size(self) -> int: ...
    def _samples(self, positions: IndexArray) -> IndexArray: ...
    def _positions(self, samples: IndexArray) -> IndexArray: ...


def item(order: Arithmetic, key: SupportsIndex | slice) -> Any:
    """order[key]: an int for an integer, an array for a slice; negative ones as in sequences."""
    if not isinstance(key, slice):
        position = _core.checked_one(key, order.size, "position", from_end=True)
        return int(order._samples(np.array([position], dtype=np.int64))[0])
    return order._samples(np.arange(*key.indices(order.size), dtype=np.int64))


def slice_(
    order: Arithmetic, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None
) -> IndexArray:
    """The samples at positions start to stop, stop excluded."""
    first, last, into = _core.checked_range(start, stop, order.size, out)
    into[:] = order._samples(np.arange(first, last, dtype=np.int64))
    return into


def take(order: Arithmetic, positions: object, out: IndexArray | None) -> IndexArray:
    """The samples at the given positions."""
    checked, into = _core.checked_bulk(positions, order.size, "position", out)
    into[:] = order._samples(checked)
    return into


def index(order: Arithmetic, samples: object, out: IndexArray | None) -> Any:
    """The positions of the given samples; an int for an int."""
    if isinstance(samples, SupportsIndex) and not isinstance(samples, np.ndarray):
        sample = _core.checked_one(samples, order.size, "sample")
        return int(order._positions(np.array([sample], dtype=np.int64))[0])
    checked, into = _core.checked_bulk(samples, order.size, "sample", out)
    into[:] = order._positions(checked)
    return into
