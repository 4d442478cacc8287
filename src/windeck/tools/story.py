"""The demo, act by act: data, windows, training, a kill, a resume, a proof, a race, a picture."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from windeck.sources.table import Table
from windeck.tools import job, proof, stage, states, synthetic, training, versus
from windeck.tools.infer import Columns, describe_step, infer
from windeck.tools.kill import Killed, kill_and_resume

#: What is trained when nothing is said: epochs, but no more than so many batches.
USUAL_EPOCHS, LONGEST = 3, 3500


@dataclass(frozen=True)
class Wishes:
    """What was asked for on the command line; None means: find out, or take the usual."""

    file: str | None = None
    time: str | None = None
    ids: tuple[str, ...] | None = None
    target: str | None = None
    context_length: int = 168
    prediction_length: int = 24
    epochs: float | None = None
    steps: int | None = None
    batch_size: int = 256
    seed: int = 0
    out: Path = Path("out")
    race_seconds: float = 3
    progress: bool = True


def tell(wishes: Wishes, console: Console) -> proof.Proof:
    """Runs the whole demo, writing to `console` and into `wishes.out`.

    Raises
    ------
    FileNotFoundError, ValueError
        When the file cannot be read, or holds nothing to train on.
    RuntimeError
        When the proof fails; then something is wrong with this library.
    """
    began = time.perf_counter()
    wishes.out.mkdir(parents=True, exist_ok=True)
    page = stage.Page(console, progress=wishes.progress)
    page.title()
    columns, table = _data(wishes, page)
    task, deal = _windows(wishes, columns, table, page)
    trained, log = _training(task, deal, wishes.out, page)
    killed = kill_and_resume(task, job.steps_per_epoch(task, deal), wishes.out, page)
    found = _proof(task, deal, trained, log, killed, page)
    _race(task, deal, wishes.race_seconds, page)
    _forecast(task, deal, trained, columns, wishes.out, page)
    page.end(time.perf_counter() - began)
    if not found.holds:
        raise RuntimeError(f"the resumed run is not the uninterrupted one: {found}")
    return found


def _data(wishes: Wishes, page: stage.Page) -> tuple[Columns, Table]:
    """Act 1: which columns are what, and the table of those that are used."""
    if wishes.file is None:
        path = synthetic.write_load_curve(wishes.out / "load-curve.parquet", seed=wishes.seed)
        page.act("Data", "synthetic: a made-up load curve, nothing in it was measured")
        page.line("file", str(path))
    else:
        path = Path(wishes.file)
        page.act("Data", wishes.file)
    columns = infer(path, time=wishes.time, ids=wishes.ids, target=wishes.target)
    task = _first_job(wishes, columns)
    table = job.read(task)
    missing = table.column(columns.target).missing
    page.line("", table.explain().splitlines()[0])
    page.line("time", _named(columns.time), f"{columns.why['time']} · step {_step(columns)}")
    many = f"{table.num_series:,}, named by {_named(columns.ids)}" if columns.ids else "one"
    page.line("series", many, columns.why["ids"])
    page.line("target", columns.target, f"{columns.why['target']} · {_share(missing, table)}")
    for note in table.report.lines():
        page.note(note)
    return columns, table


def _windows(
    wishes: Wishes, columns: Columns, table: Table, page: stage.Page
) -> tuple[job.Job, job.Deal]:
    """Act 2: windows, the split by time, the scaler."""
    asked = _first_job(wishes, columns)
    task = job.fit_lengths(asked, table)
    deal = job.prepare(task, table)
    task = replace(task, batch_size=_batch_size(task.batch_size, len(deal.train)))
    steps = wishes.steps or _steps(wishes.epochs, job.steps_per_epoch(task, deal))
    task = replace(task, steps=steps, save_every=max(1, min(50, steps // 8)))
    page.act("Windows", f"{task.context_length} steps in, {task.prediction_length} out")
    lengths = (task.context_length, task.prediction_length)
    if lengths != (asked.context_length, asked.prediction_length):
        page.note(
            f"{asked.context_length} + {asked.prediction_length} steps do not fit series of at "
            f"most {int(np.diff(table.offsets).max())} rows: cut down"
        )
    page.line(
        "split",
        f"{len(deal.train):,} to train · {len(deal.validation):,} to validate · "
        f"{len(deal.test):,} to test, by time",
    )
    for note in _window_notes(table, deal):
        page.note(note)
    each = "each series by its own" if table.num_series > 1 else "by its"
    page.line("scale", f"{each} mean and deviation, of the training part only")
    return task, deal


def _batch_size(wished: int, windows: int) -> int:
    """At least four batches an epoch where windows suffice, so that a kill has a middle."""
    return max(1, min(wished, windows // 4))


def _training(
    task: job.Job, deal: job.Deal, out: Path, page: stage.Page
) -> tuple[training.Trained, Path]:
    """Act 3: an uninterrupted training, in this process."""
    log = out / "uninterrupted.samples"
    log.unlink(missing_ok=True)
    torch.set_num_threads(job.THREADS)
    page.act("Train", f"{_length(task, deal)} of a small forecaster")
    with page.bar("uninterrupted", task.steps) as bar:
        trained = training.train(task, deal, log=log, report=bar.report)
    page.line(
        "",
        f"{trained.windows / trained.seconds:,.0f} windows/s · waited for data "
        f"{trained.waiting / trained.seconds:.1%} of the time · loss {trained.loss:.3f}",
    )
    return trained, log


def _proof(
    task: job.Job,
    deal: job.Deal,
    trained: training.Trained,
    log: Path,
    killed: Killed,
    page: stage.Page,
) -> proof.Proof:
    """Act 5: compare what the processes wrote down with what arithmetic says."""
    found = proof.examine(
        proof.expected_samples(
            deal.train, batch_size=task.batch_size, seed=task.seed, steps=task.steps
        ),
        uninterrupted=training.read_log(log),
        killed=training.read_log(killed.log),
        resumed=training.read_log(killed.resumed_log),
        resumed_from=killed.saved_step,
        weights=trained.model,
        resumed_weights=states.read(killed.state)["model"],
    )
    page.act("Proof", f"killed + resumed, {found.samples:,} samples in order, against")
    page.check(found.as_uninterrupted, "what the uninterrupted run trained on")
    page.check(found.as_computed, "what the permutation says, worked out without the loader")
    page.check(found.each_once, "every window once an epoch, none lost, none twice")
    page.check(found.same_weights, "the uninterrupted run's final weights, bit for bit")
    return found


def _race(task: job.Job, deal: job.Deal, seconds: float, page: stage.Page) -> None:
    """Act 6: windows a second, beside the usual way."""
    page.act("Speed", "loading alone: the same windows, shuffled; a batch of each compared: equal")
    with page.waiting("measuring both"):
        speed = versus.compare(task, deal, seconds=seconds)
    page.line("windeck", f"{speed.windeck:11,.0f} windows/s", f"{speed.ratio:,.0f} times as many")
    page.line("usual", f"{speed.usual:11,.0f} windows/s", "Dataset + DataLoader(num_workers=2)")


def _forecast(
    task: job.Job,
    deal: job.Deal,
    trained: training.Trained,
    columns: Columns,
    out: Path,
    page: stage.Page,
) -> None:
    """Act 7: how good it is on windows it never saw, in a number and in a picture."""
    from windeck.tools import picture

    result = picture.score(trained.model, deal, columns.step)
    path = out / "forecast.png"
    picture.draw(path, task, deal, trained.model, result)
    of_all = "" if result.windows == len(deal.test) else f" of {len(deal.test):,}"
    page.act("Forecast", f"mean absolute error on {result.windows:,}{of_all} test windows")
    page.line("model", f"{result.model:.3f} sd", _verdict(result.model, result.naive))
    page.line("naive", f"{result.naive:.3f} sd", result.naive_is)
    page.line("picture", str(path))


def _first_job(wishes: Wishes, columns: Columns) -> job.Job:
    """The job as asked for, before it is known how long the series are."""
    return job.Job(
        path=columns.path,
        time=columns.time,
        ids=columns.ids,
        target=columns.target,
        context_length=wishes.context_length,
        prediction_length=wishes.prediction_length,
        batch_size=wishes.batch_size,
        seed=wishes.seed,
    )


def _window_notes(table: Table, deal: job.Deal) -> list[str]:
    """Windows that are not there, and why."""
    report = deal.windows.explain()
    notes = []
    if deal.series < table.num_series:
        notes.append(
            f"{table.num_series - deal.series:,} series are too short or too patchy: left out"
        )
    if missing := report.dropped.get("missing", 0):
        notes.append(f"{missing:,} windows with over {job.MAX_MISSING:.0%} missing: left out")
    if gap := report.dropped.get("gap", 0):
        notes.append(f"{gap:,} windows across a break in time: left out")
    return notes


def _steps(epochs: float | None, per_epoch: int) -> int:
    """Batches to train; where nothing was said, as many as fit into a minute or two."""
    if epochs is None:
        return max(2, min(USUAL_EPOCHS * per_epoch, LONGEST))
    return max(2, round(epochs * per_epoch))


def _length(task: job.Job, deal: job.Deal) -> str:
    """How long the training is: in epochs, and in batches."""
    epochs = task.steps / job.steps_per_epoch(task, deal)
    return f"{epochs:.3g} epochs, {task.steps:,} batches of {task.batch_size:,} windows,"


def _step(columns: Columns) -> str:
    return describe_step(columns.step)


def _named(names: tuple[str, ...]) -> str:
    return " + ".join(names) if names else "none"


def _share(missing: int | None, table: Table) -> str:
    return "none missing" if not missing else f"{missing / table.num_rows:.1%} missing"


def _verdict(model: float, naive: float) -> str:
    if not naive:
        return ""
    change = 1 - model / naive
    return f"{abs(change):.0%} {'better' if change >= 0 else 'worse'} than the naive forecast"
