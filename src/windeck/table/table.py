"""Table: columns in memory or in a mapped file, cut into series that are in order of time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData, as_array, as_tensor, read_only
from windeck.columns.dtypes import Array, Int64s
from windeck.io import reading
from windeck.io import reading as mapping
from windeck.io.filesystem import Paths, resolve
from windeck.io.formats import open_file
from windeck.io.reading import Loaded, Origin
from windeck.io.request import Categories, Request, as_bytes, as_names, is_interleaved
from windeck.table import construction, description
from windeck.table.construction import Shape, arrange
from windeck.table.timestamps import OrderReport

Storage = Literal["columns", "rows"]


class Table:
    """Columns of one length, cut into series. Made by `read`, `from_columns`, ...; never changed.

    Attributes
    ----------
    offsets : int64 ndarray, shape (series + 1,)
        Series s has rows [offsets[s], offsets[s + 1]).
    series_names : tuple
        The id of each series; a tuple of ids where there are several id columns; its number where
        there are none.
    timestamps : datetime64 or int64 ndarray, shape (rows,), or None
    report : OrderReport
        What was found about the order of rows: series sorted, duplicate stamps, breaks.
    matrix : ndarray, shape (rows, columns), or None
        The row-major matrix all columns are views of, with ``storage="rows"``.
    origin : Origin or None
        The files it was read from: how many columns and bytes they hold.

    Examples
    --------
    >>> import numpy as np
    >>> table = Table.from_columns({"load": np.arange(4.0)}, offsets=[0, 3, 4])
    >>> table["load"], table.num_series
    (array([0., 1., 2., 3.]), 2)
    """

    def __init__(self, loaded: Loaded, shape: Shape, reopen: Mapping[str, Any] | None = None):
        self._columns = {column.name: column for column in loaded.columns}
        self._reopen = reopen
        self.offsets: Int64s = read_only(shape.offsets)
        self.series_names: tuple[Any, ...] = shape.names
        self.timestamps: Array | None = None if loaded.time is None else loaded.time.values
        self.report: OrderReport = shape.report
        self.matrix: Array | None = None if loaded.matrix is None else read_only(loaded.matrix)
        self.origin: Origin | None = loaded.origin

    @classmethod
    def read(
        cls,
        path: Paths,
        *,
        columns: str | Iterable[str] | None = None,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        categories: Categories = (),
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
        storage: Storage = "columns",
        in_memory: bool = True,
        memory_budget: float | None = None,
        sort: bool = False,
    ) -> Table:
        """Read Parquet, Arrow IPC (Feather) or CSV; only the columns and rows asked for.

        Parameters
        ----------
        path : path, or list of paths
            A file, a glob, a directory, or a list of these, their rows one after the other.
        columns : names, optional
            Columns to keep as values; all of them if not given. Ids and time are not values.
        id_columns : names, optional
            Strings or integers whose combination says to which series a row belongs.
        timestamp_column : name, optional
            Timestamps, dates or integers. Series not in order of time are sorted (stable).
        categories : names, True, or mapping of name to names, optional
            String columns to read as int32 codes: in order of first appearance, or, with a
            mapping, as the places in the names given. True: every string column.
            Dictionary columns are read so always.
        dtype : floating dtype, optional
            What floating columns are cast to. All others are kept as they are.
        rows : (start, stop), optional
            Rows to read, counted over all files; stop may be None.
        storage : "columns" or "rows"
            "rows" puts all columns, of one dtype, into one row-major matrix.
        in_memory : bool
            False maps one uncompressed Arrow IPC file of one record batch, copying no values.
        memory_budget : bytes, optional
            Refuse to read into memory what takes more, by `estimate`.
        sort : bool
            Bring together rows of series that are scattered in the file.

        Raises
        ------
        FileNotFoundError, KeyError, TypeError, ValueError, OverflowError
            No such file or column; a type a table cannot hold; a file that is empty, damaged, or
            unlike the others; scattered series; a value too large for `dtype`.
        MemoryError
            More than `memory_budget`; nothing has been read then.

        Notes
        -----
        O(rows read) time. Peak memory is about `estimate`: each column is laid out once and filled
        batch by batch.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "loads.csv"
        >>> _ = path.write_text("site,hour,load\\na,1,0.5\\na,0,1.5\\nb,0,2.5\\n")
        >>> table = Table.read(path, id_columns="site", timestamp_column="hour")
        >>> print(table.explain())
        1 of 1 columns, 24 of 24 bytes, 3 rows, in memory, from 1 CSV file
          load: float64
        2 series of 1 to 2 rows, usual step 1
        1 series sorted by time (1 backward step)
        """
        request = Request.of(
            columns, id_columns, timestamp_column, dtype, rows, categories, sort=sort
        )
        interleaved = is_interleaved(storage)
        if in_memory:
            budget = as_bytes(memory_budget)
            loaded = reading.read(resolve(path), request, interleaved, budget)
            return cls._of(loaded, request)
        if interleaved:
            raise ValueError("storage='rows' copies every value; expected in_memory=True with it")
        loaded = mapping.read_mapped(resolve(path), request)
        reopen = construction.arguments(resolve(path), request, categories)
        return cls._of(loaded, request, reopen)

    @classmethod
    def estimate(
        cls,
        path: Paths,
        *,
        columns: str | Iterable[str] | None = None,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        categories: Categories = (),
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
    ) -> int:
        """Bytes `read` would take in memory, told from metadata alone.

        Exact for numbers, bools and times in Parquet and Arrow files, but for validity bitmaps
        (one bit a row where something is null). Strings not named as ids or categories count
        with their bytes in the file. CSV is judged by its first mebibyte. Parameters as in `read`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "loads.csv"
        >>> _ = path.write_text("load,temperature\\n0.5,20.0\\n1.5,21.0\\n")
        >>> Table.estimate(path, columns="load", dtype="float32")
        8
        """
        request = Request.of(columns, id_columns, timestamp_column, dtype, rows, categories)
        files = [open_file(name) for name in resolve(path)]
        names = request.values(files[0].schema, repr(files[0].path))
        return reading.sizes(files, (*names, *request.index), request)

    @classmethod
    def from_arrow(
        cls,
        data: Any,
        *,
        columns: str | Iterable[str] | None = None,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        categories: Categories = (),
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
        storage: Storage = "columns",
        sort: bool = False,
    ) -> Table:
        """Take a table from anything that speaks the Arrow PyCapsule protocol.

        pyarrow, polars, pandas 2.2, DuckDB, nanoarrow, ... Numbers that lie in one piece are not
        copied; validity bitmaps neither. Bools, strings and columns in several pieces are, once.
        Parameters as in `read`.

        Raises
        ------
        TypeError
            `data` has neither ``__arrow_c_stream__`` nor ``__arrow_c_array__``.

        Examples
        --------
        >>> import pyarrow
        >>> data = pyarrow.table({"wind": ["N", "S", None], "load": [0.5, None, 1.5]})
        >>> table = Table.from_arrow(data, categories="wind")
        >>> table["wind"].tolist(), table.column("wind").categories
        ([0, 1, -1], ('N', 'S'))
        >>> table.column("load").observed().tolist()
        [True, False, True]
        """
        request = Request.of(
            columns, id_columns, timestamp_column, dtype, rows, categories, sort=sort
        )
        table = reading.arrow_table(data)
        return cls._of(
            reading.from_table(table, request, interleaved=is_interleaved(storage)), request
        )

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        *,
        offsets: Any = None,
        series_names: Sequence[Any] | None = None,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        sort: bool = False,
    ) -> Table:
        """Take one-dimensional arrays or CPU tensors as they lie, without a copy.

        Parameters
        ----------
        columns : mapping of name to array or tensor, each of shape (rows,)
            bool, integers, floats; bfloat16 as a tensor (kept as its uint16 bits).
        offsets : integers, shape (series + 1,), optional
            Where the series begin; one series if neither this nor `id_columns` is given.
        series_names : sequence, optional
            A name for each series of `offsets`.
        id_columns, timestamp_column : optional
            Names in `columns` that are not values, as in `read`; ids may be strings.
        sort : bool
            As in `read`. Rows that have to be moved are moved in a copy.

        Raises
        ------
        KeyError, TypeError, ValueError
            Naming the column, what it is and what was expected.

        Examples
        --------
        >>> import numpy as np
        >>> load, hour = np.arange(4.0), np.arange(4)
        >>> table = Table.from_columns({"load": load, "hour": hour}, timestamp_column="hour")
        >>> np.shares_memory(table["load"], load), table.column_names, table.step
        (True, ('load',), 1)
        """
        if not isinstance(columns, Mapping):
            raise TypeError(f"columns is a {type(columns).__name__}; expected a mapping of names")
        request = Request.of(list(columns), id_columns, timestamp_column, sort=sort)
        loaded = construction.from_arrays(columns, request)
        return cls._of(loaded, request, offsets=offsets, series_names=series_names)

    @classmethod
    def from_rows(
        cls,
        array: Any,
        columns: Sequence[str],
        *,
        offsets: Any = None,
        series_names: Sequence[Any] | None = None,
        timestamps: Array | None = None,
    ) -> Table:
        """Take a matrix (rows, columns), array or CPU tensor, as it lies, without a copy.

        Where each row is contiguous, so that a window of all columns is, `storage` is "rows".

        Parameters
        ----------
        array : ndarray or tensor, shape (rows, len(columns))
        columns : names
        offsets, series_names : optional
            As in `from_columns`.
        timestamps : ndarray, shape (rows,), optional
            datetime64 or integers.

        Examples
        --------
        >>> import numpy as np
        >>> table = Table.from_rows(np.arange(6.0).reshape(3, 2), ["load", "wind"])
        >>> table["wind"], table.storage
        (array([1., 3., 5.]), 'rows')
        """
        names = as_names("columns", columns)
        matrix, dtype = as_array("the matrix", array)
        if matrix.ndim != 2 or matrix.shape[1] != len(names):
            raise ValueError(
                f"the matrix has shape {matrix.shape}; expected (rows, {len(names)}), one column "
                "for each name"
            )
        loaded = construction.from_matrix(matrix, dtype, names, timestamps)
        return cls._of(loaded, Request(), offsets=offsets, series_names=series_names)

    @classmethod
    def _of(
        cls,
        loaded: Loaded,
        request: Request,
        reopen: Mapping[str, Any] | None = None,
        *,
        offsets: Any = None,
        series_names: Sequence[Any] | None = None,
    ) -> Table:
        loaded, shape = arrange(loaded, request.sort, offsets, series_names)
        return cls(loaded, shape, reopen)

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapped table is mapped again; one in memory goes with its values, layout kept."""
        return construction.reduced(self, self._reopen)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> Array:
        """The values of one column, read-only; see `column` for which of them are missing."""
        return self.column(name).values

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return (
            f"Table({self.num_rows:,} rows, {self.num_series:,} series, "
            f"columns {', '.join(self.column_names[:8])}{', ...' * (len(self._columns) > 8)})"
        )

    @property
    def num_rows(self) -> int:
        """Rows, of all series together."""
        return int(self.offsets[-1])

    @property
    def num_series(self) -> int:
        return len(self.offsets) - 1

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the value columns; ids and time are not among them."""
        return tuple(self._columns)

    @property
    def columns(self) -> Mapping[str, ColumnData]:
        """All value columns by name."""
        return MappingProxyType(self._columns)

    @property
    def storage(self) -> Storage:
        """Whether the columns are views of one row-major matrix ("rows") or lie by themselves."""
        return "columns" if self.matrix is None else "rows"

    @property
    def step(self) -> np.timedelta64 | int | None:
        """The usual difference between successive stamps; None if that is not known."""
        return self.report.step

    def column(self, name: str) -> ColumnData:
        """One column: values, validity, categories. KeyError with near matches if unknown."""
        try:
            return self._columns[name]
        except KeyError:
            raise unknown_column(name, self._columns) from None

    def to_torch(self) -> dict[str, Any]:
        """Every column as a tensor on the same memory; bfloat16 as such. Imports torch.

        The tensors are for reading. Writing through one changes the table, and brings the process
        down where the memory behind it was given as read-only.
        """
        import torch

        with warnings.catch_warnings():
            # torch has no read-only tensors, and warns of every array that is.
            warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
            return {name: as_tensor(column, torch) for name, column in self._columns.items()}

    def explain(self) -> str:
        """Say in a few lines what was read, what is missing and what is odd about its order."""
        return description.explain(self)

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """What the table is, flat: names, dtypes, sizes, digests of offsets and sampled rows."""
        return description.fingerprint(self)
