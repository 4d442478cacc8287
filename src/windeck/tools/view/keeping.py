"""The commands of `windeck view URL` that are about whole generations, and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from windeck.tools.view.options import Generation, Json, Namespace, found_in
from windeck.tools.view.session import guarded, opened_store

__all__ = ["COMMANDS"]


def diff(
    context: typer.Context,
    first: Annotated[int, typer.Argument(metavar="GEN")],
    second: Annotated[
        int | None, typer.Argument(metavar="[GEN]", show_default="the one in force")
    ] = None,
    other: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the second one is.")
    ] = None,
    other_namespace: Annotated[str | None, typer.Option(help="And under what namespace.")] = None,
    json: Json = False,
    namespace: Namespace = "windeck",
) -> None:
    """What two generations differ in, bit for bit. 0: nothing; 1: something."""
    from windeck.tools.view import changes

    with guarded(), opened_store(context.obj) as store:
        changes.diff(
            context.obj, store, first, second, other=other, namespace=namespace,
            other_namespace=other_namespace, json=json,
        )  # fmt: skip


def verify(
    context: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Read every value, not only names.")] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Looks for damage. 0: none; 1: some."""
    from windeck.tools.view import upkeep

    with guarded(), opened_store(context.obj) as store:
        upkeep.verify(context.obj, store, namespace, deep=deep, generation=generation, json=json)


def collect(
    context: typer.Context,
    keep: Annotated[int, typer.Option(min=1, help="Generations to keep.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell, remove nothing.")] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
) -> None:
    """Removes old generations, and what killed saves left."""
    from windeck.tools.view import upkeep

    with guarded():
        upkeep.gc(context.obj, keep=keep, dry_run=dry_run, namespace=namespace, json=json)


def copy(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="DST", help="The URL of any store.")],
    generations: Annotated[
        list[int] | None, typer.Option("--generation", help="Only this one; repeat it.")
    ] = None,
    to_namespace: Annotated[
        str | None, typer.Option(help="What the keys of the copy begin with.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove a checkpoint that is there.")
    ] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
) -> None:
    """Copies the checkpoint to another store; it shows there when all of it is there."""
    from windeck.tools.view import upkeep

    with guarded():
        upkeep.copy(
            context.obj, target, generations=generations or (), namespace=namespace,
            to_namespace=to_namespace, replace=replace, json=json,
        )  # fmt: skip


def export(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="Its suffix says what: .safetensors, .npy, .parquet or .csv.")
    ],
    name: Annotated[
        str | None, typer.Argument(help="A state, a tensor or a table.", show_default="model")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Writes a file for other tools: a state, a tensor or an embedding table."""
    from windeck.tools.view import exporting

    with guarded(), found_in(context, namespace, generation) as (store, found):
        exporting.export(store, found, file, name, force=force, json=json)


COMMANDS: dict[str, Callable[..., None]] = {
    "diff": diff,
    "verify": verify,
    "gc": collect,
    "copy": copy,
    "export": export,
}
