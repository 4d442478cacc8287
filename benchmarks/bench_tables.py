"""Time of a save and a load of an embedding table, against safetensors.

A table of 200,000 rows of 64 float32 with random ids, and 256 MB of dense tensors. safetensors has
the same columns: ids, versions, counts, clocks, flags and rows. A load of them reads the file and
inserts the columns into a new table in one call, in the order of ids in a snapshot, as they would
be exported, or in random order. Saves go to a path where nothing was, and end with fsync on both
sides. Loads find their file in the page cache. The default store, RocksDB, in a local folder.

Peak memory: of a new process that saves or loads, above its peak just before that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from measure import Costs, Row, compare_costs, limited

import windeck
from windeck import checkpoint

COUNT, DIM, ROUNDS = 200_000, 64, 11
ROW_BYTES = 4 * DIM + 33
#: Wanted, as times of the rival over ours.
SAVE, LOAD, DENSE = 0.8, 1 / 1.3, 1.0
#: MiB above the table that a save or a load may need.
EXTRA_MEMORY = 48


def make_columns(*, sort: bool) -> dict[str, Any]:
    """Columns of a table, as `EmbeddingCore.insert` takes them."""
    draw = np.random.default_rng(0)
    ids = draw.integers(-(2**62), 2**62, COUNT)
    numbers = {name: np.ones(COUNT, np.int64) for name in ("versions", "frequencies", "seen")}
    values = draw.standard_normal((COUNT, DIM), dtype=np.float32)
    columns = {"keys": ids, **numbers, "admitted": np.ones(COUNT, bool), "values": values}
    if not sort:
        return columns
    table = filled(columns)
    with table.core.snapshot() as snapshot:
        found: dict[str, Any] = snapshot.read(0, 1024)
    return found


def filled(columns: dict[str, Any]) -> windeck.EmbeddingTable:
    """Return a new table with these rows."""
    table = windeck.EmbeddingTable(DIM, optimizer="sgd")
    table.core.insert(**columns)
    table.core.set_clock(1)
    return table


class Place:
    """A folder with a database and a file."""

    def __init__(self, folder: Path) -> None:
        self._database, self.file = folder / "database", folder / "table.safetensors"
        self.url = f"rocksdb://{self._database}"

    def clear(self) -> None:
        """Remove both; what that leaves for the file system to do is done, not left to be timed."""
        shutil.rmtree(self._database, ignore_errors=True)
        self.file.unlink(missing_ok=True)
        os.sync()

    def save_file(self, tensors: dict[str, torch.Tensor]) -> None:
        safetensors.torch.save_file(tensors, self.file)
        handle = os.open(self.file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def load_file(self) -> windeck.EmbeddingTable:
        found = safetensors.torch.load_file(self.file)
        return filled({name: value.numpy() for name, value in found.items()})

    def save(self, table: windeck.EmbeddingTable) -> None:
        checkpoint.save(self.url, step=1, embeddings={"t": table})

    def load(self) -> windeck.EmbeddingTable:
        table = windeck.EmbeddingTable(DIM, optimizer="sgd")
        checkpoint.load(self.url, embeddings={"t": table})
        return table


def told(question: str, where: str, rival: str, costs: Costs, needed: float) -> Iterator[Row]:
    ours = "RocksDB, synced" if "save" in question else "RocksDB, every byte checked"
    yield Row(f"{question} ({where})", ours, rival, costs.wall, needed)
    yield Row(f"{question} ({where}, processor time)", ours, rival, costs.cpu, None)


def tables(place: Place, where: str) -> Iterator[Row]:
    for sort in (True, False):
        columns = make_columns(sort=sort)
        tensors = {name: torch.from_numpy(value) for name, value in columns.items()}
        table = filled(columns)
        order = "ids in the order of a snapshot" if sort else "ids in random order"
        costs = compare_costs(
            lambda table=table: place.save(table),
            lambda tensors=tensors: place.save_file(tensors),
            before=place.clear, rounds=ROUNDS, twice=True,
        )  # fmt: skip
        question = f"save a table of {COUNT:,} x {DIM}, {order}"
        yield from told(question, where, "safetensors + fsync", costs, SAVE)
        place.clear()
        place.save(table)
        place.save_file(tensors)
        loaded = place.load()
        assert len(loaded.core) == COUNT
        assert np.array_equal(loaded.core.row_values(columns["keys"]), columns["values"])
        costs = compare_costs(place.load, place.load_file, rounds=ROUNDS)
        rival = "safetensors + one insert"
        yield from told(question.replace("save", "load"), where, rival, costs, LOAD)


def dense(place: Place, where: str) -> Iterator[Row]:
    model = {f"layer {i}": torch.randn(2048, 1024) for i in range(32)}
    target = {name: torch.zeros_like(value) for name, value in model.items()}

    def save() -> None:
        checkpoint.save(place.url, step=1, model=model)

    def load() -> None:
        checkpoint.load(place.url, model=target)

    def copy() -> None:
        for name, value in safetensors.torch.load_file(place.file).items():
            target[name].copy_(value)

    costs = compare_costs(
        save, lambda: place.save_file(model), before=place.clear, rounds=ROUNDS, twice=True
    )
    yield from told("save 256 MB of tensors", where, "safetensors + fsync", costs, DENSE)
    place.clear()
    save()
    place.save_file(model)
    load()
    assert all(torch.equal(target[name], value) for name, value in model.items())
    costs = compare_costs(load, copy, rounds=ROUNDS)
    yield from told("load 256 MB of tensors", where, "safetensors, copied", costs, DENSE)


def peak_memory(place: Place) -> Iterator[Row]:
    """Peak of a new process above what it had before, in MiB; for a load without the table."""

    def measured(prepare: str, action: str) -> float:
        program = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "import bench_tables as b\n"
            "from pathlib import Path\n"
            "def status(name):\n"
            "    lines = open('/proc/self/status').read().splitlines()\n"
            "    return [int(x.split()[1]) for x in lines if x.startswith(name)][0] / 1024\n"
            f"place = b.Place(Path({str(place.file.parent)!r}))\n"
            "b.checkpoint.save('memory://', step=1, model={'w': b.torch.ones(1)})\n"
            f"{prepare}\n"
            "open('/proc/self/clear_refs', 'w').write('5')\n"
            "before = status('VmRSS')\n"
            f"{action}\n"
            "print(status('VmHWM') - before)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    place.clear()
    saves: Callable[[], float] = lambda: measured(  # noqa: E731
        "place.clear(); table = b.filled(b.make_columns(sort=False))", "place.save(table)"
    )
    yield limited(
        "peak memory of a save, MiB", [saves() for _ in range(3)], EXTRA_MEMORY, "allowed"
    )
    whole = COUNT * ROW_BYTES / 2**20
    found = [measured("", "table = place.load()") - whole for _ in range(3)]
    yield limited(
        "peak memory of a load above the table's bytes, MiB", found, EXTRA_MEMORY, "allowed"
    )


def rows() -> Iterator[Row]:
    for where, parent in (("tmpfs", "/dev/shm"), ("disk", os.environ.get("WINDECK_BENCH_DISK"))):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            place = Place(Path(folder))
            yield from tables(place, where)
            yield from dense(place, where)
            if where == "tmpfs":
                yield from peak_memory(place)
