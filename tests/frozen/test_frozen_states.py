"""Stored states, caches and orders keep their meaning, and are written in the same way."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.frozen_data import (
    CASES,
    SCALERS,
    SHARDS,
    continued,
    corpus,
    document,
    documents,
    read_json,
    scaler,
    series,
    state_of,
)
from support.frozen_states import (
    SAMPLERS,
    cached,
    datasets,
    iterated,
    make_caches,
    mapped,
    orders,
    sampled,
)

LOADERS: dict[str, Any] = read_json("loaders.json")
OTHERS: dict[str, Any] = read_json("others.json")


def test_there_is_a_state_for_every_case() -> None:
    assert set(LOADERS) == set(CASES)
    assert set(OTHERS["samplers"]) == set(SAMPLERS)
    assert set(OTHERS["datasets"]) == set(datasets())


@pytest.mark.parametrize("name", CASES)
def test_a_loader_continues_from_a_stored_state(name: str, tmp_path: Path) -> None:
    expected = dict(LOADERS[name])
    state = expected.pop("state")
    assert continued(name, state, tmp_path) == expected


@pytest.mark.parametrize("name", CASES)
def test_a_loader_returns_the_stored_state(name: str, tmp_path: Path) -> None:
    state = json.loads(json.dumps(state_of(name, tmp_path)))
    assert state == LOADERS[name]["state"]
    assert list(state) == list(LOADERS[name]["state"])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_continues_from_a_stored_state(name: str) -> None:
    expected = OTHERS["samplers"][name]
    assert sampled(name, expected["state"]) == expected
    assert sampled(name) == expected


@pytest.mark.parametrize("name", datasets())
def test_a_dataset_continues_from_a_stored_state(name: str) -> None:
    expected = OTHERS["datasets"][name]
    assert iterated(name, expected["state"]) == expected
    assert iterated(name) == expected


def test_batches_of_a_map_dataset_are_the_same() -> None:
    assert mapped() == OTHERS["mapped"]


def test_orders_are_the_same() -> None:
    assert orders() == OTHERS["orders"]


def test_documents_are_those_of_the_arithmetic(tmp_path: Path) -> None:
    found = [tokens.tolist() for tokens in documents(tmp_path)]
    assert found == [document(name, i) for name in SHARDS for i in range(SHARDS[name])]


@pytest.mark.parametrize("name", SCALERS)
def test_a_stored_scaler_scales_as_it_was_fitted(name: str) -> None:
    stored = scaler(name)
    assert json.loads(stored.to_json()) == read_json("scalers.json")[name]
    again = wd.Scaler.fit(series(), **SCALERS[name])
    assert (again.kind, again.columns, again.series) == (stored.kind, stored.columns, stored.series)
    np.testing.assert_array_equal(again.counts, stored.counts)
    for key, values in stored.statistics.items():
        np.testing.assert_allclose(again.statistics[key], values, rtol=1e-12, err_msg=key)
    if stored.series is None:
        row = np.array([[100.5, -3.25, 7.0]])
        expected = (row - stored.center) / stored.spread
        np.testing.assert_allclose(stored.transform(row), expected, rtol=1e-12)
        np.testing.assert_allclose(stored.inverse_transform(expected), row, rtol=1e-12)


def test_caches_are_written_under_the_same_names_with_the_same_bytes(tmp_path: Path) -> None:
    make_caches(tmp_path)
    assert cached(tmp_path / "caches") == read_json("caches.json")


def test_stored_counts_are_used(tmp_path: Path) -> None:
    wd.Documents(corpus(tmp_path), cache=tmp_path)
    (name,) = (path.name for path in tmp_path.glob("*.csv"))
    rows = list(csv.DictReader(read_json("caches.json")[name].splitlines()))
    # No file has this count, so it can only come from the count file.
    rows[0]["tokens"] = rows[0]["kept_tokens"] = "1000000"
    with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    found = wd.Documents(corpus(tmp_path), cache=tmp_path)
    assert found.shard_tokens.tolist() == [1_000_000, *(int(row["tokens"]) for row in rows[1:])]
