"""The kind of a file or folder, by its name, its first bytes and its schema."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from windeck._util.schemes import scheme_of
from windeck.cli.description.description import Description
from windeck.io import filesystem

__all__ = ["describe"]

#: Names of columns of lists of integers that are tokens of documents, and of texts of documents.
_TOKENS, _TEXTS = ("tokens", "input_ids", "token_ids"), ("text", "content", "document", "body")
#: Suffixes of files that only documents have.
_OF_DOCUMENTS = (".jsonl", ".ndjson", ".json", ".mds", ".mds.zstd", ".idx", ".bin")
#: Suffixes of files with columns.
_COLUMNAR = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".csv", ".tsv")
#: Suffixes of checkpoints in files of other formats.
_OF_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".npz")


def describe(path: str) -> Description:
    """Describe a file, a folder, a glob, or the URL of one or of a store of checkpoints.

    O(sample) time and memory for files of any size.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError, ImportError, OSError
        If there is nothing that windeck reads, it is damaged, or it needs a package.
    """
    if "://" in path and _is_store(path):
        from windeck.cli.description.checkpoints import describe_store

        return describe_store(path)
    if "://" not in path and (url := _database_url(path)) is not None:
        from windeck.cli.description.checkpoints import describe_store

        return describe_store(url)
    if "://" not in path and _is_foreign_checkpoint(path):
        from windeck.cli.description.checkpoints import describe_checkpoint_file

        return describe_checkpoint_file(path)
    if "://" not in path and (found := _token_files(path)) is not None:
        from windeck.cli.description.corpora import describe_documents

        return describe_documents(path, **found)
    return _describe_columns(path)


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
    if filesystem.is_file(path):
        if not path.lower().endswith(_OF_DOCUMENTS):
            return None
        folder, name = os.path.split(path)
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
    chosen = names if file is None else [file]
    files = {"files": file} if file is not None else {}
    if any(name.lower().endswith((".jsonl", ".ndjson")) for name in chosen):
        return {"text": True, **files}
    if any(name.lower().endswith((".mds", ".mds.zstd")) for name in chosen):
        return files
    stem = None if file is None else file.removesuffix(".idx").removesuffix(".bin")
    if stems and (stem is None or stem in stems):
        return {"files": f"{stem}.bin"} if stem is not None else {}
    if any(name.endswith(".bin") for name in chosen):
        return {"format": "nanogpt", **files}
    return {"text": True, **files}


def _describe_columns(path: str) -> Description:
    """Describe files with columns by the schema of the first: documents, lists or a table."""
    from windeck.cli.description.corpora import describe_documents, describe_lists
    from windeck.cli.description.tables import describe_table
    from windeck.io.conversion import is_string, value_type
    from windeck.io.data_files import resolve
    from windeck.io.formats import open_file
    from windeck.jagged.list_columns import is_list
    from windeck.preparation.manifest import MANIFEST, Prepared

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
    schema = open_file(files[0]).schema
    lists = [field.name for field in schema if is_list(field.type)]
    tokens = [name for name in lists if name in _TOKENS]
    if len(lists) == 1 and tokens:
        return describe_documents(path, column=tokens[0])
    if lists:
        return describe_lists(path, files, schema)
    kinds = {field.name: value_type(field.type) for field in schema}
    texts = [name for name in kinds if name.lower() in _TEXTS and is_string(kinds[name])]
    if texts and open_file(files[0]).kind != "CSV":
        return describe_documents(path, column=texts[0], text=True)
    if [*kinds] == ["tokens"] and open_file(files[0]).kind == "Arrow IPC":
        return describe_documents(path, column="tokens")
    return describe_table(path, files)
