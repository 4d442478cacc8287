"""A training run as a program, for tests that kill it: see test_loader_killed.

It logs the samples it receives, one line a step and rank, and then saves its state; both survive a
SIGKILL. Started by torchrun it is one rank of several, and rank 0 saves for all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch.distributed as dist

from models.oracle import Numbers, Turn
from windeck import Loader


def save(state: dict[str, object], path: Path) -> None:
    """Write the file atomically."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--die-at", type=int, help="the last rank kills itself before this step")
    options = parser.parse_args()
    loader = Loader(  # Before there is a process group: ranks are looked at when needed.
        Numbers(options.size),
        batch_size=options.batch_size,
        order=Turn,
        seed=3,
        epochs=options.epochs,
        drop_last=options.drop_last,
    )
    several = "WORLD_SIZE" in os.environ
    if several:
        dist.init_process_group("gloo")
    path = options.folder / "state.json"
    if path.exists():
        loader.load_state_dict(json.loads(path.read_text()))
    began = loader.step
    log = (options.folder / f"rank{loader.rank}.jsonl").open("a")
    while loader.epoch < options.epochs:
        for batch in loader:
            if loader.step - 1 == options.die_at and loader.rank == loader.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            line = [loader.step - 1, began, batch["sample"].tolist()]
            print(json.dumps(line), file=log, flush=True)
            if several:
                dist.barrier()
            if loader.rank == 0:
                save(loader.state_dict(), path)
                print(loader.step, flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
