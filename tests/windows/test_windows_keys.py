"""The keys of a batch that are asked for: the others are not made, and values stay the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windeck as wd
from models import reference as ref
from support.cases import Drawn, drawn_cases
from support.window_tables import mixed, table_of
from windeck import Windows, _core

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")

__all__ = ["mixed"]  # a fixture

ROLES = {"target_columns": "load", "known_covariates": "hour", "static_covariates": "count"}
PAIR = ("past_target", "future_target")


def windows_of(table: wd.Table, **options: Any) -> Windows:
    return Windows(table, context_length=3, prediction_length=2, **options)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
@pytest.mark.filterwarnings("ignore:.*series are shorter:UserWarning")
@pytest.mark.filterwarnings("ignore:.*lost every window:UserWarning")
@given(drawn_cases(), st.data())
def test_chosen_keys_equal_those_of_the_reference(drawn: Drawn, data: st.DataObject) -> None:
    expected = ref.windows(drawn.case)
    if not expected:
        return
    chosen = expected[: data.draw(st.integers(1, 5))]
    full = ref.batch(drawn.case, chosen)
    values = [key for key in full if not key.endswith("_mask")]
    keys = data.draw(st.lists(st.sampled_from(values), min_size=1, unique=True))
    masked = [f"{key}_mask" for key in keys if key not in ("series_id", "start")]
    keys += data.draw(st.lists(st.sampled_from(masked), unique=True)) if masked else []
    drawn.options["keys"] = data.draw(st.permutations(keys))
    windows = drawn.windows()
    batch = windows.gather(np.arange(len(chosen)))
    assert [key for key in full if key in keys] == list(batch)
    for key, array in batch.items():
        np.testing.assert_array_equal(array, full[key], err_msg=key, strict=True)


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
def test_every_single_key_equals_that_of_all(mixed: wd.Table, layout: Any) -> None:
    options: dict[str, Any] = {"layout": layout, "pad": "both", **ROLES}
    everything = windows_of(mixed, **options).gather([3, 0])
    for key, array in everything.items():
        keys = (key, key.removesuffix("_mask")) if key.endswith("_mask") else key
        batch = windows_of(mixed, **options, keys=keys).gather([3, 0])
        assert set(batch) == {key, key.removesuffix("_mask")}
        np.testing.assert_array_equal(batch[key], array, strict=True)


def test_a_key_left_out_is_neither_located_nor_allocated() -> None:
    windows = windows_of(table_of(rows=100), keys=PAIR)
    before = _core.pool_stats()["live_bytes"]
    batch = windows.gather(np.arange(90))
    assert list(batch) == list(PAIR)
    # 90 * 3 and 90 * 2 int64 are 2,160 and 1,440 bytes; a slab has 4,096.
    assert _core.pool_stats()["live_bytes"] - before == 4096


def test_missing_values_are_filled_without_a_mask() -> None:
    table = table_of(load=[1.0, np.nan, 3.0, 4.0])
    windows = Windows(table, context_length=2, keys="past_target", fill=-7.0)
    assert windows.gather([0, 1])["past_target"][..., 0].tolist() == [[1.0, -7.0], [-7.0, 3.0]]


def test_missing_values_stay_nan_with_that_fill() -> None:
    table = table_of(load=[1.0, np.nan, 3.0, 4.0])
    windows = Windows(table, context_length=2, keys="past_target", fill=np.nan)
    found = windows.gather([0])["past_target"][..., 0]
    np.testing.assert_array_equal(found, [[1.0, np.nan]])


def test_a_mask_asked_for_is_given_where_nothing_is_missing() -> None:
    table = table_of(load=np.arange(9.0)).with_missing_counts()
    batch = windows_of(table, keys=["past_target_mask", "past_target"]).gather([0, 1])
    assert list(batch) == ["past_target", "past_target_mask"]
    assert batch["past_target_mask"].shape == (2, 3, 1)
    assert batch["past_target_mask"].all()


def test_a_column_with_the_name_of_a_mask_is_that_column() -> None:
    table = table_of(load=np.arange(9), load_mask=np.arange(9) * 2)
    batch = Windows(table, context_length=2, layout="columns", keys="load_mask").gather([1])
    assert batch["load_mask"].tolist() == [[2, 4]]


def test_unknown_keys_are_refused_with_similar_ones() -> None:
    with pytest.raises(KeyError, match=r"no key 'past_targets'; did you mean 'past_target'"):
        windows_of(table_of(), keys=["past_targets"])
    with pytest.raises(KeyError, match="no key 'past_known'; it has 'past_target', 'future_t"):
        windows_of(table_of(), keys=["past_known"])
    with pytest.raises(ValueError, match="'past_target_mask' alone, expected 'past_target' with"):
        windows_of(table_of(), keys=["past_target_mask", "start"])
    with pytest.raises(ValueError, match="at least one key"):
        windows_of(table_of(), keys=[])


def test_masks_of_all_keys_of_none_or_of_those_that_are_named(mixed: wd.Table) -> None:
    full = list(windows_of(mixed, **ROLES).gather([0]))
    assert full == list(windows_of(mixed, **ROLES, masks=True).gather([0]))
    values = [key for key in full if not key.endswith("_mask")]
    assert list(windows_of(mixed, **ROLES, masks=False).gather([0])) == values
    assert list(windows_of(table_of(), keys=PAIR, masks=False).gather([0])) == list(PAIR)
    named = [*PAIR, "start"]
    both = ["past_target", "past_target_mask", "future_target", "future_target_mask", "start"]
    assert list(windows_of(table_of(), keys=named, masks=True).gather([0])) == both
    with pytest.raises(ValueError, match="'past_target_mask', but `masks` is False: leave one"):
        windows_of(table_of(), keys=["past_target", "past_target_mask"], masks=False)
    with pytest.raises(TypeError, match="`masks` must be True, False or None, got 'past_target'"):
        windows_of(table_of(), masks="past_target")
    prints = {str(windows_of(mixed, **ROLES, masks=m).fingerprint) for m in (None, True, False)}
    assert len(prints) == 1


def test_fingerprints_and_states_do_not_depend_on_keys(mixed: wd.Table) -> None:
    usual, few = windows_of(mixed, **ROLES), windows_of(mixed, **ROLES, keys=PAIR)
    assert usual.fingerprint == few.fingerprint
    loader = wd.Loader(usual, batch_size=2, shuffle=True, seed=3)
    first = next(iter(loader))
    other = wd.Loader(few, batch_size=2, shuffle=True, seed=3)
    other.load_state_dict(loader.state_dict())
    second, again = next(iter(loader)), next(iter(other))
    assert list(again) == list(PAIR)
    assert all(torch.equal(second[key], array) for key, array in again.items())
    assert not torch.equal(first["start"], second["start"])


def test_derived_windows_have_the_same_keys(mixed: wd.Table) -> None:
    windows = windows_of(mixed, **ROLES, keys=PAIR)
    scaler = wd.Scaler.fit(windows)
    derived: list[Any] = [
        windows.subset(indices=[0, 1]),
        windows.with_scaler(scaler),
        windows.split(by="series", validation=0.5, test=0).train,
        windows.balanced(),
        windows.balanced().at_epoch(3, seed=1),
        pickle.loads(pickle.dumps(windows)),
        pickle.loads(pickle.dumps(windows.balanced())),
    ]
    assert all(list(one.gather([0])) == list(PAIR) for one in derived)
    full = windows_of(mixed, **ROLES, scaler=scaler).gather([1])
    found = windows.with_scaler(scaler).gather([1])
    assert all(np.array_equal(found[key], full[key]) for key in PAIR)


def test_the_latest_contexts_have_the_keys_of_the_past() -> None:
    latest = windows_of(table_of(), keys=(*PAIR, "start")).latest()
    assert list(latest.gather([0])) == ["past_target", "start"]
    predictions = np.zeros((1, 2, 1))
    assert windows_of(table_of(), keys=PAIR).latest().prediction_table(predictions).num_rows == 2
    with pytest.raises(ValueError, match="expected a key of windows without a future"):
        windows_of(table_of(), keys="future_target").latest()


def test_chosen_keys_are_written_into_out() -> None:
    windows = windows_of(table_of(), keys=PAIR)
    out = {key: np.zeros_like(array) for key, array in windows.gather([0, 1]).items()}
    batch = windows.gather([4, 2], out=out)
    assert all(batch[key] is out[key] for key in PAIR)
    assert batch["past_target"][:, 0, 0].tolist() == [4, 2]
    with pytest.raises(KeyError, match="start"):
        windows.gather([4, 2], out={**out, "start": np.zeros(2, np.int64)})


def test_columns_without_channels_are_written_into_out(mixed: wd.Table) -> None:
    keys = ("load", "count")
    windows = windows_of(mixed, **ROLES, layout="columns", keys=keys)
    out = {key: np.zeros_like(array) for key, array in windows.gather([0, 1]).items()}
    windows.gather([1, 3], out=out)
    assert out["count"].tolist() == [0, 6]


def test_bfloat16_keys_become_tensors() -> None:
    table = table_of(load=np.arange(9.0))
    windows = windows_of(table, keys=PAIR, dtype="bfloat16")
    assert set(windows.torch_dtypes) == set(PAIR)
    assert windows_of(table, keys="start", dtype="bfloat16").torch_dtypes == {}
    batch = next(iter(wd.Loader(windows, batch_size=2)))
    assert all(tensor.dtype == torch.bfloat16 for tensor in batch.values())
    assert list(batch) == list(PAIR)


def test_the_representation_names_the_keys() -> None:
    assert "past_target" in repr(windows_of(table_of(), keys="past_target"))
    assert "future_target" not in repr(windows_of(table_of(), keys="past_target"))
