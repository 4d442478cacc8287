"""Balanced windows on a device: the order of `BalancedWindows`, computed there."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from windeck._core import Permutation, hash_words
from windeck._util.indices import as_indices
from windeck._util.validation import LIMIT, check_integer
from windeck.device_orders import DevicePermutation, KeyedPermutations
from windeck.sources import DeviceSource, Fingerprint, Source
from windeck.windows.balance import GOLDEN, SERIES, SLOTS, Balance, epoch_shift

__all__ = ["DeviceBalancedEpoch", "DeviceBalancedWindows"]

Tensors = dict[str, torch.Tensor]


def as_int64(word: int) -> int:
    """Return the int64 with the bits of a word of 64 bits."""
    return word - (1 << 64) if word >> 63 else word


class HostBalancedWindows(Source, Protocol):
    """`BalancedWindows` in host memory, with what a source on a device uses of them."""

    @property
    def balance(self) -> Balance:
        """The windows of each series in every epoch."""

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown."""

    def to(self, device: Any) -> DeviceBalancedWindows:
        """Return these windows as a source on a device."""


class TensorWindows(DeviceSource, Protocol):
    """`DeviceWindows`, with what a balanced source uses of them."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""

    def gather_row_tensors(self, samples: Any) -> Tensors:
        """Return a batch before `present`."""

    def present(self, batch: Tensors) -> Tensors:
        """Return a batch with past and future in place of buffers."""


class DeviceBalancedWindows:
    """The windows of `BalancedWindows.to` and `DeviceWindows.balanced`.

    Attributes
    ----------
    balanced : BalancedWindows
        The same source in host memory.
    windows : DeviceWindows
        The windows on the device that are served.
    device : torch.device
    nbytes : int
        Bytes on the device. Other windows may share the columns.
    """

    def __init__(self, balanced: HostBalancedWindows, windows: TensorWindows) -> None:
        self.balanced, self.windows = balanced, windows
        self.device: torch.device = windows.device
        balance = balanced.balance
        borders = np.concatenate([[0], np.cumsum(balance.counts)])
        self._borders = torch.from_numpy(borders).to(self.device)
        self._starts = torch.from_numpy(balance.starts[:-1].copy()).to(self.device)
        self._sizes = torch.from_numpy(balance.sizes.copy()).to(self.device)
        #: As `Balance.cumulative`, float64.
        self._cumulative: torch.Tensor | None = None
        if balance.cumulative is not None:
            self._cumulative = torch.from_numpy(balance.cumulative.copy()).to(self.device)
        own = self._borders.nbytes + self._starts.nbytes + self._sizes.nbytes
        own += 0 if self._cumulative is None else self._cumulative.nbytes
        self.nbytes = windows.nbytes + own

    def __len__(self) -> int:
        """Return the number of windows in an epoch, repeated ones included."""
        return len(self.balanced)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint in host memory: states of either source resume with the other."""
        return self.balanced.fingerprint

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown; see `Windows.check_growth`."""
        of_host = larger.balanced if isinstance(larger, DeviceBalancedWindows) else larger
        self.balanced.check_growth(of_host)

    def at_epoch(self, epoch: int, /, *, seed: int) -> DeviceBalancedEpoch:
        """Return the source of one epoch. O(series) time, and 24 bytes for each series."""
        return DeviceBalancedEpoch(self, epoch, seed)

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return a batch of no rows, as arrays; raise a TypeError for any other one."""
        return self.windows.gather(indices, out)

    def gather_tensors(self, samples: Any) -> Tensors:
        """Return a batch of epoch 0 with seed 0; see `DeviceBalancedEpoch.gather_tensors`."""
        return self.at_epoch(0, seed=0).gather_tensors(samples)

    def present(self, batch: Tensors) -> Tensors:
        """Return a batch as `DeviceWindows.present` does."""
        return self.windows.present(batch)

    def __repr__(self) -> str:
        return f"{self.balanced!r} on {self.device}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _moved, (self.balanced, str(self.device))


def _moved(balanced: HostBalancedWindows, device: str) -> DeviceBalancedWindows:
    return balanced.to(device)


class DeviceBalancedEpoch:
    """The windows of one epoch on a device, in the order in which they are served.

    Attributes
    ----------
    base : DeviceWindows
        The windows that are served.
    epoch : int
    """

    def __init__(self, source: DeviceBalancedWindows, epoch: int, seed: int) -> None:
        # Visits of a series are counted from epoch 0 on, in int64.
        most = LIMIT // int(source.balanced.balance.counts.max()) - 1
        self.base, self.epoch = source.windows, check_integer("epoch", epoch, most=most)
        self._source = source
        order = Permutation(len(source), seed=hash_words(seed, SLOTS), epoch=epoch)
        self._slots = DevicePermutation(order, source.device)
        self._windows = KeyedPermutations(source._sizes, hash_words(seed, SERIES))
        self._shift = epoch_shift(seed, epoch)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._source)

    @property
    def device(self) -> torch.device:
        """The device of the windows."""
        return self._source.device

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the windows: an epoch has no state of its own."""
        return self.base.fingerprint

    def base_samples(self, samples: Any) -> torch.Tensor:
        """Return the windows at some places of the epoch, numbered as in `Windows`.

        The values of `BalancedEpoch.window_numbers`, as an int64 tensor on the device. A `Loader`
        calls it for 65,536 places at a time. Waits for the device once for each pass of the
        permutations, of which small series take many.

        Raises
        ------
        IndexError
            For a place outside ``[0, len)``.
        """
        if not isinstance(samples, torch.Tensor):
            samples = torch.from_numpy(as_indices(samples)).to(self.device)
        self._check(samples)
        source = self._source
        slots = self._slots.take(samples)
        series = torch.searchsorted(source._borders, slots, right=True) - 1
        if source._cumulative is not None:
            return self._by_quota(source._cumulative, slots, series)
        first = source._borders.index_select(0, series)
        counts = source._borders.index_select(0, series + 1) - first
        visits = slots - first + self.epoch * counts
        sizes = source._sizes.index_select(0, series)
        cycles = torch.div(visits, sizes, rounding_mode="floor")
        found = self._windows.take(series, cycles, visits - cycles * sizes)
        return found + source._starts.index_select(0, series)

    def _by_quota(
        self, cumulative: torch.Tensor, slots: torch.Tensor, series: torch.Tensor
    ) -> torch.Tensor:
        """Return the windows whose quotas have the places of slots; see `BalancedEpoch`.

        int64 wraps as uint64 does, and float64 has all 53 bits of a shift.
        """
        shifts = series * as_int64(GOLDEN) + as_int64(self._shift)
        fractions = ((shifts >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
        starts = slots.to(torch.float64)
        below = torch.nextafter(starts + 1.0, torch.zeros_like(starts))
        return torch.searchsorted(cumulative, torch.minimum(starts + fractions, below), right=True)

    def _check(self, samples: torch.Tensor) -> None:
        """Raise for places outside: the walk of a permutation may not end for them."""
        outside = samples[(samples < 0) | (samples >= len(self))]
        if len(outside):
            raise IndexError(
                f"sample {int(outside[0])} is outside of an epoch of {len(self)} windows"
            )

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return a batch of no rows; see `DeviceBalancedWindows.gather`."""
        return self.base.gather(indices, out)

    def gather_tensors(self, samples: Any) -> Tensors:
        """Return a batch: row k of every tensor is the window at place ``samples[k]``.

        As `DeviceWindows.gather_tensors`; raises an IndexError for a place outside ``[0, len)``.
        """
        return self.base.gather_tensors(self.base_samples(samples))

    def gather_row_tensors(self, samples: Any) -> Tensors:
        """Return a batch before `present`."""
        return self.base.gather_row_tensors(self.base_samples(samples))

    def present(self, batch: Tensors) -> Tensors:
        """Return a batch as `DeviceWindows.present` does."""
        return self.base.present(batch)
