"""What `verify` tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.manifests import Commit, read_kept, read_manifest
from windeck.checkpoint.format.payloads import (
    ExpectedKey,
    Holding,
    expected_keys,
    holdings_of,
    values_of,
)
from windeck.checkpoint.format.values import Kind, Label, decode
from windeck.checkpoint.stores import CorruptStoreError, Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable

__all__ = ["Damage", "Report", "verify"]


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong.

    Attributes
    ----------
    key
        Of the value that it is about; "" for what is about none.
    name
        The tensor or table, "" for what is none.
    generation
        The newest one that it concerns.
    problem
        A sentence.
    """

    key: str
    name: str
    generation: int
    problem: str


@dataclass
class Report:
    """What `verify` found.

    Attributes
    ----------
    generations
        Those that were looked at, the one in force first.
    values, bytes
        How many values are referred to; how many bytes of them were read and compared with
        their sums, which without `deep` are those of manifests alone.
    damages
        Everything that is wrong.
    unreferenced, unreferenced_keys
        How many keys of the namespace nobody refers to: left by saves that were killed, or of one
        that goes on. They do no harm, `gc` removes those that are older than the one in force.
        The first thousand of them.
    """

    generations: list[int] = field(default_factory=list)
    values: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    unreferenced: int = 0
    unreferenced_keys: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damages


#: Keys that nobody refers to, shown at most.
_SHOWN = 1000
#: Damages after which no more are looked for: what a manifest says is there may be without end.
MOST = 100_000


def verify(
    store: Store | str,
    *,
    deep: bool = False,
    generation: int | None = None,
    namespace: str = "windeck",
) -> Report:
    """Look for damage in a checkpoint.

    Parameters
    ----------
    store
        An open store or the URL of one; nothing is written.
    deep
        Read every value of every generation kept, and compare it with its sums; tables are also
        read as a whole. Otherwise HEAD, NEXT and all manifests are read, and of other values only
        whether they are there.
    generation
        One of `log`; None: all that are kept.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        When the store cannot be reached. Damage is no error: it is in the report.

    Notes
    -----
    O(keys) time, O(bytes) for `deep`; memory of some chunks, of manifests, and of the damage.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> number = checkpoint.save(store, step=1, model={"w": torch.ones(3)})
    >>> verify(store, deep=True).ok
    True
    >>> store.delete_range(b"windeck/t/")
    >>> [damage.problem for damage in verify(store).damages]
    ['windeck/t/0000000000000001/00000000/00000000/00000000 is missing, expected a chunk']
    """
    keys.check_namespace(namespace)
    if generation is not None and type(generation) is not int:
        raise TypeError(f"generation is of type {type(generation).__name__}, expected int or None")
    with opened(store, reading=True) as view:
        return _Verification(view, namespace, deep, generation).run()


class _Enough(Exception):
    """There is as much damage as is told."""


class _Verification:
    def __init__(self, view: View, namespace: str, deep: bool, generation: int | None) -> None:
        self._view, self._namespace, self._deep = view, namespace, deep
        self._only = generation
        self.report = Report()
        self._manifests: list[tuple[Commit, dict[str, Any]]] = []
        self._holdings: list[tuple[int, Holding]] = []

    def run(self) -> Report:
        with suppress(_Enough):
            self._run()
        return self.report

    def _run(self) -> None:
        commits = self._head()
        if commits is None:
            return
        self._next(commits)
        wanted = [c for c in commits if self._only in (None, c.generation)]
        self.report.generations = [commit.generation for commit in wanted]
        for commit in wanted:
            self._manifest(commit)
        missing = self._listed(commits)
        if self._deep:
            self._read_all(missing)
            for commit in wanted:
                self._own(commit)
            for commit, manifest in self._manifests:
                self._tables(commit, manifest)

    def _tell(self, problem: object, generation: int, key: str = "", name: str = "") -> None:
        words = getattr(problem, "strerror", None) or str(problem)
        self.report.damages.append(Damage(key, name, generation, words))
        if len(self.report.damages) >= MOST:
            words = f"that is damage in {MOST:,} places: it was not looked for more"
            self.report.damages.append(Damage("", "", generation, words))
            raise _Enough

    def _head(self) -> list[Commit] | None:
        key = keys.head(self._namespace).decode()
        try:
            commits = read_kept(self._view, self._namespace)
        except (CorruptStoreError, ValueError) as error:
            self._tell(error, 0, key)
            return None
        numbers = [commit.generation for commit in commits]
        if self._only is not None and self._only not in numbers:
            raise FileNotFoundError(
                f"there is no generation {self._only} in {self._namespace}, expected one of "
                f"{', '.join(map(str, numbers))}"
            )
        if numbers != sorted(set(numbers), reverse=True):
            self._tell(f"{key} lists generations {numbers}, expected them descending", 0, key)
        return commits

    def _next(self, commits: list[Commit]) -> None:
        key = keys.next_generation(self._namespace)
        newest = max(commit.generation for commit in commits)
        try:
            payload = decode(key, self._view.get(key), Label(Kind.NEXT), length=8)
        except (CorruptStoreError, ValueError) as error:
            self._tell(error, newest, key.decode())
            return
        number = int.from_bytes(payload, "little")
        if number <= newest:
            self._tell(
                f"{key.decode()} says {number}, expected more than the generation in force, "
                f"{newest}", newest, key.decode(),
            )  # fmt: skip

    def _manifest(self, commit: Commit) -> None:
        key = keys.manifest(self._namespace, commit.generation).decode()
        try:
            manifest = read_manifest(self._view, self._namespace, commit)
            holdings = [(commit.generation, holding) for holding in holdings_of(manifest)]
            for root, tree in manifest["trees"].items():
                _check_tree(key, root, tree)
        except (CorruptStoreError, ValueError) as error:
            self._tell(error, commit.generation, key)
            return
        self.report.bytes += commit.manifest_bytes
        self._holdings += holdings
        self._manifests.append((commit, manifest))

    def _listed(self, commits: list[Commit]) -> set[tuple[Holding, int]]:
        """Compare the keys there are with those referred to; what is missing."""
        missing: set[tuple[Holding, int]] = set()
        kept = {commit.generation for commit in commits}
        for letter in keys.LETTERS:
            own = [pair for pair in self._holdings if pair[1].letter == letter]
            expected = expected_keys(self._namespace, own)
            try:
                for key, found in _merged(self._keys(letter), expected):
                    if found is None:
                        self._spare(letter, key, kept)
                        continue
                    self.report.values += 1
                    generation, holding, number, there = found
                    if not there:
                        missing.add((holding, number))
                        what = "chunk" if letter == "t" else "block" if letter == "e" else "index"
                        problem = f"{key.decode()} is missing, expected a {what}"
                        self._tell(problem, generation, key.decode(), holding.name)
            except CorruptStoreError as error:  # the rest of these keys cannot be listed
                self._tell(error, commits[0].generation, f"{self._namespace}/{letter}/")
        return missing

    def _keys(self, letter: str) -> Iterator[bytes]:
        return self._view.keys(f"{self._namespace}/{letter}/".encode())

    def _spare(self, letter: str, key: bytes, kept: set[int]) -> None:
        """A key that no holding refers to."""
        numbers = keys.numbers(self._namespace, key)
        # A generation's own manifest, its digests and what its writers said.
        if letter in "msd" and numbers is not None and numbers[0] in kept:
            return
        if self._only is not None:  # others may refer to it
            return
        self.report.unreferenced += 1
        if len(self.report.unreferenced_keys) < _SHOWN:
            self.report.unreferenced_keys.append(key.decode(errors="replace"))

    def _read_all(self, missing: set[tuple[Holding, int]]) -> None:
        asked: dict[bytes, int] = {}

        def wanted(letter: str) -> Iterator[tuple[Holding, int]]:
            own = [pair for pair in self._holdings if pair[1].letter == letter]
            for key, generation, holding, number in expected_keys(self._namespace, own):
                if (holding, number) not in missing:
                    asked[key] = generation
                    yield holding, number

        for letter in keys.LETTERS:
            for value in values_of(self._view, self._namespace, wanted(letter)):
                self.report.bytes += len(value.stored)
                generation = asked.pop(value.key)
                if value.error is not None:
                    self._tell(value.error, generation, value.key.decode(), value.holding.name)

    def _own(self, commit: Commit) -> None:
        """Digests, and what writers said: no checkpoint is read by them, but the next save is."""
        for letter, kind in (("d", Kind.DIGESTS), ("s", Kind.SHARD)):
            prefix = f"{self._namespace}/{letter}/{commit.generation:016x}/".encode()
            try:
                for key, value in self._view.scan(prefix):
                    self.report.bytes += len(value)
                    numbers = keys.numbers(self._namespace, key) or (0, 0)
                    label = Label(kind, commit.generation, commit.save, 0, *numbers[1:3])
                    try:
                        decode(key, value, label)
                    except (CorruptStoreError, ValueError) as error:
                        self._tell(error, commit.generation, key.decode(errors="replace"))
            except CorruptStoreError as error:  # the rest of these keys cannot be read
                self._tell(error, commit.generation, prefix.decode())

    def _tables(self, commit: Commit, manifest: Mapping[str, Any]) -> None:
        """Read tables as a whole, where their values are right one by one."""
        tables = manifest["tables"]
        damaged = {damage.name for damage in self.report.damages}
        for table in tables.values() if isinstance(tables, Mapping) else ():
            if table.name in damaged:
                continue
            problem = _table_problem(self._view, self._namespace, table)
            if problem:
                self._tell(problem, commit.generation, "", table.name)


def _table_problem(view: View, namespace: str, table: Any) -> str:
    rows = counted = 0
    try:
        for found in SavedTable(view, namespace, table).scan():
            admitted = int(found.admitted.sum())
            rows, counted = rows + admitted, counted + len(found.keys) - admitted
    except (CorruptStoreError, ValueError) as error:
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if (rows, counted) == (table.rows, table.counted):
        return ""
    return (
        f"the table {table.name} has {rows:,} rows and {counted:,} other ids, expected "
        f"{table.rows:,} and {table.counted:,} as its manifest says"
    )


def _check_tree(key: str, root: str, tree: Any) -> None:
    try:
        trees.decode(tree, lambda name: name)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptStoreError(f"{key} has state under {root} that cannot be read: {error}") from (
            error
        )


def _merged(
    there: Iterator[bytes], expected: Iterator[ExpectedKey]
) -> Iterator[tuple[bytes, tuple[int, Holding, int, bool] | None]]:
    """Keys that are there, expected, or both: with None for what is not expected."""
    key, wanted = next(there, None), next(expected, None)
    while key is not None or wanted is not None:
        if wanted is None or (key is not None and key < wanted[0]):
            assert key is not None
            yield key, None
            key = next(there, None)
            continue
        found = key == wanted[0]
        yield wanted[0], (*wanted[1:], found)
        key, wanted = next(there, None) if found else key, next(expected, None)
