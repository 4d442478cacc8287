"""Bytes and time of an incremental save when 1 % of the chunks changed.

Dense float32 tensors of 256 MiB in chunks of 1 MiB. Bytes are those of all keys and values a save
puts; times are of RocksDB in a temporary folder (TMPDIR=/dev/shm for memory instead of a disk).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import torch
from measure import Ratio, Row, ratio_of, seconds

from windeck import checkpoint
from windeck.checkpoint.stores import Store, open_store

TENSORS, ELEMENTS, CHUNK = 32, 2 << 20, 1 << 18  # elements: 8 MiB each, in chunks of 1 MiB
CHUNKS = TENSORS * ELEMENTS // CHUNK
CHANGED = round(0.01 * CHUNKS)
ROUNDS = 5


def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"w{i}": torch.randn(ELEMENTS, generator=generator) for i in range(TENSORS)}


def touch(state: dict[str, torch.Tensor], serial: int) -> None:
    """Change one element in each of 1 % of the chunks, spread evenly, others each time."""
    for number in range(CHANGED):
        chunk = (number * CHUNKS // CHANGED + serial * 7) % CHUNKS
        tensor, place = divmod(chunk * CHUNK, ELEMENTS)
        state[f"w{tensor}"][place] += 1


def written(store: Store, generation: int) -> int:
    """Bytes of the keys and values of a generation, and of the two records about all."""
    found = sum(
        len(key) + len(value) for key, value in store.scan(b"") if b"%016x" % generation in key
    )
    heads = (b"windeck/HEAD", b"windeck/NEXT")
    return found + sum(len(store.get(key) or b"") + len(key) for key in heads)


def bytes_ratio(state: dict[str, torch.Tensor]) -> Ratio:
    with open_store("memory://") as store:
        full = written(store, checkpoint.save(store, step=0, model=state, incremental=True))
        touch(state, 0)
        less = written(store, checkpoint.save(store, step=1, model=state, incremental=True))
        target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        checkpoint.load(store, model=target)
        assert all(torch.equal(target[name], state[name]) for name in state)
    share = full / less
    return Ratio(share, share, share, less, full)


def times(state: dict[str, torch.Tensor]) -> tuple[Ratio, Ratio]:
    """Of a full save over an incremental one, and over a full one that takes digests."""
    less, digests = [], []
    with tempfile.TemporaryDirectory() as folder, open_store(f"rocksdb://{folder}/db") as store:
        for serial in range(ROUNDS + 1):
            touch(state, serial)
            given = {"step": serial, "model": state}
            full = seconds(lambda: checkpoint.save(store, **given))  # noqa: B023
            # After a full one, which left no digests: this writes all, too.
            anew = seconds(lambda: checkpoint.save(store, **given, incremental=True))  # noqa: B023
            touch(state, serial + 3)
            more = seconds(lambda: checkpoint.save(store, **given, incremental=True))  # noqa: B023
            checkpoint.gc(store, keep=1)
            if serial:  # the first warms up
                less.append((more, full))
                digests.append((anew, full))
    return ratio_of(less), ratio_of(digests)


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    state = model()
    question = f"save of 256 MiB, {CHANGED} of {CHUNKS} chunks changed"
    yield Row(f"{question}: bytes", "incremental", "full", bytes_ratio(state), 20.0)
    less, digests = times(state)
    yield Row(f"{question}: seconds", "incremental", "full", less, None)
    yield Row("save of 256 MiB, all of it", "with digests", "without", digests, None)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.question}: {row.ours} against {row.rival}: {row.ratio}")
