"""`demo` and `demo text`: the demos of `windeck.tools` as commands."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windeck.cli.parser import Namespace, Parser, at_least, number, print_error

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the commands `demo` and `demo-text`."""
    _add_demo(commands)
    _add_demo_text(commands)


def _add_demo(commands: Any) -> None:
    text = "Train a small forecaster, kill it, resume it, and prove that nothing was lost."
    parser: Parser = commands.add_parser("demo", help=text, description=text)
    parser.set_defaults(run=_demo)
    parser.add_argument(
        "file", nargs="?",
        help="Parquet, Arrow/Feather or CSV: a file, a directory or a glob "
        "(default: a synthetic load curve). The word text is another demo.",
    )  # fmt: skip
    parser.add_argument("--time", help="Column of time stamps (default: inferred).")
    parser.add_argument(
        "--id", action="append", dest="ids",
        help="Column that names the series; may be repeated, '' for none.",
    )  # fmt: skip
    parser.add_argument("--target", help="Column to forecast (default: inferred).")
    _add_numbers(
        parser,
        ("--context", at_least(1), 168, "Steps before the forecast in a window"),
        ("--horizon", at_least(1), 24, "Steps to forecast"),
        ("--epochs", _positive(0.01), None, "Epochs to train (default: 3, or less of a long one)"),
        ("--steps", at_least(2), None, "Batches to train, instead of epochs"),
        ("--batch-size", at_least(1), 256, "Windows in a batch"),
        ("--seed", at_least(0), 0, "Seed of the shuffle and of the weights"),
        ("--race-seconds", _positive(0.05), 3.0, "Time to measure each of two loaders"),
    )
    _add_output(parser, "out")


def _add_demo_text(commands: Any) -> None:
    text = "Train on packed documents in two processes, kill them, go on with three."
    parser: Parser = commands.add_parser("demo-text", help=text, description=text)
    parser.set_defaults(run=_demo_text)
    parser.add_argument(
        "--data", type=Path,
        help="A folder of dataset=NAME/*.partN.arrow or Parquet (default: Python's sources).",
    )  # fmt: skip
    parser.add_argument("--column", default="tokens", help="Column of tokens or text.")
    _add_numbers(
        parser,
        ("--steps", at_least(4), 120, "Batches to train"),
        ("--batch-size", at_least(1), 8, "Sequences in a process's batch"),
        ("--sequence-length", at_least(1), 128, "Tokens in a sequence"),
        ("--seed", at_least(0), 0, "Seed of the shuffle and of the weights"),
        ("--race-seconds", _positive(0.05), 2.0, "Time to measure loading alone"),
    )
    _add_output(parser, "out/text")


def _add_numbers(
    parser: Parser, *options: tuple[str, Callable[[str], float], float | None, str]
) -> None:
    for option, parse, default, text in options:
        text += "." if default is None else f" (default: {default})."
        parser.add_argument(option, type=parse, default=default, metavar="N", help=text)


def _add_output(parser: Parser, folder: str) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(folder), help=f"Folder for files (default: {folder})."
    )
    parser.add_argument(
        "--progress", action=BooleanOptionalAction, default=True, help="Show progress bars."
    )


def _positive(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = number(text)
        if not value >= least:
            raise ArgumentTypeError(f"expected a number from {least} on, found {text[:40]!r}")
        return value

    return parse


def _demo(arguments: Namespace) -> None:
    settings = {key: value for key, value in vars(arguments).items() if key != "run"}
    settings["context_length"] = settings.pop("context")
    settings["prediction_length"] = settings.pop("horizon")
    if arguments.ids is not None:
        settings["ids"] = tuple(name for name in arguments.ids if name)
    with _one_sentence("demo"):
        if arguments.file is not None:  # a wrong path is an error before torch is imported
            from windeck.tools import peek

            peek.open_dataset(arguments.file)
        from windeck.tools import story

        story.tell(story.Wishes(**settings), _console())


def _demo_text(arguments: Namespace) -> None:
    settings = {key: value for key, value in vars(arguments).items() if key != "run"}
    with _one_sentence("demo text"):
        from windeck.tools.text import story

        story.tell(story.Wishes(**settings), _console())


@contextmanager
def _one_sentence(command: str) -> Iterator[None]:
    """Turn an error that users can make into one sentence and exit code 1."""
    try:
        yield
    except (ValueError, OSError, KeyError, TypeError, MemoryError, RuntimeError) as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        print_error(f"windeck {command}", words)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)
