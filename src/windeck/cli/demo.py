"""The command ``windeck demo``: its options, and its errors in one line each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DESCRIPTION = """\
Train a small forecaster, kill it, resume it, and check that no sample was lost or repeated.

Without FILE, a synthetic load curve is written to OUT/load-curve.parquet and used. The columns of
a file are inferred; name them where that goes wrong."""

CSV_OPTIONS = {
    "--header": "names with commas between them of a file without them; no: numbered; "
    "yes: numbers are names",
    "--delimiter": r"character between values, such as ';' or '\t'",
    "--decimal": "decimal point, such as ','",
    "--encoding": "such as latin-1",
    "--timestamp-format": "of the column --time, such as %%d.%%m.%%Y",
}


def add_parser(subparsers: Any) -> None:
    """Add the command ``demo`` to what ``ArgumentParser.add_subparsers`` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="train, kill, resume, and check that nothing was lost",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?",
        help="Parquet, Arrow/Feather or CSV: a file, a directory or a glob")  # fmt: skip
    add("--time", metavar="COLUMN", help="column of time stamps (default: inferred)")
    add("--id", metavar="COLUMN", action="append", dest="ids",
        help="column of series names; repeatable; '' for none (default: inferred)")  # fmt: skip
    add("--target", metavar="COLUMN", help="column to forecast (default: inferred)")
    add("--context", metavar="N", type=_at_least(1, int), default=168,
        help="steps a window looks back (default: %(default)s)")  # fmt: skip
    add("--horizon", metavar="N", type=_at_least(1, int), default=24,
        help="steps a window looks ahead (default: %(default)s)")  # fmt: skip
    add("--epochs", metavar="X", type=_at_least(0.01, float),
        help="epochs to train (default: 3, or 3,500 batches if that is less)")  # fmt: skip
    add("--steps", metavar="N", type=_at_least(2, int), help="batches to train, instead of epochs")
    add("--batch-size", metavar="N", type=_at_least(1, int), default=256,
        help="windows in a batch (default: %(default)s)")  # fmt: skip
    add("--seed", metavar="N", type=_at_least(0, int), default=0,
        help="seed of the shuffle and of the first weights (default: %(default)s)")  # fmt: skip
    add("--out", metavar="DIR", type=Path, default=Path("out"),
        help="folder for the picture, the logs and the state (default: %(default)s)")  # fmt: skip
    add("--race-seconds", metavar="X", type=_at_least(0.05, float), default=3.0,
        help="seconds to measure each of two loaders (default: %(default)s)")  # fmt: skip
    add("--progress", action=argparse.BooleanOptionalAction, default=True,
        help="show progress while training (default: yes, on a terminal)")  # fmt: skip
    csv = parser.add_argument_group("CSV files", "as the options of windeck.Table.read")
    for option, what in CSV_OPTIONS.items():
        csv.add_argument(option, metavar=option[2:].partition("-")[2].upper() or "TEXT", help=what)
    parser.set_defaults(run=run)


def csv_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of CSV that are given, as arguments of `windeck.Table.read`."""
    names = [option[2:].replace("-", "_") for option in CSV_OPTIONS]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if (header := given.get("header")) is not None:
        given["header"] = {"yes": True, "no": False}.get(header, header.split(","))
    if given.get("delimiter") == "\\t":
        given["delimiter"] = "\t"
    if "timestamp_format" in given and options.time is None:
        raise ValueError("--timestamp-format is of a column of time stamps, expected --time COLUMN")
    return given


def run(options: argparse.Namespace) -> None:
    """Run the demo; what a user can get wrong becomes one line on standard error and exit code 1.

    With `WINDECK_TRACEBACK` set in the environment, the exception is raised instead.
    """
    try:
        from windeck.cli.demo_data import open_dataset

        if options.file is not None:
            # A wrong path is reported before torch is imported.
            open_dataset(options.file, csv_arguments(options), options.time)
        from windeck.cli.demo_steps import run_steps

        run_steps(options)
    except (ValueError, OSError, KeyError, TypeError, MemoryError, RuntimeError) as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.exit(f"windeck demo: {text}")
    except KeyboardInterrupt:
        sys.exit(130)


def _at_least(least: float, kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return the type of an option that is a number from `least` on."""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = kind(-1)
        if not least <= number < float("inf"):
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, got {text!r}")
        return number

    return parse
