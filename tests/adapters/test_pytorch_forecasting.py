"""Batches of a dataset of pytorch-forecasting equal those of its own loader; so do models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.adapted_batches import BATCH, SEED, assert_equal, dataset, frame
from windeck.adapters import pytorch_forecasting

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("pytorch_forecasting")


def trained(kind: str, data: Any, batches: Any) -> dict[str, Any]:
    """Return the weights of a model after an epoch, and its loss."""
    import lightning
    import pytorch_forecasting as library

    lightning.seed_everything(0)
    options = {"hidden_size": 4, "learning_rate": 0.01, "dropout": 0.0, "log_interval": 0}
    model = getattr(library, kind).from_dataset(data, **options)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, batches)
    return {**model.state_dict(), "loss": trainer.callback_metrics["train_loss_epoch"]}


def variants() -> dict[str, dict[str, Any]]:
    """Return options of datasets, with a name for each."""
    from pytorch_forecasting import MultiNormalizer, NaNLabelEncoder
    from pytorch_forecasting.data.encoders import TorchNormalizer

    two = {"target": ["y", "past"], "target_normalizer": MultiNormalizer([TorchNormalizer()] * 2)}
    none: dict[str, Any] = {"static_categoricals": [], "time_varying_known_categoricals": []}
    classes = {"target": "week", "target_normalizer": NaNLabelEncoder()}
    return {
        "all roles": {},
        "two targets": {**two, "add_target_scales": False},
        "no categories": {**none, "weight": None},
        "categories as target": {**classes, "add_target_scales": False},
        "lags": {"lags": {"y": [2, 5]}},
        "minimal index": {"min_prediction_idx": 30},
    }


@pytest.mark.parametrize("name", ["all roles", "two targets", "no categories",
                                  "categories as target", "lags", "minimal index"])  # fmt: skip
def test_batches_are_equal(library: Any, name: str) -> None:
    options = variants()[name]
    data = dataset(**options) if "target" not in options else other_target(options)
    batches = list(pytorch_forecasting.loader(data, batch_size=BATCH))
    expected = list(data.to_dataloader(train=False, batch_size=BATCH))
    assert_equal(batches, expected)
    for (x, (_, weight)), (other, (_, other_weight)) in zip(batches, expected, strict=True):
        assert x.keys() == other.keys()
        assert (weight is None) == (other_weight is None)


def other_target(options: dict[str, Any]) -> Any:
    from pytorch_forecasting import TimeSeriesDataSet

    data = frame().assign(week=(frame()["time_idx"] // 7 % 5).map(str))
    return TimeSeriesDataSet(
        data, time_idx="time_idx", group_ids=["site"], max_encoder_length=8,
        max_prediction_length=4, time_varying_unknown_reals=["past"], **options,
    )  # fmt: skip


def test_datasets_with_some_of_the_windows(library: Any) -> None:
    """A dataset for prediction has the last window of each series; `filter` leaves some out."""
    from pytorch_forecasting import TimeSeriesDataSet

    last = TimeSeriesDataSet.from_dataset(dataset(), dataset_frame(), predict=True)
    some = dataset().filter(lambda index: index["time_idx_first_prediction"] % 2 == 0)
    for data in (last, some):
        ours = pytorch_forecasting.loader(data, batch_size=5)
        assert_equal(list(ours), list(data.to_dataloader(train=False, batch_size=5)))
    prints = [pytorch_forecasting.DatasetWindows(one).fingerprint for one in (last, some)]
    assert prints[0] != prints[1]


def dataset_frame() -> Any:
    weeks = (frame()["time_idx"] // 7 % 5).map(str)
    return frame().assign(week=weeks, weight=np.linspace(1, 2, len(weeks)))


@pytest.mark.parametrize("kind", ["TemporalFusionTransformer", "DeepAR"])
def test_models_train_to_the_same_weights(library: Any, kind: str) -> None:
    data = dataset() if kind == "TemporalFusionTransformer" else dataset(
        time_varying_unknown_reals=["y"]
    )  # fmt: skip
    options = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "drop_last": True}
    ours = pytorch_forecasting.loader(data, **options)
    order = ours.loader.stream.order_at(0)[:]  # type: ignore[attr-defined]
    theirs = data.to_dataloader(batch_size=BATCH, shuffle=False, sampler=order.tolist())
    assert_equal(trained(kind, data, ours), trained(kind, data, theirs))


def test_rows_are_written_into_arrays(library: Any) -> None:
    source = pytorch_forecasting.DatasetWindows(dataset())
    expected = source.gather(np.array([3, 1]))
    out = {key: np.zeros_like(array) for key, array in expected.items()}
    assert source.gather(np.array([3, 1]), out) is out
    assert all(np.array_equal(out[key], array) for key, array in expected.items())
    empty = source.gather(np.empty(0, np.int64))
    assert {key: (array.dtype, array.shape[1:]) for key, array in empty.items()} == {
        key: (array.dtype, array.shape[1:]) for key, array in expected.items()
    }


def test_datasets_that_differ_from_window_to_window_are_refused(library: Any) -> None:
    from pytorch_forecasting import EncoderNormalizer

    with pytest.raises(ValueError, match=r"24 windows that are shorter.*expected 12 consecutive"):
        pytorch_forecasting.DatasetWindows(dataset(min_encoder_length=4))
    with pytest.raises(ValueError, match="randomize_length"):
        pytorch_forecasting.DatasetWindows(dataset(randomize_length=True))
    with pytest.raises(ValueError, match="EncoderNormalizer"):
        pytorch_forecasting.DatasetWindows(dataset(target_normalizer=EncoderNormalizer()))
