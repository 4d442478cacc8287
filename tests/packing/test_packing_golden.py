"""Published packed orders equal the golden values in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.golden_packing import KEYS, WAYS, golden

PUBLISHED = json.loads((Path(__file__).parents[1] / "golden" / "packing_v1.json").read_text())
ROWS: list[dict[str, Any]] = PUBLISHED["packed"]


def test_the_file_is_of_this_order_version() -> None:
    assert PUBLISHED["order_version"] == wd.ORDER_VERSION == 1
    assert len(ROWS) == len(WAYS) * len(KEYS)


@pytest.mark.parametrize("by_model", [False, True], ids=["library", "model"])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_published_sequences_have_not_changed(way: int, by_model: bool) -> None:
    for number, (epoch, seed) in enumerate(KEYS):
        found = golden(WAYS[way], epoch, seed, by_model=by_model)
        assert found == ROWS[way * len(KEYS) + number]
