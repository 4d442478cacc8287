"""One optimizer step for several embedding tables."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from windeck.embeddings.optimizers import overflows
from windeck.embeddings.table import EmbeddingTable

__all__ = ["TableOptimizer"]


class TableOptimizer:
    """Updates several tables with one `step`. Parameters need a torch optimizer of their own.

    Parameters
    ----------
    tables
        Several tables, a dict of tables, or a module, which stands for all tables inside it.

    Raises
    ------
    TypeError
        If one of `tables` is not a table.
    ValueError
        If there is no table.

    Notes
    -----
    With sharded tables all ranks must step the same tables in the same order, which is the order
    of `tables`.

    ``scaler.step(optimizer)`` of a `torch.amp.GradScaler` divides the gradients by the scale. If
    one is not finite, on any rank that shares a table, it discards the gradients of all tables and
    the scaler reduces its scale.

    Examples
    --------
    >>> import torch, windeck as wd
    >>> model = torch.nn.ModuleDict({"user": wd.EmbeddingTable(4, lr=0.5, optimizer="sgd"),
    ...                              "item": wd.EmbeddingTable(4, lr=0.5, optimizer="sgd")})
    >>> optimizer = wd.TableOptimizer(model)
    >>> scores = (model["user"](torch.tensor([1, 2])) * model["item"](torch.tensor([7, 7]))).sum()
    >>> scores.backward()
    >>> optimizer.step()
    3
    """

    #: `GradScaler.step` always calls `step`, which discards gradients that are not finite.
    _step_supports_amp_scaling = True

    def __init__(self, tables: Any) -> None:
        if isinstance(tables, torch.nn.Module):
            found = [table for table in tables.modules() if isinstance(table, EmbeddingTable)]
        elif isinstance(tables, Mapping):
            found = list(tables.values())
        elif isinstance(tables, Iterable):
            found = list(tables)
        else:
            raise TypeError(
                f"`tables` must be tables or a module with tables, got a {type(tables).__name__}"
            )
        for table in found:
            if not isinstance(table, EmbeddingTable):
                raise TypeError(
                    f"`tables` must hold EmbeddingTables only, got a {type(table).__name__}"
                )
        if not found:
            raise ValueError(
                f"`tables` must hold at least one EmbeddingTable, got a {type(tables).__name__} "
                "without any"
            )
        self.tables: list[EmbeddingTable] = found
        # A GradScaler multiplies its gradient; and the gradients that waited for `step` then.
        self._probe: tuple[torch.Tensor, list[weakref.ref[torch.Tensor]]] | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One parameter for a `GradScaler` to check and unscale. Collective with sharded tables.

        Its gradient is 1, and 0 or, if one that waits for `step` is not finite, infinity. It stays
        the same parameter until there are other gradients.
        """
        gradients = self._pending_gradients()
        if self._probe is not None and self._is_probe_of(gradients):
            return [{"params": [self._probe[0]]}]
        overflow = overflows(gradients, 1.0)
        for table in self.tables:
            overflow = table._any_rank(overflow)
        # On the device of the scaler, which does not wait for the copies that it makes for others.
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        holder = torch.empty(2, device="cuda" if on_gpu else "cpu")
        holder.grad = torch.tensor([1.0, math.inf if overflow else 0.0], device=holder.device)
        self._probe = holder, [weakref.ref(gradient) for gradient in gradients]
        return [{"params": [holder]}]

    def _is_probe_of(self, gradients: list[torch.Tensor]) -> bool:
        known = self._probe[1] if self._probe is not None else []
        return [id(one()) for one in known] == [id(one) for one in gradients]

    def _pending_gradients(self) -> list[torch.Tensor]:
        return [g for table in self.tables for g in table._pending_gradients()]

    def step(self) -> int:
        """Update the rows of all tables; return the number of rows changed.

        Raises
        ------
        RuntimeError
            In ``scaler.step``, if there was a backward pass after ``scaler.unscale_``.
        """
        try:
            inverse = self._inverse_scale()
            if inverse is None:
                return sum(table.step() for table in self.tables)
            if not inverse:
                self.zero_grad()
                return 0
            return sum(table.step(grad_scale=1 / inverse) for table in self.tables)
        except BaseException:  # after which a GradScaler leaves its attributes, and adds to them
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            raise

    def _inverse_scale(self) -> float | None:
        """Return the factor of the gradients: 0 discards them; None if there is no GradScaler.

        `unscale_` has multiplied the probe by 1 / scale; without it the scaler sets `grad_scale`
        for its call of `step`. A probe of other gradients, or that something else read, is ignored.
        """
        is_called, now = "found_inf" in vars(self), self._pending_gradients()
        is_current = self._is_probe_of(now)
        probe, self._probe = self._probe, None
        if probe is None or not is_current:
            if is_called and now:
                raise RuntimeError(
                    "the tables have gradients of backward passes after `unscale_`, expected it to "
                    "be called after the last one"
                )
            return None
        gradient = probe[0].grad
        inverse, overflow = (1.0, 0.0) if gradient is None else gradient.tolist()
        if inverse == 1.0 and not is_called:
            return None
        return 0.0 if overflow else inverse / float(getattr(self, "grad_scale", None) or 1.0)

    def zero_grad(self) -> None:
        """Discard the gradients collected since the last `step`."""
        self._probe = None
        for table in self.tables:
            table.zero_grad()

    def __repr__(self) -> str:
        return f"TableOptimizer({self.tables!r})"
