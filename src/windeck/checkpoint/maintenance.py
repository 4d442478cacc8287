"""Maintenance of checkpoints: listing and removing generations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from windeck._util.options import explain_options
from windeck._util.progress import report_progress
from windeck._util.warning import warn
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.keys import drop_parts, list_parts
from windeck.checkpoint.format.manifests import (
    Commit,
    Head,
    encode_head,
    parse_next,
    read_head,
    read_manifest,
)
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.protocol import order_writes
from windeck.checkpoint.stores.urls import make_room, opened, takes_parts

if TYPE_CHECKING:
    from windeck.checkpoint.stores.objects import ObjectStore

__all__ = ["Retain", "check_keep", "gc", "gc_open_store", "list_generations", "log"]
__all__ += ["remove_generations", "remove_old", "select_kept"]

#: Returns of commits, newest first, those that are kept.
Retain: TypeAlias = "Callable[[list[Commit]], list[Commit]]"

#: Keys of one call of `delete_many`.
_BATCH = 1000
#: An end of a range of numbers that is larger than any number in a key.
_ALL = 1 << 63
_first: Callable[[tuple[int, int]], int] = itemgetter(0)


class NeededValues(NamedTuple):
    """Values [first, stop) of one item of a writer, or all from `first` on if `stop` is None."""

    letter: str
    generation: int
    writer: int
    item: int
    first: int
    stop: int | None


def find_needed(view: View, namespace: str, commits: Iterable[Commit]) -> set[NeededValues]:
    """Return the values of older generations that some generations refer to.

    Raises
    ------
    CorruptStoreError
        When a manifest is damaged, so that its references are unknown.
    """
    needed: set[NeededValues] = set()
    for commit in commits:
        if commit.bases:
            manifest = read_manifest(view, namespace, commit)
            needed.update(_needed_chunks(manifest["tensors"]))
            needed.update(_needed_blocks(manifest["tables"], commit.generation))
    return needed


def _needed_chunks(entries: Mapping[str, TensorEntry]) -> Iterator[NeededValues]:
    for entry in entries.values():
        for part in entry.parts:
            for kept in part.kept:
                yield NeededValues(
                    "t", kept.generation, kept.writer, kept.item, kept.first, kept.stop
                )


def _needed_blocks(tables: Mapping[str, TableEntry], own: int) -> Iterator[NeededValues]:
    """Iterate over all blocks and indices of the links of other generations."""
    for table in tables.values():
        for link in table.links:
            for shard in link.shards if link.generation != own else ():
                yield NeededValues("e", link.generation, shard.writer, shard.item, 0, None)
                yield NeededValues("i", link.generation, shard.writer, shard.item, 0, None)


def remove_generations(
    store: Store,
    namespace: str,
    is_old: Callable[[int], bool],
    needed: set[NeededValues],
    *,
    kept: Collection[int] = (),
    last: int | None = None,
    dry_run: bool = False,
) -> list[int]:
    """Remove the values of old generations that are not needed, all their manifests first.

    Parameters
    ----------
    is_old
        A function that returns True for generations that are not in HEAD.
    needed
        Values that the generations in HEAD refer to.
    kept
        Generations that are not old. In an ordered store, their data are not looked at.
    last
        A generation after which none is old; None if there is none such.
    dry_run
        Remove nothing.

    Returns
    -------
    list of int
        The generations of which values were removed, ascending.

    Notes
    -----
    A few reads for each generation and each range of needed values; one `delete_range` for all
    data that have none to be kept between them. In a store that is not ordered, two scans.
    """
    if not store.facts.ordered:
        return _remove_by_scan(store, namespace, is_old, needed, dry_run)
    held = {
        letter: [*_numbers(store, namespace, letter, kept, last)] for letter in keys.SMALL_LETTERS
    }
    old = set(filter(is_old, {number for numbers in held.values() for number in numbers}))
    data = [*filter(is_old, _numbers(store, namespace, "t", kept, last))]
    small = [keys.manifest(namespace, number) for number in held["m"] if number in old]
    found, index = {*held["m"]} & old, _NeededIndex(needed)
    for letter in keys.SMALL_LETTERS[1:]:
        for number in filter(old.__contains__, held[letter]):
            own = store.keys(keys.prefix(namespace, letter, number))
            gone = [key for key in own if not index.has(*_parse(namespace, key))]
            if gone:
                small += gone
                found.add(number)
    ranges = [*_doomed_ranges(store, namespace, data, needed)]
    found.update(one.generation for one in ranges)
    if not dry_run:  # without a manifest there is no generation
        with report_progress(None, "removing", len(small) + len(ranges)) as advance:
            _delete(store, small, advance)
            # Last those next to needed values: tables with these are rewritten, for which the
            # others make space on a full disk.
            joined = _joined(store, namespace, ranges)
            for one in sorted(joined, key=attrgetter("next_to_needed")):
                store.delete_range(b"", start=one.first, stop=one.stop)
                advance(1)
    return sorted(found)


class _DoomedRange(NamedTuple):
    """Keys [first, stop) to be removed, of `generation` or, once joined, of this and later ones."""

    first: bytes
    stop: bytes
    generation: int
    next_to_needed: bool


def _doomed_ranges(
    store: Store, namespace: str, generations: Iterable[int], needed: set[NeededValues]
) -> Iterator[_DoomedRange]:
    """Iterate over the ranges of data of old generations that are not needed, ascending."""
    held: dict[int, list[tuple[bytes, bytes]]] = {}
    for span in sorted(needed):
        if span.letter not in keys.SMALL_LETTERS:
            held.setdefault(span.generation, []).append(_range(namespace, span))
    for number in generations:
        own, whole = held.get(number), keys.data_prefix(namespace, number)
        if own is None:
            yield _DoomedRange(whole, _end(whole), number, False)
            continue
        for first, stop in _gaps(store, whole, own):
            yield _DoomedRange(first, stop, number, True)


def _end(prefix: bytes) -> bytes:
    """Return the first key after those of a prefix that ends with a slash."""
    return prefix[:-1] + b"0"


def _joined(store: Store, namespace: str, ranges: Iterable[_DoomedRange]) -> Iterator[_DoomedRange]:
    """Join ascending ranges that have no other key between them."""
    every, last = keys.kind_prefix(namespace, "t"), None
    for one in ranges:
        if last is None:
            last = one
        elif next(iter(store.keys(every, start=last.stop, stop=one.first)), None) is None:
            either = last.next_to_needed or one.next_to_needed
            last = last._replace(stop=one.stop, next_to_needed=either)
        else:
            yield last
            last = one
    if last is not None:
        yield last


def _delete(store: Store, gone: Sequence[bytes], advance: Callable[[int], None]) -> None:
    for at in range(0, len(gone), _BATCH):
        store.delete_many(gone[at : at + _BATCH])
        advance(len(gone[at : at + _BATCH]))


def _parse(namespace: str, key: bytes) -> tuple[str, tuple[int, ...]]:
    """Return the letter and the numbers of a key; of another key no letter."""
    return keys.parse(namespace, key) or ("", (0,))


def _every_key(store: Store, namespace: str) -> Iterator[tuple[bytes, str, tuple[int, ...]]]:
    """Iterate over the keys of all generations, each with its letter and numbers, by a scan."""
    for prefix in (f"{namespace}/".encode(), keys.kind_prefix(namespace, "t")):
        for key in store.keys(prefix):
            letter, numbers = _parse(namespace, key)
            if letter:
                yield key, letter, numbers


def _remove_by_scan(
    store: Store,
    namespace: str,
    is_old: Callable[[int], bool],
    needed: set[NeededValues],
    dry_run: bool,
) -> list[int]:
    index = _NeededIndex(needed)
    doomed: dict[str, list[bytes]] = {}
    found: set[int] = set()
    for key, letter, numbers in _every_key(store, namespace):
        if is_old(numbers[0]) and not index.has(letter, numbers):
            doomed.setdefault(letter, []).append(key)
            found.add(numbers[0])
    every = [key for letter in keys.LETTERS for key in doomed.get(letter, ())]
    if not dry_run:
        with report_progress(None, "removing", len(every)) as advance:
            _delete(store, every, advance)
    return sorted(found)


class _NeededIndex:
    """Lookup of keys among needed values."""

    def __init__(self, needed: set[NeededValues]) -> None:
        self._ranges: dict[tuple[str | int, ...], list[tuple[int, int]]] = {}
        for span in sorted(needed):
            first, stop = span.first, _ALL if span.stop is None else span.stop
            ranges = self._ranges.setdefault(span[:4], [])
            if ranges and first <= ranges[-1][1]:  # several generations may need the same values
                first, stop = ranges[-1][0], max(stop, ranges.pop()[1])
            ranges.append((first, stop))

    def has(self, letter: str, numbers: tuple[int, ...]) -> bool:
        """Return True if the key of a letter and numbers is needed."""
        ranges = self._ranges.get((letter, *numbers[:-1]), [])
        place = bisect_right(ranges, numbers[-1], key=_first) - 1
        return place >= 0 and numbers[-1] < ranges[place][1]


def _range(namespace: str, span: NeededValues) -> tuple[bytes, bytes]:
    """Return the first key of some needed values, and the key after the last one."""
    last = (span.item + 1, 0) if span.stop is None else (span.item, span.stop)
    where = namespace, span.letter, span.generation, span.writer
    return keys.make(*where, span.item, span.first), keys.make(*where, *last)


def _gaps(
    store: Store, prefix: bytes, held: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the ranges of a prefix between needed ranges that have any key."""
    at, end = prefix, _end(prefix)
    for first, stop in [*held, (end, end)]:
        if at < first and next(iter(store.keys(prefix, start=at, stop=first)), None) is not None:
            yield at, first
        at = max(at, stop)


def list_generations(store: Store, namespace: str) -> set[int]:
    """Return the generations that have any key, also those that are not committed."""
    if not store.facts.ordered:
        return {numbers[0] for _, _, numbers in _every_key(store, namespace)}
    letters = (*keys.SMALL_LETTERS, "t")  # the last one for all data
    return {number for letter in letters for number in _numbers(store, namespace, letter)}


def _numbers(
    store: Store,
    namespace: str,
    letter: str,
    besides: Iterable[int] = (),
    last: int | None = None,
) -> Iterator[int]:
    """Iterate over the generations, besides some, that have keys of a letter; of data, of any.

    Parameters
    ----------
    last
        Do not look for later generations.
    """
    prefix, first = keys.kind_prefix(namespace, letter), 0
    for number in [*sorted(besides), _ALL if last is None else last + 1]:
        start, stop = prefix + b"%016x" % first, prefix + b"%016x" % number
        # No key lies between the keys of two consecutive numbers.
        while first < number:
            key = next(iter(store.keys(prefix, start=start, stop=stop)), None)
            if key is None:
                break
            found = keys.parse(namespace, key)
            start = key + b"\0"  # of another namespace, whose name begins like our keys
            if found is not None:
                yield found[1][0]
                first = found[1][0] + 1  # from the first key of one to the first of the next
                start = prefix + b"%016x" % first
        first = max(first, number + 1)


@explain_options
def log(store: Store | str, *, namespace: str = "windeck") -> list[Commit]:
    """Return the committed generations, the current one first; none without a checkpoint.

    Each has its `generation`, `step`, `time` in seconds since 1970, `bases`, the older generations
    whose data it refers to, and `tags`.

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
        return read_head(place, keys.check_namespace(namespace)).commits


@explain_options
def gc(
    store: Store | str,
    *,
    keep: int,
    keep_every: int | None = None,
    namespace: str = "windeck",
    dry_run: bool = False,
) -> list[int]:
    """Remove all generations but the newest ones, and data left by saves that were killed.

    Generations that have a tag are kept, as are data of removed generations that the remaining ones
    refer to. RocksDB and LevelDB then free the space on the disk. In an object store, files with
    data that are needed are kept as a whole.

    Parameters
    ----------
    store
        An open store, or the URL of one.
    keep
        Number of generations to keep, at least one.
    keep_every
        Also keep the generations whose step is a multiple of this, the newest one of each step.
    dry_run
        Remove nothing. The result is the same, but for later generations of killed saves.

    Returns
    -------
    list of int
        The generations of which data were removed, ascending. Generations after the current one
        are kept, since a save in progress may own them; only with the URL of a RocksDB or LevelDB,
        which no other process can then write to, those of killed saves by one writer are removed.

    Raises
    ------
    ValueError
        For a `keep` or `keep_every` below 1.
    FileNotFoundError
        When there is no database at the URL.
    RuntimeError
        When a save was committed meanwhile; then nothing is removed.
    CorruptStoreError
        When the manifest of a generation to be kept is damaged, so that its references are unknown;
        then nothing is removed.
    OSError
        With `errno` ENOSPC, when an embedded database could not free all the space on a full disk.

    Notes
    -----
    A generation is removed from HEAD before its data are removed, so a crash can leave data without
    references, but no reference without data. A reader of a removed generation gets an error.

    Before the first commit, everything is removed. A save in progress is refused then.
    """
    keys.check_namespace(namespace)
    check_keep(keep, keep_every)
    alone = isinstance(store, str) and takes_parts(store) and not dry_run
    if isinstance(store, str) and not dry_run:
        make_room(store)
    with opened(store, reading=dry_run, create=False) as place:
        retain = partial(select_kept, keep=keep, keep_every=keep_every)
        return gc_open_store(place, retain, namespace, dry_run=dry_run, alone=alone)


def check_keep(keep: int, keep_every: int | None) -> None:
    """Raise a ValueError for a number of generations or of steps below 1."""
    for name, value in (("keep", keep), ("keep_every", keep_every)):
        if (type(value) is not int or value < 1) and (value is not None or name == "keep"):
            raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")


def select_kept(commits: list[Commit], keep: int, keep_every: int | None) -> list[Commit]:
    """Return of commits, newest first, those that `gc` keeps."""
    steps, kept = set[int](), list[Commit]()
    for i, commit in enumerate(commits):
        protected = keep_every is not None and commit.step % keep_every == 0
        if i < keep or commit.tags or (protected and commit.step not in steps):
            kept.append(commit)
        steps.add(commit.step)
    return kept


def gc_open_store(
    place: Store,
    retain: Retain,
    namespace: str,
    *,
    dry_run: bool = False,
    alone: bool = False,
    durable: bool = True,
    head: Head | None = None,
) -> list[int]:
    """Do as `gc`, in a store that is open.

    Parameters
    ----------
    retain
        Returns the commits that are kept.
    alone
        No other process or thread can save to it, so later generations are of killed saves.
    durable
        If False, what was removed may be there again, whole, after a crash.
    head
        HEAD as the caller has just written it.
    """
    head = head or read_head(place, namespace)
    if keys.has_segments(place):
        kept = retain(head.commits)
        return _remove_segments(place, namespace, kept, head, dry_run=dry_run)
    while True:
        kept = retain(head.commits)
        needed = find_needed(place, namespace, kept)
        newest = kept[0].generation if kept else _last_reserved(place, namespace)
        removed = 0 if kept else newest
        if dry_run or (len(kept) == len(head.commits) and removed <= head.removed):
            break
        now = encode_head(kept, removed=removed)
        if place.compare_and_set(keys.head(namespace), head.value, now):
            order_writes(place)
            break
        # Tags may be set meanwhile: then the generations to be kept are selected anew.
        former, head = head, read_head(place, namespace)
        if _untagged(head.commits) != _untagged(former.commits) or head.value == former.value:
            raise RuntimeError(f"{namespace} was saved to meanwhile, expected no other writer")
    own = {commit.generation for commit in kept}

    def is_old(number: int) -> bool:
        # A save in progress refers only to data that the current generation refers to.
        if number <= newest:
            return number not in own
        shards = keys.prefix(namespace, "s", number)  # of writers, which may be merged later
        return alone and next(iter(place.keys(shards)), None) is None

    gone = remove_generations(
        place, namespace, is_old, needed,
        kept=own, last=None if alone else newest, dry_run=dry_run,
    )  # fmt: skip
    if not dry_run:
        left = list_parts(place, namespace, unfinished=True)
        drop_parts(place, [part for part in left if part.generation <= newest])
        if durable:
            place.sync()
    return gone


def _remove_segments(
    place: ObjectStore, namespace: str, kept: list[Commit], head: Head, *, dry_run: bool
) -> list[int]:
    """Do as `gc` in an object store: remove the segments of which nothing is needed."""
    own = {commit.generation for commit in kept}
    newest = kept[0].generation if kept else _ALL
    needed = _NeededIndex(find_needed(place, namespace, kept))

    def generation(name: str) -> int | None:
        return keys.segment_generation(namespace, name)

    def is_needed(key: bytes) -> bool:
        return needed.has(*_parse(namespace, key))

    segments = [
        segment
        for segment in place.segments
        if (number := generation(segment.name)) is None
        or number in own
        or any(map(is_needed, place.index(segment)))
    ]
    listed = {segment.name for segment in segments}
    # A copy in progress may own unlisted segments of later generations.
    gone = {
        name: number
        for name in place.segment_files()
        if name not in listed and (number := generation(name)) is not None and number <= newest
    }
    if not dry_run:
        if len(kept) < len(head.commits) or len(segments) < len(place.segments):
            place.commit(segments, {**place.small_values, keys.head(namespace): encode_head(kept)})
        place.remove_segments(gone)
    return sorted({*gone.values()})


def _untagged(commits: list[Commit]) -> list[Commit]:
    return [commit._replace(tags=()) for commit in commits]


def remove_old(place: Store, retain: Retain, namespace: str, *, head: Head | None = None) -> None:
    """Do as `gc` after a save, which may have written `head`.

    Errors become warnings, since the save is committed.
    """
    try:
        gc_open_store(place, retain, namespace, durable=False, head=head)
    except (OSError, RuntimeError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        warn(
            f"the step is saved, but older generations were not removed: {text}",
            RuntimeWarning,
        )


def _last_reserved(place: Store, namespace: str) -> int:
    """Return the last number that was reserved for a generation; 0 for none."""
    return (parse_next(namespace, place.get(keys.next_generation(namespace))) or 1) - 1
