"""Torch operators of embedding tables: look up rows, and collect their gradients.

    embedding_lookup(ids, anchor, token, table, dim, insert) -> rows
    embedding_collect(ids, gradients, token, table) -> the gradient of anchor, which is 0
    checked_offsets(offsets, ids) -> offsets as int64

A table is not a tensor, so operators get its number. `anchor` is a scalar that requires gradients,
so that autograd calls the backward of the lookup. The operators have side effects that a compiler
does not see, so it might merge two equal calls into one. To prevent that, each call gets a `token`,
an empty tensor of its own: two uninitialized tensors are not known to be equal. It has the dtype of
the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["TableOfRows", "checked_offsets", "embedding_lookup", "register_table"]


class TableOfRows(Protocol):
    """A table as the operators call it."""

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """Return the rows, (n, dim), of int64 ids (n,) on the CPU, without gradients."""

    def collect(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Keep gradients, (n, dim), of ids (n,)."""


_tables: WeakValueDictionary[int, TableOfRows] = WeakValueDictionary()
_numbers = itertools.count(1)


def register_table(table: TableOfRows) -> int:
    """Return a number by which the operators find the table as long as it exists."""
    number = next(_numbers)
    _tables[number] = table
    return number


def _table(number: int) -> TableOfRows:
    found = _tables.get(number)
    if found is None:
        raise RuntimeError(
            f"embedding table {number} no longer exists, keep a reference to it while it is used"
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
    return torch.empty((*ids.shape, dim), dtype=token.dtype, device=ids.device)


def _collect(
    ids: torch.Tensor, gradients: torch.Tensor, token: torch.Tensor, table: int
) -> torch.Tensor:
    # Copy: a compiled graph uses the memory of these tensors again.
    flat = ids.detach().reshape(-1).to("cpu", copy=True, memory_format=torch.contiguous_format)
    rows = gradients.detach().reshape(flat.numel(), gradients.shape[-1])
    kept = torch.empty(rows.shape, dtype=token.dtype).copy_(rows)
    _table(table).collect(flat, kept)
    return torch.zeros(())


def _collect_fake(
    ids: torch.Tensor, gradients: torch.Tensor, token: torch.Tensor, table: int
) -> torch.Tensor:
    return torch.empty(())


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ids, _, token, table, _, _ = inputs
    ctx.save_for_backward(ids, token)
    ctx.table = table


def _make_operator() -> Callable[..., torch.Tensor]:
    """Register the operators as custom operators, which torch has since 2.4."""
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
    lookup.register_autograd(backward, setup_context=_setup_context)
    return lookup


_WITHOUT_LAST = (
    "; those of torch.nn.EmbeddingBag, without the last one, need include_last_offset=False"
)


def _checked_offsets(offsets: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != len(ids) or bool((offsets.diff() < 0).any()):
        raise ValueError(
            f"`offsets` must ascend from 0 to the number of ids, {len(ids)}, got {len(offsets)} "
            f"offsets from {first} to {last}"
            + (_WITHOUT_LAST if first == 0 and last < len(ids) else "")
        )
    return offsets.to(torch.int64, copy=True)


def _make_offsets_operator() -> Callable[..., torch.Tensor]:
    operator = torch.library.custom_op(
        "windeck::checked_offsets",
        _checked_offsets,
        mutates_args=(),
        schema="(Tensor offsets, Tensor ids) -> Tensor",
    )
    operator.register_fake(lambda offsets, ids: torch.empty_like(offsets, dtype=torch.int64))
    return operator


class _LookupFunction(torch.autograd.Function):
    """The lookup for eager code: the first call of a custom operator imports the compiler."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        _setup_context(ctx, inputs, inputs[0])
        return _lookup(*inputs)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[Any, ...]:
        ids, token = ctx.saved_tensors
        _collect(ids, gradients, token, ctx.table)
        return (None,) * 6


_operator: Callable[..., torch.Tensor] = (
    _make_operator() if hasattr(torch.library, "custom_op") else _LookupFunction.apply
)


_offsets_operator: Callable[..., torch.Tensor] = (
    _make_offsets_operator() if hasattr(torch.library, "custom_op") else _checked_offsets
)


def checked_offsets(offsets: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return offsets as int64; raise a ValueError unless they ascend from 0 to the number of ids.

    Otherwise ids would be left out. Also in compiled code, which does not know values of tensors.
    """
    is_traced = torch.compiler.is_compiling() or isinstance(offsets, FakeTensor)
    return (_offsets_operator if is_traced else _checked_offsets)(offsets, ids)


def embedding_lookup(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Look up rows with the operator where a compiler traces, otherwise directly.

    Takes the arguments of the operator: `ids`, `anchor`, `token`, `table`, `dim`, `insert`.
    """
    if torch.compiler.is_compiling() or isinstance(ids, FakeTensor):
        return _operator(ids, *rest)
    found: torch.Tensor = _LookupFunction.apply(ids, *rest)  # type: ignore[no-untyped-call]
    return found
