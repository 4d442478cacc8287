"""The commands of `windeck view URL` that show what is there, and their options."""

from __future__ import annotations

import gc
from typing import Any

from windeck.tools.view import session
from windeck.tools.view.parsing import GENERATION, JSON, NAMESPACE, Command, argument, at_least
from windeck.tools.view.session import Wrong, found_in, opened_store

__all__ = ["COMMANDS"]


def ls(
    url: str,
    pattern: str | None = None,
    *,
    depth: int | None = None,
    flat: bool = False,
    json: bool = False,
    namespace: str = "windeck",
    generation: int | None = None,
) -> None:
    """Names, dtypes, shapes and bytes, out of the manifest alone."""
    # The manifest becomes a hundred thousand small objects and none is garbage; to look for some
    # again and again would be half of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        from windeck.tools.view import listing

        with opened_store(url) as store:
            found = session.listing(url, store, namespace, generation)
            listing.ls(found, pattern, depth=depth, flat=flat, json=json)
    finally:
        if collects:
            gc.enable()


def log(url: str, *, json: bool, namespace: str) -> None:
    """The generations kept, the one in force first."""
    from windeck.tools.view import listing

    with opened_store(url) as store:
        listing.log(url, store, namespace, json=json)


def show(
    url: str,
    name: str,
    *,
    part: str | None,
    head: int | None,
    stats: bool,
    json: bool,
    namespace: str,
    generation: int | None,
) -> None:
    """Values of a tensor, and what they are like. Only what is shown is read."""
    from windeck.tools.view import showing

    with found_in(url, namespace, generation) as (store, found):
        if part is not None and head is not None:
            raise Wrong("--slice and --head both say what to show, expected one of them")
        showing.show(store, found, name, part=part, rows=head, stats=stats, json=json)


def row(
    url: str, name: str, ids: list[str], *, json: bool, namespace: str, generation: int | None
) -> None:
    """Rows of an embedding table by id, or of a tensor by number. 1: an id is not known."""
    from windeck.tools.view import rows

    with found_in(url, namespace, generation) as (store, found):
        rows.row(store, found, name, ids, json=json)


def find(
    url: str,
    name: str | None,
    *,
    limit: int,
    json: bool,
    namespace: str,
    generation: int | None,
    **asked: Any,
) -> None:
    """Searches tensors and tables by value. 0: something was found; 1: nothing."""
    from windeck.tools.view import finding

    with found_in(url, namespace, generation) as (store, found):
        finding.find(store, found, name, finding.Asked(**asked), limit=limit, json=json)


_OF_ONE = (JSON, NAMESPACE, GENERATION)
_PATTERN = "A name, all below it, or a glob: 'model/*.weight'"

COMMANDS = {
    "ls": Command(
        ls,
        (
            argument("pattern", nargs="?", help=f"{_PATTERN} (default: all)."),
            argument(
                "--depth", type=at_least(1), metavar="N",
                help="Groups below each other (default: all).",
            ),
            argument("--flat", action="store_true", help="Whole names, one a line."),
            *_OF_ONE,
        ),
    ),
    "log": Command(log, (JSON, NAMESPACE)),
    "show": Command(
        show,
        (
            argument("name", help="A tensor, a table or a plain value."),
            argument(
                "--slice", dest="part", metavar="TEXT", help="Which elements: '0:3,:' or '-1'."
            ),
            argument("--head", type=at_least(1), metavar="N", help="How many rows (default: 8)."),
            argument(
                "--stats", action="store_true",
                help="Counts, least, greatest, mean, a histogram.",
            ),
            *_OF_ONE,
        ),
    ),
    "row": Command(
        row,
        (
            argument("name", metavar="TABLE", help="An embedding table, or a tensor."),
            argument("ids", metavar="ID", nargs="+", help="Ids, or numbers of rows."),
            *_OF_ONE,
        ),
    ),
    "find": Command(
        find,
        (
            argument("name", nargs="?", help=f"Where. {_PATTERN} (default: everywhere)."),
            argument(
                "--where", metavar="TEXT", help="Such as 'abs>1e3', '-1 <= value < 1 or nan'."
            ),
            argument("--nan", action="store_true", help="What is not a number."),
            argument("--inf", action="store_true", help="What is infinite."),
            argument("--eq", metavar="V", help="What equals a number."),
            argument("--tol", type=float, metavar="T", help="Or is no farther from it."),
            argument("--freq", metavar="TEXT", help="Ids that were looked up so often: '>10'."),
            argument(
                "--version", metavar="TEXT", help="Ids last updated at such a clock: '<1000'."
            ),
            argument(
                "--seen", metavar="TEXT", help="Ids last looked up at such a clock: '<1000'."
            ),
            argument(
                "--limit", type=at_least(0), default=20, metavar="N",
                help="Matches shown of each tensor (default: 20).",
            ),
            *_OF_ONE,
        ),
    ),
}  # fmt: skip
