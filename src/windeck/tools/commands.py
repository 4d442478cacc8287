"""The subcommands of ``windeck`` and their options; what they do stands in modules of their own."""

from __future__ import annotations

from typing import Annotated

import typer

import windeck

app = typer.Typer(
    name="windeck",
    help="A deck of windows: shuffle it, cut it, deal it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"windeck {windeck.__version__}")
        raise typer.Exit


@app.callback()
def windeck_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    """A deck of windows: shuffle it, cut it, deal it."""


@app.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }
)
def view(context: typer.Context) -> None:
    """Looks into the checkpoints of a store: windeck view URL COMMAND."""
    from windeck.tools.view.app import main

    main(context.args)
