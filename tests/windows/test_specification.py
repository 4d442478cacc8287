"""Windows are a table, frozen options and a selection: what changed windows keep and share."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.internals import original

OPTIONS: dict[str, Any] = {
    "context_length": 4,
    "prediction_length": 2,
    "stride": 2,
    "target_columns": "load",
    "known_covariates": "hour",
    "pad": "start",
    "fill": -1.0,
    "max_missing": 0.5,
    "dtype": {"load": "float32"},
    "keys": ("past_target", "future_target", "series_id"),
}


@pytest.fixture(scope="module")
def table() -> wd.Table:
    """Return two series of 30 and 50 rows with missing values."""
    rng = np.random.default_rng(5)
    load = rng.normal(size=80)
    load[rng.random(80) < 0.2] = np.nan
    columns = {"load": load, "hour": np.arange(80.0) % 24}
    return wd.Table.from_columns(columns, offsets=[0, 30, 80], series_names=["a", "b"])


class OwnWindows(wd.Windows):
    """Windows of a user's class."""


class TaggedWindows(wd.Windows):
    """Windows of a user's class with an option of its own, which `gather` uses."""

    def __init__(self, table: wd.Table, *, tag: float, **options: Any) -> None:
        self.before = "set before the options"
        super().__init__(table, **options)
        self.tag = tag

    def gather(self, indices: Any, out: Any = None, threads: int = 1) -> Any:
        batch = super().gather(indices, out, threads)
        batch["tag"] = np.full(len(indices), self.tag)
        return batch


class StatefulWindows(TaggedWindows):
    """Windows of a user's class with an attribute that cannot be pickled."""

    def __init__(self, table: wd.Table, **options: Any) -> None:
        super().__init__(table, **options)
        self.made_of: Any = lambda: "options"

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["made_of"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.made_of = lambda: "a state"


class NewWindows(wd.Windows):
    """Windows of a user's class that takes a table when an object is created."""

    def __new__(cls, table: wd.Table, **options: Any) -> NewWindows:
        return super().__new__(cls)


class NamedWindows(wd.Windows):
    """Windows of a user's class with attributes that have names of parts of windows."""

    def __init__(self, table: wd.Table, **options: Any) -> None:
        super().__init__(table, **options)
        self.spec, self.selection, self.noted = "v2", [1, 2], True


#: Changed windows that have all windows and options of the given ones.
SAME: dict[str, Callable[[wd.Windows], wd.Windows]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda windows: pickle.loads(pickle.dumps(windows)),
    "without a scaler": lambda windows: windows.with_scaler(None),
    "joined": lambda windows: windows.joined(),
}


@pytest.mark.parametrize("way", SAME)
def test_copies_are_equal_to_windows_made_anew(table: wd.Table, way: str) -> None:
    windows = wd.Windows(table, **OPTIONS)
    windows.fingerprint  # noqa: B018  # Cached: copies must not keep it.
    changed = SAME[way](windows)
    expected = wd.Windows(table, **OPTIONS)
    assert changed.fingerprint == expected.fingerprint
    assert repr(changed) == repr(expected)
    assert changed.explain() == expected.explain()
    for key, array in expected.gather([0, 5, 9]).items():
        np.testing.assert_array_equal(changed.gather([0, 5, 9])[key], array)


def test_changes_leave_the_windows_that_they_are_made_of(table: wd.Table) -> None:
    windows = wd.Windows(table, **OPTIONS)
    before = dict(windows.fingerprint), windows.gather([3])["past_target"]
    scaler = wd.Scaler.fit(windows, columns="load")
    changed = [
        windows.with_scaler(scaler),
        windows.latest(),
        windows.subset(series="b"),
        windows.joined().with_scaler(scaler),
        *windows.split(),
    ]
    again = wd.Windows(table, **OPTIONS)
    assert dict(windows.fingerprint) == before[0] == dict(again.fingerprint)
    np.testing.assert_array_equal(windows.gather([3])["past_target"], before[1])
    assert all(one.fingerprint != windows.fingerprint for one in changed)
    assert changed[0].fingerprint == wd.Windows(table, scaler=scaler, **OPTIONS).fingerprint


def test_parts_share_the_options(table: wd.Table) -> None:
    windows = wd.Windows(table, **OPTIONS)

    def changed(part: Any) -> set[str]:
        return {
            field
            for field, value in windows.fingerprint.items()
            if value != part.fingerprint[field]
        }

    assert not changed(pickle.loads(pickle.dumps(windows)))
    for part in (*windows.split(), windows.subset(series="a")):
        assert changed(part) <= {"windows", "starts"}
        assert [*part.gather([])] == [*windows.gather([])]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fill": "x"}, TypeError, "`fill` must be a number, got str 'x'"),
        ({"max_missing": None}, TypeError, "`max_missing` must be a number, got NoneType None"),
        ({"max_missing": 1.5}, ValueError, "`max_missing` must be a share between 0 and 1"),
        ({"min_observed_past": -1}, ValueError, "`min_observed_past` must be"),
        ({"min_observed_future": 99}, ValueError, "`min_observed_future` must be"),
        ({"keys": ()}, ValueError, "`keys` must name at least one key of a batch, got none"),
        ({"masks": "all"}, TypeError, "`masks` must be True, False or None, got 'all'"),
        ({"scaler": 3}, TypeError, "`scaler` must be a Scaler, got a int"),
    ],
)
def test_options_are_checked_when_windows_are_made(
    table: wd.Table, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wd.Windows(table, **{**OPTIONS, **options})


def test_numbers_of_a_specification_are_floats(table: wd.Table) -> None:
    fields = wd.Windows(table, **{**OPTIONS, "fill": 0, "max_missing": 1}).fingerprint
    assert (fields["fill"], fields["max_missing"]) == ("0.0", "1.0")


@pytest.mark.parametrize("name", ["table", "span", "roles", "layout", "fill", "scaler", "max_gap"])
def test_options_of_windows_are_read_only(table: wd.Table, name: str) -> None:
    windows = wd.Windows(table, **OPTIONS)
    with pytest.raises(AttributeError):
        setattr(windows, name, getattr(windows, name))


def test_a_users_class_decides_on_its_number_of_windows(table: wd.Table) -> None:
    class FirstWindows(wd.Windows):
        def __len__(self) -> int:
            return 3

    assert FirstWindows(table, **OPTIONS).fingerprint["windows"] == 3


def test_windows_of_a_users_class_stay_of_it(table: wd.Table) -> None:
    windows = OwnWindows(table, **OPTIONS)
    changed = (windows.subset(series="b"), windows.with_scaler(None), windows.latest())
    for one in (*changed, *windows.split(), copy.copy(windows)):
        assert type(one) is OwnWindows


#: Other windows that are made of given ones.
CHANGED: dict[str, Callable[[Any], Any]] = {
    **{way: change for way, change in SAME.items() if way != "joined"},
    "split": lambda windows: windows.split().train,
    "split with a scaler": lambda windows: windows.split().with_scaler(None).train,
    "folds": lambda windows: windows.folds(2, test_rows=4)[1].test,
    "subset": lambda windows: windows.subset(series="b"),
    "latest": lambda windows: windows.latest(),
}


@pytest.mark.parametrize("way", CHANGED)
def test_attributes_of_a_users_class_are_those_of_all_windows_made_of_it(
    table: wd.Table, way: str
) -> None:
    windows = TaggedWindows(table, tag=7.0, **OPTIONS)
    windows.fingerprint  # noqa: B018  # Cached: copies must not keep it.
    changed = CHANGED[way](windows)
    assert changed.gather([0, 0])["tag"].tolist() == [7.0, 7.0]
    assert changed.before == windows.before
    plain = CHANGED[way](wd.Windows(table, **OPTIONS))
    assert changed.fingerprint == plain.fingerprint


@pytest.mark.parametrize("way", CHANGED)
def test_attributes_set_later_are_those_of_all_windows_made_of_it(
    table: wd.Table, way: str
) -> None:
    windows = wd.Windows(table, **OPTIONS)
    windows.independent_rows = False
    changed = CHANGED[way](windows)
    assert not changed.independent_rows
    assert wd.Windows.independent_rows


def test_joined_and_balanced_windows_have_attributes_set_before(table: wd.Table) -> None:
    windows = TaggedWindows(table, tag=7.0, **OPTIONS)
    joined: Any = windows.joined()
    assert joined.tag == joined.subset(series="b").tag == 7.0
    balanced: Any = windows.balanced()
    balanced.note, balanced.independent_rows = "a", False
    for again in (CHANGED[way](balanced) for way in ("copy", "deepcopy", "pickle")):
        assert (again.note, again.independent_rows, again.windows.tag) == ("a", False, 7.0)
        found, expected = (one.gather([5])["past_target"] for one in (again, balanced))
        np.testing.assert_array_equal(found, expected)


def test_a_users_class_decides_on_its_state(table: wd.Table) -> None:
    windows = StatefulWindows(table, tag=7.0, **OPTIONS)
    again = pickle.loads(pickle.dumps(windows))
    assert (again.made_of(), again.tag) == ("a state", 7.0)
    assert windows.split().train.made_of() == "options"  # type: ignore[attr-defined]


def test_a_users_class_decides_on_its_creation(table: wd.Table) -> None:
    windows = NewWindows(table, **OPTIONS)
    assert type(windows.subset(series="b")) is NewWindows
    assert pickle.loads(pickle.dumps(windows)).fingerprint == windows.fingerprint


def test_the_state_of_windows_has_nothing_that_their_options_give(table: wd.Table) -> None:
    windows = wd.Windows(table, **OPTIONS)
    windows.fingerprint  # noqa: B018  # Cached: it is no part of the state.
    assert windows.__getstate__() == windows.joined().__getstate__() == {}


def test_attributes_of_a_users_class_may_be_named_like_parts(table: wd.Table) -> None:
    windows, expected = NamedWindows(table, **OPTIONS), wd.Windows(table, **OPTIONS)
    assert windows.nbytes == expected.nbytes
    assert windows.fingerprint == expected.fingerprint
    assert windows.explain() == expected.explain()
    assert len(windows.subset(series="b")) == len(expected.subset(series="b"))
    scaler = wd.Scaler.fit(windows, columns="load", per_series=True)
    values = expected.gather([0])["past_target"]
    inverse = scaler.inverse_transform(values, columns=["load"], series_id=[0], table=windows)
    assert inverse.shape == values.shape


def test_windows_and_scalers_are_freed_without_the_garbage_collector(table: wd.Table) -> None:
    """Nothing that remembers where batches came from keeps windows or scalers in memory."""
    scaler = wd.Scaler.fit(table, columns="load", per_series=True)
    windows = wd.Windows(table, **OPTIONS).with_scaler(scaler)
    values = windows.gather([0])["past_target"]
    scaler.inverse_transform(values, columns=["load"], series_id=[0], table=table)
    assert windows.joined().balanced().fingerprint
    references = [weakref.ref(one) for one in (scaler, windows)]
    gc.collect()
    live = original("origins._live")
    noted = len(live)
    gc.disable()
    try:
        del scaler, windows
        assert [reference() for reference in references] == [None, None]
        assert len(live) < noted
    finally:
        gc.enable()
