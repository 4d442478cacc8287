"""The forecast on windows that training never saw: its error, and a picture of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windeck.tools import forecaster
from windeck.tools.job import Deal, Job, scaling, season, series_names, truth

Floats = npt.NDArray[np.float32]

#: Panels of the picture, and forecasts laid end to end in each.
PANELS, FORECASTS = 3, 7

#: Test windows that are scored at most, and rows of a series searched for one to draw.
SCORED, SEARCHED = 100_000, 100_000

INK, ACCENT, QUIET = "#22304a", "#e4572e", "#9aa5b8"


@dataclass(frozen=True)
class Score:
    """Mean absolute errors on the test windows, in standard deviations of the (series') target."""

    model: float
    naive: float
    naive_is: str
    windows: int


def score(model: forecaster.Forecaster, deal: Deal, step: np.timedelta64 | int | None) -> Score:
    """Runs the model and the naive forecast over the test windows, or many of them."""
    totals = torch.zeros(3, dtype=torch.float64)
    period, words = season(step, deal.windows.span.context_length)
    chosen = np.linspace(0, len(deal.test) - 1, min(SCORED, len(deal.test))).astype(np.int64)
    with torch.no_grad():
        for begin in range(0, len(chosen), 1024):
            batch = _tensors(deal, chosen[begin : begin + 1024])
            ours, count = forecaster.absolute_error(forecaster.forecast(model, batch), batch)
            naive = forecaster.naive_forecast(batch, period)
            theirs, _ = forecaster.absolute_error(naive, batch)
            totals += torch.stack((ours, theirs, count)).double()
    model_error, naive_error = (totals[:2] / totals[2].clamp(min=1)).tolist()
    return Score(model_error, naive_error, words, len(chosen))


def draw(path: Path, task: Job, deal: Deal, model: forecaster.Forecaster, result: Score) -> None:
    """Writes a PNG: stretches of test data, and forecasts of successive windows on them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.dates import ConciseDateFormatter

    concise: Any = ConciseDateFormatter  # matplotlib does not type it.
    stretches = _stretches(task, deal)
    figure, axes = plt.subplots(
        len(stretches), 1, figsize=(11, 2.5 * len(stretches) + 0.9), squeeze=False
    )
    for axis, indices in zip(axes[:, 0], stretches, strict=True):
        series = _panel(axis, task, deal, model, indices)
        axis.set_title(series_names(deal.table, [series])[0], loc="left", color=INK, fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.margins(x=0.01)
        if deal.table.timestamps is not None and deal.table.timestamps.dtype.kind == "M":
            axis.xaxis.set_major_formatter(concise(axis.xaxis.get_major_locator()))
    axes[0, 0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.98), ncol=2)
    figure.suptitle(
        f"{task.target}: {task.prediction_length} steps ahead, on windows never trained on · mean "
        f"absolute error {result.model:.3f} sd (naive, {result.naive_is}: {result.naive:.3f} sd)",
        color=INK,
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _stretches(task: Job, deal: Deal) -> list[npt.NDArray[np.int64]]:
    """Test windows one horizon apart, from up to three series spread over the table."""
    begins, ends, present = deal.test.covered_rows()
    stretches = []
    for place in np.linspace(0, len(present) - 1, min(PANELS, len(present))).astype(np.int64):
        rows = np.arange(begins[place], min(ends[place], begins[place] + SEARCHED))
        numbers = deal.test.index_of(int(present[place]), rows)
        # The first row with a window, and from there one horizon at a time.
        first = int(np.argmax(numbers >= 0))
        numbers = numbers[first :: task.prediction_length][:FORECASTS]
        stretches.append(numbers[numbers >= 0])
    return [numbers for numbers in stretches if len(numbers)] or [np.zeros(1, np.int64)]


def _tensors(deal: Deal, indices: npt.NDArray[np.int64]) -> forecaster.Batch:
    """Some test windows as a batch of tensors."""
    return {key: torch.from_numpy(value) for key, value in deal.test.gather(indices).items()}


def _panel(
    axis: Any,
    task: Job,
    deal: Deal,
    model: forecaster.Forecaster,
    indices: npt.NDArray[np.int64],
) -> int:
    """Draws truth and forecasts of windows laid end to end; returns their series' number."""
    batch = _tensors(deal, indices)
    with torch.no_grad():
        ahead = forecaster.forecast(model, batch).numpy()
    series = int(batch["series_id"][0])
    scale, shift = scaling(deal, task.target)
    ahead = (ahead - shift[series]) / scale[series]
    first = batch["start"].numpy() + task.context_length
    begin = max(int(first[0]) - 2 * task.prediction_length, int(deal.table.offsets[series]))
    end = int(first[-1]) + task.prediction_length
    axis.plot(_times(deal, begin, end), truth(deal, task.target)[begin:end], color=INK, lw=1.1)
    for number, (row, values) in enumerate(zip(first, ahead, strict=True)):
        when = _times(deal, int(row), int(row) + task.prediction_length)
        axis.axvline(when[0], color=QUIET, lw=0.5, alpha=0.6)
        axis.plot(when, values, color=ACCENT, lw=1.6, label=None if number else "forecast")
    axis.lines[0].set_label("truth")
    return series


def _times(deal: Deal, begin: int, end: int) -> npt.NDArray[Any]:
    """What stands under the curve: time stamps, or row numbers where there are none."""
    stamps = deal.table.timestamps
    if stamps is None:
        return np.arange(begin, end)
    return np.asarray(stamps[begin:end])
