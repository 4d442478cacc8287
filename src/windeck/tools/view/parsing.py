"""What the words after `windeck view` mean: argparse, without two of its habits.

argparse takes a value that begins with a dash for an option (``--eq -1e5``), and an argument that
may be missing for missing when an option stands before it (``find --nan NAME``). So values are
joined to their options first (``--eq=-1e5``), and arguments are looked for in what options leave.

The library is taken, and not a nicer one, for the time that its import takes: it is among what
`windeck view URL ls` costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

__all__ = ["GENERATION", "JSON", "NAMESPACE", "Argument", "Command", "argument", "at_least"]
__all__ += ["fail", "parsed"]


class Argument(NamedTuple):
    """An argument of a command, or an option, as argparse's `add_argument` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def optional(self) -> bool:
        """Whether it is an option."""
        return self.names[0].startswith("-")

    @property
    def takes_value(self) -> bool:
        """Whether the next word belongs to it."""
        return self.optional and self.settings.get("action") != "store_true"


class Command(NamedTuple):
    """A command: what it does, and what it understands; its docstring is its help."""

    run: Callable[..., None]
    arguments: tuple[Argument, ...]


def argument(*names: str, **settings: Any) -> Argument:
    """An argument, or an option where the name begins with dashes."""
    return Argument(names, settings)


def at_least(least: int) -> Callable[[str], int]:
    """The type of a whole number that is not smaller."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {least} on, found {text[:40]!r}"
            )
        return number

    return parse


JSON = argument("--json", action="store_true", help="Print one JSON document.")
NAMESPACE = argument(
    "--namespace", default="windeck", metavar="TEXT",
    help="What the keys of the checkpoint begin with (default: windeck).",
)  # fmt: skip
GENERATION = argument(
    "--generation", type=int, metavar="N", help="One of `log` (default: the one in force)."
)
_HELP = argument("--help", action="store_true", help="Show this message and exit.")


def parsed(name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """The values of a command's arguments; ends the process with help, or with what is wrong."""
    options = [one for one in (*command.arguments, _HELP) if one.optional]
    others = [one for one in command.arguments if not one.optional]
    joined = _joined(words, {one.names[0] for one in options if one.takes_value})
    # Help comes first: it may be asked for in place of an argument.
    before = joined[: joined.index("--")] if "--" in joined else joined
    if "--help" in before:
        _help(name, command)
    found, left = _parser(options).parse_known_args(joined)
    at = left.index("--") if "--" in left else len(left)
    for word in left[:at]:
        if word[:1] == "-" and word.lstrip("-")[:1].isalpha():  # others are numbers
            fail(f"{name} has no option {_named(word, (one.names[0] for one in options))}")
    plain = [*left[:at], *left[at + 1 :]]
    if others and plain:
        plain.insert(0, "--")  # none of them is an option, whatever it begins with
    values = {**vars(found), **vars(_parser(others).parse_args(plain))}
    del values["help"]
    return values


def fail(words: str) -> NoReturn:
    """Ends the process: what was asked makes no sense."""
    from windeck.tools.view.session import Exit, tell

    tell(words)
    sys.exit(Exit.WRONG)


def _joined(words: Sequence[str], takers: set[str]) -> list[str]:
    """The words, those that are values of options made one with their options."""
    joined: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*joined, word, *rest]
        value = next(rest, None) if word in takers else None
        joined.append(word if value is None else f"{word}={value}")
    return joined


def _named(word: str, known: Iterable[str]) -> str:
    import difflib

    name = word.partition("=")[0]
    near = difflib.get_close_matches(name, [*known], 1)
    return f"{name[:40]}{f': did you mean {near[0]}?' if near else ', see --help'}"


class _Parser(argparse.ArgumentParser):
    """One whose errors are a sentence, as all of ours."""

    def error(self, message: str) -> NoReturn:
        fail(message.removeprefix("argument "))


def _parser(arguments: Iterable[Argument]) -> _Parser:
    # With a width, since argparse asks the terminal for its own each time something is added.
    plain = partial(argparse.HelpFormatter, width=80)
    parser = _Parser("", allow_abbrev=False, add_help=False, formatter_class=plain)
    for one in arguments:
        parser.add_argument(*one.names, **one.settings)
    return parser


def _help(name: str, command: Command) -> NoReturn:
    parser = _Parser(
        f"windeck view URL {name}", description=command.run.__doc__, add_help=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=28),
    )  # fmt: skip
    for one in (*command.arguments, _HELP):
        parser.add_argument(*one.names, **one.settings)
    parser.print_help()
    sys.exit(0)
