"""The command ``windeck demo``: its options, and its errors in one line each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windeck.cli.parser import (
    add_csv_options,
    at_least,
    csv_arguments,
    name_csv_options,
    one_line_errors,
    seconds,
)

DESCRIPTION = """\
Train a small forecaster, kill it, resume it, and check that no sample was lost or repeated.

Without FILE, a synthetic load curve is written to OUT/load-curve.parquet and used. The columns of
a file are inferred; name them where that goes wrong."""


def add_parser(subparsers: Any) -> None:
    """Add the command ``demo`` to what ``ArgumentParser.add_subparsers`` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="train, kill, resume, and check that nothing was lost",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?",
        help="Parquet, Arrow/Feather or CSV: a file, a directory, a glob or a URL")  # fmt: skip
    add("--time", metavar="COLUMN", help="column of time stamps (default: inferred)")
    add("--id", metavar="COLUMN", action="append", dest="ids",
        help="column of series names; repeatable; '' for none (default: inferred)")  # fmt: skip
    add("--target", metavar="COLUMN", help="column to forecast (default: inferred)")
    add("--context", metavar="N", type=at_least(1), default=168,
        help="steps a window looks back (default: %(default)s)")  # fmt: skip
    add("--horizon", metavar="N", type=at_least(1), default=24,
        help="steps a window looks ahead (default: %(default)s)")  # fmt: skip
    add("--steps", metavar="N", type=at_least(2),
        help="batches to train (default: 3 epochs, or 3,500 batches if that is less)")  # fmt: skip
    add("--batch-size", metavar="N", type=at_least(1), default=256,
        help="windows in a batch (default: %(default)s)")  # fmt: skip
    add("--seed", metavar="N", type=at_least(0), default=0,
        help="seed of the shuffle and of the first weights (default: %(default)s)")  # fmt: skip
    add("--out", metavar="DIR", type=Path, default=Path("out"),
        help="folder for the picture, the logs and the state (default: %(default)s)")  # fmt: skip
    add("--race-seconds", metavar="X", type=seconds, default=3.0,
        help="seconds to measure each of two loaders (default: %(default)s)")  # fmt: skip
    add_csv_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run the demo; what a user can get wrong becomes one line on standard error and exit code 1.

    With `WINDECK_TRACEBACK` set in the environment, the exception is raised instead.
    """
    with one_line_errors("windeck demo", name_csv_options):
        from windeck.cli.demo_data import open_files

        if options.file is not None:
            # A wrong path is reported before torch is imported.
            open_files(options.file, csv_arguments(options), options.time)
        from windeck.cli.demo_steps import run_steps

        run_steps(options)
