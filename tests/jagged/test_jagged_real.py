"""Jagged batches of real series, grouped to lists by polars, killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import windeck as wd
from support.real_data import real_data


@pytest.fixture(scope="module")
def days() -> pl.DataFrame:
    """A row for each series and day: its hours, its values, and their number."""
    frame = pl.read_parquet(real_data("nab.parquet"))
    stamp = pl.col("timestamp")
    return (
        frame.group_by("series", stamp.dt.date().alias("day"), maintain_order=True)
        .agg(
            hours=stamp.dt.hour().cast(pl.Int8),
            values=pl.col("value").cast(pl.Float32),
            count=pl.len().cast(pl.Int64),
        )
        .drop("series", "day")
    )


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_every_row_is_served_once_with_its_lists(
    suffix: str, days: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / f"days.{suffix}"
    (days.write_parquet if suffix == "parquet" else days.write_ipc)(path)
    hours, values = days["hours"].to_list(), days["values"].to_list()
    jagged = wd.JaggedTable.read(path)
    assert jagged.fingerprint == wd.JaggedTable.from_arrow(days).fingerprint
    seen: list[int] = []
    state = None
    for batch_size, last in ((100, 7), (33, 20), (256, None)):
        options: dict[str, Any] = {"batch_size": batch_size, "max_steps": last, "epochs": 1}
        loader = wd.Loader(jagged, shuffle=True, seed=5, **options)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        for batch in loader:
            rows = loader.samples(loader.step - 1).tolist()
            seen += rows
            assert batch["count"].tolist() == [len(hours[row]) for row in rows]
            for key, lists in (("hours", hours), ("values", values)):
                offsets = batch[f"{key}_offsets"].tolist()
                assert offsets == np.cumsum([0, *(len(lists[row]) for row in rows)]).tolist()
                assert batch[key].tolist() == [value for row in rows for value in lists[row]]
        state = json.dumps(loader.state_dict())
    assert sorted(seen) == list(range(len(days)))


def test_bags_of_real_lists_are_those_of_torch(days: pl.DataFrame) -> None:
    jagged = wd.JaggedTable.from_arrow(days, lists="hours")
    batch = next(iter(wd.Loader(jagged, batch_size=256, shuffle=True, seed=1)))
    table = wd.EmbeddingTable(8, name="hours")
    weights = table(torch.arange(24)).detach()
    for mode in ("sum", "mean", "max"):
        found = table.bag(batch["hours"], batch["hours_offsets"], mode=mode)
        wanted = torch.nn.functional.embedding_bag(
            batch["hours"], weights, batch["hours_offsets"], mode=mode, include_last_offset=True
        )
        torch.testing.assert_close(found, wanted)
