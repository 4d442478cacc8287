"""Series and columns that a scaler per series has not seen: an error, pooled, or not scaled."""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import windeck as wd
from windeck._util import digest

KINDS: tuple[Any, ...] = ("standard", "minmax", "robust", "mean_abs")


def rows() -> wd.Table:
    """Four series: the third has values of `b` at its end only, the last none of `a`."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(500.0, 20.0, size=(2, 160))
    b[80:110] = np.nan
    a[120:] = np.nan
    return wd.Table.from_columns(
        {"a": a, "b": b}, offsets=[0, 40, 80, 120, 160], series_names=["n", "e", "s", "w"]
    )


def windows(table: wd.Table | None = None, **options: Any) -> wd.Windows:
    given: dict[str, Any] = {"context_length": 4, "prediction_length": 2, "dtype": "float64"}
    return wd.Windows(table or rows(), **(given | options))


def fitted(unseen: Any = "global", kind: Any = "standard") -> wd.Scaler:
    """A scaler fitted on the training parts of the first three series."""
    train = windows().subset(series=["n", "e", "s"]).split(0.1, 0.1).train
    return wd.Scaler.fit(train, per_series=True, unseen=unseen, kind=kind, sample=None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_pooled_statistics_scale_what_was_not_seen(kind: Any) -> None:
    train = windows().subset(series=["n", "e", "s"]).split(0.1, 0.1).train
    pooled = wd.Scaler.fit(train, kind=kind, sample=None)
    scaler = fitted(kind=kind)
    assert scaler.pooled == pooled
    assert scaler.counts.tolist() == [[32, 32], [32, 32], [32, 2], [0, 0]]
    # A shorter training part ends before the values of `b` in series "s" begin.
    scaler = wd.Scaler.fit(
        windows().subset(series=["n", "e", "s"]).split(0.2, 0.1).train,
        kind=kind,
        per_series=True,
        sample=None,
    )
    assert scaler.counts[:, 1].tolist() == [28, 28, 0, 0]
    assert scaler.pooled is not None
    with pytest.warns(UserWarning, match="2 of 4 series have no values") as caught:
        scaled = windows().with_scaler(scaler)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "('a' in 1, 'b' in 2)" in str(caught[0].message)
    assert {k: v.tolist() for k, v in scaled.unseen_series().items()} == {"a": [3], "b": [2, 3]}
    plain = windows()
    every = np.arange(len(plain))
    batch, raw = scaled.gather(every), plain.gather(every)
    for key in ("past_target", "future_target"):
        for series in range(4):
            here = raw["series_id"] == series
            for column in range(2):
                fallback = scaler.counts[series, column] == 0
                chosen = scaler.pooled if fallback else scaler
                row = 0 if fallback else series
                expected = raw[key][here][..., column]
                expected = expected * chosen.scale[row, column] + chosen.shift[row, column]
                seen = batch[f"{key}_mask"][here][..., column]
                found = batch[key][here][..., column]
                np.testing.assert_array_equal(found[seen], expected[seen])
        back = scaler.inverse_transform(batch[key], series_id=raw["series_id"])
        seen = batch[f"{key}_mask"]
        np.testing.assert_allclose(back[seen], raw[key][seen])
        again = scaler.transform(raw[key], series_id=raw["series_id"])
        np.testing.assert_array_equal(again[seen], batch[key][seen])


def test_one_warning_for_a_split() -> None:
    split = windows().split(0.25, 0.25, by="series")
    scaler = wd.Scaler.fit(split.train, per_series=True)
    with pytest.warns(UserWarning, match="2 of 4 series have no values") as caught:
        scaled = split.with_scaler(scaler)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # derived windows, copies and batches do not warn again
        part = scaled.validation
        pickle.loads(pickle.dumps(part.subset(rows=(0, 160))))[0]
        part.split(0.2, 0.0)
        scaled.train.with_scaler(scaler)


def test_an_error_names_series_and_column() -> None:
    scaler = fitted("error")
    train = windows().subset(series=["n", "e"])
    assert train.with_scaler(scaler).unseen_series() == {}
    with pytest.raises(ValueError, match=r"series 'w' has no values of column 'a' .*\(1 such"):
        windows().with_scaler(scaler)
    with pytest.raises(ValueError, match=r"'w' .* expected unseen='global' or 'skip'"):
        scaler.transform(np.zeros((2, 3, 2)), series_id=[0, 3])
    assert scaler.transform(np.zeros((1, 3, 2)), series_id=[2]).shape == (1, 3, 2)
    one = wd.Scaler.fit(windows().split(0.2, 0.1).train, per_series=True, unseen="error")
    with pytest.raises(ValueError, match="series 's' has no values of column 'b'"):
        windows(target_columns="b").with_scaler(one)
    # Series of another table are matched by name.
    other = wd.Table.from_columns(
        {"a": np.arange(20.0)}, offsets=[0, 10, 20], series_names=["n", "x"]
    )
    with pytest.raises(ValueError, match="series 'x' has no values of column 'a'"):
        windows(other).with_scaler(scaler)
    assert windows(other).subset(series="n").with_scaler(scaler).scaler == scaler


def test_skip_leaves_values_as_they_are() -> None:
    scaler = fitted("skip")
    plain = windows(fill=-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = plain.with_scaler(scaler)
    last = np.flatnonzero(plain.gather(np.arange(len(plain)))["series_id"] == 3)
    np.testing.assert_array_equal(
        scaled.gather(last)["past_target"], plain.gather(last)["past_target"]
    )
    x = np.array([[[5.0, 7.0]]])
    np.testing.assert_array_equal(scaler.transform(x, series_id=[3]), x)


def test_series_of_another_table_are_pooled() -> None:
    scaler = fitted()
    other = wd.Table.from_columns(
        {"a": np.arange(20.0)}, offsets=[0, 10, 20], series_names=["x", "e"]
    )
    with pytest.warns(UserWarning, match=r"1 of 2 series have no values .* \('a' in 1\)"):
        scaled = windows(other).with_scaler(scaler)
    assert scaler.pooled is not None
    expected = np.arange(4.0) * scaler.pooled.scale[0, 0] + scaler.pooled.shift[0, 0]
    np.testing.assert_array_equal(scaled[0]["past_target"][:, 0], expected)
    expected = np.arange(10.0, 14.0) * scaler.scale[1, 0] + scaler.shift[1, 0]
    number = scaled.index_of(1, 10)
    np.testing.assert_array_equal(scaled[number]["past_target"][:, 0], expected)


@pytest.mark.parametrize("unseen", ["error", "global", "skip"])
def test_json_keeps_the_option_and_the_pooled_statistics(unseen: Any) -> None:
    scaler = fitted(unseen, "robust")
    again = wd.Scaler.from_json(scaler.to_json())
    assert again == scaler
    assert (again.unseen, again.pooled) == (scaler.unseen, scaler.pooled)
    assert scaler != dataclasses.replace(scaler, unseen="skip" if unseen != "skip" else "error")
    assert pickle.loads(pickle.dumps(scaler)) == scaler


def test_pooled_statistics_are_those_of_scalers_of_several_series() -> None:
    scaler = fitted()
    with pytest.raises(ValueError, match=r"has no `pooled` statistics, expected them with `series"):
        dataclasses.replace(scaler, pooled=None)
    with pytest.raises(ValueError, match=r"has `pooled` statistics, expected them with `series`"):
        dataclasses.replace(scaler, series=None)


@pytest.mark.parametrize("per_series", [False, True])
def test_every_field_of_the_json_is_needed(per_series: bool) -> None:
    scaler = wd.Scaler.fit(windows(), per_series=per_series)
    plain = json.loads(scaler.to_json())
    assert list(plain) == ["format", "kind", "series", "columns", "unseen", "pooled"]
    for name in plain:
        text = json.dumps({key: value for key, value in plain.items() if key != name})
        with pytest.raises(ValueError, match=rf"has no {name}"):
            wd.Scaler.from_json(text)
    with pytest.raises(
        ValueError, match=r"^the scaler's JSON has format 2, expected 1: a later windeck wrote it$"
    ):
        wd.Scaler.from_json(json.dumps({**plain, "format": 2}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unseen": "guess"}, "unseen is 'guess'"),
        ({"unseen": None}, "unseen is None"),
        ({"pooled": None}, "it names no columns"),
        ({"pooled": 3}, "it names no columns"),
        ({"pooled": {"a": {}}}, "count of column"),
        ({"pooled": {"b": json.loads(fitted().to_json())["pooled"]["a"]}}, "do not belong to it"),
        ({"pooled": json.loads(fitted().to_json())["columns"]}, "count of column"),
        ({"series": None}, "count of column"),
    ],
)
def test_damaged_json_is_refused(change: dict[str, Any], message: str) -> None:
    text = json.dumps(json.loads(fitted().to_json()) | change)
    with pytest.raises(ValueError, match=message):
        wd.Scaler.from_json(text)


def test_fingerprints_change_only_where_pooled_statistics_are_used() -> None:
    scaler = fitted()
    plain = json.loads(scaler.to_json())
    del plain["unseen"], plain["pooled"]
    before = digest(json.dumps(plain))
    seen = windows().subset(series=["n", "e"])
    for unseen in ("error", "global", "skip"):
        one = dataclasses.replace(scaler, unseen=unseen)
        assert seen.with_scaler(one).fingerprint["scaler"] == before
    with pytest.warns(UserWarning, match="have no values"):
        pooled = windows().with_scaler(scaler)
    assert pooled.fingerprint["scaler"] not in (before, "none")
    assert pooled.subset(series=["n", "e"]).fingerprint["scaler"] == before
    skipped = windows().with_scaler(dataclasses.replace(scaler, unseen="skip"))
    assert skipped.fingerprint["scaler"] == before


def test_merging_keeps_the_option_and_merges_the_pooled_statistics() -> None:
    table = rows()
    parts = [windows(table).subset(series=one) for one in (["n"], ["e", "s"])]
    a, b = (wd.Scaler.fit(part, per_series=True, unseen="error") for part in parts)
    merged = a.merge(b)
    assert merged.unseen == "error"
    assert merged.pooled is not None
    assert a.pooled is not None
    assert b.pooled is not None
    assert merged.pooled == a.pooled.merge(b.pooled)
    assert merged.counts[:3, 0].tolist() == [40, 40, 40]


def test_merging_refuses_different_options() -> None:
    part = windows(rows()).subset(series=["n"])
    a, b = (wd.Scaler.fit(part, per_series=True, unseen=one) for one in ("error", "skip"))
    for one, other in ((a, b), (b, a)):
        with pytest.raises(ValueError, match=r"cannot merge .*expected the same `unseen`"):
            one.merge(other)
    # It has no effect on one scaling of all series, and is not saved with it.
    plain = [wd.Scaler.fit(part, unseen=one) for one in ("error", "global")]
    assert plain[0].merge(plain[1]).counts.tolist() == (2 * plain[0].counts).tolist()


@pytest.mark.parametrize("per_series", [False, True])
def test_a_part_without_windows_is_refused(per_series: bool) -> None:
    empty = windows(rows()).split(0.2, 0.0).test
    with pytest.raises(ValueError, match="there are no windows, expected at least one"):
        wd.Scaler.fit(empty, per_series=per_series)


def test_a_bad_option_is_refused() -> None:
    with pytest.raises(ValueError, match="`unseen` must be one of error, global, skip, got 'all'"):
        fitted("all")
