"""`prepare`: unsorted files of any size become sorted Parquet files, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from windeck._util.progress import Progress, check_progress
from windeck._util.text import parse_bytes, plural
from windeck._util.validation import check_integer
from windeck.io import filesystem
from windeck.io.csv_options import Header
from windeck.io.filesystem import PathLike, Paths, resolve
from windeck.io.options import ReadOptions, as_names, budget_bytes
from windeck.io.writing import remove, remove_directory
from windeck.preparation.engines import ENGINES
from windeck.preparation.manifest import MANIFEST, Prepared
from windeck.preparation.passes import WorkLimits, run_passes
from windeck.preparation.plan import MOST_FILE_BYTES, PreparationPlan, PrepareOptions, make_plan
from windeck.windows.scaler_fitting import KINDS

__all__ = ["prepare"]

_WORK, _LOCK, _PLAN = "_prepare", ".prepare.lock", "plan"
_OURS = re.compile(r"part-\d{5,}\.parquet")
#: Temporary files of `windeck.io.filesystem`, which a process that was killed has left.
_LEFT_OVER = re.compile(
    r"\.(part-\d{5,}\.parquet|manifest\.json|\.prepare\.lock)\.\d+-[0-9a-f]+\.tmp"
)

COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
DUPLICATES = ("error", "first", "last", "keep")


def prepare(
    src: Paths,
    dest: PathLike,
    *,
    columns: str | Iterable[str] | None = None,
    id_columns: str | Iterable[str] | None = None,
    timestamp_column: str | None = None,
    dtype: Any = None,
    duplicates: Literal["error", "first", "last", "keep"] = "error",
    on_error: Literal["stop", "skip"] = "stop",
    scaler: str | Iterable[str] = (),
    train: tuple[Any, Any] | None = None,
    sample: int | None = 100_000,
    seed: int = 0,
    file_bytes: int | str | None = None,
    row_group_bytes: int | str = "16 MiB",
    compression: Literal["zstd", "snappy", "lz4", "none"] = "zstd",
    memory_budget: float | str | None = None,
    threads: int | None = None,
    engine: Literal["local", "ray"] = "local",
    overwrite: bool = False,
    progress: Progress = False,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    header: Header = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
) -> Prepared:
    """Write files sorted by series and time, as Parquet, and fit scalers, in bounded memory.

    A call that was interrupted, even by ``kill -9``, goes on from the parts that are finished when
    it is repeated. The files do not depend on threads, memory, engine and interruptions, byte for
    byte. `Table.read` reads the directory.

    Parameters
    ----------
    src : path, or list of paths
        Parquet, Arrow IPC and CSV files, directories, globs or URLs of these, in any order of rows,
        larger than memory. Remote Arrow and CSV files are read as a whole. All files must have the
        same types; see `Table.read`.
    dest : path
        A local directory: new, empty, or with the result of the same call.
    columns : names, optional
        Columns to write as values, by default all except ids and time. Strings stay strings.
    id_columns : names, optional
        Columns of strings or integers. Rows are sorted by them first, strings by their UTF-8.
    timestamp_column : name, optional
        Timestamps, dates or integers. Rows of a series are sorted by it. Without it rows of a
        series keep the order of the files. Seconds become milliseconds: Parquet has no seconds.
    dtype : floating dtype, optional
        Dtype to which floating columns are cast.
    duplicates : "error", "first", "last" or "keep"
        What happens to rows with the ids and the time of another row: a ValueError that names them,
        or the first or the last one in the order of the files is kept, or all in this order.
    on_error : "stop" or "skip"
        With "skip" files that are damaged are left out, counted in a warning, and listed in the
        manifest. Files with other columns or types than the first are an error in any case.
    scaler : names, optional
        Kinds of `Scaler` to fit to all columns of numbers: "standard", "minmax", "robust" or
        "mean_abs".
    train : (start, stop), optional
        The range of times, without stop, whose rows the scalers are fitted to; either may be None.
        Numbers, or dates as ``numpy.datetime64`` takes them, in UTC. By default all rows.
    sample, seed
        Rows that a scaler is fitted to, drawn without replacement; None for all. See `Scaler.fit`.
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
        first of reading, then of sorting.
    filesystem : file system of pyarrow.fs or fsspec, optional
        The file system of `src`; by default that of its URLs, or the local one.
    storage_options : mapping, optional
        Options of the file system of URLs, such as credentials. With ``engine="ray"`` workers take
        credentials from their own environment.
    header, delimiter, decimal, encoding, timestamp_format
        Options of CSV; see `Table.read`.

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

    Notes
    -----
    O(rows * log(rows)) time. Sources are read once. Sorted rows are written to ``dest/_prepare``
    first, uncompressed, and removed at the end: the disk holds them beside the result.

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
        csv=(header, delimiter, decimal, encoding, timestamp_format),
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
    )
    _one_of("engine", engine, tuple(ENGINES))
    check_progress(progress)
    limits = WorkLimits(
        engine,
        None if threads is None else check_integer("threads", threads, least=1),
        _budget(memory_budget),
    )
    folder = _destination(dest)
    paths = _sources(resolve(src, filesystem=filesystem, storage_options=storage_options), folder)
    with _locked(folder):
        plan = make_plan(paths, options, limits.threads_here)
        done = _start(folder, plan, overwrite=overwrite)
        if done is None:
            plan = replace(plan, folder=os.path.join(folder, _WORK))
            done = run_passes(plan, folder, limits, progress)
        remove_directory(os.path.join(folder, _WORK))
    if done.skipped:
        first = done.skipped[0]
        warnings.warn(
            f"{plural(len(done.skipped), 'file')} of {len(done.sources)} were left out, the first "
            f"is {first.path!r}: {first.error}",
            UserWarning,
            stacklevel=2,
        )
    return replace(done, path=os.fspath(dest))


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")
    return value


def _size(name: str, value: int | str, most: int) -> int:
    size = parse_bytes(name, value) if isinstance(value, str) else value
    return check_integer(name, size, least=1 << 10, most=most)


def _budget(memory: float | str | None) -> float:
    if memory is None:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    size = parse_bytes("memory_budget", memory) if isinstance(memory, str) else memory
    found = budget_bytes(size)
    assert found is not None
    return found


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


def _destination(dest: PathLike) -> str:
    folder = filesystem.absolute(dest)
    if filesystem.is_remote(folder):
        raise ValueError(f"`dest` must be a local directory, got the URL {folder!r}")
    if filesystem.exists(folder) and not filesystem.is_directory(folder):
        raise FileExistsError(f"{os.fspath(dest)!r} is a file; expected a directory")
    return folder


def _sources(paths: Sequence[str], folder: str) -> list[str]:
    """Return the source files; what an earlier call wrote into a folder below them is not one."""
    inside = os.path.join(folder, "")
    found = [path for path in paths if not filesystem.absolute(path).startswith(inside)]
    if not found:
        raise ValueError(f"all files of `src` are in `dest`, which is {folder!r}; expected another")
    return found


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a destination; make the directory."""
    from filelock import FileLock, Timeout

    filesystem.check_writable(os.path.join(folder, _LOCK))
    try:
        with FileLock(os.path.join(folder, _LOCK), timeout=0):
            yield
    except Timeout as error:
        raise RuntimeError(f"another process prepares {folder!r}; expected it to end") from error


def _start(folder: str, plan: PreparationPlan, *, overwrite: bool) -> Prepared | None:
    """Make the destination ready; return the manifest if it has all of the result already."""
    names = [name for name, _ in filesystem.list_directory(folder)]
    left = [name for name in names if _LEFT_OVER.fullmatch(name)]
    known = {MANIFEST, _WORK, _LOCK, *left}
    others = [name for name in names if name not in known and not _OURS.fullmatch(name)]
    if others:
        raise FileExistsError(
            f"directory {folder!r} has {sorted(others)[0]!r}, which `prepare` did not write; "
            "expected an empty directory"
        )
    work = os.path.join(folder, _WORK)
    marked, held = os.path.join(work, _PLAN), ""
    if MANIFEST in names:
        held = "the result"
        with contextlib.suppress(ValueError, FileNotFoundError):
            found = Prepared.read(folder)
            if found.fingerprint == plan.fingerprint:
                return found
    elif filesystem.exists(marked):
        if filesystem.read_bytes(marked).decode("utf-8", "replace") != plan.fingerprint:
            # Without a finished task there is nothing to lose.
            if filesystem.list_matching(work, "task-*.json"):
                held = "unfinished work"
            else:
                remove(marked)
    elif any(map(_OURS.fullmatch, names)):
        held = "files"
    if held:
        if not overwrite:
            raise FileExistsError(
                f"directory {folder!r} has {held} of other sources or options; expected an empty "
                "directory, or overwrite=True"
            )
        # In this order: what is left after a kill is never taken for the result of this call.
        remove(os.path.join(folder, MANIFEST))
        remove(marked)
        remove_directory(work)
        left += filter(_OURS.fullmatch, names)
    for name in left:
        remove(os.path.join(folder, name))
    if not filesystem.exists(marked):
        remove_directory(work)
        filesystem.write_bytes(marked, plan.fingerprint.encode())
    return None
