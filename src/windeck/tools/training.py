"""Train, save, be killed, resume: the loop that every act of the demo runs.

``python -m windeck.tools.training JOB.json --log FILE --state FILE [--resume]`` is the same loop in
a process of its own. SIGKILL may come at any time: what counts is on disk, or is done again.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from windeck.loader import Loader
from windeck.tools import forecaster, job, states

#: Columns of the log of samples: the step, and where in the data the sample came from.
LOG_FIELDS = 3

Report = Callable[[int, float], None]


@dataclass
class Trained:
    """What a finished training leaves: the model, and where its seconds went."""

    model: forecaster.Forecaster
    first_step: int
    position: int
    windows: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    loss: float = float("nan")


def train(
    task: job.Job,
    deal: job.Deal,
    *,
    log: Path,
    state: Path | None = None,
    resume: bool = False,
    hold_at: int | None = None,
    prefetch: int = 0,
    report: Report | None = None,
) -> Trained:
    """Trains to step `task.steps`, writing down every sample it saw.

    Parameters
    ----------
    log
        Gets (step, series, start row) of each sample, as int64, before the step is taken.
    state
        Saved here every `task.save_every` steps, and at the end; None saves nothing.
    resume
        Go on from what `state` holds.
    hold_at
        Wait to be killed when this step is reached.
    prefetch
        Batches made ahead in another thread. None, where making a batch takes less time than
        two Python threads take to hand it over.
    report
        Called after each step with its number, from 1, and the loss of the last report.
    """
    model = forecaster.build(task.context_length, task.prediction_length, seed=task.seed)
    # The plain, unfused update does the same arithmetic in the same order in every process.
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate, foreach=False)
    loader = Loader(
        deal.train, batch_size=task.batch_size, shuffle=True, seed=task.seed, prefetch=prefetch
    )
    step = states.load(state, model, optimizer, loader) if resume and state is not None else 0
    result = Trained(model, step, loader.position)
    batches = endless(loader)
    began = time.perf_counter()
    with open(log, "ab", buffering=0) as lines:
        while step < task.steps:
            if step == hold_at:
                time.sleep(600)
            asked = time.perf_counter()
            batch = next(batches)
            result.waiting += time.perf_counter() - asked
            step += 1
            lines.write(_records(step, batch))
            loss = forecaster.training_step(model, optimizer, batch)
            result.windows += len(batch["start"])
            if state is not None and (step % task.save_every == 0 or step == task.steps):
                states.save(state, step, model, optimizer, loader)
            if step % 20 == 0 or step == task.steps:
                result.loss = float(loss)
            if report is not None:
                report(step, result.loss)
    result.seconds = time.perf_counter() - began
    return result


def endless(batches: Iterable[forecaster.Batch]) -> Iterator[forecaster.Batch]:
    """Epoch after epoch; each `for` over a loader runs to the end of its epoch."""
    while True:
        yield from batches


def read_log(path: Path) -> npt.NDArray[np.int64]:
    """The samples a process trained on, in order: (samples, 3) of step, series and start row."""
    numbers = np.fromfile(path, dtype=np.int64)
    # A kill may cut the last line short.
    return numbers[: len(numbers) // LOG_FIELDS * LOG_FIELDS].reshape(-1, LOG_FIELDS)


def last_step(path: Path) -> int:
    """The last step a log tells of, read from its end; 0 for none."""
    width = LOG_FIELDS * 8
    if not path.exists() or path.stat().st_size < width:
        return 0
    with open(path, "rb") as file:
        file.seek(path.stat().st_size // width * width - width)
        return int.from_bytes(file.read(8), "little")


def _records(step: int, batch: forecaster.Batch) -> bytes:
    """A batch's lines of the log, out of what the batch itself says it holds."""
    series, start = batch["series_id"], batch["start"]
    return (
        torch.stack((torch.full_like(start, step), series.to(start.dtype), start), 1)
        .numpy()
        .tobytes()
    )


def main() -> None:
    """Runs a job out of a JSON file; see the module."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--hold-at", type=int)
    options = parser.parse_args()
    task = job.Job.from_json(options.job.read_text())
    torch.set_num_threads(job.THREADS)
    train(
        task,
        job.prepare(task),
        log=options.log,
        state=options.state,
        resume=options.resume,
        hold_at=options.hold_at,
        # What was made ahead, and dies with the process, must not count as trained on.
        prefetch=2,
    )


if __name__ == "__main__":
    main()
