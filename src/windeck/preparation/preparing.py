"""`prepare`: unsorted files of any size become sorted Parquet files, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from windeck._util.options import explain_options
from windeck._util.progress import Progress, check_progress
from windeck._util.text import plural
from windeck._util.validation import check_bytes, check_integer
from windeck._util.warning import warn
from windeck.io.csv_options import Header
from windeck.io.data_files import Paths, resolve
from windeck.io.filesystem import PathLike, absolute, is_remote
from windeck.io.options import ReadOptions, as_names
from windeck.io.remote import is_url
from windeck.preparation.destination import Destination, destination_of
from windeck.preparation.engines import ENGINES
from windeck.preparation.manifest import Prepared
from windeck.preparation.passes import WorkLimits, run_passes
from windeck.preparation.plan import MOST_FILE_BYTES, PrepareOptions, make_plan
from windeck.preparation.regular_rows import GridOptions
from windeck.preparation.sorted_files import SourceChangedError
from windeck.table.grid import OFF_GRID
from windeck.windows.scaler_fitting import KINDS

__all__ = ["prepare"]

#: Errors that the same call would raise again: nothing of its work can be used.
_FINAL = (ValueError, TypeError, KeyError, OverflowError, SourceChangedError)

COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
DUPLICATES = ("error", "first", "last", "keep", "mean")


@explain_options
def prepare(
    src: Paths,
    dest: PathLike,
    *,
    columns: str | Iterable[str] | None = None,
    id_columns: str | Iterable[str] | None = None,
    timestamp_column: str | None = None,
    dtype: Any = None,
    duplicates: Literal["error", "first", "last", "keep", "mean"] = "error",
    step: Any = None,
    origin: Any = None,
    off_grid: Literal["error", "nearest", "floor"] = "error",
    time_zone: str | None = None,
    max_rows: int | None = None,
    on_error: Literal["stop", "skip"] = "stop",
    scaler: str | Iterable[str] = (),
    train: tuple[Any, Any] | None = None,
    sample: int | None = 100_000,
    seed: int = 0,
    per_series: bool = False,
    file_bytes: int | str | None = None,
    row_group_bytes: int | str = "16 MiB",
    compression: Literal["zstd", "snappy", "lz4", "none"] = "zstd",
    memory_budget: float | str | None = None,
    threads: int | None = None,
    engine: Literal["local", "ray"] = "local",
    overwrite: bool = False,
    progress: Progress = None,
    scratch: PathLike | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    dest_filesystem: Any = None,
    dest_storage_options: Mapping[str, Any] | None = None,
    header: Header = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    missing: str | Iterable[str] | None = None,
) -> Prepared:
    """Write files sorted by series and time, as Parquet, and fit scalers, in bounded memory.

    A call that was interrupted, even by ``kill -9``, goes on from the files that are finished when
    it is repeated. The files do not depend on threads, memory, engine and interruptions, byte for
    byte. `Table.read` reads the directory.

    Parameters
    ----------
    src : path, or list of paths
        Parquet, Arrow IPC and CSV files, directories, globs or URLs of these, in any order of rows,
        larger than memory. Remote Arrow and CSV files are read as a whole. All files must have the
        same types; see `Table.read`.
    dest : path
        A directory: new, empty, or with the result of the same call. Also a URL of an object store,
        such as ``s3://bucket/folder``, with `scratch`.
    columns : names, optional
        Columns to write as values, by default all except ids and time. Strings stay strings.
    id_columns : names, optional
        Columns of strings or integers. Rows are sorted by them first, strings by their UTF-8.
    timestamp_column : name, optional
        Timestamps, dates or integers. Rows of a series are sorted by it. Without it rows of a
        series keep the order of the files. Seconds become milliseconds: Parquet has no seconds.
    dtype : floating dtype, optional
        Dtype to which floating columns and decimals are cast. Decimals are an error without it.
    duplicates : "error", "first", "last", "keep" or "mean"
        What happens to rows with the ids and the time of another row: a ValueError that names them,
        or the first or the last one in the order of the files is kept, or all in this order. With
        `step`, what happens to several rows of one step, as in `Table.regularize`: "mean", and not
        "keep".
    step, origin, off_grid, time_zone, max_rows : optional
        Write a row for each step of each series, as `Table.regularize` does; rows that are added
        have null in all columns but ids and time. `origin` is a time or an integer. A file has more
        rows then than `file_bytes`, and is written one row group at a time. `max_rows` is for all
        files: an error for one file that alone has more, or for all at the end.
    on_error : "stop" or "skip"
        With "skip" files that are damaged are left out, counted in a warning, and listed in the
        manifest. Files with other columns or types than the first are an error in any case.
    scaler : names, optional
        Kinds of `Scaler` to fit to all columns of numbers: "standard", "minmax", "robust" or
        "mean_abs".
    train : (start, stop), optional
        The range of times, without stop, whose rows the scalers are fitted to; either may be None.
        Numbers, or dates and times such as "2024-01-31T12:00", in UTC or with their offset from
        it. By default all rows.
    sample, seed
        Rows that a scaler is fitted to, drawn without replacement; None for all. See `Scaler.fit`.
    per_series : bool
        Give each series a scaling of its own, from `sample` of its training rows; see `Scaler.fit`.
        They are stored beside the files, as Arrow.
    file_bytes : int or text, optional
        Uncompressed bytes of a file, also the unit of work that is sorted in memory. By default 128
        MiB, and more for data of more than 16 GiB: the square root of its MiB, up to 1 GiB.
    row_group_bytes : int or text
        Uncompressed bytes of a row group, which is read as a whole.
    compression : "zstd", "snappy", "lz4" or "none"
    memory_budget : bytes, optional
        Memory for all workers of this machine together, by default half of its memory. It decides
        how many work at a time.
    threads : int, optional
        Workers, by default one for each core; with ``engine="ray"`` tasks that run at a time.
    engine : "local" or "ray"
        "ray" runs the work on a Ray cluster whose nodes see `src` and `dest` under the same paths.
    overwrite : bool
        Replace the result of another call in `dest`.
    progress : bool or function
        True shows bars, if rich is installed; a function is called with bytes done and in total,
        first of reading, then of sorting. None: bars at a terminal, after two seconds.
    scratch : path, optional
        A local directory for sorted rows, by default `dest`. A call that was interrupted goes on
        with the same one.
    filesystem : file system of pyarrow.fs or fsspec, optional
        The file system of `src`; by default that of its URLs, or the local one.
    storage_options : mapping, optional
        Options of the file system of URLs, such as credentials. With ``engine="ray"`` workers take
        credentials from their own environment.
    dest_filesystem, dest_storage_options : optional
        The same for `dest`; by default `storage_options` are for both.
    header, delimiter, decimal, encoding, timestamp_format, missing
        Options of CSV; see `Table.read`. Without `missing` a column of numbers with a text among
        them is an error; with it, such as ``missing=[]``, other texts are meant, and written.

    Returns
    -------
    Prepared
        The manifest: files with checksums, sources, dtypes and scalers.

    Raises
    ------
    FileExistsError
        `dest` has the result of other sources or options, or files that are not of `prepare`.
    FileNotFoundError, KeyError, TypeError, ValueError, OverflowError
        As for `Table.read`; or rows with the same ids and time.
    MemoryError
        One worker takes more than `memory_budget`; the message says how much.
    RuntimeError
        Another process prepares `dest`, or a source file changed meanwhile.

    After an error of the data (ValueError, TypeError, KeyError, OverflowError) nothing is left in
    `dest`; after others, such as a full disk, what is needed to go on.

    Notes
    -----
    O(rows * log(rows)) time. Sources are read once. Sorted rows are written to ``dest/_prepare``
    (or into `scratch`) first, uncompressed, and removed at the end: the disk holds them beside the
    result. A file of a URL is written in `scratch` and uploaded as a whole, the manifest as the
    last one.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import windeck as wd
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("site,hour,load\\nb,0,2.5\\na,1,0.5\\n")
    >>> _ = (folder / "b.csv").write_text("site,hour,load\\na,0,1.5\\nb,1,3.5\\n")
    >>> result = wd.prepare(
    ...     folder / "*.csv",
    ...     folder / "sorted",
    ...     id_columns="site",
    ...     timestamp_column="hour",
    ...     scaler="minmax",
    ... )
    >>> table = wd.Table.read(folder / "sorted", id_columns="site", timestamp_column="hour")
    >>> table["load"].tolist(), result.scalers["minmax"].transform(table["load"], columns="load")
    ([1.5, 0.5, 2.5, 3.5], array([0.33333333, 0.        , 0.66666667, 1.        ]))
    """
    read = ReadOptions.from_arguments(
        columns,
        id_columns,
        timestamp_column,
        dtype,
        csv=(header, delimiter, decimal, encoding, timestamp_format, missing),
    )
    options = PrepareOptions(
        read,
        None if file_bytes is None else _size("file_bytes", file_bytes, MOST_FILE_BYTES),
        _size("row_group_bytes", row_group_bytes, MOST_FILE_BYTES),
        _one_of("compression", compression, COMPRESSIONS),
        _one_of("duplicates", duplicates, DUPLICATES),
        _one_of("on_error", on_error, ("stop", "skip")),
        tuple(_one_of("scaler", kind, tuple(KINDS)) for kind in as_names("scaler", scaler)),
        None if sample is None else check_integer("sample", sample, least=2),
        check_integer("seed", seed),
        _train(train, timestamp_column),
        bool(per_series),
        _grid(step, origin, off_grid, time_zone, max_rows, timestamp_column, duplicates),
    )
    _one_of("engine", engine, tuple(ENGINES))
    check_progress(progress)
    limits = WorkLimits(
        engine,
        None if threads is None else check_integer("threads", threads, least=1),
        _budget(memory_budget),
    )
    own = _dest_options(dest, dest_filesystem, dest_storage_options, storage_options)
    located = absolute(dest, filesystem=dest_filesystem, storage_options=own)
    place = destination_of(located, scratch, dest)
    if engine != "local":
        place.check_sendable()
    paths = _sources(src, place, filesystem, storage_options)
    with place.locked():
        place.check_names()
        token = place.claim(overwrite=overwrite)
        # Opening remote files waits for answers: more threads than cores.
        remote = any(map(is_remote, paths))
        plan = make_plan(paths, options, None if remote else limits.threads_here)
        done = place.finished(plan)
        if done is None:
            place.start(plan, overwrite=overwrite)
            try:
                done = run_passes(
                    replace(plan, folder=place.work), place.path, token, limits, progress
                )
            except _FINAL:
                place.clear()
                raise
        place.release()
    if done.skipped:
        first = done.skipped[0]
        warn(
            f"{plural(len(done.skipped), 'file')} of {len(done.sources)} were left out, the first "
            f"is {first.path!r}: {first.error}",
        )
    return done if place.is_remote else replace(done, path=os.fspath(dest))


def _dest_options(dest: PathLike, filesystem: Any, own: Any, shared: Any) -> Any:
    """Return the options of the file system of `dest`."""
    if own is not None or filesystem is not None or not is_url(os.fspath(dest)):
        return own
    return shared


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")
    return value


def _size(name: str, value: int | str, most: int) -> int:
    return check_bytes(name, value, least=1 << 10, most=most)


def _budget(memory: float | str | None) -> float:
    if memory is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    return check_bytes("memory_budget", memory, least=0)


def _grid(
    step: Any,
    origin: Any,
    off_grid: str,
    zone: str | None,
    most: int | None,
    time: str | None,
    duplicates: str,
) -> GridOptions | None:
    """Return the options of a grid of time, None without `step`."""
    if step is None:
        given = {"origin": origin, "time_zone": zone, "max_rows": most}
        given["off_grid"] = None if off_grid == "error" else off_grid
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"`{name}` is {value!r}, of a grid of time; expected `step` too")
        if duplicates == "mean":
            raise ValueError("duplicates='mean' is for rows of one step; expected `step` too")
        return None
    if time is None:
        raise ValueError(f"`step` is {step!r}, of time stamps; expected `timestamp_column`")
    if duplicates == "keep":
        raise ValueError("duplicates='keep' keeps several rows of a step; expected another")
    if isinstance(origin, str) and origin == "first":
        raise ValueError(
            "`origin` must be a time or an integer for files, whose series begin in any of them, "
            "got 'first'; expected one origin for all series, with off_grid='nearest' or 'floor' "
            "where they have others, or Table.regularize of a table in memory"
        )
    rows = None if most is None else check_integer("max_rows", most)
    return GridOptions(step, origin, _one_of("off_grid", off_grid, OFF_GRID), zone, rows)


def _train(train: Any, time: str | None) -> tuple[Any, Any]:
    if train is None:
        return None, None
    try:
        start, stop = train
    except (TypeError, ValueError):
        raise TypeError(f"`train` must be a pair (start, stop), got {train!r}") from None
    if time is None:
        raise ValueError("`train` must be None without `timestamp_column`")
    return start, stop


def _sources(src: Paths, place: Destination, filesystem: Any, options: Any) -> list[str]:
    """Return the source files; what an earlier call wrote into a folder below them is not one."""
    if place.is_remote and filesystem is None:
        paths = [src] if isinstance(src, (str, os.PathLike)) else list(src)
        if not any(is_url(os.fspath(path)) for path in paths):
            options = None  # They are those of `dest`.
        src = paths
    files = resolve(src, filesystem=filesystem, storage_options=options)
    found = [path for path in files if not place.holds(absolute(path))]
    if not found:
        raise ValueError(
            f"all files of `src` are in `dest`, which is {place.path!r}; expected another"
        )
    return found
