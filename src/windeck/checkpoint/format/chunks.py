"""Tensors as chunks of bytes: the elements in row-major order, cut every so many bytes.

Bytes are those of the elements in memory, little-endian, so any dtype comes back bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from windeck.checkpoint.format.boxes import Box, common, pieces, shape_of, slices

__all__ = [
    "check_plain",
    "chunk_items",
    "cut",
    "is_plain",
    "memory_of",
    "put",
]
__all__ += ["touches"]


def check_plain(name: str, tensor: torch.Tensor) -> None:
    """TypeError for a tensor that is not simply elements in memory."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{name} is a {type(tensor).__name__}, expected a plain torch.Tensor")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
        raise TypeError(f"{name} is a {kind} tensor, expected a dense one with data")


def chunk_items(dtype: torch.dtype, chunk_bytes: int) -> int:
    """Elements of a full chunk, at least one."""
    return max(1, chunk_bytes // dtype.itemsize)


def lies_in_memory(tensor: torch.Tensor) -> bool:
    """Whether the chunks `cut` gives are the tensor's own memory: then all stay valid."""
    return _plain_bytes(tensor.detach()) is not None


def cut(tensor: torch.Tensor, chunk_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The chunks of a tensor, each to be used before the next is asked for.

    A contiguous tensor in memory is not copied; another one, chunk by chunk.
    """
    tensor = tensor.detach()
    step, total = chunk_items(tensor.dtype, chunk_bytes), tensor.numel()
    flat = _plain_bytes(tensor)
    if flat is not None:
        width = tensor.dtype.itemsize
        for start in range(0, total, step):
            yield flat[start * width : min(start + step, total) * width]
        return
    # The same memory for each: the first touch of fresh memory costs more than the copy. Pinned for
    # a device, which else copies by way of pinned memory of its own.
    buffer = torch.empty(min(step, total), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    for start in range(0, total, step):
        stop = min(start + step, total)
        held = buffer[: stop - start]
        for box, place in pieces(tensor.shape, start, stop):
            into = held[place - start :][: _count(box)]
            into.view(shape_of(box)).copy_(tensor[slices(box)])
        yield _bytes_of(held)


def memory_of(
    target: torch.Tensor, box: Box, *, dtype: torch.dtype, part: Box
) -> tuple[memoryview, int] | None:
    """The memory of a target that the elements of a part are to fill, if runs of them stay runs.

    Parameters
    ----------
    target, box, dtype, part
        As for `put`.

    Returns
    -------
    memory, moved
        All bytes of the target; how many elements later an element lies there than in the part.
    """
    if target.dtype != dtype or part[1:] != box[1:]:
        return None
    flat = _plain_bytes(target)
    if flat is None:
        return None
    # So many elements before: rows above, all of them as long here as there.
    moved = (part[0][0] - box[0][0]) * _count(box[1:]) if box else 0
    return flat.data, moved


def put(
    payload: memoryview,
    target: torch.Tensor,
    box: Box,
    *,
    dtype: torch.dtype,
    part: Box,
    start: int,
) -> None:
    """Write the part of a chunk that falls into a target, in place.

    Parameters
    ----------
    target, box
        A tensor and the box of the whole that it stands for.
    dtype, part, start
        Of the chunk: its dtype, the box it was cut from, and its first element's place there.
    """
    target = target.detach()
    raw = np.frombuffer(payload, np.uint8)
    flat = _plain_bytes(target) if part == box and dtype == target.dtype else None
    if flat is not None:
        flat[start * dtype.itemsize :][: raw.size] = raw
        return
    if payload.readonly or raw.ctypes.data % dtype.itemsize:
        held = torch.empty(raw.size // dtype.itemsize, dtype=dtype)
        _bytes_of(held)[:] = raw
    else:
        held = torch.from_numpy(raw).view(dtype)
    origin = [first for first, _ in part]
    for inner, place in pieces(shape_of(part), start, start + held.numel()):
        piece = _moved(inner, origin)
        shared = common(piece, box)
        if shared is None:
            continue
        values = held[place - start :][: _count(inner)].view(shape_of(inner))
        values = values[slices(_moved(shared, [-first for first, _ in piece]))]
        target[slices(_moved(shared, [-first for first, _ in box]))].copy_(values)


def touches(part: Box, start: int, stop: int, box: Box) -> bool:
    """Whether some of the elements [start, stop) of a part lie in a box."""
    origin = [first for first, _ in part]
    return any(
        common(_moved(inner, origin), box) is not None
        for inner, _ in pieces(shape_of(part), start, stop)
    )


def _moved(box: Box, by: list[int]) -> Box:
    return tuple((first + d, end + d) for (first, end), d in zip(box, by, strict=True))


def _count(box: Box) -> int:
    count = 1
    for first, end in box:
        count *= end - first
    return count


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in this computer's memory one after the other, as they are."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.device.type == "cpu" and not lazy and tensor.is_contiguous()


def _plain_bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8] | None:
    """The memory of a tensor whose elements lie there one after the other; else None."""
    return _bytes_of(tensor.detach()) if is_plain(tensor) else None


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous tensor."""
    # Strides of what has one element or none may be anything; reshape would keep them.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    found: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return found
