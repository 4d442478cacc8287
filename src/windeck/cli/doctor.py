"""The command ``windeck doctor``: diagnose a file's windows or a loader of the user, or compare."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from windeck._util.terminal import escaped
from windeck._util.text import plural
from windeck.cli.output import (
    check_output_file,
    colored,
    on_terminal,
    print_lines,
    print_table,
    unicode_ok,
)
from windeck.cli.parser import (
    USAGE_ERROR,
    Parser,
    add_csv_options,
    at_least,
    comma_names,
    csv_arguments,
    name_csv_options,
    one_line_errors,
    print_error,
    seconds,
)
from windeck.cli.session import UsageError
from windeck.diagnosis.report import Diagnosis, comparison, comparison_html
from windeck.io.local_files import atomic_file

#: MODULE:FUNCTION.
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

DESCRIPTION = """\
Measure how fast batches are made on this machine, and say where the time goes.

  windeck doctor FILE                  windows of a Parquet, Arrow or CSV file
  windeck doctor MODULE:FUNCTION       what a function of yours returns: a loader, or (loader, step)
  windeck doctor --compare A.json B.json   reports of two machines side by side

MODULE is imported and FUNCTION called, as `python -m MODULE` would run it: name only code that you
trust. The step trains, so give it a model that may change."""


def add_parser(subparsers: Any) -> None:
    """Add the command ``doctor`` to what ``ArgumentParser.add_subparsers`` returned."""
    parser: Parser = subparsers.add_parser(
        "doctor",
        help="measure a loader beside its training step, and say what limits it",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    add("what", metavar="FILE | MODULE:FUNCTION", nargs="?",
        help="a file, a directory or a glob; or a function that returns a loader")  # fmt: skip
    add("--compare", metavar="REPORT.json", nargs="+", type=Path,
        help="compare reports that --json printed")  # fmt: skip
    add("--seconds", metavar="X", type=seconds, default=2.0,
        help="seconds of each loop (default: %(default)s)")  # fmt: skip
    add("--batches", metavar="N", type=at_least(1), default=100_000,
        help="most batches of each loop (default: %(default)s)")  # fmt: skip
    add("--network", metavar="URL", help="also measure how fast something large is downloaded")
    add("--no-disk", action="store_false", dest="disk", help="do not measure the disk")
    add("--json", action="store_true", help="print one JSON document, to keep and to compare")
    add("--html", metavar="OUT.html", type=Path, help="also write one page that needs nothing else")
    add("--force", action="store_true", help="replace the page if it exists")
    of_files = [
        add(
            "--columns",
            metavar="NAME",
            action="append",
            type=comma_names,
            help="columns of windows, with commas or repeated (default: the target of the demo)",
        ),
        add(
            "--id",
            metavar="COLUMN",
            action="append",
            dest="ids",
            help="column of series names; repeatable; '' for none (default: inferred)",
        ),
        add(
            "--context",
            metavar="N",
            type=at_least(1),
            default=168,
            help="steps a window looks back (default: %(default)s)",
        ),
        add(
            "--horizon",
            metavar="N",
            type=at_least(0),
            default=24,
            help="steps a window looks ahead (default: %(default)s)",
        ),
        add(
            "--batch-size",
            metavar="N",
            type=at_least(1),
            default=256,
            help="windows in a batch (default: %(default)s)",
        ),
        add(
            "--mapped",
            action="store_true",
            help="map one Arrow file instead of reading it into memory",
        ),
        add(
            "--time",
            metavar="COLUMN",
            help="column of time stamps, by which rows are sorted (default: rows are in order)",
        ),
        *add_csv_options(parser),
    ]
    parser.set_defaults(run=run, of_files=of_files)


def run(options: Namespace) -> None:
    """Diagnose or compare; what a user can get wrong becomes one line and exit code 1 or 2.

    Errors of the user's own function, loader and step are raised with their traceback, and so are
    all others with `WINDECK_TRACEBACK` set in the environment.
    """
    with _reported():
        if (options.what is None) == (options.compare is None):
            raise UsageError("expected FILE, MODULE:FUNCTION or --compare: see --help")
        if options.html is not None:
            check_output_file(options.html, force=options.force)
        if options.compare is not None:
            _refuse_file_options(options)
            _compare(options)
            return
        function = _function(options.what)
        if function is not None:
            _refuse_file_options(options)
        loader, step = (None, None) if function else (_file_loader(options), None)
    if function is not None:
        loader, step = _loader_and_step(function(), options.what)
        found = _diagnose(loader, step, options)
    else:
        with _reported():
            from windeck.io.data_files import resolve

            found = _diagnose(loader, step, options, resolve(options.what))
    with _reported():
        _show(found, options)


def _refuse_file_options(options: Namespace) -> None:
    """Raise a UsageError if an option is given that only windows of a file have."""
    for option in options.of_files:
        if getattr(options, option.dest) != option.default:
            raise UsageError(
                f"{option.option_strings[0]} is an option of FILE, expected none beside "
                f"{options.what or '--compare'}"
            )


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what a user can get wrong into one line on standard error and an exit code."""
    with one_line_errors("windeck doctor", name_csv_options):
        try:
            yield
        except UsageError as error:
            print_error("windeck doctor", str(error))
            sys.exit(USAGE_ERROR)


def _function(what: str) -> Callable[[], Any] | None:
    """Return the function that MODULE:FUNCTION names; None for the name of a file."""
    if _FUNCTION.fullmatch(what) is None or Path(what).exists():
        return None
    module, _, name = what.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the user's own imports
        raise ValueError(f"there is no module {error.name!r} here, and no file {what}") from None
    if not callable(found):
        raise ValueError(
            f"module {module!r} has no function {name!r}, expected one without arguments"
        )
    function: Callable[[], Any] = found
    return function


def _loader_and_step(made: Any, what: str) -> tuple[Any, Any]:
    """Return the loader and the step that a user's function returned; None for no step."""
    if isinstance(made, tuple) and len(made) == 2 and (made[1] is None or callable(made[1])):
        return made
    if not hasattr(made, "__iter__") or isinstance(made, (tuple, str)):
        sys.exit(
            f"windeck doctor: {what} returned {type(made).__name__}, expected a loader, or "
            "(loader, step)"
        )
    return made, None


def _file_loader(options: Namespace) -> Any:
    """Return a shuffled loader of windows over a file's columns."""
    from windeck import Loader, Table, Windows
    from windeck.cli.column_roles import infer_columns

    columns = [name for names in options.columns or () for name in names]
    ids = None if options.ids is None else [name for name in options.ids if name]
    csv, target = csv_arguments(options), columns[0] if columns else None
    found = infer_columns(options.what, time=options.time, ids=ids, target=target, csv=csv)
    columns = columns or [found.target]
    table = Table.read(
        options.what,
        columns=columns,
        id_columns=list(found.ids) or None,
        timestamp_column=options.time,
        in_memory=not options.mapped,
        sort=not options.mapped,
        **csv,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*series are shorter", category=UserWarning)
        windows = Windows(
            table,
            context_length=options.context,
            prediction_length=options.horizon,
            target_columns=columns,
            dtype="float32",
        )
    if len(windows) < options.batch_size:
        raise ValueError(
            f"{options.what} has {plural(len(windows), 'window')} of {options.context} + "
            f"{options.horizon} steps, expected at least a batch of {options.batch_size}"
        )
    return Loader(windows, batch_size=options.batch_size, shuffle=True)


def _diagnose(loader: Any, step: Any, options: Namespace, files: Sequence[str] = ()) -> Diagnosis:
    from windeck.diagnosis.diagnosing import doctor

    if sys.stderr.isatty():  # A bar would take time from what is measured.
        loops = f"{plural(1 if step is None else 3, 'loop')} of {options.seconds:g} s at most"
        print(f"measuring: {loops}, then stages and the machine", file=sys.stderr)
    return doctor(
        loader,
        step,
        seconds=options.seconds,
        batches=options.batches,
        disk=options.disk,
        network=options.network,
        files=files,
    )


def _show(found: Diagnosis, options: Namespace) -> None:
    """Print the report, and write the page that was asked for."""
    if options.json:
        print_lines(found.to_json())
    elif on_terminal() and unicode_ok() and find_spec("rich") is not None:
        print_lines(*(colored(line, "bold") for line in textwrap.wrap(found.verdict, 78)))
        for table in found.tables():
            columns = range(1, len(table.headings))
            print_table(table.headings, table.rows, right=columns if len(columns) > 1 else ())
        for text in (*(one.sentence for one in found.findings), *found.measured.notes):
            print_lines(f"* {text}")
    else:
        print_lines(str(found))
    _write_page(options, found.to_html)


def _compare(options: Namespace) -> None:
    """Print the reports of several files side by side."""
    if len(options.compare) < 2:
        raise ValueError(f"expected at least two reports to compare, got {len(options.compare)}")
    names = [path.stem for path in options.compare]
    if len({*names}) < len(names):
        names = [str(path) for path in options.compare]
    reports = list(zip(names, map(_read, options.compare), strict=True))
    if options.json:
        print_lines(json.dumps({name: one.to_document() for name, one in reports}, indent=1))
    else:
        print_lines(comparison(reports))
    _write_page(options, lambda: comparison_html(reports))


def _read(path: Path) -> Diagnosis:
    try:
        return Diagnosis.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _write_page(options: Namespace, page: Callable[[], str]) -> None:
    if options.html is None:
        return
    with atomic_file(options.html) as temporary:
        temporary.write_text(page(), encoding="utf-8")
    text = escaped(f"wrote {options.html}")
    print(text, file=sys.stderr if options.json else sys.stdout)
