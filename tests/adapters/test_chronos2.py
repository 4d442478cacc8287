"""Batches for Chronos-2 equal those of its own dataset, and so does a trained model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.adapted_batches import FUTURE, PAST, SEED, assert_equal, windows
from windeck.adapters import chronos2

pytestmark = pytest.mark.filterwarnings("ignore")
PATCH, BATCH = 2, 16


@pytest.fixture
def library() -> Any:
    pytest.importorskip("chronos")
    return pytest.importorskip("chronos.chronos2")


@pytest.fixture
def source() -> Any:
    return windows(fill=float("nan"))


def theirs(library: Any, source: Any, numbers: Any) -> Any:
    """Return a dataset of Chronos-2 of some windows: it serves the last steps of each input."""
    batch = source.gather(numbers)
    whole = np.concatenate([batch["past_target"], batch["future_target"]], axis=1)[..., 0]
    known = np.concatenate([batch["past_known"], batch["future_known"]], axis=1)[..., 0]
    unknown = np.full((len(whole), FUTURE), np.nan, np.float32)
    before = np.concatenate([batch["past_covariates"][..., 0], unknown], axis=1)
    inputs = [
        {
            "target": target,
            "past_covariates": {"known": one, "past": other},
            "future_covariates": {"known": np.zeros(FUTURE, np.float32)},
        }
        for target, one, other in zip(whole, known, before, strict=True)
    ]
    return library.Chronos2Dataset(
        inputs, context_length=PAST, prediction_length=FUTURE, batch_size=BATCH * 3,
        output_patch_size=PATCH, mode="validation",
    )  # fmt: skip


def trained(library: Any, batches: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    config = library.Chronos2CoreConfig(
        d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0,
        chronos_config={
            "context_length": PAST, "output_patch_size": PATCH, "input_patch_size": PATCH,
            "input_patch_stride": PATCH, "quantiles": [0.1, 0.5, 0.9], "max_output_patches": 2,
            "use_reg_token": True,
        },
    )  # fmt: skip
    model = library.Chronos2Model(config)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for batch in batches:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert all(torch.isfinite(torch.stack(losses)))
    return {**model.state_dict(), "losses": torch.stack(losses)}


def test_batches_and_a_trained_model_are_equal(library: Any, source: Any) -> None:
    options = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "output_patch_size": PATCH}
    ours = chronos2.loader(source, **options)
    order = ours.loader.stream.order_at(0)[:]  # type: ignore[attr-defined]
    expected = theirs(library, source, order)
    batches = list(chronos2.loader(source, **options))
    assert_equal(batches, list(expected))
    assert [batch["num_output_patches"] for batch in batches] == [
        batch["num_output_patches"] for batch in expected
    ]
    assert_equal(trained(library, ours), trained(library, expected))


def test_missing_values_have_to_be_nan() -> None:
    with pytest.raises(ValueError, match=r"must have fill=float\('nan'\), got.*fill=0.0"):
        chronos2.loader(windows(), batch_size=BATCH, output_patch_size=PATCH)


def test_known_covariates_need_their_past() -> None:
    """Without it the values of the future would be in the rows of other columns."""
    keys = ["past_target", "future_target", "past_covariates", "future_known"]
    source = windows(fill=float("nan"), keys=keys)
    batches = chronos2.loader(source, batch_size=BATCH, output_patch_size=PATCH)
    with pytest.raises(KeyError, match=r"no 'past_known', only .*with 'future_known', or neither"):
        next(iter(batches))
