"""HEAD, which lists the committed generations, and manifests, which describe their contents.

A manifest is two lines of JSON. To list tensors, the first line is sufficient: the catalog::

    {"kinds": [{"dtype": "float32", "shape": [4, 3], "chunk_bytes": 1048576}, ...],
     "tensors": [0, 0, 1, ...], "trees": {"model": {"dict": ["weight", ...]}}, "tables": [...]}

`tensors` has for each tensor its index in `kinds`, in the order in which the trees first name the
tensors. A key without value in a dict of a tree is a tensor that is saved under the name of its
place: the names of the root and of all keys on the way to it, joined by slashes.

The second line lists the parts of each tensor, in the same order. A part is ``[writer, item]`` if
it is the whole tensor. Otherwise its box follows, ``[[0, 4], [0, 3]]`` (null: the whole tensor),
and the ranges of chunks that older saves wrote, if there are any.

References to older saves are not chained: they name the save that wrote the data. The generations
that a manifest refers to are the `bases` of its commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from windeck._core import crc32c
from windeck._util.validation import check_integer
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.catalogs import (
    Catalog,
    TensorKind,
    check_size,
    expand_tree,
    parse_catalog,
    shorten_tree,
)
from windeck.checkpoint.format.entries import TensorEntry, parse_entries
from windeck.checkpoint.format.state_json import tensor_places
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError

if TYPE_CHECKING:
    from windeck.checkpoint.format.table_entries import TableEntry
    from windeck.checkpoint.stores.protocol import Values

__all__ = [
    "LONGEST_CHAIN",
    "Commit",
    "Head",
    "can_extend_chain",
    "check_generation",
    "check_manifest",
    "check_tag",
    "encode_head",
    "encode_json",
    "encode_manifest",
    "encode_next",
    "find_bases",
    "find_commit",
    "is_known_save",
    "move_tag",
    "parse_manifest",
    "parse_next",
    "read_catalog",
    "read_commits",
    "read_existing_head",
    "read_head",
    "read_manifest",
    "remember_save",
    "select_commit",
]


def encode_json(value: Any) -> bytes:
    """Encode a value as one line of ASCII JSON, without NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def encode_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Encode a manifest as it is stored.

    Parameters
    ----------
    manifest
        Of one process, or the merged manifests of the writers: ``"chunk_bytes"``, ``"tensors"``,
        ``"trees"`` and ``"tables"``. A part without ``"writer"`` is of writer 0.

    Raises
    ------
    ValueError
        For duplicate tensors, tensors that no tree names, and names without a tensor.

    Examples
    --------
    >>> w = {"name": "m/w", "dtype": "int8", "shape": [2]}
    >>> w["parts"] = [{"box": [[0, 2]], "writer": 0, "item": 7}]
    >>> tree = {"dict": [["w", {"tensor": "m/w"}], ["lr", 0.1]]}
    >>> first, second = encode_manifest(
    ...     {"chunk_bytes": 16, "tensors": [w], "trees": {"m": tree}}
    ... ).splitlines()
    >>> json.loads(first)["kinds"]
    [{'dtype': 'int8', 'shape': [2], 'chunk_bytes': 16}]
    >>> first[-54:], second
    (b'"tensors":[0],"trees":{"m":{"dict":["w",["lr",0.1]]}}}', b'[[[0,7]]]')
    """
    entries: dict[str, Mapping[str, Any]] = {}
    for entry in manifest["tensors"]:
        if entry["name"] in entries:
            raise ValueError(f"the tensor {entry['name']} is listed twice, expected once")
        entries[entry["name"]] = entry
    trees = manifest["trees"]
    ordered = dict.fromkeys(chain(*(tensor_places(tree, root)[1] for root, tree in trees.items())))
    for name in ordered.keys() ^ entries.keys():
        what = "is in no tree" if name in entries else "is in a tree, but is missing"
        raise ValueError(f"the tensor {name} {what}, expected tensors and trees to agree")
    kinds: dict[TensorKind, int] = {}
    numbers, parts = list[int](), list[Any]()
    for name in ordered:
        entry = entries[name]
        chunk_bytes = entry.get("chunk_bytes", manifest["chunk_bytes"])
        kind = TensorKind(entry["dtype"], tuple(entry["shape"]), chunk_bytes)
        numbers.append(kinds.setdefault(kind, len(kinds)))
        parts.append([_encode_part(part, kind.shape) for part in entry["parts"]])
    short = {root: shorten_tree(tree, root) for root, tree in trees.items()}
    distinct = [kind._asdict() for kind in kinds]
    catalog = {"kinds": distinct, "tensors": numbers, "trees": short}
    if "tables" in manifest:
        catalog["tables"] = manifest["tables"]
    return encode_json(catalog) + b"\n" + encode_json(parts)


def _encode_part(part: Mapping[str, Any], shape: tuple[int, ...]) -> list[Any]:
    found = [part.get("writer", 0), part["item"]]
    box = tuple(map(tuple, part["box"]))
    if box != tuple((0, size) for size in shape):
        found.append(box)
    elif "kept" in part:
        found.append(None)
    return [*found, part["kept"]] if "kept" in part else found


#: Default for the number of generations that a save may be based on.
LONGEST_CHAIN = 8
#: Tags: letters, digits and some signs, at least one of them no digit.
_TAG = re.compile(r"(?=.*[^0-9])[A-Za-z0-9_.+=:@/-]{1,100}")
#: The option that is added to the URL of a store that is opened for reading.
_ADDED = re.compile(r"[?&](readonly=1|create=0)$")
#: Errors of code that parses invalid JSON.
_UNREADABLE = (AttributeError, KeyError, RecursionError, TypeError, ValueError)


class Commit(NamedTuple):
    """A committed generation.

    Attributes
    ----------
    generation
        Its number. Numbers grow, with gaps.
    save
        The random number of the save that wrote it.
    step
        The step that the user gave.
    time
        Seconds since 1970, by the clock of the process that committed it.
    manifest_bytes, manifest_crc
        Size and CRC32C of the stored manifest.
    bases
        The older generations whose data its manifest refers to, ascending; none for a full save.
    tags
        Its tags, sorted. `gc` keeps a generation that has any.
    """

    generation: int
    save: int
    step: int
    time: float
    manifest_bytes: int
    manifest_crc: int
    bases: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()


def can_extend_chain(current: Commit, longest_chain: int) -> bool:
    """Return True if the next save may refer to the current generation and its bases.

    Otherwise the next save writes all tensors and tables, and begins a new chain.

    Examples
    --------
    >>> can_extend_chain(Commit(7, 0, 70, 0.0, 0, 0, bases=(3, 5)), 3)
    True
    >>> can_extend_chain(Commit(7, 0, 70, 0.0, 0, 0, bases=(3, 5)), 2)
    False
    """
    return len(current.bases) + 1 <= longest_chain


def find_bases(manifest: Mapping[str, Any], generation: int) -> tuple[int, ...]:
    """Return the other generations that a manifest (JSON) refers to, ascending."""
    ranges = (span for tensor in manifest["tensors"] for part in tensor["parts"]
            for span in part.get("kept", ()))  # fmt: skip
    links = (link for table in manifest.get("tables", ()) for link in table["links"])
    found = {span[2] for span in ranges} | {link["generation"] for link in links}
    return tuple(sorted(found - {generation}))


class Head(NamedTuple):
    """The contents of HEAD.

    Attributes
    ----------
    value
        The stored value; None without HEAD.
    commits
        The generations kept, newest first; none before the first commit.
    removed
        The last generation of those that `gc` removed before the first commit; 0 for none. A save
        of one of them cannot be committed any more.
    """

    value: bytes | None
    commits: list[Commit]
    removed: int = 0


def encode_head(commits: Sequence[Commit], *, removed: int = 0) -> bytes:
    """Encode the value of HEAD."""
    kept = [commit._asdict() for commit in commits]
    tags = {tag: entry["generation"] for entry in kept for tag in entry.pop("tags")}
    content = {"kept": kept, "removed": removed, "tags": tags}
    return encode(Label(Kind.HEAD), encode_json(content))


def read_head(values: Values, namespace: str) -> Head:
    """Return the contents of HEAD.

    Raises
    ------
    CorruptStoreError
        When it is damaged; or missing, though others are there: HEAD is written first.
    """
    key = keys.head(namespace)
    value = values.get(key)
    if value is None:
        _check_no_values(values, namespace)
        return Head(None, [])
    payload = decode(key, value, Label(Kind.HEAD))
    try:
        content = json.loads(bytes(payload))
        commits = [_parse_commit(entry) for entry in content["kept"]]
        commits = _with_tags(commits, content["tags"])
        head = Head(value, commits, check_size(content["removed"]))
    except _UNREADABLE as error:
        raise _unreadable(key, "a HEAD", error) from error
    return head


def encode_next(number: int) -> bytes:
    """Encode the value of NEXT, the number of the next generation."""
    return encode(Label(Kind.NEXT), number.to_bytes(8, "little"))


def parse_next(namespace: str, value: bytes | None) -> int | None:
    """Return the number of the next generation; None if none was reserved.

    Raises
    ------
    CorruptStoreError
        When it is damaged.
    """
    if value is None:
        return None
    key = keys.next_generation(namespace)
    number = int.from_bytes(decode(key, value, Label(Kind.NEXT), length=8), "little")
    if number >= 1 << 62:
        raise CorruptStoreError(
            f"{key.decode()} holds {number}, expected the number of a generation"
        )
    return number


def _check_no_values(values: Values, namespace: str) -> None:
    """Raise a CorruptStoreError if there is a manifest, or the number of the next generation."""
    list_keys = getattr(values, "keys", None) if hasattr(values, "scan") else None
    names = list_keys(keys.kind_prefix(namespace, "m")) if list_keys else ()
    found = next((name for name in names if keys.parse(namespace, name) is not None), None)
    following = keys.next_generation(namespace)
    if found is None and values.get(following) is not None:
        found = following
    if found is not None:
        raise CorruptStoreError(
            f"the key {namespace}/HEAD is missing{_at_url(values)}, expected it since there is "
            f"{found.decode()}: restore it from a copy, or remove all keys of the namespace to "
            "begin anew"
        )


def _at_url(values: Values) -> str:
    url = _ADDED.sub("", getattr(values, "url", ""))  # a snapshot has none
    return f" at {url}" if url else ""


#: Random numbers of the saves that this process began, or read a checkpoint after.
_known_saves: set[int] = set()


def remember_save(save: int) -> None:
    """Remember that this process continues from a save."""
    _known_saves.add(save)


def is_known_save(save: int) -> bool:
    """Return True if this process continues from a save: it began it, or read it."""
    return save in _known_saves


def read_commits(values: Values, namespace: str) -> list[Commit]:
    """Return the commits, newest first; raise FileNotFoundError if there is no checkpoint."""
    return read_existing_head(values, namespace).commits


def read_existing_head(values: Values, namespace: str) -> Head:
    """Return the contents of HEAD; raise FileNotFoundError if there is no checkpoint."""
    head = read_head(values, namespace)
    if not head.commits:
        raise FileNotFoundError(
            f"there is no checkpoint{_at_url(values)}: expected the key {namespace}/HEAD"
        )
    return head


def find_commit(values: Values, namespace: str, generation: int | str | None) -> Commit:
    """Return the commit of a generation or a tag, by default of the current generation.

    This process may save after the current one then. Raises as `select_commit`, and a
    FileNotFoundError when there is no checkpoint.
    """
    check_generation(generation)
    commits = read_commits(values, namespace)
    remember_save(commits[0].save)
    return select_commit(commits, namespace, generation)


def check_generation(generation: int | str | None) -> None:
    if generation is not None and type(generation) not in (int, str):
        raise TypeError(
            f"generation is of type {type(generation).__name__}, expected int, the str of a tag, "
            "or None"
        )


def select_commit(
    commits: Sequence[Commit], namespace: str, generation: int | str | None
) -> Commit:
    """Return the commit of a generation or a tag; None: the first one.

    Raises
    ------
    FileNotFoundError
        When there is no such generation or tag.
    TypeError
        When `generation` is not an int, a str or None.
    """
    check_generation(generation)
    if generation is None:
        return commits[0]
    for commit in commits:
        if commit.generation == generation or generation in commit.tags:
            return commit
    if isinstance(generation, str):
        tags = ", ".join(sorted(tag for commit in commits for tag in commit.tags)) or "none"
        raise FileNotFoundError(
            f"there is no tag {generation[:100]!r} in {namespace}, expected one of its tags: {tags}"
        )
    kept = ", ".join(str(commit.generation) for commit in commits)
    raise FileNotFoundError(
        f"there is no generation {generation} in {namespace}, expected one of {kept}"
    )


def check_tag(tag: str) -> str:
    """Return the tag; raise TypeError or ValueError if it is not valid.

    Examples
    --------
    >>> check_tag("best/val-loss")
    'best/val-loss'
    """
    if not isinstance(tag, str):
        raise TypeError(f"expected a tag of type str, got {type(tag).__name__}")
    if not _TAG.fullmatch(tag):
        raise ValueError(
            "expected a tag of 1 to 100 ASCII letters, digits and any of _.+=:@/-, not of digits "
            f"alone, got {tag[:100]!r}"
        )
    return tag


def move_tag(commits: Sequence[Commit], tag: str, generation: int | None) -> list[Commit]:
    """Return the commits with a tag on one generation and on no other; None: on none.

    Examples
    --------
    >>> older, newer = Commit(1, 0, 10, 0.0, 0, 0, tags=("best",)), Commit(2, 0, 20, 0.0, 0, 0)
    >>> [commit.tags for commit in move_tag([newer, older], "best", 2)]
    [('best',), ()]
    """
    moved = []
    for commit in commits:
        tags = {*commit.tags} - {tag} | ({tag} if commit.generation == generation else set())
        moved.append(commit._replace(tags=tuple(sorted(tags))))
    return moved


def _with_tags(commits: list[Commit], tags: Mapping[str, int]) -> list[Commit]:
    """Return the commits with the tags of a HEAD."""
    found: dict[int, list[str]] = {commit.generation: [] for commit in commits}
    for tag, generation in tags.items():
        if type(generation) is not int or generation not in found:
            raise ValueError(
                f"the tag {check_tag(tag)} is of generation {str(generation)[:80]!r}, expected "
                f"one of {sorted(found)}"
            )
        found[generation].append(check_tag(tag))
    return [one._replace(tags=tuple(sorted(found[one.generation]))) for one in commits]


def read_catalog(values: Values, namespace: str, commit: Commit) -> Catalog:
    """Read the names, dtypes and shapes of a generation, without the locations of their data.

    `tables` has entries by name, as in `read_manifest`.
    """
    with _manifest_value(values, namespace, commit) as value:
        catalog = parse_catalog(_first_line(value, HEADER_BYTES)[0])
        return catalog._replace(tables=_parse_tables(catalog.tables, commit))


def read_manifest(values: Values, namespace: str, commit: Commit) -> dict[str, Any]:
    """Read the manifest of a generation, and check it against its commit.

    Returns
    -------
    dict
        ``"tensors"``, entries by name; ``"trees"``, state by root; ``"places"``, of each root what
        `iter_tensors` gives; ``"tables"``, entries by name.
    """
    with _manifest_value(values, namespace, commit) as value:
        return parse_manifest(value, commit, at=HEADER_BYTES)


def parse_manifest(data: bytes, commit: Commit, *, at: int = 0) -> dict[str, Any]:
    """Parse a manifest that begins at an offset of some bytes, as `read_manifest` returns it.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        When it is not valid.
    """
    line, rest = _first_line(data, at)
    catalog = parse_catalog(line)
    parts = json.loads(str(memoryview(data)[rest:], "utf-8"))
    entries = parse_entries(catalog, parts, commit.generation, commit.save)
    tables = _parse_tables(catalog.tables, commit)
    _check_kept(entries, commit)
    trees = {root: expand_tree(tree, root) for root, tree in catalog.trees.items()}
    places = {root: [*zip(catalog.names[root], catalog.data[root], strict=True)] for root in trees}
    return {"tensors": entries, "trees": trees, "places": places, "tables": tables}


def check_manifest(manifest: Mapping[str, Any], generation: int, save: int) -> None:
    """Raise ValueError or TypeError, as a reader would, if the manifest is not valid."""
    bases = find_bases(manifest, generation)
    parse_manifest(encode_manifest(manifest), Commit(generation, save, 0, 0.0, 0, 0, bases))


@contextmanager
def _manifest_value(values: Values, namespace: str, commit: Commit) -> Iterator[bytes]:
    """Yield the value of a manifest; errors of parsing it become a CorruptStoreError."""
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


def _parse_commit(found: Mapping[str, Any]) -> Commit:
    commit = Commit(**{**found, "bases": tuple(map(check_size, found["bases"])),
                       "tags": ()})  # fmt: skip
    for name in ("generation", "save", "step", "manifest_bytes"):
        check_integer(name, getattr(commit, name))
    if type(commit.time) not in (float, int) or type(commit.manifest_crc) is not int:
        raise ValueError(f"generation {commit.generation} has a time or checksum of another type")
    if any(base >= commit.generation for base in commit.bases):
        raise ValueError(f"generation {commit.generation} is based on {commit.bases}")
    return commit


def _parse_tables(found: Any, commit: Commit) -> dict[str, TableEntry]:
    if found is None:  # most models have none
        return {}
    from windeck.checkpoint.format.table_entries import parse_tables  # needs NumPy

    tables = parse_tables(found, commit.generation, commit.save)
    for table in tables.values():
        for generation in sorted(table.bases - {commit.generation, *commit.bases}):
            raise ValueError(
                f"the table {table.name} refers to generation {generation}, expected one of "
                f"{list(commit.bases)}, the bases in HEAD"
            )
    return tables


def _check_kept(entries: Mapping[str, TensorEntry], commit: Commit) -> None:
    """Raise ValueError for a reference to data that `gc` would remove: not of one of the bases."""
    for entry in entries.values():
        for part in entry.parts:
            for span in part.kept:
                if span.generation not in commit.bases:
                    raise ValueError(
                        f"{entry.name} refers to chunks of generation {span.generation}, expected "
                        f"one of {list(commit.bases)}, the bases in HEAD"
                    )


def _first_line(data: bytes, at: int) -> tuple[str, int]:
    """Return the line of a manifest that begins at an offset, and the offset of the next line."""
    end = data.find(b"\n", at)
    if end < 0:
        raise ValueError("expected two lines of JSON, found one")
    return str(memoryview(data)[at:end], "utf-8"), end + 1


def _unreadable(key: bytes, what: str, error: Exception) -> CorruptStoreError:
    return CorruptStoreError(f"{key.decode()} cannot be read as {what}: {error}")
