"""Published orders stay as they are: the golden values of tests/golden."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from models.reference_permutation import ReferencePermutation
from support.golden_orders import FACTORIES, LONGEST, golden

GOLDEN = Path(__file__).parents[1] / "golden"
PUBLISHED = json.loads((GOLDEN / f"orders_v{wd.ORDER_VERSION}.json").read_text())
ROWS: list[dict[str, Any]] = PUBLISHED["orders"]


def test_the_file_is_of_this_order_version() -> None:
    assert PUBLISHED["order_version"] == wd.ORDER_VERSION == 1
    assert {row["factory"] for row in ROWS} == set(FACTORIES)


@pytest.mark.parametrize("factory", FACTORIES)
def test_published_orders_have_not_changed(factory: str) -> None:
    for row in ROWS:
        if row["factory"] == factory:
            assert golden(factory, row["size"], row["seed"], row["epoch"]) == row


def test_the_model_gives_the_published_orders_too() -> None:
    for row in ROWS:
        if row["factory"] != "Permutation":
            continue
        size = row["size"]
        model = ReferencePermutation(size, row["seed"], row["epoch"])
        ends = [np.arange(min(size, LONGEST)), np.arange(max(0, size - LONGEST), size)]
        samples = model.take(np.concatenate(ends)).astype("<i8")
        assert samples[:8].tolist()[: len(row["first"])] == row["first"]
        digest = hashlib.blake2b(samples.tobytes(), digest_size=16).hexdigest()
        assert digest == row["blake2b"]
