"""Descriptions of checkpoints: in stores, and in files of other formats."""

from __future__ import annotations

import math
from typing import Any

from windeck._util.text import format_bytes, plural
from windeck.checkpoint.format.catalogs import Catalog
from windeck.checkpoint.format.manifests import read_catalog, read_commits
from windeck.checkpoint.stores import Store
from windeck.cli.description.description import Column, Description, literal
from windeck.cli.files import open_path
from windeck.cli.session import UsageError, opened_store, redacted_url
from windeck.columns.dtypes import item_bytes

__all__ = ["describe_checkpoint_file", "describe_store"]

#: Tensors that are listed.
_LISTED = 20


def describe_store(url: str) -> Description:
    """Describe the checkpoints of a store, from the manifest of the current one.

    Raises
    ------
    FileNotFoundError
        If there is no store or no checkpoint.
    ValueError, OSError, ImportError
        For a wrong URL, a store that cannot be opened, or a library that is missing.
    """
    try:
        with opened_store(url) as store:
            columns, facts, notes, summary = _contents(store)
    except UsageError as error:
        raise ValueError(str(error)) from error
    shown = redacted_url(url)
    code = [
        "from windeck import checkpoint",
        "",
        f"for commit in checkpoint.log({literal(shown)}):",
        "    print(commit.generation, commit.step)",
        f"with checkpoint.open({literal(shown)}) as saved:",
        "    print(saved.names())",
    ]
    return Description(shown, "checkpoint", summary, facts, columns, notes, code)


def describe_checkpoint_file(path: str) -> Description:
    """Describe a file or folder with a checkpoint of another format; it needs torch."""
    with open_path(path) as store:
        columns, facts, notes, summary = _contents(store)
    code = [
        "from windeck import checkpoint",
        "",
        'store = checkpoint.stores.open_store("memory://")  # or the URL of a store',
        f"checkpoint.import_({literal(path)}, store)",
        "with checkpoint.open(store) as saved:",
        "    print(saved.names())",
    ]
    return Description(path, "checkpoint", summary, facts, columns, notes, code)


def _contents(store: Store) -> tuple[list[Column], dict[str, Any], list[str], str]:
    """Return tensors, facts and notes of the current generation of a store, and a summary."""
    commits = read_commits(store, "windeck")
    catalog = read_catalog(store, "windeck", commits[0])
    tensors = _tensors(catalog)
    nbytes = sum(size for _, _, size in tensors)
    columns = [Column(name, kind) for name, kind, _ in tensors[:_LISTED]]
    roots = list(catalog.trees)
    facts = {
        "generations": len(commits),
        "generation": commits[0].generation,
        "step": commits[0].step,
        "tensors": len(tensors),
        "bytes": nbytes,
        "roots": roots,
        "embedding_tables": len(catalog.tables or ()),
    }
    notes = [f"{plural(len(commits), 'generation')}, the current one is of step {commits[0].step}"]
    notes.append(f"state of: {', '.join(roots) or 'nothing'}")
    if catalog.tables:
        notes.append(plural(len(catalog.tables), "embedding table"))
    if len(tensors) > _LISTED:
        notes.append(f"the first {_LISTED} of {len(tensors):,} tensors are listed")
    summary = f"a checkpoint of {plural(len(tensors), 'tensor')}, {format_bytes(nbytes)}"
    return columns, facts, notes, summary


def _tensors(catalog: Catalog) -> list[tuple[str, str, int]]:
    """Return name, dtype with shape, and bytes of each tensor; of shared ones once."""
    found = []
    for name, number in catalog.tensors.items():
        kind = catalog.kinds[number]
        nbytes = math.prod(kind.shape) * (item_bytes(kind.dtype) or 0)
        found.append((name, f"{kind.dtype} {tuple(kind.shape)}", nbytes))
    return found
