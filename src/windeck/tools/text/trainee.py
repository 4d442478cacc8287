"""One of the processes that train: ``torchrun ... -m windeck.tools.text.trainee JOB.json ...``.

SIGKILL may come at any time: what counts is on disk, or is done again. Each process writes down
what it trained on before it takes the step, so that its words are about what the model saw.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from windeck.loader import Loader
from windeck.tools import states
from windeck.tools.text import job, rows
from windeck.tools.text.gang import end_with_owner
from windeck.tools.text.model import Batch, ByteModel, build, loss_of

#: Threads of each process; there are several.
THREADS = 1


@dataclass
class Report:
    """What a process says of itself when it is done."""

    first_step: int
    last_step: int
    position: int
    tokens: int
    documents: int
    seconds: float
    waiting: float
    loss: float
    weights: str


def train(
    task: job.Job, *, log: Path, state: Path, resume: bool = False, hold_at: int | None = None
) -> Report:
    """Trains to step `task.steps`; all ranks do the same with their own share of each batch.

    Parameters
    ----------
    log
        Gets the rows of each batch (`windeck.tools.text.rows`).
    state
        Saved here by rank 0 every `task.save_every` steps, and at the end.
    resume
        Go on from what `state` holds, whatever number of ranks saved it.
    hold_at
        Wait to be killed when this step is reached.
    """
    model = build(task.vocabulary, task.sequence_length, seed=task.seed)
    # Gradients are averaged over the ranks, so there is one model and not one for each rank.
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate, foreach=False)
    loader = Loader(job.mix(task), batch_size=task.batch_size)
    first = step = states.load(state, model, optimizer, loader) if resume else 0
    done = Report(first, step, loader.position, 0, 0, 0.0, 0.0, float("nan"), "")
    batches = served(loader)
    began = time.perf_counter()
    with open(log, "ab", buffering=0) as lines:
        while step < task.steps:
            if step == hold_at:
                time.sleep(600)
            asked = time.perf_counter()
            position, batch = next(batches)
            done.waiting += time.perf_counter() - asked
            step += 1
            lines.write(rows.records(step, position, batch))
            loss = loss_of(trained, batch, task.vocabulary)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done.tokens += batch["inputs"].numel()
            done.documents += job.begun(task, batch)
            if step % task.save_every == 0 or step == task.steps:
                done.loss = float(loss.detach())
                if distributed.get_rank() == 0:
                    states.save(state, step, model, optimizer, loader)
    done.seconds = time.perf_counter() - began
    done.last_step, done.position, done.weights = step, loader.position, digest(model)
    return done


def served(loader: Loader) -> Iterator[tuple[int, Batch]]:
    """Batches for ever, each with the position in the stream of this rank's first row."""
    while True:
        position = loader.position
        for batch in loader:
            yield position + loader.rank * loader.batch_size, batch
            position = loader.position


def digest(model: ByteModel) -> str:
    """A digest of all weights, bit for bit."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return np.ascontiguousarray(tensor.detach().numpy()).tobytes()


def main() -> None:
    """Runs a job out of a JSON file, as one rank of those that torchrun started."""
    end_with_owner()
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for what it leaves")
    parser.add_argument("--name", required=True, help="what its files' names begin with")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--hold-at", type=int)
    options = parser.parse_args()
    files = rows.Files(options.out, options.name, int(os.environ.get("RANK", "0")))
    try:
        torch.set_num_threads(THREADS)
        distributed.init_process_group("gloo")
        report = train(
            job.Job.from_json(options.job.read_text()),
            log=files.log,
            state=options.state,
            resume=options.resume,
            hold_at=options.hold_at,
        )
        files.report.write_text(json.dumps(asdict(report)))
        distributed.destroy_process_group()
    except Exception as error:
        # Told in a file of its own: what torchrun writes around it is a page long.
        files.failed.write_text(f"{type(error).__name__}: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
