"""`windeck view URL COMMAND`: which command, and where it is defined."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from windeck.tools.view.parsing import Command, fail, parsed
from windeck.tools.view.session import guarded, plain_url

__all__ = ["COMMANDS", "command_called", "main"]

#: Every command, and the module beside this one that has it: only that one is imported.
COMMANDS = {
    "ls": "looking",
    "log": "looking",
    "show": "looking",
    "row": "looking",
    "find": "looking",
    "html": "keeping",
    "diff": "keeping",
    "verify": "keeping",
    "gc": "keeping",
    "copy": "keeping",
    "export": "keeping",
}

HELP = """\
usage: windeck view URL [COMMAND] [ARGUMENTS] [--help]

Looks into the checkpoints of a store. Without a command: ls.

URL: rocksdb:///path, rocksdb://./path, leveldb:///path, redis://host[:port][/database],
redis+unix:///path/of/socket.

commands, each with its own --help:
{commands}

Exit codes: 0 done; 1 a difference, damage, or nothing found; 2 what was asked makes no sense;
3 the store cannot be opened, or there is no such checkpoint.
"""


def main(words: Sequence[str]) -> None:
    """Runs `windeck view` with these words after it."""
    if not words or words[0] == "--help" or words[1:2] == ["--help"]:
        _help(asked=bool(words))
    with guarded():
        _run(words[0], list(words[1:]))


def _run(url: str, rest: list[str]) -> None:
    if url in COMMANDS and rest and "://" in rest[0]:
        fail(f"expected the URL before the command: windeck view {plain_url(rest[0])} {url}")
    named = bool(rest) and rest[0][:1] != "-"
    name = rest.pop(0) if named else "ls"
    if name not in COMMANDS:
        _unknown(name)
    command = command_called(name)
    values = parsed(name, command, rest)
    late = None if named else values["pattern"]
    if late in COMMANDS:  # `ls` would look for a name like that
        fail(f"expected the command before its options: windeck view {plain_url(url)} {late}")
    command.run(url, **values)


def command_called(name: str) -> Command:
    """The command of a name that is one of `COMMANDS`."""
    found: Command = import_module(f"windeck.tools.view.{COMMANDS[name]}").COMMANDS[name]
    return found


def _help(*, asked: bool) -> NoReturn:
    if not asked:
        fail("expected the URL of a store, such as rocksdb:///path: see windeck view --help")
    lines = [f"  {name:8}{command_called(name).run.__doc__}" for name in COMMANDS]
    sys.stdout.write(HELP.format(commands="\n".join(lines)))
    sys.exit(0)


def _unknown(name: str) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(COMMANDS)}"
    fail(f"there is no command {name[:40]!r}: {hint}")
