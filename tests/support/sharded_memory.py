"""The memory that a rank needs for a save and a load, as a case of `sharded_ranks`."""

from __future__ import annotations

import re
import resource
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from support.sharded_ranks import Gang
from windeck import checkpoint
from windeck.checkpoint import Partition

#: 144 MB on each of two ranks: half of it, copied, would show.
RANKS, ROWS, COLUMNS = 2, 3_600, 4_000


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Own:
    """Context that measures the peak of memory that maps no file, in MiB.

    LevelDB maps the files that it reads, also the parts that it takes in, and their pages count as
    resident.
    """

    def __init__(self) -> None:
        self.most, self._done = 0.0, threading.Event()

    def _look(self) -> None:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        self.most = max(self.most, int(found[1]) / 1024)

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._look()

    def __enter__(self) -> float:
        self._look()
        before = self.most
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return before

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def model_of(rank: int, rows: int, value: float) -> dict[str, Any]:
    """Return a DTensor, a strided partition, and a tensor that all ranks have."""
    mesh = init_device_mesh("cpu", (RANKS,))
    shard = torch.full((rows, COLUMNS), value)
    strided = torch.full((COLUMNS, rows), value).t()
    return {
        "shard": DTensor.from_local(shard, mesh, [Shard(0)], run_check=False),
        "strided": Partition(strided, offset=(0, COLUMNS * rank), shape=(rows, RANKS * COLUMNS)),
        "copies": torch.full((rows // 2, COLUMNS), value),
    }


def beyond(gang: Gang, url: str) -> list[list[float]]:
    """Return the MiB that a save and a load need in addition to the model, on each rank.

    The second pair of numbers counts only memory that maps no file.
    """

    def act(rank: int) -> list[float]:
        everybody: Any = dist.group.WORLD
        # First of all what is needed once: threads, buffers of the store, of torch.distributed.
        warm = model_of(rank, 500, 1)
        checkpoint.save(url, step=0, model=warm, namespace="warm", group=everybody)
        checkpoint.load(url, model=warm, namespace="warm", group=everybody)
        model = model_of(rank, ROWS, rank + 1)
        model["copies"].fill_(7)
        tensors = model["shard"].to_local(), model["strided"].tensor, model["copies"]
        peaks, own = [peak()], []
        for call in (checkpoint.save, checkpoint.load):
            options: dict[str, Any] = {"step": 1} if call is checkpoint.save else {}
            watch = Own()
            with watch as before:
                call(url, model=model, group=everybody, **options)
            own.append(watch.most - before)
            peaks.append(peak())
            if call is checkpoint.save:
                for tensor in tensors:
                    tensor.zero_()
        for tensor, value in zip(tensors, (rank + 1, rank + 1, 7), strict=True):
            assert float(tensor.min()) == float(tensor.max()) == value
        return [peaks[1] - peaks[0], peaks[2] - peaks[1], *own]

    return [list(found) for found in gang.values(RANKS, act)]
