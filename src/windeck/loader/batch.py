"""Arrays of a source -> tensors of a batch: without a copy, pinned, or on a device.

A tensor keeps its array alive, and that the buffer it lies in: memory returns to the pool when the
user's last tensor on it is gone.
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
from windeck.sources import Batch, Indices, gather_rows, present, whole

__all__ = ["Assembler", "Ready", "Tensors", "as_tensors", "can_pin", "gathered", "span"]
__all__ += ["target_device"]

Tensors = dict[str, torch.Tensor]


def span(name: str) -> contextlib.AbstractContextManager[Any]:
    """A span in torch's profiler; next to nothing while none runs.

    A profiler records the thread it was started in. To see the background thread's spans as
    well, give it ``_ExperimentalConfig(profile_all_threads=True)``.
    """
    # record_function alone costs some 15 microseconds, watched or not.
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", True):
        return torch.profiler.record_function(name)
    return contextlib.nullcontext()


def target_device(device: torch.device | str | None) -> torch.device | None:
    """The device, looked at before a thread would stumble over it.

    Raises
    ------
    RuntimeError
        For a CUDA device where torch sees none.
    """
    if device is None:
        return None
    target = torch.device(device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device={str(target)!r}, but torch sees no CUDA device here")
    return target


def can_pin(wanted: bool) -> bool:
    """Whether to pin: not without a GPU, where torch cannot and a warning says so."""
    if wanted and not torch.cuda.is_available():
        warnings.warn(
            "pin_memory=True, but torch sees no CUDA device here: batches are not pinned",
            UserWarning,
            stacklevel=3,
        )
        return False
    return wanted


def as_tensors(batch: Batch, bits: Mapping[str, str]) -> Tensors:
    """Tensors on the arrays of a batch, sharing their memory.

    Parameters
    ----------
    batch
        Arrays by key.
    bits
        Keys whose arrays are the bits of a type that NumPy lacks, such as
        ``{"past_target": "bfloat16"}``.

    Raises
    ------
    TypeError
        For what is no array, or one whose dtype torch does not have.
    ValueError
        For a read-only array: a batch is the user's, to be written to.
    """
    return {key: _as_tensor(key, array, bits.get(key)) for key, array in batch.items()}


def gathered(data: Any, indices: Indices, **extra: Any) -> Tensors:
    """One batch of a source or stream as tensors on its arrays, views made of tensors."""
    rows = gather_rows(data, indices, **extra)
    bits = getattr(data, "torch_dtypes", {})
    return present(data, as_tensors({**rows, **whole(data, rows)}, bits))


def _as_tensor(key: str, array: NDArray[Any], bits: str | None) -> torch.Tensor:
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"the source gave a value of type {type(array).__name__} for {key!r}; a batch is made "
            "of NumPy arrays"
        )
    if not array.flags.writeable:
        raise ValueError(
            f"the source gave a read-only array for {key!r}; a batch has to be writable memory "
            "of its own"
        )
    if bits is not None:
        return tensor_from_bits(array, bits)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"torch has no dtype for {key!r}, which is {array.dtype}") from None


@dataclass(frozen=True)
class Ready:
    """A batch that is made, and possibly still on its way to the device."""

    tensors: Tensors
    event: torch.cuda.Event | None = None

    def hand_over(self) -> Tensors:
        """The batch, for work that is queued on the current stream of the caller from now on."""
        if self.event is not None:
            for tensor in self.tensors.values():
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(self.event)
                # Their memory belongs to the side stream, which must not reuse it while
                # kernels of this stream may still read.
                tensor.record_stream(stream)
        return self.tensors


class Assembler:
    """Makes the batch of any positions of a stream.

    Parameters
    ----------
    stream
        A `windeck.sources.Stream`.
    threads
        For streams that compute in several threads; None leaves it to them.
    pin_memory
        Whether batches lie in page-locked memory of torch's allocator.
    device
        Where batches go; None leaves them in the host's memory.
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
        hands_on = threads is not None and getattr(stream, "supports_threads", False)
        self._extra: dict[str, Any] = {"threads": threads} if hands_on else {}
        self._device = device if device is not None and device.type != "cpu" else None
        on_cuda = self._device is not None and self._device.type == "cuda"
        self._side = _side_stream(self._device) if on_cuda else None
        self._pinned = _Pinned(stream, self._bits) if pin_memory or on_cuda else None

    def __call__(self, positions: Indices) -> Ready:
        with span("windeck.gather"):
            tensors = self._gather(positions)
        if self._device is None:
            return Ready(present(self._stream, tensors))
        with span("windeck.to_device"):
            return self._to_device(tensors, self._device)

    def _gather(self, positions: Indices) -> Tensors:
        """Rows and what is of the whole batch, on the host."""
        if self._pinned is not None:
            return self._pinned.gather(positions, self._extra)
        rows = gather_rows(self._stream, positions, **self._extra)
        return as_tensors({**rows, **whole(self._stream, rows)}, self._bits)

    def _to_device(self, tensors: Tensors, device: torch.device) -> Ready:
        if self._side is None:
            moved = {key: tensor.to(device) for key, tensor in tensors.items()}
            return Ready(present(self._stream, moved))
        with torch.cuda.stream(self._side):
            moved = {key: tensor.to(device, non_blocking=True) for key, tensor in tensors.items()}
            moved = present(self._stream, moved)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._side)
        # The pinned tensors may go now: their allocator waits for the copies itself.
        return Ready(moved, event)


def _side_stream(device: torch.device | None) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Pinned:
    """Gathers straight into page-locked memory, which torch's allocator keeps and reuses."""

    def __init__(self, stream: Any, bits: Mapping[str, str], *, pin: bool = True) -> None:
        self._stream = stream
        self._bits = bits
        self._pin = pin
        self._probed = False
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype, np.dtype[Any]]] | None = None

    def gather(self, positions: Indices, extra: Mapping[str, Any]) -> Tensors:
        """Rows, and what is said of the whole batch, which has no size known ahead."""
        if not self._probed:
            self._layout = self._probe()
            self._probed = True
        if self._layout is None:
            rows = gather_rows(self._stream, positions, **extra)
            return self._pin_copies({**rows, **whole(self._stream, rows)})
        tensors, out = {}, {}
        for key, (shape, torch_dtype, numpy_dtype) in self._layout.items():
            # On the host, whatever torch's default device may be.
            size = (len(positions), *shape)
            tensor = torch.empty(size, dtype=torch_dtype, device="cpu", pin_memory=self._pin)
            plain = tensor.view(torch.int16) if key in self._bits else tensor
            tensors[key], out[key] = tensor, plain.numpy().view(numpy_dtype)
        written = gather_rows(self._stream, positions, out, **extra)
        for key, array in out.items():
            if array.size and written[key].ctypes.data != array.ctypes.data:
                raise TypeError(
                    f"the source gave an array of its own for {key!r} instead of writing into "
                    "`out`, which pinned batches need"
                )
        return {**tensors, **self._pin_copies(whole(self._stream, out))}

    def _pin_copies(self, batch: Batch) -> Tensors:
        tensors = as_tensors(batch, self._bits)
        return {key: t.pin_memory() if self._pin else t for key, t in tensors.items()}

    def _probe(self) -> dict[str, tuple[tuple[int, ...], torch.dtype, np.dtype[Any]]] | None:
        """Shapes and dtypes, from a batch without rows; None where rows have no fixed size."""
        empty = gather_rows(self._stream, np.empty(0, np.int64))
        tensors = as_tensors(empty, self._bits)
        if any(array.shape[:1] != (0,) for array in empty.values()):
            return None
        return {
            key: (array.shape[1:], tensors[key].dtype, array.dtype) for key, array in empty.items()
        }
