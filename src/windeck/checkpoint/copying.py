"""Copies of checkpoints in other stores."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from windeck._core import crc32c
from windeck._util.options import explain_options
from windeck._util.progress import at_terminal, report_bytes
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import (
    Commit,
    encode_head,
    encode_json,
    encode_next,
    parse_next,
    read_commits,
    read_head,
    read_manifest,
    select_commit,
)
from windeck.checkpoint.format.values import Kind, Label, decode, encode, with_generation
from windeck.checkpoint.maintenance import gc_open_store, list_generations, remove_generations
from windeck.checkpoint.read.scanning import (
    ValueRange,
    expected_keys,
    read_values,
    referenced_ranges,
)
from windeck.checkpoint.stores import CorruptStoreError, Store, View
from windeck.checkpoint.stores.protocol import order_writes
from windeck.checkpoint.stores.urls import opened, takes_parts

if TYPE_CHECKING:
    from windeck.checkpoint.stores.objects import ObjectStore
    from windeck.checkpoint.stores.segments import SegmentFile

__all__ = ["CopyResult", "copy", "same_checkpoint_message", "select_commits"]


@dataclass(frozen=True)
class CopyResult:
    """Result of `copy`: generations in the target, the current one first; values and bytes."""

    generations: list[int]
    values: int
    bytes: int


@explain_options
def copy(
    source: Store | str,
    target: Store | str,
    *,
    generations: Collection[int | str] | None = None,
    namespace: str = "windeck",
    target_namespace: str | None = None,
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> CopyResult:
    """Copy a checkpoint with its tags into another store, or under another namespace.

    Parameters
    ----------
    source, target
        Open stores or URLs of any kind.
    generations
        The generations to copy, or their tags; None: all. Data of others that they refer to are
        copied, too.
    namespace, target_namespace
        Prefixes of the keys in source and target, by default the same.
    replace
        Remove a checkpoint in the namespace of the target once the copy is committed. Until then it
        stays in force, so the target needs space for both. If the target has a generation of the
        same number as one of the source, values are written twice: first under new numbers, and
        under their own after the former checkpoint was removed. The new numbers remain if another
        process may be saving under the own ones.
    progress
        A function that is called with the bytes of each value that was copied. None: a bar at a
        terminal, if the copy takes more than two seconds.

    Raises
    ------
    FileExistsError
        When the target has a checkpoint in that namespace; an object store, one of another run.
    FileNotFoundError
        When the source has no checkpoint or no such generation.
    ValueError
        When source and target are the same, or have the same HEAD.
    RuntimeError
        When another process committed to the target meanwhile.
    OSError
        When data of the source are damaged or cannot be reached; then HEAD is not written. When the
        checkpoint of the target is damaged; then nothing is written without `replace`. When the
        former data cannot be removed; then the copy is in force, and `gc` removes them.

    Notes
    -----
    Every value is compared with its checksums. HEAD is set by compare-and-set after all other
    values are durable, so a copy that was killed leaves data without references, no checkpoint.
    O(bytes) time; memory for some chunks and the manifests.

    A target in an object store or a folder, such as ``s3://bucket/run``, may have generations of
    the same run. Those are kept, and only what is not there is written, also after a copy that was
    killed. Their tags become those of the source, whether they are copied or not. Memory for some
    segments of 64 MiB. See the guide on object stores.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> a, b = (checkpoint.stores.open_store("memory://") for _ in range(2))
    >>> number = checkpoint.save(a, step=1, model={"w": torch.ones(3)})
    >>> copy(a, b).generations
    [1]
    >>> with checkpoint.open(b) as found:
    ...     found.tensor("model/w")
    tensor([1., 1., 1.])
    """
    keys.check_namespace(namespace)
    space = keys.check_namespace(target_namespace or namespace)
    same_store = source == target if isinstance(source, str) else source is target
    if same_store and space == namespace:
        raise ValueError(f"source and target are both {namespace} in one store, expected two")
    with ExitStack() as stack:
        # Open one URL only once, since an embedded store allows one writer. Open the source first,
        # so that no target is created for a missing source.
        view = stack.enter_context(opened(source, reading=not same_store))
        commits = select_commits(view, namespace, generations)
        place = view if same_store else stack.enter_context(opened(target))
        if progress is None and at_terminal():
            total = _stated_bytes(view, namespace, commits, place, space)
            progress = stack.enter_context(report_bytes("copying", total))
        copier = _Copier(view, namespace, place, space, progress)
        if keys.has_segments(place):
            return copier.run_in_segments(place, commits, replace=replace)
        if not replace:
            return copier.run(commits, _check_no_checkpoint(place, space))
        there = place.get(keys.head(space))
        # Also the same store by two URLs.
        if there is not None and there == view.get(keys.head(namespace)):
            raise ValueError(same_checkpoint_message(place.url, space))
        former = _commits_there(place, space)
        if former == []:
            return copier.run(commits, _remove_remains(place, space, there))
        alone = isinstance(target, str) and takes_parts(target)
        return copier.replace(commits, there, former, alone=alone)


def _stated_bytes(
    view: Store, namespace: str, commits: list[Commit], place: Store, space: str
) -> int:
    """Return the bytes that manifests state for values to be copied, about those to be written."""
    if keys.has_segments(place):  # it keeps the generations that it has
        there = {commit.generation for commit in read_head(place, space).commits}
        commits = [commit for commit in commits if commit.generation not in there]
    found: set[ValueRange] = set()
    for commit in commits:
        found.update(referenced_ranges(read_manifest(view, namespace, commit)))
    return sum(values.full * (values.stop - values.first) for values in found)


def same_checkpoint_message(url: str, namespace: str) -> str:
    """Return the error message for a copy that would replace its own source."""
    return (
        f"{namespace} in {url} is the checkpoint to be copied, or a copy of it, expected another "
        "one to replace"
    )


def select_commits(
    view: View, namespace: str, generations: Collection[int | str] | None
) -> list[Commit]:
    """Return the commits to be copied, the current one first; all of them for None.

    Raises
    ------
    FileNotFoundError
        When a generation or tag does not exist.
    """
    if isinstance(generations, str) or None in (generations or ()):
        raise TypeError(f"`generations` must be generations and tags or None, got {generations!r}")
    commits = read_commits(view, namespace)
    if generations is None:
        return commits
    wanted = {select_commit(commits, namespace, one).generation for one in generations}
    if not wanted:
        kept = ", ".join(str(commit.generation) for commit in commits)
        raise FileNotFoundError(
            f"there is no generation asked for in {namespace}, expected some of {kept}"
        )
    return [commit for commit in commits if commit.generation in wanted]


def _check_no_checkpoint(place: Store, namespace: str) -> bytes | None:
    """Return HEAD; raise an error for a checkpoint, or a damaged one of which data may be saved."""
    hint = "pass replace=True to remove it after the copy"
    try:
        head = read_head(place, namespace)
    except CorruptStoreError as error:
        raise CorruptStoreError(f"{error.strerror}; {hint}") from error
    if head.commits:
        raise FileExistsError(
            f"{place.url} has a checkpoint in {namespace} already, expected none; {hint}"
        )
    return head.value


def _commits_there(place: Store, namespace: str) -> list[Commit] | None:
    """Return the commits of a target; None if they are unknown, since HEAD is damaged."""
    try:
        return read_head(place, namespace).commits
    except (CorruptStoreError, ValueError):
        return None


def _remove_remains(place: Store, namespace: str, there: bytes | None) -> bytes:
    """Remove all values of a namespace without a checkpoint, and return its HEAD. NEXT stays."""
    empty = encode_head([])
    if not place.compare_and_set(keys.head(namespace), there, empty):
        raise RuntimeError(_meanwhile_message(place.url, namespace))
    order_writes(place)
    remove_generations(place, namespace, lambda _: True, set())
    return empty


def _meanwhile_message(url: str, namespace: str) -> str:
    return f"a checkpoint was committed to {namespace} in {url} meanwhile, expected no other writer"


class _Copier:
    """Copies generations from a view to a store, and counts values and bytes."""

    def __init__(
        self,
        view: View,
        namespace: str,
        place: Store,
        space: str,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._view, self._namespace = view, namespace
        self._place, self._space = place, space
        self._progress = progress
        self._numbers: Mapping[int, int] = {}  # in the target, of generations of the source
        self._values = self._bytes = 0

    def run(self, commits: list[Commit], before: bytes | None) -> CopyResult:
        """Copy to a store whose HEAD is `before`, with no checkpoint in it."""
        self._write_data(commits)
        if before is None:  # an empty one, see `_create_head` in `write/commits.py`
            order_writes(self._place)
            before = encode_head([])
            if self._place.compare_and_set(keys.head(self._space), None, before):
                order_writes(self._place)
        copied = self._write_manifests(commits)
        self._reserve(lambda _: {commit.generation: commit.generation for commit in commits})
        order_writes(self._place, before=keys.head(self._space))
        self._commit(copied, before)
        self._place.sync()
        return self._result(copied)

    def replace(
        self,
        commits: list[Commit],
        before: bytes | None,
        former: list[Commit] | None,
        *,
        alone: bool,
    ) -> CopyResult:
        """Copy to a store whose HEAD is `before`, and remove what it had after the commit.

        Parameters
        ----------
        former
            The commits of `before`; None if it is damaged.
        alone
            No other process or thread can save to the target.
        """
        place, space = self._place, self._space
        alone = alone and former is not None
        if alone:
            with suppress(OSError, RuntimeError, ValueError):  # of damage: they are removed later
                gc_open_store(place, list, space, alone=True)
        wanted = sorted({n for commit in commits for n in (commit.generation, *commit.bases)})
        # Another process may have reserved numbers from there on.
        following = 0 if former is None else max(commit.generation for commit in former) + 1
        reserved = range(0)

        def choose(free: int) -> dict[int, int]:
            nonlocal reserved
            taken, reserved = list_generations(place, space), range(following, free)
            if taken.isdisjoint(wanted) and not any(n in reserved for n in wanted):
                return {n: n for n in wanted}
            return {
                n: i for i, n in enumerate(wanted, max(free, *(n + 1 for n in (*wanted, *taken))))
            }

        numbers, end = self._reserve(choose)
        copied = self._replace(commits, before, numbers, end)
        if any(n not in numbers.values() for n in wanted) and not any(
            n in reserved for n in wanted
        ):
            self._progress, self._values, self._bytes = None, 0, 0
            own = {n: n for n in wanted}
            copied = self._replace(commits, encode_head(copied), own, end)
        return self._result(copied)

    def _replace(
        self, commits: list[Commit], before: bytes | None, numbers: Mapping[int, int], end: int
    ) -> list[Commit]:
        """Copy generations under other numbers, then remove all others up to `end`."""
        place, space, own = self._place, self._space, {*numbers.values()}
        self._numbers = numbers
        try:
            self._write_data(commits)
            copied = self._write_manifests(commits)
            order_writes(place, before=keys.head(space))
        except BaseException:
            self._discard(own)
            raise
        try:
            self._commit(copied, before)
        except RuntimeError:
            self._discard(own)
            raise
        order_writes(place)
        # Saves that began before do not find the HEAD that they began with.
        remove_generations(place, space, lambda n: n < end and n not in own, set(), kept=own)
        place.sync()
        return copied

    def _discard(self, own: set[int]) -> None:
        """Remove what was written under numbers that were reserved for it."""
        with suppress(OSError):
            remove_generations(self._place, self._space, own.__contains__, set())

    def _write_data(self, commits: list[Commit]) -> None:
        ranges: list[tuple[int, ValueRange]] = []
        for commit in commits:
            manifest = read_manifest(self._view, self._namespace, commit)
            ranges += [(commit.generation, values) for values in referenced_ranges(manifest)]
        small = [pair for pair in ranges if pair[1].letter in keys.SMALL_LETTERS]
        if small:
            self._place.bulk_load(self._data(small))
        data: dict[int, list[tuple[int, ValueRange]]] = {one.generation: [] for one in commits}
        for pair in ranges:
            if pair[1].letter not in keys.SMALL_LETTERS:
                data.setdefault(pair[1].generation, []).append(pair)
        # One load for each generation, so that an engine can remove its data as whole files.
        for number, own in sorted(data.items()):
            digests = (self._digests(one) for one in commits if one.generation == number)
            self._place.bulk_load(heapq.merge(self._data(own), *digests, key=itemgetter(0)))

    def _write_manifests(self, commits: list[Commit]) -> list[Commit]:
        """Write the manifests, and return the commits for HEAD."""
        copied: list[Commit] = []
        self._place.bulk_load(self._manifests(commits, copied))
        return copied[::-1]

    def _commit(self, commits: list[Commit], before: bytes | None) -> None:
        head = keys.head(self._space)
        if not self._place.compare_and_set(head, before, encode_head(commits)):
            raise RuntimeError(_meanwhile_message(self._place.url, self._space))

    def _result(self, commits: list[Commit]) -> CopyResult:
        numbers = [commit.generation for commit in commits]
        return CopyResult(numbers, self._values, self._bytes)

    def run_in_segments(
        self, place: ObjectStore, commits: list[Commit], *, replace: bool
    ) -> CopyResult:
        """Copy into an object store what it does not have; with `replace`, write all anew."""
        there = [] if replace else read_head(place, self._space).commits
        ours = read_commits(self._view, self._namespace)
        self._check_same_run(there, ours, commits)
        known = {commit.generation for commit in there}
        new = {commit.generation: commit for commit in commits if commit.generation not in known}
        by_save: dict[tuple[int, int], list[tuple[int, ValueRange]]] = {}
        for number, commit in new.items():
            by_save.setdefault((number, commit.save), [])
            manifest = read_manifest(self._view, self._namespace, commit)
            for values in referenced_ranges(manifest):
                own = by_save.setdefault((values.generation, values.save), [])
                own.append((number, values))
        place.begin_copy()
        former, files = {*place.segments}, place.segment_files()
        if replace:  # also repairs what is damaged
            files, kept = {}, {segment for segment in former if not self._is_own(segment)}
        else:
            kept = former
            place.check_files(former, files, "pass replace=True to write all of it anew")
        added: list[SegmentFile] = []
        for (number, save), ranges in sorted(by_save.items()):
            group = keys.segment_group(self._space, number, save)
            streams = [self._data(ranges, None if replace else self._is_there(place, group))]
            if number in new:
                streams += [self._digests(new[number]), self._manifests([new[number]], [])]
            items = heapq.merge(*streams, key=itemgetter(0))
            added += place.write_segments(group, items, files, self._letter_prefix)
        small = place.small_values
        small[keys.head(self._space)] = encode_head(_merge_commits(there, commits, ours))
        key, value = self._next_value(small.get(keys.next_generation(self._space)), commits)
        small[key] = value
        if small != place.small_values or {*kept, *added} != former:
            place.commit({*kept, *added}, small)
        if replace:
            place.remove_segments(one.name for one in former - {*place.segments})
        return self._result(commits)

    def _check_same_run(
        self, there: list[Commit], ours: list[Commit], commits: list[Commit]
    ) -> None:
        """Raise a FileExistsError unless the target may have both, as generations of one run."""
        if not there:
            return
        saves = {commit.generation: commit.save for commit in there}
        common = [one for one in ours if one.generation in saves]
        later = min(one.generation for one in commits) > max(saves)
        if not (common or later) or any(saves[one.generation] != one.save for one in common):
            raise FileExistsError(self._other_run_message())

    def _other_run_message(self) -> str:
        return (
            f"{self._place.url} has a checkpoint of another run in {self._space}, expected none or "
            "earlier generations of this one; pass replace=True to replace it"
        )

    def _is_own(self, segment: SegmentFile) -> bool:
        return keys.segment_generation(self._space, segment.name) is not None

    def _is_there(self, place: ObjectStore, group: str) -> Callable[[bytes], bool]:
        """Return a function that returns True for keys that the target has from the same save."""

        def is_there(key: bytes) -> bool:
            segment = place.find(self._new_key(key))
            if segment is not None and segment.group != group:
                raise FileExistsError(self._other_run_message())
            return segment is not None

        return is_there

    def _data(
        self,
        ranges: list[tuple[int, ValueRange]],
        is_there: Callable[[bytes], bool] | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        wanted = (
            (values, number)
            for key, _, values, number in expected_keys(self._namespace, ranges)
            if is_there is None or not is_there(key)
        )
        for value in read_values(self._view, self._namespace, wanted):
            if value.error is not None:
                raise value.error
            yield self._moved(value.key, value.stored)

    def _digests(self, commit: Commit) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the digests of a generation, which only incremental saves need."""
        for key, value in self._view.scan(keys.prefix(self._namespace, "d", commit.generation)):
            _, found = keys.parse(self._namespace, key) or ("", ())
            if len(found) != 3:
                continue
            label = Label(Kind.DIGESTS, commit.generation, commit.save, 0, found[1], found[2])
            decode(key, value, label)
            yield self._moved(key, value)

    def _manifests(
        self, commits: list[Commit], copied: list[Commit]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the manifests, oldest first, and append their commits in the target."""
        for commit in reversed(commits):
            key = keys.manifest(self._namespace, commit.generation)
            value = self._view.get(key)
            payload = decode(key, value, Label(Kind.MANIFEST, commit.generation, commit.save))
            moved = commit._replace(
                generation=self._number(commit.generation),
                bases=tuple(map(self._number, commit.bases)),
            )
            stored = value or b""
            if moved != commit:
                label = Label(Kind.MANIFEST, commit.generation, commit.save)
                stored = encode(label, _renumbered(payload, self._number))
            pair = self._moved(key, stored)
            copied.append(moved._replace(manifest_bytes=len(pair[1]), manifest_crc=crc32c(pair[1])))
            yield pair

    def _number(self, generation: int) -> int:
        return self._numbers.get(generation, generation)

    def _moved(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        self._values, self._bytes = self._values + 1, self._bytes + len(value)
        if self._progress is not None:
            self._progress(len(value))
        _, (generation, *_) = keys.parse(self._namespace, key) or ("", (0,))
        if self._number(generation) != generation:
            value = with_generation(value, self._number(generation))
        return self._new_key(key), value

    def _letter_prefix(self, key: bytes) -> bytes:
        """Return the prefix of a new key; the keys of a save with this prefix are a range."""
        letter, _ = keys.parse(self._space, key) or ("m", ())
        return keys.kind_prefix(self._space, letter)

    def _new_key(self, key: bytes) -> bytes:
        """Return the key in the target of a key of the source."""
        letter, (generation, *rest) = keys.parse(self._namespace, key) or ("m", (0,))
        return keys.make(self._space, letter, self._number(generation), *rest)

    def _reserve(self, choose: Callable[[int], Mapping[int, int]]) -> tuple[Mapping[int, int], int]:
        """Set NEXT, so that later saves to the target get numbers after all copied generations.

        Parameters
        ----------
        choose
            Returns the numbers of copied generations in the target for the number in NEXT.

        Returns
        -------
        numbers, following
            Those, and the new number in NEXT.
        """
        key = keys.next_generation(self._space)
        while True:
            was = self._place.get(key)
            free = parse_next(self._space, was) or 0
            numbers = choose(free)
            following = max(free, *(number + 1 for number in numbers.values()))
            if self._place.compare_and_set(key, was, encode_next(following)):
                return numbers, following

    def _next_value(self, was: bytes | None, commits: Sequence[Commit]) -> tuple[bytes, bytes]:
        """Return the key of NEXT, and its value after these commits and a former value."""
        newest = max(commit.generation for commit in commits)
        number = max(newest + 1, parse_next(self._space, was) or 0)
        return keys.next_generation(self._space), encode_next(number)


def _merge_commits(there: list[Commit], copied: list[Commit], source: list[Commit]) -> list[Commit]:
    """Return the commits of target and copy, newest first, with the tags of the source."""
    tags = {commit.generation: commit.tags for commit in source}
    merged = {commit.generation: commit for commit in (*there, *copied)}
    return [
        merged[number]._replace(tags=tags.get(number, ()))
        for number in sorted(merged, reverse=True)
    ]


def _renumbered(payload: memoryview, number: Callable[[int], int]) -> bytes:
    """Return the payload of a manifest in which all generations have other numbers."""
    catalog, tensors = map(json.loads, bytes(payload).split(b"\n"))
    for table in catalog.get("tables") or ():
        for link in table["links"]:
            link["generation"] = number(link["generation"])
    for part in chain.from_iterable(tensors):
        for kept in part[3] if len(part) > 3 else ():
            kept[2] = number(kept[2])
    return encode_json(catalog) + b"\n" + encode_json(tensors)
