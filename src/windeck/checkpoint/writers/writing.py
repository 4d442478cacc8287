"""A tensor as pairs of keys and values, in the order of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.chunks import cut
from windeck.checkpoint.format.values import Kind, Label, encode_pieces
from windeck.checkpoint.stores.protocol import Items

if TYPE_CHECKING:
    from windeck.checkpoint.incremental import Increment

__all__ = ["chunk_pairs"]


def chunk_pairs(
    namespace: str,
    generation: int,
    save: int,
    item: int,
    tensor: torch.Tensor,
    chunk_bytes: int,
    *,
    writer: int = 0,
    increment: Increment | None = None,
) -> Items:
    """The chunks of a tensor with their keys, each to be used before the next is asked for.

    Parameters
    ----------
    generation, save, writer
        Of the save: its number, its random number, who of it writes.
    item, tensor
        The number of the tensor among those of the writer, and what is to be written.
    chunk_bytes
        Bytes of a full chunk.
    increment
        Says which chunks need not be written; None: all are.
    """
    every = enumerate(cut(tensor, chunk_bytes))
    for number, data in increment.changed(item, tensor, chunk_bytes) if increment else every:
        label = Label(Kind.CHUNK, generation, save, item, writer, number)
        yield keys.chunk(namespace, generation, writer, item, number), encode_pieces(label, data)
