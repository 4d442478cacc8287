"""Batches for Darts equal those of its own training dataset, and so do trained models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.adapted_batches import (
    BATCH,
    FUTURE,
    LENGTHS,
    OFFSETS,
    PAST,
    SEED,
    assert_equal,
    columns,
    windows,
)
from windeck.adapters import darts

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("darts")


@pytest.fixture
def source() -> Any:
    return windows(fill=float("nan"))


def theirs(numbers: Any, source: Any) -> Any:
    """Return a dataset of Darts that has the windows with some numbers of windeck, in order."""
    import pandas as pd
    from darts import TimeSeries
    from darts.utils.data import SequentialTorchTrainingDataset, TorchTrainingDataset

    parts = {name: np.split(values, OFFSETS[1:-1]) for name, values in columns().items()}

    def series(name: str) -> list[Any]:
        return [
            TimeSeries.from_values(one, static_covariates=pd.DataFrame({"static": static[:1]}))
            for one, static in zip(parts[name], parts["static"], strict=True)
        ]

    every = SequentialTorchTrainingDataset(
        series("y"), series("past"), series("known"), PAST, FUTURE
    )

    class Chosen(TorchTrainingDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(numbers)

        def __getitem__(self, index: int) -> Any:
            """Return a window; Darts counts those of a series from its end."""
            number, row = source.locate(int(numbers[index]))
            last = LENGTHS[number] - PAST - FUTURE
            return every[number * every.max_samples_per_ts + last - (row - OFFSETS[number])]

    return Chosen()


def model(epochs: int = 1) -> Any:
    from darts.models import TSMixerModel

    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return TSMixerModel(
        PAST, FUTURE, hidden_size=4, ff_size=4, num_blocks=1, n_epochs=epochs, random_state=0,
        batch_size=BATCH,
        pl_trainer_kwargs={"accelerator": "cpu", "enable_model_summary": False, **options},
    )  # fmt: skip


def test_samples_and_batches_are_equal(library: Any, source: Any) -> None:
    from darts.utils.data.torch_datasets.utils import _batch_collate_fn_train as collate

    dataset = darts.TrainingDataset(source, batch_size=BATCH)
    expected = theirs(range(len(source)), source)
    samples = [expected[number] for number in range(len(expected))]
    batches = [samples[start : start + BATCH] for start in range(0, len(samples), BATCH)]
    assert len(dataset) == len(batches)
    for batch, one in zip(dataset, batches, strict=True):
        assert type(batch) is type(collate(one))
        assert_equal(batch, collate(one))
    for number in (0, len(samples) - 1):
        assert_equal(collate([dataset[number]]), collate([samples[number]]))


def test_a_model_trains_to_the_same_weights(library: Any, source: Any) -> None:
    ours = darts.TrainingDataset(source, batch_size=BATCH, shuffle=True, seed=SEED)
    validation = darts.TrainingDataset(source, batch_size=BATCH, restart=True)
    order = ours.loader.stream.order_at(0)[:]  # type: ignore[attr-defined]
    one, other = model(), model()
    one.fit_from_dataset(ours, validation, dataloader_kwargs=darts.dataloader_kwargs())
    every = theirs(range(len(source)), source)
    other.fit_from_dataset(theirs(order, source), every, dataloader_kwargs={"shuffle": False})
    assert_equal(one.model.state_dict(), other.model.state_dict())
    losses = [made.trainer.callback_metrics for made in (one, other)]
    assert_equal(*losses)
    assert losses[0].keys() == {"train_loss", "val_loss"}


def test_workers_are_refused(library: Any, source: Any) -> None:
    from torch.utils.data import DataLoader

    dataset = darts.TrainingDataset(source, batch_size=BATCH)
    with pytest.raises(ValueError, match="`num_workers` must be 0"):
        next(iter(DataLoader(dataset, num_workers=1, **darts.dataloader_kwargs())))
