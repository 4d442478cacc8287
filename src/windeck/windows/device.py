"""Windows on a device: the batches of `Windows.gather` as tensors, made by torch operations there.

A value of a batch depends on its row alone: the cast, the scaling and the fill of missing values
are the same in every window. So the native gather makes them once, row by row, on the way to the
device. A batch then takes the lookup of its start rows, one ``index_select`` for each key, and the
comparisons for steps outside the series. No float is computed on the device: batches have the bits
of the native gather on every device, and under `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from windeck import _core
from windeck._util.indices import Int64, as_indices
from windeck.columns.device import as_bits, check_room, empty_bits, resolve_device
from windeck.columns.dtypes import Array, Bits, Bools, torch_dtype
from windeck.sources import Fingerprint, Source
from windeck.sources.members import BatchMethods
from windeck.windows.batch_spec import (
    INDEX_KEYS,
    BatchGatherer,
    BatchKey,
    BatchKeys,
    GatherFields,
)
from windeck.windows.device_balanced import DeviceBalancedWindows, HostBalancedWindows
from windeck.windows.device_layout import DeviceLayout
from windeck.windows.index import WindowSpan
from windeck.windows.subset import WindowSelection
from windeck.windows.window_set import WindowSet

__all__ = ["DeviceWindows"]

# Values that are converted at a time.
VALUES_AT_A_TIME = 1 << 22

# Rows of a series that are converted as one window, at most.
_MOST_ROWS = 4096

# Devices that read overlapping rows of a view in place. MPS would copy the view.
STRIDED = ("cpu", "cuda")

# Bits of a bitmap for which one cumulative count is kept.
_BITS = 64


class HostWindows(Source, Protocol):
    """`Windows` in host memory, with the methods that windows on a device call."""

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown."""

    def balanced(
        self, weights: Any = None, *, epoch_length: int | None, half_life: Any
    ) -> HostBalancedWindows:
        """Return a source that serves each series in proportion to a weight."""

    def to(self, device: Any) -> DeviceWindows[Any]:
        """Return these windows as a source on a device."""


WindowsT = TypeVar("WindowsT", bound=HostWindows)


class DeviceWindows(Generic[WindowsT]):
    """The windows of `Windows.to`: a source whose batches are tensors on a device.

    Attributes
    ----------
    windows : Windows
        The windows in host memory. Their methods answer questions, make subsets and splits, and
        give NumPy arrays.
    device : torch.device
    nbytes : int
        Bytes on the device. Other windows may share the columns.
    """

    def __init__(self, windows: WindowsT, made_of: WindowSet, device: torch.device | str) -> None:
        # Methods of the windows are called, not those of the set: a derived class may have its own.
        self.windows = windows
        self.device = resolve_device(device)
        layout = _DeviceColumns(made_of)
        _check_dtypes(made_of.keys, self.device)
        self._index_keys = made_of.keys.index
        missing = sum(
            layout.bytes_of(key) for key in layout.groups if layout.find(key, self.device) is None
        )
        check_room("the windows", missing + layout.index_bytes, self.device)
        self._methods = BatchMethods.of(windows)
        # They stay in the cache as long as this object.
        self._rows = {key: layout.rows(key, self.device) for key in layout.groups}
        self._keys = [
            _DeviceKey(key, self._rows[layout.group_of(key)], made_of.spec.span, self.device)
            for key in layout.keys
        ]
        self._make_index(made_of.selection)
        self.nbytes = sum(rows.nbytes for rows in self._rows.values()) + layout.index_bytes

    def _make_index(self, selection: WindowSelection) -> None:
        runs, device = selection.runs, self.device
        borders = np.concatenate([[0], np.cumsum(runs.count)])
        self._stride = runs.stride
        # Window number j of all candidates starts at row origin + j * stride of its window run;
        # where a product leaves 64 bits, so does the sum, and the result is right.
        with np.errstate(over="ignore"):
            self._origin = torch.from_numpy(runs.first - borders[:-1] * runs.stride).to(device)
        self._borders = torch.from_numpy(borders).to(device)
        self._series = torch.from_numpy(runs.series.copy()).to(device)
        self._keep = None
        if selection.keep is not None:
            self._keep = _KeptNumbers(selection.keep, runs.total, device)
        self._low = self._high = None
        if any(key.steps is not None for key in self._keys):
            offsets = torch.from_numpy(selection.offsets.copy()).to(device)
            self._low, self._high = offsets[:-1], offsets[1:]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the windows: states of either source resume with the other."""
        return self.windows.fingerprint

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown; see `Windows.check_growth`."""
        self.windows.check_growth(larger.windows if isinstance(larger, DeviceWindows) else larger)

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return a batch of no rows, as arrays; raise a TypeError for any other one.

        Batches of this source are tensors, made by `gather_tensors`.
        """
        if not len(as_indices(indices)):
            return self.windows.gather(indices, out)
        raise TypeError(
            f"windows on {self.device} give tensors, not NumPy arrays: expected a Loader over "
            "them, `gather_tensors`, or the windows in host memory, which are `.windows`"
        )

    def gather_tensors(self, samples: Any) -> dict[str, torch.Tensor]:
        """Return a batch: row k of every tensor is window ``samples[k]``.

        Parameters
        ----------
        samples
            int64 tensor of shape (batch,) on the device; or other integers, which are copied there.

        Returns
        -------
        dict of tensors
            On the device, contiguous, with the keys, dtypes, shapes and bits of `Windows.gather`.
            Of `Windows.joined` they are views of buffers. O(batch * steps) time, and O(log series)
            for each window.

        Raises
        ------
        IndexError
            For a number outside ``[0, len)``; CUDA reports it as a device-side assertion.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(8)}, offsets=[0, 5, 8])
        >>> w = wd.Windows(table, context_length=2, prediction_length=1).to("cpu")
        >>> w.gather_tensors([0, 3])["past_target"][:, :, 0]
        tensor([[0, 1],
                [5, 6]])
        """
        return self.present(self.gather_row_tensors(samples))

    def present(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a batch as `present` of the windows in host memory does, if they have it."""
        return self._methods.presented(batch)

    def gather_row_tensors(self, samples: Any) -> dict[str, torch.Tensor]:
        """Return a batch before `present`."""
        if not isinstance(samples, torch.Tensor):
            samples = torch.from_numpy(as_indices(samples)).to(self.device)
        series, start = self._locate(samples)
        low = high = None
        if self._low is not None and self._high is not None:
            low = self._low.index_select(0, series)[:, None]
            high = self._high.index_select(0, series)[:, None]
        batch = {}
        for key in self._keys:
            values, mask = key.gather(series, start, low, high)
            batch[key.name] = values
            if mask is not None:
                batch[f"{key.name}_mask"] = mask
        index = {"series_id": series, "start": start}
        return {**batch, **{name: index[name] for name in self._index_keys}}

    def balanced(
        self, weights: Any = None, *, epoch_length: int | None = None, half_life: Any = None
    ) -> DeviceBalancedWindows:
        """Return a source that serves each series in proportion to a weight, on the same columns.

        Parameters, errors, batches and states are those of `Windows.balanced`.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(12.0)}, offsets=[0, 9, 12])
        >>> source = wd.Windows(table, context_length=2).to("cpu").balanced()
        >>> batch = next(iter(wd.Loader(source, batch_size=10)))
        >>> batch["series_id"].bincount()
        tensor([5, 5])
        """
        return DeviceBalancedWindows(
            self.windows.balanced(weights, epoch_length=epoch_length, half_life=half_life), self
        )

    def _locate(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return series and start rows of windows."""
        numbers = samples if self._keep is None else self._keep.numbers(samples)
        # -1 for a negative number, which `index_select` refuses.
        run = torch.searchsorted(self._borders, numbers, right=True) - 1
        start = self._origin.index_select(0, run) + numbers * self._stride
        return self._series.index_select(0, run), start

    def __repr__(self) -> str:
        return f"{self.windows!r} on {self.device}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _move_again, (self.windows, str(self.device))


def _move_again(windows: HostWindows, device: str) -> DeviceWindows[Any]:
    return windows.to(device)


def _check_dtypes(keys: BatchKeys, device: torch.device) -> None:
    """Raise a TypeError for a dtype that the device does not have."""
    for key in keys.chosen:
        if device.type == "mps" and key.dtype == "float64":
            raise TypeError(
                f"{key.name} is float64, which {device} does not have; expected windows with "
                "dtype='float32'"
            )


# --- start rows ------------------------------------------------------------------------------


class _KeptNumbers:
    """The numbers of windows that a bitmap keeps, found by cumulative counts of 64 bits."""

    def __init__(self, keep: Bits, total: int, device: torch.device) -> None:
        words = total // _BITS + 1
        bits = np.zeros(8 * words, np.uint8)
        bits[: len(keep)] = keep
        bits[total // 8] &= (1 << total % 8) - 1  # Bits after the end do not count.
        bits[total // 8 + 1 :] = 0
        ones = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
        counts = ones[bits].reshape(words, 8).sum(axis=1, dtype=np.int64)
        self._bits = torch.from_numpy(bits.reshape(words, 8)).to(device)
        self._borders = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(device)
        self._places = torch.arange(8, dtype=torch.uint8, device=device)

    def numbers(self, ranks: torch.Tensor) -> torch.Tensor:
        """Return the number of the window with a rank among those kept."""
        word = torch.searchsorted(self._borders, ranks, right=True) - 1
        within = ranks - self._borders.index_select(0, word)
        bits = (self._bits.index_select(0, word)[:, :, None] >> self._places) & 1
        ones = bits.view(-1, _BITS).cumsum(1, dtype=torch.int64)
        return word * _BITS + (ones <= within[:, None]).sum(1)


# --- the keys of a batch ---------------------------------------------------------------------


class _DeviceKey:
    """One key of a batch, and its mask."""

    def __init__(
        self, key: BatchKey, rows: _DeviceRows, span: WindowSpan, device: torch.device
    ) -> None:
        dilation, channels = span.dilation, len(key.columns)
        parts = [first + dilation * np.arange(count) for first, count in key.step_spans]
        steps: Int64 = np.concatenate(parts)
        self.name = key.name
        self._dtype = torch_dtype(key.dtype)
        self._has_mask, self._by_series = key.mask, key.static
        self._shape: tuple[int, ...] = {
            "btc": (len(steps), channels),
            "bct": (channels, len(steps)),
            "bt": (len(steps),),
            "bc": (channels,),
            "b": (),
        }[key.layout]
        self._fill = as_bits(_fill_of(key)).to(device)
        #: Steps of a key that may lie outside its series.
        self.steps = torch.from_numpy(steps).to(device) if key.padded else None
        self._channel_axis = {"btc": 2, "bct": 1}.get(key.layout)
        # Row k of the batch is made of the rows `base[k] * factor + offsets` of a view.
        width, unit, self._factor, offsets = rows.lookups(steps, key.static)
        self._offsets = torch.from_numpy(offsets).to(device)
        self._values = _rows_view(rows.values, width, unit)
        self._observed = None
        if key.mask and rows.observed is not None:
            self._observed = _rows_view(rows.observed, width, unit)

    def gather(
        self,
        series: torch.Tensor,
        start: torch.Tensor,
        low: torch.Tensor | None,
        high: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the values and the mask of windows."""
        base = series if self._by_series else start
        index = (base[:, None] * self._factor + self._offsets).view(-1)
        shape = (len(base), *self._shape)
        values = self._values.index_select(0, index).view(shape)
        mask = None
        if self._observed is not None:
            mask = self._observed.index_select(0, index).view(shape)
        if self.steps is not None and low is not None and high is not None:
            rows = start[:, None] + self.steps
            inside = (rows >= low) & (rows < high)
            if self._channel_axis is not None:
                inside = inside.unsqueeze(self._channel_axis)
            values = torch.where(inside, values, self._fill)
            if self._has_mask:
                mask = inside.expand(shape).contiguous() if mask is None else mask & inside
        elif self._has_mask and mask is None:
            mask = torch.ones(shape, dtype=torch.bool, device=start.device)
        return values.view(self._dtype), mask


def _rows_view(values: torch.Tensor, width: int, unit: int) -> torch.Tensor:
    """Return a view of shape (n, width) whose rows begin `unit` values apart, and may overlap."""
    count = max((values.numel() - width) // unit + 1, 0) if unit else 0
    return values.as_strided((count, width), (unit, 1))


def _fill_of(key: BatchKey) -> Array:
    """Return the value of missing elements, rounded by the native gather."""
    column = _core.Column(np.zeros(1), name="fill")
    outside = _core.WindowIndex(np.ones(1, np.int64), np.ones(1, np.int64), 1)
    field = _core.Field(
        "fill", [column], step_spans=[(0, 1)], dtype=key.dtype, layout="bt", fill=key.fill
    )
    gather = _core.Gather(outside, np.array([0, 1, 1]), [field])
    found: Array = gather.gather(np.zeros(1, np.int64))["fill"].reshape(())
    return found


# --- columns on the device -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _DeviceRows:
    """The values of some columns in every row, as batches have them, on a device.

    Attributes
    ----------
    values
        Signed integers with the bits of the values: of shape (rows, channels), or (channels, rows).
        Of static columns there is one row for each series.
    observed
        bool of the same shape; None where no value is missing, or no mask is wanted.
    masked
        Whether masks are wanted.
    front, back
        Rows before the first row and after the last one of the table, for windows with padding.
    kept
        The objects whose identities are in the key of the cache.
    """

    values: torch.Tensor
    observed: torch.Tensor | None
    masked: bool
    channels_first: bool
    front: int
    back: int
    kept: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        masks = 0 if self.observed is None else self.observed.nbytes
        return int(self.values.nbytes + masks)

    def lookups(self, steps: Int64, static: bool) -> tuple[int, int, int, Int64]:
        """Return width and unit of a view of rows, and the factor and the offsets of its indices.

        Adjacent steps are one row of the view, which torch copies as a whole. Elsewhere every value
        is a row.
        """
        axis = 0 if self.channels_first else 1
        channels, rows = self.values.shape[axis], self.values.shape[1 - axis]
        if static:
            return channels, channels, 1, np.zeros(1, np.int64)
        places = steps + self.front
        adjacent = bool((np.diff(steps) == 1).all()) and self.values.device.type in STRIDED
        if self.channels_first:
            firsts = np.arange(channels)[:, None] * rows
            if adjacent:
                return len(steps), 1, 1, (firsts + places[0]).ravel()
            return 1, 1, 1, (firsts + places).ravel()
        if adjacent:
            return len(steps) * channels, channels, 1, places[:1]
        return 1, 1, channels, (places[:, None] * channels + np.arange(channels)).ravel()


#: Columns on devices that some `DeviceWindows` hold.
_moved: WeakValueDictionary[tuple[Any, ...], _DeviceRows] = WeakValueDictionary()


class _DeviceColumns(DeviceLayout):
    """The columns that windows need on a device, converted and copied where they are missing."""

    def find(self, group: BatchKey, device: torch.device) -> _DeviceRows | None:
        """Return the columns of a column group if they are on the device already."""
        found = _moved.get(self._cache_key(group, device))
        if found is None or found.front < self.front or found.back < self.back:
            return None
        if self.has_masks(group) and not found.masked:
            return None
        return found

    def rows(self, group: BatchKey, device: torch.device) -> _DeviceRows:
        """Return the columns of a column group on the device."""
        found = self.find(group, device)
        if found is None:
            found = self._move(group, device)
            _moved[self._cache_key(group, device)] = found
        return found

    def _kept(self) -> tuple[Any, ...]:
        made_of = self.windows
        return made_of.table, made_of.spec.scaler, made_of.spec.categories

    def _cache_key(self, group: BatchKey, device: torch.device) -> tuple[Any, ...]:
        identities = tuple(map(id, self._kept()))
        options = group.columns, group.layout, group.static, group.dtype, repr(group.fill)
        return (*identities, *options, str(device))

    def _move(self, group: BatchKey, device: torch.device) -> _DeviceRows:
        """Convert all rows of the columns of a column group, some at a time, and copy them."""
        table, channels = self.windows.table, len(group.columns)
        front, back = (0, 0) if group.static else (self.front, self.back)
        total = (table.num_series if group.static else table.num_rows) + front + back
        channels_first = group.layout == "bct" and not group.static
        shape = (channels, total) if channels_first else (total, channels)
        values = empty_bits(shape, group.dtype, device)
        observed = None
        # Rows outside the table are replaced in every batch; defined values all the same.
        values.zero_()
        for rows, converted, seen in self._converted(group):
            place: Any = (slice(None), rows) if channels_first else rows
            values[place] = _oriented(as_bits(converted), channels_first).to(device)
            if seen is None or (observed is None and seen.all()):
                continue
            if observed is None:
                observed = torch.ones(shape, dtype=torch.bool, device=device)
            observed[place] = _oriented(torch.from_numpy(seen), channels_first).to(device)
        masked = self.has_masks(group)
        return _DeviceRows(values, observed, masked, channels_first, front, back, self._kept())

    def _converted(self, group: BatchKey) -> Iterator[tuple[Any, Array, Bools | None]]:
        """Yield rows of the tensors, and their values and presence, of shape (rows, channels).

        Each series is split into windows of adjacent rows, with as many rows as most series have.
        """
        table, spec = self.windows.table, self.windows.spec
        begin, lengths = table.offsets[:-1], np.diff(table.offsets)
        if group.static:
            lengths = np.minimum(lengths, 1)  # Of a series without rows nothing is read.
        mean = int(lengths.sum()) // max(len(lengths), 1)
        step = 1 if group.static else min(max(mean, 1), _MOST_ROWS)
        index = _core.WindowIndex(begin, -(-lengths // step), step)
        masked = self.has_masks(group)
        key = replace(group, step_spans=((0, step),), layout="btc", static=False, mask=masked)
        selection = replace(self.windows.selection, span=WindowSpan(step))
        fields = GatherFields(selection, table, spec, [key], INDEX_KEYS)
        gatherer = BatchGatherer(index, fields, table, self.columns)
        some = max(VALUES_AT_A_TIME // (step * len(group.columns)), 1)
        for at in range(0, len(index), some):
            numbers = np.arange(at, min(at + some, len(index)), dtype=np.int64)
            batch = gatherer.gather(numbers, None, _core.default_threads())
            left = table.offsets[batch["series_id"] + 1] - batch["start"]
            inside = np.arange(step) < left[:, None]
            found = [batch[name][inside] for name in ("rows", "rows_mask") if name in batch]
            first = int(batch["start"][0]) + self.front
            rows: Any = slice(first, first + len(found[0]))
            if group.static:
                rows = torch.from_numpy(batch["series_id"])
            yield rows, found[0], found[1] if masked else None


def _oriented(rows: torch.Tensor, channels_first: bool) -> torch.Tensor:
    return rows.t() if channels_first else rows
