"""Conversion of a source's arrays to batches of tensors: zero-copy, pinned, or on a device.

A tensor keeps its array and the array's buffer alive: the memory returns to the pool when the last
tensor on it is deleted.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from windeck.columns.dtypes import tensor_from_bits
from windeck.loader.visits import threads_option
from windeck.sources import Batch, Indices, gather_rows, present, whole

__all__ = [
    "BatchBuilder",
    "PendingBatch",
    "Tensors",
    "as_tensors",
    "check_device",
    "check_pin_memory",
    "gather_tensors",
    "profiler_span",
]

Tensors = dict[str, torch.Tensor]

#: Integers that hold the bits of a dtype that NumPy lacks, by bytes.
_SIGNED = {1: torch.int8, 2: torch.int16}


def profiler_span(name: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager that records a span in torch's profiler while one runs.

    A profiler records the thread in which it was started. With
    ``_ExperimentalConfig(profile_all_threads=True)`` it records the background thread as well.
    """
    # record_function takes some 15 microseconds, also while no profiler runs.
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", True):
        return torch.profiler.record_function(name)
    return contextlib.nullcontext()


def check_device(device: torch.device | str | None) -> torch.device | None:
    """Return the device, checked here so that a wrong one does not fail in a background thread.

    Raises
    ------
    RuntimeError
        For a CUDA device if torch finds none.
    """
    if device is None:
        return None
    target = torch.device(device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device={str(target)!r}, but torch finds no CUDA device")
    return target


def check_pin_memory(wanted: bool) -> bool:
    """Return `wanted`, or False with a warning if there is no GPU: torch cannot pin without one."""
    if wanted and not torch.cuda.is_available():
        warnings.warn(
            "pin_memory=True, but torch finds no CUDA device: batches are not pinned",
            UserWarning,
            stacklevel=3,
        )
        return False
    return wanted


def as_tensors(batch: Batch, bits: Mapping[str, str]) -> Tensors:
    """Return tensors that share the memory of a batch's arrays.

    Parameters
    ----------
    batch
        Arrays by key.
    bits
        Keys whose arrays hold the bits of a dtype that NumPy lacks, such as
        ``{"past_target": "bfloat16"}``.

    Raises
    ------
    TypeError
        For a value that is not an array, or an array whose dtype torch does not have.
    ValueError
        For a read-only array: users may write to a batch.
    """
    return {key: _as_tensor(key, array, bits.get(key)) for key, array in batch.items()}


def gather_tensors(data: Any, indices: Indices) -> Tensors:
    """Gather one batch of a source or stream as tensors, zero-copy."""
    rows = gather_rows(data, indices)
    bits = getattr(data, "torch_dtypes", {})
    return present(data, as_tensors({**rows, **whole(data, rows)}, bits))


def _as_tensor(key: str, array: NDArray[Any], bits: str | None) -> torch.Tensor:
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"the source returned a {type(array).__name__} for {key!r}; the values of a batch "
            "must be NumPy arrays"
        )
    if not array.flags.writeable:
        raise ValueError(
            f"the source returned a read-only array for {key!r}; the arrays of a batch must be "
            "new and writable"
        )
    if bits is not None:
        return tensor_from_bits(array, bits)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"{key!r} has dtype {array.dtype}, which torch does not have") from None


@dataclass(frozen=True)
class PendingBatch:
    """A batch whose copy to a device may not be finished."""

    tensors: Tensors
    event: torch.cuda.Event | None = None

    def wait(self) -> Tensors:
        """Return the tensors; work queued on the current CUDA stream from now on sees the copy."""
        if self.event is not None:
            for tensor in self.tensors.values():
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(self.event)
                # The memory belongs to the copy stream, which must not reuse it while
                # kernels of this stream may still read it.
                tensor.record_stream(stream)
        return self.tensors


class BatchBuilder:
    """Builds the batch of given positions of a stream.

    Parameters
    ----------
    stream
        A `windeck.sources.Stream`.
    threads
        Threads for streams that gather in several; None is the stream's default.
    pin_memory
        Whether batches are in page-locked memory of torch's allocator.
    device
        Device to copy batches to; None leaves them in host memory.
    """

    def __init__(
        self,
        stream: Any,
        *,
        threads: int | None = None,
        pin_memory: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self._stream = stream
        self._bits: Mapping[str, str] = getattr(stream, "torch_dtypes", {})
        self._extra = threads_option(stream, threads)
        self._device = device if device is not None and device.type != "cpu" else None
        on_cuda = self._device is not None and self._device.type == "cuda"
        self._copy_stream: torch.cuda.Stream | None = None
        if on_cuda:
            self._copy_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pinned = PinnedGather(stream, self._bits) if pin_memory or on_cuda else None

    def __call__(self, positions: Indices) -> PendingBatch:
        with profiler_span("windeck.gather"):
            tensors = self._gather(positions)
        if self._device is None:
            return PendingBatch(present(self._stream, tensors))
        with profiler_span("windeck.to_device"):
            return self._to_device(tensors, self._device)

    def _gather(self, positions: Indices) -> Tensors:
        """Gather the rows and the arrays of the whole batch, on the host."""
        if self._pinned is not None:
            return self._pinned.gather(positions, self._extra)
        rows = gather_rows(self._stream, positions, **self._extra)
        return as_tensors({**rows, **whole(self._stream, rows)}, self._bits)

    def _to_device(self, tensors: Tensors, device: torch.device) -> PendingBatch:
        if self._copy_stream is None:
            moved = {key: tensor.to(device) for key, tensor in tensors.items()}
            return PendingBatch(present(self._stream, moved))
        with torch.cuda.stream(self._copy_stream):
            moved = {key: tensor.to(device, non_blocking=True) for key, tensor in tensors.items()}
            moved = present(self._stream, moved)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._copy_stream)
        # The pinned tensors may be deleted now: their allocator waits for the copies.
        return PendingBatch(moved, event)


class PinnedGather:
    """Gathers directly into page-locked memory, which torch's allocator caches and reuses."""

    def __init__(self, stream: Any, bits: Mapping[str, str], *, pin: bool = True) -> None:
        self._stream = stream
        self._bits = bits
        self._pin = pin
        self._probed = False
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype, np.dtype[Any]]] | None = None

    def gather(self, positions: Indices, extra: Mapping[str, Any]) -> Tensors:
        """Gather the rows into pinned tensors; arrays of the whole batch are pinned by a copy."""
        if not self._probed:
            self._layout = self._probe()
            self._probed = True
        if self._layout is None:
            rows = gather_rows(self._stream, positions, **extra)
            return self._pin_copies({**rows, **whole(self._stream, rows)})
        tensors, out = {}, {}
        for key, (shape, torch_dtype, numpy_dtype) in self._layout.items():
            # On the host, also if torch's default device is another.
            size = (len(positions), *shape)
            tensor = torch.empty(size, dtype=torch_dtype, device="cpu", pin_memory=self._pin)
            plain = tensor.view(_SIGNED[numpy_dtype.itemsize]) if key in self._bits else tensor
            tensors[key], out[key] = tensor, plain.numpy().view(numpy_dtype)
        written = gather_rows(self._stream, positions, out, **extra)
        for key, array in out.items():
            if array.size and written[key].ctypes.data != array.ctypes.data:
                raise TypeError(
                    f"the source returned a new array for {key!r} instead of writing to `out`, "
                    "which pinned batches require"
                )
        return {**tensors, **self._pin_copies(whole(self._stream, out))}

    def _pin_copies(self, batch: Batch) -> Tensors:
        tensors = as_tensors(batch, self._bits)
        return {key: t.pin_memory() if self._pin else t for key, t in tensors.items()}

    def _probe(self) -> dict[str, tuple[tuple[int, ...], torch.dtype, np.dtype[Any]]] | None:
        """Return shapes and dtypes of rows from an empty batch; None if they have no fixed size."""
        empty = gather_rows(self._stream, np.empty(0, np.int64))
        tensors = as_tensors(empty, self._bits)
        if any(array.shape[:1] != (0,) for array in empty.values()):
            return None
        return {
            key: (array.shape[1:], tensors[key].dtype, array.dtype) for key, array in empty.items()
        }
