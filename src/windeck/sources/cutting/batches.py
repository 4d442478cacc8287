"""Batches of windows: the native gather, and what it has to be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck.sources.cutting.cut import Cut
from windeck.sources.cutting.keys import Plan
from windeck.sources.cutting.spans import Int64
from windeck.sources.scaler import Scaler
from windeck.sources.table import Table
from windeck.sources.tables.columns import ColumnData

Batch = dict[str, npt.NDArray[Any]]


class Batches:
    """Makes the batches of a cut by the plan of each key."""

    def __init__(
        self,
        index: _core.WindowIndex,
        cut: Cut,
        table: Table,
        columns: Mapping[str, ColumnData],
        plans: Sequence[Plan],
        scaler: Scaler | None,
    ) -> None:
        native = native_columns(columns)
        used = cut.runs.series[cut.runs.count > 0]
        fields = [
            _field(plan, native, _factors(scaler, plan, table, used), cut.span.dilation)
            for plan in plans
        ]
        self._gather = _core.Gather(index, table.offsets, fields)
        flat = [plan.key.name for plan in plans if plan.key.flat]
        # Keys without an axis of channels; the native core gives them one of length 1.
        self._flat = {*flat, *(f"{name}_mask" for name in flat)}

    def gather(self, indices: Int64, out: Batch | None, threads: int) -> Batch:
        """One batch, into `out` if there is one."""
        if out is not None and self._flat:
            out = {key: a[..., None] if key in self._flat else a for key, a in out.items()}
        batch: Batch = self._gather.gather(indices, out=out, threads=threads)
        for key in self._flat & batch.keys():
            batch[key] = batch[key][..., 0]
        return batch


def native_columns(columns: Mapping[str, ColumnData]) -> dict[str, _core.Column]:
    """The native view of each column."""
    return {
        name: _core.Column(
            column.values,
            validity=None if column.missing == 0 else column.validity,
            validity_offset=column.validity_offset,
            nan_is_missing=column.missing != 0,
            dtype=column.dtype,
            name=name,
        )
        for name, column in columns.items()
    }


def _factors(scaler: Scaler | None, plan: Plan, table: Table, used: Int64) -> tuple[Any, Any]:
    return (None, None) if scaler is None else scaler.factors(plan.key.columns, table, used)


def _field(
    plan: Plan, columns: Mapping[str, _core.Column], factors: tuple[Any, Any], dilation: int
) -> _core.Field:
    key = plan.key
    return _core.Field(
        key.name,
        [columns[name] for name in key.columns],
        segments=list(key.segments),
        dilation=dilation,
        layout=key.layout,
        dtype=plan.dtype,
        mask=plan.mask,
        fill=plan.fill,
        scale=factors[0],
        shift=factors[1],
        anchor="series" if key.static else "window",
    )


def as_indices(indices: Any) -> Int64:
    """Window numbers as int64 of one dimension; a TypeError for anything that is no integer."""
    array = np.asarray(indices)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(
            f"indices are {array.dtype} of shape {array.shape}, expected integers of shape (batch,)"
        )
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise IndexError(f"index {array.max()} is out of range, which ends below 2^63")
    return np.atleast_1d(array).astype(np.int64, copy=False)


def is_one(value: Any) -> bool:
    """Whether a value is a single integer, and not an array."""
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0
