"""Loaders and steps with one planted bottleneck each."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PAGE = 4096


def spin(turns: int) -> int:
    """Compute in Python, so that a core is used and the interpreter's lock is held."""
    total = 0
    for number in range(turns):
        total += number & 3
    return total


class Asleep(Dataset[torch.Tensor]):
    """Dataset whose items sleep, without use of the processor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((16,), float(index))


class Spinning(Dataset[torch.Tensor]):
    """Dataset whose items use the processor."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        spin(self.turns)
        return torch.full((16,), float(index))


class Pages(Dataset[torch.Tensor]):
    """Pages of a mapped file that is not in the page cache; each access reads one page."""

    def __init__(self, path: Path, pages: int) -> None:
        block = os.urandom(256 * PAGE)
        with path.open("wb") as file:
            for _ in range(pages // 256):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.map.madvise(mmap.MADV_RANDOM)
        self.rows = np.frombuffer(self.map, np.uint8).reshape(-1, PAGE)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[index].copy())


class SpinningSource:
    """A source of `windeck.Loader` whose batches hold the interpreter's lock."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.fingerprint: dict[str, str | int] = {"spinning": 1}

    def __len__(self) -> int:
        return 100_000

    def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
        spin(self.turns)
        return {"x": np.asarray(indices, np.float32)}


def batches(count: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield small batches of arrays, once."""
    for number in range(count):
        yield {"x": np.full((4, 8), number, np.float32), "y": np.arange(4)}
