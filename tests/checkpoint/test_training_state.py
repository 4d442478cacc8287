"""Tests of the comparison of schedulers by the names in their states."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from windeck.checkpoint.accelerate import AccelerateCheckpoint
from windeck.checkpoint.format import state_json
from windeck.checkpoint.stores import open_store

kinds = torch.optim.lr_scheduler
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
step = kinds.StepLR(optimizer, 2)


def constant(epoch: int) -> float:
    return 1.0


def resume(saved: dict[str, Any], *own: Any) -> None:
    """Load schedulers from a checkpoint in which the last one has the state `saved`."""
    store: Any = open_store("memory://")
    accelerator = SimpleNamespace(
        unwrap_model=lambda model: model, scaler=None, sync_gradients=True
    )
    model = torch.nn.Linear(1, 1)
    former = [*own[:-1], SimpleNamespace(state_dict=lambda: saved)]
    AccelerateCheckpoint(accelerator, store, model=model, scheduler=former).save(1)
    AccelerateCheckpoint(accelerator, store, model=model, scheduler=own).load()


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
            kinds.LambdaLR(optimizer, constant).state_dict(),
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
    where = "<checkpoint windeck, generation 1, step 1>"
    expected = f"scheduler 2 is of another class than in {where}: only {words}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        resume(saved, step, step, own)


def sequence(*steps: int, kind: Any = kinds.StepLR) -> Any:
    inner = [kind(optimizer, step) for step in steps]
    return kinds.SequentialLR(optimizer, inner, [*range(2, 1 + len(steps))])


def test_schedulers_in_schedulers_are_compared() -> None:
    saved = sequence(3, 4).state_dict()
    resume(saved, sequence(5, 6))
    with pytest.raises(ValueError, match="scheduler 0 has 3 schedulers, expected 2 as saved in <c"):
        resume(saved, sequence(3, 4, 5))
    with pytest.raises(ValueError, match="scheduler 0 is of another class than in <checkpoint"):
        resume(saved, sequence(3, 4, kind=kinds.ExponentialLR))
    other = kinds.LambdaLR(optimizer, constant)
    for own, state in ((other, saved), (sequence(3, 4), other.state_dict())):
        with pytest.raises(ValueError, match="scheduler 0 is of another class than in <checkpoint"):
            resume(state, own)


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
    saved = kinds.LambdaLR(optimizer, constant).state_dict()
    changed = Migrating(optimizer, constant)
    resume({**saved, "warmup": 5, "total": 9}, changed)
    assert vars(changed)["warmup_steps"] == 5
    resume({**saved, "gamma": 0.5}, Extended(optimizer, constant))


def test_names_that_may_be_missing() -> None:
    """Versions of torch differ in private names, and schedulers of users may add their own."""
    own = kinds.StepLR(optimizer, 2)
    saved = own.state_dict()
    del saved["_step_count"]
    resume({**saved, "verbose": False, "_more": 1, "best_loss": 2.0}, own)
