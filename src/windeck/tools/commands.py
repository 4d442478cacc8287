"""The subcommands of ``windeck`` and their options; what they do stands in modules of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import windeck

if TYPE_CHECKING:
    from rich.console import Console


class Words(TyperGroup):
    """Commands of two words: ``demo text`` is ``demo-text``. A file of that name is ``./text``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Joins the two words before commands are looked up."""
        if args[:2] == ["demo", "text"]:
            args = ["demo-text", *args[2:]]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="windeck",
    cls=Words,
    help="A deck of windows: shuffle it, cut it, deal it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


#: What `demo-text` does, told in a line.
TEXT = (
    "Trains a small model on packed documents in two processes, kills them, goes on with three, "
    "and proves that no token was lost."
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


@app.command()
def demo(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Parquet, Arrow/Feather or CSV: a file, a directory or a glob. "
            "Without it, a synthetic load curve is made. The word text is another demo.",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Column of time stamps.", show_default="inferred")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Column that names the series; repeat it, or '' for none."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to forecast.", show_default="inferred")
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Steps a window looks back.")] = 168,
    horizon: Annotated[int, typer.Option(min=1, help="Steps a window looks ahead.")] = 24,
    epochs: Annotated[
        float | None,
        typer.Option(min=0.01, help="Epochs to train.", show_default="3, or less of a long one"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help="Batches to train, instead of epochs.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Windows in a batch.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffle and of the weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the state.")] = Path("out"),
    race_seconds: Annotated[
        float, typer.Option(min=0.05, help="Time to measure each of two loaders for.")
    ] = 3,
    progress: Annotated[bool, typer.Option(help="Show bars while training.")] = True,
) -> None:
    """Trains a small forecaster, kills it, resumes it, and proves that nothing was lost."""
    with _one_sentence("demo"):
        _tell(
            file=file,
            time=time,
            ids=None if ids is None else tuple(name for name in ids if name),
            target=target,
            context_length=context,
            prediction_length=horizon,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            out=out,
            race_seconds=race_seconds,
            progress=progress,
        )


@app.command("demo-text", help="Also: windeck demo text. " + TEXT)
def demo_text(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A corpus of your own: a folder of dataset=NAME/*.partN.arrow or Parquet. "
            "Without it, one is made of Python's own sources.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Its column of tokens or text.")] = "tokens",
    steps: Annotated[int, typer.Option(min=4, help="Batches to train.")] = 120,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences in a process's batch.")] = 8,
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens in a sequence.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffle and of the weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the corpus, logs and state.")] = Path(
        "out/text"
    ),
    race_seconds: Annotated[
        float, typer.Option(min=0.05, help="Time to measure loading alone for.")
    ] = 2,
    progress: Annotated[bool, typer.Option(help="Show bars while training.")] = True,
) -> None:
    with _one_sentence("demo text"):
        from windeck.tools.text import story

        wishes = story.Wishes(
            data=data,
            column=column,
            steps=steps,
            batch_size=batch_size,
            sequence_length=sequence_length,
            seed=seed,
            out=out,
            race_seconds=race_seconds,
            progress=progress,
        )
        story.tell(wishes, _console())


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


@contextmanager
def _one_sentence(command: str) -> Iterator[None]:
    """Turns what users can get wrong into one sentence and an exit code."""
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError, MemoryError, RuntimeError) as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        from rich.console import Console
        from rich.markup import escape

        words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]windeck {command}:[/] {escape(words)}"
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _tell(**wishes: Any) -> None:
    """Runs the demo; a path that leads nowhere is told before torch is loaded."""
    if wishes["file"] is not None:
        from windeck.tools import peek

        peek.open_dataset(wishes["file"])
    from windeck.tools import story

    story.tell(story.Wishes(**wishes), _console())


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)
