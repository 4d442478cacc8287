"""A recommender that is killed, and goes on with another number of ranks as if nothing had been.

    python examples/recommender.py [--steps 120] [--save-every 7] [--out out/recommender]

Two towers over two embedding tables learn which items users click. The clicks are Parquet files
with a list column, the items that a user has seen before; they are generated (see `Clicks` in
`recommender_trainee.py`), so what is learned is a known rule and no discovery. Tables are sharded
over the ranks, towers are alike on all; every few steps all ranks make one commit of towers,
optimizer, tables and loader, incrementally.

The reference is a run of two ranks that nobody disturbs. The other run has several lives: in each
but the last, one of its ranks is killed (SIGKILL) at a moment nobody chose, and the next life goes
on from the checkpoint in force with another number of ranks. Then both are compared:

* `--exact`, the default: sums over the batch are made in one fixed order. Losses, towers, optimizer
  and all rows, slots, counts and versions of both tables are equal **bit for bit**, whatever the
  numbers of ranks were.
* `--no-exact`: losses and gradients of the towers are summed by all-reduce (in double precision),
  whose order depends on the number of ranks. Then they are equal to 1e-6, while ids, counts and
  versions are equal.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from recommender_trainee import write_clicks

from windeck import checkpoint

TRAINEE = Path(__file__).with_name("recommender_trainee.py")
#: Numbers of ranks: the trainee cuts a batch into 12 slices, and whole slices belong to one rank.
RANKS = (1, 2, 3, 4, 6, 12)


class Run:
    """One training, in a folder of its own, and the processes it lives in."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        folder.mkdir(parents=True)
        self.folder, self.options = folder, options
        self.log = folder / "losses.jsonl"
        self.store = f"rocksdb://{(folder / 'store').resolve()}"
        self.lives = 0

    def start(self, ranks: int) -> list["subprocess.Popen[bytes]"]:
        """A life: as many processes as ranks."""
        self.lives += 1
        given = {
            "ranks": ranks, "steps": self.options.steps, "save-every": self.options.save_every,
            "meeting": self.folder / f"meeting{self.lives}", "log": self.log, "store": self.store,
            "data": self.options.out / "clicks",
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in given.items()]
        words.append("--exact" if self.options.exact else "--no-exact")
        if self.step_in_force() is not None:
            words.append("--resume")
        said = (self.folder / f"life{self.lives}.txt").open("wb")
        with said:
            return [
                subprocess.Popen(
                    [sys.executable, str(TRAINEE), f"--rank={rank}", *words],
                    stdout=said,
                    stderr=said,
                )
                for rank in range(ranks)
            ]

    def finish(self, ranks: int) -> None:
        """A life that nobody disturbs."""
        for process in (processes := self.start(ranks)):
            if process.wait() != 0:
                self.stop(processes)

    def kill_after(self, ranks: int, steps: int, dice: random.Random) -> str:
        """A life in which one rank is killed, soon after so many more steps."""
        until = len(self.losses()) + steps
        processes = self.start(ranks)
        while len(self.losses()) < until and all(p.poll() is None for p in processes):
            time.sleep(0.002)
        if any(p.poll() for p in processes):
            self.stop(processes)
        time.sleep(dice.uniform(0, 0.05))
        victim = dice.randrange(ranks)
        processes[victim].kill()
        time.sleep(0.1)
        for process in processes:  # the others wait for the dead one: no use
            process.kill()
            process.wait()
        reached = max([step for step, _ in self.losses()], default=0)
        return (
            f"{ranks} ranks, rank {victim} killed at step {reached}, saved {self.step_in_force()}"
        )

    def stop(self, processes: list["subprocess.Popen[bytes]"]) -> NoReturn:
        """A rank failed, and nobody had killed it."""
        for process in processes:
            process.kill()
            process.wait()
        told = (self.folder / f"life{self.lives}.txt").read_text(errors="replace")
        raise RuntimeError(f"a rank failed:\n{told}")

    def losses(self) -> list[tuple[int, float]]:
        """Steps and losses as they were logged; those that a crash undid are there twice."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = []
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a line that a kill cut short
            found.append((said["step"], said["loss"]))
        return found

    def step_in_force(self) -> int | None:
        """The step of the checkpoint in force; None where no save was done before a kill."""
        try:
            commits = checkpoint.log(self.store)
        except FileNotFoundError:
            return None
        return commits[0].step if commits else None

    def state(self) -> dict[str, Any]:
        """All tensors, and all columns of all tables, of the checkpoint in force."""
        with checkpoint.open(self.store) as found:
            state = {name: found.tensor(name).numpy() for name in found.names()}
            for name in found.tables:
                parts = list(found.table(name).scan())
                for column in ("keys", "versions", "frequencies", "seen", "admitted", "values"):
                    joined = np.concatenate([getattr(part, column) for part in parts])
                    state[f"{name}.{column}"] = joined
            return state


def compare(ours: Run, reference: Run, exact: bool) -> str:
    """What the two runs have in common, or an AssertionError that says what not."""
    expected = dict(reference.losses())
    losses = [(loss, expected[step]) for step, loss in ours.losses()]
    worst = max(abs(a - b) for a, b in losses)
    assert set(expected) == {step for step, _ in ours.losses()}, "steps are missing"
    mine, theirs = ours.state(), reference.state()
    assert mine.keys() == theirs.keys(), "another state"
    for name, value in theirs.items():
        found = mine[name]
        assert found.shape == value.shape, f"{name} has another shape"
        if exact or value.dtype.kind != "f":
            assert found.tobytes() == value.tobytes(), f"{name} has other bits"
        else:
            worst = max(worst, float(np.abs(found - value).max(initial=0)))
    if exact:
        assert worst == 0, f"losses differ by {worst}"
        return f"{len(losses)} losses and {len(mine)} arrays are equal bit for bit"
    assert worst <= 1e-6, f"losses or state differ by {worst}, expected at most 1e-6"
    return f"{len(losses)} losses and {len(mine)} arrays are equal to {worst:.1e}"


def positive(text: str) -> int:
    """What an option says, if it is a number of something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)


def ranks(text: str) -> int:
    """What an option says, if the trainee can be so many."""
    if text not in map(str, RANKS):
        raise argparse.ArgumentTypeError(f"expected a divisor of {RANKS[-1]}, found {text!r}")
    return int(text)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=positive, default=120)
    parser.add_argument("--save-every", type=positive, default=7, help="steps")
    parser.add_argument(
        "--lives", type=ranks, nargs="+", default=[2, 3, 1, 4], help="ranks of each"
    )
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills")
    parser.add_argument("--out", type=Path, default=Path("out/recommender"))
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    if options.out.exists() and any(options.out.iterdir()):
        sys.exit(f"{options.out} is not empty, expected a new folder or an empty one")
    dice = random.Random(options.seed)
    print(f"kills are drawn with --seed {options.seed}")
    write_clicks(options.out / "clicks")
    reference = Run(options.out / "reference", options)
    reference.finish(2)
    losses = [loss for _, loss in reference.losses()]
    tenth = max(1, len(losses) // 10)
    print(f"undisturbed, 2 ranks: loss {sum(losses[:tenth]) / tenth:.4f} in the first steps, "
          f"{sum(losses[-tenth:]) / tenth:.4f} in the last")  # fmt: skip
    killed = Run(options.out / "killed", options)
    for count in options.lives[:-1]:
        share = max(1, options.steps // len(options.lives))
        print(killed.kill_after(count, dice.randint(max(1, share // 2), share), dice))
    killed.finish(options.lives[-1])
    print(f"{options.lives[-1]} ranks, to the end: {compare(killed, reference, options.exact)}")


if __name__ == "__main__":
    main()
