"""Windows for NeuralForecast equal those that its training step cuts, and so do trained models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.adapted_batches import FUTURE, LENGTHS, PAST, assert_equal, frame, table, windows
from windeck.adapters import neuralforecast

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("neuralforecast")


def model(**options: Any) -> Any:
    from neuralforecast.models import NHITS

    made = NHITS(
        h=FUTURE, input_size=PAST, windows_batch_size=None, max_steps=4, random_seed=0,
        scaler_type="standard", accelerator="cpu",
        futr_exog_list=["known"], hist_exog_list=["past"], stat_exog_list=["static"],
        mlp_units=[[4, 4]] * 3, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, **options,
    )  # fmt: skip
    made.val_size = made.test_size = 0
    return made


#: Options of a model that cuts each window once: of batches of ours, and of whole series.
OURS: dict[str, Any] = {"step_size": PAST + FUTURE}
THEIRS: dict[str, Any] = {"training_data_availability_threshold": 1.0}


def theirs() -> Any:
    """Return NeuralForecast's own loader, in order of the series."""
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    data = frame()[["unique_id", "ds", "y", "known", "past", "static"]]
    static = data[["unique_id", "static"]].drop_duplicates()
    dataset, *_ = TimeSeriesDataset.from_df(data.drop(columns="static"), static)
    return TimeSeriesDataModule(dataset, shuffle_train=False).train_dataloader()


def cut(made: Any, batch: Any) -> Any:
    """Return what a training step of a model makes of a batch, up to the call of the network."""
    temporal, static, names, found, weights, columns = made._create_windows(batch, step="train")
    windows = made._sample_windows(
        temporal, static, names, columns, torch.arange(len(found)), found, weights
    )
    return made._parse_windows(batch, made._normalization(windows, batch["y_idx"]))


def trained(batches: Any, options: dict[str, Any]) -> dict[str, Any]:
    import pytorch_lightning

    pytorch_lightning.seed_everything(0)
    made = model(**options)
    trainer = pytorch_lightning.Trainer(**made.trainer_kwargs)
    trainer.fit(made, batches)
    losses = torch.tensor([loss for _, loss in made.train_trajectories])
    assert len(losses) == 4
    return {**made.state_dict(), "losses": losses}


def test_windows_are_equal_after_the_cutting(library: Any) -> None:
    """One batch of all windows, as NeuralForecast cuts them from one batch of all series."""
    source = windows()
    (batch,) = neuralforecast.loader(source, batch_size=len(source))
    (expected,) = theirs()
    assert batch.keys() == expected.keys()
    assert list(batch["temporal_cols"]) == list(expected["temporal_cols"])
    assert_equal(cut(model(**OURS), batch), cut(model(**THEIRS), expected))


def test_a_model_trains_to_the_same_weights(library: Any) -> None:
    source = windows()
    ours = neuralforecast.loader(source, batch_size=len(source))
    assert_equal(trained(ours, OURS), trained(theirs(), THEIRS))


def test_missing_targets_are_not_available(library: Any) -> None:
    """A user of NeuralForecast says so in a column `available_mask`."""
    values = frame()["y"].to_numpy().copy()
    values[100:104] = np.nan
    source = wd.Windows(
        table().with_columns({"y": values}), context_length=PAST, prediction_length=FUTURE,
        target_columns="y", dtype="float32",
    )  # fmt: skip
    (batch,) = neuralforecast.loader(source, batch_size=len(source))
    available = batch["temporal"][:, list(batch["temporal_cols"]).index("available_mask")]
    assert torch.equal(batch["temporal"][:, 0] != 0, available.bool())
    assert available.sum() == available.numel() - 4 * (PAST + FUTURE)


@pytest.mark.parametrize(
    "lacking", ["past_known", "future_known", "past_covariates", "static", "static_categorical"]
)
def test_keys_of_all_roles_are_needed(lacking: str) -> None:
    """Values of the columns after a missing key would be in its place."""
    number = np.repeat(np.arange(3, dtype=np.int32), LENGTHS)
    keys = ["past_target", "future_target", "past_target_mask", "future_target_mask"]
    keys += ["past_known", "future_known", "past_covariates", "static", "static_categorical"]

    def source_of(keys: list[str]) -> wd.Windows:
        made = wd.Windows(
            table().with_columns({"site": number}), context_length=PAST, prediction_length=FUTURE,
            target_columns="y", known_covariates="known", past_covariates="past",
            static_covariates=["static", "site"], categorical="site", keys=keys,
        )  # fmt: skip
        return made.with_categories(wd.Categories.fit(made))

    source = source_of(keys)
    (batch,) = neuralforecast.loader(source, batch_size=len(source))
    expected, temporal = source.gather(np.arange(len(source))), batch["temporal"]
    assert list(batch["temporal_cols"]) == ["y", "known", "past", "available_mask"]
    np.testing.assert_array_equal(temporal[:, 1, PAST:], expected["future_known"][..., 0])
    np.testing.assert_array_equal(temporal[:, 2, :PAST], expected["past_covariates"][..., 0])
    assert batch["static"].shape == (len(source), 2)
    assert list(batch["static_cols"]) == ["static", "site"]
    keys.remove(lacking)
    with pytest.raises(KeyError, match=rf"no '{lacking}', only .*among the `keys` of the windows"):
        next(iter(neuralforecast.loader(source_of(keys), batch_size=5)))


def test_wrong_sources_are_named(library: Any) -> None:
    with pytest.raises(TypeError, match="`data` must be Windows or BalancedWindows, got a Stream"):
        neuralforecast.loader(wd.Stream(windows()), batch_size=5)
    source = windows(target_columns=["y", "past"], past_covariates=None)
    with pytest.raises(ValueError, match="must have one target column, got y, past"):
        neuralforecast.loader(source, batch_size=5)
    assert next(iter(neuralforecast.loader(windows().balanced(), batch_size=5)))["y_idx"] == 0
