"""The recipe for Ray in docs/frameworks.md: two actors, killed and resumed as another number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.forked import RunInChild, ray_in_child
from support.recipes import names

ray = pytest.importorskip("ray")

SIZE, BATCH = 96, 16


@pytest.fixture(scope="module")
def run_on_ray() -> Iterator[RunInChild]:
    with ray_in_child(num_cpus=3) as run:
        yield run


def functions() -> tuple[Any, Any]:
    """Return the data and the training step, which Ray sends by value."""

    def make_windows() -> wd.Windows:
        table = wd.Table.from_columns({"load": np.arange(SIZE + 23, dtype=np.float32)})
        return wd.Windows(table, context_length=18, prediction_length=6)

    def step(batch: Any) -> list[int]:
        return [int(first) for first in batch["past_target"][:, 0, 0]]

    return make_windows, step


def trained(ranks: int, steps: int, state: Any = None) -> tuple[Any, list[int]]:
    """Train in so many actors; return a state and the samples in the order of steps and ranks."""
    make_windows, step = functions()
    worker = ray.remote(names("Plain torch", "Ray")["Worker"])
    actors = [
        worker.options(num_cpus=0.5).remote(make_windows, rank, ranks, state)
        for rank in range(ranks)
    ]
    answers = ray.get([actor.train.remote(step, steps) for actor in actors])
    for actor in actors:
        ray.kill(actor)
    states = [state for state, _ in answers]
    assert all(state == states[0] for state in states)
    found = [
        samples for one in zip(*(results for _, results in answers), strict=True) for samples in one
    ]
    return states[-1], [sample for samples in found for sample in samples]


def test_actors_are_killed_and_resumed_as_another_number(run_on_ray: RunInChild) -> None:
    order = [
        int(sample)
        for epoch in range(2)
        for sample in wd.Permutation(SIZE, seed=7, epoch=epoch).take(np.arange(SIZE))
    ]
    state, first = run_on_ray(trained, 2, 4)
    assert first == order[:128]
    state, rest = run_on_ray(trained, 1, 4, state)
    assert first + rest == order
    assert state["position"] == 2 * SIZE


def test_a_dataset_that_is_sent_keeps_its_position_and_moves_by_itself(
    run_on_ray: RunInChild,
) -> None:
    run_on_ray(_a_dataset_that_is_sent_keeps_its_position_and_moves_by_itself)


def _a_dataset_that_is_sent_keeps_its_position_and_moves_by_itself() -> None:
    make_windows, step = functions()
    dataset = wd.IterDataset(wd.Stream(make_windows(), seed=7), batch_size=BATCH, position=32)

    def consume(dataset: Any) -> list[list[int]]:
        return [[sample for batch in dataset for sample in step(batch)] for _ in range(2)]

    found = ray.get(ray.remote(consume).remote(dataset))
    orders = [wd.Permutation(SIZE, seed=7, epoch=e).take(np.arange(SIZE)).tolist() for e in (0, 1)]
    assert found == [orders[0][32:], orders[1]]
    assert dataset.position == 32
