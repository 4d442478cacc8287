"""Copying checkpoints from any store to any other: every value checked, HEAD last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import Commit, encode_head, read_kept, read_manifest
from windeck.checkpoint.format.payloads import Holding, expected_keys, holdings_of, values_of
from windeck.checkpoint.format.values import Kind, Label, decode, encode
from windeck.checkpoint.readers.opened import opened
from windeck.checkpoint.stores import Store, View

__all__ = ["Copied", "copy"]


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
