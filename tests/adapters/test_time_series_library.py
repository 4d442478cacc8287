"""Batches for Time-Series-Library equal those of a dataset with its arithmetic.

The library is a repository and no package. `Custom` does what its `Dataset_Custom` does, of 2025:
borders, `StandardScaler`, `seq_len`, `label_len` and `pred_len`, time features in [-0.5, 0.5].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from support.adapted_batches import assert_equal
from windeck.adapters import time_series_library

SEQ_LEN, LABEL_LEN, PRED_LEN, ROWS = 24, 12, 6, 240


def data() -> tuple[Any, Any, Any]:
    """Return time stamps, values of two columns standardised as the library does, and marks."""
    stamps = np.datetime64("2024-01-01T00", "h") + np.arange(ROWS)
    values = np.random.default_rng(0).standard_normal((ROWS, 2)) * 3 + 5
    train = values[: int(ROWS * 0.7)]
    hours = stamps.astype("M8[h]").astype(int) % 24 / 23 - 0.5
    days = (stamps.astype("M8[D]").astype(int) + 3) % 7 / 6 - 0.5
    return stamps, (values - train.mean(0)) / train.std(0), np.stack([hours, days], axis=1)


class Custom(Dataset[Any]):
    def __init__(self) -> None:
        _, self.values, self.marks = data()

    def __len__(self) -> int:
        return len(self.values) - SEQ_LEN - PRED_LEN + 1

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        end = index + SEQ_LEN
        past, future = slice(index, end), slice(end - LABEL_LEN, end + PRED_LEN)
        return self.values[past], self.values[future], self.marks[past], self.marks[future]


def windows(**options: Any) -> wd.Windows:
    stamps, values, _ = data()
    columns = {"a": values[:, 0].copy(), "b": values[:, 1].copy(), "time": stamps}
    table = wd.Table.from_columns(columns, timestamp_column="time")
    table = table.with_calendar(["hour", "weekday"], encoding="scaled", dtype="float64")
    return wd.Windows(
        table, context_length=SEQ_LEN, gap=-LABEL_LEN, prediction_length=LABEL_LEN + PRED_LEN,
        target_columns=["a", "b"], **options,
    )  # fmt: skip


def train(batches: Any) -> tuple[list[float], dict[str, Any]]:
    """Train as the experiments do: zeros after the start tokens as the decoder's input."""
    torch.manual_seed(0)
    model = torch.nn.Linear(SEQ_LEN * 4 + (LABEL_LEN + PRED_LEN) * 4, PRED_LEN * 2)
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    for batch in batches:
        x, y, x_mark, y_mark = (tensor.float() for tensor in batch)
        decoder = torch.cat([y[:, :LABEL_LEN], torch.zeros_like(y[:, -PRED_LEN:])], dim=1)
        inputs = [one.flatten(1) for one in (x, x_mark, decoder, y_mark)]
        predicted = model(torch.cat(inputs, dim=1)).view(-1, PRED_LEN, 2)
        loss = (predicted - y[:, -PRED_LEN:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def test_batches_and_a_trained_model_are_equal() -> None:
    source = windows(known_covariates=["hour", "weekday"])
    ours = time_series_library.loader(source, batch_size=32, shuffle=True, seed=7)
    order = ours.loader.stream.order_at(0)  # type: ignore[attr-defined]
    theirs = DataLoader(Custom(), batch_size=32, sampler=order[:])
    assert len(source) == len(Custom())
    for batch, expected in zip(
        time_series_library.loader(source, batch_size=32, shuffle=True, seed=7),
        theirs,
        strict=True,
    ):
        assert_equal(batch, expected)
    losses, weights = train(ours)
    expected_losses, expected_weights = train(theirs)
    assert losses == expected_losses
    assert_equal(weights, expected_weights)


def test_without_time_features_marks_have_no_columns() -> None:
    batch = next(iter(time_series_library.loader(windows(), batch_size=5)))
    assert [tensor.shape for tensor in batch[2:]] == [(5, SEQ_LEN, 0), (5, LABEL_LEN + PRED_LEN, 0)]


def test_windows_without_a_future_are_refused() -> None:
    source = wd.Windows(wd.Table.from_columns({"a": np.arange(9.0)}), context_length=3)
    with pytest.raises(KeyError, match=r"no 'future_target'.*prediction_length"):
        next(iter(time_series_library.loader(source, batch_size=5)))


def test_other_layouts_and_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="must have layout='btc', got windows with layout='bct'"):
        time_series_library.loader(windows(layout="bct").balanced(), batch_size=5)
    with pytest.raises(ValueError, match="must have layout='btc', got windows with layout='bct'"):
        time_series_library.loader(windows(layout="bct").balanced().to("cpu"), batch_size=5)
    parts = {f"{part}_target": torch.zeros(2, 3, 1) for part in ("past", "future")}
    codes = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="codes of categories in static_categorical"):
        time_series_library.to_batch({**parts, "static_categorical": codes})
