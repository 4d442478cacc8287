"""Tests of the comparison of schedulers by the names in their states."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch

from support.internals import compare_scheduler
from windeck.checkpoint.format import state_json

kinds = torch.optim.lr_scheduler
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
step = kinds.StepLR(optimizer, 2)


@pytest.mark.parametrize(
    ("own", "saved", "words"),
    [
        (kinds.ExponentialLR(optimizer, 0.5), step.state_dict(), "the saved one has ['step_size']"),
        (
            step,
            kinds.ExponentialLR(optimizer, 0.5).state_dict(),
            "this StepLR has ['step_size']",
        ),
        (
            step,
            kinds.LambdaLR(optimizer, float).state_dict(),
            "this StepLR has ['gamma', 'step_size'], only the saved one has ['lr_lambdas']",
        ),
        (
            kinds.SequentialLR(optimizer, [step, step], [1]),
            {"_schedulers": []},
            "this SequentialLR has ['last_epoch']",
        ),
    ],
    ids=["step", "exponential", "lambda", "chained"],
)
def test_a_scheduler_of_another_class_is_refused(
    own: Any, saved: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match="scheduler 3 is of another class than in") as error:
        compare_scheduler(3, own, saved, "here")
    assert str(error.value) == f"scheduler 3 is of another class than in here: only {words}"


def sequence(*steps: int, kind: Any = kinds.StepLR) -> Any:
    inner = [kind(optimizer, step) for step in steps]
    return kinds.SequentialLR(optimizer, inner, [*range(2, 1 + len(steps))])


def test_schedulers_in_schedulers_are_compared() -> None:
    saved = sequence(3, 4).state_dict()
    compare_scheduler(0, sequence(5, 6), saved, "here")
    with pytest.raises(ValueError, match="scheduler 0 has 3 schedulers, expected 2 as saved in he"):
        compare_scheduler(0, sequence(3, 4, 5), saved, "here")
    with pytest.raises(ValueError, match="scheduler 0 is of another class than in here"):
        compare_scheduler(0, sequence(3, 4, kind=kinds.ExponentialLR), saved, "here")
    other = kinds.LambdaLR(optimizer, float)
    for own, state in ((other, saved), (sequence(3, 4), other.state_dict())):
        with pytest.raises(ValueError, match="scheduler 0 is of another class than in here"):
            compare_scheduler(0, own, state, "here")


def test_dicts_in_dicts_get_their_subclasses() -> None:
    own = defaultdict[str, Any](Counter, {"a": Counter()})
    found = state_json.restore_types(
        {"d": own, "l": [Counter()]}, {"d": {"b": {"x": 1}}, "l": [{"y": 2}, {}]}
    )
    assert type(found["d"]["b"]) is Counter
    assert found == {"d": {"b": Counter(x=1)}, "l": [Counter(y=2), {}]}
    assert found["d"].default_factory is Counter


class Migrating(kinds.LambdaLR):
    """A scheduler that can load a state with an older name."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "warmup_steps": state_dict.get("warmup")})


class Extended(kinds.LambdaLR):
    """A scheduler with a value that has the name of an argument of another class."""

    gamma = 0.5


def test_schedulers_of_users_may_change() -> None:
    saved = kinds.LambdaLR(optimizer, float).state_dict()
    compare_scheduler(0, Migrating(optimizer, float), {**saved, "warmup": 5, "total": 9}, "here")
    compare_scheduler(0, Extended(optimizer, float), {**saved, "gamma": 0.5}, "here")


def test_names_that_may_be_missing() -> None:
    """Versions of torch differ in private names, and schedulers of users may add their own."""
    saved = step.state_dict()
    del saved["_step_count"]
    compare_scheduler(0, step, {**saved, "verbose": False, "_more": 1, "best_loss": 2.0}, "here")
