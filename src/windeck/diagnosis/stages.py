"""Stages of making a batch, each timed alone: of a DataLoader of torch, and of `windeck.Loader`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from windeck.diagnosis.measurements import Stage, Usage
from windeck.diagnosis.processes import thread_usage
from windeck.diagnosis.subjects import is_torch_loader, is_windeck_loader

if TYPE_CHECKING:
    from windeck.loader.loader import Loader
    from windeck.sources import Indices

__all__ = ["StageTimer", "measure_stages"]


class StageTimer:
    """Sums of the time and the use of named stages."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._usage: dict[str, Usage] = {}

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function and add what it used to a stage; return its result."""
        before, began = thread_usage(), time.perf_counter()
        result = function(*arguments)
        took = time.perf_counter() - began
        self._seconds[name] = self._seconds.get(name, 0.0) + took
        used = thread_usage().plus(before, -1)
        self._usage[name] = self._usage.get(name, Usage()).plus(used)
        return result

    def stages(self, batches: int) -> tuple[Stage, ...]:
        """Return the stages, for each of a number of batches."""
        return tuple(
            Stage(
                name,
                seconds / batches,
                used.cpu_seconds / batches,
                used.major_faults / batches,
                None if used.read_bytes is None else used.read_bytes / batches,
            )
            for name, seconds in self._seconds.items()
            for used in [self._usage[name]]
        )


def measure_stages(
    loader: Any, *, seconds: float, samples: int, most: int = 50
) -> tuple[Stage, ...]:
    """Measure the stages of a loader's batches in this thread, for some seconds.

    `samples` is the size of a batch where the loader does not say it.

    Known are ``samples`` and ``collate`` of a `DataLoader` over a map-style dataset, and ``order``,
    ``gather``, ``tensors`` and ``device`` of a `windeck.Loader`. Others have none.

    Notes
    -----
    Items of the dataset are read at random if the loader shuffles, else from the first on. The
    first batch is not counted: what is opened on first use is opened then. The loader's own
    position does not move.
    """
    if is_windeck_loader(loader):
        make = _windeck_batch(loader)
    elif is_torch_loader(loader) and loader.batch_sampler is not None and _has_items(loader):
        make = _torch_batch(loader, samples)
    else:
        return ()
    make(StageTimer(), 0)
    timer, end, done = StageTimer(), time.perf_counter() + seconds, 0
    while done < most and (not done or time.perf_counter() < end):
        done += 1
        make(timer, done)
    return timer.stages(done)


def _has_items(loader: Any) -> bool:
    data = sys.modules["torch.utils.data"]
    sized = hasattr(loader.dataset, "__len__") and len(loader.dataset) > 0
    return sized and not isinstance(loader.dataset, data.IterableDataset)


def _torch_batch(loader: Any, samples: int) -> Callable[[StageTimer, int], None]:
    """Return a function that makes the batch of a number, as a worker does."""
    dataset, count = loader.dataset, len(loader.dataset)
    known = getattr(loader.batch_sampler, "batch_size", None)
    size = known if isinstance(known, int) else loader.batch_size or samples
    in_order = isinstance(loader.sampler, sys.modules["torch.utils.data"].SequentialSampler)
    rng = random.Random(7)

    def items(indices: list[int]) -> Any:
        if hasattr(dataset, "__getitems__"):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]

    def make(timer: StageTimer, number: int) -> None:
        if in_order:
            indices = [index % count for index in range(number * size, (number + 1) * size)]
        else:
            indices = [rng.randrange(count) for _ in range(size)]
        found = timer.call("samples", items, indices)
        timer.call("collate", loader.collate_fn, found)

    return make


def _windeck_batch(loader: Loader) -> Callable[[StageTimer, int], None]:
    """Return a function that makes the batch of a number after the loader's position."""
    from windeck.diagnosis.loops import synchronize
    from windeck.loader.batch import as_tensors
    from windeck.loader.device import DeviceBatchBuilder
    from windeck.loader.stream import Stream

    stream, size, build = loader._members, loader.batch_size, loader._build_batch
    length, device = stream.epoch_length, build.target_device
    # A source that shuffles inside has a copy of itself for each epoch, which the stream knows.
    source = loader.stream._plain_source if isinstance(loader.stream, Stream) else None
    methods = stream.methods if source is None else source.methods

    def positions_of(number: int) -> Indices:
        positions = loader.position + number * size + np.arange(size, dtype=np.int64)
        if length is not None:  # the present epoch, whose order and files are open
            positions = loader.position // length * length + positions % length
        return positions

    def make(timer: StageTimer, number: int) -> None:
        positions = positions_of(number)
        if source is not None:
            positions = timer.call("order", stream.samples, positions)
        rows = timer.call("gather", methods.gather_rows, positions)
        bits = stream.methods.torch_dtypes
        tensors = timer.call(
            "tensors", lambda: as_tensors({**rows, **methods.whole_arrays(rows)}, bits)
        )
        if device is not None:
            timer.call("device", _copy, tensors, device)

    def gather_on_device(number: int) -> None:
        build(positions_of(number))
        synchronize()

    def make_on_device(timer: StageTimer, number: int) -> None:
        # With the order, whose samples are computed there for many batches at a time.
        timer.call("gather", gather_on_device, number)

    return make_on_device if isinstance(build, DeviceBatchBuilder) else make


def _copy(tensors: Any, device: Any) -> Any:
    from windeck.diagnosis.loops import synchronize

    moved = {key: tensor.to(device) for key, tensor in tensors.items()}
    synchronize()
    return moved
