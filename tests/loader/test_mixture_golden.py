"""Golden values: the samples of mixtures are as published, and equal those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.golden_mixture import WAYS, golden, weights
from support.text_mixtures import Mixed

PUBLISHED = json.loads((Path(__file__).parents[1] / "golden" / "mixture_v1.json").read_text())


def test_every_way_is_published() -> None:
    assert PUBLISHED.keys() == WAYS.keys()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_served_stays(way: str) -> None:
    assert golden(way) == PUBLISHED[way]


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
