"""States of other options: the error names the option, not the numbers that follow from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.packing_cases import corpus
from windeck import PackedSequences

WINDOWS: dict[str, Any] = {
    "context_length": 6,
    "prediction_length": 4,
    "gap": 1,
    "stride": 2,
    "dilation": 2,
    "pad": "both",
    "target_columns": ["y", "x"],
    "known_covariates": "z",
    "past_covariates": "z",
    "static_covariates": "z",
    "fill": 1.0,
    "max_missing": 0.5,
    "max_gap": 3,
    "layout": "bct",
    "anchor": "end",
    "min_observed_past": 5,
    "min_observed_future": 2,
}
USUAL: dict[str, Any] = {
    "context_length": 5,
    "prediction_length": 3,
    "target_columns": ["x", "y"],
    "stride": 3,
}


def windows(**options: Any) -> wd.Windows:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.normal(size=200) for name in "xyz"}
    columns["x"][::11] = np.nan
    columns["z"][:] = columns["z"][0]  # As a static covariate it has one value.
    columns["time"] = np.cumsum(rng.integers(1, 4, 200))
    table = wd.Table.from_columns(columns, timestamp_column="time")
    return wd.Windows(table, **(USUAL | options))


def loader(data: Any) -> wd.Loader:
    return wd.Loader(data, batch_size=4, prefetch=0)


def mixed(source: wd.Windows) -> wd.Mixture:
    return wd.Mixture({"one": (source, 0.5), "two": (source, 0.5)})


SOURCES: dict[str, tuple[Callable[[wd.Windows], Any], str]] = {
    "source.": (lambda source: source, ""),
    "source.windows.": (lambda source: source.balanced(), ""),
    "part.one.source.": (mixed, ""),
    "device": (lambda source: source.to("cpu"), "source."),
}


@pytest.mark.parametrize("prefix", SOURCES)
@pytest.mark.parametrize("option", WINDOWS)
def test_states_of_other_windows_name_the_option(option: str, prefix: str) -> None:
    make, of_prefix = SOURCES[prefix]
    one, other = make(windows()), make(windows(**{option: WINDOWS[option]}))
    for saved, here in ((one, other), (other, one)):
        state = json.loads(json.dumps(loader(saved).state_dict()))
        with pytest.raises(ValueError, match="the state does not belong to this data") as error:
            loader(here).load_state_dict(state)
        assert f"fingerprint has {of_prefix or prefix}{option} = " in str(error.value) or (
            f"fingerprint has no {of_prefix or prefix}{option}, here" in str(error.value)
        )


@pytest.mark.parametrize(
    ("option", "value"), [("sequence_length", 24), ("bos", 3), ("eos", 4), ("padded", True)]
)
def test_states_of_other_sequences_name_the_option(option: str, value: Any) -> None:
    usual: dict[str, Any] = {"sequence_length": 16}
    one = PackedSequences(corpus(), **usual)
    other = PackedSequences(corpus(), **(usual | {option: value}))
    with pytest.raises(ValueError, match=rf"has (no )?source\.{option}"):
        loader(one).load_state_dict(loader(other).state_dict())


def test_states_of_more_rows_name_the_rows() -> None:
    tables = [wd.Table.from_columns({"x": np.arange(rows)}) for rows in (50.0, 60.0)]
    one, other = (loader(wd.Windows(table, context_length=3)) for table in tables)
    with pytest.raises(ValueError, match=r"has source\.table\.rows = 50, here it is 60$"):
        other.load_state_dict(one.state_dict())
