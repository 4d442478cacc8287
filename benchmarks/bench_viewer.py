"""How long does `windeck view URL ls` take for a model of 10,000 tensors and 100 GB?

Such a model is not made: its manifest is, by the code that commits every save, and no chunk is
there. `ls` would not miss them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from measure import Row, limit

from windeck.checkpoint.stores import open_store
from windeck.checkpoint.writers.committing import commit, reserve
from windeck.tools.view import looking

TENSORS, SHAPE = 10_000, [1250, 2000]  # float32: 10 MB each
ALLOWED_SECONDS = 0.1
ROUNDS = 15
PARTS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.gate", "mlp.down", "norm")


def manifest(tensors: int) -> dict[str, object]:
    """Of a model of so many tensors, saved by one process."""
    names = [f"blocks.{i // 8}.{PARTS[i % 8]}.weight" for i in range(tensors)]
    box = [[0, size] for size in SHAPE]
    entries = [
        {
            "name": f"model/{name}",
            "dtype": "float32",
            "shape": SHAPE,
            "parts": [{"box": box, "writer": 0, "item": item}],
        }
        for item, name in enumerate(names)
    ]
    tree = {"dict": [[name, {"tensor": f"model/{name}"}] for name in names]}
    return {"chunk_bytes": 1 << 20, "tensors": entries, "trees": {"model": tree}}


@contextmanager
def store(tensors: int) -> Iterator[str]:
    """The URL of a RocksDB with such a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"rocksdb://{folder}/db"
        with open_store(url) as place:
            number = reserve(place, "windeck", [])
            commit(
                place, "windeck", manifest(tensors),
                generation=number, save=1, step=1, head=(None, []),
            )  # fmt: skip
        yield url


def inside(url: str) -> float:
    """CPU of the command in this process, from opening the store to closing it."""
    begun = time.process_time()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        looking.ls(url)
    return time.process_time() - begun


def whole(url: str, compiled: str) -> float:
    """CPU of a process of its own, the interpreter and all imports counted.

    Imports are of compiled files, as after an installation.
    """
    unset = {"PYTHONDONTWRITEBYTECODE"}
    settings = {name: value for name, value in os.environ.items() if name not in unset}
    settings["PYTHONPYCACHEPREFIX"] = compiled
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "windeck.tools.cli", "view", url, "ls"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def rows() -> Iterator[Row]:
    question = f"ls of {TENSORS:,} tensors, 100 GB"
    with store(TENSORS) as url, store(1) as small, tempfile.TemporaryDirectory() as compiled:
        told = subprocess.run(
            [sys.executable, "-m", "windeck.tools.cli", "view", url, "ls", "--flat"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert told.stdout.splitlines()[0].endswith("10,000 tensors  100 GB")
        assert len(told.stdout.splitlines()) == TENSORS + 1
        for clock, what, needed in (
            (inside, "the command, imports not counted", 1.0),
            (lambda url: whole(url, compiled), "a whole process", None),
        ):
            for _ in range(2):
                clock(url)
            found = statistics.median(clock(url) for _ in range(ROUNDS))
            idle = statistics.median(clock(small) for _ in range(ROUNDS))
            ours = f"{what}: {found * 1000:.0f} ms of CPU ({idle * 1000:.0f} ms for one tensor)"
            yield Row(question, ours, "100 ms allowed", limit(found, ALLOWED_SECONDS), needed)
