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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

from measure import Ratio, Row, limit

import windeck
from windeck.checkpoint.stores import open_store
from windeck.checkpoint.writers.committing import commit, reserve
from windeck.tools.view import looking

TENSORS = 10_000
SHAPE, TINY = (1250, 2000), (1, 1)  # float32: 10 MB, and 4 bytes
ALLOWED_SECONDS = 0.1
ROUNDS = 15
#: What pip writes where a package is installed.
SCRIPT = """\
import sys
from windeck.tools.cli import process
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit(process())
"""
PARTS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.gate", "mlp.down", "norm")


def manifest(tensors: int, shape: Sequence[int]) -> dict[str, object]:
    """Of a model of so many tensors, saved by one process."""
    names = [f"blocks.{i // 8}.{PARTS[i % 8]}.weight" for i in range(tensors)]
    box = [[0, size] for size in shape]
    entries = [
        {
            "name": f"model/{name}",
            "dtype": "float32",
            "shape": [*shape],
            "parts": [{"box": box, "writer": 0, "item": item}],
        }
        for item, name in enumerate(names)
    ]
    tree = {"dict": [[name, {"tensor": f"model/{name}"}] for name in names]}
    return {"chunk_bytes": 1 << 20, "tensors": entries, "trees": {"model": tree}}


@contextmanager
def store(tensors: int, shape: Sequence[int]) -> Iterator[str]:
    """The URL of a RocksDB with such a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"rocksdb://{folder}/db"
        with open_store(url) as place:
            number = reserve(place, "windeck", [])
            commit(
                place, "windeck", manifest(tensors, shape),
                generation=number, save=1, step=1, head=(None, []),
            )  # fmt: skip
        yield url


def inside(url: str) -> float:
    """CPU of the command in this process, from opening the store to closing it."""
    begun = time.process_time()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        looking.ls(url)
    return time.process_time() - begun


def process(*command: str, settings: Mapping[str, str]) -> float:
    """CPU of a process of its own, all that it does from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=settings)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@contextmanager
def installed() -> Iterator[tuple[str, dict[str, str]]]:
    """The script that an installation makes of the entry point; settings with compiled imports."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/windeck"
        Path(script).write_text(SCRIPT)
        unset = {"PYTHONDONTWRITEBYTECODE"}
        settings = {name: value for name, value in os.environ.items() if name not in unset}
        settings["PYTHONPATH"] = str(Path(windeck.__file__).parents[1])
        settings["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        yield script, settings


def medians(clocks: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Of each clock the median of many calls, taken in turns, after two to warm up."""
    found: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(2 + ROUNDS):
        for name, clock in clocks.items():
            found[name].append(clock())
    return {name: statistics.median(each[2:]) for name, each in found.items()}


def rows() -> Iterator[Row]:
    question = f"ls of {TENSORS:,} tensors, 100 GB"
    with ExitStack() as stack:
        url, tiny, single = (
            stack.enter_context(store(*of))
            for of in ((TENSORS, SHAPE), (TENSORS, TINY), (1, SHAPE))
        )
        script, settings = stack.enter_context(installed())
        ls = (sys.executable, script, "view", url, "ls")
        told = subprocess.run(
            [*ls, "--flat"], check=True, capture_output=True, text=True, env=settings
        )
        assert told.stdout.splitlines()[0].endswith("10,000 tensors  100 GB")
        assert len(told.stdout.splitlines()) == TENSORS + 1
        found = medians({
            "command": lambda: inside(url),
            "tiny": lambda: inside(tiny),
            "whole": lambda: process(*ls, settings=settings),
            "single": lambda: process(*ls[:3], single, "ls", settings=settings),
            "bare": lambda: process(sys.executable, "-c", "pass", settings=settings),
        })  # fmt: skip
    told_of = {name: f"{each * 1000:.0f} ms of CPU" for name, each in found.items()}
    allowed = f"{ALLOWED_SECONDS * 1000:.0f} ms allowed"
    for name, what, needed in (
        ("command", "the command, imports not counted", 1.0),
        ("whole", "a whole process, interpreter and imports counted", None),
        ("single", "a whole process, of one tensor", None),
        ("bare", "the interpreter alone, nothing to do", None),
    ):
        ratio = limit(found[name], ALLOWED_SECONDS)
        yield Row(question, f"{what}: {told_of[name]}", allowed, ratio, needed)
    # Time is that of the manifest: as much for 40 kB of values as for 100 GB.
    times = found["tiny"] / found["command"]
    assert 0.5 < times < 2, f"40 kB took {told_of['tiny']}, 100 GB {told_of['command']}"
    yield Row(
        question, f"100 GB: {told_of['command']}", f"the same of 40 kB: {told_of['tiny']}",
        Ratio(times, times, times, found["command"], found["tiny"]), None,
    )  # fmt: skip
