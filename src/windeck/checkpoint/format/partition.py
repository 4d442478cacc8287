"""A part of a tensor that several processes hold together, without torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from windeck.checkpoint.format.boxes import Box

__all__ = ["Partition"]


class Partition:
    """A tensor that is a box of a larger one, to be saved from or loaded into.

    Parameters
    ----------
    tensor
        The elements that are here, of any dtype and strides.
    offset
        Where its first element lies in the whole.
    shape
        Of the whole.

    Raises
    ------
    TypeError, ValueError
        When numbers are no integers; when the box does not lie in the shape.

    Examples
    --------
    >>> import torch
    >>> rows = Partition(torch.zeros(2, 3), offset=(4, 0), shape=(8, 3))
    >>> rows
    Partition(elements [4:6, 0:3] of shape (8, 3))
    """

    def __init__(
        self, tensor: torch.Tensor, *, offset: Sequence[int], shape: Sequence[int]
    ) -> None:
        self.tensor = tensor
        self.offset = tuple(index(first) for first in offset)
        self.shape = tuple(index(size) for size in shape)
        if not (len(self.offset) == len(self.shape) == tensor.dim()) or any(
            not 0 <= first <= first + here <= size
            for first, here, size in zip(self.offset, tensor.shape, self.shape, strict=True)
        ):
            raise ValueError(
                f"a part of shape {tuple(tensor.shape)} at offset {self.offset} does not lie in "
                f"the shape {self.shape}"
            )

    @property
    def box(self) -> Box:
        """(first, end) in each dimension."""
        here = zip(self.offset, self.tensor.shape, strict=True)
        return tuple((first, first + size) for first, size in here)

    def __repr__(self) -> str:
        box = ", ".join(f"{first}:{end}" for first, end in self.box)
        return f"Partition(elements [{box}] of shape {self.shape})"
