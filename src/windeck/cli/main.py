"""Entry point of the command `windeck`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec

from windeck import __version__
from windeck.cli.parser import USAGE_ERROR, Namespace, Parser, did_you_mean
from windeck.cli.session import UsageError, redacted_url, reported_errors

__all__ = ["VIEW_COMMANDS", "main", "process", "view_parser"]

#: Commands of `windeck` but for `view`, and the modules of this package that define them.
COMMANDS = {"demo": "demo", "describe": "describe", "doctor": "doctor", "prepare": "prepare"}
#: Commands of `windeck view URL`, and the modules of this package that define them.
VIEW_COMMANDS = {
    "ls": "ls",
    "show": "show",
    "row": "row",
    "find": "find",
    "html": "html",
    "diff": "diff",
    "export": "export",
    "log": "maintenance",
    "verify": "maintenance",
    "gc": "maintenance",
    "copy": "maintenance",
}
#: Packages that the viewer needs on a terminal, beyond the library.
VIEW_EXTRAS = ("rich",)

VIEW = "Look into the checkpoints of a store."
VIEW_NOTES = """\
Without a command: ls. Each command has its own --help.

URL: rocksdb:///path, rocksdb://./path, leveldb:///path, redis://host[:port][/database],
redis+unix:///path/of/socket; copies in s3://bucket/folder, gs://, abfs://, file:///path. Or a
file or folder of another format: model.pt, a folder of torch.distributed.checkpoint,
safetensors, .npz, a table in .parquet.

Exit codes: 0 done; 1 a difference, damage, or nothing found; 2 the command line is wrong;
3 the store cannot be opened, or has no such checkpoint.
"""


def process() -> None:
    """Run the command of `sys.argv`: the entry point of `windeck`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what is printed there is lost
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end
    main()


def main(words: Sequence[str] | None = None) -> None:
    """Run the command that `words` name, by default those of `sys.argv`."""
    words = sys.argv[1:] if words is None else [*words]
    if words[:1] == ["view"]:
        _view(words[1:])
        return
    parser = _parser(words[:1])
    arguments = parser.parse_args(words)
    if arguments.run is None:
        parser.print_help()
        sys.exit(USAGE_ERROR)
    arguments.run(arguments)


def view_parser(names: Iterable[str]) -> tuple[Parser, dict[str, Parser]]:
    """Return the parser of `windeck view URL`, and those of the named commands."""
    parser = Parser(
        prog="windeck view URL",
        usage="windeck view URL [COMMAND] [ARGUMENT ...]",
        description=VIEW,
        epilog=VIEW_NOTES,
    )
    # With `prog`, argparse formats no usage to find it.
    commands = parser.add_subparsers(prog=parser.prog, title="commands", metavar="COMMAND")
    for module in dict.fromkeys(VIEW_COMMANDS[name] for name in names):
        import_module(f"windeck.cli.{module}").add_parser(commands)
    return parser, commands.choices


def _view(words: Sequence[str]) -> None:
    if not words or {*words[:2]} & {"-h", "--help"}:
        parser, _ = view_parser(VIEW_COMMANDS)
        if not words:
            parser.error(
                "expected the URL of a store, such as rocksdb:///path: see windeck view --help"
            )
        parser.print_help()
        return
    if sys.stdout.isatty():
        _check_extras(VIEW_EXTRAS)
    with reported_errors():
        arguments = _view_arguments(words[0], list(words[1:]))
        arguments.run(arguments)


def _view_arguments(url: str, rest: list[str]) -> Namespace:
    """Parse what follows the URL of a store."""
    if url in VIEW_COMMANDS and rest and "://" in rest[0]:
        raise UsageError(
            f"expected the URL before the command: windeck view {redacted_url(rest[0])} {url}"
        )
    named = bool(rest) and rest[0][:1] != "-"
    name = rest.pop(0) if named else "ls"
    if name not in VIEW_COMMANDS:
        expected = f": expected one of {', '.join(VIEW_COMMANDS)}"
        raise UsageError(
            f"there is no command {name[:40]!r}{did_you_mean(name, VIEW_COMMANDS, expected)}"
        )
    parser = view_parser([name])[1][name]
    arguments = parser.parse_in_any_order(rest, Namespace(url=url))
    if not named and arguments.pattern in VIEW_COMMANDS:  # `ls` would look for such a name
        raise UsageError(
            "expected the command before its options: "
            f"windeck view {redacted_url(url)} {arguments.pattern}"
        )
    return arguments


def _parser(names: Iterable[str]) -> Parser:
    """Return the parser of `windeck`, with the named commands, or all if one is not known."""
    parser = Parser(prog="windeck", description="Exactly resumable loading of training data.")
    parser.add_argument("--version", action="version", version=f"windeck {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(prog=parser.prog, title="commands", metavar="COMMAND")
    known = [COMMANDS[name] for name in names if name in COMMANDS] or COMMANDS.values()
    for module in dict.fromkeys(known):
        import_module(f"windeck.cli.{module}").add_parser(commands)
    commands.add_parser(
        "view", help="look into the checkpoints of a store: windeck view URL COMMAND"
    )
    return parser


def _check_extras(packages: Iterable[str]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        sys.exit(f"The command line needs {' and '.join(missing)}: pip install 'windeck[cli]'")
