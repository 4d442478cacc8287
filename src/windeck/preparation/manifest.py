"""The manifest of prepared data: what was written of which sources, and fitted scalers."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from windeck._util.options import explain_options
from windeck._util.parallel import run_in_threads
from windeck._util.text import format_bytes, plural
from windeck._util.validation import check_format
from windeck.io import filesystem
from windeck.io.filesystem import PathLike, absolute
from windeck.io.writing import sha256
from windeck.preparation.stored_scalers import scaler_from_arrow, scaler_to_arrow
from windeck.table.timestamps import GridReport
from windeck.windows.scaler import Scaler

__all__ = ["MANIFEST", "SCALER_FILE", "Prepared", "PreparedFile", "PreparedSource"]

MANIFEST = "manifest.json"
#: Names of files with the scalings of all series. Names of directories leave out underscores.
SCALER_FILE = r"_scaler-[a-z_]+\.arrow"
#: Format of the manifest, and of the files that it names.
_FORMAT = 1


@dataclass(frozen=True)
class PreparedFile:
    """A Parquet file of prepared data.

    Attributes
    ----------
    name
        Its name in the directory.
    rows, bytes, row_groups
        Its size.
    sha256
        The checksum of its bytes, as hexadecimal digits.
    first, last
        Ids and time of its first and last row; times are integers in the unit of their column.
    """

    name: str
    rows: int
    bytes: int
    row_groups: int
    sha256: str
    first: list[Any]
    last: list[Any]


@dataclass(frozen=True)
class PreparedSource:
    """A source file: its path, its bytes, and the rows that were read, or why none were.

    Attributes
    ----------
    path
        As it was given, without credentials.
    bytes, rows
        Its size. Both are 0 for a file that was left out.
    error
        The error for which ``on_error="skip"`` left the file out; None for the others.
    """

    path: str
    bytes: int
    rows: int
    error: str | None = None


@explain_options
@dataclass(frozen=True)
class Prepared:
    """Prepared data in a directory, as its manifest describes them; returned by `prepare`.

    Attributes
    ----------
    path
        The directory, or its URL.
    rows, series
        Number of rows and of series; 1 series without id columns.
    columns
        The Arrow type of each column as text, by name, in the order of the files.
    id_columns, timestamp_column
        The columns that rows are sorted by.
    duplicates_dropped
        Rows left out because an earlier or later one has their ids and time, or on a grid their
        step; with ``duplicates="mean"`` they are part of a mean.
    files, sources
        What was written and what was read.
    scalers
        Fitted scalers by kind.
    options
        The options that decided what was written.
    fingerprint
        The hash of options and sources; the same command has the same fingerprint.
    grid
        The numbers of rows that were added, moved and merged on a grid, as `added`, `moved` and
        `merged`, and series and time of the first ones, `first_moved` and `first_merged`. None
        without `step`, and for data prepared by a version that did not count them.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import windeck as wd
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("site,hour,load\\nb,0,2.5\\na,1,0.5\\na,0,1.5\\n")
    >>> _ = wd.prepare(folder / "a.csv", folder / "out", id_columns="site", timestamp_column="hour")
    >>> prepared = wd.Prepared.read(folder / "out")
    >>> prepared.rows, prepared.series, [file.name for file in prepared.files]
    (3, 2, ['part-00000.parquet'])
    >>> prepared.verify()
    """

    path: str
    rows: int
    series: int
    columns: Mapping[str, str]
    id_columns: tuple[str, ...]
    timestamp_column: str | None
    duplicates_dropped: int
    files: tuple[PreparedFile, ...]
    sources: tuple[PreparedSource, ...]
    scalers: Mapping[str, Scaler]
    options: Mapping[str, Any]
    fingerprint: str
    grid: GridReport | None = None

    @classmethod
    def read(
        cls,
        path: PathLike,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Prepared:
        """Read the manifest of a directory.

        O(files + sources) time; of the files only their sizes are checked, see `verify`.

        Parameters
        ----------
        path
            The directory, or its URL.
        filesystem, storage_options
            File system of the URL, or options for it; see `prepare`.

        Raises
        ------
        FileNotFoundError
            The directory has no manifest: it was not prepared, or not to the end; or a file that
            the manifest lists is missing.
        ValueError
            The manifest is damaged or of another format, or a file has another size.

        Examples
        --------
        >>> import tempfile
        >>> import windeck as wd
        >>> wd.Prepared.read(tempfile.mkdtemp())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: directory '...' has no manifest.json; expected the result of `prepare`
        """
        located = absolute(path, filesystem=filesystem, storage_options=storage_options)
        found = _read(located, os.fspath(path))
        run_in_threads(lambda number: _check_size(found, number), len(found.files), None)
        return found

    @property
    def skipped(self) -> tuple[PreparedSource, ...]:
        """SourceFile files that were left out."""
        return tuple(source for source in self.sources if source.error is not None)

    def verify(self) -> None:
        """Compare the checksums of all files. O(bytes) time.

        Raises
        ------
        ValueError
            A file is damaged; the message names it.

        Examples
        --------
        See the class.
        """
        for file in self.files:
            path = filesystem.join(self.path, file.name)
            found = sha256(path)
            if found != file.sha256:
                raise ValueError(
                    f"file {path!r} is damaged: its SHA-256 is {found}, expected {file.sha256}"
                )

    def write(self) -> None:
        """Write files of scalers into the directory, and then the manifest, in one step."""
        scalers = {kind: self._stored(kind, one) for kind, one in self.scalers.items()}
        document = {
            "format": _FORMAT,
            "rows": self.rows,
            "series": self.series,
            "columns": dict(self.columns),
            "id_columns": list(self.id_columns),
            "timestamp_column": self.timestamp_column,
            "duplicates_dropped": self.duplicates_dropped,
            "files": [asdict(file) for file in self.files],
            "sources": [asdict(source) for source in self.sources],
            "scalers": scalers,
            "options": dict(self.options),
            "fingerprint": self.fingerprint,
        }
        if self.grid is not None:
            document["grid"] = asdict(self.grid)
        text = json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "surrogateescape")
        self._write(MANIFEST, text)

    def _stored(self, kind: str, scaler: Scaler) -> Any:
        """Return a scaler as the manifest has it: its JSON, or its file, which is written."""
        if scaler.series is None:
            return json.loads(scaler.to_json())
        content = scaler_to_arrow(scaler)
        name = f"_scaler-{kind}.arrow"
        self._write(name, content)
        return {"file": name, "sha256": hashlib.sha256(content).hexdigest()}

    def _write(self, name: str, content: bytes) -> None:
        place = filesystem.join(filesystem.absolute(self.path), name)
        write = filesystem.upload if filesystem.is_remote(place) else filesystem.write_bytes
        write(place, content)

    def __str__(self) -> str:
        """Return a description of a few lines."""
        nbytes = sum(file.bytes for file in self.files)
        lines = [
            f"{self.path}: {plural(self.rows, 'row')} of {self.series:,} series in "
            f"{plural(len(self.files), 'file')}, {format_bytes(nbytes)}",
            f"from {plural(len(self.sources) - len(self.skipped), 'source file')}",
        ]
        if self.grid is not None:
            lines += self.grid.lines()
        elif self.duplicates_dropped:
            lines.append(f"{plural(self.duplicates_dropped, 'duplicate row')} left out")
        if self.skipped:
            lines.append(f"{plural(len(self.skipped), 'bad file')} left out:")
            lines += [f"  {source.path}: {source.error}" for source in self.skipped]
        return "\n".join(lines)


def _read(located: str, shown: str) -> Prepared:
    """Read the manifest of a path of `absolute`."""
    place = filesystem.join(located, MANIFEST)
    folder = located if filesystem.is_remote(located) else shown
    if not filesystem.exists(place):
        raise FileNotFoundError(
            f"directory {folder!r} has no {MANIFEST}; expected the result of `prepare`"
        )
    try:
        return _parsed(folder, located, json.loads(filesystem.read_bytes(place)))
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        path = filesystem.join(folder, MANIFEST)
        raise ValueError(f"{path!r} cannot be read as a manifest: {reason}") from error


def _check_size(prepared: Prepared, number: int) -> None:
    """Raise an error for a file that is missing, or has another size."""
    file = prepared.files[number]
    path = filesystem.join(prepared.path, file.name)
    if not filesystem.is_file(path):
        raise FileNotFoundError(f"file {path!r} is missing, which {MANIFEST} lists")
    if filesystem.size(path) != file.bytes:
        raise ValueError(
            f"file {path!r} has {filesystem.size(path)} bytes; expected the {file.bytes} that "
            f"{MANIFEST} lists"
        )


def _scaler(located: str, entry: Any) -> Scaler:
    """Return a scaler of the manifest, or of the file that it names."""
    if not isinstance(entry, dict) or "file" not in entry:
        return Scaler.from_json(json.dumps(entry))
    name = _checked(str, "file", entry["file"])
    if not re.fullmatch(SCALER_FILE, name):
        raise ValueError(f"file name {name!r} is not that of a scaler")
    content = filesystem.read_bytes(filesystem.join(located, name))
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        raise ValueError(f"{name!r} is damaged: its SHA-256 is {found}")
    return scaler_from_arrow(content)


def _parsed(folder: str, located: str, document: Any) -> Prepared:
    """Return a manifest; raise TypeError, KeyError or ValueError for what is not one."""
    check_format("it", _checked(dict, "manifest", document)["format"], _FORMAT)
    files = tuple(PreparedFile(**_checked(dict, "files", one)) for one in document["files"])
    for file in files:
        _check_file(file)
    sources = tuple(PreparedSource(**_checked(dict, "sources", one)) for one in document["sources"])
    rows = _checked(int, "rows", document["rows"])
    if rows != sum(file.rows for file in files):
        raise ValueError(f"its files have other than {rows} rows together")
    columns = _checked(dict, "columns", document["columns"])
    ids = tuple(_checked(list, "id_columns", document["id_columns"]))
    time = document["timestamp_column"]
    for name in (*ids, *(() if time is None else (time,))):
        if name not in columns:
            raise ValueError(f"column {name!r} is not among its columns")
    scalers = _checked(dict, "scalers", document["scalers"])
    return Prepared(
        folder,
        rows,
        _checked(int, "series", document["series"]),
        columns,
        ids,
        time,
        _checked(int, "duplicates_dropped", document["duplicates_dropped"]),
        files,
        sources,
        {kind: _scaler(located, one) for kind, one in scalers.items()},
        _checked(dict, "options", document["options"]),
        _checked(str, "fingerprint", document["fingerprint"]),
        _grid(_checked(dict, "grid", document["grid"])) if "grid" in document else None,
    )


def _grid(entry: dict[str, Any]) -> GridReport:
    """Return the report of a grid; raise TypeError or ValueError for what is not one."""
    report = GridReport(**entry)
    for name in ("added", "moved", "merged"):
        if _checked(int, name, getattr(report, name)) < 0:
            raise ValueError(f"`{name}` of its grid is negative")
    for name in ("duplicates", "first_moved", "first_merged"):
        if name in entry and not (entry[name] is None and name.startswith("first")):
            _checked(str, name, entry[name])
    return report


def _check_file(file: PreparedFile) -> None:
    name = _checked(str, "name", file.name)
    if os.path.basename(name) != name or name.startswith("."):
        raise ValueError(f"file name {name!r} is not of the directory")
    for field in ("rows", "bytes", "row_groups"):
        if _checked(int, field, getattr(file, field)) < 0:
            raise ValueError(f"`{field}` of {name!r} is negative")
    _checked(str, "sha256", file.sha256)


def _checked(kind: type, name: str, value: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"`{name}` is {value!r}, expected {kind.__name__}")
    return value
