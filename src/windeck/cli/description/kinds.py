"""The kind of a file or folder, by its name, its first bytes and its schema."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from windeck._util.schemes import scheme_of
from windeck._util.text import plural, verb
from windeck.cli.description.description import Description
from windeck.io import filesystem
from windeck.io.data_files import SUFFIXES, natural
from windeck.io.json_lines import SUFFIXES as JSON_SUFFIXES
from windeck.preparation.manifest import MANIFEST

__all__ = ["describe"]

#: Names of columns of lists of integers that are tokens of documents, and of texts of documents.
_TOKENS, _TEXTS = ("tokens", "input_ids", "token_ids"), ("text", "content", "document", "body")
#: Suffixes of JSON lines, of shards of MDS, and of files that only documents have.
_LINES, _MDS = JSON_SUFFIXES[0], (".mds", ".mds.zstd")
_OF_DOCUMENTS = (*_LINES, *JSON_SUFFIXES[1], *_MDS, ".idx", ".bin")
#: Suffixes of files with columns.
_COLUMNAR = SUFFIXES
#: Suffixes of checkpoints in files of other formats.
_OF_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".npz")
_SUFFIXES = (*_COLUMNAR, *_OF_DOCUMENTS, *_OF_CHECKPOINTS)
_MDS_INDEX = "index.json"
#: Files of databases, of checkpoints, and of prepared and saved data.
_OF_PROGRAMS = frozenset(("CURRENT", ".metadata", MANIFEST, "dataset_dict.json", "state.json"))
#: Files and folders of a folder of several kinds that are described, and endings of others.
_MOST_PLACES, _MOST_ENDINGS = 20, 5


def describe(
    path: str, *, time: str | None = None, csv: Mapping[str, Any] | None = None
) -> Iterator[Description]:
    """Describe a file, a folder, a glob, or the URL of one or of a store of checkpoints.

    O(sample) time and memory for files of any size.

    Parameters
    ----------
    path
        A folder of files of several kinds has a description for each of them; what cannot be read
        among them has the error as its summary, and no code.
    time, csv
        The column of times of a table, and options of CSV as of `windeck.Table.read`.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError, ImportError, OSError
        If there is nothing that windeck reads, it is damaged, or it needs a package.
    """
    places, others = _places(path), _other_files(path)
    if others and not _has_data(path):
        raise FileNotFoundError(
            f"directory {path!r} has no file that windeck reads: {others[0]}; expected files of "
            'tables, of tokens, or of JSON lines, such as {"text": ...} in .jsonl files'
        )
    if len(places) < 2:
        found = _describe(places[0] if places else path, time, csv or {})
        yield replace(found, notes=[*found.notes, *others])
        return
    for place in places[:_MOST_PLACES]:
        yield _described_or_error(place, time, csv or {})
    if (left := len(places) - _MOST_PLACES) > 0:
        yield Description(path, "more", f"{left:,} more files and folders are not described", {})
    for note in others:
        yield Description(path, "more", note, {})


def _described_or_error(path: str, time: str | None, csv: Mapping[str, Any]) -> Description:
    try:
        return _describe(path, time, csv)
    except (ValueError, TypeError, KeyError, ImportError, OSError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        return Description(path, "error", f"cannot be described: {text}", {})


def _describe(path: str, time: str | None, csv: Mapping[str, Any]) -> Description:
    found = _describe_by_name(path)
    if found is None:
        return _without_credentials(_describe_columns(path, time, csv))
    _check_no_table(found.path, time, csv)  # a URL there has no password
    return found


def _without_credentials(found: Description) -> Description:
    """Return a description that may be printed: its code asks for what the URL had."""
    if "://" not in found.path:
        return found
    from windeck.io.remote import without_credentials

    code = [without_credentials(line) for line in found.code]
    return replace(found, path=without_credentials(found.path), code=code)


def _describe_by_name(path: str) -> Description | None:
    """Describe checkpoints, and files that only documents have; None for files with columns."""
    from windeck.cli.description.checkpoints import describe_checkpoint_file, describe_store
    from windeck.cli.description.corpora import describe_documents

    if "://" in path:
        return describe_store(path) if _is_store(path) else None
    if (url := _database_url(path)) is not None:
        return describe_store(url)
    if _is_foreign_checkpoint(path):
        return describe_checkpoint_file(path)
    return None if (found := _token_files(path)) is None else describe_documents(path, **found)


def _check_no_table(path: str, time: str | None, csv: Mapping[str, Any]) -> None:
    """Raise ValueError for options of tables that are given for a path without one."""
    for name in csv:
        raise ValueError(f"{path}: `{name}` is an option of CSV files, expected one of these")
    if time is not None:
        raise ValueError(f"{path}: `time` is a column of a table, expected files of tables")


def _places(path: str) -> list[str]:
    """Return the folders and files that have to be described one by one, in natural order.

    That is the path itself unless it is a local folder with files of several kinds, or with a
    corpus of folders ``dataset=NAME`` below it.
    """
    if "://" in path or not filesystem.is_directory(path) or _is_whole(path):
        return [path]
    files, _ = filesystem.list_below(path)
    known = frozenset(files)
    kinds = {_kind(name, known) for name in files} - {""}
    has_corpus = any("/dataset=" in name for name in files)
    indices = [name for name in files if name.rpartition("/")[2] == _MDS_INDEX]
    if not has_corpus and len(kinds) < 2 and len(indices) < 2:
        return [path]
    listed = sorted(filesystem.list_directory(path), key=lambda one: natural(one[0]))
    shown = [(name, is_folder) for name, is_folder in listed if not name.startswith((".", "_"))]
    folders = [filesystem.join(path, name) for name, is_folder in shown if is_folder]
    by_suffix: dict[str, list[str]] = {}
    for name, is_folder in shown:
        if not is_folder and (suffix := _suffix(name)) not in ("", ".idx"):
            by_suffix.setdefault(suffix, []).append(name)
    names = [one[0] if len(one) == 1 else f"*{suffix}" for suffix, one in by_suffix.items()]
    found = [place for folder in folders if _has_data(folder) for place in _places(folder)]
    return [*(filesystem.join(path, name) for name in names), *found]


def _other_files(path: str) -> list[str]:
    """Return a note on the files of a local folder that are of no known kind; none without any.

    Not of settings and indices in JSON, and of what one program has written.
    """
    if "://" in path or not filesystem.is_directory(path) or _is_foreign_checkpoint(path):
        return []
    names = {name for name, _ in filesystem.list_directory(path)}
    if names & _OF_PROGRAMS:
        return []
    files, _ = filesystem.list_below(path)
    endings = [os.path.splitext(name)[1] or os.path.basename(name) for name in files]
    counts = Counter(
        ending
        for name, ending in zip(files, endings, strict=True)
        if not _suffix(name) and ending.lower() != ".json"
    )
    if not counts:
        return []
    listed = ", ".join(f"{count:,} {ending}" for ending, count in counts.most_common(_MOST_ENDINGS))
    more = ", ..." if len(counts) > _MOST_ENDINGS else ""
    total = counts.total()
    return [
        f"{plural(total, 'file')} of no known kind {verb(total, 'are')} not read: {listed}{more}"
    ]


def _is_whole(folder: str) -> bool:
    """Return whether a folder is a database, a checkpoint, prepared or saved data, or a corpus."""
    listed = filesystem.list_directory(folder)
    names = {name for name, _ in listed}
    if names & _OF_PROGRAMS:
        return True
    return any(is_folder and name.startswith("dataset=") for name, is_folder in listed)


def _suffix(name: str) -> str:
    """Return the suffix of a file of data, as it is written; "" of another file.

    JSON is none: there are settings and indices in JSON next to all kinds of data.
    """
    lower = name.lower()
    suffixes = [one for one in _SUFFIXES if one != ".json" and lower.endswith(one)]
    return name[len(name) - max(map(len, suffixes), default=0) :]


def _kind(name: str, names: Collection[str]) -> str:
    """Return the kind of a file of data by its name, and by the names next to it; "" of others."""
    suffix = _suffix(name).lower()
    if suffix in (".bin", ".idx"):
        return "pairs" if f"{name[:-4]}.idx" in names else "flat"
    groups = (_COLUMNAR, _LINES, _MDS, _OF_CHECKPOINTS)
    return next((group[0] for group in groups if suffix in group), "")


def _has_data(folder: str) -> bool:
    return _is_whole(folder) or any(map(_suffix, filesystem.list_below(folder)[0]))


def _is_store(url: str) -> bool:
    return scheme_of(url).store not in ("", "objects", "memory")


def _database_url(path: str) -> str | None:
    """Return the URL of a folder that is a database of RocksDB or LevelDB."""
    if not filesystem.is_file(filesystem.join(path, "CURRENT")):
        return None
    names = [name for name, _ in filesystem.list_directory(path)]
    scheme = "rocksdb" if any(name.startswith("OPTIONS-") for name in names) else "leveldb"
    return f"{scheme}://{filesystem.absolute(path)}"


def _is_foreign_checkpoint(path: str) -> bool:
    if not filesystem.is_directory(path):
        return path.endswith(_OF_CHECKPOINTS)
    names = [name for name, _ in filesystem.list_directory(path)]
    return ".metadata" in names or any(name.endswith(_OF_CHECKPOINTS) for name in names)


def _token_files(path: str) -> dict[str, Any] | None:
    """Return arguments of `describe_documents` for files that only documents have."""
    folder, name = os.path.split(path)
    if filesystem.is_file(path) or (
        glob.has_magic(name) and filesystem.is_directory(folder or ".")
    ):
        if not path.lower().endswith(_OF_DOCUMENTS):
            return None
        return _format([other for other, _ in filesystem.list_directory(folder or ".")], name)
    if not filesystem.is_directory(path):
        return None
    names, _ = filesystem.list_below(path)
    if any(name.split("/")[0].startswith("dataset=") for name in names):
        return {}
    if any(name.lower().endswith(_COLUMNAR) for name in names):
        return None
    return _format(names, None) if any(n.lower().endswith(_OF_DOCUMENTS) for n in names) else None


def _format(names: Sequence[str], file: str | None) -> dict[str, Any]:
    """Return the format of token files among some names, or of the file named."""
    stems = {name.removesuffix(".idx") for name in names if name.endswith(".idx")}
    chosen = names if file is None else [one for one in names if fnmatchcase(one, file)] or [file]
    files = {"files": file} if file is not None else {}
    if any(name.lower().endswith(_LINES) for name in chosen):
        return {"text": True, **files}
    if any(name.lower().endswith(_MDS) for name in chosen):
        return files
    stem = None if file is None else file.removesuffix(".idx").removesuffix(".bin")
    if stems and (stem is None or stem in stems):
        return {"files": f"{stem}.bin"} if stem is not None else {}
    if any(name.endswith(".bin") for name in chosen):
        return {"format": "nanogpt", **files}
    return {"text": True, **files}


def _describe_columns(path: str, time: str | None, csv: Mapping[str, Any]) -> Description:
    """Describe files with columns by the schema of the first: documents, lists or a table."""
    from windeck.cli.description.corpora import describe_documents, describe_lists
    from windeck.cli.description.tables import describe_table
    from windeck.io.conversion import is_string, value_type
    from windeck.io.csv_options import CsvOptions
    from windeck.io.data_files import resolve
    from windeck.io.formats import open_file
    from windeck.jagged.list_columns import is_list
    from windeck.preparation.manifest import Prepared

    prepared = None
    if "://" not in path and filesystem.is_file(filesystem.join(path, MANIFEST)):
        with suppress(ValueError):  # a file of that name of another program
            prepared = Prepared.read(path)
    if prepared is not None:
        scalers = f", scalers: {', '.join(prepared.scalers)}" if prepared.scalers else ""
        note = f"written by windeck prepare from {len(prepared.sources):,} sources{scalers}"
        return describe_table(
            path,
            [filesystem.join(path, file.name) for file in prepared.files],
            ids=prepared.id_columns,
            time=prepared.timestamp_column,
            notes=[note],
        )
    files = resolve(path)
    options = CsvOptions.from_arguments(**csv, time=time)
    first = open_file(files[0], options)
    schema = first.schema
    lists = [field.name for field in schema if is_list(field.type)]
    tokens = [name for name in lists if name in _TOKENS]
    if len(lists) == 1 and tokens:
        return describe_documents(path, column=tokens[0])
    if lists:
        return describe_lists(path, files, schema)
    kinds = {field.name: value_type(field.type) for field in schema}
    texts = [name for name in kinds if name.lower() in _TEXTS and is_string(kinds[name])]
    if texts and first.kind != "CSV":
        return describe_documents(path, column=texts[0], text=True)
    if [*kinds] == ["tokens"] and first.kind == "Arrow IPC":
        return describe_documents(path, column="tokens")
    return describe_table(path, files, time=time, csv=csv)
