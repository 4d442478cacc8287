"""Windows that are not served uniformly: each series has a share of every epoch.

An epoch is a list of slots, ``counts[s]`` of them for series s, in the order of a `Permutation`.
The slots of a series continue its own cycles from epoch to epoch: visit v of series s, which has n
windows, is window ``Permutation(n, seed=hash_words(key, s), epoch=v // n)[v % n]`` of the series.
All of it is arithmetic on the position: there is no state.

Windows of a streamed table are dealt in groups of blocks. A cycle of a series then goes through its
blocks in an order of its own and through the windows of each block, and the windows of an epoch are
in the order of a `BlockPermutation` of the blocks that they begin in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from windeck import _core
from windeck._core import Permutation, hash_words, permute_keyed
from windeck._util.fingerprints import digest
from windeck._util.imports import needs_torch
from windeck._util.indices import Int64, as_indices
from windeck._util.options import explain_options
from windeck.orders import BlockPermutation, Sequential, block_group
from windeck.sources import Batch, Fingerprint, Order, Source
from windeck.sources.protocols import Expect
from windeck.windows.balance import CELLS, GOLDEN, SERIES, SLOTS, Balance, epoch_shift

if TYPE_CHECKING:  # They need torch.
    from windeck.windows.device import DeviceWindows
    from windeck.windows.device_balanced import DeviceBalancedWindows

__all__ = ["BalancedEpoch", "BalancedWindows"]


class ServedWindows(Source, Protocol):
    """`Windows`, with what a balanced source uses of them."""

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch."""

    @property
    def expect(self) -> Callable[..., None] | None:
        """The function that notes where the next windows are; None for a table in memory."""

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """Keys whose uint16 arrays are the bits of a dtype that NumPy lacks."""

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown."""

    def to(self, device: Any) -> DeviceWindows[Any]:
        """Return these windows as a source on a device."""

    def device_bytes(self) -> int:
        """Return the bytes that `to` takes on a device, at most."""


class ServedJoinedWindows(ServedWindows, Protocol):
    """Windows whose past and future of a role are views of one buffer."""

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch with buffers."""

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with past and future in place of the buffers."""


WindowsT = TypeVar("WindowsT", bound=ServedWindows)


@explain_options
class BalancedWindows(Generic[WindowsT]):
    """A source that serves the windows of each series as often as the weight of the series says.

    Made by `Windows.balanced`. It shuffles itself: each epoch is another `BalancedEpoch`.

    Attributes
    ----------
    windows : Windows
    counts : int64 array of shape (series,)
        Windows of each series of the table in every epoch; read-only.
    blocks : (int64 array of shape (blocks + 1,), int), or None
        Offsets of blocks of windows that are dealt together, and the blocks of a group; None if all
        windows of an epoch are shuffled together.
    """

    supports_threads = True
    independent_rows = True

    def __init__(self, windows: WindowsT, balance: Balance, joined: bool = False) -> None:
        self.windows, self.balance, self._is_joined = windows, balance, joined
        self.counts, self.blocks = balance.series_counts, balance.blocks
        self._make()

    def _make(self) -> None:
        self._slots = _core.Cumulative(self.balance.counts)
        self._first = self.at_epoch(0, seed=0)

    def __len__(self) -> int:
        """Return the number of windows in an epoch, repeated ones included."""
        return int(self._slots.total)

    def at_epoch(self, epoch: int, /, *, seed: int) -> BalancedEpoch:
        """Return the source of one epoch. O(1)."""
        kind = _JoinedEpoch if self._is_joined else BalancedEpoch
        return kind(self, epoch, seed)

    @property
    def expect(self) -> Expect | None:
        """As `Windows.expect`: streams call `expect` of an epoch, and this to drop all groups."""
        return self.windows.expect

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
        with needs_torch("BalancedWindows.to"):
            from windeck.windows.device_balanced import DeviceBalancedWindows

        if self.blocks is not None:
            raise TypeError("windows that are dealt in blocks have no order on a device")
        if self.balance.cumulative is not None and str(device).startswith("mps"):
            raise TypeError(
                "`window_weights` are float64, which MPS lacks, expected another device"
            )
        return DeviceBalancedWindows(self, self.windows.to(device))

    def device_bytes(self) -> int:
        """Return the bytes that `to` takes on a device, at most; see `Windows.device_bytes`."""
        weights = 0 if self.balance.cumulative is None else self.balance.cumulative.nbytes
        return self.windows.device_bytes() + 8 * (3 * len(self.balance.counts) + 1) + weights

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`."""
        return self.windows.torch_dtypes

    @property
    def fingerprint(self) -> Fingerprint:
        """The fields of the windows, and a digest of the counts."""
        fields = {f"windows.{name}": v for name, v in self.windows.fingerprint.items()}
        blocks = {} if self.blocks is None else {"balanced.blocks": digest(*self.blocks)}
        if self.balance.cumulative is not None:
            blocks["balanced.window_weights"] = digest(self.balance.cumulative)
        if len(self.balance.counts) != len(self.counts):
            blocks["balanced.ages"] = digest(self.balance.counts, self.balance.starts)
        return {**fields, "balanced": digest(self.counts), **blocks}

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown; see `Windows.check_growth`."""
        self.windows.check_growth(larger.windows if isinstance(larger, BalancedWindows) else larger)

    def __repr__(self) -> str:
        return f"BalancedWindows({self.windows!r}, epoch_length={len(self)})"

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_slots", "_first")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make()


class BalancedEpoch:
    """The windows of one epoch, in the order in which they are served."""

    supports_threads = True

    def __init__(self, data: BalancedWindows[Any], epoch: int, seed: int) -> None:
        self._data, self._epoch, self._seed = data, epoch, seed
        self._windows: ServedWindows = data.windows
        self._slots, self._counts = data._slots, data.balance.counts
        self._starts, self._sizes = data.balance.starts, data.balance.sizes
        self._key = hash_words(seed, SERIES)
        self._shift = epoch_shift(seed, epoch)

    def __len__(self) -> int:
        return int(self._slots.total)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the windows: an epoch has no state of its own."""
        return self._windows.fingerprint

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`."""
        return self._windows.torch_dtypes

    @cached_property
    def _order(self) -> Permutation:
        return Permutation(len(self), seed=hash_words(self._seed, SLOTS), epoch=self._epoch)

    @cached_property
    def _dealt(self) -> _DealtBlocks:
        """The windows of the epoch by their blocks. O(series + blocks) time and memory."""
        return _DealtBlocks(self._data.balance, self._epoch, self._seed)

    def window_numbers(self, indices: Any) -> Int64:
        """Return the windows at some places of the epoch, numbered as in `Windows`."""
        if self._data.blocks is not None:
            return self._dealt.window_numbers(as_indices(indices), self._key)
        slots = self._order.take(as_indices(indices))
        series, within = self._slots.find(slots)
        if self._data.balance.cumulative is not None:
            # A window has the places within its quota. They move from epoch to epoch by the golden
            # ratio, so that its counts differ from its quota by less than 1 in any epoch.
            shifts = series.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(self._shift)
            places = slots + (shifts >> np.uint64(11)) * 2.0**-53
            # A sum that is rounded up would be a place of the next slot.
            places = np.minimum(places, np.nextafter(slots + 1.0, 0.0))
            numbers: Int64 = np.searchsorted(self._data.balance.cumulative, places, side="right")
            return numbers
        visits = within + self._epoch * self._counts.take(series)
        sizes = self._sizes.take(series)
        cycles, places = np.divmod(visits, sizes)
        found: Int64 = permute_keyed(sizes, series, cycles, places, seed=self._key)
        return found + self._starts.take(series)

    @property
    def expect(self) -> Expect | None:
        """The function that notes which places are next; None for a table in memory."""
        known = self._windows.expect
        if known is None or not self._data.balance.in_read_blocks:
            return None

        def expect(
            epochs: list[tuple[Order, Int64]], following: Callable[[], Order] | None
        ) -> None:
            after: Any = self
            if following is not None:
                after = self._data.at_epoch(self._epoch + 1, seed=self._seed)
            known(epochs, None if following is None else lambda: after, group_at)

        def group_at(order: object, place: int) -> tuple[int, int, tuple[int, ...]] | None:
            if not isinstance(order, (Sequential, BalancedEpoch)):
                return None
            epoch = order if isinstance(order, BalancedEpoch) else self
            return epoch._dealt.group_at(place)

        return expect

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch: row k of every array is the window at place ``indices[k]``."""
        return self._windows.gather(self.window_numbers(indices), out, threads)


class _DealtBlocks:
    """The windows of an epoch, sorted by the blocks that they begin in, and their order.

    A cell is the windows of one series in one block. A stretch is a cell, the number of its
    windows that were served before, and the number that the epoch serves.
    """

    def __init__(self, balance: Balance, epoch: int, seed: int) -> None:
        assert balance.blocks is not None
        offsets, blocks_in_group = balance.blocks
        borders = np.union1d(balance.starts, offsets)
        self._first, self._sizes = borders[:-1], np.diff(borders)
        series = np.searchsorted(balance.starts, self._first, side="right") - 1
        cells, before, counts = _stretches(
            balance, self._sizes, series, epoch, hash_words(seed, CELLS)
        )
        blocks = np.searchsorted(offsets, self._first, side="right") - 1
        order = np.argsort(blocks[cells], kind="stable")
        self._cells, self._before, counts = cells[order], before[order], counts[order]
        self._slots = _core.Cumulative(counts)
        #: Blocks with windows in the epoch, and the slots of each.
        self._blocks, first = np.unique(blocks[self._cells], return_index=True)
        ends = np.concatenate([[0], np.cumsum(counts)])
        self._offsets: Int64 = np.append(ends[first], ends[-1]).astype(np.int64)
        self._order = BlockPermutation(
            int(self._slots.total),
            block_offsets=self._offsets,
            blocks_in_buffer=blocks_in_group,
            seed=hash_words(seed, SLOTS),
            epoch=epoch,
        )

    def window_numbers(self, places: Int64, key: int) -> Int64:
        """Return the windows at some places of the epoch."""
        stretches, within = self._slots.find(self._order.take(places))
        cells = self._cells.take(stretches)
        sizes = self._sizes.take(cells)
        cycles, local = np.divmod(self._before.take(stretches) + within, sizes)
        found: Int64 = permute_keyed(sizes, cells, cycles, local, seed=key)
        return found + self._first.take(cells)

    def group_at(self, place: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Return start, end and ascending blocks of the group at a place."""
        found = block_group(self._order, self._offsets, place)
        if found is None:
            return None
        return found[0], found[1], tuple(self._blocks[found[2]].tolist())


def _stretches(
    balance: Balance, sizes: Int64, series_of: Int64, epoch: int, key: int
) -> tuple[Int64, Int64, Int64]:
    """Return cells, windows served before, and windows to serve, of an epoch.

    Cycle k of a series goes through its cells in the order of a `Permutation` of its own.
    """
    first = np.searchsorted(series_of, np.arange(len(balance.counts)))
    number = np.searchsorted(series_of, np.arange(len(balance.counts)), side="right") - first
    served = np.flatnonzero(balance.counts)
    starts = epoch * balance.counts[served]
    low = starts // balance.sizes[served]
    high = (starts + balance.counts[served] - 1) // balance.sizes[served]
    # Of one cell all cycles are one stretch.
    high = np.where(number[served] == 1, low, high)
    series = np.repeat(served, high - low + 1)
    cycles = _counted(low, high - low + 1)
    repeats = number[series]
    within = _counted(np.zeros_like(repeats), repeats)
    parents = np.repeat(np.arange(len(series)), repeats)
    series, cycles = series[parents], cycles[parents]
    order = permute_keyed(repeats[parents], series, cycles, within, seed=key)
    cells = first[series] + order
    # The places of each cell in the cycle, and those of the epoch.
    ends = np.cumsum(sizes[cells])
    begin = ends - sizes[cells]
    begin -= begin[np.cumsum(repeats) - repeats][parents]
    start = epoch * balance.counts[series] - cycles * balance.sizes[series]
    stop = start + balance.counts[series]
    whole = repeats[parents] == 1
    lowest = np.where(whole, start, np.maximum(start, begin))
    highest = np.where(whole, stop, np.minimum(stop, begin + sizes[cells]))
    live = lowest < highest
    before = cycles * sizes[cells] + lowest - begin
    return cells[live], before[live], (highest - lowest)[live]


def _counted(firsts: Int64, counts: Int64) -> Int64:
    """Return ``first, first + 1, ...`` for each pair of a first number and a count."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(firsts - ends + counts, counts)


class _JoinedEpoch(BalancedEpoch):
    """An epoch of windows that have buffers; see `Windows.joined`."""

    _windows: ServedJoinedWindows

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        return self._windows.gather_rows(self.window_numbers(indices), out, threads)

    def whole(self, rows: Batch) -> Batch:
        return {}

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        return self._windows.present(batch)
