"""The part of a tensor that this process holds: boxes of the whole, each with a plain tensor."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from windeck._core import crc32c
from windeck.checkpoint.format.boxes import Box, Partition, shape_of, slices, whole
from windeck.checkpoint.format.chunks import check_plain

__all__ = ["LocalTensor", "TensorPiece", "is_distributed", "split_piece", "to_local_tensor"]

#: Ranges of indices of one dimension, in the order in which the local tensor holds them.
_Ranges = list[tuple[int, int]]


class TensorPiece(NamedTuple):
    """A box of a tensor and its elements."""

    box: Box
    tensor: torch.Tensor


class LocalTensor(NamedTuple):
    """The part of a tensor that this process holds.

    Attributes
    ----------
    dtype, shape
        Of the whole tensor.
    pieces
        Boxes with elements; empty if this process holds none.
    is_owner
        Whether this process writes the tensor when its replicas do not agree on a writer.
    data
        The tensor that `pieces` are views of.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]
    is_owner: bool
    data: torch.Tensor

    @property
    def is_whole(self) -> bool:
        """True if this process holds all of the tensor."""
        return sum([piece.tensor.numel() for piece in self.pieces]) == math.prod(self.shape)

    @property
    def memory(self) -> Any:
        """A key that is equal for tensors with the same memory; None for one without elements."""
        data = self.data
        if not data.numel():
            return None
        place = data.untyped_storage().data_ptr(), data.storage_offset(), data.device
        view = data.dtype, tuple(data.shape), data.stride(), data.is_conj(), data.is_neg()
        return *place, *view, self.shape, tuple([piece.box for piece in self.pieces])


def is_distributed(value: Any) -> bool:
    """Return whether a value is a DTensor, without importing DTensor."""
    if type(value) is torch.Tensor:
        return False
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind = getattr(sys.modules.get(module), "DTensor", None)
        if kind is not None and isinstance(value, kind):
            return True
    return False


def to_local_tensor(name: str, value: Any) -> LocalTensor:
    """Return the local part of a tensor, a `Partition` or a DTensor.

    Raises
    ------
    TypeError
        For a tensor that is not dense and in memory, and for a DTensor with partial sums.
    """
    if is_distributed(value):
        return _from_dtensor(name, value)
    if isinstance(value, Partition):
        check_plain(name, value.tensor)
        data, shape, box = value.tensor, value.shape, value.box
    else:
        check_plain(name, value)
        data, shape, box = value, tuple(value.shape), whole(value.shape)
    pieces = (TensorPiece(box, data),) if data.numel() else ()
    return LocalTensor(data.dtype, shape, pieces, True, data)


def split_piece(
    piece: TensorPiece, shape: Sequence[int], count: int, min_bytes: int
) -> list[TensorPiece]:
    """Split a piece that is cut in another dimension than the first, along that dimension.

    Chunks are ranges of rows. If a tensor is cut by columns, a reader of other columns would read
    all of a box to use a part of it, so its boxes are made narrow.

    Parameters
    ----------
    shape
        Of the whole tensor.
    count
        Least number of parts that the dimension is cut into, at the same places for all writers.
    min_bytes
        Least bytes of a box, except for those at the ends of the piece.
    """
    sides = enumerate(zip(piece.box, shape, strict=True))
    axes = [axis for axis, (side, size) in sides if axis and side != (0, size)]
    if not axes:
        return [piece]
    axis = axes[-1]
    first, end = piece.box[axis]
    column = piece.tensor.numel() // (end - first) * piece.tensor.dtype.itemsize
    step = max(1, shape[axis] // count, -(-min_bytes // column))
    found = []
    while first < end:
        stop = min((first // step + 1) * step, end)
        box = (*piece.box[:axis], (first, stop), *piece.box[axis + 1 :])
        view = piece.tensor.narrow(axis, first - piece.box[axis][0], stop - first)
        found.append(TensorPiece(box, view))
        first = stop
    return found


def _from_dtensor(name: str, value: Any) -> LocalTensor:
    local = value.detach().to_local()
    check_plain(name, local)
    shape, mesh = tuple(value.shape), value.device_mesh
    coordinates = mesh.get_coordinate()
    if coordinates is None:  # this rank is not in the mesh
        return LocalTensor(value.dtype, shape, (), False, local)
    ranges: list[_Ranges] = [[(0, size)] for size in shape]
    replica, replicas = 0, 1
    for rank, count, placement in zip(coordinates, mesh.mesh.shape, value.placements, strict=True):
        if placement.is_replicate():
            replica, replicas = replica * count + rank, replicas * count
        elif type(placement).__name__ in ("Shard", "_StridedShard"):
            split = getattr(placement, "split_factor", 1)
            ranges[placement.dim] = _shard_ranges(ranges[placement.dim], split, count, rank)
        else:
            raise TypeError(f"{name} is a DTensor with {placement}, expected shards and replicas")
    pieces = _cut_boxes(name, local, ranges)
    is_owner = crc32c(name.encode()) % replicas == replica  # spreads tensors over the replicas
    return LocalTensor(value.dtype, shape, pieces, is_owner, local)


def _shard_ranges(ranges: _Ranges, split: int, count: int, rank: int) -> _Ranges:
    """Return the share of `rank` in ranges that `count` ranks divide as torch.chunk does.

    With `split` above 1 that many parts of the ranges are divided one by one, which is the reverse
    order of sharding.

    Examples
    --------
    >>> _shard_ranges([(0, 10)], 1, 4, 2), _shard_ranges([(0, 10)], 1, 4, 3)
    ([(6, 9)], [(9, 10)])
    >>> _shard_ranges([(0, 8)], 2, 2, 1), _shard_ranges([(0, 2), (4, 6)], 1, 2, 0)
    ([(2, 4), (6, 8)], [(0, 2)])
    """
    total, wanted = sum(end - first for first, end in ranges), _Ranges()
    part = -(-total // split)
    for start in range(0, total, max(1, part)):
        size = min(part, total - start)
        step = -(-size // count)
        first, end = min(rank * step, size), min((rank + 1) * step, size)
        wanted.append((start + first, start + end))
    return _map_ranges(ranges, wanted)


def _map_ranges(ranges: _Ranges, wanted: _Ranges) -> _Ranges:
    """Translate ranges of positions in concatenated ranges to indices; join adjacent ones."""
    found: _Ranges = []
    for first, end in wanted:
        before = 0
        for start, stop in ranges:
            a, b = max(first, before), min(end, before + stop - start)
            if a < b:
                span = (start + a - before, start + b - before)
                if found and found[-1][1] == span[0]:
                    span = (found.pop()[0], span[1])
                found.append(span)
            before += stop - start
    return found


def _cut_boxes(
    name: str, local: torch.Tensor, ranges: Sequence[_Ranges]
) -> tuple[TensorPiece, ...]:
    """Return the boxes made of ranges in each dimension, with views of the local tensor."""
    expected = tuple(sum(end - first for first, end in axis) for axis in ranges)
    if tuple(local.shape) != expected:
        if not local.numel() and not math.prod(expected):
            return ()
        raise ValueError(
            f"{name} has shape {tuple(local.shape)} on this rank, expected {expected} by its "
            "mesh and placements"
        )
    if not local.numel():
        return ()
    pieces, positions = [], [_positions(axis) for axis in ranges]
    for chosen in itertools.product(*(range(len(axis)) for axis in ranges)):
        box = tuple(ranges[axis][i] for axis, i in enumerate(chosen))
        view = local[slices(tuple(positions[axis][i] for axis, i in enumerate(chosen)))]
        assert tuple(view.shape) == shape_of(box)
        pieces.append(TensorPiece(box, view))
    return tuple(pieces)


def _positions(ranges: _Ranges) -> _Ranges:
    """Return the positions of ranges after they are concatenated."""
    ends = list(itertools.accumulate(end - first for first, end in ranges))
    return [(end - (b - a), end) for (a, b), end in zip(ranges, ends, strict=True)]
