"""Tests of the comparison of schedulers by the names in their states."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from windeck.checkpoint.training_state import compare_scheduler

kinds = torch.optim.lr_scheduler
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
step = kinds.StepLR(optimizer, 2)


@pytest.mark.parametrize(
    ("own", "saved", "lost", "more"),
    [
        (kinds.ExponentialLR(optimizer, 0.5), step.state_dict(), "[]", "['step_size']"),
        (step, kinds.ExponentialLR(optimizer, 0.5).state_dict(), "['step_size']", "[]"),
        (step, kinds.LambdaLR(optimizer, float).state_dict(), "['gamma', 'step_size']", "['lr_l"),
        (kinds.SequentialLR(optimizer, [step, step], [1]), {"_schedulers": []}, "['last_epo", "[]"),
    ],
    ids=["step", "exponential", "lambda", "chained"],
)
def test_a_scheduler_of_another_class_is_refused(
    own: Any, saved: dict[str, Any], lost: str, more: str
) -> None:
    with pytest.raises(ValueError, match="scheduler 3 is of another class than in here") as error:
        compare_scheduler(3, own, saved, "here")
    assert f"{type(own).__name__} has {lost}" in str(error.value)
    assert f"only the saved one {more}" in str(error.value)


def test_names_that_may_be_missing() -> None:
    """Versions of torch differ in private names, and schedulers of users may add their own."""
    saved = step.state_dict()
    del saved["_step_count"]
    compare_scheduler(0, step, {**saved, "verbose": False, "_more": 1, "best_loss": 2.0}, "here")
