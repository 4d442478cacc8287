"""What is written about a generation: HEAD, the manifest, and how they are read back.

HEAD lists the generations kept, newest first, each with the random number of its save and the
bytes and the CRC32C of its manifest; the first is in force. All of it is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from windeck._core import crc32c
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.catalogs import (
    Catalog,
    as_json,
    as_lines,
    catalog_of,
    whole_number,
    whole_tree,
)
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError

if TYPE_CHECKING:
    from windeck.checkpoint.format.entries import Entry
    from windeck.checkpoint.stores.protocol import Values
    from windeck.checkpoint.tables.links import TableEntry

__all__ = ["Commit", "as_json", "check_manifest", "encode_head", "find_commit", "parse_manifest"]
__all__ += ["read_catalog", "read_head", "read_kept", "read_manifest"]

#: What is added to the URL of a store that is opened to be read.
_ADDED = re.compile(r"[?&](readonly=1|create=0)$")
#: What JSON that says something else than expected leads to.
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class Commit(NamedTuple):
    """A generation that was committed.

    Attributes
    ----------
    generation
        Its number; numbers grow, with gaps.
    save
        The random number of the save that wrote it.
    step
        What the user called it.
    time
        Seconds since 1970, by the clock of the process that committed it.
    manifest_bytes, manifest_crc
        Of its manifest, as stored.
    bases
        The generations whose data its manifest refers to, ascending; none for a full save.
    """

    generation: int
    save: int
    step: int
    time: float
    manifest_bytes: int
    manifest_crc: int
    bases: tuple[int, ...] = ()


def encode_head(commits: Sequence[Commit]) -> bytes:
    """The value of HEAD."""
    return encode(Label(Kind.HEAD), as_json({"kept": [commit._asdict() for commit in commits]}))


def read_head(values: Values, namespace: str) -> tuple[bytes | None, list[Commit]]:
    """The value of HEAD as stored, and the generations it keeps; (None, []) where there is none."""
    key = keys.head(namespace)
    value = values.get(key)
    if value is None:
        return None, []
    payload = decode(key, value, Label(Kind.HEAD))
    try:
        return value, [_commit(entry) for entry in json.loads(bytes(payload))["kept"]]
    except _UNREADABLE as error:
        raise _unreadable(key, "a HEAD", error) from error


def read_kept(values: Values, namespace: str) -> list[Commit]:
    """The generations kept, newest first; FileNotFoundError where there is no checkpoint."""
    commits = read_head(values, namespace)[1]
    if not commits:
        url = _ADDED.sub("", getattr(values, "url", ""))  # a snapshot has none
        where = f" at {url}" if url else ""
        raise FileNotFoundError(f"there is no checkpoint{where}: expected the key {namespace}/HEAD")
    return commits


def find_commit(values: Values, namespace: str, generation: int | None) -> Commit:
    """The generation asked for, or the one in force.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or it is not kept.
    TypeError
        For what is no number.
    """
    if generation is not None and type(generation) is not int:
        raise TypeError(f"generation is of type {type(generation).__name__}, expected int or None")
    commits = read_kept(values, namespace)
    if generation is None:
        return commits[0]
    for commit in commits:
        if commit.generation == generation:
            return commit
    kept = ", ".join(str(commit.generation) for commit in commits)
    raise FileNotFoundError(
        f"there is no generation {generation} in {namespace}, expected one of {kept}"
    )


def read_catalog(values: Values, namespace: str, commit: Commit) -> Catalog:
    """What there is in a generation: names, dtypes and shapes, but not where the data are.

    `tables` has entries by name, as in `read_manifest`.
    """
    with _reading(values, namespace, commit) as value:
        catalog = catalog_of(_first_line(value, HEADER_BYTES)[0])
        return catalog._replace(tables=_parse_tables(catalog.tables, commit))


def read_manifest(values: Values, namespace: str, commit: Commit) -> dict[str, Any]:
    """The manifest of a generation, compared with what HEAD says of it.

    Returns
    -------
    dict
        ``"tensors"``, entries by name; ``"trees"``, state by root; ``"places"``, of each root what
        `tensors_in` gives; ``"tables"``, entries by name.
    """
    with _reading(values, namespace, commit) as value:
        return parse_manifest(value, commit, at=HEADER_BYTES)


def parse_manifest(data: bytes, commit: Commit, *, at: int = 0) -> dict[str, Any]:
    """What `read_manifest` gives, of the bytes of a manifest, which begins at `at`.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        For what cannot be one.
    """
    from windeck.checkpoint.format.entries import parse_entries  # who lists a catalog needs none

    line, rest = _first_line(data, at)
    catalog = catalog_of(line)
    parts = json.loads(str(memoryview(data)[rest:], "utf-8"))
    entries = parse_entries(catalog, parts, commit.generation, commit.save)
    tables = _parse_tables(catalog.tables, commit)
    _check_kept(entries, commit)
    trees = {root: whole_tree(tree, root) for root, tree in catalog.trees.items()}
    places = {root: [*zip(catalog.names[root], catalog.data[root], strict=True)] for root in trees}
    return {"tensors": entries, "trees": trees, "places": places, "tables": tables}


def check_manifest(manifest: Mapping[str, Any], generation: int, save: int) -> None:
    """Raises what a reader of a full save's manifest would: ValueError or TypeError."""
    parse_manifest(as_lines(manifest), Commit(generation, save, 0, 0.0, 0, 0))


@contextmanager
def _reading(values: Values, namespace: str, commit: Commit) -> Iterator[bytes]:
    """The value of a manifest; what is wrong with what they say becomes a CorruptStoreError."""
    key = keys.manifest(namespace, commit.generation)
    value = values.get(key)
    decode(key, value, Label(Kind.MANIFEST, commit.generation, commit.save))
    if value is None or (len(value), crc32c(value)) != (commit.manifest_bytes, commit.manifest_crc):
        raise CorruptStoreError(
            f"{key.decode()} is not the manifest that {namespace}/HEAD was committed with: "
            f"expected {commit.manifest_bytes:,} bytes with CRC32C {commit.manifest_crc:08x}"
        )
    try:
        yield value
    except _UNREADABLE as error:
        raise _unreadable(key, "a manifest", error) from error


def _commit(found: Mapping[str, Any]) -> Commit:
    commit = Commit(**{**found, "bases": tuple(map(whole_number, found.get("bases", ())))})
    for number in (commit.generation, commit.save, commit.step, commit.manifest_bytes):
        whole_number(number)
    if type(commit.time) not in (float, int) or type(commit.manifest_crc) is not int:
        raise ValueError(f"the time or the checksum of generation {commit.generation} is no number")
    if any(base >= commit.generation for base in commit.bases):
        raise ValueError(f"generation {commit.generation} is based on {commit.bases}")
    return commit


def _parse_tables(found: Any, commit: Commit) -> dict[str, TableEntry]:
    if found is None:  # as most models
        return {}
    from windeck.checkpoint.tables.links import parse_tables

    tables = parse_tables(found, commit.generation, commit.save)
    for table in tables.values():
        for generation in sorted(table.bases - {commit.generation, *commit.bases}):
            raise ValueError(
                f"the table {table.name} refers to generation {generation}, expected one of "
                f"{list(commit.bases)}, as HEAD says"
            )
    return tables


def _check_kept(entries: Mapping[str, Entry], commit: Commit) -> None:
    """What is not among the bases, `gc` would take away."""
    for entry in entries.values():
        for part in entry.parts:
            for run in part.kept:
                if run.generation not in commit.bases:
                    raise ValueError(
                        f"{entry.name} keeps chunks of generation {run.generation}, expected one "
                        f"of {list(commit.bases)}, as HEAD says"
                    )


def _first_line(data: bytes, at: int) -> tuple[str, int]:
    """The line of a manifest that begins at `at`, and where the next one does."""
    end = data.find(b"\n", at)
    if end < 0:
        raise ValueError("it is one line of JSON, expected two")
    return str(memoryview(data)[at:end], "utf-8"), end + 1


def _unreadable(key: bytes, what: str, error: Exception) -> CorruptStoreError:
    return CorruptStoreError(f"{key.decode()} cannot be read as {what}: {error}")
