"""One rank of the recommender: what it learns from, the two towers, and the loop that saves.

`recommender.py` starts as many of these as there are ranks, and kills them.
"""

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.distributed as dist
from pyarrow import parquet
from torch import Tensor, nn

import windeck as wd
from windeck import checkpoint
from windeck._core import hash_words

#: The global batch, and its slices: whole slices belong to one rank, which therefore have to be a
#: divisor of their number. Sums are made slice by slice, so their order does not depend on ranks.
BATCH, SLICES = 240, 12
USERS, ITEMS, TASTES, DIM = 300, 150, 4, 8
#: Clicks in the files, files, and the longest history of items a user has seen before.
CLICKS, FILES, LONGEST = 20_000, 3, 6
SEED = 11

Numbers = npt.NDArray[Any]


def mixed(words: Numbers, stream: int) -> Numbers:
    """64 hashed bits for each word: the finaliser of SplitMix64, other bits for each stream."""
    z = words.astype(np.uint64) + np.uint64(hash_words(SEED, stream))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def unit(words: Numbers, stream: int) -> Numbers:
    """A number in [0, 1) for each word."""
    return (mixed(words, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def tastes(numbers: Numbers, stream: int) -> Numbers:
    """What a user or an item is like: TASTES numbers in [-1, 1)."""
    words = numbers[:, None] * TASTES + np.arange(TASTES)
    return 2 * unit(words, stream) - 1


class Clicks:
    """Generated clicks: who was shown what, and did he click? A function of their number.

    Few users and items have most of the views. A click is the likelier the more tastes agree,
    which is what a model can find out. Ids are any 64 bits, as those of a real shop may be. The
    history of a user is a list of items seen before; some are empty.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.fingerprint = {"clicks": [size, SEED, USERS, ITEMS, TASTES]}

    def __len__(self) -> int:
        return self.size

    def gather(self, indices: Numbers, out: None = None) -> dict[str, Numbers]:
        users = (unit(indices, 1) ** 3 * USERS).astype(np.int64)
        items = (unit(indices, 2) ** 2 * ITEMS).astype(np.int64)
        liking = (tastes(users, 3) * tastes(items, 4)).sum(1)
        clicked = unit(indices, 5) < 1 / (1 + np.exp(-4 * liking))
        return {
            "user": mixed(users, 6).astype(np.int64),
            "item": mixed(items, 7).astype(np.int64),
            "clicked": clicked.astype(np.float32),
        }

    def histories(self, indices: Numbers) -> list[list[int] | None]:
        """The items that the users have seen before: lists of different lengths, or none."""
        lengths = (unit(indices, 8) * (LONGEST + 2)).astype(np.int64) - 1
        words = indices[:, None] * LONGEST + np.arange(LONGEST)
        seen = mixed((unit(words, 9) ** 2 * ITEMS).astype(np.int64), 7).astype(np.int64)
        return [
            None if length < 0 else row[:length]
            for length, row in zip(lengths.tolist(), seen.tolist(), strict=True)
        ]


def write_clicks(folder: Path, size: int = CLICKS) -> None:
    """The clicks as Parquet files, with the history as a list column."""
    folder.mkdir(parents=True)
    for part, numbers in enumerate(np.array_split(np.arange(size), FILES)):
        columns: dict[str, Any] = Clicks(size).gather(numbers)
        columns["history"] = pa.array(Clicks(size).histories(numbers), pa.list_(pa.int64()))
        parquet.write_table(pa.table(columns), folder / f"clicks.part{part}.parquet")


def tower() -> nn.Module:
    """What becomes of an embedding before the two are multiplied."""
    return nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, DIM))


class Recommender:
    """Two towers over two tables, the tables sharded and the towers on all ranks alike."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        torch.manual_seed(SEED)
        self.towers = nn.ModuleDict({"user": tower(), "item": tower()})
        self.optimizer = torch.optim.Adam(self.towers.parameters(), lr=0.01)
        options = {"optimizer": "adagrad", "lr": 0.5, "scale": 0.5, "seed": SEED}
        self.tables = {
            "user": wd.ShardedEmbeddingTable(DIM, admit_after=2, **options),
            "item": wd.ShardedEmbeddingTable(DIM, **options),
        }

    def step(self, batch: dict[str, Tensor]) -> float:
        """One step on this rank's part of a batch; the loss of all of it."""
        rows = {name: table(batch[name]) for name, table in self.tables.items()}
        rows["history"] = self.tables["item"].bag(
            batch["history"], batch["history_offsets"], mode="mean"
        )
        size = BATCH // SLICES
        leaves = {
            name: [part.detach().clone().requires_grad_() for part in row.split(size)]
            for name, row in rows.items()
        }
        found = []
        for users, seen, items, clicked in zip(
            leaves["user"], leaves["history"], leaves["item"], batch["clicked"].split(size),
            strict=True,
        ):  # fmt: skip
            score = (self.towers["user"](users + seen) * self.towers["item"](items)).sum(1)
            loss = nn.functional.binary_cross_entropy_with_logits(score, clicked, reduction="sum")
            loss = loss / BATCH
            self.optimizer.zero_grad()
            loss.backward()
            found.append(torch.cat([loss.detach().view(1), *self.gradients()]))
        for name, row in rows.items():
            row.backward(torch.cat([leaf.grad for leaf in leaves[name]]))
        for table in self.tables.values():
            table.step()
        summed = self.summed(torch.stack(found))
        self.set_gradients(summed[1:])
        self.optimizer.step()
        return float(summed[0])

    def gradients(self) -> list[Tensor]:
        return [p.grad.flatten() for p in self.towers.parameters() if p.grad is not None]

    def set_gradients(self, values: Tensor) -> None:
        start = 0
        for p in self.towers.parameters():
            p.grad = values[start : start + p.numel()].view_as(p).clone()
            start += p.numel()

    def summed(self, slices: Tensor) -> Tensor:
        """The sum over all slices: in their order, or in double precision as all-reduce adds up."""
        if not self.exact:
            total = slices.double().sum(0)
            dist.all_reduce(total)
            return total.float()
        parts = [torch.empty_like(slices) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, slices)
        total = torch.zeros_like(slices[0])
        for part in torch.cat(parts):
            total += part
        return total

    def forget(self, step: int) -> None:
        """Ids that were seen once or twice, and long ago."""
        for table in self.tables.values():
            table.evict(seen_before=step - 20, frequency_below=3)


def train(options: argparse.Namespace) -> None:
    """From where the checkpoint in force is to the last step, saving every few."""
    ranks = dist.get_world_size()
    if SLICES % ranks != 0:
        raise ValueError(f"there are {ranks} ranks, expected a divisor of {SLICES}")
    model = Recommender(options.exact)
    clicks = wd.JaggedTable.read(options.data)
    loader = wd.Loader(clicks, batch_size=BATCH // ranks, shuffle=True, seed=SEED,
                       drop_last=True)  # fmt: skip
    kept: dict[str, Any] = {
        "model": model.towers, "optimizer": model.optimizer, "embeddings": model.tables,
        "loader": loader, "group": dist.group.WORLD,
    }  # fmt: skip
    step = 0
    if options.resume:
        step = checkpoint.load(options.store, **kept).step
    while step < options.steps:
        for batch in loader:
            loss = model.step(batch)
            step += 1
            if step % 10 == 0:
                model.forget(step)
            if dist.get_rank() == 0:
                with options.log.open("a") as log:
                    log.write(json.dumps({"step": step, "loss": loss, "ranks": ranks}) + "\n")
            if step % options.save_every == 0 or step == options.steps:
                checkpoint.save(options.store, step=step, incremental=True, **kept)
            if step == options.steps:
                break


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "steps", "save-every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("meeting", "log", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=options.meeting.resolve().as_uri(), rank=options.rank,
        world_size=options.ranks, timeout=datetime.timedelta(seconds=120),
    )  # fmt: skip
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
