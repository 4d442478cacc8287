"""Files that are data of a folder by the metadata of table formats next to them.

A log of Delta Lake, the state of a saved Hugging Face dataset and the commits of Spark name the
files that are data. Others in the folder are not any more, or not yet. Metadata of other formats
are an error that names the format.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from windeck._util.text import parse_json
from windeck.io import filesystem
from windeck.io.remote import RemotePath

__all__ = [
    "checked_name",
    "committed_files",
    "folder_values",
    "folders_hint",
    "json_object",
    "list_folders",
]

#: Bytes of a file of metadata that is read.
_METADATA_BYTES = 1 << 26
_VERSION = re.compile(r"[0-9]{20}\.json")
_ICEBERG = re.compile(r"(?:^|.*/)metadata/[^/]*\.metadata\.json$")
#: Features of Delta Lake that do not change what a file holds, or are looked at.
_FEATURES = {"timestampNtz", "vacuumProtocolCheck", "deletionVectors", "columnMapping"}
_NULL = "__HIVE_DEFAULT_PARTITION__"


def committed_files(
    home: str,
    files: Sequence[str],
    hidden: Iterable[str],
    wanted: Collection[str],
) -> list[str]:
    """Return the files of a folder that are data by the metadata next to them.

    Parameters
    ----------
    home
        The folder. If it is a partition of a table, such as ``site=a``, metadata in the folders
        above count too.
    files
        Files below it, relative to it, and `hidden` names below it, as of
        `filesystem.list_below`.
    wanted
        The files that will be read. Metadata in folders without one of them are not looked at.

    Raises
    ------
    FileNotFoundError
        Metadata name a file that does not exist.
    ValueError
        Files have to be read by the library of their format; the message names it.
    """
    found = _committed(home, list(files), hidden, wanted)
    above, below = home if filesystem.is_remote(home) else os.path.abspath(home), ""
    while (name := _name(above)) and ("=" in name or (name == "data" and "data/" not in below)):
        above, below = filesystem.parent(above), f"{name}/{below}"
    if not below:
        return found
    others, marks = list_folders(above, [below[:-1]])
    inside = [f"{below}{path}" for path in found]
    kept = _committed(above, [*others, *inside], marks, [f"{below}{path}" for path in wanted])
    return [path[len(below) :] for path in kept if path.startswith(below)]


def _name(folder: str) -> str:
    if isinstance(folder, RemotePath):
        parts = (folder.partition("://")[2] or folder).rstrip("/").split("/")
        return parts[-1] if len(parts) > 1 else ""
    return os.path.basename(folder)


def list_folders(home: str, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return files and hidden names, as `filesystem.list_below`, in the folders of some paths."""
    folders = {""}
    for path in paths:
        folder = path
        while (folder := folder.rpartition("/")[0]) and folder not in folders:
            folders.add(folder)
    files: list[str] = []
    hidden: list[str] = []
    for folder in sorted(folders):
        prefix = f"{folder}/" if folder else ""
        found, marks = _list_folder(filesystem.join(home, folder) if folder else home)
        files += [f"{prefix}{name}" for name in found]
        hidden += [f"{prefix}{name}" for name in marks]
    return files, hidden


def _list_folder(folder: str) -> tuple[list[str], list[str]]:
    """Return the files and hidden names in a folder, and the files of its `metadata`."""
    listed: list[tuple[str, bool]] = []
    with suppress(FileNotFoundError, PermissionError):
        listed = filesystem.list_directory(folder)
        if ("metadata", True) in listed:
            inside = filesystem.list_directory(filesystem.join(folder, "metadata"))
            listed += [(f"metadata/{name}", is_folder) for name, is_folder in inside]
    return filesystem.split_hidden(name + "/" * is_folder for name, is_folder in listed)


def _committed(
    home: str, files: list[str], hidden: Iterable[str], wanted: Collection[str]
) -> list[str]:
    marks: dict[str, set[str]] = {}
    for path in hidden:
        folder, name = _split(path)
        marks.setdefault(folder, set()).add(name)
    for path in files:
        folder, name = _split(path)
        if name in ("state.json", "dataset_dict.json"):
            marks.setdefault(folder, set()).add(name)
        elif name.endswith(".metadata.json") and _ICEBERG.fullmatch(path):
            marks.setdefault(_split(folder[:-1])[0], set()).add("metadata/")
    looked_at = [*wanted, *_lance(files)]
    for folder, names in marks.items():
        if any(path.startswith(folder) for path in looked_at):
            files = _of_folder(home, folder, names, files)
    return files


def _lance(files: Iterable[str]) -> list[str]:
    """Return files of Lance datasets, which no reader here takes."""
    return [path for path in files if path.endswith(".lance")]


def _split(path: str) -> tuple[str, str]:
    """Return the folder of a path, with a slash or empty, and its name."""
    place = path.rstrip("/").rfind("/") + 1
    return path[:place], path[place:]


def _of_folder(home: str, folder: str, names: set[str], files: list[str]) -> list[str]:
    """Return the files without those below a folder that its metadata do not name."""
    where = filesystem.join(home, folder.rstrip("/")) if folder else home
    if "_delta_log/" in names:
        live = _delta_files(where)
        return _keep(where, folder, files, live)
    if "metadata/" in names:
        raise _foreign(where, "an Iceberg table", "pyiceberg, as table.scan().to_arrow()")
    if ".hoodie/" in names:
        raise _foreign(where, "a Hudi table", "hudi, as HudiTable(path).read_snapshot()")
    if "_versions/" in names and any(path.startswith(folder) for path in _lance(files)):
        raise _foreign(where, "a Lance dataset", "lance, as lance.dataset(path).to_table()")
    if "dataset_dict.json" in names:
        _check_splits(where)
    if "state.json" in names:
        return _saved_files(where, folder, files)
    started = [name for name in names if name.startswith("_started_")]
    if started or any(name.startswith("_committed_") for name in names):
        return _spark_files(where, folder, names, files)
    return files


def _foreign(where: str, kind: str, reader: str) -> ValueError:
    return ValueError(
        f"{where!r} is {kind}, whose metadata say which rows are data; expected it to be read by "
        f"{reader}, for Table.from_arrow or to be written as files"
    )


def _keep(where: str, folder: str, files: list[str], live: Iterable[str]) -> list[str]:
    """Return the files, without files below a folder that are not `live`."""
    alive = {f"{folder}{path}" for path in live}
    below = [path for path in files if path.startswith(folder)]
    # Where some files were chosen, others are not missing.
    for path in sorted(alive.difference(files)):
        if not filesystem.is_file(filesystem.join(where, path[len(folder) :])):
            raise FileNotFoundError(
                f"the metadata in {where!r} list {path[len(folder) :]!r}, which does not exist"
            )
    dead = set(below) - alive
    return [path for path in files if path not in dead]


def json_object(path: str) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one of other JSON, or if there is no file.

    Raises
    ------
    ValueError
        The file has more than 64 MiB, or is no JSON: what it says of the data is unknown.
    """
    if not filesystem.is_file(path):
        return {}
    if filesystem.size(path) > _METADATA_BYTES:
        raise ValueError(
            f"{path!r} has {filesystem.size(path):,} bytes; expected {_METADATA_BYTES:,} or fewer "
            "of a file of metadata"
        )
    try:
        found = parse_json(filesystem.read_bytes(path), repr(path))
    except ValueError as error:
        raise ValueError(
            f"{error}: it says which of the files next to it are data; write the data set again, "
            "or pass a list of the files to read"
        ) from error
    return found if isinstance(found, dict) else {}


def checked_name(name: object, where: str) -> str:
    """Return a name that a file states; raise a ValueError if it leads to another folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or os.path.basename(name) != name:
        raise ValueError(f"{where!r} has the name {name!r}, expected that of a file in its folder")
    return name


def _check_splits(where: str) -> None:
    splits = json_object(filesystem.join(where, "dataset_dict.json")).get("splits")
    if isinstance(splits, list) and len(splits) > 1:
        raise ValueError(
            f"{where!r} is a DatasetDict with the splits {', '.join(map(repr, splits))}; expected "
            "the folder of one of them"
        )


def _saved_files(where: str, folder: str, files: list[str]) -> list[str]:
    """Return the files that `save_to_disk` of Hugging Face datasets lists: others are caches."""
    path = filesystem.join(where, "state.json")
    state = json_object(path)
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        return files
    if any(value for key, value in state.items() if key.startswith("_indices")):
        raise ValueError(
            f"{path!r} names a file of indices: the dataset is a selection of the rows in its "
            "files; expected it to be saved again, as "
            "load_from_disk(path).flatten_indices().save_to_disk(other)"
        )
    names = {checked_name(one.get("filename"), path) for one in listed}
    for name in sorted(names):
        if not filesystem.is_file(filesystem.join(where, name)):
            raise FileNotFoundError(f"{path!r} lists {name!r}, which does not exist")
    return [
        one
        for one in files
        if not one.startswith(folder) or "/" in one[len(folder) :] or one[len(folder) :] in names
    ]


def _spark_files(where: str, folder: str, names: set[str], files: list[str]) -> list[str]:
    """Return the files that the transactions of Spark in Databricks have committed."""
    removed: set[str] = set()
    for name in sorted(names):
        kind, _, number = name.lstrip("_").partition("_")
        if kind == "started" and f"_committed_{number}" not in names:
            if any(f"-tid-{number}" in path for path in files if path.startswith(folder)):
                raise ValueError(
                    f"{where!r} has files of the transaction {number}, which '{name}' began and no "
                    f"'_committed_{number}' ended; expected a folder that is complete, or a list "
                    "of the files to read"
                )
        elif kind == "committed":
            change = json_object(filesystem.join(where, name))
            removed.update(f"{folder}{one}" for one in change.get("removed") or ())
    return [path for path in files if path not in removed]


def _delta_files(where: str) -> set[str]:
    """Return the files of the last version of a Delta table, by its log."""
    log = filesystem.join(where, "_delta_log")
    versions = sorted(
        name for name, _ in filesystem.list_directory(log) if _VERSION.fullmatch(name)
    )
    if [int(name[:20]) for name in versions] != list(range(len(versions))) or not versions:
        raise _delta_error(where, "a log without its first version, which a checkpoint replaces")
    live: dict[tuple[str, str], dict[str, Any]] = {}
    columns: list[str] = []
    for name in versions:
        # Of one version, files are removed first.
        actions = list(_actions(filesystem.join(log, name)))
        for kind, action in actions:
            if kind == "remove":
                live.pop(_delta_key(action), None)
        for kind, action in actions:
            if kind == "add":
                live[_delta_key(action)] = action
            elif kind == "metaData":
                columns = list(action.get("partitionColumns") or ())
                mode = (action.get("configuration") or {}).get("delta.columnMapping.mode", "none")
                if mode != "none":
                    raise _delta_error(where, f"columns that are mapped by {mode}")
            elif kind == "protocol":
                unknown = sorted(set(action.get("readerFeatures") or ()) - _FEATURES)
                if int(action.get("minReaderVersion", 1)) > 3 or unknown:
                    raise _delta_error(where, f"the features {', '.join(unknown) or 'of a reader'}")
    return {_delta_path(where, action, columns) for action in live.values()}


def _delta_key(action: dict[str, Any]) -> tuple[str, str]:
    return str(action.get("path")), json.dumps(action.get("deletionVector"), sort_keys=True)


def _delta_path(where: str, action: dict[str, Any], columns: Sequence[str]) -> str:
    """Return the path of a file that a log adds."""
    path = unquote(str(action.get("path")))
    if action.get("deletionVector"):
        raise _delta_error(where, f"deleted rows in {path!r}")
    if "://" in path or path.startswith("/") or ".." in path.split("/"):
        raise _delta_error(where, f"a file in another folder, {path!r}")
    values = action.get("partitionValues") or {}
    folders = folder_values(path)
    for column in columns:
        if folders.get(column, "") != values.get(column):
            raise _delta_error(where, f"values of {column!r} that folders do not name")
    return path


def _actions(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions of a version of a Delta table, with their kinds."""
    if filesystem.size(path) > _METADATA_BYTES:
        raise ValueError(
            f"{path!r} has {filesystem.size(path):,} bytes; expected {_METADATA_BYTES:,} or fewer "
            "of a version of a Delta table: read it with deltalake"
        )
    for number, line in enumerate(filesystem.read_bytes(path).splitlines()):
        if not line.strip():
            continue
        found = parse_json(line, f"line {number + 1} of {path!r}")
        if isinstance(found, dict):
            yield from ((kind, one) for kind, one in found.items() if isinstance(one, dict))


def _delta_error(where: str, what: str) -> ValueError:
    return ValueError(
        f"{where!r} is a Delta table with {what}; expected it to be read by deltalake, as "
        "DeltaTable(path).to_pyarrow_table(), for Table.from_arrow or to be written as files"
    )


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values that names of folders in a path give to columns, as Hive writes them.

    Examples
    --------
    >>> folder_values("loads/site=North%20Sea/day=7/a.parquet")
    {'site': 'North Sea', 'day': '7'}
    """
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def folders_hint(where: str) -> str:
    """Return the columns that folders of a quoted path name, for messages."""
    named = folder_values(where.strip("'\""))
    return f", whose folders name {', '.join(map(repr, named))}," if named else ""
