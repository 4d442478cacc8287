"""What the demo trains on: the choices (`Job`), and the data prepared as they say (`Deal`).

A job is plain values, so it can be handed to another process as JSON, which then prepares the same
data from the same file.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from windeck.sources.scaler import Scaler
from windeck.sources.table import Table
from windeck.sources.windows import Windows
from windeck.tools import peek

Floats = npt.NDArray[np.float32]

#: Threads torch may use: as many in every process, or sums would round differently.
THREADS = 1

#: Rows that at least one series must have.
SHORTEST = 24

#: A window may miss this share of its target values.
MAX_MISSING = 0.25

#: Two neighbouring rows of a window lie at most so many of the slowest series' steps apart.
MAX_GAP_STEPS = 24


@dataclass(frozen=True)
class Job:
    """Everything that decides what is trained on what, and in which order."""

    path: str
    time: tuple[str, ...]
    ids: tuple[str, ...]
    target: str
    context_length: int = 168
    prediction_length: int = 24
    batch_size: int = 256
    steps: int = 0
    save_every: int = 50
    seed: int = 0
    learning_rate: float = 1e-3

    def to_json(self) -> str:
        """The job as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The job that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "time": tuple(fields["time"]), "ids": tuple(fields["ids"])})


@dataclass(frozen=True)
class Deal:
    """A table cut into windows, split by time, and scaled by what its training part knows.

    The parts hold windows of `series` series; `windows` are all of them, unscaled.
    """

    table: Table
    windows: Windows
    train: Windows
    validation: Windows
    test: Windows
    scaler: Scaler
    series: int


def read(task: Job) -> Table:
    """Reads the time, ids and target of a job's file, and no other column."""
    if len(task.time) <= 1 and not _text_time(task):
        return Table.read(
            task.path,
            columns=[task.target],
            id_columns=list(task.ids) or None,
            timestamp_column=task.time[0] if task.time else None,
            sort=True,
        )
    # A time in pieces, or in text: put together here, and handed over as Arrow.
    columns = list(dict.fromkeys((*task.ids, *task.time, task.target)))
    arrow = peek.open_dataset(task.path).to_table(columns=columns)
    stamps = peek.stamps(arrow, task.time)
    arrow = arrow.select([*task.ids, task.target]).append_column("time", [stamps])
    return Table.from_arrow(
        arrow, id_columns=list(task.ids) or None, timestamp_column="time", sort=True
    )


def fit_lengths(task: Job, table: Table) -> Job:
    """The job with context and horizon cut down to what the longest series can hold.

    Raises
    ------
    ValueError
        When even the longest series is too short to learn and test anything.
    """
    longest = int(np.diff(table.offsets).max())
    if longest < SHORTEST:
        raise ValueError(
            f"the longest series of {task.path} has {longest} rows; expected at least {SHORTEST}, "
            f"to have windows to train and to test on"
        )
    # A tenth of the series is for testing, and the horizon has to fit in there.
    horizon = min(task.prediction_length, longest // 10)
    context = min(task.context_length, longest // 2 - horizon)
    return replace(task, context_length=context, prediction_length=horizon)


def prepare(task: Job, table: Table | None = None) -> Deal:
    """Cuts the windows of a job, splits them by time, and fits the scaler on the first part.

    Raises
    ------
    ValueError
        When the file's values leave a part without any window.
    """
    table = read(task) if table is None else table
    with warnings.catch_warnings():
        # Series too short for a window are counted in the windows' report, and told from there.
        warnings.filterwarnings("ignore", message=".*series are shorter", category=UserWarning)
        windows = Windows(
            table,
            context_length=task.context_length,
            prediction_length=task.prediction_length,
            target_columns=[task.target],
            max_missing=MAX_MISSING,
            max_gap=_max_gap(table),
            dtype="float32",
        )
    train, validation, test = windows.split(validation=0.1, test=0.1, by="time")
    learned = _series_in(train)
    if per_series := table.num_series > 1:
        # What was never seen in training has no scale: such series are left out of all parts.
        names = [table.series_names[number] for number in learned]
        train, validation, test = (part.subset(series=names) for part in (train, validation, test))
    scaler = Scaler.fit(train, per_series=per_series, seed=task.seed)
    return Deal(
        table,
        windows,
        train=train.with_scaler(scaler),
        validation=validation.with_scaler(scaler),
        test=test.with_scaler(scaler),
        scaler=scaler,
        series=len(learned),
    )


def _series_in(windows: Windows) -> npt.NDArray[np.int64]:
    """Numbers of the series that have a window; a block of windows at a time."""
    block = 1 << 20
    found = [
        np.unique(windows.locate(np.arange(begin, min(begin + block, len(windows))))[0])
        for begin in range(0, len(windows), block)
    ]
    return np.unique(np.concatenate(found))


def steps_per_epoch(task: Job, deal: Deal) -> int:
    """Batches in one pass over the training windows; the last one may be short."""
    return -(-len(deal.train) // task.batch_size)


def season(step: np.timedelta64 | int | None, context_length: int) -> tuple[int | None, str]:
    """How many steps ago the same hour was, when a context reaches so far; and in words."""
    day, week = np.timedelta64(1, "D"), np.timedelta64(7, "D")
    if not isinstance(step, np.timedelta64) or not step:
        return None, "the last value seen"
    for period, words in ((day, "a day before"), (week, "a week before")):
        steps = int(period // step)
        if period % step == np.timedelta64(0) and 2 <= steps <= context_length:
            return steps, words
    return None, "the last value seen"


def truth(deal: Deal, name: str) -> Floats:
    """A column as stored, in float32, with NaN where nothing was observed."""
    column = deal.table.column(name)
    floats = column.values.astype(np.float32)
    floats[~column.observed()] = np.nan
    return floats


def scaling(deal: Deal, name: str) -> tuple[Floats, Floats]:
    """Scale and shift of a column, one of each for every series; scaled = value * scale + shift."""
    place = deal.scaler.columns.index(name)
    every = np.ones(deal.table.num_series, np.float32)
    scale, shift = deal.scaler.scale[:, place], deal.scaler.shift[:, place]
    return (every * scale).astype(np.float32), (every * shift).astype(np.float32)


def series_names(table: Table, series: Sequence[int]) -> list[str]:
    """Names of some series, for a picture's titles."""
    names = table.series_names
    return [_name(names[i]) if i < len(names) else "" for i in series]


def _name(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _text_time(task: Job) -> bool:
    """Whether the one time column is text."""
    if not task.time:
        return False
    return peek.is_text(peek.open_dataset(task.path).schema.field(task.time[0]).type)


def _max_gap(table: Table) -> np.timedelta64 | int | None:
    """The longest break a window may span; None without a time."""
    slowest = int(table.report.steps.max(initial=0))
    if table.timestamps is None or not slowest:
        return None
    gap, unit = MAX_GAP_STEPS * slowest, table.report.unit
    if unit is None:
        return gap
    return cast(np.timedelta64, np.array(gap, dtype=f"timedelta64[{unit}]")[()])
