"""Tests of incremental saves and gc that are killed: each generation of HEAD is complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.programs import printed
from support.store_servers import DURABLE

SCRIPT = """
import json, os, sys
import torch
sys.path.append(sys.argv[2])
from support.doomed import Doomed, child
from support.stored_keys import parsed
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

torch.set_num_threads(1)
url = sys.argv[1]

def model(step):
    '''Chunk i of five says when it was last the turn of i.'''
    w = torch.zeros(5, 1024)
    for i in range(5):
        w[i] = step - (step - i) % 5
    return {"w": w, "b": torch.full((3,), step // 7)}

def save(store, step):
    checkpoint.save(store, step=step, model=model(step), chunk_bytes=4096, incremental=True,
                    takeover=True)

def first():
    with open_store(url) as store:
        for step in range(3):
            save(store, step)

def doomed_save(step, left):
    store = open_store(url)
    save(Doomed(store, left), step)
    store.close()

def doomed_gc(step, left):
    with open_store(url) as store:
        save(store, step)
    store = open_store(url)
    checkpoint.gc(Doomed(store, left), keep=2)
    store.close()

def look(steps, counts):
    with open_store(url) as store:
        log = checkpoint.log(store)
        assert log[0].step in steps, (log, steps)
        assert len(log) in counts, (log, counts)
        for commit in log:
            target = {"w": torch.full((5, 1024), -1.0), "b": torch.full((3,), -1)}
            checkpoint.load(store, model=target, generation=commit.generation)
            wanted = model(commit.step)
            assert all(torch.equal(target[name], wanted[name]) for name in wanted), commit
    os._exit(10 + (log[0].step == steps[-1]))

assert child(first) == 0
force, saves, clears = 2, [], []
for left in range(200):
    step = force + 1
    code = child(lambda: doomed_save(step, left))
    assert code in (0, -9), code
    new = child(lambda: look([force, step], range(100))) - 10
    assert new in (0, 1)
    saves.append([code, new])
    force = step if new else force
    if code == 0:
        break

for left in range(200):
    code = child(lambda: doomed_gc(force + 1, left))
    assert code in (0, -9), code
    assert child(lambda: look([force + 1], range(2, 9 + len(saves)))) == 11
    force += 1
    clears.append(code)
    if code == 0:
        break

def collect():
    with open_store(url) as store:
        assert checkpoint.gc(store, keep=2) == []
        log = checkpoint.log(store)
        kept = {commit.generation for commit in log}
        based = kept.union(*(commit.bases for commit in log))
        found = [*map(parsed, store.keys(b""))]
        left = {letter: {number for one, number in found if one == letter} for letter in "mdt"}
        assert len(log) == 2 and left["m"] == kept and left["d"] == kept, (left, log)
        assert left["t"] == based, (left, log)

assert child(collect) == 0
print(json.dumps([saves, clears]))
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_every_step(kind: str, fresh: Callable[[str], str]) -> None:
    saves, clears = json.loads(printed(SCRIPT, fresh(kind), str(Path(__file__).parents[1])))
    assert [code for code, _ in saves] == [-9] * (len(saves) - 1) + [0]
    assert clears == [-9] * (len(clears) - 1) + [0]
    # NEXT, the load of a chunk or two and of digests, manifest, sync, HEAD, sync.
    assert len(saves) >= 2 + 1 + 1 + 1 + 1 + 2 + 2 + 2 + 2 + 1
    # HEAD, sync, a manifest and some data, at once or one after the other, sync.
    assert len(clears) >= 2 + 2 + (2 if kind == "redis" else 4) + 2 + 1
    # Those up to HEAD leave the former one in force, those after it the new one.
    assert [new for _, new in saves] == [0] * (len(saves) - 4) + [1] * 4
