"""Tests of killed saves: the current checkpoint is the former or the new one, complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.programs import printed
from support.store_servers import DURABLE

SCRIPT = """
import json, sys
import torch
sys.path.append(sys.argv[2])
from support.doomed import Doomed, child, kill_at_every_step
from support.stored_keys import data_generations
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

torch.set_num_threads(1)
url = sys.argv[1]

def model(step):
    return {"w": torch.full((5000,), float(step)), "b": torch.full((3,), float(step))}

def first():
    with open_store(url) as store:
        checkpoint.save(store, step=0, model=model(0))

def doomed(step, left):
    store = open_store(url)
    checkpoint.save(Doomed(store, left), step=step, model=model(step), chunk_bytes=4096,
                    takeover=True)
    store.close()

def load():
    target = model(-1)
    found = checkpoint.load(url, model=target).step
    assert all((value == found).all() for value in target.values()), target
    return found

seen = kill_at_every_step(first, doomed, load)

def collect():
    with open_store(url) as store:
        checkpoint.gc(store, keep=1)
        kept = {c.generation for c in checkpoint.log(store)}
        left = data_generations(store)
        assert left == kept, (left, kept)

assert child(collect) == 0
print(json.dumps(seen))
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_every_step(kind: str, fresh: Callable[[str], str]) -> None:
    seen = json.loads(printed(SCRIPT, fresh(kind), str(Path(__file__).parents[1])))
    # NEXT, the load and its six chunks, manifest, sync, HEAD, sync: killed before and after.
    assert [code for code, _ in seen] == [-9] * (len(seen) - 1) + [0]
    assert len(seen) == 2 + 1 + 6 + 2 + 2 + 2 + 2 + 1
    # All up to HEAD leave the former one in force, all after it the new one.
    assert [new for _, new in seen] == [False] * (len(seen) - 4) + [True] * 4
