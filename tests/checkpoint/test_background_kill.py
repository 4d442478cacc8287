"""Tests of background saves that are killed while training goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.programs import printed
from support.store_servers import DURABLE

pytestmark = pytest.mark.usefixtures("forked")

START = """
import json, os, signal, sys, threading, time
import torch
import windeck as wd
sys.path.append(sys.argv[2])
from support.doomed import Doomed, child, kill_at_every_step
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

torch.set_num_threads(1)
url = sys.argv[1]

def table(step):
    made = wd.EmbeddingTable(3, optimizer="sgd", lr=1.0, initializer="zeros", threads=1)
    for _ in range(step):
        train_table(made)
    return made

def train_table(made):
    # Rows come and go: in step s there are the ids of s to s + 90, each with its age as value.
    first = made.core.clock
    (-made(torch.arange(first, first + 90))).sum().backward()
    made.step()
    made.core.remove(torch.arange(first).numpy())

def model(step):
    return {"w": torch.full((5000,), float(step)), "b": torch.full((3,), float(step))}

def load():
    target, rows = model(-1), table(0)
    found = checkpoint.load(url, model=target, embeddings={"t": rows}).step
    assert all((value == found).all() for value in target.values()), target
    expected = table(found)
    ids = torch.arange(-5, found + 100)
    assert torch.equal(rows.eval()(ids), expected.eval()(ids)), found
    assert (rows.rows, rows.core.clock) == (expected.rows, expected.core.clock)
    return found
"""

AT_EVERY_STEP = (
    START
    + """
def first():
    with open_store(url) as store:
        checkpoint.save(store, step=0, model=model(0), embeddings={"t": table(0)})

def doomed(step, left):
    store = open_store(url)
    state, rows = model(step), table(step)
    saving = checkpoint.save(
        Doomed(store, left), step=step, model=state, embeddings={"t": rows}, chunk_bytes=4096,
        takeover=True, background=True)
    while not saving.done():
        train_table(rows)
        for tensor in state.values():
            tensor += 1
    saving.wait()
    store.close()

print(json.dumps(kill_at_every_step(first, doomed, load)))
"""
)


@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_every_step(kind: str, fresh: Callable[[str], str]) -> None:
    seen = json.loads(printed(AT_EVERY_STEP, fresh(kind), str(Path(__file__).parents[1])))
    assert [code for code, _ in seen] == [-9] * (len(seen) - 1) + [0]
    # As of a plain save, see `test_kill`, and the block and the index of the table.
    assert len(seen) == 2 + (1 + 1) + 2 + (1 + 6) + 2 + 2 + 2 + 2 + 1
    assert [new for _, new in seen] == [False] * (len(seen) - 4) + [True] * 4


AT_ANY_TIME = (
    START
    + """
def run():
    state, rows = model(-1), table(0)
    try:
        step = checkpoint.load(url, model=state, embeddings={"t": rows}).step
    except FileNotFoundError:
        step = 0
        state = model(0)
    os.write(ready, b"x")
    while True:
        step += 1
        train_table(rows)
        for tensor in state.values():
            tensor += 1
        saving = checkpoint.save(url, step=step, model=state, embeddings={"t": rows}, keep=2,
                                 chunk_bytes=1024, incremental=True, background=True)
        os.write(ready, b"x")

def look():
    try:
        found = load()
    except FileNotFoundError:
        found = 0
    os._exit(1 + found % 250)

last, kills = 0, 0
for turn in range(int(sys.argv[3])):
    got, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)
    os.close(ready)
    for _ in range(2 + turn % 3):
        assert os.read(got, 1), "the run failed"
    time.sleep(turn * 0.0007 % 0.02)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    os.close(got)
    found = child(look)
    assert found > 0
    now = found - 1
    assert now >= last, (now, last)            # no save that was in force is lost
    last = now
print(last)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_any_time(kind: str, fresh: Callable[[str], str]) -> None:
    assert int(printed(AT_ANY_TIME, fresh(kind), str(Path(__file__).parents[1]), "60")) > 10
