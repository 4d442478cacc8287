"""Bytes that a rank reads beside its own when it loads what other ranks saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import torch
from measure import Row, limit

from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.stores import open_store

#: A block of a transformer of 768 columns, with its vocabulary, in bfloat16.
SHAPES = {
    "tokens": (16_384, 768),
    "norm": (768,),
    "attention": (2304, 768),
    "projection": (768, 768),
}
SHAPES |= {"up": (3072, 768), "down": (768, 3072), "bias": (3072,)}


class Counting:
    """A store that counts the bytes of the chunks that are read, headers and all."""

    def __init__(self, store: Any) -> None:
        self._store, self.bytes, self._lock = store, 0, Lock()

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._store.get_many(names)
        self.bytes += sum(len(value or b"") for value in found)
        return found

    def get_unchecked(self, name: bytes) -> bytes | None:
        found: bytes | None = self._store.get_unchecked(name)
        with self._lock:  # several threads read
            self.bytes += len(found or b"")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def share(model: dict[str, torch.Tensor], rank: int, ranks: int, *, empty: bool) -> dict[str, Any]:
    """Part of a rank under FSDP2: rows, cut as torch.chunk does."""
    found = {}
    for name, whole in model.items():
        step = -(-len(whole) // ranks)
        first, end = min(rank * step, len(whole)), min((rank + 1) * step, len(whole))
        rows = torch.zeros_like(whole[first:end]) if empty else whole[first:end]
        offset = (first, *[0] * (whole.dim() - 1))
        found[name] = Partition(rows, offset=offset, shape=whole.shape)
    return found


def read_and_needed(folder: Path, model: dict[str, torch.Tensor], saved: int, loaded: int) -> float:
    """Bytes read over bytes needed, after the parts were compared with the whole tensors."""
    with open_store(f"rocksdb://{folder}/{saved}-{loaded}") as store:
        plan = checkpoint.begin(store, step=1, writers=saved)
        for rank in range(saved):
            own = share(model, rank, saved, empty=False)
            checkpoint.save_shard(store, plan, writer=rank, model=own)
        checkpoint.merge(store, plan)
        counting, needed = Counting(store), 0
        for rank in range(loaded):
            parts = share(model, rank, loaded, empty=True)
            checkpoint.load(counting, model=parts)
            for name, expected in share(model, rank, loaded, empty=False).items():
                assert torch.equal(parts[name].tensor, expected.tensor), name
                needed += expected.tensor.nbytes
        return counting.bytes / needed


def rows() -> Iterator[Row]:
    torch.manual_seed(0)
    model = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in SHAPES.items()}
    with TemporaryDirectory() as folder:
        for saved, loaded, needed in ((4, 3, 1.0), (8, 6, None), (1, 4, None), (4, 1, None)):
            found = read_and_needed(Path(folder), model, saved, loaded)
            yield Row(
                f"restore {saved} shards on {loaded} ranks: bytes read over bytes needed",
                f"{found:.4f}", "1.05 allowed", limit(found, 1.05), needed,
                "chunks that lie across a border",
            )  # fmt: skip
