"""Batches for models of Time-Series-Library: Informer, Autoformer, DLinear, PatchTST and others."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor

from windeck.adapters.adapted import AdaptedLoader, array_of, check_no_codes, loader_of
from windeck.sources import Source, Stream

__all__ = ["loader", "to_batch"]

#: ``seq_x, seq_y, seq_x_mark, seq_y_mark``.
SequenceBatch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def loader(
    data: Source | Stream, *, batch_size: int, **options: Any
) -> AdaptedLoader[SequenceBatch]:
    """Return a loader of ``(seq_x, seq_y, seq_x_mark, seq_y_mark)``, as the library's own.

    Parameters
    ----------
    data
        Windows with ``context_length=seq_len``, ``gap=-label_len`` and
        ``prediction_length=label_len + pred_len``, or another source or stream of such batches.
        Targets are all columns of `seq_x`, known covariates the time features.
    batch_size, **options
        As for `windeck.Loader`.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100.0), "hour": np.arange(100.0) % 24})
    >>> windows = wd.Windows(table, context_length=8, gap=-4, prediction_length=4 + 2,
    ...                      target_columns="load", known_covariates="hour")
    >>> seq_x, seq_y, seq_x_mark, seq_y_mark = next(iter(loader(windows, batch_size=16)))
    >>> seq_x.shape, seq_y_mark.shape, seq_y[0, :, 0].tolist()
    (torch.Size([16, 8, 1]), torch.Size([16, 6, 1]), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    """
    return AdaptedLoader(loader_of(data, batch_size, options), to_batch)


def to_batch(batch: dict[str, Tensor]) -> SequenceBatch:
    """Return ``(seq_x, seq_y, seq_x_mark, seq_y_mark)`` of a batch of windows, without a copy.

    Each is of shape (batch, time, columns). Marks of windows without known covariates have no
    columns.

    Raises
    ------
    KeyError
        For a batch without ``past_target`` or ``future_target``.
    ValueError
        For codes of categories.
    """
    check_no_codes(batch)
    cure = "give the windows a `prediction_length`, and these keys"
    past, future = (array_of(batch, f"{part}_target", cure) for part in ("past", "future"))
    marks = (batch.get("past_known", past[..., :0]), batch.get("future_known", future[..., :0]))
    return past, future, *marks
