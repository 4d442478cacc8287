"""The two operators behind a table: look rows up, and collect their gradients.

A table is no tensor, so operators are given its number. They have effects that a compiler does not
see: it might take two equal calls for one. So each is given an empty tensor of its own, which no
compiler takes for another, since what is in fresh memory is not known.

    embedding_lookup(ids, anchor, token, table, dim, insert) -> rows
    embedding_collect(ids, gradients, token, table) -> the gradient of anchor, which is 0

`anchor` is a scalar that asks for gradients: it makes autograd come by.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

__all__ = ["Served", "embedding_lookup", "register"]


class Served(Protocol):
    """What the operators ask of a table."""

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """The rows, float32 (n, dim), of int64 ids (n,), both on the CPU."""
        ...

    def collect(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Keep the gradients, float32 (n, dim), of rows; the tensors are the table's own now."""
        ...


_tables: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count(1)


def register(table: Served) -> int:
    """A number for the operators to find a table by, as long as somebody holds it."""
    number = next(_numbers)
    _tables[number] = table
    return number


def _table(number: int) -> Served:
    found: Served | None = _tables.get(number)
    if found is None:
        raise RuntimeError(
            f"embedding table {number} is gone, expected it to live as long as it is used"
        )
    return found


def _lookup(
    ids: torch.Tensor,
    anchor: torch.Tensor,
    token: torch.Tensor,
    table: int,
    dim: int,
    insert: bool,
) -> torch.Tensor:
    flat = ids.detach().reshape(-1).cpu().contiguous()
    rows = _table(table).look_up(flat, insert)
    return rows.view(*ids.shape, dim).to(ids.device)


def _lookup_fake(
    ids: torch.Tensor,
    anchor: torch.Tensor,
    token: torch.Tensor,
    table: int,
    dim: int,
    insert: bool,
) -> torch.Tensor:
    return torch.empty((*ids.shape, dim), dtype=torch.float32, device=ids.device)


def _collect(
    ids: torch.Tensor, gradients: torch.Tensor, token: torch.Tensor, table: int
) -> torch.Tensor:
    # Copies: the memory of what a compiled graph hands in is used again by it.
    flat = ids.detach().reshape(-1).to("cpu", copy=True, memory_format=torch.contiguous_format)
    rows = gradients.detach().reshape(flat.numel(), gradients.shape[-1])
    kept = torch.empty(rows.shape, dtype=torch.float32).copy_(rows)
    _table(table).collect(flat, kept)
    return torch.zeros(())


def _collect_fake(
    ids: torch.Tensor, gradients: torch.Tensor, token: torch.Tensor, table: int
) -> torch.Tensor:
    return torch.empty(())


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ids, _, token, table, _, _ = inputs
    ctx.save_for_backward(ids, token)
    ctx.table = table


def _made() -> Callable[..., torch.Tensor]:
    """The operator, as torch 2.4 and later know them."""
    lookup = torch.library.custom_op(
        "windeck::embedding_lookup",
        _lookup,
        mutates_args=(),
        schema="(Tensor ids, Tensor anchor, Tensor token, int table, int dim, bool insert)"
        " -> Tensor",
    )
    collect = torch.library.custom_op(
        "windeck::embedding_collect",
        _collect,
        mutates_args=(),
        schema="(Tensor ids, Tensor gradients, Tensor token, int table) -> Tensor",
    )

    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[Any, ...]:
        ids, token = ctx.saved_tensors
        return None, collect(ids, gradients, token, ctx.table), None, None, None, None

    lookup.register_fake(_lookup_fake)
    collect.register_fake(_collect_fake)
    lookup.register_autograd(backward, setup_context=_remember)
    return lookup


class _Lookup(torch.autograd.Function):
    """The same for eager code under older torch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        _remember(ctx, inputs, inputs[0])
        return _lookup(*inputs)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[Any, ...]:
        ids, token = ctx.saved_tensors
        return None, _collect(ids, gradients, token, ctx.table), None, None, None, None


embedding_lookup: Callable[..., torch.Tensor] = (
    _made() if hasattr(torch.library, "custom_op") else _Lookup.apply
)
