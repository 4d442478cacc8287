"""What the words after `windeck view` mean.

Options stand anywhere, before, between or after arguments; what follows one that has a value is its
value, whatever it begins with (``--eq -1e5``); after ``--`` all words are arguments.

argparse, which writes the help, does neither of the first two, and to import it takes a tenth of
what `windeck view URL ls` takes: so it is left out where nobody asks for help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

__all__ = ["GENERATION", "JSON", "NAMESPACE", "Argument", "Command", "argument", "at_least"]
__all__ += ["fail", "parsed"]


# Plain classes: a named tuple is source text that is compiled on import.
class Argument:
    """An argument of a command, or an option, as argparse's `add_argument` takes it.

    Of its settings, these are known: `type`, `default`, `nargs` (``"?"`` or ``"+"``), `required`,
    `dest`, `action` (``"store_true"`` or ``"append"``), `metavar` and `help`.
    """

    def __init__(self, names: tuple[str, ...], settings: dict[str, Any]) -> None:
        self.names, self.settings = names, settings

    @property
    def optional(self) -> bool:
        """Whether it is an option."""
        return self.names[0].startswith("-")

    @property
    def takes_value(self) -> bool:
        """Whether the next word belongs to it."""
        return self.optional and self.settings.get("action") != "store_true"

    @property
    def needed(self) -> bool:
        """Whether it is an option that has to be given."""
        return bool(self.settings.get("required"))

    @property
    def key(self) -> str:
        """Under which name its value goes to the command."""
        return self.settings.get("dest") or self.names[0].lstrip("-").replace("-", "_")

    @property
    def label(self) -> str:
        """What it is called in errors."""
        return self.names[0] if self.optional else self.settings.get("metavar", self.names[0])

    @property
    def default(self) -> Any:
        """Its value where nothing is said of it."""
        flag = self.optional and not self.takes_value
        return self.settings.get("default", False if flag else None)


class Command:
    """A command: what it does, and what it understands; its docstring is its help."""

    def __init__(self, run: Callable[..., None], arguments: tuple[Argument, ...]) -> None:
        self.run, self.arguments = run, arguments


def argument(*names: str, **settings: Any) -> Argument:
    """An argument, or an option where the name begins with dashes."""
    return Argument(names, settings)


class _Unfit(Exception):
    """A word that an argument does not take; says why."""


def at_least(least: int) -> Callable[[str], int]:
    """The type of a whole number that is not smaller."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise _Unfit(f"expected a whole number from {least} on, found {text[:40]!r}")
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
    options = {one.names[0]: one for one in (*command.arguments, _HELP) if one.optional}
    given, plain = _sorted(name, words, options)
    if any(option == "--help" for option, _ in given):  # it may be asked for in place of arguments
        _help(name, command)
    values = {one.key: one.default for one in command.arguments}
    for option, text in given:
        if option not in options:
            fail(f"{name} has no option {_named(option, options)}")
        _put(values, options[option], text)
    asked = {option for option, _ in given}
    lost = [one.label for one in command.arguments if one.needed and one.names[0] not in asked]
    if lost:
        fail(f"the following arguments are required: {', '.join(lost)}")
    _place(values, [one for one in command.arguments if not one.optional], plain)
    return values


def _sorted(
    name: str, words: Sequence[str], options: Mapping[str, Argument]
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Options with what is said of each, whatever it begins with, and all other words."""
    given, plain = list[tuple[str, "str | None"]](), list[str]()
    rest = iter(words)
    for word in rest:
        option, equals, text = word.partition("=")
        if word == "--":
            plain += rest
        elif option in options and not equals and options[option].takes_value:
            given.append((option, next(rest, None)))
        elif option in options or (word[:1] == "-" and word.lstrip("-")[:1].isalpha()):
            given.append((option, text if equals else None))
        else:  # numbers too, with a dash before them
            plain.append(word)
    return given, plain


def _put(values: dict[str, Any], one: Argument, text: str | None) -> None:
    """Notes what is said of an option."""
    if not one.takes_value:
        if text is not None:
            fail(f"{one.label}: ignored explicit argument {text!r}")
        values[one.key] = True
    elif text is None:
        fail(f"{one.label}: expected one argument")
    elif one.settings.get("action") == "append":
        values[one.key] = [*(values[one.key] or ()), _value(one, text)]
    else:
        values[one.key] = _value(one, text)


def _place(values: dict[str, Any], others: Sequence[Argument], plain: Sequence[str]) -> None:
    """Deals words to the arguments that are no options; the last one may take many."""
    left = [*plain]
    lost = [one.label for one in others[len(plain) :] if one.settings.get("nargs") != "?"]
    if lost:
        fail(f"the following arguments are required: {', '.join(lost)}")
    for one in others[: len(plain)]:
        if one.settings.get("nargs") == "+":
            values[one.key], left = [_value(one, text) for text in left], []
        else:
            values[one.key] = _value(one, left.pop(0))
    if left:
        fail(f"unrecognized arguments: {' '.join(left)}")


def _value(one: Argument, text: str) -> Any:
    kind = one.settings.get("type", str)
    try:
        return kind(text)
    except _Unfit as error:
        fail(f"{one.label}: {error}")
    except (TypeError, ValueError):
        wanted = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        fail(f"{one.label}: expected {wanted}, found {text[:40]!r}")


def fail(words: str) -> NoReturn:
    """Ends the process: what was asked makes no sense."""
    from windeck.tools.view.session import Exit, tell

    tell(words)
    sys.exit(Exit.WRONG)


def _named(word: str, known: Iterable[str]) -> str:
    import difflib

    name = word.partition("=")[0]
    near = difflib.get_close_matches(name, [*known], 1)
    return f"{name[:40]}{f': did you mean {near[0]}?' if near else ', see --help'}"


def _help(name: str, command: Command) -> NoReturn:
    import argparse
    from functools import partial

    parser = argparse.ArgumentParser(
        f"windeck view URL {name}", description=command.run.__doc__, add_help=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=28),
    )  # fmt: skip
    for one in (*command.arguments, _HELP):
        parser.add_argument(*one.names, **one.settings)
    parser.print_help()
    sys.exit(0)
