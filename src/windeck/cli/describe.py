"""The command ``windeck describe``: what windeck makes of files, and the Python that loads them."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from windeck._util.terminal import escaped
from windeck.cli.output import aligned, colored, print_json, print_lines
from windeck.cli.parser import (
    Parser,
    add_csv_options,
    csv_arguments,
    name_csv_options,
    one_line_errors,
)

if TYPE_CHECKING:
    from windeck.cli.description.description import Description

DESCRIPTION = """\
Say what windeck makes of files and folders: columns, roles, series, span, step, gaps, missing
values, bytes in memory; and the lines of Python that load them. Long files are judged by a sample.
Of a folder with files of several kinds each kind is described.

  windeck describe load.parquet
  windeck describe load.csv --delimiter ";" --decimal ","
  windeck describe corpus tokens/train.bin rocksdb:///data/run"""


def add_parser(commands: Any) -> None:
    """Add the command to those of `windeck`."""
    parser: Parser = commands.add_parser(
        "describe",
        help="say what windeck makes of a file, and print the Python that loads it",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "paths", nargs="+", metavar="FILE",
        help="A file, a folder, a glob or the URL of one; the URL of a store of checkpoints.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="Print a JSON document for each FILE.")
    parser.add_argument(
        "--time", metavar="COLUMN", help="Column of time stamps (default: guessed)."
    )
    add_csv_options(parser)
    parser.set_defaults(run=run)


@one_line_errors("windeck describe", name_csv_options)
def run(options: Namespace) -> None:
    """Describe each path, in order."""
    from windeck.cli.description.kinds import describe

    csv, number = csv_arguments(options), 0
    for path in options.paths:
        for found in describe(path, time=options.time, csv=csv):
            if options.json:
                print_json(found.document())
                continue
            if number:
                print_lines("")
            _show(found)
            number += 1


def _show(found: Description) -> None:
    print_lines(colored(escaped(f"{found.path}: {found.summary}"), "bold"))
    if not found.code:
        return
    print_lines("")
    if found.columns:
        rows = [
            (escaped(column.name), column.type, column.role, _missing(column.missing))
            for column in found.columns
        ]
        # Not `print_table`, which needs rich on a terminal.
        print_lines(*aligned([("column", "type", "role", "missing"), *rows], right=[3]), "")
    print_lines(*(escaped(note) for note in found.notes), "")
    print_lines(*(f"    {line}".rstrip() for line in found.code))


def _missing(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
