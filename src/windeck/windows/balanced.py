"""Windows that are not served uniformly: each series has a share of every epoch.

An epoch is a list of slots, ``counts[s]`` of them for series s, in the order of a `Permutation`.
The slots of a series continue its own cycles from epoch to epoch: visit v of series s, which has n
windows, is window ``Permutation(n, seed=hash_words(key, s), epoch=v // n)[v % n]`` of the series.
All of it is arithmetic on the position: there is no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from windeck import _core
from windeck._core import Permutation, hash_words, permute_keyed
from windeck._util.fingerprints import digest
from windeck._util.indices import Int64, as_indices
from windeck._util.validation import LIMIT, check_integer
from windeck.sources import Batch, Fingerprint

if TYPE_CHECKING:
    from windeck.windows.device_balanced import DeviceBalancedWindows
    from windeck.windows.joined import JoinedWindows
    from windeck.windows.windows import Windows

__all__ = ["BalancedEpoch", "BalancedWindows"]

# Purposes that keys are derived for; part of the published orders.
SLOTS, SERIES = 11, 12


class BalancedWindows:
    """A source that serves the windows of each series as often as the weight of the series says.

    Made by `Windows.balanced`. It shuffles itself: each epoch is another `BalancedEpoch`.

    Attributes
    ----------
    windows : Windows
    counts : int64 array of shape (series,)
        Windows of each series of the table in every epoch; read-only.
    """

    supports_threads = True
    independent_rows = True

    def __init__(self, windows: Windows, weights: Any, epoch_length: int | None) -> None:
        self.windows = windows
        if not len(windows):
            raise ValueError("there are no windows, expected at least one window to serve")
        self._starts = _first_windows(windows)
        self._sizes: Int64 = np.diff(self._starts)
        shares = _shares(windows, self._sizes, weights)
        if epoch_length is None:
            live = int(np.count_nonzero(shares))
            equal = weights is None
            epoch_length = max(round(len(windows) / live), 1) * live if equal else len(windows)
        length = check_integer("epoch_length", epoch_length, least=1)
        self.counts: Int64 = _apportion(length, shares)
        for series in np.flatnonzero((self.counts == 0) & (shares > 0))[:1]:
            raise ValueError(
                f"series {windows.table.series_names[series]!r} would have no window in an epoch "
                f"of {length}; expected a larger `epoch_length`, or the weight 0 for it"
            )
        self.counts.flags.writeable = False
        self._slots = _core.Cumulative(self.counts)
        self._first = self.at_epoch(0, seed=0)

    def __len__(self) -> int:
        """Return the number of windows in an epoch, repeated ones included."""
        return int(self._slots.total)

    def at_epoch(self, epoch: int, /, *, seed: int) -> BalancedEpoch:
        """Return the source of one epoch. O(1)."""
        kind = _JoinedEpoch if hasattr(self.windows, "gather_rows") else BalancedEpoch
        return kind(self, epoch, seed)

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch of epoch 0 with seed 0; as `Windows.gather`."""
        return self._first.gather(indices, out, threads)

    def to(self, device: Any) -> DeviceBalancedWindows:
        """Return these windows as a source on a device: its batches are tensors, made there.

        Equal to ``windows.to(device).balanced(...)``; see `Windows.to` for parameters and errors. A
        `Loader` over the result gives the same batches in the same order; states of either resume
        with the other. O(series) time and memory besides those of the windows.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(12.0)}, offsets=[0, 9, 12])
        >>> balanced = wd.Windows(table, context_length=2).balanced([1, 1], epoch_length=4)
        >>> one, other = (wd.Loader(s, batch_size=4) for s in (balanced, balanced.to("cpu")))
        >>> bool((next(iter(one))["start"] == next(iter(other))["start"]).all())
        True
        """
        from windeck.windows.device_balanced import DeviceBalancedWindows

        return DeviceBalancedWindows(self, self.windows.to(device))

    def device_bytes(self) -> int:
        """Return the bytes that `to` takes on a device, at most; see `Windows.device_bytes`."""
        return self.windows.device_bytes() + 8 * (3 * len(self.counts) + 1)

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`."""
        return self.windows.torch_dtypes

    @property
    def fingerprint(self) -> Fingerprint:
        """The fields of the windows, and a digest of the counts."""
        fields = {f"windows.{name}": v for name, v in self.windows.fingerprint.items()}
        return {**fields, "balanced": digest(self.counts)}

    def __repr__(self) -> str:
        return f"BalancedWindows({self.windows!r}, epoch_length={len(self)})"

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_slots", "_first")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._slots = _core.Cumulative(self.counts)
        self._first = self.at_epoch(0, seed=0)


class BalancedEpoch:
    """The windows of one epoch, in the order in which they are served."""

    supports_threads = True

    def __init__(self, data: BalancedWindows, epoch: int, seed: int) -> None:
        self._windows, self._epoch = data.windows, epoch
        self._slots, self._counts = data._slots, data.counts
        self._starts, self._sizes = data._starts, data._sizes
        self._order = Permutation(self._slots.total, seed=hash_words(seed, SLOTS), epoch=epoch)
        self._key = hash_words(seed, SERIES)

    def __len__(self) -> int:
        return int(self._slots.total)

    @property
    def fingerprint(self) -> Fingerprint:
        """As that of the windows: an epoch has no state of its own."""
        return self._windows.fingerprint

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`."""
        return self._windows.torch_dtypes

    def window_numbers(self, indices: Any) -> Int64:
        """Return the windows at some places of the epoch, numbered as in `Windows`."""
        slots = self._order.take(as_indices(indices))
        series, within = self._slots.find(slots)
        visits = within + self._epoch * self._counts.take(series)
        sizes = self._sizes.take(series)
        cycles, places = np.divmod(visits, sizes)
        found: Int64 = permute_keyed(sizes, series, cycles, places, seed=self._key)
        return found + self._starts.take(series)

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch: row k of every array is the window at place ``indices[k]``."""
        return self._windows.gather(self.window_numbers(indices), out, threads)


class _JoinedEpoch(BalancedEpoch):
    """An epoch of windows that have buffers; see `Windows.joined`."""

    _windows: JoinedWindows

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        return self._windows.gather_rows(self.window_numbers(indices), out, threads)

    def whole(self, rows: Batch) -> Batch:
        return {}

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        return self._windows.present(batch)


def _first_windows(windows: Windows) -> Int64:
    """Return the first window of each series, and the number of windows; by binary search."""
    series = np.arange(windows.table.num_series, dtype=np.int64)
    low = np.zeros(len(series), np.int64)
    high = np.full(len(series), len(windows), np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        # Where low == high the window may not exist; the result is not used there.
        found, _ = windows.locate(np.minimum(middle, len(windows) - 1))
        before = (low < high) & (found < series)
        high = np.where((low < high) & ~before, middle, high)
        low = np.where(before, middle + 1, low)
    return np.append(low, len(windows))


def _shares(windows: Windows, sizes: Int64, weights: Any) -> np.ndarray[Any, Any]:
    """Return the weight of each series of the table, 0 for a series without windows."""
    if weights is None:
        return (sizes > 0).astype(np.float64)
    names = windows.table.series_names
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in names:
                raise KeyError(f"`weights` has {name!r}, which is not a series of the table")
        weights = [weights.get(name, 0) for name in names]
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (len(names),):
        raise ValueError(
            f"`weights` must have one number for each of {len(names)} series, got shape "
            f"{shares.shape}"
        )
    if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.any()):
        raise ValueError("`weights` must be finite, not negative, and not all 0")
    for series in np.flatnonzero((shares > 0) & (sizes == 0))[:1]:
        raise ValueError(f"series {names[series]!r} has a weight, but no windows; expected 0")
    return shares


def _apportion(length: int, shares: np.ndarray[Any, Any]) -> Int64:
    """Return whole numbers in proportion to the shares, of sum `length`, by largest remainder."""
    if length > LIMIT >> 10:
        raise ValueError(f"`epoch_length` must be at most 2^53, got {length}")
    quotas = shares * (length / math.fsum(shares))
    counts = np.floor(quotas).astype(np.int64)
    left = length - int(counts.sum())
    if left < 0:  # Rounding of floats may exceed a whole number by one.
        counts[np.argsort(quotas - counts, kind="stable")[:-left]] -= 1
        left = 0
    # A series of weight 0 gets nothing.
    remainders = np.where(shares > 0, quotas - counts, -1.0)
    counts[np.argsort(-remainders, kind="stable")[:left]] += 1
    return counts
