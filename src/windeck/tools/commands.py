"""The subcommands of ``windeck`` and their options; what they do stands in modules of their own."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import windeck
from windeck.tools import peek

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


@app.command()
def demo(
    file: Annotated[
        str | None,
        typer.Argument(
            help="Parquet, Arrow/Feather or CSV: a file, a directory or a glob. "
            "Without it, a synthetic load curve is made.",
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
    try:
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
    except (ValueError, OSError, KeyError, TypeError, MemoryError, RuntimeError) as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]windeck demo:[/] {escape(words)}"
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _tell(**wishes: Any) -> None:
    """Runs the demo; a path that leads nowhere is told before torch is loaded."""
    if wishes["file"] is not None:
        peek.open_dataset(wishes["file"])
    from windeck.tools import story

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    story.tell(story.Wishes(**wishes), console)
