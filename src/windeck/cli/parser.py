"""The argument parser of all commands, and the options that several commands share."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from windeck._util.terminal import escaped_lines
from windeck.checkpoint.format.manifests import check_tag

__all__ = ["PATTERN", "Namespace", "Parser", "add_command", "add_generation", "at_least"]
__all__ += ["add_csv_options", "csv_arguments", "name_csv_options"]
__all__ += ["comma_names", "did_you_mean", "number", "one_line_errors", "print_error"]
__all__ += ["byte_size", "generation", "seconds"]

#: Help of an argument that selects names.
PATTERN = "A name with all below it, or a glob such as 'model/*.weight'"
USAGE_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
#: What wrong files, columns and options raise.
_USER_ERRORS = (
    *(ValueError, OSError, KeyError, TypeError, OverflowError),
    *(MemoryError, ImportError, RuntimeError),
)
_HELP_POSITION = 28
_CSV_OPTIONS = {
    "--header": "names with commas between them of a file without them; no: numbered; "
    "yes: numbers are names",
    "--delimiter": r"character between values, such as ';' or '\t'",
    "--decimal": "decimal point, such as ','",
    "--encoding": "such as latin-1",
    "--timestamp-format": "of the column --time, such as %%d.%%m.%%Y",
    "--missing": "words for missing values besides the usual ones, such as -999,oops",
}


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that reports an error in one sentence, and has no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        self._takes_value: dict[str, bool] = {}
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=_HELP_POSITION)
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
        "--generation", type=generation, metavar="GEN",
        help="A generation that `log` shows, or its tag (default: the current one).",
    )  # fmt: skip


def generation(text: str) -> int | str:
    """Parse the number of a generation, or a tag, which is not of digits alone."""
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    try:
        return check_tag(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, found {text[:40]!r}") from None


def add_csv_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Add the options of CSV files, and return them; the column of times is `time`."""
    csv = parser.add_argument_group("CSV files", "as the options of windeck.Table.read")
    return [
        csv.add_argument(option, metavar=option[2:].partition("-")[2].upper() or "TEXT", help=what)
        for option, what in _CSV_OPTIONS.items()
    ]


def csv_arguments(options: Namespace) -> dict[str, Any]:
    """Return the options of CSV that are given, as arguments of `windeck.Table.read`.

    Raises
    ------
    ValueError
        If there is a format of times, and no column of times.
    """
    names = [option[2:].replace("-", "_") for option in _CSV_OPTIONS]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if (header := given.get("header")) is not None:
        given["header"] = {"yes": True, "no": False}.get(header, header.split(","))
    if given.get("delimiter") == "\\t":
        given["delimiter"] = "\t"
    if (words := given.get("missing")) is not None:
        given["missing"] = words.split(",") if words else []
    if "timestamp_format" in given and options.time is None:
        raise ValueError("--timestamp-format is of a column of time stamps, expected --time COLUMN")
    return given


def name_csv_options(text: str) -> str:
    """Add the options of the command line to an error that names arguments of `Table.read`."""
    advice = re.search(r"pass (header|delimiter|decimal|encoding|timestamp_|missing)", text)
    return f"{text} (here: {', '.join(_CSV_OPTIONS)})" if advice else text


def comma_names(text: str) -> list[str]:
    """Parse names with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ArgumentTypeError(f"expected names with commas between them, found {text[:40]!r}")
    return names


def byte_size(text: str) -> int | str:
    """Parse bytes: a whole number, or text such as 64MB, which is checked where it is used."""
    return int(text) if text.isascii() and text.isdigit() else text


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


def seconds(text: str) -> float:
    """Parse a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise ArgumentTypeError(f"expected seconds above 0 and below 3600, found {text[:40]!r}")
    return value


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint at the nearest known word, or `otherwise` if none is near."""
    near = difflib.get_close_matches(word, [*known], 1)
    return f": did you mean {near[0]}?" if near else otherwise


def print_error(command: str, message: str) -> None:
    """Print an error to stderr, after the name of the command."""
    label = f"{command}:"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        label = f"\x1b[1;31m{label}\x1b[0m"
    print(label, escaped_lines(message), file=sys.stderr)


@contextmanager
def one_line_errors(command: str, edit: Callable[[str], str] = str) -> Iterator[None]:
    """Turn what a user can get wrong into one line on standard error, and exit code 1.

    With `WINDECK_TRACEBACK` set in the environment, the exception is raised instead. `edit` may
    change the text.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        end_at_broken_pipe()
    except _USER_ERRORS as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.exit(escaped_lines(f"{command}: {edit(str(text))}"))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def end_at_broken_pipe() -> NoReturn:
    """End the process without an error: its output was cut off, as by ``head``."""
    # Python flushes stdout once more when it exits, and would print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(BROKEN_PIPE) from None
