"""Epochs of other libraries' loaders, and of `windeck.adapters`, over the same windows.

For each library the time of loading an epoch, and of an epoch of training with a small model of
the library by its own trainer. Windows of 168 + 24 steps of 20 generated series with 500 rows, in
batches of 256: 6,180 windows, compared first as multisets of bytes. A library that is not
installed is left out.

* GluonTS: the training loader of `DLinearEstimator`, told to expect more windows than there are.
* Darts: `SequentialTorchTrainingDataset` in the `DataLoader` of `fit_from_dataset`; `NLinearModel`.
* pytorch-forecasting: `to_dataloader(train=True)` of a `TimeSeriesDataSet`; `DecoderMLP`.
* Time-Series-Library: a dataset with the arithmetic of `Dataset_Custom` in a `DataLoader`, of one
  series with 10,000 rows; DLinear of `examples/dlinear_ett.py`.
* NeuralForecast: `TimeSeriesDataModule` of one series at a time, and the steps of `training_step`
  that make windows, with ``windows_batch_size=None``; ours in batches of as many; `NLinear`.
* Chronos-2: `Chronos2Dataset` of one input a window, as its mode for training draws windows at
  random without end; `Chronos2Model` with one layer of width 16.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Row, compare
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from windeck import adapters

SERIES, LENGTH, PAST, FUTURE, BATCH = 20, 500, 168, 24, 256
WINDOWS = LENGTH - PAST - FUTURE + 1

VALUES = np.random.default_rng(0).standard_normal(SERIES * LENGTH, dtype=np.float32)
#: Options of the `Trainer` of Lightning.
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
#: Loaders of ours and theirs, pasts and futures of a batch, and an epoch of training with a loader.
Case = tuple[Iterable[Any], Iterable[Any], Callable[[Any], Any], Callable[[Any], object]]


def windows(**options: Any) -> wd.Windows:
    offsets = np.arange(SERIES + 1) * LENGTH
    table = wd.Table.from_columns({"y": VALUES}, offsets=offsets)
    return wd.Windows(table, context_length=PAST, prediction_length=FUTURE, **options)


def frame() -> Any:
    import pandas as pd

    numbers, steps = np.divmod(np.arange(SERIES * LENGTH), LENGTH)
    return pd.DataFrame({"unique_id": numbers, "ds": steps, "y": VALUES})


def gluonts() -> Case:
    import lightning
    import pandas as pd
    from gluonts.torch import DLinearEstimator
    from gluonts.transform import ExpectedNumInstanceSampler

    every = ExpectedNumInstanceSampler(num_instances=1e9, min_past=PAST, min_future=FUTURE)
    estimator = DLinearEstimator(
        FUTURE, context_length=PAST, hidden_dimension=4, batch_size=BATCH,
        num_batches_per_epoch=SERIES * WINDOWS // BATCH, train_sampler=every,
    )  # fmt: skip
    start = pd.Period("2024-01-01 00:00", freq="h")
    data = [{"start": start, "target": one} for one in VALUES.reshape(SERIES, LENGTH)]
    made = estimator.create_transformation().apply(data, is_train=True)
    module = estimator.create_lightning_module()

    def train(batches: Any) -> None:
        lightning.Trainer(max_epochs=1, **QUIET).fit(module, batches)

    return (
        adapters.gluonts.loader(windows(), batch_size=BATCH, shuffle=True, drop_last=True),
        estimator.create_training_data_loader(made, module),
        lambda batch: (batch["past_target"], batch["future_target"]),
        train,
    )


def darts() -> Case:
    from darts import TimeSeries
    from darts.models import NLinearModel
    from darts.utils.data import SequentialTorchTrainingDataset
    from darts.utils.data.torch_datasets._data_module import TorchDataModule
    from darts.utils.data.torch_datasets.utils import _batch_collate_fn_train

    theirs = SequentialTorchTrainingDataset(
        [TimeSeries.from_values(one) for one in VALUES.reshape(SERIES, LENGTH)],
        input_chunk_length=PAST, output_chunk_length=FUTURE, use_static_covariates=False,
    )  # fmt: skip
    module = TorchDataModule(
        theirs, batch_size=BATCH, collate_fn=_batch_collate_fn_train,
        dataloader_kwargs={"pin_memory": False},
    )  # fmt: skip
    ours = adapters.darts.TrainingDataset(windows(), batch_size=BATCH, shuffle=True)

    def train(batches: Any) -> None:
        model = NLinearModel(
            PAST, FUTURE, n_epochs=1, batch_size=BATCH, pl_trainer_kwargs=dict(QUIET)
        )
        if batches is ours:
            model.fit_from_dataset(ours, dataloader_kwargs=adapters.darts.dataloader_kwargs())
        else:
            model.fit_from_dataset(theirs)

    through = DataLoader(ours, **adapters.darts.dataloader_kwargs())
    pair = Named(through, ours)
    return (
        pair,
        module.train_dataloader(),
        lambda batch: (batch.past_target, batch.future_target),
        lambda batches: train(ours if batches is pair else batches),
    )


class Named:
    """The batches of a `DataLoader` that has a dataset of ours."""

    def __init__(self, batches: Any, dataset: Any) -> None:
        self.batches, self.dataset = batches, dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def pytorch_forecasting() -> Case:
    import lightning
    from pytorch_forecasting import DecoderMLP, GroupNormalizer, TimeSeriesDataSet

    dataset = TimeSeriesDataSet(
        frame().assign(unique_id=frame()["unique_id"].map(str)), time_idx="ds", target="y",
        group_ids=["unique_id"], max_encoder_length=PAST, max_prediction_length=FUTURE,
        time_varying_known_reals=["ds"], time_varying_unknown_reals=["y"],
        target_normalizer=GroupNormalizer(groups=["unique_id"]),
    )  # fmt: skip
    model = DecoderMLP.from_dataset(dataset, hidden_size=4, n_hidden_layers=1, log_interval=0)
    options = {"batch_size": BATCH, "drop_last": True}
    return (
        adapters.pytorch_forecasting.loader(dataset, shuffle=True, **options),
        dataset.to_dataloader(train=True, **options),
        lambda batch: (batch[0]["encoder_target"], batch[1][0]),
        lambda batches: lightning.Trainer(max_epochs=1, **QUIET).fit(model, batches),
    )


class Custom(Dataset[Any]):
    """The arithmetic of Time-Series-Library's `Dataset_Custom`, of one series."""

    def __init__(self, label_len: int) -> None:
        self.values = VALUES[:, None].astype(np.float64)
        self.marks = np.arange(len(VALUES), dtype=np.float64)[:, None] % 24 / 23 - 0.5
        self.label_len = label_len

    def __len__(self) -> int:
        return len(self.values) - PAST - FUTURE + 1

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        end = index + PAST
        past, future = slice(index, end), slice(end - self.label_len, end + FUTURE)
        return self.values[past], self.values[future], self.marks[past], self.marks[future]


def time_series_library() -> Case:
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from dlinear_ett import DLinear

    theirs, label_len = Custom(12), 12
    table = wd.Table.from_columns(
        {"y": theirs.values[:, 0].copy(), "hour": theirs.marks[:, 0].copy()}
    )
    source = wd.Windows(
        table, context_length=PAST, gap=-label_len, prediction_length=label_len + FUTURE,
        target_columns="y", known_covariates="hour",
    )  # fmt: skip
    model = DLinear(PAST, FUTURE)
    optimizer = torch.optim.Adam(model.parameters())

    def train(batches: Any) -> None:
        for past, future, _, _ in batches:
            predicted = model(past.float())
            loss = (predicted - future[:, label_len:].float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return (
        adapters.time_series_library.loader(source, batch_size=BATCH, shuffle=True),
        DataLoader(theirs, batch_size=BATCH, shuffle=True),
        lambda batch: batch[:2],
        train,
    )


def neuralforecast() -> Case:
    import pytorch_lightning
    from neuralforecast.models import NLinear
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    dataset, *_ = TimeSeriesDataset.from_df(frame())
    theirs = TimeSeriesDataModule(dataset, batch_size=1).train_dataloader()
    whole, single = (
        NLinear(
            h=FUTURE, input_size=PAST, windows_batch_size=None, max_steps=SERIES, **more, **QUIET
        )
        for more in ({"training_data_availability_threshold": 1.0}, {"step_size": PAST + FUTURE})
    )
    whole.val_size = whole.test_size = single.val_size = single.test_size = 0

    def cut(batch: Any) -> tuple[Any, Any]:
        model = whole if batch["temporal"].shape[-1] == LENGTH else single
        temporal, static, names, found, weights, columns = model._create_windows(batch, "train")
        made = model._sample_windows(
            temporal, static, names, columns, torch.arange(len(found)), found, weights
        )
        past, _, future, *_ = model._parse_windows(batch, made)
        return past, future

    def train(batches: Any) -> None:
        model = whole if batches is theirs else single
        pytorch_lightning.Trainer(**model.trainer_kwargs).fit(model, batches)

    ours = adapters.neuralforecast.loader(windows(), batch_size=WINDOWS, shuffle=True)
    return ours, theirs, cut, train


def chronos() -> Case:
    from chronos import chronos2

    patch = 8
    series = VALUES.reshape(SERIES, LENGTH)
    every = np.lib.stride_tricks.sliding_window_view(series, PAST + FUTURE, axis=1)
    inputs = [{"target": window} for window in every.reshape(-1, PAST + FUTURE)]
    theirs = chronos2.Chronos2Dataset(
        inputs, context_length=PAST, prediction_length=FUTURE, batch_size=BATCH,
        output_patch_size=patch, mode="validation",
    )  # fmt: skip
    config = chronos2.Chronos2CoreConfig(
        d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        chronos_config={
            "context_length": PAST, "input_patch_size": patch, "input_patch_stride": patch,
            "output_patch_size": patch, "max_output_patches": FUTURE // patch,
            "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
        },
    )  # fmt: skip
    model = chronos2.Chronos2Model(config)
    optimizer = torch.optim.AdamW(model.parameters())

    def train(batches: Any) -> None:
        for batch in batches:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    ours = adapters.chronos2.loader(
        windows(fill=float("nan")), batch_size=BATCH, shuffle=True, output_patch_size=patch
    )
    return ours, theirs, lambda batch: (batch["context"], batch["future_target"]), train


CASES = {
    "chronos": chronos,
    "gluonts": gluonts,
    "darts": darts,
    "pytorch_forecasting": pytorch_forecasting,
    "time_series_library": time_series_library,
    "neuralforecast": neuralforecast,
}


def through(batches: Iterable[Any], parts: Callable[[Any], Any]) -> int:
    """Take an epoch, with the windows of each batch; return their number."""
    return sum(len(parts(batch)[0]) for batch in batches)


def multiset(batches: Iterable[Any], parts: Callable[[Any], Any]) -> Counter[bytes]:
    """Return the bytes of each window of an epoch, and how often it came."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        both = [part.reshape(len(part), -1).numpy() for part in parts(batch)]
        found.update(row.tobytes() for row in np.concatenate(both, axis=1))
    return found


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    installed = packages_distributions()
    for name in ("lightning", "pytorch_lightning", "darts"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, case in CASES.items():
        if name != "time_series_library" and importlib.util.find_spec(name) is None:
            print(f"  {name} is not installed: left out")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs, parts, train = case()
            found, expected = multiset(ours, parts), multiset(theirs, parts)
            assert found.total() == expected.total()
            # The last batch of an epoch, which some loaders drop, has other windows if shuffled.
            assert (found - expected).total() < BATCH
            loading = compare(
                partial(through, ours, parts), partial(through, theirs, parts), rounds=5, warm_up=1
            )
            needed = None if name == "neuralforecast" else 10
            what = f"{name}: an epoch of {found.total():,} windows"
            rival = "its own loader"
            if name in installed:
                rival += f", {name} {version(installed[name][0])}"
            yield Row(f"{what}, loading", "adapter", rival, loading, needed)
            training = compare(partial(train, ours), partial(train, theirs), rounds=3, warm_up=1)
            yield Row(f"{what}, training", "adapter", rival, training, None)
