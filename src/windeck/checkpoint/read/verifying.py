"""Verification of a checkpoint: missing and damaged values, and unreferenced keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windeck._util.options import explain_options
from windeck._util.progress import report_progress
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import (
    Commit,
    check_generation,
    parse_next,
    read_commits,
    read_manifest,
    select_commit,
)
from windeck.checkpoint.format.values import Kind, Label, decode
from windeck.checkpoint.read.scanning import (
    ExpectedKey,
    ValueRange,
    expected_keys,
    read_values,
    referenced_ranges,
)
from windeck.checkpoint.stores import CorruptStoreError, Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable

__all__ = ["Damage", "VerificationReport", "verify"]


@dataclass(frozen=True)
class Damage:
    """A damaged or missing value, or another inconsistency.

    Attributes
    ----------
    key
        Key of the value, or "".
    name
        Name of the tensor or table, or "".
    generation
        The newest generation that is affected.
    problem
        Description.
    """

    key: str
    name: str
    generation: int
    problem: str


@dataclass
class VerificationReport:
    """Result of `verify`.

    Attributes
    ----------
    generations
        The generations verified, the current one first.
    values, bytes
        Number of values that are referred to; bytes that were read and compared with their
        checksums, without `deep` only those of manifests.
    damages
        All damage found.
    unreferenced, unreferenced_keys
        Number of keys of the namespace without references, and the first thousand of them. Saves
        that were killed or are in progress leave them. They do no harm; `gc` removes those that are
        older than the current generation.
    """

    generations: list[int] = field(default_factory=list)
    values: int = 0
    bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    unreferenced: int = 0
    unreferenced_keys: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there is no damage."""
        return not self.damages


#: Maximum length of `VerificationReport.unreferenced_keys`.
_SHOWN = 1000
#: Number of damages after which verification stops, since a manifest may list any number.
MOST = 100_000


@explain_options
def verify(
    store: Store | str,
    *,
    deep: bool = False,
    generation: int | str | None = None,
    namespace: str = "windeck",
) -> VerificationReport:
    """Look for damage in a checkpoint.

    Parameters
    ----------
    store
        An open store or the URL of one; nothing is written.
    deep
        Read every value of every generation, and compare it with its checksums; also read tables
        as a whole. Otherwise read only HEAD, NEXT and all manifests, and check that the other
        values exist.
    generation
        A generation of `log`, or its tag; None: all of them.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation or tag.
    OSError
        When the store cannot be reached. Damage is not an error: it is in the report.

    Notes
    -----
    O(keys) time, O(bytes) for `deep`; memory for some chunks, the manifests and the damage.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> number = checkpoint.save(store, step=1, model={"w": torch.ones(3)})
    >>> verify(store, deep=True).ok
    True
    >>> store.delete_range(b"~windeck~")
    >>> [damage.problem for damage in verify(store).damages]
    ['~windeck~0000000000000001/t/00000000/00000000/00000000 is missing, expected a chunk']
    """
    keys.check_namespace(namespace)
    check_generation(generation)
    with opened(store, reading=True) as view:
        return _Verification(view, namespace, deep, generation).run()


class _LimitReached(Exception):
    """Raised when the report has as much damage as it may have."""


class _Verification:
    def __init__(
        self, view: View, namespace: str, deep: bool, generation: int | str | None
    ) -> None:
        self._view, self._namespace, self._deep = view, namespace, deep
        self._only = generation
        self.report = VerificationReport()
        self._manifests: list[tuple[Commit, dict[str, Any]]] = []
        self._ranges: list[tuple[int, ValueRange]] = []

    def run(self) -> VerificationReport:
        with suppress(_LimitReached):
            self._run()
        return self.report

    def _run(self) -> None:
        commits = self._check_head()
        if commits is None:
            return
        self._check_next(commits)
        wanted = [c for c in commits if self._only in (None, c.generation)]
        self.report.generations = [commit.generation for commit in wanted]
        for commit in wanted:
            self._check_manifest(commit)
        missing = self._find_missing(commits)
        if self._deep:
            self._read_all(missing)
            for commit in wanted:
                self._check_writers(commit)
            for commit, manifest in self._manifests:
                self._check_tables(commit, manifest)

    def _report(self, problem: object, generation: int, key: str = "", name: str = "") -> None:
        words = getattr(problem, "strerror", None) or str(problem)
        self.report.damages.append(Damage(key, name, generation, words))
        if len(self.report.damages) >= MOST:
            words = f"verification stopped after {MOST:,} damages"
            self.report.damages.append(Damage("", "", generation, words))
            raise _LimitReached

    def _check_head(self) -> list[Commit] | None:
        key = keys.head(self._namespace).decode()
        try:
            commits = read_commits(self._view, self._namespace)
        except (CorruptStoreError, ValueError) as error:
            self._report(error, 0, key)
            return None
        numbers = [commit.generation for commit in commits]
        if self._only is not None:
            self._only = select_commit(commits, self._namespace, self._only).generation
        if numbers != sorted(set(numbers), reverse=True):
            self._report(f"{key} lists generations {numbers}, expected descending numbers", 0, key)
        return commits

    def _check_next(self, commits: list[Commit]) -> None:
        key = keys.next_generation(self._namespace)
        newest = max(commit.generation for commit in commits)
        try:
            number = parse_next(self._namespace, self._view.get(key))
        except (CorruptStoreError, ValueError) as error:
            self._report(error, newest, key.decode())
            return
        if number is None:
            self._report(f"{key.decode()} is missing, expected a next", newest, key.decode())
        elif number <= newest:
            self._report(
                f"{key.decode()} is {number}, expected more than the current generation, "
                f"{newest}", newest, key.decode(),
            )  # fmt: skip

    def _check_manifest(self, commit: Commit) -> None:
        key = keys.manifest(self._namespace, commit.generation).decode()
        try:
            manifest = read_manifest(self._view, self._namespace, commit)
            ranges = [(commit.generation, values) for values in referenced_ranges(manifest)]
        except (CorruptStoreError, ValueError) as error:
            self._report(error, commit.generation, key)
            return
        self.report.bytes += commit.manifest_bytes
        self._ranges += ranges
        self._manifests.append((commit, manifest))

    def _find_missing(self, commits: list[Commit]) -> set[tuple[ValueRange, int]]:
        """Compare existing keys with those referred to, and return the missing values."""
        missing: set[tuple[ValueRange, int]] = set()
        kept = {commit.generation for commit in commits}
        for letter in (*keys.SMALL_LETTERS, "t"):  # the last one for all data
            prefix = keys.kind_prefix(self._namespace, letter)
            own = [
                r for r in self._ranges if keys.kind_prefix(self._namespace, r[1].letter) == prefix
            ]
            expected = expected_keys(self._namespace, own)
            try:
                for key, found in _compare_keys(self._view.keys(prefix), expected):
                    if found is None:
                        self._report_unreferenced(key, kept)
                        continue
                    self.report.values += 1
                    generation, values, number, exists = found
                    if not exists:
                        missing.add((values, number))
                        what = {"t": "chunk", "e": "block", "i": "index"}[values.letter]
                        problem = f"{key.decode()} is missing, expected a {what}"
                        self._report(problem, generation, key.decode(), values.name)
            except CorruptStoreError as error:  # the rest of these keys cannot be listed
                self._report(error, commits[0].generation, prefix.decode())
        return missing

    def _report_unreferenced(self, key: bytes, kept: set[int]) -> None:
        """Report a key that no manifest refers to."""
        letter, numbers = keys.parse(self._namespace, key) or ("", ())
        # The manifest of a generation, its digests and the manifests of its writers.
        if letter in ("m", "s", "d") and numbers[0] in kept:
            return
        # Other generations may refer to it, or it is of a namespace such as ``run/t``.
        if self._only is not None or keys.is_nested(self._namespace, key):
            return
        self.report.unreferenced += 1
        if len(self.report.unreferenced_keys) < _SHOWN:
            self.report.unreferenced_keys.append(key.decode(errors="replace"))

    def _read_all(self, missing: set[tuple[ValueRange, int]]) -> None:
        generation_of: dict[bytes, int] = {}

        def wanted() -> Iterator[tuple[ValueRange, int]]:
            for key, generation, values, number in expected_keys(self._namespace, self._ranges):
                if (values, number) not in missing:
                    generation_of[key] = generation
                    yield values, number

        with report_progress(None, "verifying", self.report.values) as advance:
            for value in read_values(self._view, self._namespace, wanted()):
                self.report.bytes += len(value.stored)
                generation = generation_of.pop(value.key)
                if value.error is not None:
                    self._report(value.error, generation, value.key.decode(), value.range.name)
                advance(1)

    def _check_writers(self, commit: Commit) -> None:
        """Check digests and manifests of writers, which the next incremental save reads."""
        for letter, kind in (("d", Kind.DIGESTS), ("s", Kind.SHARD)):
            prefix = keys.prefix(self._namespace, letter, commit.generation)
            try:
                for key, value in self._view.scan(prefix):
                    self.report.bytes += len(value)
                    _, numbers = keys.parse(self._namespace, key) or ("", (0, 0))
                    label = Label(kind, commit.generation, commit.save, 0, *numbers[1:3])
                    try:
                        decode(key, value, label)
                    except (CorruptStoreError, ValueError) as error:
                        self._report(error, commit.generation, key.decode(errors="replace"))
            except CorruptStoreError as error:  # the rest of these keys cannot be read
                self._report(error, commit.generation, prefix.decode())

    def _check_tables(self, commit: Commit, manifest: Mapping[str, Any]) -> None:
        """Read whole tables, unless a value of them is damaged."""
        damaged = {damage.name for damage in self.report.damages}
        for table in manifest["tables"].values():
            if table.name in damaged:
                continue
            problem = _table_problem(self._view, self._namespace, table)
            if problem:
                self._report(problem, commit.generation, "", table.name)


def _table_problem(view: View, namespace: str, table: Any) -> str:
    rows = counted = 0
    ids = table.rows + table.counted
    try:
        with report_progress(None, f"verifying {table.name}", ids) as advance:
            for found in SavedTable(view, namespace, table).scan():
                admitted = int(found.admitted.sum())
                rows, counted = rows + admitted, counted + len(found.keys) - admitted
                advance(len(found.keys))
    except (CorruptStoreError, ValueError) as error:
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)
    if (rows, counted) == (table.rows, table.counted):
        return ""
    return (
        f"the table {table.name} has {rows:,} rows and {counted:,} other ids, expected "
        f"{table.rows:,} and {table.counted:,} from its manifest"
    )


def _compare_keys(
    existing: Iterator[bytes], expected: Iterator[ExpectedKey]
) -> Iterator[tuple[bytes, tuple[int, ValueRange, int, bool] | None]]:
    """Iterate over existing and expected keys, with None for a key that is not expected."""
    key, wanted = next(existing, None), next(expected, None)
    while key is not None or wanted is not None:
        if wanted is None or (key is not None and key < wanted[0]):
            assert key is not None
            yield key, None
            key = next(existing, None)
            continue
        found = key == wanted[0]
        yield wanted[0], (*wanted[1:], found)
        key, wanted = next(existing, None) if found else key, next(expected, None)
