"""Tables: columns in memory or in files, divided into series that are sorted by time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NoReturn

import numpy as np

from windeck._util.imports import needs_torch
from windeck._util.options import explain_options
from windeck._util.progress import Progress
from windeck._util.text import plural, unknown_column
from windeck._util.validation import check_integer
from windeck.columns.calendar import CalendarFeature, DateFeature
from windeck.columns.columns import ColumnData, as_array, as_tensor, read_only
from windeck.columns.dtypes import Array, Int64s
from windeck.io import reading
from windeck.io.clients import Version
from windeck.io.csv_options import Header
from windeck.io.data_files import Paths, resolve
from windeck.io.filesystem import PathLike
from windeck.io.options import Categories, ReadOptions, as_names, budget_bytes, is_interleaved
from windeck.io.reading import LoadedColumns, Origin
from windeck.table import (
    construction,
    derived,
    description,
    frames,
    ragged,
    regular,
    streamed,
    wide,
)
from windeck.table.construction import (
    Reopening,
    SeriesLayout,
    arrange_series,
    warn_of_repeated_times,
)
from windeck.table.description import Described
from windeck.table.grid import OffGrid
from windeck.table.group_cache import GroupCache
from windeck.table.opening import open_files
from windeck.table.regular import GridArguments
from windeck.table.series import check_same_numbers, places_of
from windeck.table.streamed import StreamedContents, StreamedTimes, block_offsets, first_rows
from windeck.table.timestamps import OrderReport

Storage = Literal["columns", "rows"]


@explain_options
class Table:
    """Immutable columns of one length, divided into series.

    Made by `read`, `from_arrow`, `from_columns`, `from_rows`, `from_series` and `from_wide`.

    Attributes
    ----------
    offsets : int64 ndarray, shape (series + 1,)
        Series s has rows [offsets[s], offsets[s + 1]).
    series_names : tuple
        The id of each series; a tuple of ids for several id columns; its number for none.
    timestamps : datetime64 or int64 ndarray, shape (rows,), or None
        In UTC if they have a time zone.
    time_zone : str or None
        The time zone of the timestamps in the data; None without one.
    report : OrderReport
        Report on the order of rows: series that were sorted, duplicate timestamps, breaks.
    matrix : ndarray, shape (rows, columns), or None
        The row-major matrix of which all columns are views, with ``storage="rows"``.
    origin : Origin or None
        The files it was read from, with their number of columns and bytes.
    id_columns : tuple of str
        Names of the columns of ids in the data; empty without.
    timestamp_column : str or None
        Name of the column of timestamps in the data.

    Examples
    --------
    >>> import numpy as np
    >>> table = Table.from_columns({"load": np.arange(4.0)}, offsets=[0, 3, 4])
    >>> table["load"], table.num_series
    (array([0., 1., 2., 3.]), 2)
    """

    # The mapped table that this one was derived from, and the columns that it does not have.
    _base: Table | None = None
    _added: frozenset[str] = frozenset()
    id_columns: tuple[str, ...] = ()
    timestamp_column: str | None = None
    # The zone of local times without one, in which more data of this kind is read.
    _local_zone: str | None = None

    def __init__(
        self, loaded: LoadedColumns, layout: SeriesLayout, reopening: Reopening | None = None
    ) -> None:
        self._columns = {column.name: column for column in loaded.columns}
        self._reopening = reopening
        self.offsets: Int64s = read_only(layout.offsets)
        self.series_names: tuple[Any, ...] = layout.names
        self.timestamps: Array | None = None if loaded.time is None else loaded.time.values
        self.time_zone: str | None = None if loaded.time is None else loaded.time.time_zone
        self.report: OrderReport = layout.report
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
        memory_budget: float | str | None = None,
        sort: bool = False,
        time_zone: str | None = None,
        header: Header = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        timestamp_format: str | None = None,
        missing: str | Iterable[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: float | str | None = None,
        group_bytes: float | str | None = None,
        progress: Progress = None,
    ) -> Table:
        """Read columns and rows of Parquet, Arrow IPC (Feather) or CSV files.

        Parameters
        ----------
        path : path, or list of paths
            A file, a glob, a directory, or a list of these, whose rows are concatenated; also as
            URLs: ``s3://bucket/folder``.
        columns : names, optional
            Columns to read as values, by default all except ids and time.
        id_columns : names, optional
            Columns of strings or integers. Rows with equal ids are one series.
        timestamp_column : name, optional
            Timestamps, dates or integers. Series that are not sorted by time are sorted (stable).
        categories : names, True, or mapping of name to names, optional
            String columns to read as int32 codes, in order of first appearance. A mapping gives
            the names in the order of their codes. True means every string column. Dictionary
            columns are always read as codes.
        dtype : floating dtype, optional
            Dtype to which floating columns and decimals are cast. Other columns keep their dtype.
            Decimals are an error without it. A column without any value is a floating one.
        rows : (start, stop), optional
            Rows to read, counted over all files; stop may be None.
        storage : "columns" or "rows"
            "rows" stores all columns, which must have one dtype, in one row-major matrix.
        in_memory : bool
            False leaves the values in Parquet and Arrow IPC files, which must be sorted by series
            and time. One uncompressed Arrow IPC file of one record batch is mapped, without a copy,
            unless `memory_budget` or `group_bytes` is given. Other files are streamed: windows read
            groups of blocks of rows, see the guide on streaming.
        memory_budget : bytes or text, optional
            Such as ``8e9`` or ``"8GB"``. Raise MemoryError if `estimate` is larger. With
            ``in_memory=False`` the bytes that may be resident: windows raise MemoryError if two
            groups take more. A group has one row group of Parquet at least.
        sort : bool
            Group the rows of series that are not contiguous in the file.
        time_zone : str, optional
            Zone of local times in `timestamp_column`, such as "Europe/Berlin", which become UTC.
            Of times that clocks show twice, rows before a step back in a series are before the
            change; without a step back, the first of two equal times, and any that is there once.
            Times that have a zone in the file are UTC without it.
        header : bool or names, optional
            CSV: True if the first line has the names of columns, False if it is data, or names of
            the columns of a file without a header. By default it has names, and a first line all
            of numbers or dates is an error; any other is taken as names, such as "a,1.5".
        delimiter, decimal : str of length 1, optional
            CSV: character between columns, by default a comma (in .tsv a tab), and decimal mark.
        encoding : str, optional
            CSV: encoding of the text, such as "latin-1"; UTF-8 by default.
        timestamp_format : str, optional
            CSV: format of `timestamp_column`, such as "%d/%m/%Y"; ISO 8601 by default. A text that
            is no time of the calendar, such as 31 April, is an error.
        missing : words, optional
            CSV: words that stand for a missing value in any column, such as ``["oops", "-999"]``,
            besides those that are always understood: in all columns an empty cell, NA, N/A, NULL,
            null, NaN and nan without quotes; in columns of numbers and times also ?, -, --, ., None
            and <NA>, and all of them in quotes. ``missing=[]`` leaves these few out: a column with
            one of them has text.
        filesystem : file system of pyarrow.fs or fsspec, optional
            The file system of `path`.
        storage_options : mapping, optional
            Options for the file system of URLs, such as credentials and endpoint.
        cache_dir : path, optional
            Local folder where remote files are kept, as a whole, for later reads and for other
            processes; see `cache_bytes`. With ``in_memory=False`` also, of local files too, what
            ids and timestamps say of series: for unchanged files they are not read again.
        cache_bytes : bytes or text, optional
            Bytes of all files in `cache_dir`, which is not limited by default.
        group_bytes : bytes or text, optional
            ``in_memory=False``: bytes of rows among which windows are shuffled, 256 MiB by default.
            Part of the order, and of the fingerprint.
        progress : bool, function (done, total), or None
            ``in_memory=False``: a progress bar while ids and timestamps are read. None: a bar at a
            terminal, if that takes more than two seconds, as for reading into memory.

        Raises
        ------
        FileNotFoundError, KeyError, TypeError, ValueError, OverflowError
            A file or column does not exist; a table cannot hold its type; a file is empty,
            damaged, or has other columns than the first; a series is not contiguous; a value is
            too large for `dtype`, or a time for its unit; an index of pandas would be lost.
        MemoryError
            The table would take more than `memory_budget`. Nothing has been read.

        Notes
        -----
        O(rows read) time. Peak memory is about `estimate`: each column is allocated once and
        filled batch by batch.

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
        time from 0 to 1
        1 series sorted by time (1 backward step)
        """
        options = ReadOptions.from_arguments(
            columns,
            id_columns,
            timestamp_column,
            dtype,
            rows,
            categories,
            sort=sort,
            zone=time_zone,
            csv=(header, delimiter, decimal, encoding, timestamp_format, missing),
        )
        opened = open_files(
            path,
            options,
            categories,
            storage=storage,
            in_memory=in_memory,
            memory_budget=memory_budget,
            group_bytes=group_bytes,
            progress=progress,
            located={
                "filesystem": filesystem,
                "storage_options": storage_options,
                "cache_dir": cache_dir,
                "cache_bytes": cache_bytes,
            },
        )
        if opened.loaded is None:
            assert opened.streamed is not None
            return StreamedTable(*opened.streamed)
        return cls._of(opened.loaded, options, opened.reopening)

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
        header: Header = None,
        delimiter: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        timestamp_format: str | None = None,
        missing: str | Iterable[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: float | str | None = None,
    ) -> int:
        """Return the bytes of memory that `read` would take, from metadata alone.

        Exact for numbers, bools and times in Parquet and Arrow files, except for validity bitmaps
        (one bit a row of a column with nulls). Strings that are not ids or categories count with
        their bytes in the file. CSV is estimated from its first mebibyte. Parameters as in `read`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "loads.csv"
        >>> _ = path.write_text("load,temperature\\n0.5,20.0\\n1.5,21.0\\n")
        >>> Table.estimate(path, columns="load", dtype="float32")
        8
        """
        options = ReadOptions.from_arguments(
            columns,
            id_columns,
            timestamp_column,
            dtype,
            rows,
            categories,
            csv=(header, delimiter, decimal, encoding, timestamp_format, missing),
        )
        paths = resolve(
            path,
            filesystem=filesystem,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        files = reading.open_data(paths, options)
        names = options.value_columns(files[0].schema, repr(files[0].path))
        return reading.estimate_bytes(files, (*names, *options.index_columns), options)

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
        time_zone: str | None = None,
    ) -> Table:
        """Make a table of an object with the Arrow PyCapsule interface.

        Such as tables of pyarrow, polars, pandas 2.2, DuckDB and nanoarrow; also a polars LazyFrame
        and a Hugging Face Dataset, of which only the columns used are computed. Numbers in one
        chunk and validity bitmaps are not copied. Bools, strings and columns of several chunks are
        copied once. Levels of the index of a pandas frame are columns, which `id_columns` and
        `timestamp_column` name; one that numbers the rows is left out. Parameters as in `read`.

        Raises
        ------
        TypeError
            `data` has neither ``__arrow_c_stream__`` nor ``__arrow_c_array__``.
        ValueError
            The index of a pandas frame has names or times, and is not asked for; with `columns` it
            is left out.

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
        options = ReadOptions.from_arguments(
            columns,
            id_columns,
            timestamp_column,
            dtype,
            rows,
            categories,
            sort=sort,
            zone=time_zone,
        )
        table = reading.as_arrow_table(data, options)
        return cls._of(
            reading.from_arrow_table(table, options, interleaved=is_interleaved(storage)), options
        )

    @classmethod
    def from_pandas(
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
        time_zone: str | None = None,
    ) -> Table:
        """Make a table of a frame or a Series of pandas, with the levels of its index.

        Of the index, the level of times, dates or periods is the time and the other levels are ids,
        unless `id_columns` or `timestamp_column` name others. One level of integers without a name
        numbers the rows, and is left out. Levels without a name are called ``timestamp``,
        ``series_id`` or ``series_id_0``. A period of any frequency becomes the time at which it
        begins. Nulls of nullable dtypes, NaN and None are missing; categoricals of texts become
        codes. Parameters as in `read`.

        Raises
        ------
        TypeError, ValueError
            `data` is not of pandas; two columns have one name; the index has several levels of
            time, a level with the name of a column, one that is neither time nor of strings or
            integers, or several levels without time, with which each row is a series; one column
            has times with and without a time zone.

        Examples
        --------
        >>> import pandas
        >>> index = pandas.period_range("2024-01", periods=2, freq="M", name="month")
        >>> table = Table.from_pandas(pandas.DataFrame({"load": [0.5, 1.5]}, index=index))
        >>> table.timestamp_column, table.timestamps.astype("M8[D]").tolist()[1]
        ('month', datetime.date(2024, 2, 1))
        """
        frame, ids, time = frames.flat_pandas(
            data, id_columns, timestamp_column, columns, categories
        )
        return cls.from_arrow(
            frame,
            columns=columns,
            id_columns=ids,
            timestamp_column=time,
            categories=categories,
            dtype=dtype,
            rows=rows,
            storage=storage,
            sort=sort,
            time_zone=time_zone,
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
        time_zone: str | None = None,
    ) -> Table:
        """Make a table of one-dimensional arrays, tensors, Series or lists.

        Arrays, CPU tensors and Series of numbers are not copied; lists are.

        Parameters
        ----------
        columns : mapping of name to array, tensor, Series or list, each of shape (rows,)
            bool, integers, floats; bfloat16 as a tensor (kept as its uint16 bits). Categorical
            Series become codes. Nulls of a Series of polars or pandas, and None, are missing.
        offsets : integers, shape (series + 1,), optional
            Series s has rows [offsets[s], offsets[s + 1]). One series by default.
        series_names : sequence, optional
            A name for each series of `offsets`.
        id_columns, timestamp_column : optional
            Names in `columns` that are not values, as in `read`; ids may be strings.
        sort : bool
            As in `read`. Columns are copied if rows have to be moved.
        time_zone : str, optional
            As in `read`.

        Raises
        ------
        KeyError, TypeError, ValueError
            An argument is wrong; the message names the column, its type and the expected one.

        Examples
        --------
        >>> import numpy as np
        >>> load, hour = np.arange(4.0), np.arange(4)
        >>> table = Table.from_columns({"load": load, "hour": hour}, timestamp_column="hour")
        >>> np.shares_memory(table["load"], load), table.column_names, table.step
        (True, ('load',), 1)
        """
        if not isinstance(columns, Mapping):
            raise TypeError(
                f"`columns` must be a mapping of names to arrays, got a {type(columns).__name__}"
            )
        options = ReadOptions.from_arguments(
            list(columns), id_columns, timestamp_column, sort=sort, zone=time_zone
        )
        if not options.ids and offsets is None:
            ragged.check_levels(columns)
        loaded = construction.from_arrays(columns, options)
        return cls._of(loaded, options, offsets=offsets, series_names=series_names)

    @classmethod
    def from_series(
        cls,
        series: Any,
        *,
        columns: str | Iterable[str] | None = None,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        freq: Any = None,
        start: Any = None,
        series_names: Sequence[Any] | None = None,
        categories: Categories = (),
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
        memory_budget: float | str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: float | str | None = None,
    ) -> Table:
        """Make a table of series of different lengths, one item or one row each.

        Parameters
        ----------
        series : sequence, mapping, Arrow data, or path
            Arrays, tensors, lists or Series of shape (time,), or arrays of shape (time, columns);
            mappings of names to values, such as entries of GluonTS; a mapping of names of series
            to such; or Arrow data or files with one row a series and its values in list columns.
            A list of lists, or an array of shape (k, time) in a mapping, is k columns "name_0"...
        columns : names, optional
            Columns to take, or the names of those of arrays; "target" for a single one.
        id_columns : names, optional
            Columns that name the series, each series once.
        timestamp_column : name, optional
            Column of lists of timestamps, or of the first timestamp of each series with `freq`.
        freq : str, timedelta or int, optional
            Step from `start` on: "h", "15min", "W", "MS", a duration, or an integer for integers.
            Months give the first day. By default "freq" of the metadata of an Arrow schema.
        start : timestamp, or sequence with one for each series, optional
            First timestamp of arrays. By default the index of pandas Series, if all are of time.
        series_names : sequence, optional
            A name for each series, without `id_columns`.
        categories, dtype, rows, memory_budget : optional
            As in `read`; rows are series. `start` and `series_names` have an item for each series,
            also for those that are not among `rows`.
        filesystem, storage_options, cache_dir, cache_bytes : optional
            As in `read`, for files.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError
            Columns of one series differ in length; the message names the column and the series.
            Integers beyond 2**53 are among floats or missing values, which makes them float64.

        Notes
        -----
        O(values) time. Lists of one Arrow chunk are not copied, other series once or twice.

        Examples
        --------
        >>> import numpy as np
        >>> table = Table.from_series([[1.0, 2.0, 3.0], [4.0]], start="2024-01-01", freq="D")
        >>> table["target"], table.offsets, table.timestamps[-1]
        (array([1., 2., 3., 4.]), array([0, 3, 4]), np.datetime64('2024-01-01T00:00:00.000000'))
        >>> entries = [{"item_id": "a", "start": "2024-01-01", "target": [1.0, 2.0]}]
        >>> table = Table.from_series(
        ...     entries, id_columns="item_id", timestamp_column="start", freq="h"
        ... )
        >>> table.series_names, table["target"]
        (('a',), array([1., 2.]))
        """
        options = ReadOptions.from_arguments(
            columns, id_columns, timestamp_column, dtype, rows, categories
        )
        located = {
            "filesystem": filesystem,
            "storage_options": storage_options,
            "cache_dir": cache_dir,
            "cache_bytes": cache_bytes,
        }
        found, names = ragged.from_any(
            series, options, start, freq, series_names, budget_bytes(memory_budget), located
        )
        return cls._of(found.loaded, options, offsets=found.offsets, series_names=names)

    @classmethod
    def from_wide(
        cls,
        data: Any,
        *,
        series: Literal["rows", "columns"] = "rows",
        name: str = ragged.TARGET,
        id_columns: str | Iterable[str] | None = None,
        timestamp_column: str | None = None,
        start: Any = None,
        freq: Any = None,
        **options: Any,
    ) -> Table:
        """Make a table of wide data: each row is a series, or each column is.

        Parameters
        ----------
        data : path, or object with the Arrow PyCapsule interface
        series : "rows" or "columns"
            "rows": columns are the steps; missing values at the end of a row are left out.
            "columns": columns are the series, and their names the names of the series.
        name : str
            Name of the one value column of the table.
        id_columns : names, optional
            Columns that name the series of rows.
        timestamp_column : name, optional
            Timestamps of all series of columns.
        start, freq : optional
            As in `from_series`, instead of timestamps; one for each row of the data, also for those
            that are not among `rows`.
        **options
            As in `read` or `from_arrow`: columns, dtype, rows, time_zone; of files also
            memory_budget, filesystem, storage_options, cache_dir, cache_bytes and those of CSV.

        Raises
        ------
        TypeError, ValueError, OverflowError
            A column has strings, an id is not unique, or an argument is wrong; an integer beyond
            2**53 would become float64.

        Notes
        -----
        O(values) time and additional memory. Columns of several dtypes are promoted to the one
        that holds them all, integers with missing values to float64.

        Examples
        --------
        >>> import pyarrow
        >>> data = pyarrow.table({"id": ["a", "b"], "1": [1.0, 2.0], "2": [3.0, None]})
        >>> table = Table.from_wide(data, id_columns="id")
        >>> table["target"], table.series_names, table.offsets
        (array([1., 3., 2.]), ('a', 'b'), array([0, 2, 3]))
        >>> data = pyarrow.table({"day": [1, 2], "north": [1.0, 2.0], "south": [3.0, 4.0]})
        >>> table = Table.from_wide(data, series="columns", timestamp_column="day")
        >>> table["target"], table.series_names
        (array([1., 2., 3., 4.]), ('north', 'south'))
        """
        if series not in ("rows", "columns"):
            raise ValueError(f"`series` must be 'rows' or 'columns', got {series!r}")
        loaded = wide.load(data, id_columns, timestamp_column, options)
        if series == "rows":
            start = wide.starts_of(start, options.get("rows"))
        arrange = wide.from_rows if series == "rows" else wide.from_columns
        found = arrange(loaded, name, start, freq)
        ids = as_names("id_columns", id_columns or ())
        read = ReadOptions(ids=ids, time=timestamp_column, zone=options.get("time_zone"))
        return cls._of(found.loaded, read, offsets=found.offsets, series_names=found.names)

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
        """Make a table of a matrix, an array or a CPU tensor, without a copy.

        `storage` is "rows" if each row is contiguous, and with it a window of all columns.

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
                f"the matrix must have shape (rows, {len(names)}), one column for each name, got "
                f"{matrix.shape}"
            )
        loaded = construction.from_matrix(matrix, dtype, names, timestamps)
        return cls._of(loaded, ReadOptions(), offsets=offsets, series_names=series_names)

    @classmethod
    def _of(
        cls,
        loaded: LoadedColumns,
        options: ReadOptions,
        reopening: Reopening | None = None,
        *,
        offsets: Any = None,
        series_names: Sequence[Any] | None = None,
    ) -> Table:
        loaded, layout = arrange_series(loaded, options, offsets, series_names)
        wide.warn_if_wide(loaded, len(layout.names))
        warn_of_repeated_times(loaded, layout)
        return cls(loaded, layout, reopening)._named(options.ids, options.time, options.zone)

    def _named(self, ids: Sequence[str], time: str | None, zone: str | None = None) -> Table:
        """Set names of the columns of ids and time, and `time_zone` of `read`; return the table."""
        self.id_columns, self.timestamp_column, self._local_zone = tuple(ids), time, zone
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a pickle: the path and arguments of a mapped table, else values and layout."""
        if self._base is not None:
            columns = {
                name: column if name in self._added else column.missing
                for name, column in self._columns.items()
            }
            return _rebuild_derived, (self._base, columns)
        if self._reopening is not None:
            return _read_again, tuple(self._reopening)
        names = self.id_columns, self.timestamp_column, self._local_zone
        return _rebuild, (construction.without_views(self._loaded), self._layout, names)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> Array:
        """Return the values of one column, read-only; `column` has the missing ones as well."""
        column = self.column(name)
        self._check_in_memory(f"table[{name!r}]")
        return column.values

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return (
            f"Table({plural(self.num_rows, 'row')}, {self.num_series:,} series, "
            f"columns {', '.join(self.column_names[:8])}{', ...' * (len(self._columns) > 8)})"
        )

    def _repr_html_(self) -> str:
        return description.as_html(self._described)

    def _check_in_memory(self, what: str, cure: str = "") -> None:
        """Raise a TypeError for an operation that needs values in memory if they are not."""

    @property
    def _loaded(self) -> LoadedColumns:
        time = None
        if self.timestamps is not None:
            time = ColumnData("", self.timestamps, time_zone=self.time_zone)
        values = list(self._columns.values())
        return LoadedColumns(values, [], time, self.matrix, self.origin, owned=False)

    @property
    def _layout(self) -> SeriesLayout:
        return SeriesLayout(self.offsets, self.series_names, self.report)

    @property
    def _described(self) -> Described:
        return Described(self._columns, self._layout, self.time_zone, self.origin)

    @property
    def num_rows(self) -> int:
        """Number of rows of all series."""
        return int(self.offsets[-1])

    @property
    def num_series(self) -> int:
        return len(self.offsets) - 1

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the value columns, without ids and time."""
        return tuple(self._columns)

    @property
    def columns(self) -> Mapping[str, ColumnData]:
        """All value columns by name."""
        return MappingProxyType(self._columns)

    @property
    def storage(self) -> Storage:
        """ "rows" if the columns are views of one row-major matrix, else "columns"."""
        return "columns" if self.matrix is None else "rows"

    @property
    def step(self) -> np.timedelta64 | int | None:
        """Usual difference of successive timestamps; None if it is unknown."""
        return self.report.step

    @property
    def span(self) -> tuple[np.datetime64, np.datetime64] | tuple[int, int] | None:
        """First and last timestamp of all series; None without timestamps or rows."""
        found, unit = self.report.span, self.report.unit
        if found is None or unit is None:
            return found
        return np.datetime64(found[0], unit), np.datetime64(found[1], unit)  # type: ignore[call-overload]

    def column(self, name: str) -> ColumnData:
        """Return values, validity and categories of a column; KeyError if it is unknown."""
        try:
            return self._columns[name]
        except KeyError:
            raise unknown_column(name, self._columns) from None

    def match_series(self, names: Iterable[Any], *, unknown: int | None = None) -> Int64s:
        """Return the place of each series of this table in a list of names.

        A number of a series, as in the key ``series_id`` of batches, is one of its table alone. The
        places in one list, such as the names of the series that a model was trained on, are the
        same for every table.

        Parameters
        ----------
        names
            Different names, such as `series_names` of another table, also as JSON returns them.
        unknown
            The place of series that have none. Default: a KeyError.

        Returns
        -------
        int64 ndarray, shape (series,)

        Raises
        ------
        KeyError
            If a series is not in the list, and `unknown` is not given.
        ValueError
            If a name is in the list twice.

        Examples
        --------
        >>> import numpy as np
        >>> columns, offsets = {"load": np.arange(4.0)}, [0, 2, 4]
        >>> table = Table.from_columns(columns, offsets=offsets, series_names=["b", "a"])
        >>> table.match_series(["a", "b", "c"])
        array([1, 0])
        """
        return places_of(self.series_names, list(names), unknown)

    def check_growth(self, larger: Table, columns: Iterable[str], *, numbers: bool) -> None:
        """Raise a ValueError if categories or series have other numbers in a larger table.

        Parameters
        ----------
        columns
            Columns whose categories must keep their codes.
        numbers
            Whether series must keep their numbers.
        """
        derived.check_same_codes(self._columns, larger.columns, columns)
        if numbers:
            check_same_numbers(self.series_names, larger.series_names)

    def with_columns(self, columns: Mapping[str, Any]) -> Table:
        """Return the table with more columns, or with other values of columns it has.

        Parameters
        ----------
        columns : mapping of name to array or tensor, each of shape (rows,)
            In the order of the table's rows, without a copy; dtypes as in `from_columns`.

        Raises
        ------
        TypeError, ValueError
            A column is not an array, or has another length than the table.

        Notes
        -----
        O(columns) time; nothing is copied. With ``storage="rows"`` the table becomes one of
        columns, whose old ones are still next to each other in memory.

        Examples
        --------
        >>> import numpy as np
        >>> table = Table.from_columns({"load": np.array([1.0, 10.0])})
        >>> table.with_columns({"log_load": np.log10(table["load"])})["log_load"]
        array([0., 1.])
        """
        self._check_in_memory("with_columns()")
        return self._derive(derived.add_columns(self._columns, columns, self.num_rows), columns)

    def with_calendar(
        self,
        features: str | Iterable[str] = ("hour", "weekday", "day", "month"),
        *,
        encoding: Literal["sincos", "scaled"] = "sincos",
        dtype: Any = "float32",
        time_zone: str | None = None,
    ) -> Table:
        """Return the table with calendar features of its time stamps as columns.

        Parameters
        ----------
        features : names
            Of "minute", "hour", "weekday" (Monday first), "day" (of the month), "yearday",
            "month", and "age": log10(2 + the number of rows since the series began).
        encoding : "sincos" or "scaled"
            "sincos" makes two columns of a feature, ``hour_sin`` and ``hour_cos``, of which the
            cycle has 60, 24, 7, 31, 366 or 12 values. "scaled" makes one, ``hour``, from -0.5 for
            the first to 0.5 for the last value. ``age`` is one column with both.
        dtype : floating dtype
        time_zone : str, optional
            Zone of the local times of which the features are, or a column of the table with the
            names of zones. Timestamps are in UTC then. By default they are taken as stored.

        Raises
        ------
        TypeError, ValueError
            The table has no time stamps of dates or times; a feature or encoding is unknown; the
            table has a column of the name of a feature.

        Notes
        -----
        The values are computed once, in O(rows) time, and take `dtype` for each row and column.
        The table remembers which columns are calendar features, so that `Windows.latest` computes
        those of a forecast.

        Examples
        --------
        >>> import numpy as np
        >>> columns = {"load": np.zeros(3), "t": np.array([0, 6, 23], dtype="M8[h]")}
        >>> table = Table.from_columns(columns, timestamp_column="t")
        >>> table.with_calendar("hour", encoding="scaled")["hour"].round(2).tolist()
        [-0.5, -0.23999999463558197, 0.5]
        """
        self._check_in_memory("with_calendar()")
        made = derived.calendar_features(
            self.timestamps, features, encoding, dtype, time_zone, self._columns
        )
        return self._with_features(made)

    def _with_features(self, made: Sequence[CalendarFeature | DateFeature]) -> Table:
        columns = derived.calendar_columns(
            made, self.timestamps, self.offsets, self._columns, self.series_names
        )
        found = derived.add_columns(self._columns, columns, self.num_rows)
        # No feature is NaN, so none is looked for in batches.
        found |= {one.name: replace(found[one.name], missing=0, calendar=one) for one in made}
        return self._derive(found, columns)

    def with_dates(
        self,
        days: Any,
        *,
        date_column: str = "date",
        id_columns: str | Iterable[str] = (),
        name: str = "holiday",
        time_zone: str | None = None,
    ) -> Table:
        """Return the table with columns of a table of dates, such as holidays.

        A row has the values of its date, and 0 or False where the date is not there. The columns
        are known for every time stamp, so that `Windows.latest` computes those of a forecast, as of
        `with_calendar`.

        Parameters
        ----------
        days : object with the Arrow PyCapsule interface
            Such as a frame of polars or pandas: a row for each date, with columns of numbers or
            bools, without missing values; texts, such as names of holidays, have to be left out.
        date_column : name
            Dates, or times at midnight.
        id_columns : names, optional
            Id columns of the table that `days` has too: dates are those of series with these ids.
        name : str
            Name of a column of bools that is made if `days` has only dates.
        time_zone : str, optional
            Zone of the dates, in which the date of a row is that of its local time. By default it
            is the date of the time stamp as stored, which is in UTC where the table has a time
            zone: dates of such a table are UTC dates unless `time_zone` is given.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError
            A column is not there, of another type, or has missing values; the table has a column of
            its name, or no time stamps of dates or times; a date is there twice, or has an hour.

        Warns
        -----
        UserWarning
            If ids of `days` are those of no series, with ten of them; if no row of the table has
            one of the dates.

        Notes
        -----
        O(rows * log(dates)) time.

        Examples
        --------
        >>> import numpy as np, pyarrow
        >>> columns = {"load": np.zeros(3), "t": np.array([0, 23, 24], dtype="M8[h]")}
        >>> table = Table.from_columns(columns, timestamp_column="t")
        >>> days = pyarrow.table({"date": np.array(["1970-01-01"], dtype="M8[D]")})
        >>> table.with_dates(days)["holiday"]
        array([ True,  True, False])
        """
        self._check_in_memory("with_dates()")
        stamps = derived.dated_stamps(self.timestamps, time_zone)
        made = derived.dated_features(
            days, date_column, id_columns, name, time_zone, self.id_columns, self._columns
        )
        table = self._with_features(made)
        values = {one.name: table.column(one.name) for one in made}
        derived.warn_of_dates(made, values, stamps, self.offsets, self.series_names, self.time_zone)
        return table

    def with_steps_since(self, events: str | Iterable[str], *, dtype: Any = "float32") -> Table:
        """Return the table with the rows since the last event of each series as columns.

        Column ``steps_since_NAME`` is 0 in a row of an event, and missing (NaN) before the first
        one of a series. It does not look ahead.

        Parameters
        ----------
        events : names
            Columns of bools or numbers: a row is an event if its value is observed and not 0.
        dtype : floating dtype

        Raises
        ------
        KeyError, TypeError
            A column is not there, or has categories; `dtype` is not a floating one.

        Notes
        -----
        O(rows) time; the values take `dtype` for each row and column. Windows of a forecast need
        them as past covariates, or events that are planned in the rows of the future. The rows are
        those of this table: call `regularize` first, which does not count again.

        Examples
        --------
        >>> import numpy as np
        >>> table = Table.from_columns({"rain": np.array([0, 2, 0, 0, 1])})
        >>> table.with_steps_since("rain")["steps_since_rain"].tolist()
        [nan, 0.0, 1.0, 2.0, 0.0]
        """
        self._check_in_memory("with_steps_since()")
        kind = np.dtype(dtype)
        if kind.kind != "f":
            raise TypeError(f"`dtype` must be a floating dtype of NumPy, got {kind}")
        columns = {
            f"steps_since_{one}": derived.steps_since(one, self.column(one), self.offsets, kind)
            for one in as_names("events", events)
        }
        return self.with_columns(columns)

    def regularize(
        self,
        step: Any,
        *,
        origin: Any = None,
        off_grid: OffGrid = "error",
        duplicates: Literal["error", "first", "last", "mean"] = "error",
        time_zone: str | None = None,
        max_rows: int | None = None,
    ) -> Table:
        """Return the table with a row at each step of each series, from its first to its last row.

        Rows that are added are missing in all columns: NaN in floating ones, else null. Columns
        keep their dtypes and categories; integers stay integers. The first row of a series is never
        an added one, so static covariates are unchanged. Calendar features are computed for all
        rows. Columns of `with_steps_since` are not: add them to the result.

        Parameters
        ----------
        step : text, timedelta, or int
            "15min", "1h", "D", "W", "MS", or an integer for integer timestamps. Months, quarters
            and years ("MS", "QS", "YS") are the first days of months. "W-WED" is weeks from
            Wednesday.
        origin : time, int, or "first"
            A time on the grid, of which all others are whole steps away. By default 1970-01-01 (of
            weeks Monday 1970-01-05), and 0 for integers. A time without an offset is one of UTC,
            with `time_zone` a local one. "first": the first row of each series.
        off_grid : "error", "nearest" or "floor"
            What happens to a row between two steps: a ValueError that names series and time, or it
            moves to the nearest step (the earlier one of two), or to the one before.
        duplicates : "error", "first", "last" or "mean"
            What happens to several rows of one step, in order of time and then of the data: a
            ValueError, or the first or the last row is kept as a whole, or the mean of the observed
            values of floating columns. With "mean", other columns have to be equal in these rows.
        time_zone : str, optional
            Zone in whose local time days, weeks and months begin, for timestamps in UTC; `origin`
            is a local time. A day is 23 to 25 hours then. Where clocks skip midnight it begins
            after the change, where they show it twice, at the first. By default UTC; a table of
            another time zone needs it for such steps. "UTC" is days of UTC.
        max_rows : int, optional
            ValueError if there would be more rows, as after one wrong time; it names the series and
            the times of its longest gap. By default ten times the rows of the table, and at least
            100,000.

        Returns
        -------
        Table
            Itself if nothing changes. Its `explain` and ``report.grids`` count the rows that were
            added, moved, and dropped or merged. Columns with ``storage="columns"``, in memory.

        Raises
        ------
        TypeError
            The table has no timestamps, or is streamed: `prepare` has `step` for files.
        ValueError
            A row is off the grid, a step has several rows, there are too many rows, or an option is
            wrong.

        Notes
        -----
        O(rows of the result) time. Memory is that of the result and a constant, but one byte for
        each row of a gap of columns without NaN.

        Examples
        --------
        >>> import numpy as np
        >>> columns = {"load": np.array([0.5, 1.5]), "hour": np.array([0, 3])}
        >>> table = Table.from_columns(columns, timestamp_column="hour").regularize(1)
        >>> table["load"], table.timestamps
        (array([0.5, nan, nan, 1.5]), array([0, 1, 2, 3]))
        """
        if self.timestamps is None:
            raise TypeError("the table has no timestamps; expected timestamp_column=")
        ids = f"id_columns={list(self.id_columns)}, " if self.id_columns else ""
        names = f"{ids}timestamp_column={self.timestamp_column!r}"
        self._check_in_memory(
            "regularize()",
            "files that `windeck prepare SRC DEST --step STEP` writes, as does "
            f"windeck.prepare(src, dest, {names}, step={step!r})",
        )
        options = GridArguments(step, origin, off_grid, duplicates, time_zone, max_rows)
        found = regular.on_grid(self._loaded, self._layout, options)
        if found is None:
            return self
        made = Table(*found)
        return made._named(self.id_columns, self.timestamp_column, self._local_zone)

    def with_missing_counts(self) -> Table:
        """Return the table with the missing values of every column counted.

        Columns of arrays, and of Arrow data that is not copied, are not read when a table is made.
        Once counted, batches of columns without missing values are copied without a search for NaN;
        their keys are the same. O(rows) time for columns not counted yet; nothing is copied.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.array([0.5, np.nan, 1.5])})
        >>> table.column("load").missing is None, table.with_missing_counts().column("load").missing
        (True, 1)
        """
        return self._derive({n: derived.count_missing(c) for n, c in self._columns.items()})

    def _derive(self, columns: Mapping[str, ColumnData], added: Iterable[str] = ()) -> Table:
        """Return a table of the same series with other columns, of which `added` are new."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("fingerprint", None)
        other._columns, other._added = dict(columns), frozenset(added)
        if other._added:
            other.matrix = None
        if self.origin is not None:
            other.origin = replace(
                self.origin,
                columns=self.origin.columns + len(columns) - len(self._columns),
                nbytes=self.origin.nbytes + sum(columns[name].nbytes for name in other._added),
            )
        # A mapped file is opened again by a pickle, with the columns that are in it.
        other._base = None if self._reopening is None else self
        return other

    def to_torch(self) -> dict[str, Any]:
        """Return every column as a tensor on the same memory, without a copy. Imports torch.

        Columns of bfloat16 become bfloat16 tensors. Do not write to the tensors: it changes the
        table, and crashes the process if the memory is read-only.
        """
        self._check_in_memory("to_torch()")
        with needs_torch("Table.to_torch"):
            import torch

        with warnings.catch_warnings():
            # torch has no read-only tensors, and warns about every read-only array.
            warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
            return {name: as_tensor(column, torch) for name, column in self._columns.items()}

    def to_arrow(self) -> Any:
        """Return the rows as a `pyarrow.Table`: ids, time, then the values.

        Numbers that are contiguous in memory are not copied. Texts of ids take their bytes in each
        row. Ids and time have the names they had in the data, or ``series_id`` (of several
        ``series_id_0``...) and ``timestamp``. Times with a zone keep it, codes become dictionaries
        of their names, missing values, NaN among them, are null, and bfloat16 becomes float32.
        Anything that takes Arrow data takes the table itself as well, by its method
        ``__arrow_c_stream__``, such as ``polars.DataFrame(table)`` and DuckDB.

        Raises
        ------
        TypeError
            The values are not in memory.
        ValueError
            A value column has the name of an id or of time.

        Examples
        --------
        >>> import numpy as np
        >>> columns = {"site": np.array(["a", "b"]), "load": np.array([0.5, 1.5])}
        >>> Table.from_columns(columns, id_columns="site").to_arrow().to_pylist()
        [{'site': 'a', 'load': 0.5}, {'site': 'b', 'load': 1.5}]
        """
        self._check_in_memory("to_arrow()")
        return self._rows_as_arrow(self._columns, self.timestamps)

    def _rows_as_arrow(self, columns: Mapping[str, ColumnData], stamps: Array | None) -> Any:
        """Return the first rows of the table, whose columns and timestamps are given."""
        names = frames.index_names(self._layout, self.id_columns, self.timestamp_column)
        return frames.as_arrow(self._layout, names, stamps, self.time_zone, columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows by the Arrow PyCapsule interface; see `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the rows as a frame of pandas: ids, time, then the values. Imports pandas.

        As `to_arrow`; codes become categoricals, missing floats are NaN, and integers and bools
        with missing values have the nullable dtypes of pandas, such as ``Int64``. `from_pandas`
        with the same `id_columns` and `timestamp_column` returns the table.

        Examples
        --------
        >>> import numpy as np
        >>> columns = {"load": np.array([0.5, 1.5]), "hour": np.array([3, 4])}
        >>> Table.from_columns(columns, timestamp_column="hour").to_pandas().to_dict("list")
        {'hour': [3, 4], 'load': [0.5, 1.5]}
        """
        return frames.to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Return the rows as a frame of polars: ids, time, then the values. Imports polars.

        As `to_arrow`; codes become categoricals.

        Examples
        --------
        >>> import numpy as np
        >>> columns = {"load": np.array([0.5, 1.5]), "hour": np.array([3, 4])}
        >>> Table.from_columns(columns, timestamp_column="hour").to_polars().rows()
        [(3, 0.5), (4, 1.5)]
        """
        import polars

        return polars.from_arrow(self.to_arrow())

    def head(self, rows: int = 5) -> Any:
        """Return the first rows of the table as a `pyarrow.Table`; see `to_arrow`.

        Of a table in files it reads these rows.

        Examples
        --------
        >>> import numpy as np
        >>> Table.from_columns({"load": np.arange(4.0)}).head(2).to_pydict()
        {'load': [0.0, 1.0]}
        """
        many = min(check_integer("rows", rows), self.num_rows)
        columns = {name: first_rows(one, many) for name, one in self._columns.items()}
        stamps = None if self.timestamps is None else self.timestamps[:many]
        return self._rows_as_arrow(columns, stamps)

    def plot(
        self,
        columns: str | Iterable[str] | None = None,
        *,
        series: int | Sequence[int] = 0,
        ax: Any = None,
    ) -> Any:
        """Draw columns of some series over time, with gaps where values are missing.

        Needs matplotlib: ``pip install 'windeck[plot]'``. Of a series with more than 4,000 rows the
        least and the greatest value of each of 2,000 stretches are drawn. O(rows drawn) time.

        Parameters
        ----------
        columns : names, optional
            By default the first five that are not categories.
        series : int or sequence of int
            Numbers of series.
        ax : matplotlib Axes, optional
            Axes to draw on. By default those of a new figure of pyplot, which is not shown.

        Returns
        -------
        Axes

        Raises
        ------
        KeyError, TypeError, ValueError
            There is no such column or series, or the columns are not in memory.
        ModuleNotFoundError
            matplotlib is not installed.
        """
        self._check_in_memory("plot()")
        from windeck.table.plots import plot_columns

        names = None if columns is None else as_names("columns", columns)
        return plot_columns(self, names, series, ax)

    def explain(self) -> str:
        """Return a few lines of text: size, columns, missing values, series and their order."""
        return description.explain(self._described)

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """Names, dtypes, sizes, and digests of offsets and sampled rows, as a flat dict."""
        return description.fingerprint(self._columns, self._layout, self.timestamps)


def _read_again(arguments: dict[str, Any], version: Version) -> Table:
    """Return the table of a mapped file, which must not have changed."""
    table = Table.read(**arguments)
    (path,) = arguments["path"]
    construction.check_unchanged(path, version)
    return table


def _rebuild(
    loaded: LoadedColumns,
    layout: SeriesLayout,
    names: tuple[Sequence[str], str | None, str | None] = ((), None, None),
) -> Table:
    """Return the table of a pickle; those of earlier versions have no names."""
    return Table(construction.with_views(loaded), layout)._named(*names)


def _rebuild_derived(base: Table, columns: Mapping[str, ColumnData | int | None]) -> Table:
    """Return a derived table: a column is new, or one of the base with a count of missing."""
    found, added = {}, []
    for name, column in columns.items():
        if isinstance(column, ColumnData):
            found[name] = column
            added.append(name)
        else:
            found[name] = replace(base.column(name), missing=column)
    return base._derive(found, added)


class StreamedTable(Table):
    """A table whose values stay in its files; made by `Table.read` with ``in_memory=False``.

    Attributes
    ----------
    reader : RowReader
    block_offsets : int64 ndarray, shape (blocks + 1,)
        Block b has the rows [block_offsets[b], block_offsets[b + 1]).
    groups : GroupCache
        Groups of rows in memory, of all windows of the table.
    group_bytes, memory_budget : int, float or None
    """

    def __init__(
        self, contents: StreamedContents, group_bytes: int, memory_budget: float | None
    ) -> None:
        reader, layout, time = contents.reader, contents.layout, contents.time
        columns = list(contents.columns.values())
        super().__init__(LoadedColumns(columns, [], None, None, contents.origin, False), layout)
        self._contents = contents
        self.reader, self.group_bytes, self.memory_budget = reader, group_bytes, memory_budget
        self._first_rows: dict[str, ColumnData] = {}
        self.groups = GroupCache(None if memory_budget is None else int(memory_budget))
        self.time_zone = contents.time_zone
        self.timestamps: Any = None
        if time is not None:
            self.timestamps = StreamedTimes(reader, time, reader.forms[time].dtype)
        self.block_offsets = read_only(block_offsets(reader, self.column_names, group_bytes))
        self._named(contents.ids, time)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._contents, self.group_bytes, self.memory_budget)

    def _check_in_memory(self, what: str, cure: str = "windows of the table") -> NoReturn:
        raise TypeError(
            f"{what} is not supported for a streamed table, whose values are not in memory; "
            f"expected in_memory=True, or {cure}"
        )

    def with_missing_counts(self) -> Table:
        """Return the table with the missing values of every column counted.

        Reads the columns that are not counted yet once, in bounded memory.
        """
        counted = streamed.count_missing(self._contents)
        return StreamedTable(counted, self.group_bytes, self.memory_budget)

    def static_values(self, name: str) -> ColumnData:
        """Return the first row of each series of a column; kept. O(series) memory."""
        if name not in self._first_rows:
            series = np.flatnonzero(np.diff(self.offsets))
            self._first_rows[name] = self.reader.column(name, self.offsets[series])
        return self._first_rows[name]

    def check_growth(self, larger: Table, columns: Iterable[str], *, numbers: bool) -> None:
        """Raise a ValueError also if a larger streamed table lacks files, or has others."""
        if isinstance(larger, StreamedTable):
            streamed.check_files(self.reader, larger.reader)
        super().check_growth(larger, columns, numbers=numbers)

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_offsets) - 1

    def explain(self) -> str:
        """Return a few lines of text: size, columns, series, their order, and blocks."""
        lines = streamed.describe_blocks(
            self._contents, self.block_offsets, self.group_bytes, self.memory_budget
        )
        return "\n".join([super().explain(), *lines])

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """Names, dtypes, sizes, and digests of offsets, timestamps and metadata of the files."""
        return streamed.fingerprint(self._contents, self.group_bytes)
