"""The command ``windeck prepare``: sort files by series and time into Parquet."""

from __future__ import annotations

import re
import sys
import warnings
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any

from windeck.cli.output import print_lines
from windeck.cli.parser import (
    USAGE_ERROR,
    add_csv_options,
    at_least,
    byte_size,
    comma_names,
    csv_arguments,
    name_csv_options,
    one_line_errors,
    print_error,
)

DESCRIPTION = """\
Write Parquet, Arrow and CSV files of any size, in any order of rows, as Parquet files that are
sorted by series and time, in bounded memory.

  windeck prepare 'raw/*.csv' sorted --id site --time hour
  windeck prepare raw sorted --id site --time hour --columns load,wind --dtype float32 \\
      --scaler standard --train-stop 2024-01-01
  windeck prepare s3://bucket/raw s3://bucket/sorted --id site --time hour --scratch /local/disk

The same command goes on where it was interrupted. `Table.read` reads the directory DEST."""

#: Options that are passed to `windeck.prepare` by name as they are.
_PASSED = (
    *("dtype", "duplicates", "on_error", "sample", "seed", "file_bytes"),
    *("row_group_bytes", "compression", "memory_budget", "threads", "engine", "overwrite"),
    *("per_series", "scratch", "step", "origin", "off_grid", "time_zone", "max_rows"),
)

#: Options of arguments that errors advise to give.
_OPTIONS = {
    "columns": "--columns",
    "duplicates": "--duplicates",
    "file_bytes": "--file-bytes",
    "max_rows": "--max-rows",
    "memory_budget": "--memory-budget",
    "off_grid": "--off-grid",
    "overwrite": "--overwrite",
    "scratch": "--scratch",
    "timestamp_column": "--time",
}


def add_parser(subparsers: Any) -> None:
    """Add the command ``prepare`` to what ``ArgumentParser.add_subparsers`` returned."""
    parser: ArgumentParser = subparsers.add_parser(
        "prepare",
        help="sort files by series and time into Parquet, in bounded memory",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add("src", metavar="SRC", nargs="+", help="files, directories or globs")
    add("dest", metavar="DEST", help="a new directory or URL, or one to go on with")
    add("--id", metavar="COLUMN", action="append", dest="id_columns", type=comma_names,
        help="columns of series names, with commas or repeated")  # fmt: skip
    add("--time", metavar="COLUMN", help="column of times")
    add("--columns", metavar="NAME", action="append", type=comma_names,
        help="columns of values, with commas or repeated (default: all)")  # fmt: skip
    add("--dtype", choices=("float16", "float32", "float64"), help="dtype of floating columns")
    add("--duplicates", choices=("error", "first", "last", "keep", "mean"), default="error",
        help="rows with the same ids and time, or of one step (default: %(default)s)")  # fmt: skip
    add("--step", metavar="STEP", type=_step,
        help="write a row at each step of each series, such as 1h, D or MS")  # fmt: skip
    add("--origin", metavar="TIME", type=_step, help="a time on the grid (default: 1970-01-01)")
    add("--off-grid", choices=("error", "nearest", "floor"), default="error",
        help="rows between two steps (default: %(default)s)")  # fmt: skip
    add("--time-zone", metavar="ZONE", help="zone of the days, weeks and months of --step")
    add("--max-rows", metavar="N", type=at_least(0),
        help="rows of a grid (default: ten times those read)")  # fmt: skip
    add("--on-error", choices=("stop", "skip"), default="stop",
        help="skip leaves out damaged files and lists them (default: %(default)s)")  # fmt: skip
    add("--scaler", action="append", choices=("standard", "minmax", "robust", "mean_abs"),
        default=[], help="fit a scaler to the training rows; repeatable")  # fmt: skip
    add("--train-start", metavar="TIME", help="first time of the training rows")
    add("--train-stop", metavar="TIME", help="end of the training rows, itself not one of them")
    add("--sample", metavar="N", type=_sample, default=100_000,
        help="rows that scalers are fitted to, or 'all' (default: %(default)s)")  # fmt: skip
    add("--seed", metavar="N", type=at_least(0), default=0,
        help="seed of the sample (default: %(default)s)")  # fmt: skip
    add("--per-series", action="store_true", help="a scaling for each series")
    add("--file-bytes", metavar="SIZE", type=byte_size,
        help="uncompressed bytes of a file, such as 256MiB (default: 128MiB and more)")  # fmt: skip
    add("--row-group-bytes", metavar="SIZE", type=byte_size, default="16MiB",
        help="uncompressed bytes of a row group (default: %(default)s)")  # fmt: skip
    add("--compression", choices=("zstd", "snappy", "lz4", "none"), default="zstd",
        help="compression of the files (default: %(default)s)")  # fmt: skip
    add("--memory-budget", metavar="SIZE", type=byte_size,
        help="memory for all workers, such as 4GB (default: half of the machine's)")  # fmt: skip
    add("--threads", metavar="N", type=at_least(1), help="workers (default: one for each core)")
    add("--engine", choices=("local", "ray"), default="local",
        help="ray runs the work on a Ray cluster (default: %(default)s)")  # fmt: skip
    add("--scratch", metavar="DIR",
        help="local directory for sorted rows, if DEST is a URL (default: DEST)")  # fmt: skip
    add("--overwrite", action="store_true", help="replace the result of another command in DEST")
    add("--quiet", action="store_true", help="show no progress, and print no summary")
    add("--storage-option", metavar="NAME=VALUE", action="append", default=[], type=_option,
        help="option of the file system of URLs; no credentials: use the environment")  # fmt: skip
    add_csv_options(parser)
    parser.set_defaults(run=run)


def run(options: Namespace) -> None:
    """Prepare files; what a user can get wrong becomes one line and exit code 1 or 2.

    All errors are raised with their traceback if `WINDECK_TRACEBACK` is set in the environment.
    """
    train = options.train_start, options.train_stop
    if train != (None, None) and options.time is None:
        print_error("windeck prepare", "--train-start and --train-stop need --time")
        sys.exit(USAGE_ERROR)
    with (
        one_line_errors("windeck prepare", _name_options),
        warnings.catch_warnings(record=True) as found,
    ):
        warnings.simplefilter("always", UserWarning)
        _prepare(options, None if train == (None, None) else train)
    for warning in found:
        print_error("windeck prepare", str(warning.message))


def _name_options(text: str) -> str:
    """Add the options of the command line to an error that names arguments of `prepare`."""
    found = [option for name, option in _OPTIONS.items() if re.search(rf"\b{name}=", text)]
    return name_csv_options(f"{text} (here: {', '.join(found)})" if found else text)


def _prepare(options: Namespace, train: tuple[Any, Any] | None) -> None:
    from windeck import prepare

    named = {name: getattr(options, name) for name in _PASSED}
    prepared = prepare(
        options.src,
        options.dest,
        columns=_joined(options.columns),
        id_columns=_joined(options.id_columns),
        scaler=options.scaler,
        train=train,
        timestamp_column=options.time,
        **csv_arguments(options),
        storage_options=dict(options.storage_option) or None,
        progress=not options.quiet,
        **named,
    )
    if not options.quiet:
        print_lines(str(prepared))


def _joined(lists: Sequence[Sequence[str]] | None) -> list[str] | None:
    return None if lists is None else [name for names in lists for name in names]


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise ArgumentTypeError(f"expected NAME=VALUE, found {text[:40]!r}")
    return name, value


def _step(text: str) -> int | str:
    """Return an integer, for times that are integers, or a text."""
    try:
        return int(text)
    except ValueError:
        return text


def _sample(text: str) -> int | None:
    return None if text == "all" else at_least(2)(text)
