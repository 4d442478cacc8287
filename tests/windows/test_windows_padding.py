"""Windows that are cut by an end of their series, overlapping futures and the anchor: examples.

`test_windows_random` compares all of them with the reference.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import windeck as wd
from support.window_tables import table_of


def past_and_future(w: wd.Windows, number: int) -> tuple[list[Any], list[Any]]:
    """Return the target of a window, with None for steps outside the series."""
    sample = w[number]
    found = []
    for key in ("past_target", "future_target"):
        values = sample[key][:, 0].tolist()
        mask = sample[f"{key}_mask"][:, 0]
        found.append([value if m else None for value, m in zip(values, mask, strict=True)])
    return found[0], found[1]


def test_the_end_of_a_series_cuts_futures() -> None:
    table = table_of(x=np.arange(4))
    w = wd.Windows(table, context_length=2, prediction_length=2, pad="end")
    assert [past_and_future(w, i) for i in range(len(w))] == [
        ([0, 1], [2, 3]),
        ([1, 2], [3, None]),
    ]
    w = wd.Windows(table, context_length=2, prediction_length=2, pad="both")
    assert [past_and_future(w, i) for i in range(len(w))] == [
        ([None, 0], [1, 2]),
        ([0, 1], [2, 3]),
        ([1, 2], [3, None]),
    ]


def test_least_steps_inside_the_series() -> None:
    options: dict[str, Any] = {"context_length": 3, "prediction_length": 3, "pad": "both"}
    w = wd.Windows(
        table_of(x=np.arange(9)), min_context_length=2, min_prediction_length=2, **options
    )
    assert past_and_future(w, 0) == ([None, 0, 1], [2, 3, 4])
    assert past_and_future(w, len(w) - 1) == ([4, 5, 6], [7, 8, None])
    full = wd.Windows(
        table_of(x=np.arange(9)), min_context_length=3, min_prediction_length=3, **options
    )
    plain = wd.Windows(table_of(x=np.arange(9)), context_length=3, prediction_length=3)
    assert full.window_starts().tolist() == plain.window_starts().tolist()
    assert set(full[0]) == set(plain[0])


def test_the_default_said_aloud_is_the_same_configuration() -> None:
    table = table_of(x=np.arange(9))
    spelled: list[dict[str, Any]] = [
        {"pad": True},
        {"pad": "start"},
        {"pad": "start", "min_context_length": 1, "anchor": "start"},
    ]
    found = [wd.Windows(table, context_length=3, **options).fingerprint for options in spelled]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("anchor", ["start", "end"])
def test_the_stride_is_counted_from_either_end(anchor: Literal["start", "end"]) -> None:
    table = wd.Table.from_columns({"x": np.arange(21)}, offsets=[0, 10, 21])
    w = wd.Windows(table, context_length=3, prediction_length=1, stride=4, anchor=anchor)
    starts = {"start": [0, 4, 10, 14], "end": [2, 6, 13, 17]}
    assert w.window_starts().tolist() == starts[anchor]


def test_parts_of_a_split_keep_partial_futures_at_the_end_of_the_series_alone() -> None:
    w = wd.Windows(table_of(x=np.arange(30)), context_length=4, prediction_length=3, pad="end")
    train, validation, test = w.split(validation_rows=6, test_rows=6)
    assert [train.window_starts()[-1], validation.window_starts()[-1]] == [11, 17]
    assert validation.window_starts()[0] == 14
    assert test.window_starts().tolist() == [20, 21, 22, 23, 24, 25]
    assert past_and_future(test, 5) == ([25, 26, 27, 28], [29, None, None])
    assert past_and_future(train, 11) == ([11, 12, 13, 14], [15, 16, 17])
    assert train.explain().dropped["border"] == 4


@pytest.mark.parametrize("pad", ["end", "both"])
@pytest.mark.parametrize("gap", [0, -2])
def test_rows_behind_a_series_are_not_read(pad: Literal["end", "both"], gap: int) -> None:
    table = wd.Table.from_columns({"x": np.arange(50.0)}, offsets=[0, 20, 50])
    w = wd.Windows(table, context_length=4, prediction_length=5, gap=gap, pad=pad)
    covered = [(int(a), int(b), int(s)) for a, b, s in zip(*w.covered_rows(), strict=True)]
    assert covered == [(0, 20, 0), (20, 50, 1)]
    assert wd.Scaler.fit(w, sample=None).statistics["mean"].item() == pytest.approx(24.5)


def informer_samples(
    data: np.ndarray[Any, Any],
    part: int,
    borders: tuple[int, int],
    context: int,
    label: int,
    n: int,
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return the samples of a part as the data loader of Informer and Autoformer defines them."""
    first = [0, borders[0] - context, borders[1] - context][part]
    last = [*borders, len(data)][part]
    rows = data[first:last]
    found = []
    for begin in range(len(rows) - context - n + 1):
        end = begin + context
        found.append((rows[begin:end], rows[end - label : end + n]))
    return found


@pytest.mark.parametrize(("context", "label", "horizon"), [(9, 4, 5), (6, 6, 1), (5, 0, 3)])
def test_label_overlap_equals_informer(context: int, label: int, horizon: int) -> None:
    data = np.random.default_rng(0).normal(size=(100, 2))
    table = wd.Table.from_rows(data, ["a", "b"])
    w = wd.Windows(table, context_length=context, prediction_length=label + horizon, gap=-label)
    split = w.split(validation_rows=20, test_rows=20)
    for number, part in enumerate(split):
        expected = informer_samples(data, number, (60, 80), context, label, horizon)
        batch = part.gather(np.arange(len(part)))
        assert len(part) == len(expected)
        np.testing.assert_array_equal(batch["past_target"], [x for x, _ in expected])
        np.testing.assert_array_equal(batch["future_target"], [y for _, y in expected])


def test_overlaps_are_described() -> None:
    w = wd.Windows(table_of(x=np.arange(20)), context_length=4, prediction_length=6, gap=-2)
    assert repr(w) == "Windows(13 windows: 4 past, overlap 2, 6 future; past_target, future_target)"


def test_contexts_without_a_future_are_padded_at_their_ends() -> None:
    table = table_of(offsets=[0, 4, 5], load=np.arange(5.0))
    w = wd.Windows(table, context_length=3, pad="end", fill=-1.0)
    assert w.window_starts().tolist() == [0, 1, 2, 3, 4]
    batch = w.gather([1, 2, 3, 4])
    assert batch["past_target"][..., 0].tolist() == [
        [1, 2, 3],
        [2, 3, -1],
        [3, -1, -1],
        [4, -1, -1],
    ]
    assert batch["past_target_mask"].sum(axis=1).ravel().tolist() == [3, 2, 1, 1]
    some = wd.Windows(table_of(rows=4), context_length=3, pad="end", min_context_length=2)
    assert some.window_starts().tolist() == [0, 1, 2]
    # The latest context ends with the last row.
    assert wd.Windows(table_of(rows=4), context_length=3, pad="end").latest().locate(0) == (0, 1)
    assert some.fingerprint["pad"] == 2
    train, _, test = w.split(validation=0, test=0.25)
    assert (train.window_starts().tolist(), test.window_starts().tolist()) == ([0, 4], [3])
