"""The jagged table: a source of rows of scalars and lists of ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np

from windeck._util.fingerprints import digest, sample_rows
from windeck._util.html import html_table
from windeck._util.indices import as_indices
from windeck._util.options import explain_options
from windeck._util.text import format_bytes, plural
from windeck.columns.columns import aligned_empty
from windeck.columns.dtypes import Array, Int64s
from windeck.io.data_files import Paths, resolve
from windeck.io.filesystem import PathLike
from windeck.io.reading import as_arrow_table
from windeck.jagged.list_columns import ListColumn
from windeck.jagged.reading import JaggedColumns, JaggedOptions, read_arrow_table, read_files
from windeck.sources import Batch

__all__ = ["JaggedTable"]

Layout = Literal["jagged", "keyed"]

#: Tables by number. The rows of a batch contain the number of their table: batches of a mixture,
#: or across the border of a source that grows, have rows of several.
_tables: WeakValueDictionary[int, JaggedTable] = WeakValueDictionary()
_numbers = itertools.count(1)


@explain_options
class JaggedTable:
    """Rows of numbers and of lists of ids, in memory: a source of jagged batches.

    Made by `read` and `from_arrow`. A batch of B rows has, in ``layout="jagged"``:

    * for each list column ``key``: ``key``, the values of all rows end to end, and
      ``key_offsets``, int64 of shape (B + 1,): row b has ``key[offsets[b]:offsets[b + 1]]``;
      ``key_weights`` beside them if `weights` names a column for it;
    * each scalar column as an array of shape (B,).

    In ``layout="keyed"`` all lists are in one array, key by key, as the arguments of TorchRec's
    ``KeyedJaggedTensor``: ``values`` of all keys, ``lengths`` of shape (keys * B,), ``offsets`` of
    shape (keys * B + 1,), and ``weights``.

    Ids are int64 whatever integers the file has; floats keep their dtype.

    Attributes
    ----------
    keys : tuple of str
        Names of the list columns, in the order of ``layout="keyed"``.
    column_names : tuple of str
        Names of the scalar columns.

    Examples
    --------
    >>> import pyarrow
    >>> data = pyarrow.table({"seen": [[7, 8], None, [9]], "clicked": [1.0, 0.0, 1.0]})
    >>> table = JaggedTable.from_arrow(data)
    >>> batch = table.gather([2, 1, 0])
    >>> batch["seen"], batch["seen_offsets"], batch["clicked"]
    (array([9, 7, 8]), array([0, 1, 1, 3]), array([1., 0., 1.]))
    """

    def __init__(self, columns: JaggedColumns, layout: Layout = "jagged") -> None:
        if layout not in ("jagged", "keyed"):
            raise ValueError(f"`layout` must be 'jagged' or 'keyed', got {layout!r}")
        self._columns, self.layout = columns, layout
        self._check_names()
        if layout == "keyed":
            self._check_keyed()
        self._register()

    def _register(self) -> None:
        self._number = next(_numbers)
        _tables[self._number] = self
        names = [*self._columns.lists, "", *self._columns.weights]
        # Named after the lists, so that tables with others do not fit into one mixture.
        self._rows_key = f"rows of {', '.join(map(repr, names))}"

    @classmethod
    def read(
        cls,
        path: Paths,
        *,
        lists: str | Iterable[str] | None = None,
        columns: str | Iterable[str] | None = None,
        weights: Mapping[str, str] | None = None,
        fill: Mapping[str, float] | None = None,
        dtype: Any = None,
        layout: Layout = "jagged",
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: float | str | None = None,
    ) -> JaggedTable:
        """Read rows of Parquet or Arrow IPC (Feather) files.

        Parameters
        ----------
        path : path, or list of paths
            A file, a glob, a directory, or a list of these, whose rows are concatenated; also as
            URLs: ``s3://bucket/folder``.
        lists : names, optional
            List columns, by default all: lists of integers (ids) or floats. A null list is empty.
        columns : names, optional
            Scalar columns of numbers or bools, by default all others.
        weights : mapping of name to name, optional
            For a list its column of weights: lists of floats of the same lengths.
        fill : mapping of name to number, optional
            Value in place of null and NaN in a scalar column. Without it null is NaN in floating
            columns, and an error in others.
        dtype : floating dtype, optional
            Dtype to which floats are cast, in lists and scalars.
        layout : "jagged" or "keyed"
            Form of the batches; see the class.
        filesystem : file system of pyarrow.fs or fsspec, optional
            The file system of `path`.
        storage_options : mapping, optional
            Options for the file system of URLs, such as credentials and endpoint.
        cache_dir : path, optional
            Local folder where remote files are kept, as a whole, for later reads and for other
            processes; see `cache_bytes`.
        cache_bytes : bytes or text, optional
            Bytes of all files in `cache_dir`, which is not limited by default.

        Raises
        ------
        FileNotFoundError, KeyError, TypeError, ValueError
            A file or column does not exist; a type is not supported; a file is damaged or has
            other types than the first; there is a null inside of a list or an integer column;
            a list and its weights have different lengths.
        OverflowError
            An id exceeds int64, or a float exceeds `dtype`.

        Notes
        -----
        O(bytes read) time. Integers of lists are kept as wide as in the file, with 8 bytes a row
        for offsets; while a list column is completed, it is in memory twice.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import pyarrow
        >>> from pyarrow import parquet
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "clicks.parquet"
        >>> data = {"seen": [[7, 8], [], [9]], "clicked": [True, False, True]}
        >>> parquet.write_table(pyarrow.table(data), path)
        >>> JaggedTable.read(path)
        JaggedTable(3 rows, lists seen, columns clicked, 59 bytes)
        """
        options = JaggedOptions.from_arguments(lists, columns, weights, fill, dtype)
        files = resolve(
            path,
            filesystem=filesystem,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        return cls(read_files(files, options), layout)

    @classmethod
    def from_arrow(
        cls,
        data: Any,
        *,
        lists: str | Iterable[str] | None = None,
        columns: str | Iterable[str] | None = None,
        weights: Mapping[str, str] | None = None,
        fill: Mapping[str, float] | None = None,
        dtype: Any = None,
        layout: Layout = "jagged",
    ) -> JaggedTable:
        """Copy rows of an object with the Arrow PyCapsule interface; parameters as in `read`.

        Such as tables of pyarrow, polars, pandas 2.2 and DuckDB.

        Examples
        --------
        >>> import pyarrow
        >>> data = pyarrow.table({"seen": [[7, 8], []], "share": [[0.25, 0.75], []]})
        >>> table = JaggedTable.from_arrow(data, weights={"seen": "share"}, layout="keyed")
        >>> batch = table.gather([1, 0])
        >>> batch["values"], batch["lengths"], batch["weights"]
        (array([7, 8]), array([0, 2]), array([0.25, 0.75]))
        """
        options = JaggedOptions.from_arguments(lists, columns, weights, fill, dtype)
        return cls(read_arrow_table(as_arrow_table(data), options), layout)

    def _check_names(self) -> None:
        """Raise a ValueError if two arrays of a batch would have one name."""
        columns = self._columns
        made = [*columns.scalars]
        if self.layout == "keyed":
            made += ["values", "lengths", "offsets", "weights"] if columns.lists else []
        else:
            made += [*columns.lists, *(f"{key}_offsets" for key in columns.lists)]
            made += [f"{key}_weights" for key in columns.weights]
        for name in made:
            if made.count(name) > 1:
                raise ValueError(
                    f"a batch would have two arrays {name!r}; expected other names of columns, or "
                    "fewer of them"
                )

    def _check_keyed(self) -> None:
        """Raise an error if the lists, or their weights, do not fit into one array."""
        lists, weights = self._columns.lists, self._columns.weights
        for columns in (lists, weights):
            dtypes = {key: column.dtype for key, column in columns.items()}
            if len(set(dtypes.values())) > 1:
                told = ", ".join(f"{key!r} {dtype}" for key, dtype in dtypes.items())
                raise TypeError(f"layout='keyed' needs lists of one dtype, got {told}")
        if weights and len(weights) < len(lists):
            missing = next(key for key in lists if key not in weights)
            raise ValueError(
                f"layout='keyed' needs weights of all lists or of none, got none of {missing!r}"
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._columns.rows

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._columns.lists)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self._columns.scalars)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns in memory."""
        lists = (*self._columns.lists.values(), *self._columns.weights.values())
        scalars = sum(values.nbytes for values in self._columns.scalars.values())
        return sum(column.nbytes for column in lists) + scalars

    def gather(self, indices: Any, out: Batch | None = None) -> Batch:
        """Return a batch of rows; for its keys see the class.

        Parameters
        ----------
        indices
            Row numbers, shape (B,).
        out
            Arrays of scalar columns, and of `gather_rows`, to write into.

        Raises
        ------
        IndexError
            If a number is outside ``[0, len)``.
        """
        rows = self.gather_rows(indices, out)
        return self.present({**rows, **self.whole(rows)})

    def gather_rows(self, indices: Any, out: Batch | None = None) -> Batch:
        """Return the scalar columns, and for `whole` the table and number of each row."""
        rows = as_indices(indices)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            wrong = int(rows.min() if rows.min() < 0 else rows.max())
            raise IndexError(f"row {wrong} is out of range for {len(self)} rows")
        if out is None:
            scalars = self._columns.scalars
            out = {key: aligned_empty((len(rows),), v.dtype) for key, v in scalars.items()}
            out[self._rows_key] = np.empty((len(rows), 2), np.int64)
        for key, values in self._columns.scalars.items():
            values.take(rows, out=out[key], mode="clip")
        out[self._rows_key][:, 0] = self._number
        out[self._rows_key][:, 1] = rows
        return out

    def whole(self, rows: Batch) -> Batch:
        """Return values and offsets of the lists of a batch of these rows."""
        numbers, wanted = rows[self._rows_key].T
        gathered = _Rows(self, numbers, np.ascontiguousarray(wanted))
        columns = self._columns
        if self.layout == "jagged":
            found: Batch = {}
            for key in columns.lists:
                found[key], lengths = gathered.concatenate([key], weights=False)
                found[f"{key}_offsets"] = _offsets(lengths)
                if key in columns.weights:
                    found[f"{key}_weights"], _ = gathered.concatenate([key], weights=True)
            return found
        if not columns.lists:
            return {}
        values, lengths = gathered.concatenate(columns.lists, weights=False)
        found = {"values": values, "lengths": lengths, "offsets": _offsets(lengths)}
        if columns.weights:
            found["weights"], _ = gathered.concatenate(columns.lists, weights=True)
        return found

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch without the numbers of rows."""
        del batch[self._rows_key]
        return batch

    def list_column(self, key: str, *, weights: bool = False) -> ListColumn:
        """Return a list column by its key, or the weights of it."""
        return (self._columns.weights if weights else self._columns.lists)[key]

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """Names, dtypes, sizes, and digests of sampled rows, as a flat dict.

        It does not depend on `layout`, nor on the width of integers in the file.
        """
        columns, rows = self._columns, sample_rows(len(self))
        found: dict[str, str | int] = {"rows": len(self)}
        kinds = (("list", columns.lists), ("weights", columns.weights))
        for kind, lists in kinds:
            for key, column in lists.items():
                found[f"{kind}.{key}"] = digest(*_sampled(column, rows))
        for name, values in columns.scalars.items():
            found[f"column.{name}"] = digest(values.dtype.name, values[rows])
        return found

    def __repr__(self) -> str:
        lists, columns = ", ".join(self.keys) or "none", ", ".join(self.column_names) or "none"
        size = format_bytes(self.nbytes)
        return f"JaggedTable({plural(len(self), 'row')}, lists {lists}, columns {columns}, {size})"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = []
        for key in self.keys:
            lists = self.list_column(key)
            mean = len(lists.values) / max(1, len(self))
            rows.append((key, str(lists.dtype), f"{len(lists.values):,}", f"{mean:.3g}"))
        rows += [(name, str(self._columns.scalars[name].dtype)) for name in self.column_names]
        caption = f"JaggedTable: {plural(len(self), 'row')}, {format_bytes(self.nbytes)}"
        return html_table(caption, ("column", "dtype", "values", "mean length"), rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns, "layout": self.layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._register()


class _Rows:
    """Rows of one table, or of several with the same columns."""

    def __init__(self, table: JaggedTable, numbers: Int64s, rows: Int64s) -> None:
        self._rows = rows
        others = np.unique(numbers).tolist()
        self._tables = [_tables[number] for number in others] or [table]
        self._of_table = [np.flatnonzero(numbers == number) for number in others]

    def concatenate(self, keys: Iterable[str], *, weights: bool) -> tuple[Array, Int64s]:
        """Return the values of all rows, key by key, and the lengths of each key and row."""
        by_key = [
            [table.list_column(key, weights=weights) for table in self._tables] for key in keys
        ]
        lengths = [self._lengths(columns) for columns in by_key]
        values = aligned_empty((int(sum(one.sum() for one in lengths)),), by_key[0][0].dtype)
        start = 0
        for columns, found in zip(by_key, lengths, strict=True):
            stop = start + int(found.sum())
            self._gather(columns, found, values[start:stop])
            start = stop
        return values, lengths[0] if len(lengths) == 1 else np.concatenate(lengths)

    def _lengths(self, columns: list[ListColumn]) -> Int64s:
        if len(columns) == 1:
            return columns[0].lengths(self._rows)
        lengths = np.empty(len(self._rows), np.int64)
        for column, members in zip(columns, self._of_table, strict=True):
            lengths[members] = column.lengths(self._rows[members])
        return lengths

    def _gather(self, columns: list[ListColumn], lengths: Int64s, out: Array) -> None:
        if len(columns) == 1:
            columns[0].gather(self._rows, lengths, out)
            return
        owner = np.empty(len(lengths), np.int64)
        for which, members in enumerate(self._of_table):
            owner[members] = which
        owner = np.repeat(owner, lengths)
        for which, (column, members) in enumerate(zip(columns, self._of_table, strict=True)):
            mine = lengths[members]
            part = np.empty(int(mine.sum()), out.dtype)
            column.gather(self._rows[members], mine, part)
            out[owner == which] = part


def _offsets(lengths: Int64s) -> Int64s:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _sampled(column: ListColumn, rows: Int64s) -> tuple[object, ...]:
    """Return dtype, offsets and values of sampled rows.

    Offsets count the values of all rows before, so a change of any length shows.
    """
    lengths = column.lengths(rows)
    values = np.empty(int(lengths.sum()), column.dtype)
    column.gather(rows, lengths, values)
    total = int(column.offsets[-1])
    return column.dtype.name, total, column.offsets[rows], lengths, values
