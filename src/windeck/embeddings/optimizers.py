"""Options of the optimizers of embedding tables, and checks of gradients."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from windeck._util.validation import check_number

__all__ = ["OptimizerConfig", "checked_scale", "nonnegative_number", "overflows"]

#: The defaults of `eps`, those of torch's optimizers.
_EPS = {"sgd": 0.0, "adagrad": 1e-10, "adam": 1e-8}
_SLOTS = {"sgd": 0, "adagrad": 1, "adam": 2}


@dataclass
class OptimizerConfig:
    """The options of an optimizer, validated.

    Attributes
    ----------
    optimizer
        ``sgd``, ``adagrad`` or ``adam``.
    lr, eps, betas, weight_decay, initial_accumulator_value
        As in torch's optimizers of these names; `eps` None: the default of that optimizer.
    """

    optimizer: str
    lr: float
    eps: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        if self.optimizer not in _EPS:
            raise ValueError(
                f"`optimizer` must be one of {', '.join(_EPS)}, got {self.optimizer!r}"
            )
        self.eps = _EPS[self.optimizer] if self.eps is None else self.eps
        for name in ("lr", "eps", "weight_decay", "initial_accumulator_value"):
            setattr(self, name, nonnegative_number(name, getattr(self, name)))
        betas = list(self.betas) if isinstance(self.betas, (tuple, list)) else []
        if len(betas) != 2 or max(nonnegative_number("betas", beta) for beta in betas) >= 1:
            raise ValueError(f"`betas` must be two numbers in [0, 1), got {self.betas!r}")
        self.betas = float(betas[0]), float(betas[1])
        if self.initial_accumulator_value and self.optimizer != "adagrad":
            raise ValueError(
                f"`initial_accumulator_value` must be 0 with {self.optimizer}, "
                f"got {self.initial_accumulator_value}"
            )

    @property
    def slots(self) -> int:
        """Number of vectors of optimizer state for each row."""
        return _SLOTS[self.optimizer]

    def apply_options(self, lr: float) -> dict[str, Any]:
        """Return the keyword arguments of `EmbeddingCore.apply` for a learning rate."""
        options = {"kind": self.optimizer, "lr": lr, "weight_decay": self.weight_decay}
        if self.optimizer != "sgd":
            options["eps"] = self.eps
        if self.optimizer == "adam":
            options |= {"beta1": self.betas[0], "beta2": self.betas[1]}
        return options

    def to_json(self) -> dict[str, Any]:
        """Return the options as values that JSON has."""
        return asdict(self) | {"betas": list(self.betas)}


def nonnegative_number(name: str, value: Any) -> float:
    """Return `value` as a float, or raise an error if it is negative or not finite."""
    if isinstance(value, bool):
        raise TypeError(f"`{name}` must be a number, got {value!r} (bool)")
    number = check_number(name, value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"`{name}` must be finite and at least 0, got {value}")
    return number


def checked_scale(grad_scale: float | None) -> float | None:
    """Return the scale of gradients as a float, or raise an error if none can be divided by it."""
    if grad_scale is None:
        return None
    scale = nonnegative_number("grad_scale", grad_scale)
    if not scale or math.isinf(1 / scale):
        raise ValueError(f"`grad_scale` must be above 0, got {grad_scale}")
    return scale


def overflows(gradients: list[torch.Tensor], grad_scale: float | None) -> bool:
    """Return whether the gradients are of a scaled loss and one of them is not finite."""
    return grad_scale is not None and not all(bool(g.isfinite().all()) for g in gradients)
