"""How rows are updated: one optimizer for each table, and one step for several tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Rule", "TableOptimizer"]

#: What is added under the fraction line, as in torch's optimizers.
_EPS = {"sgd": 0.0, "adagrad": 1e-10, "adam": 1e-8}
_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}


@dataclass
class Rule:
    """An optimizer and its numbers, checked.

    Attributes
    ----------
    optimizer
        ``sgd``, ``adagrad`` or ``adam``.
    lr, eps, betas, weight_decay, initial_accumulator_value
        As in torch's optimizers of these names; `eps` None: theirs.
    """

    optimizer: str
    lr: float
    eps: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in _EPS:
            raise ValueError(f"optimizer is {self.optimizer!r}, expected one of {', '.join(_EPS)}")
        self.eps = _EPS[self.optimizer] if self.eps is None else self.eps
        for name in ("lr", "eps", "weight_decay", "initial_accumulator_value"):
            setattr(self, name, checked_number(name, getattr(self, name)))
        if not isinstance(self.betas, (tuple, list)) or len(self.betas) != 2:
            raise ValueError(f"betas is {self.betas!r}, expected two numbers from 0 to below 1")
        first, second = (checked_number("betas", beta) for beta in self.betas)
        if max(first, second) >= 1:
            raise ValueError(f"betas is {self.betas!r}, expected two numbers from 0 to below 1")
        self.betas = first, second
        if self.initial_accumulator_value and self.optimizer != "adagrad":
            raise ValueError(
                f"initial_accumulator_value is for adagrad, got {self.initial_accumulator_value} "
                f"with {self.optimizer}"
            )

    @property
    def slots(self) -> int:
        """Vectors the optimizer keeps behind each row."""
        return _SLOTS[self.optimizer]

    def options(self, lr: float) -> dict[str, Any]:
        """For `EmbeddingCore.apply`."""
        found = {"kind": self.optimizer, "lr": lr, "weight_decay": self.weight_decay}
        if self.optimizer != "sgd":
            found["eps"] = self.eps
        if self.optimizer == "adam":
            found |= {"beta1": self.betas[0], "beta2": self.betas[1]}
        return found

    def config(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "optimizer": self.optimizer,
            "lr": self.lr,
            "eps": self.eps,
            "betas": list(self.betas),
            "weight_decay": self.weight_decay,
            "initial_accumulator_value": self.initial_accumulator_value,
        }


def checked_number(name: str, value: Any) -> float:
    """A finite number of at least 0.

    Examples
    --------
    >>> checked_number("lr", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a number")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value}, expected a finite number of at least 0")
    return float(value)


class TableOptimizer:
    """One `step` and one `zero_grad` for several tables, beside an optimizer for the parameters.

    Parameters
    ----------
    tables
        Tables, a dict of them, or a module: then all tables inside it.

    Raises
    ------
    TypeError, ValueError
        For what is no table, and where there is none.

    Notes
    -----
    With sharded tables all ranks have to step the same tables in the same order; here that is the
    order they were given in.

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

    def __init__(self, tables: Any) -> None:
        from windeck.embeddings.table import EmbeddingTable

        self.tables: list[EmbeddingTable] = list(_found(tables))
        for table in self.tables:
            if not isinstance(table, EmbeddingTable):
                raise TypeError(f"got a {type(table).__name__}, expected an EmbeddingTable")
        if not self.tables:
            raise ValueError(f"{type(tables).__name__} has no EmbeddingTable, expected one or more")

    def step(self) -> int:
        """Update the rows of all tables; the number of rows changed."""
        return sum(table.step() for table in self.tables)

    def zero_grad(self) -> None:
        """Forget gradients that were not stepped with."""
        for table in self.tables:
            table.zero_grad()

    def __repr__(self) -> str:
        return f"TableOptimizer({self.tables!r})"


def _found(tables: Any) -> Iterator[Any]:
    from windeck.embeddings.table import EmbeddingTable

    if isinstance(tables, torch.nn.Module):
        yield from (table for table in tables.modules() if isinstance(table, EmbeddingTable))
    elif isinstance(tables, Mapping):
        yield from tables.values()
    elif isinstance(tables, Iterable):
        yield from tables
    else:
        raise TypeError(f"got a {type(tables).__name__}, expected tables or a module with some")
