"""Training on a real file, killed again and again: does it ever matter?

    python examples/beijing_job.py FILE [--rounds 100] [--out out/beijing] [--save-every 3]

`kill -9` ends the training at random moments: while it starts, trains, saves, clears old
checkpoints away. Each time a new process goes on from the checkpoint in force, in a RocksDB.
Before, the same training ran once without any interruption and without saving. After each kill

* every step of the killed process, also of those that were lost with it, is compared with it: the
  loss, bit by bit, where each sample came from, all weights and the optimizer's state after it;
* the checkpoint in force is read, and compared with the same step of the uninterrupted run.

FILE is any Parquet, Arrow or CSV file with a time and a number to forecast. The exit code is 0 if
all is equal.
"""

import argparse
import random
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
from beijing_lives import STEPS, Found, InForce, Lives

from windeck.cli.parser import at_least

#: What a kill interrupts, and its letter in the picture.
LETTERS = {"start": "·", "train": "t", "save": "S", "gc": "g"}


def show(name: str, text: str) -> None:
    """Print a line: a name, and a text that is wrapped below itself."""
    indent = " " * 12
    print(textwrap.fill(text, 100, initial_indent=f"{name:<12}", subsequent_indent=indent))


def check(holds: bool, text: str) -> None:
    """Print a claim, with a mark for whether it is true."""
    show("  ✔" if holds else "  ✘", text)


def rounds(lives: Lives) -> Found:
    """Kill and look, as often as asked; then let the last life end."""
    found, start_up = Found(), 3.0
    dice = random.Random(lives.options.dice)
    for number in range(1, lives.options.rounds + 1):
        name, before = f"life{number:03}", found.generation
        start_up = lives.kill(name, dice, start_up, found.step + 2 * STEPS)
        found.kills.append(lives.interrupted(name))
        lives.look(name, found)
        records = lives.records(name)
        if found.kills[-1] == "save" and found.step == (records["step"][-1:] or [0])[-1]:
            found.committed += found.generation > before
        if found.wrong_steps or found.wrong_checkpoints:
            return found
    until = min(lives.steps, found.step + 2 * STEPS)
    lives.run_through("last", *lives.saving(), "--until", str(until))
    lives.look("last", found)
    return found


def report(lives: Lives, found: Found) -> bool:
    """What a person wants to know; whether all claims hold."""
    kills = Counter(found.kills)
    show("  kills", "".join(LETTERS[kill] for kill in found.kills))
    show(
        "", f"{kills['start']} · while starting   {kills['train']} t training   "
        f"{kills['save']} S inside a save   {kills['gc']} g inside gc"
    )  # fmt: skip
    show("", f"of the saves, {found.committed} were in force already, the others not yet")
    show("  steps", f"{found.step:,} kept, and {found.again:,} taken again after a kill")
    show("  saves", f"{found.generation:,} begun, each of model, optimizer and loader")
    for words in found.wrong_steps + found.wrong_checkpoints:
        show("  note", words)
    served = np.concatenate(found.served).tobytes() if found.served else b""
    last = lives.records("last")
    claims = {
        "each step of each life, lost ones too: the uninterrupted run's loss, samples and weights":
            not found.wrong_steps,
        "the checkpoint in force after each kill: the uninterrupted run's, bit for bit":
            not found.wrong_checkpoints,
        "what was kept of all lives, in a row: the uninterrupted run, nothing lost, nothing twice":
            served == lives.reference[: found.step].tobytes() and len(last) > 0,
        "the last life's proof, handed from checkpoint to checkpoint, is that of all these steps":
            lives.in_force() == InForce(found.step, found.generation, True),
    }  # fmt: skip
    for words, holds in claims.items():
        check(holds, words)
    return all(claims.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=at_least(0), default=100)
    parser.add_argument("--out", type=Path, default=Path("out/beijing"))
    parser.add_argument("--save-every", type=at_least(1), default=3, help="steps")
    parser.add_argument("--batch-size", type=at_least(1), default=64)
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--dice", type=int, default=None, help="seed of the moments of the kills")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        lives = Lives(options)
    except (OSError, ValueError) as error:  # about the file
        sys.exit(f"{parser.prog}: {error}")
    lives.prepare()
    windows = len(lives.windows)
    show("1 Job", f"{options.file.name} · target {lives.task.columns.target} · {windows:,} windows")
    show(
        "",
        f"batches of {options.batch_size}, saved every {options.save_every} steps to {lives.url}",
    )
    show("2 In peace", f"{lives.steps:,} steps without saving or being interrupted")
    as_computed = lives.uninterrupted()
    check(as_computed, "its samples: what the permutation says, worked out without the loader")
    show(
        "3 Killed", f"{options.rounds} times with SIGKILL, and gone on from the checkpoint in force"
    )
    found = rounds(lives)
    holds = report(lives, found) and as_computed
    print(f"\ndone in {time.monotonic() - began:.0f} s")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
