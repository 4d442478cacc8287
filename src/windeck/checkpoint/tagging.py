"""Tags of generations, which protect them from being removed."""

from __future__ import annotations

from windeck._util.options import explain_options
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import (
    check_tag,
    encode_head,
    move_tag,
    read_existing_head,
    select_commit,
)
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import opened

__all__ = ["tag", "untag"]


@explain_options
def tag(
    store: Store | str,
    name: str,
    *,
    generation: int | str | None = None,
    namespace: str = "windeck",
) -> int:
    """Set a tag on a generation, so that `gc` and ``save(keep=)`` keep it.

    A tag is on one generation: one that had it before loses it. A generation may have many tags.
    ``load(..., generation="best")`` and `open` find it by a tag.

    Parameters
    ----------
    store
        An open store, or the URL of one, which no other process may have open for writing if it is
        a RocksDB or LevelDB.
    name
        1 to 100 ASCII letters, digits and any of ``_.+=:@/-``, not of digits alone.
    generation
        A generation of `log`, or another tag of it; None: the one in force.

    Returns
    -------
    int
        The generation that has the tag. That is durable when this returns.

    Raises
    ------
    FileNotFoundError
        When there is no database, no checkpoint, or no such generation or tag.
    TypeError, ValueError
        For an invalid name.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    One write of HEAD, by compare-and-set, which is repeated if another process saves or sets a tag
    meanwhile. A version of windeck without tags ignores them, and its next save or `gc` removes
    them.

    Examples
    --------
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> for step in (10, 20, 30):
    ...     number = checkpoint.save(store, step=step, extra={}, keep=1)
    ...     if step == 20:
    ...         tagged = checkpoint.tag(store, "best")
    >>> [(commit.step, commit.tags) for commit in checkpoint.log(store)]
    [(30, ()), (20, ('best',))]
    """
    check_tag(name)
    with opened(store, create=False) as place:
        return _move(place, keys.check_namespace(namespace), name, generation, remove=False)


@explain_options
def untag(store: Store | str, name: str, *, namespace: str = "windeck") -> int:
    """Remove a tag; the next `gc` may remove the generation.

    Returns
    -------
    int
        The generation that had the tag.

    Raises
    ------
    FileNotFoundError
        When there is no database, no checkpoint, or no such tag.
    TypeError, ValueError
        For an invalid name.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Examples
    --------
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> checkpoint.save(store, step=10, extra={}, tag="best")
    1
    >>> checkpoint.untag(store, "best")
    1
    """
    check_tag(name)
    with opened(store, create=False) as place:
        return _move(place, keys.check_namespace(namespace), name, name, remove=True)


def _move(
    place: Store, namespace: str, name: str, generation: int | str | None, *, remove: bool
) -> int:
    """Set or remove a tag of a generation; return its number."""
    while True:
        head = read_existing_head(place, namespace)
        number = select_commit(head.commits, namespace, generation).generation
        commits = move_tag(head.commits, name, None if remove else number)
        value = encode_head(commits)
        if value == head.value or place.compare_and_set(keys.head(namespace), head.value, value):
            place.sync()
            return number
