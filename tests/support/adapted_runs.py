"""A model with dropout and an embedding table, and what a run of it ends with."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import windeck as wd
from models.oracle import Numbers
from support.launched import launch
from windeck import checkpoint

#: Epochs of 7 steps: 40 samples in batches of 6, or of 3 on each of two ranks.
SIZE, EPOCHS, STEPS = 40, 3, 7
KILLED = -signal.SIGKILL
#: Ranks, steps between saves, and the step at which they are killed.
KILLS = [(1, 4, 11), (2, 4, 10), (1, STEPS, 9), (2, STEPS, STEPS)]
#: Trains on each rank: writes its end to a folder, saves to a URL, is killed at a step or not.
Fit = Callable[[Path, str, int | None, int], None]


def ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def make_loader(**options: Any) -> wd.Loader:
    return wd.Loader(Numbers(SIZE), batch_size=6 // ranks(), shuffle=True, seed=3, **options)


def make_table() -> wd.EmbeddingTable:
    """Make a table, sharded where there are several ranks."""
    several = dist.is_initialized() and dist.get_world_size() > 1
    kind = wd.ShardedEmbeddingTable if several else wd.EmbeddingTable
    return kind(4, optimizer="adam", lr=0.1, seed=5, admit_after=2)


class Scorer(torch.nn.Module):
    """The loss of a batch; the process kills itself in the forward pass of a step."""

    def __init__(self, kill_at: int | None) -> None:
        super().__init__()
        self.kill_at = kill_at
        self.user = make_table()
        self.layer = torch.nn.Linear(4, 1)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.fill_(0.25)
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, sample: torch.Tensor, row: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            if int(self.steps) == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps += 1
        rows = self.user(sample.to(torch.int64) % 17 - 8)
        kept = torch.nn.functional.dropout(rows, 0.5, self.training)
        return {"loss": (self.layer(kept).square() + kept.sum() * row.float().mean() / 100).mean()}


def allow_fsdp_on_cpu() -> None:
    """Let accelerate use its FSDP2 on CPUs, which it does on devices of other kinds only."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    init = AcceleratorState.__init__

    def patched(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if options.get("fsdp_plugin") is not None:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = options["fsdp_plugin"]

    AcceleratorState.__init__ = patched


def digest_of(model: torch.nn.Module, optimizer: Any) -> Any:
    """Return a hash of model and optimizer, whole if they are sharded."""
    state: dict[str, Any] = dict(model.state_dict())
    for number, own in optimizer.state_dict()["state"].items():
        state |= {f"{number}/{name}": value for name, value in own.items()}
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = torch.as_tensor(state[name]).detach()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(name.encode() + whole.numpy().tobytes())
    return digest


def write_end(folder: Path, model: Scorer, optimizer: Any) -> None:
    """Write what a run ends with, of this rank; the name tells whether it is the same."""
    with model.user.core.snapshot() as snapshot:
        core = model.user.core
        rows = snapshot.read(core.first_bucket, core.end_bucket)
    digest = digest_of(model, optimizer)
    for name in sorted(rows):
        digest.update(name.encode() + rows[name].tobytes())
    digest.update(b"%d %d" % (model.user.core.clock, int(model.steps)))
    digest.update(torch.rand(4).numpy().tobytes())  # where the generator is
    rank = os.environ.get("RANK", "0")
    (folder / f"end{rank}").write_text(f"{int(model.steps)} {digest.hexdigest()}")


def read_end(folder: Path, ranks: int) -> list[str]:
    return [(folder / f"end{rank}").read_text() for rank in range(ranks)]


def check_resumed(
    fit: Fit, folder: Path, count: int, every: int, kill_at: int, *, table: str
) -> None:
    """Assert that a run that was killed and resumed ends with the bits of a whole run."""
    (folder / "whole").mkdir()
    whole, url = f"rocksdb://{folder}/one", f"rocksdb://{folder}/two"
    assert launch(count, fit, folder / "whole", whole, None, every) == [0] * count
    assert KILLED in launch(count, fit, folder, url, kill_at, every)
    assert next(found.step for found in checkpoint.log(url)) == kill_at // every * every
    assert launch(count, fit, folder, url, None, every) == [0] * count
    ends = read_end(folder, count)
    assert ends == read_end(folder / "whole", count)
    assert ends[0].startswith(f"{STEPS * EPOCHS} ")
    with checkpoint.open(url) as found:
        assert list(found.trees) == ["model", "optimizer", "loader", "extra"]
        assert list(found.tables) == [table]


def check_continued_by_one(fit: Fit, folder: Path) -> None:
    """Assert that one process continues what two have saved."""
    url = f"rocksdb://{folder}/run"
    assert KILLED in launch(2, fit, folder, url, 10, 4)
    assert launch(1, fit, folder, url, None, 4) == [0]
    assert read_end(folder, 1)[0].startswith(f"{STEPS * EPOCHS} ")
