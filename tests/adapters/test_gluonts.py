"""Batches for GluonTS equal those of its estimators' own loaders, and so do trained models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.adapted_batches import FUTURE, LENGTHS, PAST, assert_equal, columns, table, windows
from windeck.adapters import gluonts

pytestmark = pytest.mark.filterwarnings("ignore")
#: A third of the 213 windows whose context has at least one step.
BATCH = 71


@pytest.fixture
def library() -> Any:
    pytest.importorskip("gluonts")
    return pytest.importorskip("gluonts.torch")


def entries() -> list[dict[str, Any]]:
    """Return the series as a dataset of GluonTS, with a gap in the second."""
    import pandas as pd

    start = pd.Period("2024-01-01 00:00", freq="h")
    targets = np.split(target(), np.cumsum(LENGTHS)[:-1])
    covariates = np.split(columns()["known"], np.cumsum(LENGTHS)[:-1])
    return [
        {"start": start, "target": one, "feat_dynamic_real": [other], "feat_static_cat": [number]}
        for number, (one, other) in enumerate(zip(targets, covariates, strict=True))
    ]


def target() -> Any:
    values = columns()["y"]
    values[70:74] = np.nan
    return values


def every_window() -> Any:
    from gluonts.transform import ExpectedNumInstanceSampler

    return ExpectedNumInstanceSampler(num_instances=1e9, min_past=1, min_future=FUTURE)


def deepar() -> Any:
    from gluonts.torch import DeepAREstimator

    return DeepAREstimator(
        "h", FUTURE, context_length=PAST, lags_seq=[1, 2, 24], num_feat_dynamic_real=1,
        num_feat_static_cat=1, cardinality=[3], hidden_size=4, num_layers=1, batch_size=BATCH,
        num_batches_per_epoch=213 // BATCH, train_sampler=every_window(),
        validation_sampler=every_window(),
    )  # fmt: skip


def theirs(estimator: Any, module: Any, kind: str) -> Any:
    """Return a loader of an estimator for training or validation."""
    data = estimator.create_transformation().apply(entries(), is_train=True)
    return getattr(estimator, f"create_{kind}_data_loader")(data, module)


def ours(past_length: int, **options: Any) -> Any:
    """Return the loader of the adapter for windows that begin before their series."""
    data, names = gluonts.with_time_features(table(), "h")
    codes = np.repeat(np.arange(3), LENGTHS)
    data = data.with_columns({"y": target(), "code": codes})
    source = wd.Windows(
        data, context_length=past_length, prediction_length=FUTURE, pad="start",
        target_columns="y", known_covariates=[*names, "known"], static_covariates="code",
    )  # fmt: skip
    return gluonts.loader(source, batch_size=BATCH, **options)


def trained(estimator: Any, batches: Any) -> dict[str, Any]:
    """Return the weights of a model after two epochs, and its loss."""
    import lightning

    lightning.seed_everything(0)
    module = estimator.create_lightning_module()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", enable_model_summary=False, **options
    )
    trainer.fit(module, batches(module))
    return {**module.state_dict(), "loss": trainer.callback_metrics["train_loss"]}


@pytest.mark.parametrize("kind", ["training", "validation"])
def test_batches_of_deepar_are_equal(library: Any, kind: str) -> None:
    from gluonts.torch.model.deepar.estimator import TRAINING_INPUT_NAMES

    estimator = deepar()
    module = estimator.create_lightning_module()
    expected = list(theirs(estimator, module, kind))
    batches = list(ours(module.model._past_length, names=TRAINING_INPUT_NAMES))
    assert [list(batch) for batch in batches] == [TRAINING_INPUT_NAMES] * 3
    assert_equal(batches, expected)
    assert not expected[0]["past_observed_values"].all()


def test_deepar_trains_to_the_same_weights(library: Any) -> None:
    estimator = deepar()
    assert_equal(
        trained(estimator, lambda module: ours(module.model._past_length)),
        trained(estimator, lambda module: theirs(estimator, module, "training")),
    )


def test_a_predictor_is_made_of_a_module_trained_on_windows(library: Any) -> None:
    import lightning

    estimator = deepar()
    module = estimator.create_lightning_module()
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False,
                                enable_checkpointing=False, enable_progress_bar=False)  # fmt: skip
    trainer.fit(module, ours(module.model._past_length))
    predictor = estimator.create_predictor(estimator.create_transformation(), module)
    data = entries()
    for entry in data:
        entry["feat_dynamic_real"] = [np.append(entry["feat_dynamic_real"][0], [0] * FUTURE)]
    assert [forecast.mean.shape for forecast in predictor.predict(data)] == [(FUTURE,)] * 3


def test_batches_of_tft_are_equal(library: Any) -> None:
    from gluonts.torch import TemporalFusionTransformerEstimator

    estimator = TemporalFusionTransformerEstimator(
        freq="h", prediction_length=FUTURE, context_length=PAST, batch_size=BATCH,
        num_batches_per_epoch=3, past_dynamic_dims=[1], time_features=[], dynamic_dims=[1],
        train_sampler=every_window(),
    )  # fmt: skip
    past = np.split(columns()["past"], np.cumsum(LENGTHS)[:-1])
    data = [
        {**entry, "past_feat_dynamic_real": one[None]}
        for entry, one in zip(entries(), past, strict=True)
    ]
    made = estimator.create_transformation().apply(data, is_train=True)
    expected = list(estimator.create_training_data_loader(made, None))
    zeros = np.zeros(sum(LENGTHS), np.float32)  # GluonTS adds them where it has no time features.
    source = wd.Windows(
        table().with_columns({"y": target(), "zero": zeros}), context_length=PAST,
        prediction_length=FUTURE, pad="start", target_columns="y",
        known_covariates=["zero", "known"], past_covariates="past",
    )  # fmt: skip
    assert_equal(list(gluonts.loader(source, batch_size=BATCH, names=list(expected[0]))), expected)


def test_fields_follow_the_windows() -> None:
    """Targets of several columns keep their axis; static numbers are real, others codes."""
    batch = gluonts.to_batch(
        {
            "past_target": torch.zeros(5, 3, 2),
            "past_target_mask": torch.ones(5, 3, 2, dtype=torch.bool),
            "static": torch.ones(5, 4),
        }
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    assert shapes == {
        "feat_static_cat": (5, 1),
        "feat_static_real": (5, 4),
        "past_target": (5, 3, 2),
        "past_observed_values": (5, 3, 2),
    }
    assert batch["feat_static_cat"].dtype == torch.int64


def test_codes_of_categories_have_fields() -> None:
    """The keys that windows give to categorical columns."""
    codes = torch.arange(30).view(5, 3, 2)
    batch = {
        "past_target": torch.zeros(5, 3, 1),
        "past_known_categorical": codes,
        "future_known_categorical": codes + 100,
        "past_categorical": codes + 200,
        "static": torch.ones(5, 4),
        "static_categorical": codes[:, 0],
    }
    names = ["feat_static_cat", "feat_static_real", "feat_dynamic_cat", "past_feat_dynamic_cat"]
    made = gluonts.to_batch(batch, names=names)
    assert torch.equal(made["feat_static_cat"], codes[:, 0])
    assert torch.equal(made["feat_static_real"], batch["static"])
    assert torch.equal(made["feat_dynamic_cat"], torch.cat((codes, codes + 100), dim=1))
    assert torch.equal(made["past_feat_dynamic_cat"], codes + 200)
    numbers = torch.arange(5, dtype=torch.int32)[:, None]
    made = gluonts.to_batch({**batch, "static": numbers}, names=names[:2])
    assert torch.equal(made["feat_static_cat"], torch.cat((numbers.long(), codes[:, 0]), dim=1))
    assert torch.equal(made["feat_static_real"], torch.zeros(5, 1))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"`names` must be of feat_static_cat, .* got observed"):
        gluonts.loader(windows(), batch_size=5, names=["observed"])
    with pytest.raises(KeyError, match=r"no 'past_target_mask'.*masks=True"):
        next(iter(gluonts.loader(windows(masks=False), batch_size=5)))
    source = windows(known_covariates=None)
    with pytest.raises(KeyError, match="no 'past_known'"):
        next(iter(gluonts.loader(source, batch_size=5, names=["past_time_feat"])))


@pytest.mark.parametrize("freq", ["h", "2h", "D", "B", "W-WED", "ME", "MS", "QE", "QS", "YE"])
def test_time_features_are_those_of_any_frequency(library: Any, freq: str) -> None:
    """An estimator takes the alias of an offset, and its series begin with a period."""
    import pandas as pd
    from gluonts.time_feature import time_features_from_frequency_str
    from gluonts.transform import AddTimeFeatures

    periods = pd.date_range("2024-01-01", periods=40, freq=freq).to_period()
    add = AddTimeFeatures(
        "start", "target", "features", time_features_from_frequency_str(freq), pred_length=0
    )
    entry = {"start": periods[0], "target": np.zeros(40, np.float32)}
    expected = add.map_transform(entry, is_train=True)["features"]
    stamps = periods.to_timestamp().to_numpy().astype("M8[s]")
    data = {"y": np.zeros(40, np.float32), "time": stamps}
    found, names = gluonts.with_time_features(
        wd.Table.from_columns(data, timestamp_column="time"), freq
    )
    rows = [] if expected is None else list(expected)
    assert len(names) == len(rows) + 1
    for name, row in zip(names, rows, strict=False):
        np.testing.assert_array_equal(found[name], row.astype(np.float32))


def test_time_features_need_stamps_and_free_names(library: Any) -> None:
    with pytest.raises(TypeError, match=r"`table` must have time stamps of dates.*got none"):
        gluonts.with_time_features(wd.Table.from_columns({"y": np.zeros(3)}), "h")
    data, _ = gluonts.with_time_features(table(), "h")
    with pytest.raises(ValueError, match=r"columns of these names already: age, day_of_month"):
        gluonts.with_time_features(data, "h")
