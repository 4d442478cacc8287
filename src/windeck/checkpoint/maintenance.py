"""Removing old generations, but for what newer ones need of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import (
    Commit,
    encode_head,
    read_head,
    read_kept,
    read_manifest,
)
from windeck.checkpoint.format.part_names import drop_parts, parts_of
from windeck.checkpoint.format.payloads import Holding, expected_keys, holdings_of, values_of
from windeck.checkpoint.format.references import Span, needed_by
from windeck.checkpoint.format.values import Kind, Label, decode, encode
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.urls import opened

__all__ = ["Copied", "copy", "gc", "log", "sweep"]


#: Keys removed at once.
_BATCH = 1000
#: As the end of a range of numbers in a key: none is so large.
_ALL = 1 << 63
_first: Callable[[tuple[int, int]], int] = itemgetter(0)


def sweep(
    store: Store,
    namespace: str,
    is_old: Callable[[int], bool],
    needed: set[Span],
    *,
    dry_run: bool = False,
) -> list[int]:
    """Remove what is not needed of old generations, their manifests first.

    Parameters
    ----------
    is_old
        Whether HEAD has forgotten a generation, or never knew it.
    needed
        What the generations that HEAD knows need of others.
    dry_run
        Remove nothing, only look.

    Returns
    -------
    list of int
        The generations of which something was removed, ascending.

    Notes
    -----
    A few looks for each generation and each gap in what is needed; where a store has no order, one
    look at every key.
    """
    if not store.facts.ordered:
        return _listed(store, namespace, is_old, needed, dry_run)
    old = sorted(filter(is_old, _generations(store, namespace)))
    return [n for n in old if _thin(store, namespace, n, needed, dry_run)]


def _listed(
    store: Store, namespace: str, is_old: Callable[[int], bool], needed: set[Span], dry_run: bool
) -> list[int]:
    held = _Held(needed)
    doomed: dict[str, list[bytes]] = {}
    found: set[int] = set()
    for key in store.keys(f"{namespace}/".encode()):
        numbers = keys.numbers(namespace, key)
        if numbers is not None and is_old(numbers[0]):
            letter = key[len(namespace) + 1 :][:1].decode()
            if not held.has(letter, numbers):
                doomed.setdefault(letter, []).append(key)
                found.add(numbers[0])
    every = [key for letter in keys.LETTERS for key in doomed.get(letter, ())]
    for at in range(0, 0 if dry_run else len(every), _BATCH):
        store.delete_many(every[at : at + _BATCH])
    return sorted(found)


class _Held:
    """Letters and numbers of keys that are needed."""

    def __init__(self, needed: set[Span]) -> None:
        self._runs: dict[tuple[str | int, ...], list[tuple[int, int]]] = {}
        for span in sorted(needed):
            first, stop = span.first, _ALL if span.stop is None else span.stop
            runs = self._runs.setdefault(span[:4], [])
            if runs and first <= runs[-1][1]:  # they may overlap: several generations need them
                first, stop = runs[-1][0], max(stop, runs.pop()[1])
            runs.append((first, stop))

    def has(self, letter: str, numbers: tuple[int, ...]) -> bool:
        runs = self._runs.get((letter, *numbers[:-1]), [])
        place = bisect_right(runs, numbers[-1], key=_first) - 1
        return place >= 0 and numbers[-1] < runs[place][1]


def _thin(store: Store, namespace: str, generation: int, needed: set[Span], dry_run: bool) -> bool:
    """Whether there was anything to be removed of a generation."""
    key = keys.manifest(namespace, generation)
    found = store.get(key) is not None
    if found and not dry_run:
        store.delete_many([key])  # first: without it, there is no generation
    for letter in keys.LETTERS[1:]:
        prefix = f"{namespace}/{letter}/{generation:016x}/".encode()
        own = sorted(span for span in needed if span[:2] == (letter, generation))
        for first, stop in _gaps(store, prefix, [_range(prefix, span) for span in own]):
            found = True
            if dry_run:
                return True
            store.delete_range(prefix, start=first, stop=stop)
    return found


def _range(prefix: bytes, span: Span) -> tuple[bytes, bytes]:
    """The first key of a span, and the one after its last."""
    last = (span.item + 1, 0) if span.stop is None else (span.item, span.stop)
    ends = (span.item, span.first), last
    first, stop = (prefix + b"%08x/%08x/%08x" % (span.writer, *end) for end in ends)
    return first, stop


def _gaps(
    store: Store, prefix: bytes, held: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys between the ranges held, if there is any key in them."""
    at: bytes | None = None
    for first, stop in [*held, (None, None)]:
        if at is None or first is None or at < first:
            found = next(iter(store.keys(prefix, start=at, stop=first)), None)
            if found is not None:
                yield found, first
        at = stop if at is None or stop is None else max(at, stop)


def _generations(store: Store, namespace: str) -> set[int]:
    """Those of which any key is there."""
    return {number for letter in keys.LETTERS for number in _numbers(store, namespace, letter)}


def _numbers(store: Store, namespace: str, letter: str) -> Iterator[int]:
    prefix = f"{namespace}/{letter}/".encode()
    key = next(iter(store.keys(prefix)), None)
    while key is not None:  # from the first key of one to the first of the next
        numbers = keys.numbers(namespace, key)
        after = key + b"\0"  # of another namespace, whose name begins like our keys
        if numbers is not None:
            yield numbers[0]
            after = prefix + b"%016x" % (numbers[0] + 1)
        key = next(iter(store.keys(prefix, start=after)), None)


def log(store: Store | str, *, namespace: str = "windeck") -> list[Commit]:
    """The generations kept, the one in force first; none where there is no checkpoint.

    Each has its `generation`, `step`, `time` in seconds since 1970, and `bases`, the generations
    whose data it refers to.

    Examples
    --------
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> numbers = [checkpoint.save(store, step=step, extra={}) for step in (10, 20, 30)]
    >>> [(commit.generation, commit.step) for commit in checkpoint.log(store)]
    [(3, 30), (2, 20), (1, 10)]
    >>> checkpoint.gc(store, keep=1)
    [1, 2]
    """
    with opened(store, reading=True) as place:
        return read_head(place, keys.check_namespace(namespace))[1]


def gc(
    store: Store | str, *, keep: int, namespace: str = "windeck", dry_run: bool = False
) -> list[int]:
    """Keep the newest generations; remove the others, and what saves that were killed left.

    Of a generation that a kept one is based on, the chunks and blocks that one refers to stay, and
    nothing else.

    Parameters
    ----------
    store
        An open store, or the URL of one.
    keep
        How many, at least one.
    dry_run
        Remove nothing, only tell what would be.

    Returns
    -------
    list of int
        The generations of which something was removed, ascending. Those later than the one in
        force stay: a save that goes on may own them.

    Raises
    ------
    ValueError
        For a `keep` below 1.
    FileNotFoundError
        For the URL of a database that is not there.
    RuntimeError
        When a save was committed meanwhile; nothing was removed then.
    CorruptStoreError
        When the manifest of a generation to be kept is damaged, so that nobody knows what it
        needs; nothing was removed then.

    Notes
    -----
    HEAD forgets a generation before its data go, so a crash leaves data nobody refers to, never a
    reference without data. A reader of a removed generation gets an error.
    """
    keys.check_namespace(namespace)
    if type(keep) is not int or keep < 1:
        raise ValueError(f"keep is {keep!r}, expected an integer of at least 1")
    with opened(store, reading=dry_run, create=False) as place:
        was, commits = read_head(place, namespace)
        if not commits:
            return []
        needed = needed_by(place, namespace, commits[:keep])
        if commits[keep:] and not dry_run:
            head = encode_head(commits[:keep])
            if not place.compare_and_set(keys.head(namespace), was, head):
                raise RuntimeError(f"{namespace} was saved to meanwhile, expected no other writer")
            place.sync()
        kept = {commit.generation for commit in commits[:keep]}
        # A save that goes on refers to nothing but what the generation in force refers to.
        gone = sweep(
            place, namespace, lambda n: n < commits[0].generation and n not in kept, needed,
            dry_run=dry_run,
        )  # fmt: skip
        if not dry_run:
            left = parts_of(place, namespace, unfinished=True)
            drop_parts(place, [part for part in left if part.generation <= commits[0].generation])
            place.sync()
        return gone


@dataclass(frozen=True)
class Copied:
    """What `copy` did: `generations`, the one in force first, and how many values and bytes."""

    generations: list[int]
    values: int
    bytes: int


def copy(
    source: Store | str,
    target: Store | str,
    *,
    generations: Collection[int] | None = None,
    namespace: str = "windeck",
    target_namespace: str | None = None,
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Copied:
    """Copy a checkpoint into another store, or under another namespace.

    Parameters
    ----------
    source, target
        Open stores or URLs of any kind.
    generations
        Which of those that are kept; None: all. What they refer to of others is copied with them.
    namespace, target_namespace
        What the keys begin with; the same unless said otherwise.
    replace
        Remove a checkpoint that the target has there first. A copy that then fails leaves none.
    progress
        Called with the bytes of each value that was copied.

    Raises
    ------
    FileExistsError
        When the target has a checkpoint in that namespace.
    FileNotFoundError
        When the source has none, or no such generation.
    ValueError
        When both are the same place, or have the same HEAD.
    RuntimeError
        When somebody else committed to the target meanwhile.
    OSError
        For what is damaged at the source or cannot be reached; the target's HEAD is not written.

    Notes
    -----
    Every value is compared with its sums on its way. HEAD is set by compare-and-set when all else
    is durable, so a copy that was killed leaves data that nobody refers to, and no checkpoint.
    O(bytes) time; memory of some chunks and of manifests.

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
    alike = source == target if isinstance(source, str) else source is target
    if alike and space == namespace:
        raise ValueError(f"source and target are both {namespace} in one store, expected two")
    with ExitStack() as stack:
        # One URL is opened once: an embedded store can be written by one opener alone. And no
        # target is made for a source that is not there.
        view = stack.enter_context(opened(source, reading=not alike))
        commits = chosen(view, namespace, generations)
        place = view if alike else stack.enter_context(opened(target))
        there = place.get(keys.head(space))
        if there is not None:
            if not replace:
                raise FileExistsError(
                    f"{place.url} has a checkpoint in {space} already, expected none; to remove "
                    "it first say replace=True"
                )
            if there == view.get(keys.head(namespace)):  # also one place by two names
                raise ValueError(same(place.url, space))
            _remove(place, space)
        return _Copy(view, namespace, place, space, progress).run(commits)


def same(url: str, namespace: str) -> str:
    """Why a checkpoint is not replaced by itself: it may be one place by two names."""
    return (
        f"{namespace} in {url} is the checkpoint that is to be copied, or a copy of it, expected "
        "another one to replace"
    )


def chosen(view: View, namespace: str, generations: Collection[int] | None) -> list[Commit]:
    """The generations to be copied, the one in force first; None: all. FileNotFoundError for one
    that is not there."""
    commits = read_kept(view, namespace)
    wanted = {commit.generation for commit in commits} if generations is None else {*generations}
    lost = wanted - {commit.generation for commit in commits}
    if lost or not wanted:
        kept = ", ".join(str(commit.generation) for commit in commits)
        what = f"generation {min(lost)}" if lost else "generation asked for"
        raise FileNotFoundError(f"there is no {what} in {namespace}, expected some of {kept}")
    return [commit for commit in commits if commit.generation in wanted]


def _remove(place: Store, namespace: str) -> None:
    """HEAD goes first: without it nothing else is a checkpoint. NEXT stays, numbers only grow."""
    place.delete_many([keys.head(namespace)])
    place.sync()
    for letter in keys.LETTERS:
        place.delete_range(f"{namespace}/{letter}/".encode())


class _Copy:
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
        self._values = self._bytes = 0

    def run(self, commits: list[Commit]) -> Copied:
        holdings: list[tuple[int, Holding]] = []
        for commit in commits:
            manifest = read_manifest(self._view, self._namespace, commit)
            holdings += [(commit.generation, holding) for holding in holdings_of(manifest)]
        for letter in keys.LETTERS:  # keys that begin alike by themselves, as stores like it
            own = [pair for pair in holdings if pair[1].letter == letter]
            if own:
                self._place.bulk_load(self._data(own))
        for commit in commits:
            self._place.bulk_load(self._digests(commit))
        self._place.sync()
        self._place.bulk_load(self._manifests(commits))
        self._reserve(commits)
        self._place.sync()
        if not self._place.compare_and_set(keys.head(self._space), None, encode_head(commits)):
            raise RuntimeError(
                f"a checkpoint was committed to {self._space} in {self._place.url} meanwhile, "
                "expected no other writer"
            )
        self._place.sync()
        numbers = [commit.generation for commit in commits]
        return Copied(numbers, self._values, self._bytes)

    def _data(self, holdings: list[tuple[int, Holding]]) -> Iterator[tuple[bytes, bytes]]:
        wanted = (
            (holding, number) for _, _, holding, number in expected_keys(self._namespace, holdings)
        )
        for value in values_of(self._view, self._namespace, wanted):
            if value.error is not None:
                raise value.error
            yield self._moved(value.key, value.stored)

    def _digests(self, commit: Commit) -> Iterator[tuple[bytes, bytes]]:
        """What the next incremental save compares with; another save may do without."""
        prefix = f"{self._namespace}/d/{commit.generation:016x}/".encode()
        for key, value in self._view.scan(prefix):
            found = keys.numbers(self._namespace, key)
            if found is None or len(found) != 3:
                continue
            label = Label(Kind.DIGESTS, commit.generation, commit.save, 0, found[1], found[2])
            decode(key, value, label)
            yield self._moved(key, value)

    def _manifests(self, commits: list[Commit]) -> Iterator[tuple[bytes, bytes]]:
        for commit in reversed(commits):
            key = keys.manifest(self._namespace, commit.generation)
            value = self._view.get(key)
            decode(key, value, Label(Kind.MANIFEST, commit.generation, commit.save))
            yield self._moved(key, value or b"")

    def _moved(self, key: bytes, value: bytes) -> tuple[bytes, bytes]:
        self._values, self._bytes = self._values + 1, self._bytes + len(value)
        if self._progress is not None:
            self._progress(len(value))
        return self._space.encode() + key[len(self._namespace) :], value

    def _reserve(self, commits: list[Commit]) -> None:
        """Saves at the target go on with numbers that none of the copied ones has."""
        key, label = keys.next_generation(self._space), Label(Kind.NEXT)
        number = 1 + max(commit.generation for commit in commits)
        while True:
            was = self._place.get(key)
            if was is not None:
                number = max(number, int.from_bytes(decode(key, was, label, length=8), "little"))
            if self._place.compare_and_set(key, was, encode(label, number.to_bytes(8, "little"))):
                return
