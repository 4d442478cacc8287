"""Windows a second of windeck, GluonTS, Darts and NeuralForecast, on series of differing lengths.

Each library makes its training windows as its documentation says, with its own classes and default
options but those that make it serve every complete window once: then all serve the same windows,
which is compared first, as multisets of bytes. A library that is not installed is left out.

* GluonTS: `InstanceSplitter` with `ExpectedNumInstanceSampler`, told to expect more windows than
  there are, and `as_stacked_batches`, as its torch estimators use them. Without a shuffle buffer,
  their default: windows come series by series.
* Darts: `SequentialTorchTrainingDataset` in a `DataLoader` with ``shuffle=True`` and its collate
  function. It repeats windows of series shorter than the longest one; a `Subset` has each once.
* NeuralForecast: `TimeSeriesDataModule` and the steps of `training_step` that make windows, with
  ``training_data_availability_threshold=1`` (incomplete windows are left out) and
  ``windows_batch_size=None`` (all windows of 32 series at a time, which costs least for a window).
  By default it serves 1,024 random ones of them and makes all anew in the next step: told as well.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from measure import Row, compare
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset

import windeck as wd

PAST, FUTURE, BATCH = 168, 24, 256
STEPS = PAST + FUTURE

Series = list[NDArray[np.float32]]
#: Past and future of shape (batch, steps) or (batch, steps, 1).
Pair = tuple[torch.Tensor, torch.Tensor]
Epoch = Callable[[], Iterator[Pair]]


def ragged(count: int = 40) -> Series:
    """Series of 192 to 700 steps."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(STEPS, 700, count, endpoint=True)
    return [rng.standard_normal(length, dtype=np.float32) for length in lengths]


def windows_in(series: Series) -> int:
    return sum(len(one) - STEPS + 1 for one in series)


def windeck(series: Series, batch_size: int = BATCH) -> Epoch:
    offsets = np.cumsum([0, *map(len, series)])
    table = wd.Table.from_columns({"y": np.concatenate(series)}, offsets=offsets)
    windows = wd.Windows(table, context_length=PAST, prediction_length=FUTURE)
    loader = wd.Loader(windows, batch_size=batch_size, shuffle=True)

    def epoch() -> Iterator[Pair]:
        for batch in loader:
            yield batch["past_target"], batch["future_target"]

    return epoch


def gluonts(series: Series) -> Epoch:
    import pandas as pd
    from gluonts.dataset.loader import as_stacked_batches
    from gluonts.transform import ExpectedNumInstanceSampler, InstanceSplitter

    start = pd.Period("2020-01-01 00:00", freq="h")
    data = [{"start": start, "target": one} for one in series]
    splitter = InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=ExpectedNumInstanceSampler(
            num_instances=1e9, min_past=PAST, min_future=FUTURE
        ),
        past_length=PAST,
        future_length=FUTURE,
    )

    def epoch() -> Iterator[Pair]:
        for batch in as_stacked_batches(
            splitter.apply(data, is_train=True),
            batch_size=BATCH,
            field_names=["past_target", "future_target"],
            output_type=torch.tensor,
        ):
            yield batch["past_target"], batch["future_target"]

    return epoch


def darts(series: Series) -> Epoch:
    from darts import TimeSeries
    from darts.utils.data.torch_datasets.training_dataset import SequentialTorchTrainingDataset
    from darts.utils.data.torch_datasets.utils import _batch_collate_fn_train

    dataset = SequentialTorchTrainingDataset(
        [TimeSeries.from_values(one) for one in series],
        input_chunk_length=PAST,
        output_chunk_length=FUTURE,
        use_static_covariates=False,
    )
    slots = dataset.max_samples_per_ts
    once = [
        number * slots + window
        for number, one in enumerate(series)
        for window in range(len(one) - STEPS + 1)
    ]
    loader: DataLoader[Any] = DataLoader(
        Subset(dataset, once),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=_batch_collate_fn_train,
    )

    def epoch() -> Iterator[Pair]:
        for batch in loader:
            yield batch.past_target, batch.future_target

    return epoch


def neuralforecast(series: Series, windows_batch_size: int | None = None) -> Epoch:
    import pandas as pd
    from neuralforecast.models import DLinear
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    logging.getLogger("lightning.fabric.utilities.seed").setLevel(logging.WARNING)
    frame = pd.DataFrame(
        {
            "unique_id": np.repeat(np.arange(len(series)), [len(one) for one in series]),
            "ds": np.concatenate([np.arange(len(one)) for one in series]),
            "y": np.concatenate(series),
        }
    )
    dataset, *_ = TimeSeriesDataset.from_df(frame)
    module = TimeSeriesDataModule(dataset, batch_size=32)
    model = DLinear(
        h=FUTURE,
        input_size=PAST,
        windows_batch_size=windows_batch_size,
        training_data_availability_threshold=1.0,
    )

    def epoch() -> Iterator[Pair]:
        for batch in module.train_dataloader():
            temporal, static, static_names, found, weights, names = model._create_windows(
                batch, step="train"
            )
            order = torch.arange(len(found))
            if windows_batch_size is not None:
                order = torch.randperm(len(found))[:windows_batch_size]
            windows = model._sample_windows(
                windows_temporal=temporal,
                static=static,
                static_cols=static_names,
                temporal_cols=names,
                w_idxs=order,
                final_condition=found,
                sample_weight=weights,
            )
            past, _, future, _, *_ = model._parse_windows(batch, windows)
            yield past, future

    return epoch


LIBRARIES = {"gluonts": gluonts, "darts": darts, "neuralforecast": neuralforecast}


def multiset(epoch: Epoch) -> Counter[bytes]:
    """Bytes of each window of an epoch, and how often it came."""
    found: Counter[bytes] = Counter()
    for past, future in epoch():
        assert past.dtype == future.dtype == torch.float32
        both = [one.reshape(len(one), -1).numpy() for one in (past, future)]
        found.update(row.tobytes() for row in np.concatenate(both, axis=1))
    return found


def through(epoch: Epoch) -> int:
    """Take all of an epoch, keep none; the number of windows."""
    return sum(len(past) for past, _ in epoch())


def row(name: str, series: Series, ours: Epoch, rival: Epoch, batches: str) -> Row:
    counts = through(ours), through(rival)
    ratio = compare(partial(through, ours), partial(through, rival), rounds=15, warm_up=1)
    # Seconds of a window, since one of the sides may serve fewer of them.
    per_window = ratio.rival_seconds / counts[1], ratio.ours_seconds / counts[0]
    speeds = [1 / seconds for seconds in per_window]
    if counts[0] != counts[1]:
        share = counts[0] / counts[1]
        ratio = type(ratio)(
            ratio.median * share,
            ratio.low * share,
            ratio.high * share,
            ratio.ours_seconds,
            ratio.rival_seconds,
        )
    return Row(
        f"{windows_in(series):,} windows {PAST} + {FUTURE} of {len(series)} series, {batches}",
        f"Loader: {speeds[1]:,.0f} windows/s",
        f"{name} {version(name)}: {speeds[0]:,.0f} windows/s",
        ratio,
        None,
    )


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    series = ragged()
    expected = multiset(windeck(series))
    for name, library in LIBRARIES.items():
        if importlib.util.find_spec(name) is None:
            print(f"  {name} is not installed: left out")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rival = library(series)
            assert multiset(rival) == expected, name
            whole = name == "neuralforecast"
            batches = "all of 32 series at a time" if whole else f"batches of {BATCH}"
            yield row(name, series, windeck(series), rival, batches)
            if whole:
                default = neuralforecast(series, windows_batch_size=1024)
                batches = "1,024 of 32 series, as it is by default"
                yield row(name, series, windeck(series, 1024), default, batches)
