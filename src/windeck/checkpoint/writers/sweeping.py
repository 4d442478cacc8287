"""Removing old generations, but for what newer ones need of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.references import Span
from windeck.checkpoint.stores import Store

__all__ = ["sweep"]

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
