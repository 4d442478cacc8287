"""Windows as one frozen value: a table, options and a selection, and what these determine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from windeck import _core
from windeck._util.indices import Int64
from windeck.table.table import StreamedTable, Table
from windeck.windows import joined
from windeck.windows.batch_spec import BatchGatherer, BatchKeys, Gatherer, GatherFields
from windeck.windows.categories import rows_of_columns
from windeck.windows.category_codes import count_unseen
from windeck.windows.coverage import covered_rows
from windeck.windows.origins import BatchOrigin, FittedRows, NotedWindows
from windeck.windows.scaler import note_windows
from windeck.windows.scaler_fitting import RowStretches
from windeck.windows.specification import WindowSpec
from windeck.windows.streamed import BlockedWindows, StreamedGatherer
from windeck.windows.subset import WindowSelection

__all__ = ["WindowSet"]


@dataclass(frozen=True, eq=False, repr=False)
class WindowSet:
    """The windows of a table that a selection has, with the options of a specification.

    Attributes
    ----------
    table, spec, selection
        They determine all else.
    keys
        The keys of a batch.
    views
        The views of the buffers of joined windows.
    index
        Series and start rows of the windows.
    gatherer
        Makes batches.
    noted
        The note of these windows as an origin of batches.
    """

    table: Table
    spec: WindowSpec
    selection: WindowSelection
    keys: BatchKeys
    views: joined.Views
    index: _core.WindowIndex
    gatherer: Gatherer
    noted: NotedWindows

    @classmethod
    def of(cls, table: Table, spec: WindowSpec, selection: WindowSelection) -> WindowSet:
        """Make the keys of batches and the native objects.

        Raises
        ------
        KeyError, TypeError, ValueError
            For keys, dtypes, categories and a scaler that do not fit the columns.
        """
        columns = spec.columns_of(table)
        keys = BatchKeys.of(spec, columns)
        native, views = joined.native_keys(keys.chosen, spec)
        fields, index = GatherFields(selection, table, spec, native, keys.index), selection.index()
        gatherer: Gatherer
        if isinstance(table, StreamedTable):
            blocked = BlockedWindows(selection, fields, table, spec.roles.static)
            gatherer = StreamedGatherer(index, blocked, table)
        else:
            gatherer = BatchGatherer(index, fields, table, columns)
        origin = BatchOrigin(table.series_names, spec.layout, spec.roles.target)
        noted = note_windows(origin, spec.roles.all, spec.scaler)
        return cls(table, spec, selection, keys, views, index, gatherer, noted)

    def with_options(self, **options: Any) -> WindowSet:
        """Return the same windows with other fields of the specification."""
        return self.of(self.table, replace(self.spec, **options), self.selection)

    def with_selection(self, selection: WindowSelection) -> WindowSet:
        """Return other windows of the table, with the same options."""
        return self.of(self.table, self.spec, selection)

    @property
    def blocked(self) -> BlockedWindows | None:
        """The windows of a streamed table by the blocks in which they begin; None in memory."""
        return self.gatherer.windows if isinstance(self.gatherer, StreamedGatherer) else None

    @property
    def blocks(self) -> tuple[Int64, int] | None:
        """Blocks of windows that are read together, as of `BalancedWindows`; None in memory."""
        return None if self.blocked is None or not len(self.index) else self.blocked.blocks

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Return the stretches of rows that windows read; see `Windows.covered_rows`."""
        chosen = self.selection
        return covered_rows(chosen.runs, chosen.keep, chosen.span, chosen.offsets)

    def unseen_series(self) -> dict[str, Int64]:
        """Return the series that the scaler was not fitted on; see `Windows.unseen_series`."""
        used, found = self.gatherer.used, self.gatherer.unseen
        columns = enumerate(self.spec.roles.all)
        return {name: used[found[:, at]] for at, name in columns if found[:, at].any()}

    def unseen_categories(self) -> dict[str, int]:
        """Return how many rows have a value without a code; see `Windows.unseen_categories`."""
        roles, categories = self.spec.roles, self.spec.categories
        if categories is None:
            raise ValueError("these windows have no fitted categories, expected some to compare")
        stretches = RowStretches(*self.covered_rows())
        rows = FittedRows(self.table, roles.all, stretches, roles.static, roles.categorical)
        read = rows_of_columns(rows, roles.categorical)
        lookups = {name: categories._lookup(self.table.column(name)) for name in read}
        return {name: count_unseen(read[name][0], lookups[name], read[name][1]) for name in read}

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """The fields of `Windows.fingerprint`."""
        some_unseen = self.spec.scaler is not None and bool(self.unseen_series())
        return {
            "source": "Windows",
            "windows": len(self.index),
            **self.spec.fingerprint(self.keys.dtypes, some_unseen=some_unseen),
            "starts": self.selection.digest(),
            **{f"table.{name}": value for name, value in self.table.fingerprint.items()},
        }
