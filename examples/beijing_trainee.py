"""The training that `beijing_job.py` kills: one life of it, from the checkpoint in force on.

    python examples/beijing_trainee.py JOB.json --log FILE --until 900
        [--store rocksdb:///path --marks FILE --save-every 3] [--hold]

Nothing here knows that it will be killed. It writes down each step as soon as it is taken, and what
it is about to do with its store, if it has one.
"""

import argparse
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from windeck import checkpoint
from windeck.checkpoint.stores import Store
from windeck.cli.column_roles import Columns
from windeck.cli.demo_job import Job, read_table, training_step, training_windows
from windeck.loader.loader import Loader

#: Generations kept; every so many saves the older ones are cleared away.
KEEP = 3
CLEAR_EVERY = 4


def record_type(batch_size: int) -> np.dtype[Any]:
    """A line of the log: the step, the bits of its loss, where each sample came from (-1: there is
    none, in an epoch's last batch), and a digest of all weights and the optimizer's state after it.
    """
    return np.dtype(
        [
            ("step", "<i8"),
            ("loss", "<u4"),
            ("series", "<i8", (batch_size,)),
            ("start", "<i8", (batch_size,)),
            ("state", "u1", (16,)),
        ]
    )


def digest(model: Mapping[str, Any], optimizer: Mapping[str, Any]) -> bytes:
    """A digest of all tensors of two states, bit for bit, with their names."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in model.items():
        found.update(name.encode() + tensor.detach().numpy().tobytes())
    for number, slots in optimizer["state"].items():
        for name, tensor in slots.items():
            found.update(f"{number} {name}".encode() + tensor.numpy().tobytes())
    return found.digest()


def chained(before: str, record: bytes) -> str:
    """A digest of all records so far, out of that of all but the last."""
    return hashlib.blake2b(bytes.fromhex(before) + record, digest_size=16).hexdigest()


class Training:
    """A model, its optimizer and its loader, and how far they are."""

    def __init__(self, task: Job) -> None:
        torch.manual_seed(task.seed)
        self.model = torch.nn.Linear(task.context_length, task.prediction_length)
        # The plain, unfused update does the same arithmetic in the same order in every process.
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, foreach=False)
        windows = training_windows(task, read_table(task))
        self.loader = Loader(windows, batch_size=task.batch_size, shuffle=True, seed=task.seed)
        self.step, self.proof = 0, ""
        self._record = np.zeros((), record_type(task.batch_size))

    def resume(self, store: Store) -> None:
        """Go on from the checkpoint in force, if there is one."""
        if not checkpoint.log(store):
            return
        found = checkpoint.load(
            store, model=self.model, optimizer=self.optimizer, loader=self.loader
        )
        self.step, self.proof = found.step, found.extra["proof"]

    def save(self, store: Store) -> None:
        """Everything of this step in one commit; the proof covers all steps up to it."""
        checkpoint.save(
            store, step=self.step, model=self.model, optimizer=self.optimizer, loader=self.loader,
            extra={"proof": self.proof}, incremental=True,
        )  # fmt: skip

    def take(self, batch: dict[str, Tensor]) -> bytes:
        """Take a step; what there is to say about it."""
        loss = training_step(self.model, self.optimizer, batch)
        self.step += 1
        record, count = self._record, len(batch["start"])
        record["step"], record["loss"] = self.step, np.float32(loss).view(np.uint32)
        for name, key in (("series", "series_id"), ("start", "start")):
            record[name] = -1
            record[name][:count] = batch[key].numpy()
        state = digest(self.model.state_dict(), self.optimizer.state_dict())
        record["state"] = np.frombuffer(state, np.uint8)
        line = record.tobytes()
        self.proof = chained(self.proof, line)
        return line


class Marks:
    """Says in a file what is being done, so that it can be seen what a kill interrupted."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        os.write(self._file, f"{what}\n".encode())
        yield
        os.write(self._file, b"train\n")


def live(
    job: Training, until: int, log: Path, store: Store | None, marks: Marks, save_every: int
) -> None:
    """Train up to a step; save every few, and at the end."""
    batches = itertools.chain.from_iterable(itertools.repeat(job.loader))  # epoch after epoch
    with open(log, "ab", buffering=0) as lines:
        while job.step < until:
            lines.write(job.take(next(batches)))
            if store is not None and (job.step % save_every == 0 or job.step == until):
                with marks.doing("save"):
                    job.save(store)
                if job.step // save_every % CLEAR_EVERY == 0:
                    with marks.doing("gc"):
                        checkpoint.gc(store, keep=KEEP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--store", help="URL to resume from and save to; else nothing is saved")
    parser.add_argument("--marks", type=Path, default=Path(os.devnull))
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--hold", action="store_true", help="then wait to be killed")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as many in every process, or sums would round differently
    fields = json.loads(options.job.read_text())
    job = Training(Job(Columns(**fields.pop("columns")), **fields))
    marks = Marks(options.marks)
    with ExitStack() as stack:
        store = None
        if options.store:
            store = stack.enter_context(checkpoint.stores.open_store(options.store))
            job.resume(store)
        with marks.doing("train"):
            live(job, options.until, options.log, store, marks, options.save_every)
        if options.hold:
            time.sleep(3600)


if __name__ == "__main__":
    main()
