"""The command ``windeck demo``: train, kill, resume, and check that nothing was lost."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

from windeck._util.imports import needs_torch
from windeck.cli.output import print_lines
from windeck.cli.parser import (
    add_csv_options,
    at_least,
    csv_arguments,
    name_csv_options,
    one_line_errors,
)

DESCRIPTION = """\
Train a small forecaster, kill it, resume it, and check that no sample was lost or repeated.

Without FILE, a synthetic load curve is written to OUT/load-curve.parquet and used, and the small
files that the documentation uses are written next to it: OUT/text (a corpus: Python's standard
library), OUT/tokens (token files of other tools), OUT/clicks.parquet (with a column of lists),
OUT/parts (a Parquet file a site) and OUT/raw (a CSV file a month, in no order); --files-only trains
nothing. The columns of a FILE are inferred; name them where that goes wrong."""


def add_parser(subparsers: Any) -> None:
    """Add the command ``demo`` to what ``ArgumentParser.add_subparsers`` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo", help="train, kill, resume, and check that nothing was lost", description=DESCRIPTION
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
        help="folder for the logs and the state (default: %(default)s)")  # fmt: skip
    add("--files-only", action="store_true", help="write the files, and train nothing")
    add_csv_options(parser)
    parser.set_defaults(run=run)


@one_line_errors("windeck demo", name_csv_options)
def run(options: argparse.Namespace) -> None:
    """Write the demo's files where no file is given, and train."""
    from windeck.cli.demo_files import write_files, write_load_curve

    out, path = options.out, options.file
    out.mkdir(parents=True, exist_ok=True)
    if path is None:
        path = str(write_load_curve(out / "load-curve.parquet", seed=options.seed))
        write_files(out, seed=options.seed)
        print("a synthetic load curve: nothing in it was measured")
        print(
            f"next to it in {out}, for the documentation: text, tokens, clicks.parquet, parts, raw"
        )
    if not options.files_only:
        train(options, path)


def train(options: argparse.Namespace, path: str) -> None:
    """Train on a file, kill, resume and compare; RuntimeError if a claim is not true."""
    with needs_torch("the demo"):
        import torch

    from windeck.cli import demo_job
    from windeck.cli.column_roles import infer_columns

    out = options.out
    ids = None if options.ids is None else tuple(name for name in options.ids if name)
    csv = csv_arguments(options)
    columns = infer_columns(path, time=options.time, ids=ids, target=options.target, csv=csv)
    asked = demo_job.Job(
        columns, options.context, options.horizon, options.batch_size, seed=options.seed, csv=csv
    )
    table = demo_job.read_table(asked)
    _show("1 Data", path)
    _show("  time", " + ".join(columns.time) or columns.note)
    _show("  series", f"{table.num_series:,}, named by {' + '.join(columns.ids) or 'nothing'}")
    _show("  target", columns.target)
    for text in table.explain().splitlines():
        _show("", text.strip())
    job = demo_job.fit_lengths(asked, table)
    _show("2 Windows", f"{job.context_length} steps in, {job.prediction_length} out")
    if (job.context_length, job.prediction_length) != (options.context, options.horizon):
        _show("", f"{options.context} + {options.horizon} steps do not fit the series: cut down")
    windows = demo_job.training_windows(job, table)
    for text in str(windows.explain()).splitlines():
        _show("", text.strip())
    # At least four batches an epoch where windows suffice, so that a kill has a middle.
    size = max(1, min(job.batch_size, len(windows) // 4))
    per_epoch = -(-len(windows) // size)
    steps = options.steps or max(2, min(3 * per_epoch, 3500))
    job = replace(job, batch_size=size, steps=steps, save_every=max(1, min(50, steps // 8)))
    _show("3 Train", f"{steps / per_epoch:.3g} epochs, {steps:,} batches of {size:,} windows")
    logs = [out / f"{name}.samples" for name in ("uninterrupted", "killed", "resumed")]
    state = out / "state.pt"
    state.unlink(missing_ok=True)
    weights, losses = demo_job.train(job, windows, log=logs[0])
    _show("", f"loss {losses[0]:.3f}, in the end {losses[-1]:.3f}")
    _show("4 Kill", "the same training in a process of its own")
    demo_job.train_in_process(job, logs[1], state, kill_at=max(1, round(0.57 * steps)))
    last, saved = demo_job.last_step(logs[1]), torch.load(state, weights_only=True)["loader"]
    epoch, batch = divmod(last - 1, per_epoch)
    _show(
        "",
        f"SIGKILL after batch {batch + 1:,} of {per_epoch:,} in epoch {epoch + 1} · "
        f"last saved {last - saved['step']:,} batches before",
    )
    _show("5 Resume", f"a new process, from one saved integer: {saved['position']:,}")
    demo_job.train_in_process(job, logs[2], state)
    samples = [demo_job.read_log(log) for log in logs]
    _show("6 Check", f"killed and resumed processes, {len(samples[0]):,} samples in order, served")
    claims = demo_job.compare_runs(
        demo_job.expected_samples(windows, batch_size=size, seed=job.seed, steps=steps),
        *samples,
        resumed_from=saved["step"],
        weights=weights,
        resumed_weights=torch.load(state, weights_only=True)["model"],
    )
    for claim, holds in claims.items():
        _show("  ✔" if holds else "  ✘", claim)
    if not all(claims.values()):
        raise RuntimeError("the resumed run is not the uninterrupted one")


def _show(name: str, text: str) -> None:
    """Print a line of a step: a name, and a text that is wrapped below itself."""
    indent = " " * 12
    print_lines(*textwrap.wrap(text, 100, initial_indent=f"{name:<12}", subsequent_indent=indent))
    sys.stdout.flush()
