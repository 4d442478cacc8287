"""The columns that windows take on a device, and the bytes of them; without torch."""

from __future__ import annotations

import math
from dataclasses import replace

from windeck.columns.dtypes import item_bytes
from windeck.windows.batch_spec import BatchKey, can_miss
from windeck.windows.joined import native_keys
from windeck.windows.window_set import WindowSet

__all__ = ["DeviceLayout"]


class DeviceLayout:
    """The columns that windows need on a device, in groups: those of the keys of one role.

    Attributes
    ----------
    windows
        The table, the options and the selection.
    columns
        The columns used, by name.
    keys
        The keys that are made on the device.
    groups
        Names of columns, and what decides their values besides the scaler.
    front, back
        Rows before the first row and after the last one of the table, for windows with padding.
    """

    def __init__(self, windows: WindowSet) -> None:
        self.windows, spec = windows, windows.spec
        self.columns = spec.columns_of(windows.table)
        self.front, self.back = spec.span.max_padding, spec.span.rows - spec.span.needed_rows
        self.keys, _ = native_keys(windows.keys.chosen, spec)
        self.groups = list(dict.fromkeys(map(self.group_of, self.keys)))
        self._masked = {self.group_of(key) for key in self.keys if key.mask}

    def group_of(self, key: BatchKey) -> BatchKey:
        """Return the column group of a key: what past and future of a role have in common."""
        return replace(
            key,
            name="rows",
            step_spans=((0, 1),),
            layout="bct" if key.layout == "bct" and len(key.columns) > 1 else "btc",
            padded=False,
            mask=False,
            fills_nan=any(can_miss(self.columns[name]) for name in key.columns),
            fill=math.nan if math.isnan(key.fill) else key.fill,  # one object: it equals itself
        )

    def has_masks(self, group: BatchKey) -> bool:
        """Return whether some key has a mask in which a value may be missing."""
        return group.fills_nan and group in self._masked

    def bytes_of(self, group: BatchKey) -> int:
        """Return the bytes of a column group, masks included."""
        table = self.windows.table
        rows = table.num_series if group.static else self.front + table.num_rows + self.back
        return rows * len(group.columns) * ((item_bytes(group.dtype) or 0) + self.has_masks(group))

    @property
    def index_bytes(self) -> int:
        """Bytes of the start rows."""
        selection, series = self.windows.selection, self.windows.table.num_series
        words = 0 if selection.keep is None else len(selection.keep) // 8 + 1
        return 24 * len(selection.runs.count) + 8 + 8 * (series + 1) + (8 + 8) * words

    @property
    def nbytes(self) -> int:
        """Bytes of columns and start rows, at most."""
        return sum(map(self.bytes_of, self.groups)) + self.index_bytes
