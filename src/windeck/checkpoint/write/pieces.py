"""What of a tensor lies in this process: boxes of the whole, each with a plain tensor."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from windeck._core import crc32c
from windeck.checkpoint.format.boxes import Box, Partition, shape_of, slices, whole
from windeck.checkpoint.format.chunks import check_plain

__all__ = ["Piece", "Pieces", "is_distributed", "pieces_of", "stretches"]

#: Runs of indices, ascending: what of a dimension is here, in the order it lies here.
_Runs = list[tuple[int, int]]


@dataclass(frozen=True)
class Piece:
    """A box of a tensor and its elements."""

    box: Box
    tensor: torch.Tensor


@dataclass(frozen=True)
class Pieces:
    """What of a tensor is here.

    Attributes
    ----------
    dtype, shape
        Of the whole.
    parts
        Boxes with elements; none where nothing is here.
    mine
        Whether this process is the one of its replicas that writes, when nobody compares.
    local
        The tensor that `parts` are views of.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[Piece, ...]
    mine: bool
    local: torch.Tensor

    @property
    def is_whole(self) -> bool:
        """Whether all of the tensor is here."""
        return sum(piece.tensor.numel() for piece in self.parts) == math.prod(self.shape)

    @property
    def memory(self) -> Any:
        """The same for two that are the same elements; None for one without any."""
        local = self.local
        if not local.numel():
            return None
        place = local.untyped_storage().data_ptr(), local.storage_offset(), local.device
        view = local.dtype, tuple(local.shape), local.stride(), local.is_conj(), local.is_neg()
        return *place, *view, self.shape, tuple(piece.box for piece in self.parts)


def is_distributed(value: Any) -> bool:
    """Whether a value is a DTensor. Without an import: where there is none, its module is not."""
    if type(value) is torch.Tensor:
        return False
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind = getattr(sys.modules.get(module), "DTensor", None)
        if kind is not None and isinstance(value, kind):
            return True
    return False


def pieces_of(name: str, value: Any) -> Pieces:
    """The pieces of a tensor, a `Partition` or a DTensor.

    Raises
    ------
    TypeError
        For a tensor that is not simply elements in memory, and a DTensor with partial sums.
    """
    if is_distributed(value):
        return _of_dtensor(name, value)
    if isinstance(value, Partition):
        check_plain(name, value.tensor)
        local, shape, box = value.tensor, value.shape, value.box
    else:
        check_plain(name, value)
        local, shape, box = value, tuple(value.shape), whole(value.shape)
    parts = (Piece(box, local),) if local.numel() else ()
    return Pieces(local.dtype, shape, parts, True, local)


def stretches(piece: Piece, shape: Sequence[int], count: int, least_bytes: int) -> list[Piece]:
    """A piece that is cut in another dimension than the first, in boxes along that dimension.

    Chunks are runs of rows. Where a tensor is cut by columns, who has other columns would read all
    of a box for some of it; so its boxes become narrow.

    Parameters
    ----------
    shape, count
        Of the whole; in how many stretches its dimension is cut, at the same places everywhere.
    least_bytes
        Of a box, but for those at the ends.
    """
    sides = enumerate(zip(piece.box, shape, strict=True))
    axes = [axis for axis, (side, size) in sides if axis and side != (0, size)]
    if not axes:
        return [piece]
    axis = axes[-1]
    first, end = piece.box[axis]
    column = piece.tensor.numel() // (end - first) * piece.tensor.dtype.itemsize
    step = max(1, shape[axis] // count, -(-least_bytes // column))
    found = []
    while first < end:
        stop = min((first // step + 1) * step, end)
        box = (*piece.box[:axis], (first, stop), *piece.box[axis + 1 :])
        view = piece.tensor.narrow(axis, first - piece.box[axis][0], stop - first)
        found.append(Piece(box, view))
        first = stop
    return found


def _of_dtensor(name: str, value: Any) -> Pieces:
    local = value.detach().to_local()
    check_plain(name, local)
    shape, mesh = tuple(value.shape), value.device_mesh
    place = mesh.get_coordinate()
    if place is None:  # this rank is not in the mesh
        return Pieces(value.dtype, shape, (), False, local)
    runs: list[_Runs] = [[(0, size)] for size in shape]
    replica, replicas = 0, 1
    for here, count, placement in zip(place, mesh.mesh.shape, value.placements, strict=True):
        if placement.is_replicate():
            replica, replicas = replica * count + here, replicas * count
        elif type(placement).__name__ in ("Shard", "_StridedShard"):
            split = getattr(placement, "split_factor", 1)
            runs[placement.dim] = _shard(runs[placement.dim], split, count, here)
        else:
            raise TypeError(f"{name} is a DTensor with {placement}, expected shards and replicas")
    parts = _cut(name, local, runs)
    mine = crc32c(name.encode()) % replicas == replica  # replicas take turns
    return Pieces(value.dtype, shape, parts, mine, local)


def _shard(runs: _Runs, split: int, count: int, here: int) -> _Runs:
    """What of runs is left of one dimension when it is dealt to `count`, as torch.chunk does.

    With `split`, that many stretches are dealt one by one: the reverse order of sharding.

    Examples
    --------
    >>> _shard([(0, 10)], 1, 4, 2), _shard([(0, 10)], 1, 4, 3)
    ([(6, 9)], [(9, 10)])
    >>> _shard([(0, 8)], 2, 2, 1), _shard([(0, 2), (4, 6)], 1, 2, 0)
    ([(2, 4), (6, 8)], [(0, 2)])
    """
    total, wanted = sum(end - first for first, end in runs), _Runs()
    stretch = -(-total // split)
    for start in range(0, total, max(1, stretch)):
        size = min(stretch, total - start)
        step = -(-size // count)
        first, end = min(here * step, size), min((here + 1) * step, size)
        wanted.append((start + first, start + end))
    return _within(runs, wanted)


def _within(runs: _Runs, wanted: _Runs) -> _Runs:
    """Runs of places in runs as runs of indices; neighbours become one."""
    found: _Runs = []
    for first, end in wanted:
        before = 0
        for start, stop in runs:
            a, b = max(first, before), min(end, before + stop - start)
            if a < b:
                run = (start + a - before, start + b - before)
                if found and found[-1][1] == run[0]:
                    run = (found.pop()[0], run[1])
                found.append(run)
            before += stop - start
    return found


def _cut(name: str, local: torch.Tensor, runs: Sequence[_Runs]) -> tuple[Piece, ...]:
    """The boxes that runs in each dimension make, with views of what is here."""
    expected = tuple(sum(end - first for first, end in axis) for axis in runs)
    if tuple(local.shape) != expected:
        if not local.numel() and not math.prod(expected):
            return ()
        raise ValueError(
            f"{name} has {tuple(local.shape)} elements on this rank, expected {expected} by its "
            "mesh and placements"
        )
    if not local.numel():
        return ()
    parts, places = [], [_places(axis) for axis in runs]
    for chosen in itertools.product(*(range(len(axis)) for axis in runs)):
        box = tuple(runs[axis][i] for axis, i in enumerate(chosen))
        view = local[slices(tuple(places[axis][i] for axis, i in enumerate(chosen)))]
        assert tuple(view.shape) == shape_of(box)
        parts.append(Piece(box, view))
    return tuple(parts)


def _places(runs: _Runs) -> _Runs:
    """Where runs lie when they are put one after the other."""
    ends = list(itertools.accumulate(end - first for first, end in runs))
    return [(end - (b - a), end) for (a, b), end in zip(runs, ends, strict=True)]
