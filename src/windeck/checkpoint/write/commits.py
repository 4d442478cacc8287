"""Beginning and commit of saves: options, generation numbers, and HEAD by compare-and-set."""

from __future__ import annotations

import numbers
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from windeck._core import crc32c
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import (
    Commit,
    Head,
    encode_head,
    encode_manifest,
    encode_next,
    find_bases,
    is_known_save,
    move_tag,
    parse_next,
    read_head,
    remember_save,
)
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, encode
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.protocol import order_writes

__all__ = [
    "CHUNK_BYTES",
    "LIMITS",
    "BegunSave",
    "SaveOptions",
    "begin_save",
    "check_bool",
    "check_numbers",
    "check_uncommitted",
    "commit_manifest",
    "conflict_message",
    "plain_step",
    "remove_generation",
]

#: Default bytes of a chunk.
CHUNK_BYTES = 1 << 20
#: The least and the largest value of a number of a save.
LIMITS = {
    "generation": (1, (1 << 62) - 1),
    "save": (0, (1 << 63) - 1),
    "step": (0, (1 << 63) - 1),
    "writers": (1, 1 << 24),
    "chunk_bytes": (16, 64 << 20),
    "base": (0, (1 << 62) - 1),
    "longest_chain": (0, 1000),
}


class SaveOptions(NamedTuple):
    """Options of a save that are the same for all its writers, as `save` documents them."""

    step: int
    namespace: str
    chunk_bytes: int
    incremental: bool
    longest_chain: int
    takeover: bool
    lower_step: bool

    def check(self) -> None:
        """Raise a TypeError or ValueError for an invalid option."""
        keys.check_namespace(self.namespace)
        given = self._asdict()
        check_numbers({name: given[name] for name in ("step", "chunk_bytes", "longest_chain")})
        for name in ("incremental", "takeover", "lower_step"):
            check_bool(name, given[name])


def plain_step(step: Any) -> Any:
    """Return a step that is an integer of NumPy as an int; other values as they are."""
    is_number = isinstance(step, numbers.Integral) and not isinstance(step, bool)
    return int(step) if is_number else step


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raise a TypeError or ValueError for an invalid number of a plan.

    Only `int` itself is accepted, since plans are hashed and sent as JSON.
    """
    for name, value in given.items():
        low, high = LIMITS[name]
        if type(value) is not int:
            raise TypeError(f"`{name}` must be an int, got {type(value).__name__}")
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise ValueError(f"`{name}` must be {bound}, got {value}")


def check_bool(name: str, value: Any) -> None:
    """Raise a TypeError for a value that is not a bool."""
    if type(value) is not bool:
        raise TypeError(f"`{name}` must be a bool, got {type(value).__name__}")


class BegunSave(NamedTuple):
    """A save that has a generation number, which no other save has or gets.

    Attributes
    ----------
    namespace, step
        As given to `save`.
    generation, save
        Its number, and a random number.
    head
        HEAD when the save began.
    """

    namespace: str
    step: int
    generation: int
    save: int
    head: Head


def begin_save(
    store: Store, namespace: str, step: int, *, takeover: bool = False, lower_step: bool = False
) -> BegunSave:
    """Begin a save with valid options, as `save` documents them.

    Raises
    ------
    RuntimeError, ValueError
        For a save that does not continue from the checkpoint in force.
    """
    head = _create_head(store, namespace)
    if head.commits:
        _check_order(namespace, head.commits[0], step, takeover, lower_step)
    generation = _reserve_generation(store, namespace, head.commits)
    save = secrets.randbits(63)
    remember_save(save)
    return BegunSave(namespace, step, generation, save, head)


def _create_head(store: Store, namespace: str) -> Head:
    """Return HEAD, and write an empty one first if the namespace has none.

    From then on HEAD exists, so that its absence beside a manifest is damage.
    """
    while (head := read_head(store, namespace)).value is None:
        value = encode_head([])
        is_written = store.compare_and_set(keys.head(namespace), None, value)
        order_writes(store)
        if is_written:
            return Head(value, [])
    return head


def _check_order(namespace: str, last: Commit, step: int, takeover: bool, lower_step: bool) -> None:
    """Raise an error for a save that does not continue from the checkpoint in force."""
    if not (takeover or is_known_save(last.save)):
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last.time))
        raise RuntimeError(
            f"generation {last.generation} (step {last.step}, {when}) of {namespace} was saved by "
            "another run, expected one that this run saved or loaded: load it to continue from it, "
            "or pass takeover=True to save after it; is there a second writer?"
        )
    if step < last.step and not lower_step:
        raise ValueError(
            f"`step` must be at least {last.step}, the step of the checkpoint of {namespace} in "
            f"force, got {step}: pass lower_step=True to go back"
        )


def _reserve_generation(store: Store, namespace: str, commits: Sequence[Commit]) -> int:
    """Reserve a generation number that no other save has or gets, even a concurrent one.

    Parameters
    ----------
    commits
        The generations that HEAD keeps, from `read_head`.
    """
    key = keys.next_generation(namespace)
    newest = max((commit.generation for commit in commits), default=0)
    while True:
        was = store.get(key)
        number = max(newest + 1, parse_next(namespace, was) or 0)
        if store.compare_and_set(key, was, encode_next(number + 1)):
            return number


def commit_manifest(
    store: Store,
    begun: BegunSave,
    manifest: Mapping[str, Any],
    *,
    tag: str | None = None,
    retain: Callable[[list[Commit]], list[Commit]] | None = None,
) -> Head:
    """Write the manifest of data that are written already, then set HEAD to it, durably.

    Parameters
    ----------
    tag
        A tag to move to this generation in the same write of HEAD.
    retain
        Returns of all generations those that HEAD keeps, in the same write; None: all of them.

    Returns
    -------
    Head
        As it was written.

    Raises
    ------
    RuntimeError
        When another save was committed since this one began; the data of this one are removed.
    """
    namespace, step, generation, save, head = begun
    payload = encode_manifest(manifest)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(
            f"the manifest has {len(payload):,} bytes, expected at most {LARGEST_PAYLOAD:,}: save "
            "fewer tensors"
        )
    value = encode(Label(Kind.MANIFEST, generation, save), payload)
    store.put_many([(keys.manifest(namespace, generation), value)])
    key = keys.head(namespace)
    order_writes(store, before=key)
    bases = find_bases(manifest, generation)
    now = Commit(generation, save, step, time.time(), len(value), crc32c(value), bases)
    while True:
        commits = [now, *head.commits]
        if tag is not None:
            commits = move_tag(commits, tag, generation)
        if retain is not None:
            commits = retain(commits)
        content = encode_head(commits)
        if store.compare_and_set(key, head.value, content):
            break
        # A HEAD of which only old generations or tags were changed is no conflict.
        former, head = head, read_head(store, namespace)
        check_uncommitted(namespace, generation, head)
        if _in_force(head) != _in_force(former):
            remove_generation(store, namespace, generation)
            raise RuntimeError(conflict_message(namespace, step, head.commits))
    store.sync()
    return Head(content, commits)


def _in_force(head: Head) -> tuple[int, int] | None:
    """Return the generation and the save in force; None for none."""
    return (head.commits[0].generation, head.commits[0].save) if head.commits else None


def remove_generation(store: Store, namespace: str, generation: int) -> None:
    """Remove all values of a generation, its manifest first."""
    small = [keys.manifest(namespace, generation)]
    for letter in keys.SMALL_LETTERS[1:]:
        small += store.keys(keys.prefix(namespace, letter, generation))
    store.delete_many(small)
    store.delete_range(keys.data_prefix(namespace, generation))


def check_uncommitted(namespace: str, generation: int, head: Head) -> None:
    """Raise a RuntimeError for a generation that is committed already, or was removed by `gc`."""
    if generation in {found.generation for found in head.commits}:
        raise RuntimeError(
            f"generation {generation} of {namespace} was committed already, expected a save that "
            "was not"
        )
    if generation <= head.removed:
        raise RuntimeError(
            f"generation {generation} of {namespace} was removed by gc during the save, before the "
            "first commit: save again"
        )


def conflict_message(namespace: str, step: int, commits: Sequence[Commit]) -> str:
    """Return the error message for a HEAD that changed during a save."""
    found = "HEAD was removed"
    if commits:
        found = f"generation {commits[0].generation} of step {commits[0].step} was"
    return (
        f"step {step} was not committed to {namespace}, {found} meanwhile: "
        "expected HEAD to stay as it was when this save began; is there a second writer?"
    )
