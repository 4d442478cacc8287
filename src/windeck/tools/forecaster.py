"""A small forecaster, so that the demo has something to train. Not a model to publish.

One linear map from the context to the horizon (what DLinear showed to be hard to beat) and a narrow
network beside it, both on a context that is normalised window by window.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]

#: Added to a window's variance, in scaled units: flat windows stay flat, rather than explode.
VARIANCE_FLOOR = 1e-2


class Forecaster(nn.Module):
    """Maps (batch, context_length) values and their mask to (batch, prediction_length) values."""

    def __init__(self, context_length: int, prediction_length: int, *, width: int = 96) -> None:
        super().__init__()
        self.linear = nn.Linear(context_length, prediction_length)
        self.bend = nn.Sequential(
            nn.Linear(2 * context_length, width),
            nn.GELU(),
            nn.Linear(width, prediction_length),
        )

    def forward(self, past: Tensor, observed: Tensor) -> Tensor:
        """Missing values (`observed` 0) take no part: they count as the window's own mean."""
        seen = observed.to(past.dtype)
        count = seen.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (past * seen).sum(dim=1, keepdim=True) / count
        centred = (past - mean) * seen
        deviation = (centred.square().sum(dim=1, keepdim=True) / count + VARIANCE_FLOOR).sqrt()
        level = centred / deviation
        ahead: Tensor = self.linear(level) + self.bend(torch.cat((level, seen), dim=1))
        return ahead * deviation + mean


def build(context_length: int, prediction_length: int, *, seed: int) -> Forecaster:
    """A forecaster whose first weights depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Forecaster(context_length, prediction_length)


def forecast(model: Forecaster, batch: Batch) -> Tensor:
    """The forecast of a batch of windows with one target; (batch, prediction_length)."""
    ahead: Tensor = model(batch["past_target"][..., 0], _mask(batch, "past_target"))
    return ahead


def absolute_error(ahead: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Sum of |forecast - truth| where the truth was observed, and how many those are."""
    seen = _mask(batch, "future_target").to(ahead.dtype)
    return ((ahead - batch["future_target"][..., 0]).abs() * seen).sum(), seen.sum()


def training_step(model: Forecaster, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """One step down the mean absolute error; returns the loss before it, detached."""
    total, count = absolute_error(forecast(model, batch), batch)
    loss = total / count.clamp(min=1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def naive_forecast(batch: Batch, season: int | None) -> Tensor:
    """What was seen one season before, or last; (batch, prediction_length).

    A missing value is replaced by the last one seen in the context, or else by 0 (the mean).
    """
    past, observed = batch["past_target"][..., 0], _mask(batch, "past_target")
    horizon = batch["future_target"].shape[1]
    last = _last_seen(past, observed)
    if season is None:
        return last.expand(-1, horizon)
    columns = past.shape[1] - season + torch.arange(horizon) % season
    return torch.where(observed[:, columns].bool(), past[:, columns], last)


def _last_seen(past: Tensor, observed: Tensor) -> Tensor:
    """The last observed value of each row, or 0; (batch, 1)."""
    places = torch.arange(1, past.shape[1] + 1) * observed
    column = (places.amax(dim=1, keepdim=True) - 1).clamp(min=0).long()
    return torch.where(observed.any(dim=1, keepdim=True), past.gather(1, column), 0.0)


def _mask(batch: Batch, key: str) -> Tensor:
    """1 where observed; a batch without a mask misses nothing."""
    mask = batch.get(f"{key}_mask")
    return torch.ones_like(batch[key][..., 0]) if mask is None else mask[..., 0]
