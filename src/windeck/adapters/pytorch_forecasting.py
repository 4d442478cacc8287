"""Batches for the models of pytorch-forecasting: TFT, DeepAR, N-HiTS and others.

The library prepares values by a `TimeSeriesDataSet`: encoded categories, scaled reals, the scale of
each target. windeck serves its windows of these values.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from windeck._util.fingerprints import digest
from windeck.adapters.adapted import AdaptedLoader
from windeck.loader import Loader
from windeck.sources import Batch, Fingerprint, Indices
from windeck.table import Table
from windeck.windows import Windows

__all__ = ["DatasetWindows", "loader"]

#: ``x, (y, weight)``.
Sample: TypeAlias = "tuple[dict[str, Any], tuple[Any, Tensor | None]]"


def loader(dataset: Any, *, batch_size: int, **options: Any) -> AdaptedLoader[Sample]:
    """Return a loader of ``x, (y, weight)``, as ``dataset.to_dataloader`` serves.

    Parameters
    ----------
    dataset : pytorch_forecasting.TimeSeriesDataSet
        One that `DatasetWindows` can serve.
    batch_size, **options
        As for `windeck.Loader`. ``to_dataloader(train=True)`` has ``shuffle=True`` and
        ``drop_last=True``.

    Raises
    ------
    ValueError
        As `DatasetWindows`.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from pytorch_forecasting import TimeSeriesDataSet
    >>> frame = pd.DataFrame({"load": np.arange(100.0), "step": np.arange(100), "site": "a"})
    >>> dataset = TimeSeriesDataSet(
    ...     frame, time_idx="step", target="load", group_ids=["site"], max_encoder_length=8,
    ...     max_prediction_length=2, time_varying_unknown_reals=["load"],
    ... )
    >>> x, (y, weight) = next(iter(loader(dataset, batch_size=16, shuffle=True, seed=7)))
    >>> x["encoder_cont"].shape, y.shape
    (torch.Size([16, 8, 1]), torch.Size([16, 2]))
    """
    windows = DatasetWindows(dataset)
    return AdaptedLoader(Loader(windows, batch_size=batch_size, **options), windows.to_batch)


class DatasetWindows:
    """The windows of a `TimeSeriesDataSet` as a source, in the order of its index.

    Parameters
    ----------
    dataset : pytorch_forecasting.TimeSeriesDataSet
        With windows of ``max_encoder_length + max_prediction_length`` steps, as they are by
        default. Later changes of the dataset have no effect.

    Raises
    ------
    ValueError
        For windows that are shorter or lack steps, `randomize_length`, and an `EncoderNormalizer`.

    Notes
    -----
    O(rows) time and memory: a copy of the prepared values. 8 bytes a window besides if the dataset
    serves some of its windows only, as with ``predict=True`` or `filter`.
    """

    supports_threads = True
    independent_rows = True

    def __init__(self, dataset: Any) -> None:
        self._past, self._future = dataset.max_encoder_length, dataset.max_prediction_length
        _check(dataset, self._past + self._future)
        self._is_multi_target: bool = dataset.multi_target
        data = dataset.data
        self._groups, self._times = data["groups"].numpy(), data["time"].numpy()
        borders = np.flatnonzero((self._groups[1:] != self._groups[:-1]).any(axis=1)) + 1
        self._offsets = np.concatenate(([0], borders, [len(self._groups)]))
        self._num_targets = len(data["target"])
        values = {"cont": data["reals"], "cat": data["categoricals"]}
        values |= {f"target{number}": one[:, None] for number, one in enumerate(data["target"])}
        if data["weight"] is not None:
            values["weight"] = data["weight"][:, None]
        self._dtypes = {name: one.numpy().dtype for name, one in values.items()}
        self._parts = {name: self._windows(one) for name, one in values.items() if one.shape[1]}
        self._positions = _positions(dataset, self._past, self._future)
        self._scales = _scales(dataset, self._groups[self._offsets[:-1]])
        self._numbers = self._chosen(dataset.index["index_start"].to_numpy())

    def _windows(self, values: Tensor) -> Windows:
        """Return the windows of columns of one dtype: (rows, columns)."""
        columns = {str(number): column.contiguous() for number, column in enumerate(values.T)}
        return Windows(
            Table.from_columns(columns, offsets=self._offsets),
            context_length=self._past,
            prediction_length=self._future,
            keys=("past_target", "future_target", "series_id", "start"),
        )

    def _chosen(self, starts: NDArray[Any]) -> Indices | None:
        """Return the numbers of the windows that start at rows; None for all in order."""
        windows = self._parts["target0"]
        series = np.searchsorted(self._offsets, starts, side="right") - 1
        numbers: Indices = windows.index_of(series, starts)
        is_all = len(numbers) == len(windows) and (np.diff(numbers) == 1).all()
        self._length = len(numbers)
        return None if is_all else numbers

    def __len__(self) -> int:
        """Return the number of windows."""
        return self._length

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Identity of the prepared values and of the chosen windows."""
        fields = {
            f"{name}.{field}": value
            for name, windows in self._parts.items()
            for field, value in windows.fingerprint.items()
        }
        return {
            **fields,
            "chosen": "all" if self._numbers is None else digest(self._numbers),
            "scales": digest(self._scales),
        }

    def gather(self, indices: Indices, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return the arrays that `to_batch` takes: those of ``x``, one for each target, weights."""
        numbers = indices if self._numbers is None else self._numbers[indices]
        batch: Batch = {}
        rows: Batch = {}
        for name, windows in self._parts.items():
            rows = windows.gather(numbers, threads=threads)
            batch[f"encoder_{name}"] = rows["past_target"]
            batch[f"decoder_{name}"] = rows["future_target"]
        for part, steps in (("encoder", self._past), ("decoder", self._future)):
            for name in {"cont", "cat"} - self._parts.keys():
                shape = (len(numbers), steps, 0)
                batch[f"{part}_{name}"] = np.zeros(shape, self._dtypes[name])
            for column, values in self._positions.items():
                first = 0 if part == "encoder" else self._past
                batch[f"{part}_cont"][..., column] = values[first : first + steps]
            batch[f"{part}_lengths"] = np.full(len(numbers), steps)
        ahead = np.arange(self._past, self._past + self._future)
        batch["decoder_time_idx"] = self._times[rows["start"]][:, None] + ahead
        batch["groups"] = self._groups[rows["start"]]
        for number, scales in enumerate(self._scales):
            batch[f"target_scale{number}"] = scales[rows["series_id"]]
        if out is None:
            return batch
        for key, array in out.items():
            np.copyto(array, batch[key])
        return out

    def to_batch(self, batch: dict[str, Tensor]) -> Sample:
        """Return ``x, (y, weight)`` of a batch, without a copy.

        ``encoder_target``, ``decoder_target``, ``target_scale`` and ``y`` are lists if the dataset
        has a list of targets.
        """
        x: dict[str, Any] = {
            key: batch[key]
            for key in ("encoder_cat", "encoder_cont", "encoder_lengths", "decoder_cat")
        }
        for key in ("decoder_cont", "decoder_lengths", "decoder_time_idx", "groups"):
            x[key] = batch[key]
        targets = range(self._num_targets)
        for part in ("encoder", "decoder"):
            found = [batch[f"{part}_target{number}"].squeeze(-1) for number in targets]
            x[f"{part}_target"] = found if self._is_multi_target else found[0]
        scales = [batch[f"target_scale{number}"] for number in targets]
        x["target_scale"] = scales if self._is_multi_target else scales[0]
        weight = batch["decoder_weight"].squeeze(-1) if "decoder_weight" in batch else None
        return x, (x["decoder_target"], weight)


def _check(dataset: Any, steps: int) -> None:
    """Raise a ValueError for a dataset whose windows differ in length or in scale."""
    from pytorch_forecasting import EncoderNormalizer

    index = dataset.index
    rows = index["index_end"] - index["index_start"] + 1
    others = int(((rows != steps) | (index["sequence_length"] != steps)).sum())
    if others:
        raise ValueError(
            f"`dataset` has {others} windows that are shorter or lack steps, expected {steps} "
            "consecutive rows: set min_encoder_length=max_encoder_length, "
            "min_prediction_length=max_prediction_length, and fill in missing steps before"
        )
    if dataset.randomize_length is not None:
        raise ValueError("`dataset` has `randomize_length`, expected windows of one length")
    scalers = [dataset.get_transformer(name) for name in dataset.reals]
    scalers += dataset.target_normalizers
    if any(isinstance(scaler, EncoderNormalizer) for scaler in scalers):
        raise ValueError(
            "`dataset` scales each window by an EncoderNormalizer, expected a GroupNormalizer or "
            "TorchNormalizer, which is fitted once"
        )


def _positions(dataset: Any, past: int, future: int) -> dict[int, NDArray[np.float32]]:
    """Return the values of each step of a window in columns that depend on the step alone."""
    steps = np.arange(-past, future, dtype=np.float32)
    values = {}
    if dataset.add_relative_time_idx:
        values["relative_time_idx"] = steps / np.float32(past)
    if dataset.add_encoder_length:
        values["encoder_length"] = np.ones_like(steps)  # (past - past / 2) / past * 2
    return {dataset.reals.index(name): array for name, array in values.items()}


def _scales(dataset: Any, groups: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return center and scale of each series, for each target: (series, 2)."""
    import torch

    found = []
    for row in torch.from_numpy(groups):
        scales = dataset.target_normalizer.get_parameters(row, dataset.group_ids)
        found.append(scales if dataset.multi_target else [scales])
    return [
        torch.stack(scales).numpy()
        if isinstance(scales[0], Tensor)
        else np.array(scales, dtype=np.float32)
        for scales in zip(*found, strict=True)
    ]
