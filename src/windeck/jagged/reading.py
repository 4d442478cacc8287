"""Reading of rows with lists from Parquet and Arrow files, and from Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow.types as pat

from windeck._util.text import unknown_column
from windeck._util.validation import check_number
from windeck.columns.columns import read_only
from windeck.columns.dtypes import Array
from windeck.io import conversion
from windeck.io.committed import folders_hint
from windeck.io.conversion import ColumnBuilder
from windeck.io.folder_columns import with_folder_columns
from windeck.io.formats import open_files
from windeck.io.options import as_names, floating_dtype
from windeck.io.reading import common_types, prepare_files
from windeck.io.record_batches import DataFile, column_indices
from windeck.jagged.list_columns import ListBuilder, ListColumn, is_list

__all__ = ["JaggedColumns", "JaggedOptions", "read_arrow_table", "read_files"]


class JaggedColumns(NamedTuple):
    """Columns as read: lists, weights of lists by the name of the list, scalars."""

    rows: int
    lists: dict[str, ListColumn]
    weights: dict[str, ListColumn]
    scalars: dict[str, Array]


@dataclass(frozen=True)
class JaggedOptions:
    """Validated options of reading. `lists` and `columns` are None for all columns of the kind."""

    lists: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    dtype: np.dtype[Any] | None = None

    @classmethod
    def from_arguments(
        cls,
        lists: str | Iterable[str] | None,
        columns: str | Iterable[str] | None,
        weights: Mapping[str, str] | None,
        fill: Mapping[str, float] | None,
        dtype: Any,
    ) -> JaggedOptions:
        """Return the options for a user's arguments; an error names a wrong one."""
        for name, given in (("weights", weights), ("fill", fill)):
            if given is not None and not isinstance(given, Mapping):
                raise TypeError(
                    f"`{name}` must be a mapping by column, got a {type(given).__name__}"
                )
        filled = {name: check_number(f"fill[{name!r}]", v) for name, v in (fill or {}).items()}
        return cls(
            None if lists is None else as_names("lists", lists),
            None if columns is None else as_names("columns", columns),
            dict(weights or {}),
            filled,
            floating_dtype(dtype),
        )

    def names(self, schema: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of list columns (without weights) and of scalar columns."""
        every, weighing = schema.names, set(self.weights.values())
        named = (*(self.lists or ()), *(self.columns or ()), *self.weights, *weighing, *self.fill)
        for name in named:
            if name not in every:
                raise unknown_column(name, every, f"{where}{folders_hint(where)}")
        kinds = {name: schema.field(schema.get_all_field_indices(name)[0]).type for name in every}
        lists, columns = self.lists, self.columns
        if lists is None:
            lists = tuple(name for name in every if is_list(kinds[name]) and name not in weighing)
            lists = tuple(name for name in lists if name not in (columns or ()))
        if columns is None:
            columns = tuple(name for name in every if not is_list(kinds[name]))
            columns = tuple(name for name in columns if name not in lists)
        for key in self.weights:
            if key not in lists:
                raise ValueError(f"`weights` must name lists, got {key!r}, which is not among them")
        for name in self.fill:
            if name not in columns:
                raise ValueError(f"`fill` must name scalar columns, got {name!r}")
        for name in set(lists) & {*columns, *weighing}:
            raise ValueError(f"column {name!r} must have one use, got two")
        if not lists and not columns:
            raise ValueError(f"{where} has no column to read; expected at least one")
        return lists, columns


def read_files(paths: Sequence[str], options: JaggedOptions) -> JaggedColumns:
    """Read the rows of all files, one file after the other."""
    named = (*(options.columns or ()), *(options.lists or ()), *options.fill)
    files: list[DataFile] = with_folder_columns(open_files(paths), named)
    first = files[0]
    lists, columns = options.names(first.schema, repr(first.path))
    # A column of weights may be that of several lists.
    wanted = tuple(dict.fromkeys((*lists, *options.weights.values(), *columns)))
    every = options.columns is None and options.lists is None
    files = prepare_files(files, wanted, every=every)
    kinds = common_types(files, columns, every=every)
    for file in files:
        column_indices(file.schema, wanted, file.path)
    rows = sum(file.num_rows for file in files)

    def batches() -> Iterator[tuple[str, Any]]:
        for file in files:
            done = 0
            for batch in file.batches(wanted, 0, file.num_rows):
                done += batch.num_rows
                yield repr(file.path), batch
            if done != file.num_rows:
                raise ValueError(
                    f"{file.path!r} has {done} rows, and its metadata says {file.num_rows}"
                )

    return _read(rows, kinds, lists, columns, options, repr(first.path), batches)


def read_arrow_table(table: Any, options: JaggedOptions) -> JaggedColumns:
    """Read the rows of a pyarrow table."""
    where = "the data"
    lists, columns = options.names(table.schema, where)
    # A column of weights may be that of several lists.
    wanted = tuple(dict.fromkeys((*lists, *options.weights.values(), *columns)))
    column_indices(table.schema, wanted, where)
    table = table.select(list(wanted))
    table.validate(full=True)
    kinds = {name: table.schema.field(name).type for name in columns}

    def batches() -> Iterator[tuple[str, Any]]:
        yield from ((where, batch) for batch in table.to_batches())

    return _read(table.num_rows, kinds, lists, columns, options, where, batches)


def _read(
    rows: int,
    kinds: Mapping[str, Any],
    lists: Sequence[str],
    columns: Sequence[str],
    options: JaggedOptions,
    where: str,
    batches: Callable[[], Iterator[tuple[str, Any]]],
) -> JaggedColumns:
    if not rows:
        raise ValueError(f"{where} has no rows")
    scalars = {name: _scalar_builder(name, kinds[name], rows, options, where) for name in columns}
    named = dict.fromkeys([*lists, *options.weights.values()])
    jagged = {name: ListBuilder(name, where, options.dtype) for name in named}
    for place, batch in batches():
        for name, builder in jagged.items():
            builder.where = place
            builder.append(batch.column(name))
        for name, scalar in scalars.items():
            scalar.append(batch.column(name))
    found = {name: builder.finish() for name, builder in jagged.items()}
    weights = {key: found[name] for key, name in options.weights.items()}
    for key, weight in weights.items():
        _check_weights(found[key], weight)
    return JaggedColumns(
        rows,
        {name: found[name] for name in lists},
        weights,
        {name: _finish(scalar, options.fill.get(name)) for name, scalar in scalars.items()},
    )


def _scalar_builder(
    name: str, kind: Any, rows: int, options: JaggedOptions, where: str
) -> ColumnBuilder:
    if is_list(kind):
        raise TypeError(f"column {name!r} of {where} is {kind}; expected it in lists=")
    if conversion.is_categorical(kind) or pat.is_temporal(kind):
        raise TypeError(
            f"column {name!r} of {where} is {kind}; expected numbers or bools: hash or convert it "
            "first, or leave it out of columns="
        )
    return ColumnBuilder(name, rows, conversion.value_dtype(name, kind, options.dtype, where))


def _check_weights(ids: ListColumn, weight: ListColumn) -> None:
    if not np.array_equal(ids.offsets, weight.offsets):
        row = int(np.argmax(np.diff(ids.offsets) != np.diff(weight.offsets)))
        one, other = (int(c.offsets[row + 1] - c.offsets[row]) for c in (ids, weight))
        raise ValueError(
            f"row {row} has {one} values in {ids.name!r} and {other} in its weights "
            f"{weight.name!r}; expected as many"
        )
    if weight.values.dtype.kind != "f" and len(weight.values):
        raise TypeError(f"weights {weight.name!r} are lists of integers; expected floats")


def _finish(builder: ColumnBuilder, fill: float | None) -> Array:
    """Return the values of a scalar column, with `fill` in place of nulls and NaN."""
    column = builder.finish()
    if fill is None:
        if column.validity is not None and column.values.dtype.kind != "f":
            row = int(np.argmin(column.observed()))
            raise ValueError(
                f"column {column.name!r} is null in row {row} and {column.dtype} has no missing "
                f"value; expected a value for it, fill={{{column.name!r}: 0}}"
            )
        return column.values
    if np.array(fill).astype(column.values.dtype) != fill:
        raise ValueError(f"fill[{column.name!r}] must be a {column.dtype}, got {fill!r}")
    return read_only(np.where(column.observed(), column.values, column.values.dtype.type(fill)))
