"""The commands of `windeck view URL` and their options."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from windeck.tools.view import generations, session
from windeck.tools.view.options import Generation, Json, Namespace, found_in
from windeck.tools.view.session import Wrong, guarded, opened_store

__all__ = ["app", "list_url"]

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    subcommand_metavar="COMMAND [ARGS]...",
)


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
            found = session.catalog(url, store, namespace, generation, parts=False)
            listing.ls(found, pattern, depth=depth, flat=flat, json=json)
    finally:
        if collects:
            gc.enable()


@app.command("html")
def page(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="OUT.html", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    values: Annotated[int, typer.Option(min=0, help="Numbers that the page holds.")] = 200_000,
    read_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes to read for statistics.", show_default="8 GiB")
    ] = 8 << 30,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Writes one self-contained page: tree, values, statistics, histograms, search."""
    from windeck.tools.view.page.command import html
    from windeck.tools.view.page.limits import Limits

    limits = Limits(values=values, read_bytes=read_bytes)
    with guarded(), opened_store(context.obj) as store:
        html(
            context.obj, store, file, namespace=namespace, generation=generation, limits=limits,
            force=force, json=json,
        )  # fmt: skip


@app.command()
def log(context: typer.Context, json: Json = False, namespace: Namespace = "windeck") -> None:
    """The generations kept, the one in force first."""
    from windeck.tools.view import listing

    with guarded(), opened_store(context.obj) as store:
        listing.log(context.obj, store, namespace, json=json)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A tensor, a table or a plain value.")],
    part: Annotated[
        str | None, typer.Option("--slice", help="Which elements: '0:3,:' or '-1'.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="How many rows.", show_default="8")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Counts, least, greatest, mean, a histogram.")
    ] = False,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Values of a tensor, and what they are like. Only what is shown is read."""
    from windeck.tools.view import showing

    with guarded(), found_in(context, namespace, generation) as (store, found):
        if part is not None and head is not None:
            raise Wrong("--slice and --head both say what to show, expected one of them")
        showing.show(store, found, name, part=part, rows=head, stats=stats, json=json)


@app.command(context_settings={"ignore_unknown_options": True})
def row(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TABLE", help="An embedding table, or a tensor.")],
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids, or numbers of rows.")],
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Rows of an embedding table by id, or of a tensor by number. 1: an id is not known."""
    from windeck.tools.view import rows

    with guarded(), found_in(context, namespace, generation) as (store, found):
        rows.row(store, found, name, ids, json=json)


@app.command()
def find(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Where: a name, all below it, or a glob.", show_default="everywhere"),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Such as 'abs>1e3', '-1 <= value < 1 or nan'.")
    ] = None,
    nan: Annotated[bool, typer.Option("--nan", help="What is not a number.")] = False,
    inf: Annotated[bool, typer.Option("--inf", help="What is infinite.")] = False,
    eq: Annotated[str | None, typer.Option(help="What equals a number.")] = None,
    tol: Annotated[float | None, typer.Option(help="Or is no farther from it.")] = None,
    freq: Annotated[
        str | None, typer.Option(help="Ids that were looked up so often: '>10'.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Ids last updated at such a clock: '<1000'.")
    ] = None,
    seen: Annotated[
        str | None, typer.Option(help="Ids last looked up at such a clock: '<1000'.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Matches shown of each tensor.")] = 20,
    json: Json = False,
    namespace: Namespace = "windeck",
    generation: Generation = None,
) -> None:
    """Searches tensors and tables by value. 0: something was found; 1: nothing."""
    from windeck.tools.view import finding

    asked = finding.Asked(where, nan, inf, eq, tol, freq, version, seen)
    with guarded(), found_in(context, namespace, generation) as (store, found):
        finding.find(store, found, name, asked, limit=limit, json=json)


for _name, _command in generations.COMMANDS.items():
    app.command(_name)(_command)
