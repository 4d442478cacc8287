"""Time of `windeck view URL ls` for a model of 10,000 tensors and 100 GB.

Such a model is not made: its manifest is, by the code that makes that of every save, of tensors
that have a shape and no memory; and no chunk is there. `ls` would not miss them.

Every figure is CPU in a process of its own, as a user has it: what one process does again and again
finds memory that was touched before, which is half of the cost.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import Ratio, Row

import windeck
from windeck.checkpoint.format.boxes import Partition
from windeck.checkpoint.sharded_saving import describe_shard
from windeck.checkpoint.stores import open_store
from windeck.checkpoint.write.local_state import LocalState, StateWriter
from windeck.checkpoint.write.merging import merge_shards
from windeck.checkpoint.write.plans import Plan, begin, finish

TENSORS = 10_000
SHAPE, TINY = (1250, 2000), (1, 1)  # float32: 10 MB, and 4 bytes
RANKS = 8
ALLOWED_SECONDS = 0.1
ROUNDS = 21
#: What pip writes where a package is installed.
SCRIPT = """\
import sys
from windeck.cli.main import process
if __name__ == "__main__":
    sys.argv[0] = sys.argv[0].removesuffix(".exe")
    sys.exit(process())
"""
#: The command alone: from opening the store to closing it, all imported before.
ALONE = """\
import sys, time
import windeck.checkpoint.stores.rocksdb
from windeck.cli import ls
from windeck.cli.main import view_parser
parser = view_parser(["ls"])[1]["ls"]
arguments = parser.parse_in_any_order([], ls.Namespace(url=sys.argv[1]))
begun = time.process_time()
ls.run(arguments)
sys.stdout.flush()
print(time.process_time() - begun, file=sys.stderr)
"""
PARTS = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.up", "mlp.gate", "mlp.down", "norm")


def state(tensors: int, shape: Sequence[int], rank: int, ranks: int) -> LocalState:
    """Part of one of so many ranks of a model: rows of each tensor, all the same element."""
    rows = [shape[0] * at // ranks for at in (rank, rank + 1)]
    names = [f"blocks.{i // 8}.{PARTS[i % 8]}.weight" for i in range(tensors)]
    own = (torch.zeros(1, 1).expand(rows[1] - rows[0], *shape[1:]) for _ in names)
    offset = rows[0], *[0] * (len(shape) - 1)
    parts = (Partition(part, offset=offset, shape=shape) if ranks > 1 else part for part in own)
    return LocalState({"model": dict(zip(names, parts, strict=True))}, alone=ranks == 1)


def shard(plan: Plan, rank: int, own: LocalState) -> dict[str, Any]:
    """Manifest of a rank that wrote nothing."""
    values = StateWriter(
        plan.namespace, plan.generation, plan.save, own,
        chunk_bytes=plan.chunk_bytes, writer=rank, writers=plan.writers,
    )  # fmt: skip
    return describe_shard(plan, rank, own, values)


@contextmanager
def store(tensors: int, shape: Sequence[int], ranks: int = 1) -> Iterator[str]:
    """The URL of a RocksDB with the checkpoint of such a model, but for its chunks."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"rocksdb://{folder}/db"
        with open_store(url) as place:
            plan = begin(place, step=1, writers=ranks)
            shards = [shard(plan, i, state(tensors, shape, i, ranks)) for i in range(ranks)]
            finish(place, plan, merge_shards(shards, plan))
        yield url


def alone(url: str, settings: Mapping[str, str]) -> float:
    """CPU of the command, from opening the store to closing it, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, url],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=settings,
    )  # fmt: skip
    return float(done.stderr)


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


def quartiles(clocks: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Of each clock the quartiles of many calls, taken in turns, after two to warm up."""
    found: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(2 + ROUNDS):
        for name, clock in clocks.items():
            found[name].append(clock())
    return {name: statistics.quantiles(each[2:], n=4) for name, each in found.items()}


def rows() -> Iterator[Row]:
    question = f"ls of {TENSORS:,} tensors, 100 GB"
    with ExitStack() as stack:
        url, tiny, single, ranked = (
            stack.enter_context(store(*of))
            for of in ((TENSORS, SHAPE), (TENSORS, TINY), (1, SHAPE), (TENSORS, SHAPE, RANKS))
        )
        script, settings = stack.enter_context(installed())
        ls = (sys.executable, script, "view", url, "ls")
        told = subprocess.run(
            [*ls, "--flat"], check=True, capture_output=True, text=True, env=settings
        )
        assert told.stdout.splitlines()[0].endswith("10,000 tensors  100 GB")
        assert len(told.stdout.splitlines()) == TENSORS + 1
        found = quartiles({
            "command": lambda: alone(url, settings),
            "tiny": lambda: alone(tiny, settings),
            "ranked": lambda: alone(ranked, settings),
            "whole": lambda: process(*ls, settings=settings),
            "single": lambda: process(*ls[:3], single, "ls", settings=settings),
            "bare": lambda: process(sys.executable, "-c", "pass", settings=settings),
        })  # fmt: skip
    allowed = f"{ALLOWED_SECONDS * 1000:.0f} ms allowed"
    for name, what, needed in (
        ("command", "the command, imports not counted", 1.0),
        ("ranked", f"the same, saved by {RANKS} ranks", None),
        ("whole", "a whole process, interpreter and imports counted", None),
        ("single", "a whole process, of one tensor", None),
        ("bare", "the interpreter alone, nothing to do", None),
    ):
        low, middle, high = found[name]
        spread = [ALLOWED_SECONDS / each for each in (middle, high, low)]
        yield Row(
            question, f"{what}: {cpu(found[name])}", allowed,
            Ratio(*spread, middle, ALLOWED_SECONDS), needed,
        )  # fmt: skip
    # Time is that of the manifest: as much for 40 kB of values as for 100 GB.
    times = found["tiny"][1] / found["command"][1]
    assert 0.5 < times < 2, f"40 kB took {cpu(found['tiny'])}, 100 GB {cpu(found['command'])}"
    yield Row(
        question, f"100 GB: {cpu(found['command'])}", f"the same of 40 kB: {cpu(found['tiny'])}",
        Ratio(times, times, times, found["command"][1], found["tiny"][1]), None,
    )  # fmt: skip


def cpu(found: Sequence[float]) -> str:
    """Quartiles as they are told."""
    low, middle, high = (f"{1000 * each:.0f}" for each in found)
    return f"{middle} ms of CPU ({low} to {high})"
