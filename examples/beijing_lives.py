"""The lives of a training that is killed: processes, what they leave, and what it should be."""

import argparse
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from beijing_trainee import chained, digest, record_type

from windeck import checkpoint
from windeck.cli.column_roles import infer_columns
from windeck.cli.demo_job import Job, expected_samples, read_table, training_windows

TRAINEE = Path(__file__).with_name("beijing_trainee.py")
#: Steps of a life before its killer begins to roll dice: 1 to so many.
STEPS = 8
#: Then it waits up to so many seconds: one of these, so that steps and saves have their turns.
WAITS = (0.01, 0.4)
#: One life in so many is killed before its first step.
YOUNG = 8

Records = npt.NDArray[Any]


class InForce(NamedTuple):
    """The checkpoint in force: its step, how many have been made, and whether it is right."""

    step: int
    generation: int
    is_right: bool


@dataclass
class Found:
    """What the rounds have shown."""

    kills: list[str] = field(default_factory=list)
    committed: int = 0
    step: int = 0
    generation: int = 0
    again: int = 0
    served: list[Records] = field(default_factory=list)
    wrong_steps: list[str] = field(default_factory=list)
    wrong_checkpoints: list[str] = field(default_factory=list)


class Lives:
    """The job, its folder, and what the uninterrupted run did."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        columns = replace(infer_columns(options.file), path=str(options.file.resolve()))
        self.task = Job(columns, batch_size=options.batch_size, seed=options.seed)
        self.windows = training_windows(self.task, read_table(self.task))
        # More than the lives will take, so that none of them has to wait for its end.
        self.steps = options.rounds * 2 * STEPS + 60
        self.url = f"rocksdb://{self.out.resolve()}/store"
        self.reference: Records = np.empty(0)
        self.proofs: list[str] = []

    def prepare(self) -> None:
        """An empty folder, but for the job."""
        self.out.mkdir(parents=True, exist_ok=True)
        if any(self.out.iterdir()):
            sys.exit(f"{self.out} is not empty, expected a new folder or an empty one")
        (self.out / "job.json").write_text(json.dumps(asdict(self.task)))

    @contextmanager
    def life(self, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process that trains; it never outlives this one."""
        command = [sys.executable, str(TRAINEE), str(self.out / "job.json"), *options]
        command += ["--log", str(self.log(name)), "--marks", str(self.out / f"{name}.marks")]
        with open(self.out / f"{name}.errors", "wb") as errors:
            process = subprocess.Popen(command, stderr=errors)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run_through(self, name: str, *options: str) -> None:
        """A life that nobody ends."""
        with self.life(name, *options) as process:
            if process.wait() != 0:
                sys.exit(f"{name} failed: {self.last_words(name)}")

    def saving(self) -> list[str]:
        return ["--store", self.url, "--save-every", str(self.options.save_every)]

    def log(self, name: str) -> Path:
        return Path(self.out / f"{name}.log")

    def records(self, name: str) -> Records:
        """The steps a life tells of; a kill may cut the last one short."""
        kind = record_type(self.task.batch_size)
        raw = self.log(name).read_bytes() if self.log(name).exists() else b""
        return np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], kind)

    def count(self, name: str) -> int:
        size = self.log(name).stat().st_size if self.log(name).exists() else 0
        return int(size // record_type(self.task.batch_size).itemsize)

    def interrupted(self, name: str) -> str:
        """What a life was doing when it ended."""
        marks = self.out / f"{name}.marks"
        return (marks.read_text().split() or ["start"])[-1] if marks.exists() else "start"

    def last_words(self, name: str) -> str:
        words = (self.out / f"{name}.errors").read_text(errors="replace").strip().splitlines()
        return words[-1] if words else "it said nothing"

    def uninterrupted(self) -> bool:
        """Train once in peace; whether the samples are those the permutation alone says."""
        self.run_through("uninterrupted", "--until", str(self.steps))
        self.reference = self.records("uninterrupted")
        chain = itertools.accumulate(
            (record.tobytes() for record in self.reference), chained, initial=""
        )
        self.proofs = list(chain)
        samples = [
            np.stack((np.broadcast_to(record["step"], there.sum()), record["series"][there],
                      record["start"][there]), 1)
            for record in self.reference
            for there in [record["start"] >= 0]
        ]  # fmt: skip
        wanted = expected_samples(
            self.windows, batch_size=self.task.batch_size, seed=self.task.seed, steps=self.steps
        )
        return np.array_equal(np.concatenate(samples), wanted)

    def kill(self, name: str, dice: random.Random, start_up: float, until: int) -> float:
        """One life, and its end at a random moment; the seconds to its first step.

        It takes no step after `until`, so that steps are left for the last life however fast it is.
        """
        began, goal, first = time.monotonic(), dice.randint(1, STEPS), 0.0
        with self.life(name, *self.saving(), "--until", str(until), "--hold") as process:
            if dice.randrange(YOUNG) == 0:
                time.sleep(dice.uniform(0, start_up))
            else:
                while self.count(name) < goal:
                    if process.poll() is not None:
                        sys.exit(f"{name} failed: {self.last_words(name)}")
                    first = first or (time.monotonic() - began if self.count(name) else 0.0)
                    time.sleep(0.001)
                time.sleep(dice.uniform(0, dice.choice(WAITS)))
            process.kill()
            if process.wait() != -9:
                sys.exit(f"{name} failed: {self.last_words(name)}")
        return first or start_up

    def in_force(self) -> InForce:
        """The checkpoint in force: all its tensors, the loader's position, and its proof."""
        if not (self.out / "store").exists() or not checkpoint.log(self.url):
            return InForce(0, 0, True)
        with checkpoint.open(self.url) as saved:
            state = digest(saved.tree("model"), saved.tree("optimizer"))
            proof, loader = saved.tree("extra")["proof"], saved.tree("loader")
            is_right = (
                state == self.reference[saved.step - 1]["state"].tobytes()
                and proof == self.proofs[saved.step]
                and loader["position"] == self._position(saved.step)
            )
            return InForce(saved.step, saved.generation, is_right)

    def _position(self, step: int) -> int:
        """Samples dealt in so many steps; it stays where an epoch ends."""
        count, size = len(self.windows), self.task.batch_size
        epoch, batches = divmod(step, -(-count // size))
        return epoch * count + batches * size

    def look(self, name: str, found: Found) -> None:
        """Compare what a life left with the uninterrupted run."""
        records, before = self.records(name), found.step
        wanted = self.reference[before : before + len(records)]
        if records.tobytes() != wanted.tobytes():
            found.wrong_steps.append(f"{name}: a step is not that of the uninterrupted run")
        now = self.in_force()
        kept = now.step - before
        if not now.is_right:
            found.wrong_checkpoints.append(
                f"{name}: the checkpoint of step {now.step} is not right"
            )
        if not 0 <= kept <= len(records):
            found.wrong_checkpoints.append(f"{name}: step {now.step} is in force, after {before}")
        found.served.append(records[:kept])
        found.again += len(records) - kept
        found.step, found.generation = now.step, now.generation
