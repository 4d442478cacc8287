"""Tensors as chunks of bytes: their elements in row-major order, cut at equal sizes.

The bytes are those of the elements in memory, little-endian, so every dtype is preserved exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windeck.checkpoint.format.boxes import (
    Box,
    boxes_in_range,
    intersections,
    shape_of,
    shift_back,
    slices,
)

__all__ = ["MIN_CHUNKS", "MIN_CHUNK_BYTES", "check_plain", "chunk_bytes_of", "chunk_elements"]
__all__ += ["is_plain", "iter_chunks", "read_elements", "wait_for_device", "write_chunk"]


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise TypeError unless a tensor is a dense torch.Tensor with data."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{name} is a {type(tensor).__name__}, expected a plain torch.Tensor")
    kinds = {
        "meta": tensor.is_meta,
        "quantized": tensor.is_quantized,
        "nested": tensor.is_nested,
        "sparse": tensor.layout is not torch.strided,
        "symbolic zero": tensor._is_zerotensor(),  # has no memory: made by some derivatives
    }
    for kind, found in kinds.items():
        if found:
            raise TypeError(f"{name} is a {kind} tensor, expected a dense one with data")


#: A tensor that several writers share is cut into at least this many chunks, so that a reader of
#: other parts reads little more than its own, but not into chunks below `MIN_CHUNK_BYTES`.
MIN_CHUNKS = 64
MIN_CHUNK_BYTES = 16 << 10
#: A tensor of a single writer is cut where 8, 4 or 2 ranks would cut its rows, unless the parts
#: are smaller than this.
_MIN_EVEN_BYTES = 512 << 10


def chunk_bytes_of(shape: Sequence[int], width: int, most: int, writers: int) -> int:
    """Return the bytes of a chunk of a tensor, which are the same for all writers.

    Parameters
    ----------
    shape, width
        Of the whole tensor; bytes of an element.
    most
        Maximum bytes of a chunk.
    writers
        Number of writers of the save.

    Notes
    -----
    Chunks of a single writer end where 2, 4 or 8 ranks cut the rows, so that each rank reads only
    its own rows. The number of chunks is the least that makes such parts; the result is `most` if
    the rows do not divide or the parts would be small.
    """
    size = math.prod(shape)
    if writers > 1:
        share = size * width // MIN_CHUNKS
        return min(most, max(MIN_CHUNK_BYTES, 1 << max(0, share.bit_length() - 1)))
    if size * width < 2 * _MIN_EVEN_BYTES:
        return most
    for parts in (8, 4, 2):
        part = size // parts
        if shape and shape[0] % parts == 0 and part * width >= _MIN_EVEN_BYTES:
            least = -(-part * width // most)
            for count in range(least, 2 * least + 1):
                if part % count == 0:
                    return part // count * width
    return most


def chunk_elements(dtype: torch.dtype, chunk_bytes: int) -> int:
    """Return the number of elements of a full chunk, at least one."""
    return max(1, chunk_bytes // dtype.itemsize)


def wait_for_device(device: torch.device) -> None:
    """Wait until all that was queued on a device is done, on all of its streams.

    Chunks are copied in threads, whose current stream is not that of the caller. The copies
    themselves have ended when they return.
    """
    if device.type in ("cuda", "xpu"):
        getattr(torch, device.type).synchronize(device)


def iter_chunks(tensor: torch.Tensor, chunk_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Iterate over the chunks of a tensor. A chunk is valid until the next one is requested.

    A tensor that `is_plain` is not copied, and all its chunks stay valid. Other tensors are copied
    chunk by chunk.
    """
    tensor = tensor.detach()
    step, total = chunk_elements(tensor.dtype, chunk_bytes), tensor.numel()
    flat = _plain_bytes(tensor)
    if flat is not None:
        width = tensor.dtype.itemsize
        for start in range(0, total, step):
            yield flat[start * width : min(start + step, total) * width]
        return
    wait_for_device(tensor.device)
    # One buffer for all chunks: the first access to new memory costs more than the copy. It is
    # pinned for tensors of a device: CUDA would otherwise copy through pinned memory of its own.
    buffer = torch.empty(min(step, total), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    for start in range(0, total, step):
        stop = min(start + step, total)
        _copy_elements(tensor, start, stop, buffer)
        yield _bytes_of(buffer[: stop - start])


def read_elements(tensor: torch.Tensor, start: int, stop: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of the elements [start, stop), which are not copied if it `is_plain`."""
    tensor = tensor.detach()
    flat = _plain_bytes(tensor)
    if flat is not None:
        return flat[start * tensor.dtype.itemsize : stop * tensor.dtype.itemsize]
    wait_for_device(tensor.device)
    held = torch.empty(stop - start, dtype=tensor.dtype)
    _copy_elements(tensor, start, stop, held)
    return _bytes_of(held)


def _copy_elements(tensor: torch.Tensor, start: int, stop: int, target: torch.Tensor) -> None:
    for box, position in boxes_in_range(tensor.shape, start, stop):
        shape = shape_of(box)
        into = target[position - start :][: math.prod(shape)]
        into.view(shape).copy_(tensor[slices(box)])


def write_chunk(
    payload: memoryview,
    target: torch.Tensor,
    box: Box,
    *,
    dtype: torch.dtype,
    part: Box,
    start: int,
) -> None:
    """Copy the elements of a chunk that belong to a target into it.

    Parameters
    ----------
    target, box
        A tensor, and the box of the whole tensor that it holds.
    dtype, part, start
        The chunk: its dtype, the box it is a chunk of, and the position of its first element there.
    """
    target = target.detach()
    raw = np.frombuffer(payload, np.uint8)
    flat = _plain_bytes(target) if part[1:] == box[1:] and dtype == target.dtype else None
    if flat is not None:
        # Rows of one length: what is contiguous in the part is contiguous in the target.
        rows = part[0][0] - box[0][0] if box else 0
        first = (rows * math.prod(shape_of(box[1:])) + start) * dtype.itemsize
        low, high = max(first, 0), min(first + raw.size, flat.size)
        flat[low:high] = raw[low - first : high - first]
        return
    if payload.readonly or raw.ctypes.data % dtype.itemsize:
        held = torch.empty(raw.size // dtype.itemsize, dtype=dtype)
        _bytes_of(held)[:] = raw
    else:
        held = torch.from_numpy(raw).view(dtype)
    for inner, shared, position in intersections(part, start, start + held.numel(), box):
        shape = shape_of(inner)
        values = held[position - start :][: math.prod(shape)].view(shape)
        values = values[slices(shift_back(shared, inner))]
        target[slices(shift_back(shared, box))].copy_(values)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is contiguous in host memory, without lazy conjugation or sign."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and not lazy and tensor.is_contiguous()


def _plain_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8] | None:
    """Return the memory of a tensor that `is_plain`, otherwise None."""
    return _bytes_of(tensor.detach()) if is_plain(tensor) else None


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous tensor."""
    # With at most one element, strides are arbitrary, and reshape would keep them.
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    # After `Tensor.numpy` the storage of the tensor could not be resized any more.
    shared: Any = np.from_dlpack(flat)
    found: npt.NDArray[np.uint8] = shared if shared.flags.writeable else flat.numpy()
    return found  # `shared` is read-only before NumPy 2.1
