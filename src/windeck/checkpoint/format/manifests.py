"""The text of a manifest: two lines of JSON, of which who only lists tensors reads the first.

The first line, the catalog, says what there is::

    {"kinds": [{"dtype": "float32", "shape": [4, 3], "chunk_bytes": 1048576}, ...],
     "tensors": [0, 0, 1, ...], "trees": {"model": {"dict": ["weight", ...]}}, "tables": [...]}

`tensors` has the place in `kinds` of each tensor, in the order in which the trees name them first.
A key that stands alone in a dict of a tree is a tensor that is saved under the name of its place.

The second line says where the tensors' data are, in the same order: of each its parts, a part being
``[writer, item]`` where it is the whole tensor; else its box follows, ``[[0, 4], [0, 3]]`` (null:
the whole), and the runs of chunks that were not written anew, if there are any.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from windeck._core import crc32c
from windeck._util.validation import check_integer
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.trees import places_in
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError

if TYPE_CHECKING:
    from windeck.checkpoint.format.entries import Entry
    from windeck.checkpoint.format.table_entries import TableEntry
    from windeck.checkpoint.stores.protocol import Values

__all__ = [
    "Catalog",
    "Commit",
    "TensorKind",
    "as_json",
    "as_lines",
    "catalog_of",
    "check_manifest",
    "check_size",
    "encode_head",
    "find_commit",
    "parse_manifest",
    "read_catalog",
    "read_head",
    "read_kept",
    "read_manifest",
    "whole_tree",
]


class TensorKind(NamedTuple):
    """What a tensor is, beside its name."""

    dtype: str
    shape: tuple[int, ...]
    chunk_bytes: int


class Catalog(NamedTuple):
    """What the first line says.

    Attributes
    ----------
    kinds
        What tensors are, each once.
    tensors
        By the names that data are under, in the order in which the trees name them: of which kind.
    trees
        State by root, as stored: see `whole_tree`.
    names, data
        By root, as `places_in` gives them: what each tensor is called, what its data are.
    tables
        As JSON.
    """

    kinds: list[TensorKind]
    tensors: dict[str, int]
    trees: dict[str, Any]
    names: dict[str, list[str]]
    data: dict[str, list[str]]
    tables: Any


def as_json(value: Any) -> bytes:
    """JSON as it is stored: ASCII, no NaN, one line."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def as_lines(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored.

    Parameters
    ----------
    manifest
        What writers agree on: ``"chunk_bytes"``, ``"tensors"``, ``"trees"`` and ``"tables"``.

    Raises
    ------
    ValueError
        For tensors that are there twice, or that no tree names, and names that are no tensors.

    Examples
    --------
    >>> w = {"name": "m/w", "dtype": "int8", "shape": [2]}
    >>> w["parts"] = [{"box": [[0, 2]], "writer": 0, "item": 7}]
    >>> tree = {"dict": [["w", {"tensor": "m/w"}], ["lr", 0.1]]}
    >>> first, second = as_lines(
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
            raise ValueError(f"{entry['name']} is there twice, expected each tensor once")
        entries[entry["name"]] = entry
    trees = manifest["trees"]
    ordered = dict.fromkeys(chain(*(places_in(tree, root)[1] for root, tree in trees.items())))
    for name in ordered.keys() ^ entries.keys():
        what = "is in no tree" if name in entries else "is named by a tree, and not there"
        raise ValueError(f"the tensor {name} {what}, expected tensors and trees to agree")
    kinds: dict[str, int] = {}
    numbers, parts, stated = list[int](), list[Any](), list[Any]()
    for name in ordered:
        entry = entries[name]
        kind = {"dtype": entry["dtype"], "shape": entry["shape"]}
        kind["chunk_bytes"] = entry.get("chunk_bytes", manifest["chunk_bytes"])
        number = kinds.setdefault(repr(kind), len(kinds))
        if number == len(stated):
            stated.append(kind)
        numbers.append(number)
        parts.append([_stored(part, entry["shape"]) for part in entry["parts"]])
    short = {root: _shortened(tree, root) for root, tree in trees.items()}
    catalog = {"kinds": stated, "tensors": numbers, "trees": short}
    if "tables" in manifest:
        catalog["tables"] = manifest["tables"]
    return as_json(catalog) + b"\n" + as_json(parts)


def catalog_of(line: str) -> Catalog:
    """What the first line of a manifest says, all of it checked but the tables.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        For what cannot be one.
    """
    found = json.loads(line)
    kinds, numbers, trees = [*map(_kind, found["kinds"])], found["tensors"], found["trees"]
    if type(trees) is not dict:
        raise ValueError(f"expected trees by root, found {str(trees)[:80]!r}")
    names, data = dict[str, list[str]](), dict[str, list[str]]()
    for root, tree in trees.items():
        names[root], data[root] = places_in(tree, root, short=True)
    ordered = dict.fromkeys(chain(*data.values()))
    if type(numbers) is not list or len(numbers) != len(ordered):
        raise ValueError(
            f"its trees name {len(ordered):,} tensors, expected as many kinds of tensors, found "
            f"{str(numbers)[:80]}"
        )
    if {*map(type, numbers)} - {int} or (
        numbers and not 0 <= min(numbers) <= max(numbers) < len(kinds)
    ):
        raise ValueError(
            f"its tensors are of kinds {str(numbers)[:80]}, expected numbers below {len(kinds)}"
        )
    tensors = dict(zip(ordered, numbers, strict=True))
    return Catalog(kinds, tensors, trees, names, data, found.get("tables"))


def whole_tree(tree: Any, name: str) -> Any:
    """A tree of a catalog as `trees` knows it, where all keys have values.

    Examples
    --------
    >>> whole_tree({"dict": ["w", ["lr", 0.1]]}, "m")
    {'dict': [['w', {'tensor': 'm/w'}], ['lr', 0.1]]}
    """
    if type(tree) is list:
        return [whole_tree(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": whole_tree(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {
        "dict": [
            [item, {"tensor": f"{name}/{item}"}]
            if type(item) is str
            else [item[0], whole_tree(item[1], f"{name}/{item[0]}")]
            for item in tree["dict"]
        ]
    }


def _shortened(tree: Any, name: str) -> Any:
    """The reverse of `whole_tree`."""
    if type(tree) is list:
        return [_shortened(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": _shortened(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {"dict": [*_shortened_items(tree["dict"], name)]}


def _shortened_items(pairs: Sequence[Sequence[Any]], name: str) -> Iterator[Any]:
    for key, item in pairs:
        place = f"{name}/{key}"
        alone = type(key) is str and item == {"tensor": place}
        yield key if alone else [key, _shortened(item, place)]


def _stored(part: Mapping[str, Any], shape: Sequence[int]) -> list[Any]:
    box = [list(side) for side in part["box"]]
    found = [part["writer"], part["item"], None if box == [[0, n] for n in shape] else box]
    if "kept" in part:
        return [*found, part["kept"]]
    return found if found[2] is not None else found[:2]


def _kind(found: Mapping[str, Any]) -> TensorKind:
    dtype, shape = found["dtype"], tuple(map(check_size, found["shape"]))
    if type(dtype) is not str:
        raise ValueError(f"a tensor has dtype {str(dtype)[:80]!r}, expected the name of one")
    if math.prod(shape) * 16 >= 1 << 63:
        raise ValueError(f"a tensor has shape {shape}, more than can be")
    return TensorKind(dtype, shape, max(1, check_size(found["chunk_bytes"])))


#: Returns a value of a manifest if it is an integer from 0 to 2^63 - 1.
check_size = partial(check_integer, "a size")

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
    commit = Commit(**{**found, "bases": tuple(map(check_size, found.get("bases", ())))})
    for name in ("generation", "save", "step", "manifest_bytes"):
        check_integer(name, getattr(commit, name))
    if type(commit.time) not in (float, int) or type(commit.manifest_crc) is not int:
        raise ValueError(f"the time or the checksum of generation {commit.generation} is no number")
    if any(base >= commit.generation for base in commit.bases):
        raise ValueError(f"generation {commit.generation} is based on {commit.bases}")
    return commit


def _parse_tables(found: Any, commit: Commit) -> dict[str, TableEntry]:
    if found is None:  # as most models
        return {}
    from windeck.checkpoint.format.table_entries import parse_tables

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
