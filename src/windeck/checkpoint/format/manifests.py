"""What is written about a generation: HEAD, the manifest, and how they are read back.

HEAD lists the generations kept, newest first, each with the random number of its save and the
bytes and the CRC32C of its manifest; the first is in force. All of it is JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from windeck._core import crc32c
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.entries import Entry, Part, Run, parse_entries, whole_number
from windeck.checkpoint.format.trees import tensors_in
from windeck.checkpoint.format.values import Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError, View

if TYPE_CHECKING:
    from windeck.checkpoint.tables.links import TableEntry

__all__ = ["Commit", "Entry", "Part", "Run", "as_json", "encode_head", "find_commit"]
__all__ += ["parse_entries", "parse_manifest", "read_head", "read_manifest"]

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


def as_json(value: Any) -> bytes:
    """JSON as it is stored: ASCII, no NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def encode_head(commits: Sequence[Commit]) -> bytes:
    """The value of HEAD."""
    return encode(Label(Kind.HEAD), as_json({"kept": [commit._asdict() for commit in commits]}))


def read_head(view: View, namespace: str) -> tuple[bytes | None, list[Commit]]:
    """The value of HEAD as stored, and the generations it keeps; (None, []) where there is none."""
    key = keys.head(namespace)
    value = view.get(key)
    if value is None:
        return None, []
    payload = decode(key, value, Label(Kind.HEAD))
    try:
        return value, [_commit(entry) for entry in json.loads(bytes(payload))["kept"]]
    except _UNREADABLE as error:
        raise _unreadable(key, "a HEAD", error) from error


def find_commit(view: View, namespace: str, generation: int | None) -> Commit:
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
    value, commits = read_head(view, namespace)
    if value is None or not commits:
        raise FileNotFoundError(f"there is no checkpoint: expected the key {namespace}/HEAD")
    if generation is None:
        return commits[0]
    for commit in commits:
        if commit.generation == generation:
            return commit
    kept = ", ".join(str(commit.generation) for commit in commits)
    raise FileNotFoundError(
        f"there is no generation {generation} in {namespace}, expected one of {kept}"
    )


def read_manifest(
    view: View, namespace: str, commit: Commit, *, parts: bool = True
) -> dict[str, Any]:
    """The manifest of a generation, compared with what HEAD says of it.

    Parameters
    ----------
    parts
        False: of tensors, their names, dtypes and shapes alone.

    Returns
    -------
    dict
        ``"tensors"``, entries by name; ``"trees"``, state by root; ``"places"``, of each root what
        `tensors_in` gives; ``"tables"``, entries by name.
    """
    key = keys.manifest(namespace, commit.generation)
    value = view.get(key)
    payload = decode(key, value, Label(Kind.MANIFEST, commit.generation, commit.save))
    if value is None or (len(value), crc32c(value)) != (commit.manifest_bytes, commit.manifest_crc):
        raise CorruptStoreError(
            f"{key.decode()} is not the manifest that {namespace}/HEAD was committed with: "
            f"expected {commit.manifest_bytes:,} bytes with CRC32C {commit.manifest_crc:08x}"
        )
    try:
        return parse_manifest(str(payload, "utf-8"), commit, parts=parts)
    except _UNREADABLE as error:
        raise _unreadable(key, "a manifest", error) from error


def parse_manifest(payload: str | bytes, commit: Commit, *, parts: bool = True) -> dict[str, Any]:
    """What `read_manifest` gives, of the JSON of a manifest.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        For what cannot be one.
    """
    found = json.loads(payload, object_hook=None if parts else _without_part)
    entries = parse_entries(found, commit.generation, commit.save, parts=parts)
    tables = _parse_tables(found["tables"], commit) if "tables" in found else {}
    _check_bases(entries, tables, commit)
    roots = found["trees"]
    if type(roots) is not dict:
        raise ValueError(f"expected trees by root, found {str(roots)[:80]!r}")
    places = {root: list(tensors_in(tree, root)) for root, tree in roots.items()}
    for place, name in itertools.chain.from_iterable(places.values()):
        if name not in entries:
            raise ValueError(f"{place} refers to {name}, which is none of its tensors")
    return {"tensors": entries, "trees": roots, "places": places, "tables": tables}


def _without_part(found: dict[str, Any]) -> dict[str, Any] | None:
    """Lets go of a part as soon as it is read: its memory, untouched before, serves the next."""
    return None if "box" in found else found


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
    from windeck.checkpoint.tables.links import parse_tables  # most models have none

    return parse_tables(found, commit.generation, commit.save)


def _check_bases(
    entries: Mapping[str, Entry], tables: Mapping[str, TableEntry], commit: Commit
) -> None:
    """What is not among the bases, `gc` would take away."""
    for table in tables.values():
        for generation in sorted(table.bases - {commit.generation, *commit.bases}):
            raise ValueError(
                f"the table {table.name} refers to generation {generation}, expected one of "
                f"{list(commit.bases)}, as HEAD says"
            )
    for entry in entries.values():
        for part in entry.parts:
            for run in part.kept:
                if run.generation not in commit.bases:
                    raise ValueError(
                        f"{entry.name} keeps chunks of generation {run.generation}, expected one "
                        f"of {list(commit.bases)}, as HEAD says"
                    )


def _unreadable(key: bytes, what: str, error: Exception) -> CorruptStoreError:
    return CorruptStoreError(f"{key.decode()} cannot be read as {what}: {error}")
