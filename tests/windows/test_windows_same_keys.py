"""Keys, dtypes and shapes of a batch follow from options: they are the same for any contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather, parquet

import windeck as wd

ROWS = 40
CONTENTS = ("complete", "one null", "one NaN", "all null")
WAYS = ("parquet", "arrow", "mapped", "streamed", "counted", "from_arrow", "from_columns")
INDEX: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time"}
OPTIONS: dict[str, Any] = {
    "context_length": 4,
    "prediction_length": 2,
    "target_columns": "load",
    "known_covariates": "hour",
    "past_covariates": "wind",
    "static_covariates": "area",
}
KEYS = ["past_target", "future_target", "past_known", "future_known", "past_covariates", "static"]


def rows_of(contents: str) -> pa.Table:
    """Return two series with columns of all types and these contents."""
    rows = np.arange(ROWS)
    values: dict[str, Any] = {
        "load": rows / 2,
        "wind": (rows / 4).astype(np.float32),
        "hour": (rows % 24).astype(np.int8),
        "flag": rows % 2 == 0,
        "kind": np.where(rows % 3, "x", "y"),
        "area": (rows // 20).astype(np.int32),
    }
    found: dict[str, Any] = {"id": np.where(rows < 20, "a", "b"), "time": rows}
    for name, array in values.items():
        null = {"one null": rows == 25, "all null": rows >= 0}.get(contents, rows < 0)
        if name == "area":  # is one value in a series
            null = null & (contents == "all null")
        if contents == "one NaN" and array.dtype.kind == "f":
            array[25] = np.nan
        found[name] = pa.array(array, mask=null)
    return pa.table({**found, "kind": found["kind"].dictionary_encode()})


def table_in(way: str, contents: str, folder: Path) -> wd.Table:
    """Return the table of these contents, made in one of `WAYS`."""
    data = rows_of(contents)
    if way == "from_arrow":
        return wd.Table.from_arrow(data, **INDEX)
    if way == "from_columns":
        return wd.Table.from_columns({n: data[n] for n in data.column_names}, **INDEX)
    if way in ("arrow", "mapped"):
        path = folder / "rows.arrow"
        feather.write_feather(data, path, compression="uncompressed")
        return wd.Table.read(path, in_memory=way == "arrow", **INDEX)
    path = folder / "rows.parquet"
    parquet.write_table(data, path, row_group_size=7)
    if way == "parquet":
        return wd.Table.read(path, **INDEX)
    table = wd.Table.read(path, in_memory=False, group_bytes=400, **INDEX)
    return table if way == "streamed" else table.with_missing_counts()


def described(batch: dict[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return keys, dtypes and shapes; check that masks are memory of this batch alone."""
    for key, array in batch.items():
        if key.endswith("_mask"):
            before = {name: other.tolist() for name, other in batch.items()}
            array[:] = ~array  # writable
            after = {name: other.tolist() for name, other in batch.items()}
            array[:] = ~array
            assert {name for name in batch if str(after[name]) != str(before[name])} == {key}
    return [
        (key, str(array.dtype).removeprefix("torch."), tuple(array.shape))
        for key, array in batch.items()
    ]


def batches_of(table: wd.Table, streamed: bool, **options: Any) -> dict[str, Any]:
    """Return a batch of the windows of a table, and of all that is made of them."""
    w = wd.Windows(table, **OPTIONS, **options)
    numbers = [0, 20, 9]
    found: dict[str, Any] = {
        "windows": w.gather(numbers),
        "latest": w.latest().gather([0, 1]),
        "subset": w.subset(last=3).gather([0, 5]),
        "part": w.split(validation_rows=4, test_rows=4).test.gather([0]),
        "balanced": w.balanced().at_epoch(0, seed=1).gather(numbers),
        "loader": next(iter(wd.Loader(w, batch_size=3))),
        "run": list(wd.Loader(w, batch_size=3, max_steps=9))[8],
        "map": wd.MapDataset(w).__getitems__(numbers),
        "iter": next(iter(wd.IterDataset(wd.Stream(w), batch_size=3))),
        "mixture": next(iter(wd.Loader(wd.Mixture({"a": (w, 1.0)}, seed=0), batch_size=3))),
    }
    if options.get("layout") != "columns":
        found["joined"] = w.joined().gather(numbers)
        found["joined loader"] = next(iter(wd.Loader(w.joined(), batch_size=3)))
    if not streamed:
        found["device"] = w.to("cpu").gather_tensors(numbers)
        found["device loader"] = next(iter(wd.Loader(w.to("cpu"), batch_size=3)))
        found["device balanced"] = next(iter(wd.Loader(w.to("cpu").balanced(), batch_size=3)))
    return found


VARIANTS: list[dict[str, Any]] = [
    {},
    {"layout": "bct"},
    {"layout": "columns"},
    {"pad": "both", "dtype": "float32"},
    {"masks": False},
    {"keys": ["past_target", "past_target_mask", "static"]},
    {"keys": ["past_target", "static"], "masks": True},
]


@pytest.mark.filterwarnings("ignore:.* no target in their latest context:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_batches_of_any_contents_have_the_same_keys(
    way: str, options: dict[str, Any], tmp_path: Path
) -> None:
    found = {}
    for contents in CONTENTS:
        (tmp_path / contents).mkdir()
        table = table_in(way, contents, tmp_path / contents)
        batches = batches_of(table, way in ("streamed", "counted"), **options)
        found[contents] = {name: described(batch) for name, batch in batches.items()}
        if contents == "complete" and "pad" not in options:
            for name, batch in batches.items():
                masks = [array for key, array in batch.items() if key.endswith("_mask")]
                assert all(mask.all() for mask in masks), name
    for contents in CONTENTS:
        assert found[contents] == found["complete"], contents
    names = [name for name, *_ in found["complete"]["windows"]]
    if options in ({}, {"layout": "bct"}):
        assert names == [*(k for key in KEYS for k in (key, f"{key}_mask")), "series_id", "start"]
    if options == {"masks": False}:
        assert names == [*KEYS, "series_id", "start"]


@pytest.mark.parametrize("way", WAYS)
def test_columns_of_any_contents_have_the_same_dtypes(way: str, tmp_path: Path) -> None:
    found = []
    for contents in CONTENTS:
        (tmp_path / contents).mkdir()
        table = table_in(way, contents, tmp_path / contents)
        w = wd.Windows(table, context_length=2, layout="columns", target_columns=table.column_names)
        found.append(described(w.gather([3, 5])))
    assert found[1:] == found[:1] * 3


def test_the_loop_of_the_readme_runs_on_integers_without_gaps() -> None:
    table = wd.Table.from_columns({"load": np.arange(100)})
    windows = wd.Windows(table, context_length=8, prediction_length=2)
    for batch in wd.Loader(windows, batch_size=32):
        mask = batch["future_target_mask"]
        assert mask.dtype == torch.bool
        assert batch["future_target"][mask].numel() == 2 * len(batch["start"])
