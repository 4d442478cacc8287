"""Batches for the univariate models of NeuralForecast, which cut windows in their training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from windeck.adapters.adapted import NEEDS_MASKS, AdaptedLoader, array_of, loader_of, windows_of
from windeck.sources import Source, Stream

__all__ = ["loader"]

#: The cure where the columns of a role are missing.
_NEEDS_ROLES = "name it among the `keys` of the windows, or leave its columns out of their roles"


def loader(
    data: Source | Stream, *, batch_size: int, **options: Any
) -> AdaptedLoader[dict[str, Any]]:
    """Return a loader of batches from which a training step cuts each window of windeck once.

    A batch is that of NeuralForecast for `batch_size` series with as many rows as a window. Make
    the model with ``windows_batch_size=None``, ``start_padding_enabled=False`` and
    ``step_size=input_size + h``: a step pads a series by ``h`` rows, and would cut more windows.
    Train by Lightning, as `fit` of the model does::

        model.val_size = model.test_size = 0
        trainer = pytorch_lightning.Trainer(**model.trainer_kwargs)
        trainer.fit(model, loader(windows, batch_size=256, shuffle=True, seed=7))

    Parameters
    ----------
    data : Windows or BalancedWindows
        ``context_length=input_size``, ``prediction_length=h``, no gap, one target, and columns of
        float32. Known covariates have the names of `futr_exog_list`, past covariates those of
        `hist_exog_list`, static covariates those of `stat_exog_list`.
    batch_size, **options
        As for `windeck.Loader`.

    Raises
    ------
    TypeError
        If `data` has no columns with roles.
    ValueError
        If there are several targets.
    KeyError
        In the loop, if the `keys` of the windows lack those of a role.

    Notes
    -----
    ``available_mask`` is 0 where a target is missing or padding. Codes of categories are numbers
    after the other columns of their role. Past covariates are 0 in the
    future, which models do not read.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100, dtype=np.float32)})
    >>> windows = wd.Windows(table, context_length=8, prediction_length=2)
    >>> batch = next(iter(loader(windows, batch_size=16)))
    >>> batch["temporal"].shape, list(batch["temporal_cols"])
    (torch.Size([16, 2, 10]), ['load', 'available_mask'])
    """
    import pandas as pd

    windows = windows_of(data)
    if windows is None:
        raise TypeError(f"`data` must be Windows or BalancedWindows, got a {type(data).__name__}")
    roles = windows.roles
    if len(roles.target) != 1:
        raise ValueError(
            f"`data` must have one target column, got {', '.join(roles.target)}: multivariate "
            "models of NeuralForecast take all series of a time step together"
        )
    codes = roles.categorical
    known, past, static = (
        sorted(names, key=codes.__contains__) for names in (roles.known, roles.past, roles.static)
    )
    fields = {
        "temporal_cols": pd.Index([*roles.target, *known, *past, "available_mask"]),
        "y_idx": 0,
    }
    if static:
        fields["static_cols"] = pd.Index(static)
    made = loader_of(data, batch_size, options)
    keys = {
        "past_known": _keys("past_known", "past_known_categorical", known, codes),
        "future_known": _keys("future_known", "future_known_categorical", known, codes),
        "past": _keys("past_covariates", "past_categorical", past, codes),
        "static": _keys("static", "static_categorical", static, codes),
    }
    return AdaptedLoader(made, partial(to_batch, fields=fields, keys=keys))


def _keys(key: str, key_of_codes: str, names: Sequence[str], codes: Sequence[str]) -> list[str]:
    """Return which of two keys batches have: that of a role's numbers, and that of its codes."""
    coded = {name in codes for name in names}
    return [one for one, is_coded in ((key, False), (key_of_codes, True)) if is_coded in coded]


def to_batch(
    batch: dict[str, Tensor], *, fields: dict[str, Any], keys: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return ``temporal`` of shape (batch, columns, time), ``static`` and the fields.

    `keys` has the keys of ``past_known``, ``future_known``, ``past`` covariates and ``static``.

    Raises
    ------
    KeyError
        If the batch lacks one of them, so that values would be in other columns.
    """
    cure = "give the windows a `prediction_length`, and these keys"
    past, future = (array_of(batch, f"{part}_target", cure) for part in ("past", "future"))
    length, steps = past.shape[1], past.shape[1] + future.shape[1]
    temporal = past.new_zeros((len(past), len(fields["temporal_cols"]), steps))
    for part, place in (("past", slice(0, length)), ("future", slice(length, steps))):
        columns = [*keys[f"{part}_known"], *(keys["past"] if part == "past" else ())]
        _fill(temporal[:, :, place], batch, part, columns)
    made = {"temporal": temporal, **fields}
    if keys["static"]:
        static = [array_of(batch, key, _NEEDS_ROLES).to(past.dtype) for key in keys["static"]]
        made["static"] = torch.cat(static, dim=1)
    return made


def _fill(temporal: Tensor, batch: dict[str, Tensor], part: str, keys: Sequence[str]) -> None:
    """Write the columns of the past or of the future, and the mask after them."""
    first = 0
    for key in (f"{part}_target", *keys):
        values = array_of(batch, key, _NEEDS_ROLES)
        last = first + values.shape[2]
        temporal[:, first:last] = values.transpose(1, 2)
        first = last
    mask = array_of(batch, f"{part}_target_mask", NEEDS_MASKS)
    temporal[:, -1] = mask[..., 0]
