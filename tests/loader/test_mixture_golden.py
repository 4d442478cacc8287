"""Golden values: the samples of mixtures are as published, and equal those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.mixture_model import Shared
from support.golden_mixture import FAR, WAYS, WAYS_2, golden, weights
from support.text_mixtures import Mixed
from windeck.loader.weights import LONGEST_PERIOD, exact_shares, slot_counts

GOLDEN = Path(__file__).parents[1] / "golden"
PUBLISHED = json.loads((GOLDEN / "mixture_v1.json").read_text())
PUBLISHED_2 = json.loads((GOLDEN / "mixture_v2.json").read_text())


def test_every_way_is_published() -> None:
    assert PUBLISHED.keys() == WAYS.keys()
    assert PUBLISHED_2.keys() == WAYS_2.keys()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_served_stays(way: str) -> None:
    assert golden(way) == PUBLISHED[way]


@pytest.mark.parametrize("way", WAYS_2)
def test_what_version_2_serves_stays(way: str) -> None:
    assert golden(way, 2) == PUBLISHED_2[way]


def test_versions_differ_only_where_the_first_one_rounds() -> None:
    same = {way for way in WAYS if PUBLISHED[way] == PUBLISHED_2[way]}
    assert same == {"exact", "single", "even"}


@pytest.mark.parametrize("way", ["rounded", "lifted", "tokens", "digits", "many"])
def test_the_model_in_fractions_serves_the_same(way: str) -> None:
    model = Shared(slot_counts(exact_shares(weights(WAYS_2[way][0])), LONGEST_PERIOD))
    assert [model.part(position)[0] for position in range(40)] == PUBLISHED_2[way]["parts"]
    far = [model.part(FAR + position) for position in range(8)]
    assert [list(values) for values in zip(*far, strict=True)] == PUBLISHED_2[way]["far"]


@pytest.mark.parametrize("way", WAYS)
def test_the_model_deals_the_same(way: str) -> None:
    first, schedule = WAYS[way]
    names = list(weights(first))
    model = Mixed(
        {name: (None, weight) for name, weight in weights(first).items()},  # type: ignore[misc]
        [(at, weights(changed)) for at, changed in schedule],
        version=1,
    )
    dealt = [model.slot(position)[0] for position in range(40)]
    assert [names.index(name) for name in dealt] == PUBLISHED[way]["parts"]
