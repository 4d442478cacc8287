"""The small forecaster: masks are respected, weights depend on the seed, naive is naive."""

import pytest
import torch

from windeck.tools import forecaster

CONTEXT, HORIZON = 12, 4


def batch_of(past: torch.Tensor, observed: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """A batch as windows give it, with a future that is all zeros and all observed."""
    batch = {
        "past_target": past[..., None],
        "future_target": torch.zeros(len(past), HORIZON, 1),
        "future_target_mask": torch.ones(len(past), HORIZON, 1, dtype=torch.bool),
    }
    if observed is not None:
        batch["past_target_mask"] = observed[..., None]
    return batch


def test_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    models = [forecaster.build(CONTEXT, HORIZON, seed=seed) for seed in (1, 1, 2)]
    weights = [model.linear.weight for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_missing_values_take_no_part() -> None:
    model = forecaster.build(CONTEXT, HORIZON, seed=0)
    past = torch.randn(5, CONTEXT)
    observed = torch.rand(5, CONTEXT) > 0.3
    other = torch.where(observed, past, 1e6)
    torch.testing.assert_close(
        forecaster.forecast(model, batch_of(past, observed)),
        forecaster.forecast(model, batch_of(other, observed)),
    )


def test_a_window_with_nothing_observed_gives_numbers() -> None:
    model = forecaster.build(CONTEXT, HORIZON, seed=0)
    nothing = torch.zeros(2, CONTEXT, dtype=torch.bool)
    assert forecaster.forecast(model, batch_of(torch.zeros(2, CONTEXT), nothing)).isfinite().all()


def test_forecasts_move_with_the_level_of_the_window() -> None:
    model = forecaster.build(CONTEXT, HORIZON, seed=0)
    past = torch.randn(5, CONTEXT)
    low = forecaster.forecast(model, batch_of(past))
    high = forecaster.forecast(model, batch_of(past + 100))
    torch.testing.assert_close(high, low + 100, rtol=1e-4, atol=1e-3)


def test_errors_count_where_the_truth_was_observed() -> None:
    batch = batch_of(torch.zeros(2, CONTEXT))
    batch["future_target_mask"][0, 1:] = False
    total, count = forecaster.absolute_error(torch.full((2, HORIZON), 3.0), batch)
    assert (total.item(), count.item()) == (15.0, 5.0)


def test_training_learns_a_constant() -> None:
    model = forecaster.build(CONTEXT, HORIZON, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = batch_of(torch.randn(64, CONTEXT))
    losses = [forecaster.training_step(model, optimizer, batch).item() for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def test_naive_forecasts() -> None:
    past = torch.arange(CONTEXT).float()[None]
    assert forecaster.naive_forecast(batch_of(past), None).tolist() == [[11.0] * HORIZON]
    assert forecaster.naive_forecast(batch_of(past), 6).tolist() == [[6.0, 7.0, 8.0, 9.0]]
    assert forecaster.naive_forecast(batch_of(past), 2).tolist() == [[10.0, 11.0, 10.0, 11.0]]


@pytest.mark.parametrize(("seen", "expected"), [(3, [3.0] * HORIZON), (None, [0.0] * HORIZON)])
def test_naive_forecasts_step_over_what_is_missing(seen: int | None, expected: list[float]) -> None:
    past = torch.arange(CONTEXT).float()[None]
    observed = torch.zeros(1, CONTEXT, dtype=torch.bool)
    if seen is not None:
        observed[0, : seen + 1] = True
    for season in (None, 6):
        assert forecaster.naive_forecast(batch_of(past, observed), season).tolist() == [expected]
