"""Loaders of adapters over the same three series, and a program that is killed while it loops.

    python adapted_batches.py LIBRARY FOLDER [KILL_AT]

The program appends the digest of each batch of two epochs to a file, and saves the state after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import windeck as wd

LENGTHS = (60, 75, 90)
PAST, FUTURE, BATCH, SEED, EPOCHS = 8, 4, 32, 7, 2
OFFSETS = np.cumsum([0, *LENGTHS])


def columns() -> dict[str, NDArray[np.float32]]:
    """Return a target, a known and a past covariate, and one that is constant in a series."""
    rng = np.random.default_rng(0)
    rows = int(OFFSETS[-1])
    made = {name: rng.standard_normal(rows, dtype=np.float32) for name in ("y", "known", "past")}
    return {**made, "static": np.repeat(np.arange(3, dtype=np.float32), LENGTHS)}


def table() -> wd.Table:
    """Return the series as a table with hourly time stamps."""
    hours = np.concatenate([np.arange(length) for length in LENGTHS])
    stamps = np.datetime64("2024-01-01T00", "h") + hours
    data = {**columns(), "time": stamps}
    return wd.Table.from_columns(data, offsets=OFFSETS, timestamp_column="time")


def windows(**options: Any) -> wd.Windows:
    """Return windows with a column in each role."""
    return wd.Windows(
        table(),
        context_length=PAST,
        prediction_length=FUTURE,
        **{
            "target_columns": "y",
            "known_covariates": "known",
            "past_covariates": "past",
            "static_covariates": "static",
            **options,
        },
    )


def frame() -> Any:
    """Return the series as a data frame with the ids of all libraries."""
    import pandas as pd

    numbers = np.repeat(np.arange(3), LENGTHS)
    steps = np.concatenate([np.arange(length) for length in LENGTHS])
    ids = {"unique_id": numbers, "ds": steps, "time_idx": steps}
    return pd.DataFrame({**ids, "site": [f"site {number}" for number in numbers], **columns()})


def dataset(**options: Any) -> Any:
    """Return the series as a dataset of pytorch-forecasting."""
    from pytorch_forecasting import GroupNormalizer, TimeSeriesDataSet

    weeks = {"week": (frame()["time_idx"] // 7 % 5).map(str), "weight": np.linspace(1, 2, 225)}
    return TimeSeriesDataSet(
        frame().assign(**weeks),
        time_idx="time_idx",
        target="y",
        group_ids=["site"],
        max_encoder_length=PAST,
        max_prediction_length=FUTURE,
        **{
            "weight": "weight",
            "static_categoricals": ["site"],
            "static_reals": ["static"],
            "time_varying_known_categoricals": ["week"],
            "time_varying_known_reals": ["known"],
            "time_varying_unknown_reals": ["y", "past"],
            "target_normalizer": GroupNormalizer(groups=["site"]),
            "add_relative_time_idx": True,
            "add_target_scales": True,
            "add_encoder_length": True,
            **options,
        },
    )


def loader(library: str) -> Any:
    """Return a shuffled loader for a library."""
    from windeck import adapters

    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED}
    if library == "darts":
        return adapters.darts.TrainingDataset(windows(fill=float("nan")), **options)
    if library == "chronos2":
        source = windows(fill=float("nan"))
        return adapters.chronos2.loader(source, output_patch_size=2, **options)
    data = dataset() if library == "pytorch_forecasting" else windows()
    return getattr(adapters, library).loader(data, **options)


def tensors(batch: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a batch of any form, with the path to each."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from tensors(getattr(batch, field.name), f"{name}.{field.name}")
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors(value, f"{name}.{key}")
    elif isinstance(batch, (list, tuple)):
        for number, value in enumerate(batch):
            yield from tensors(value, f"{name}.{number}")


def digest(batch: Any) -> str:
    """Return a digest of the names, dtypes, shapes and bits of the tensors in a batch."""
    found = hashlib.sha256()
    for name, tensor in tensors(batch):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def assert_equal(ours: Any, theirs: Any) -> None:
    """Check that two batches have the same names, dtypes, shapes and bits."""
    found, expected = dict(tensors(ours)), dict(tensors(theirs))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name].nan_to_num(7), tensor.nan_to_num(7)), name


def main(library: str, folder: Path, kill_at: int | None) -> None:
    """Loop over the rest of two epochs, and kill this process before a step."""
    batches, saved = loader(library), folder / "state.json"
    if saved.exists():
        batches.load_state_dict(json.loads(saved.read_text()))
    with open(folder / "digests", "a") as file:
        while batches.loader.epoch < EPOCHS:
            for batch in batches:
                if batches.loader.step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                file.write(f"{digest(batch)}\n")
                file.flush()
                part = saved.with_suffix(".part")
                part.write_text(json.dumps(batches.state_dict()))
                part.replace(saved)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
