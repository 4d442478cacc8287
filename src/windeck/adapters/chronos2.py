"""Batches for training and fine-tuning Chronos-2."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from windeck._util.options import explain_options
from windeck.adapters.adapted import AdaptedLoader, array_of, check_no_codes, loader_of, windows_of
from windeck.sources import Source, Stream

__all__ = ["loader", "to_batch"]


def loader(
    data: Source | Stream, *, batch_size: int, output_patch_size: int, **options: Any
) -> AdaptedLoader[dict[str, Any]]:
    """Return a loader of the keywords of a `Chronos2Model`, as `Chronos2Dataset` serves.

    The loss of a batch is ``model(**batch).loss``, with ``model = pipeline.model``.

    Parameters
    ----------
    data
        Windows of float32 columns with ``fill=float("nan")``, the model's missing value, or another
        source or stream of such batches. Static covariates are left out: the model has none.
    batch_size
        Number of windows, each of which is a group of as many rows as there are columns.
        `Chronos2Dataset` counts rows.
    output_patch_size
        That of the model: ``pipeline.model_output_patch_size``.
    **options
        As for `windeck.Loader`.

    Raises
    ------
    ValueError
        For windows with another `fill`.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100, dtype=np.float32)})
    >>> windows = wd.Windows(table, context_length=8, prediction_length=2, fill=float("nan"))
    >>> batch = next(iter(loader(windows, batch_size=16, output_patch_size=16)))
    >>> batch["context"].shape, batch["future_target"].shape, batch["num_output_patches"]
    (torch.Size([16, 8]), torch.Size([16, 2]), 1)
    """
    windows = windows_of(data)
    if windows is not None and not math.isnan(windows.fill):
        raise ValueError(
            f"`data` must have fill=float('nan'), got windows with fill={windows.fill}"
        )
    made = loader_of(data, batch_size, options)
    return AdaptedLoader(made, partial(to_batch, output_patch_size=output_patch_size))


@explain_options
def to_batch(batch: dict[str, Tensor], *, output_patch_size: int) -> dict[str, Any]:
    """Return the keywords of a `Chronos2Model` of a batch of windows.

    Rows are the columns of each window in turn: targets, past covariates, known covariates.
    ``context`` is of shape (rows, past). ``future_target`` and ``future_covariates`` are of shape
    (rows, future), with NaN in the rows of other roles. ``group_ids`` is int64 of shape (rows,).

    Raises
    ------
    KeyError
        For a batch without ``past_target`` or ``future_target``, or with ``future_known`` and
        without ``past_known``.
    ValueError
        For codes of categories.
    """
    check_no_codes(batch)
    cure = "give the windows a `prediction_length`, and these keys"
    past, future = (array_of(batch, f"{part}_target", cure) for part in ("past", "future"))
    columns = [batch[key] for key in ("past_covariates", "past_known") if key in batch]
    context = torch.cat([past, *columns], dim=2).transpose(1, 2)
    windows, rows, steps = len(past), context.shape[1], future.shape[1]
    target, covariates = (past.new_full((windows, rows, steps), math.nan) for _ in range(2))
    target[:, : future.shape[2]] = future.transpose(1, 2)
    if "future_known" in batch:
        known = batch["future_known"]
        array_of(batch, "past_known", "give the windows this key with 'future_known', or neither")
        covariates[:, rows - known.shape[2] :] = known.transpose(1, 2)
    return {
        "context": context.reshape(windows * rows, -1),
        "future_target": target.flatten(0, 1),
        "future_covariates": covariates.flatten(0, 1),
        "group_ids": torch.arange(windows, device=past.device).repeat_interleave(rows),
        "num_output_patches": math.ceil(steps / output_patch_size),
    }
