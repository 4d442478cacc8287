"""The rows that are the future of a forecast: appended ones, or the time after the last row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import windeck as wd

HOURS = np.datetime64("2024-01-01T00", "h") + np.arange(48)
FUTURE = HOURS[-1] + np.arange(1, 7)


def windows(missing: int, **options: Any) -> wd.Windows:
    """Return windows of two series whose last targets are missing, and a calendar feature."""
    y = np.arange(48.0)
    y[48 - missing :] = np.nan
    columns = {"y": np.tile(y, 2), "time": np.tile(HOURS, 2), "id": np.repeat(["a", "b"], 48)}
    columns["k"] = np.ones(96)
    columns["k"][[45, 90, 93]] = np.nan
    table = wd.Table.from_columns(columns, timestamp_column="time", id_columns="id")
    table = table.with_calendar("hour", encoding="scaled")
    given = {"target_columns": "y", "known_covariates": "hour", "max_missing": 0.5}
    return wd.Windows(table, context_length=8, prediction_length=6, **{**given, **options})


def times(latest: wd.Windows) -> list[np.datetime64]:
    found = latest.subset(series="a").prediction_table(np.zeros((1, 6)))["time"].to_numpy()
    return list(found.astype("M8[h]"))


@pytest.mark.parametrize("keys", [None, ["past_target", "future_known"]])
def test_texts_say_which_rows_are_the_future(keys: Any) -> None:
    failed = windows(6, keys=keys)
    assert times(failed.latest(future=True)) == list(HOURS[-6:])
    assert times(failed.latest(future="appended")) == list(HOURS[-6:])
    computed = failed.latest(future="computed")
    assert times(computed) == list(FUTURE)
    batch = computed.gather([0, 1])
    assert np.isnan(windows(6, fill=np.nan).latest(future="computed")[0]["past_target"][2:]).all()
    np.testing.assert_allclose(batch["future_known"][1, :, 0], np.arange(6) / 23 - 0.5, rtol=1e-6)
    assert times(windows(0).latest(future="computed")) == list(FUTURE)
    assert times(windows(0).latest(future=True)) == list(FUTURE)
    longer = windows(0).latest(future="computed", step="2h")
    assert times(longer)[0] == FUTURE[1]


def test_of_a_part_of_a_split_the_time_after_it_is_computed() -> None:
    train = windows(0).split(test_rows=12).train
    assert times(train.latest(future="computed")) == list(HOURS[-12:-6])
    assert times(train.latest(future="appended")) == list(HOURS[-12:-6])


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match="2 series have a target within their last 6 rows"):
        windows(0).latest(future="appended")
    with pytest.raises(
        ValueError,
        match=r"`future` is 'computed', but known covariates .*, 'k', cannot be computed: e",
    ):
        windows(6, known_covariates=["hour", "k"]).latest(future="computed")
    with pytest.raises(ValueError, match="must be 'appended' or 'computed' as a text, got 'rows'"):
        windows(6).latest(future="rows")
    with pytest.raises(ValueError, match="`step` is '2h', expected"):
        windows(6).latest(future="appended", step="2h")
    plain = wd.Windows(wd.Table.from_columns({"y": np.arange(9.0)}), context_length=2,
                       prediction_length=2)  # fmt: skip
    with pytest.raises(ValueError, match="is 'computed', but the table has no timestamp column"):
        plain.latest(future="computed")


def test_a_failed_sensor_of_some_series_is_named_unless_the_way_is_given() -> None:
    table = windows(0).table
    y = np.array(table.column("y").values)
    y[-6:] = np.nan
    w = wd.Windows(
        table.with_columns({"y": y}), context_length=8, prediction_length=6, target_columns="y",
        known_covariates="hour",
    )  # fmt: skip
    with pytest.warns(
        UserWarning, match=r"of 1 of 2 series are .*: 'b'; .* future='computed' says"
    ):
        assert times(w.latest(future=True)) == list(FUTURE)
    assert times(w.latest(future="computed")) == list(FUTURE)


def test_known_covariates_without_a_value_are_counted() -> None:
    w = windows(6, known_covariates=["hour", "k"])
    counted = r"'k' in 3 of 12 rows, first of series 'a' at 2024-01-02 21:00; they are `fill` with"
    for future in (True, "appended"):
        with pytest.warns(UserWarning, match=counted) as found:
            latest = w.latest(future=future)
        assert found[0].filename == __file__
        assert (~latest.gather([0, 1])["future_known_mask"]).sum() == 3
