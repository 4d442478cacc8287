"""The commands of `windeck view URL` and their options."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from windeck.tools.view import session
from windeck.tools.view.session import guarded, opened_store

__all__ = ["app", "list_url"]

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    subcommand_metavar="COMMAND [ARGS]...",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Namespace = Annotated[str, typer.Option(help="What the keys of the checkpoint begin with.")]
Generation = Annotated[
    int | None, typer.Option(help="One of `log`.", show_default="the one in force")
]


@app.callback()
def view(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="A store: rocksdb:///path, leveldb:///path, redis://host."
        ),
    ],
) -> None:
    """Looks into the checkpoints of a store: windeck view URL COMMAND. Without a command: ls.

    Exit codes: 0 done; 1 a difference, damage, or nothing found; 2 what was asked makes no sense;
    3 the store cannot be opened, or there is no such checkpoint.
    """
    context.obj = url
    if context.invoked_subcommand is None:
        with guarded():
            list_url(url)


@app.command()
def ls(
    context: typer.Context,
    pattern: Annotated[
        str | None,
        typer.Argument(
            help="A name, all below it, or a glob: 'model/*.weight'.", show_default=False
        ),
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Groups below each other.", show_default="all")
    ] = None,
    flat: Annotated[bool, typer.Option("--flat", help="Whole names, one a line.")] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Names, dtypes, shapes and bytes, out of the manifest alone."""
    with guarded():
        list_url(
            context.obj, pattern, depth=depth, flat=flat, json=json,
            namespace=namespace, generation=generation,
        )  # fmt: skip


def list_url(
    url: str,
    pattern: str | None = None,
    *,
    depth: int | None = None,
    flat: bool = False,
    json: bool = False,
    namespace: str = "windeck",
    generation: int | None = None,
) -> None:
    """What `ls` does, errors not caught."""
    from windeck.tools.view import listing

    # The manifest becomes a hundred thousand small objects and none is garbage; to look for some
    # again and again would be half of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        with opened_store(url) as store:
            found = session.catalog(url, store, namespace, generation)
            listing.ls(found, pattern, depth=depth, flat=flat, json=json)
    finally:
        if collects:
            gc.enable()


@app.command()
def log(context: typer.Context, json: Json = False, namespace: Namespace = "windeck") -> None:
    """The generations kept, the one in force first."""
    from windeck.tools.view import listing

    with guarded(), opened_store(context.obj) as store:
        listing.log(context.obj, store, namespace, json=json)
