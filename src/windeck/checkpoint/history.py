"""Which generations are kept, and clearing away the others."""

from __future__ import annotations

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import Commit, encode_head, read_head
from windeck.checkpoint.format.part_names import drop_parts, parts_of
from windeck.checkpoint.format.references import needed_by
from windeck.checkpoint.readers.opened import opened
from windeck.checkpoint.stores import Store
from windeck.checkpoint.writers.sweeping import sweep

__all__ = ["gc", "log"]


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
    with opened(store, reading=dry_run, making=False) as place:
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
