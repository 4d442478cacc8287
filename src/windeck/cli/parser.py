"""The argument parser of all commands, and the options that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

__all__ = ["PATTERN", "Namespace", "Parser", "add_command", "add_generation", "at_least"]
__all__ += ["did_you_mean", "number", "print_error", "whole_number"]

#: Help of an argument that selects names.
PATTERN = "A name with all below it, or a glob such as 'model/*.weight'"
USAGE_ERROR = 2
_HELP_POSITION = 28


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that reports an error in one sentence, and has no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        self._takes_value: dict[str, bool] = {}
        # argparse makes a formatter for every argument; with a width, it does not import shutil.
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=80)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument as `ArgumentParser.add_argument` does."""
        action = super().add_argument(*names, **settings)
        self._takes_value |= dict.fromkeys(action.option_strings, action.nargs != 0)
        return action

    def parse_in_any_order(self, words: Sequence[str], values: Namespace) -> Namespace:
        """Parse words in which options may stand before, between and after arguments.

        The word after an option that takes a value is its value, whatever it begins with
        (``--eq -1e5``). Words after ``--`` are arguments, and so are negative numbers.
        """
        options, arguments = list[str](), list[str]()
        rest = iter(words)
        for word in rest:
            option = word.partition("=")[0]
            if word == "--":
                arguments += rest
            elif self._takes_value.get(word):
                value = next(rest, None)
                if value is None:
                    self.error(f"{word}: expected one argument")
                options.append(f"{word}={value}")
            elif option in self._takes_value:
                options.append(word)
            elif word[:1] == "-" and word.lstrip("-")[:1].isalpha():
                hint = did_you_mean(option, self._takes_value, ", see --help")
                self.error(f"{self.prog.split()[-1]} has no option {option[:40]}{hint}")
            else:
                arguments.append(word)
        if any(word[:1] == "-" for word in arguments):
            options.append("--")
        return self.parse_args([*options, *arguments], values)

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        import shutil

        self.formatter_class = partial(
            argparse.RawDescriptionHelpFormatter,
            width=shutil.get_terminal_size().columns - 2,
            max_help_position=_HELP_POSITION,
        )
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print a sentence to stderr and exit with code 2."""
        print_error(" ".join(self.prog.split()[:2]), message.removeprefix("argument "))
        sys.exit(USAGE_ERROR)


def add_command(
    commands: Any, name: str, description: str, run: Callable[[Namespace], None]
) -> Parser:
    """Add a command of `windeck view URL`, with the options that all of them have."""
    parser: Parser = commands.add_parser(name, help=description, description=description)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")
    parser.add_argument(
        "--namespace", default="windeck", metavar="TEXT",
        help="Prefix of the checkpoint's keys (default: windeck).",
    )  # fmt: skip
    return parser


def add_generation(parser: Parser) -> None:
    """Add the option `--generation`."""
    parser.add_argument(
        "--generation", type=whole_number, metavar="N",
        help="A generation that `log` shows (default: the current one).",
    )  # fmt: skip


def whole_number(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a whole number, found {text[:40]!r}") from None


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, found {text[:40]!r}") from None


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that are not smaller than `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ArgumentTypeError(f"expected a whole number from {least} on, found {text[:40]!r}")
        return value

    return parse


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint at the nearest known word, or `otherwise` if none is near."""
    import difflib

    near = difflib.get_close_matches(word, [*known], 1)
    return f": did you mean {near[0]}?" if near else otherwise


def print_error(command: str, message: str) -> None:
    """Print an error to stderr, after the name of the command."""
    label = f"{command}:"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        label = f"\x1b[1;31m{label}\x1b[0m"
    print(label, message, file=sys.stderr)
