"""Batches of sources on a device: order and gather by torch operations there, without NumPy.

The order of many positions is evaluated at once, and the following batches use it. So a batch takes
the operations of the gather alone, and the kernels of the order are started, and waited for, once
for `POSITIONS_AT_A_TIME` positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from windeck._core import Permutation
from windeck.device_orders import DevicePermutation
from windeck.loader.batch import BatchGroup, Tensors, in_span
from windeck.loader.mixture import Mixture
from windeck.loader.sharding import Sharding
from windeck.loader.stream import Stream
from windeck.orders import Sequential
from windeck.sources import Indices, Order
from windeck.sources import Stream as StreamProtocol
from windeck.sources.members import DeviceMethods, other_rows

__all__ = ["DeviceBatchBuilder", "DeviceOrder", "builder_on_device"]

#: Positions whose samples are computed together.
POSITIONS_AT_A_TIME = 1 << 16


class DeviceOrder:
    """The samples of an order, as tensors on a device.

    `Permutation` and `Sequential` are computed there. Other orders are computed on the host, and
    their samples copied; so are permutations of few samples, which the host has in a table.
    """

    def __init__(self, order: Order, device: torch.device) -> None:
        self._order, self._device = order, device
        self._permutation = None
        if isinstance(order, Permutation):
            self._permutation = DevicePermutation(order, device)

    def slice(self, start: int, stop: int) -> torch.Tensor:
        """Return the samples at places [start, stop) of the epoch."""
        if self._permutation is None and not isinstance(self._order, Sequential):
            return torch.tensor(self._order.slice(start, stop), device=self._device)
        places = torch.arange(start, stop, device=self._device)
        return places if self._permutation is None else self._permutation.take(places)

    def take(self, places: Indices) -> torch.Tensor:
        """Return the samples at some places of the epoch."""
        if self._permutation is None:
            return torch.tensor(self._order.take(places), device=self._device)
        return self._permutation.take(torch.tensor(places, device=self._device))


class DeviceBatchBuilder:
    """Builds the batch of given positions of a stream whose sources are on a device."""

    #: Batches are made one by one: each is a few operations on the device.
    makes_groups = False
    #: Batches are not copied to another device.
    target_device: torch.device | None = None

    def __init__(self, stream: StreamProtocol, device: torch.device) -> None:
        self._rows = _rows_of(stream, device)
        methods = next(_device_methods(stream))
        assert methods is not None
        self._methods = methods

    def in_epoch(
        self, sharding: Sharding, rank: int, position: int
    ) -> Callable[[int, int], BatchGroup]:
        """Return a function as that of `windeck.loader.batch.BatchBuilder.in_epoch`."""
        return lambda start, count: self(sharding.positions_of_steps(start, rank, range(count)))

    def __call__(self, positions: Indices) -> BatchGroup:
        """Build the batch of the positions."""
        return BatchGroup([in_span("windeck.gather", self._gather, positions)], 0)

    def _gather(self, positions: Indices) -> Tensors:
        rows, methods = self._rows(positions), self._methods
        if methods.whole is not None:
            rows = {**rows, **methods.whole(rows)}
        return rows if methods.present is None else methods.present(rows)


class _StreamRows:
    """The rows of a `windeck.Stream`, as tensors on a device."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self._stream, self._device = stream, device
        self._order: tuple[int, DeviceOrder] | None = None
        #: Epoch, first place, place after the last one, samples of the source or of its `base`.
        self._ahead: tuple[int, int, int, torch.Tensor] | None = None

    def __call__(self, positions: Indices) -> Tensors:
        parts: list[Tensors] = []
        for _, epoch, places in self._stream._epochs.split(positions):
            tensors = self._methods_at(epoch).gather(self._samples(epoch, places))
            for key, tensor in tensors.items():
                if tensor.shape[:1] != (len(places),):
                    raise other_rows(key, tensor.shape, len(places))
            parts.append(tensors)
        if len(parts) == 1:
            return parts[0]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def _samples(self, epoch: int, places: Indices) -> torch.Tensor:
        if not len(places):
            return torch.empty(0, dtype=torch.int64, device=self._device)
        start, stop = int(places[0]), int(places[-1]) + 1
        if stop - start != len(places) or (np.diff(places) != 1).any():
            return self._in_base(epoch, self._order_at(epoch).take(places))
        ahead = self._ahead
        if ahead is None or ahead[0] != epoch or start < ahead[1] or stop > ahead[2]:
            order = self._stream.order_at(epoch)
            end = min(start + max(POSITIONS_AT_A_TIME, len(places)), len(order))
            samples = self._in_base(epoch, self._order_at(epoch).slice(start, end))
            ahead = epoch, start, end, samples
            self._ahead = ahead
        return ahead[3][start - ahead[1] : stop - ahead[1]]

    def _in_base(self, epoch: int, samples: torch.Tensor) -> torch.Tensor:
        """Return samples of an epoch's source as samples of its `base`, if it has one."""
        in_base = self._methods_at(epoch).in_base
        found: torch.Tensor = samples if in_base is None else in_base(samples)
        return found

    def _methods_at(self, epoch: int) -> DeviceMethods:
        methods = self._stream._epochs.source_at(epoch).on_device
        if methods is None:
            raise TypeError(f"the source of epoch {epoch} is not on a device, expected one on it")
        return methods

    def _order_at(self, epoch: int) -> DeviceOrder:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, DeviceOrder(self._stream.order_at(epoch), self._device)
        return self._order[1]


class _MixtureRows:
    """The rows of a `windeck.Mixture`: each part is called once, for all of its rows."""

    def __init__(self, mixture: Mixture, device: torch.device) -> None:
        self._mixture, self._device = mixture, device
        live = enumerate(mixture.parts.values())
        self._parts = {index: _rows_of(part, device) for index, part in live if part is not None}

    def __call__(self, positions: Indices) -> Tensors:
        part, numbers = self._mixture.locate(positions)
        served = np.unique(part).tolist() or [min(self._parts)]
        batch: Tensors = {}
        for index in served:
            self._mixture._stream(index)  # Raises for a part that is retired.
            rows = np.flatnonzero(part == index)
            tensors = self._parts[index](numbers[rows])
            if len(served) == 1:
                return tensors
            places = torch.tensor(rows, device=self._device)
            for key, tensor in tensors.items():
                if key not in batch:
                    batch[key] = tensor.new_empty((len(part), *tensor.shape[1:]))
                batch[key].index_copy_(0, places, tensor)
        return batch


def _rows_of(stream: StreamProtocol, device: torch.device) -> _StreamRows | _MixtureRows:
    if isinstance(stream, Mixture):
        return _MixtureRows(stream, device)
    if isinstance(stream, Stream):
        return _StreamRows(stream, device)
    raise TypeError(
        f"a stream on a device must be a windeck.Stream or a Mixture, got {type(stream).__name__}"
    )


def _device_methods(stream: StreamProtocol) -> Iterator[DeviceMethods | None]:
    """Yield the methods of the first source of every stream that a stream is made of.

    None for those of a source in host memory.
    """
    if isinstance(stream, Mixture):
        for part in stream.parts.values():
            if part is not None:
                yield from _device_methods(part)
    else:
        yield stream._first.on_device if isinstance(stream, Stream) else None


def builder_on_device(
    stream: StreamProtocol, device: torch.device | None, pin_memory: bool
) -> DeviceBatchBuilder | None:
    """Return the builder for a stream whose sources are on a device; None for any other stream.

    Raises
    ------
    ValueError
        For another `device` than that of the source, for `pin_memory`, and for a mixture whose
        parts are not all on one device.
    """
    devices: set[torch.device | None] = {
        None if methods is None else methods.device for methods in _device_methods(stream)
    }
    if devices == {None}:
        return None
    if len(devices) > 1:
        names = " and ".join(sorted(str(one or "host memory") for one in devices))
        raise ValueError(f"the parts of the mixture are on {names}, expected one device")
    own = devices.pop()
    assert own is not None
    # A device without an index, such as "cuda", is any of its type.
    if device not in (None, own, torch.device(own.type)):
        raise ValueError(f"`device` is {str(device)!r}, expected {str(own)!r}, as the source")
    if pin_memory:
        raise ValueError(f"`pin_memory` is True, expected False: the source is on {str(own)!r}")
    return DeviceBatchBuilder(stream, own)
