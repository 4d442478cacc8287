"""A training run over token files, as a program that test_text_resume kills.

It is started once for each leg of a run, and forks its ranks. As in a cluster, each rank gets its
number and the world size, and does not talk to the others. It writes the batches it receives to a
log, then saves its state, and continues until it is killed or has passed the position at which the
run ends.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import windeck as wd
from windeck import Loader  # Brings torch in, once for all ranks.

#: What the ranks write of every batch.
KEYS = ("inputs", "targets", "position_ids", "cu_seqlens")


def packed(folder: Path, part: dict[str, Any], shards: int) -> wd.PackedSequences:
    """Return the packed sequences of the first `shards` files of a dataset."""
    files = [f"dataset={part['dataset']}/*.part{number}.*" for number in range(shards)]
    documents = wd.Documents(folder / "corpus", files=files, **part["documents"])
    return wd.PackedSequences(documents, dtype="int32", **part["packing"])


def stream_of(folder: Path, part: dict[str, Any]) -> Any:
    """Return the stream of one part of the settings; parts may be mixtures of parts."""
    if "parts" in part:
        return mixture_of(folder, part)
    grown = [(position, packed(folder, part, shards)) for position, shards in part["grown"]]
    return wd.Stream(packed(folder, part, part["shards"]), seed=part["seed"], grown=grown)


def mixture_of(folder: Path, settings: dict[str, Any]) -> wd.Mixture:
    parts = {
        name: (stream_of(folder, part), part["weight"]) for name, part in settings["parts"].items()
    }
    return wd.Mixture(parts, schedule=[(at, weights) for at, weights in settings["schedule"]])


def save(state: dict[str, Any], path: Path) -> None:
    """Write the file atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state))
    part.replace(path)


def train(folder: Path, leg: int, rank: int, world: int, until: int) -> None:
    """Run one rank of one leg."""
    settings = json.loads((folder / "settings.json").read_text())
    loader = Loader(
        mixture_of(folder, settings),
        batch_size=settings["batch_sizes"][leg],
        rank=rank,
        world_size=world,
    )
    resumed = folder / "resume.json"
    if resumed.exists():
        loader.load_state_dict(json.loads(resumed.read_text()))
    with (folder / f"leg{leg}.rank{rank}.jsonl").open("w") as log:
        for batch in loader:
            line = {key: batch[key].tolist() for key in KEYS}
            print(json.dumps({"step": loader.step - 1, **line}), file=log, flush=True)
            save(loader.state_dict(), folder / f"leg{leg}.rank{rank}.json")
            os.write(1, f"{rank} {loader.step}\n".encode())  # Whole lines: other ranks write too.
            if loader.position >= until:
                return
            time.sleep(0.002)  # A model would have something to do.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--leg", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--until", type=int, required=True)
    options = parser.parse_args()
    ranks = []
    for rank in range(options.world):
        child = os.fork()
        if not child:
            train(options.folder, options.leg, rank, options.world, options.until)
            os._exit(0)
        ranks.append(child)
    os.write(1, f"ranks {' '.join(map(str, ranks))}\n".encode())
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    raise SystemExit(0 if codes == [0] * len(codes) else 1)


if __name__ == "__main__":
    main()
