"""Batches for the torch estimators of GluonTS: DeepAR, TFT, DLinear, PatchTST and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windeck._util.options import explain_options
from windeck.adapters.adapted import AdaptedLoader, array_of, is_observed, loader_of
from windeck.sources import Source, Stream
from windeck.table import Table

__all__ = ["loader", "to_batch", "with_time_features"]

Batch = dict[str, Tensor]


def loader(
    data: Source | Stream, *, batch_size: int, names: Iterable[str] | None = None, **options: Any
) -> AdaptedLoader[Batch]:
    """Return a loader of training or validation batches for a torch estimator.

    Train with it as the estimator does, by its public methods::

        module = estimator.create_lightning_module()
        lightning.Trainer(max_epochs=10).fit(module, loader(windows, batch_size=32, shuffle=True))
        predictor = estimator.create_predictor(estimator.create_transformation(), module)

    Parameters
    ----------
    data
        Windows of float32 columns, or another source or stream of such batches. Known covariates
        are all time features that the estimator makes, in its order, then ``feat_dynamic_real``.
    batch_size, **options
        As for `windeck.Loader`. With ``epochs`` and ``max_steps`` unset, an epoch of the trainer
        has each window once.
    names
        Fields of a batch, such as ``TRAINING_INPUT_NAMES`` of the estimator's module. Default: see
        `to_batch`.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100, dtype=np.float32)})
    >>> windows = wd.Windows(table, context_length=8, prediction_length=2)
    >>> batch = next(iter(loader(windows, batch_size=16)))
    >>> batch["past_target"].shape, batch["past_observed_values"].dtype
    (torch.Size([16, 8]), torch.float32)
    """
    chosen = None if names is None else tuple(names)
    if chosen is not None and (unknown := sorted(set(chosen) - _FIELDS.keys())):
        raise ValueError(f"`names` must be of {', '.join(_FIELDS)}, got {', '.join(unknown)}")
    made = loader_of(data, batch_size, options)
    return AdaptedLoader(made, partial(to_batch, names=chosen))


def with_time_features(table: Table, freq: str) -> tuple[Table, tuple[str, ...]]:
    """Return the table with the time features of an estimator, and the names of their columns.

    They are those of a frequency, and the age, in the order of an estimator and in float32:
    ``known_covariates=names`` gives ``past_time_feat`` and ``future_time_feat``. Needs GluonTS.
    O(rows).

    Parameters
    ----------
    table
        With time stamps, one step of `freq` apart.
    freq
        That of the estimator, such as ``"h"`` or ``"ME"``.

    Raises
    ------
    TypeError
        If the table has no time stamps of dates or times.
    ValueError
        If it has a column of the same name.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> stamps = np.datetime64("2024-01-01T00", "h") + np.arange(4)
    >>> table = wd.Table.from_columns({"load": np.arange(4.0), "t": stamps}, timestamp_column="t")
    >>> table, names = with_time_features(table, "h")
    >>> names
    ('hour_of_day', 'day_of_week', 'day_of_month', 'day_of_year', 'age')
    """
    import pandas as pd
    from gluonts.time_feature import time_features_from_frequency_str

    stamps = table.timestamps
    if stamps is None or stamps.dtype.kind != "M":
        found = "none" if stamps is None else str(stamps.dtype)
        raise TypeError(f"`table` must have time stamps of dates or times, got {found}")
    # Aliases of periods are not those of offsets: "M" is the period of "ME" and of "MS".
    period = pd.date_range("2024-01-01", periods=1, freq=freq).to_period().freq
    index = pd.DatetimeIndex(stamps.astype("M8[ns]")).to_period(period)
    columns = {
        feature.__name__: np.asarray(feature(index), dtype=np.float32)
        for feature in time_features_from_frequency_str(freq)
    }
    starts = np.repeat(table.offsets[:-1], np.diff(table.offsets))
    rows = (np.arange(len(stamps)) - starts).astype(np.float32)
    columns["age"] = np.log10(np.float32(2) + rows)
    if taken := sorted(columns.keys() & set(table.column_names)):
        raise ValueError(f"the table has columns of these names already: {', '.join(taken)}")
    return table.with_columns(columns), tuple(columns)


@explain_options
def to_batch(batch: Batch, *, names: Iterable[str] | None = None) -> Batch:
    """Return the fields of GluonTS of a batch of windows.

    Targets of one column are of shape (batch, time), others (batch, time, columns). An observed
    value is 1.0, a missing one and padding 0.0. Static covariates of integers, and codes of
    categories after them, are ``feat_static_cat`` as int64, others ``feat_static_real``; a field
    without columns is one column of zeros.

    Parameters
    ----------
    names
        The fields. Default: those of DeepAR that the windows have.

    Raises
    ------
    KeyError
        If the batch lacks an array that a field needs.
    """
    if names is None:
        names = (name for name, (key, _) in _FIELDS.items() if key in batch and name in _DEEPAR)
    return {name: _FIELDS[name][1](batch) for name in names}


def _target(key: str) -> Callable[[Batch], Tensor]:
    return lambda batch: _univariate(_required(batch, key))


def _observed(key: str) -> Callable[[Batch], Tensor]:
    return lambda batch: _univariate(is_observed(batch, key, _required(batch, key)))


def _as_is(key: str) -> Callable[[Batch], Tensor]:
    return lambda batch: _required(batch, key)


def _required(batch: Batch, key: str) -> Tensor:
    return array_of(batch, key, "give the windows the columns of this key")


def _univariate(values: Tensor) -> Tensor:
    """Return values without the axis of columns if there is one column."""
    return values.squeeze(-1) if values.shape[-1] == 1 else values


def _whole(key: str) -> Callable[[Batch], Tensor]:
    """Return a function that joins past and future of known covariates in one array."""
    parts = (f"past_{key}", f"future_{key}")
    return lambda batch: torch.cat([_required(batch, part) for part in parts], dim=1)


def _static_real(batch: Batch) -> Tensor:
    static = batch.get("static")
    if static is not None and static.is_floating_point():
        return static
    past = batch["past_target"]
    return past.new_zeros((len(past), 1))


def _static_cat(batch: Batch) -> Tensor:
    found = [batch[key] for key in ("static", "static_categorical") if key in batch]
    codes = [static.long() for static in found if not static.is_floating_point()]
    if codes:
        return torch.cat(codes, dim=1)
    past = batch["past_target"]
    return past.new_zeros((len(past), 1), dtype=torch.int64)


#: Of each field the array that it is made of, and the function that makes it.
_FIELDS: dict[str, tuple[str, Callable[[Batch], Tensor]]] = {
    "feat_static_cat": ("past_target", _static_cat),
    "feat_static_real": ("past_target", _static_real),
    "past_time_feat": ("past_known", _as_is("past_known")),
    "past_target": ("past_target", _target("past_target")),
    "past_observed_values": ("past_target", _observed("past_target")),
    "future_time_feat": ("future_known", _as_is("future_known")),
    "future_target": ("future_target", _target("future_target")),
    "future_observed_values": ("future_target", _observed("future_target")),
    "feat_dynamic_real": ("future_known", _whole("known")),
    "past_feat_dynamic_real": ("past_covariates", _as_is("past_covariates")),
    "feat_dynamic_cat": ("future_known_categorical", _whole("known_categorical")),
    "past_feat_dynamic_cat": ("past_categorical", _as_is("past_categorical")),
}
_DEEPAR = frozenset(name for name in _FIELDS if "dynamic" not in name)
