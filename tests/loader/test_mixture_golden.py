"""Golden values: the samples of mixtures are as published, and equal those of the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.golden_mixture import FAR, WAYS, golden, weights
from support.text_mixtures import Mixed, shared

GOLDEN = Path(__file__).parents[1] / "golden"
PUBLISHED = json.loads((GOLDEN / "mixture_v1.json").read_text())


def test_every_way_is_published() -> None:
    assert PUBLISHED.keys() == WAYS.keys()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_served_stays(way: str) -> None:
    assert golden(way) == PUBLISHED[way]


@pytest.mark.parametrize("way", ["rounded", "lifted", "tokens", "digits", "many"])
def test_the_model_in_fractions_serves_the_same(way: str) -> None:
    model = shared(weights(WAYS[way][0]))
    assert [model.part(position)[0] for position in range(40)] == PUBLISHED[way]["parts"]
    far = [model.part(FAR + position) for position in range(8)]
    assert [list(values) for values in zip(*far, strict=True)] == PUBLISHED[way]["far"]


@pytest.mark.parametrize("way", WAYS)
def test_the_model_deals_the_same(way: str) -> None:
    first, schedule = WAYS[way]
    names = list(weights(first))
    model = Mixed(
        {name: (None, weight) for name, weight in weights(first).items()},  # type: ignore[misc]
        [(at, weights(changed)) for at, changed in schedule],
    )
    dealt = [model.slot(position)[0] for position in range(40)]
    assert [names.index(name) for name in dealt] == PUBLISHED[way]["parts"]
