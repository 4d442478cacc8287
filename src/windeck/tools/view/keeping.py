"""The commands of `windeck view URL` that are about whole generations, and their options."""

from __future__ import annotations

from pathlib import Path

from windeck.tools.view.parsing import GENERATION, JSON, NAMESPACE, Command, argument, at_least
from windeck.tools.view.session import found_in, opened_store

__all__ = ["COMMANDS"]


def page(
    url: str,
    file: Path,
    *,
    force: bool,
    values: int,
    read_bytes: int,
    json: bool,
    namespace: str,
    generation: int | None,
) -> None:
    """Writes one self-contained page: tree, values, statistics, histograms, search."""
    from windeck.tools.view.page.command import html
    from windeck.tools.view.page.limits import Limits

    limits = Limits(values=values, read_bytes=read_bytes)
    with opened_store(url) as store:
        html(
            url, store, file, namespace=namespace, generation=generation, limits=limits,
            force=force, json=json,
        )  # fmt: skip


def diff(
    url: str,
    first: int,
    second: int | None,
    *,
    other: str | None,
    other_namespace: str | None,
    json: bool,
    namespace: str,
) -> None:
    """What two generations differ in, bit for bit. 0: nothing; 1: something."""
    from windeck.tools.view import changes

    with opened_store(url) as store:
        changes.diff(
            url, store, first, second, other=other, namespace=namespace,
            other_namespace=other_namespace, json=json,
        )  # fmt: skip


def verify(url: str, *, deep: bool, json: bool, namespace: str, generation: int | None) -> None:
    """Looks for damage. 0: none; 1: some."""
    from windeck.tools.view import upkeep

    with opened_store(url) as store:
        upkeep.verify(url, store, namespace, deep=deep, generation=generation, json=json)


def collect(url: str, *, keep: int, dry_run: bool, json: bool, namespace: str) -> None:
    """Removes old generations, and what killed saves left."""
    from windeck.tools.view import upkeep

    upkeep.gc(url, keep=keep, dry_run=dry_run, namespace=namespace, json=json)


def copy(
    url: str,
    target: str,
    *,
    generations: list[int] | None,
    to_namespace: str | None,
    replace: bool,
    json: bool,
    namespace: str,
) -> None:
    """Copies the checkpoint to another store; it shows there when all of it is there."""
    from windeck.tools.view import upkeep

    upkeep.copy(
        url, target, generations=generations or (), namespace=namespace,
        to_namespace=to_namespace, replace=replace, json=json,
    )  # fmt: skip


def export(
    url: str,
    file: Path,
    name: str | None,
    *,
    force: bool,
    json: bool,
    namespace: str,
    generation: int | None,
) -> None:
    """Writes a file for other tools: a state, a tensor or an embedding table."""
    from windeck.tools.view import exporting

    with found_in(url, namespace, generation) as (store, found):
        exporting.export(store, found, file, name, force=force, json=json)


_FORCE = argument("--force", action="store_true", help="Replace the file.")

COMMANDS = {
    "html": Command(
        page,
        (
            argument("file", type=Path, metavar="OUT.html", help="The file to write."),
            _FORCE,
            argument(
                "--values", type=at_least(0), default=200_000, metavar="N",
                help="Numbers that the page holds (default: 200,000).",
            ),
            argument(
                "--read-bytes", type=at_least(0), default=8 << 30, metavar="N",
                help="Bytes to read for statistics (default: 8 GiB).",
            ),
            JSON,
            NAMESPACE,
            GENERATION,
        ),
    ),
    "diff": Command(
        diff,
        (
            argument("first", type=int, metavar="GEN", help="A generation, one of `log`."),
            argument(
                "second", type=int, nargs="?", metavar="GEN",
                help="Another (default: the one in force).",
            ),
            argument("--other", metavar="URL", help="Where the second one is."),
            argument("--other-namespace", metavar="TEXT", help="And under what namespace."),
            JSON,
            NAMESPACE,
        ),
    ),
    "verify": Command(
        verify,
        (
            argument("--deep", action="store_true", help="Read every value, not only names."),
            JSON,
            NAMESPACE,
            GENERATION,
        ),
    ),
    "gc": Command(
        collect,
        (
            argument(
                "--keep", type=at_least(1), required=True, metavar="N",
                help="Generations to keep (required).",
            ),
            argument("--dry-run", action="store_true", help="Only tell, remove nothing."),
            JSON,
            NAMESPACE,
        ),
    ),
    "copy": Command(
        copy,
        (
            argument("target", metavar="DST", help="The URL of any store."),
            argument(
                "--generation", dest="generations", type=int, action="append", metavar="N",
                help="Only this one; repeat it.",
            ),
            argument(
                "--to-namespace", metavar="TEXT", help="What the keys of the copy begin with."
            ),
            argument(
                "--replace", action="store_true", help="Remove a checkpoint that is there."
            ),
            JSON,
            NAMESPACE,
        ),
    ),
    "export": Command(
        export,
        (
            argument(
                "file", type=Path,
                help="Its suffix says what: .safetensors, .npy, .parquet or .csv.",
            ),
            argument("name", nargs="?", help="A state, a tensor or a table (default: model)."),
            _FORCE,
            JSON,
            NAMESPACE,
            GENERATION,
        ),
    ),
}  # fmt: skip
