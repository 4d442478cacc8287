"""The proof of the demo finds every fault that is planted in what the processes wrote down."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from windeck.tools import forecaster, proof

BATCH, SEED, STEPS, SAVED = 16, 3, 13, 6

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def windows() -> wd.Windows:
    table = wd.Table.from_columns({"load": np.arange(150.0)}, offsets=[0, 70, 150])
    return wd.Windows(table, context_length=8, prediction_length=2)


def logs(windows: wd.Windows) -> dict[str, Any]:
    """What three faultless processes leave: the second is killed two steps after it saved."""
    expected = proof.expected_samples(windows, batch_size=BATCH, seed=SEED, steps=STEPS)
    model = forecaster.build(8, 2, seed=SEED)
    return {
        "expected": expected,
        "uninterrupted": expected.copy(),
        "killed": expected[expected[:, 0] <= SAVED + 2].copy(),
        "resumed": expected[expected[:, 0] > SAVED].copy(),
        "resumed_from": SAVED,
        "weights": model,
        "resumed_weights": {name: t.clone() for name, t in model.state_dict().items()},
    }


def test_expected_samples_are_those_of_the_permutation(windows: wd.Windows) -> None:
    found = proof.expected_samples(windows, batch_size=BATCH, seed=SEED, steps=STEPS)
    count = len(windows)
    per_epoch = -(-count // BATCH)
    assert per_epoch < STEPS < 2 * per_epoch
    row = 0
    for step in range(1, STEPS + 1):
        epoch, batch = divmod(step - 1, per_epoch)
        order = wd.Permutation(count, seed=SEED, epoch=epoch)
        for place in range(batch * BATCH, min(count, (batch + 1) * BATCH)):
            assert found[row].tolist() == [step, *windows.locate(order[place])]
            row += 1
    assert row == len(found)


def test_a_faultless_run_holds(windows: wd.Windows) -> None:
    found = proof.examine(**logs(windows))
    assert found.holds
    assert found.samples == len(logs(windows)["expected"])


def swap_two(left: dict[str, Any]) -> None:
    left["resumed"][[0, 1]] = left["resumed"][[1, 0]]


def lose_one(left: dict[str, Any]) -> None:
    left["resumed"] = left["resumed"][1:]


def repeat_a_batch(left: dict[str, Any]) -> None:
    left["resumed"] = np.concatenate((left["resumed"][:BATCH], left["resumed"]))


def go_astray_before_the_kill(left: dict[str, Any]) -> None:
    left["killed"][-1, 2] += 1


@pytest.mark.parametrize("change", [swap_two, lose_one, repeat_a_batch, go_astray_before_the_kill])
def test_other_samples_are_found(windows: wd.Windows, change: Change) -> None:
    left = logs(windows)
    change(left)
    found = proof.examine(**left)
    assert not found.as_computed
    assert not found.holds


def test_one_window_served_twice_is_found(windows: wd.Windows) -> None:
    left = logs(windows)
    for name in ("expected", "uninterrupted", "resumed"):
        left[name][-1] = left[name][-2]
    found = proof.examine(**left)
    assert found.as_computed
    assert not found.each_once


def test_one_bit_of_one_weight_is_found(windows: wd.Windows) -> None:
    left = logs(windows)
    bits = left["resumed_weights"]["linear.weight"].view(torch.int32)
    bits[0, 0] ^= 1
    found = proof.examine(**left)
    assert found.as_computed
    assert not found.same_weights
