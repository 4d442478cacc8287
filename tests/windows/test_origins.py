"""Series of batches by name and channels by layout: numbers and axes of one table or layout.

Every way of a number from a batch to a scaler gives the value of the series of that name, or an
error that names the cure. Scalings are those of a dictionary by name.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch

import windeck as wd
from support.internals import plant

#: The least and the greatest value of every series by name; those of all fitted series together.
LIMITS = {"a": (0.0, 8.0), "b": (1000.0, 1080.0), "c": (-16.0, 16.0), "d": (5.0, 6.0)}
FITTED = ("a", "b", "c")
POOLED = (-16.0, 1080.0)
ROWS = 9


@pytest.fixture(autouse=True)
def no_other_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the windows of other tests in this process."""
    plant(monkeypatch, "origins._live", WeakValueDictionary())


def table_of(names: tuple[Any, ...], columns: tuple[str, ...] = ("x",)) -> wd.Table:
    """Return a table whose series go from their least to their greatest value."""
    x = np.concatenate([np.linspace(*LIMITS[name[-1]], ROWS) for name in names])
    offsets = np.arange(len(names) + 1) * ROWS
    return wd.Table.from_columns(
        {name: x * (place + 1) for place, name in enumerate(columns)},
        offsets=offsets,
        series_names=list(names),
    )


def fit(names: tuple[Any, ...] = FITTED, columns: tuple[str, ...] = ("x",)) -> wd.Scaler:
    return wd.Scaler.fit(table_of(names, columns), kind="minmax", per_series=True)


def windows_of(names: tuple[Any, ...], scaler: wd.Scaler | None = None) -> wd.Windows:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # series that the scaler does not have
        return wd.Windows(
            table_of(names), context_length=3, prediction_length=2, scaler=scaler, dtype="float64"
        )


def in_units(names: list[str], scaled: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return scaled values of series in units, by the dictionary."""
    limits = np.array([LIMITS[name] if name in FITTED else POOLED for name in names])
    low, high = (side[:, None, None] for side in limits.T)
    found: np.ndarray[Any, Any] = low + scaled * (high - low)
    return found


def served(windows: wd.Windows, way: str) -> tuple[Any, Any]:
    """Return the futures and the numbers of series of a batch with windows of all series."""
    step = len(windows) // windows.table.num_series
    indices = np.arange(0, len(windows), max(step // 2, 1))
    batch: Any
    if way == "loader":
        batch = next(iter(wd.Loader(windows, batch_size=len(windows))))
    elif way == "dataset":
        batch = wd.MapDataset(windows).__getitems__(indices.tolist())
    elif way == "device":
        batch = windows.to("cpu").gather_tensors(indices)
    elif way == "balanced":
        batch = next(iter(wd.Loader(windows.balanced(), batch_size=len(windows), prefetch=0)))
    else:
        batch = windows.gather(indices)
    return batch["future_target"], batch["series_id"]


SERVED = ("gather", "loader", "dataset", "device", "balanced")

WAYS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda ids: ids,
    "array": np.asarray,
    "copy": lambda ids: np.asarray(ids).copy(),
    "list": lambda ids: ids.tolist(),
    "scalars": list,
    "int32": lambda ids: np.asarray(ids).astype(np.int32),
    "pickled": lambda ids: pickle.loads(pickle.dumps(ids)),
    "tensor": lambda ids: torch.as_tensor(ids).clone(),
    "objects": lambda ids: np.asarray(ids).astype(object),
}

SCALERS: dict[str, Callable[[wd.Scaler], wd.Scaler]] = {
    "fitted": lambda scaler: scaler,
    "json": lambda scaler: wd.Scaler.from_json(scaler.to_json()),
    "pickled": lambda scaler: pickle.loads(pickle.dumps(scaler)),
    "copied": copy.deepcopy,
    "replaced": lambda scaler: dataclasses.replace(scaler, unseen="global"),
}

ORDERS = [
    *itertools.permutations(FITTED),
    ("b", "a"),
    ("c", "a", "b", "d"),
    ("d", "c", "b", "a"),
    ("b",),
    ("d", "a"),
    ("d",),
]


def test_a_scaler_of_one_table_is_used_on_another_by_name() -> None:
    fitted = wd.Scaler.fit(table_of(("a", "b")), per_series=True, kind="minmax")
    scaler = wd.Scaler.from_json(fitted.to_json())
    windows = windows_of(("b", "a"), scaler)
    batch = windows.gather([0])
    found = scaler.inverse_transform(batch["past_target"], series_id=batch["series_id"])
    assert found[0, :, 0].tolist() == [1000.0, 1010.0, 1020.0]


@pytest.mark.parametrize("names", ORDERS)
@pytest.mark.parametrize("kind", SCALERS)
def test_numbers_of_the_only_table_in_use_mean_its_series(
    names: tuple[str, ...], kind: str
) -> None:
    scaler = SCALERS[kind](fit())
    windows = windows_of(names, scaler)
    for source in SERVED:
        scaled, ids = served(windows, source)
        expected = in_units([names[i] for i in ids.tolist()], np.asarray(scaled))
        for way, change in WAYS.items():
            found = scaler.inverse_transform(scaled, series_id=change(ids))
            np.testing.assert_allclose(np.asarray(found), expected, err_msg=f"{source}, {way}")
            again = scaler.transform(found, series_id=change(ids))
            np.testing.assert_allclose(np.asarray(again), np.asarray(scaled), atol=1e-12)


@pytest.mark.parametrize("names", [ORDERS[4], *ORDERS[-6:-3], ORDERS[-1]])
@pytest.mark.parametrize("used", ["scaled", "plain", "by another"])
@pytest.mark.parametrize(
    ("kind", "trained"),
    [("fitted", "scaled"), ("json", "plain"), ("fitted", "only fitted"), ("json", "only fitted")],
)
def test_numbers_of_a_second_table_are_right_or_an_error(
    names: tuple[str, ...], used: str, kind: str, trained: str
) -> None:
    scaler = SCALERS[kind](fit())
    first = None
    if trained != "only fitted":
        first = windows_of(FITTED, scaler if trained == "scaled" else None)
    other = SCALERS["json"](scaler) if used == "by another" else scaler
    windows = windows_of(names, None if used == "plain" else other)
    values, ids = served(windows, "gather")
    series = [names[i] for i in ids.tolist()]
    scaled = np.linspace(0, 1, values.size).reshape(values.shape)
    expected = in_units(series, scaled)
    for way, call in (("as it is", _back), ("list", _forth)):
        given = WAYS[way](ids)
        try:
            found = call(scaler, scaled, series_id=given)
        except ValueError as error:
            message = str(error)
        else:
            message = "`series_id` has numbers; expected table=windows"
            np.testing.assert_allclose(found, expected)
        assert message.startswith("`series_id` has numbers")
        assert "expected table=windows" in message
        for cure in (
            {"series_id": series},
            {"series_id": given, "table": windows},
            {"series_id": given, "table": windows.table},
        ):
            np.testing.assert_allclose(call(scaler, scaled, **cure), expected)
    del first


def _back(scaler: wd.Scaler, scaled: Any, **options: Any) -> Any:
    return scaler.inverse_transform(scaled, **options)


def _forth(scaler: wd.Scaler, scaled: Any, **options: Any) -> Any:
    """Return the values that `transform` scales to `scaled`: by the inverse of two points."""
    zero = scaler.transform(np.zeros_like(scaled), **options)
    one = scaler.transform(np.ones_like(scaled), **options)
    return (scaled - zero) / (one - zero)


class WrappedWindows:
    """An object that has of windows what the documented members of them give."""

    def __init__(self, windows: wd.Windows) -> None:
        self._windows = windows
        self.table, self.column_names = windows.table, windows.column_names
        self.layout, self.roles = windows.layout, windows.roles

    def __len__(self) -> int:
        return len(self._windows)

    def covered_rows(self) -> Any:
        return self._windows.covered_rows()


def test_an_object_like_windows_says_which_table_numbers_are_of() -> None:
    scaler = fit()
    reordered = windows_of(("c", "a"))
    values = np.full((2, 3, 1), 0.5)
    found = scaler.inverse_transform(values, series_id=[0, 1], table=WrappedWindows(reordered))
    expected = scaler.inverse_transform(values, series_id=[0, 1], table=reordered)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[:, 0, 0], [0.0, 4.0])


def test_two_tables_of_a_scaler_need_to_be_told_apart() -> None:
    scaler = fit()
    one, other = windows_of(FITTED, scaler), windows_of(("c", "a", "b"), scaler)
    batch = other.gather([0, 5])
    with pytest.raises(ValueError, match=r"such as 0, which is 'a' in one and 'c' in another"):
        scaler.inverse_transform(batch["past_target"], series_id=batch["series_id"])
    # Numbers that mean the same series in both.
    scaler = fit()
    windows = [windows_of(names, scaler) for names in (("a", "b"), ("a", "c"))]
    del one, other
    batch = windows[1].gather([0])
    found = scaler.inverse_transform(batch["past_target"], series_id=batch["series_id"])
    np.testing.assert_allclose(found[0, :, 0], [0.0, 1.0, 2.0])


def test_a_mixture_of_tables_is_an_error() -> None:
    scaler = fit()
    parts = {"one": windows_of(FITTED, scaler), "two": windows_of(("b", "c", "a"), scaler)}
    mixture = wd.Mixture({name: (part, 0.5) for name, part in parts.items()})
    batch = next(iter(wd.Loader(mixture, batch_size=8)))
    with pytest.raises(ValueError, match="other series in different tables"):
        scaler.inverse_transform(batch["past_target"], series_id=batch["series_id"])


def test_results_outlive_their_windows() -> None:
    scaler = fit()

    def predict(names: tuple[str, ...]) -> tuple[Any, Any]:
        return served(windows_of(names, scaler), "gather")

    scaled, ids = predict(("b", "c", "a"))
    gc.collect()
    found = scaler.inverse_transform(scaled, series_id=ids)
    np.testing.assert_allclose(found, in_units(["bca"[i] for i in ids], scaled))
    # Windows of another table have been scaled since.
    predict(("c", "a", "b"))
    gc.collect()
    with pytest.raises(ValueError, match="expected table=windows"):
        scaler.inverse_transform(scaled, series_id=ids)
    windows = windows_of(("b", "c", "a"), scaler)
    with pytest.raises(ValueError, match="expected table=windows"):
        scaler.inverse_transform(scaled, series_id=ids)
    np.testing.assert_allclose(windows.inverse_transform(scaled, series_id=ids), found)


def test_a_server_of_many_tables_says_which() -> None:
    """Windows for each request: from the second order of series on numbers alone are an error."""
    scaler = wd.Scaler.from_json(fit().to_json())
    orders = [order for order in ORDERS if len(order) > 1 and "d" not in order]
    orders += [("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    for request, names in enumerate(orders):
        windows = windows_of(names, scaler)
        scaled, ids = served(windows, "gather")
        expected = in_units([names[i] for i in ids], scaled)
        for same in (windows, windows.table):
            found = scaler.inverse_transform(scaled, series_id=ids, table=same)
            np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(windows.inverse_transform(scaled, series_id=ids), expected)
        if request:
            with pytest.raises(ValueError, match="expected table=windows"):
                scaler.inverse_transform(scaled, series_id=ids)
        else:
            found = scaler.inverse_transform(scaled, series_id=ids)
            np.testing.assert_allclose(found, expected)


def test_windows_of_other_tables_do_not_hide_those_that_are_gone() -> None:
    scaler = fit()
    scaled, ids = served(windows_of(("b", "c", "a"), scaler), "gather")
    gc.collect()
    plain = windows_of(FITTED)
    with pytest.raises(ValueError, match="other series in different tables"):
        scaler.inverse_transform(scaled, series_id=ids)
    del plain
    gc.collect()
    found = scaler.inverse_transform(scaled, series_id=ids)
    np.testing.assert_allclose(found, in_units(["bca"[i] for i in ids], scaled))


def test_numbers_are_the_names_of_series_without_names() -> None:
    x = np.concatenate([np.linspace(*LIMITS[name], ROWS) for name in FITTED])
    table = wd.Table.from_columns({"x": x}, offsets=np.arange(4) * ROWS)
    scaler = wd.Scaler.fit(table, kind="minmax", per_series=True)
    scaled = np.full((3, 2, 1), 0.5)
    expected = in_units(["c", "a", "b"], scaled)
    np.testing.assert_allclose(scaler.inverse_transform(scaled, series_id=[2, 0, 1]), expected)
    with pytest.raises(IndexError, match=r"`series_id` must be in \[0, 3\), got 3"):
        scaler.inverse_transform(scaled, series_id=[2, 0, 3])
    # Integers as ids, in another order.
    other = wd.Table.from_columns({"x": x, "id": np.repeat([2, 0, 1], ROWS)}, id_columns="id")
    windows = wd.Windows(other, context_length=2, scaler=scaler)
    found = scaler.inverse_transform(scaled, series_id=[1, 2, 0])
    np.testing.assert_allclose(found, in_units(["a", "b", "c"], scaled))
    del windows


def test_several_ids_of_a_series_are_one_name() -> None:
    names = ((1, "a"), (2, "b"))
    scaler = wd.Scaler.from_json(fit(names).to_json())
    scaled = np.full((2, 3, 1), 0.25)
    for given in (list(names[::-1]), names[::-1]):
        found = scaler.inverse_transform(scaled, series_id=given)
        np.testing.assert_allclose(found, in_units(["b", "a"], scaled))


def test_numbers_of_the_data_fitted_on_need_no_windows() -> None:
    scaler = fit()
    scaled = np.full((2, 3, 1), 0.25)
    found = scaler.inverse_transform(scaled, series_id=[2, 0])
    np.testing.assert_allclose(found, in_units(["c", "a"], scaled))


def test_tables_of_other_columns_scalings_or_kinds_of_names_do_not_matter() -> None:
    """Windows that cannot have made the batch, such as those of a second model, are no origins."""
    scaler = fit()
    windows = windows_of(("b", "c", "a"), scaler)
    second = wd.Scaler.fit(table_of(("d", "a", "b")), kind="standard", per_series=True)
    x = {"x": np.arange(27.0)}
    others = [
        wd.Windows(table_of(FITTED, ("y",)), context_length=2),
        windows_of(("d", "a", "b"), second),
        wd.Windows(wd.Table.from_columns(x, offsets=[0, 9, 27]), context_length=2),
    ]
    scaled, ids = served(windows, "gather")
    found = scaler.inverse_transform(scaled, series_id=ids)
    np.testing.assert_allclose(found, in_units(["bca"[i] for i in ids], scaled))
    del others


def test_bad_series() -> None:
    scaler = wd.Scaler.from_json(fit().to_json())
    scaled = np.zeros((2, 3, 1))
    bad: list[tuple[Any, type[Exception], str]] = [
        (None, ValueError, "`series_id` must be given"),
        (["a"], ValueError, r"`series_id` must be .* names, one for each sample, got shape \(1,\)"),
        ([0.5, 1.0], ValueError, "must be integers or names of series, got dtype float64"),
        ([True, False], ValueError, "must be integers or names of series, got dtype bool"),
        ([[0, 1]], ValueError, r"must be integers of shape \(2,\)"),
        ([0, 1], ValueError, "numbers of a table that is not known: .* expected table=windows"),
    ]
    for given, error, message in bad:
        with pytest.raises(error, match=message):
            scaler.inverse_transform(scaled, series_id=given)
    with pytest.raises(IndexError, match=r"`series_id` must be in \[0, 2\), got 2"):
        scaler.inverse_transform(scaled, series_id=[0, 2], table=table_of(("a", "b")))
    with pytest.raises(TypeError, match="`table` must be a Table or Windows, got a dict"):
        scaler.inverse_transform(scaled, series_id=[0, 1], table={})  # type: ignore[arg-type]
    strict = dataclasses.replace(scaler, unseen="error")
    with pytest.raises(ValueError, match="series 'z' has no values of column 'x'"):
        strict.inverse_transform(scaled, series_id=["a", "z"])
    skipped = dataclasses.replace(scaler, unseen="skip")
    found = skipped.inverse_transform(scaled + 0.5, series_id=["b", "z"])
    assert found[:, 0, 0].tolist() == [1040.0, 0.5]


# --- layouts -------------------------------------------------------------------------------------

COLUMNS = ("x", "y", "z")


def square(layout: Any, scaler: wd.Scaler | None = None, **options: Any) -> wd.Windows:
    """Return windows with as many targets as steps."""
    given: dict[str, Any] = {"context_length": 3, "prediction_length": 3, "dtype": "float64"}
    given |= {"layout": layout, "scaler": scaler}
    return wd.Windows(table_of(FITTED, COLUMNS), **(given | options))


@pytest.mark.parametrize("layout", ["btc", "bct"])
@pytest.mark.parametrize("per_series", [False, True])
@pytest.mark.parametrize("batch_size", [3, 6])
def test_the_layout_decides_which_axis_has_the_channels(
    layout: str, per_series: bool, batch_size: int
) -> None:
    table = table_of(FITTED, COLUMNS)
    scaler = wd.Scaler.fit(table, per_series=per_series)
    for stored in (scaler, wd.Scaler.from_json(scaler.to_json())):
        windows = square(layout, stored)
        plain = windows.with_scaler(None)
        indices = np.arange(batch_size) * 2
        batch, raw = windows.gather(indices), plain.gather(indices)
        ids = batch["series_id"]
        for key in ("past_target", "future_target"):
            for found in (
                stored.inverse_transform(batch[key], series_id=ids),
                stored.inverse_transform(batch[key], series_id=ids, table=windows),
                windows.inverse_transform(batch[key], series_id=ids),
                windows.inverse_transform(batch[key], indices),
                windows.inverse_transform(torch.from_numpy(batch[key]), indices).numpy(),
            ):
                np.testing.assert_allclose(found, raw[key])
            again = stored.transform(raw[key], series_id=ids)
            np.testing.assert_allclose(again, batch[key])
            two = windows.inverse_transform(batch[key][:, :2] if layout == "bct" else
                                            batch[key][:, :, :2], indices,
                                            columns=COLUMNS[:2])  # fmt: skip
            np.testing.assert_allclose(
                two, raw[key][:, :2] if layout == "bct" else raw[key][:, :, :2]
            )
        del windows, plain
        gc.collect()


def test_an_axis_that_may_be_either_is_an_error() -> None:
    scaler = wd.Scaler.fit(table_of(FITTED, COLUMNS))
    one, two = square("btc", scaler), square("bct", scaler)
    batch, raw = two.gather([0, 4]), two.with_scaler(None).gather([0, 4])
    with pytest.raises(ValueError, match="`axis` must be given: windows of both layouts"):
        scaler.inverse_transform(batch["past_target"])
    for options in ({"axis": 1}, {"table": two}):
        found = scaler.inverse_transform(batch["past_target"], **options)
        np.testing.assert_allclose(found, raw["past_target"])
    # Only one axis fits.
    other = batch["past_target"][:, :, :2]
    np.testing.assert_allclose(scaler.inverse_transform(other), raw["past_target"][:, :, :2])
    del one


def test_columns_in_another_order_are_an_error() -> None:
    scaler = wd.Scaler.fit(table_of(FITTED, COLUMNS))
    windows = square("btc", scaler, target_columns=["z", "x", "y"])
    batch, raw = windows.gather([0, 4]), windows.with_scaler(None).gather([0, 4])
    with pytest.raises(ValueError, match=r"`columns` must be given: .* in another order"):
        scaler.inverse_transform(batch["past_target"])
    found = scaler.inverse_transform(batch["past_target"], columns=["z", "x", "y"])
    np.testing.assert_allclose(found, raw["past_target"])
    np.testing.assert_allclose(windows.inverse_transform(batch["past_target"], [0, 4]), found)


def test_columns_and_scalers_that_windows_do_not_have() -> None:
    scaler = wd.Scaler.fit(table_of(FITTED, COLUMNS), columns="y")
    windows = square("columns", scaler)
    batch, raw = windows.gather([0, 4]), windows.with_scaler(None).gather([0, 4])
    forecasts = {name: batch[name] for name in COLUMNS}
    for name, found in windows.inverse_transform(forecasts, [0, 4]).items():
        np.testing.assert_allclose(found, raw[name])
    for name, found in windows.with_scaler(None).inverse_transform(forecasts, [0, 4]).items():
        np.testing.assert_array_equal(found, batch[name])
    with pytest.raises(KeyError, match="the windows has no column 'w'"):
        windows.inverse_transform(batch["x"], columns="w")
    with pytest.raises(ValueError, match="must have 3 channels"):
        windows.inverse_transform(np.zeros((2, 4)))
    per_series = square("btc", fit(FITTED, COLUMNS))
    with pytest.raises(ValueError, match=r"a row for each of 12 windows, got shape \(2, 3, 3\)"):
        per_series.inverse_transform(np.zeros((2, 3, 3)))
    with pytest.raises(ValueError, match="`indices` and `series_id` must not both be given"):
        per_series.inverse_transform(np.zeros((2, 3, 3)), [0, 1], series_id=[0, 0])
