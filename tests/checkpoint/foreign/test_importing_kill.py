"""Imports and exports that are killed at every write: the former state is in force, or the new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.programs import printed
from support.view_cases import Fresh

SCRIPT = """
import json, sys
import numpy as np, torch
sys.path.append(sys.argv[2])
from support.doomed import Doomed, child
import windeck as wd
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

torch.set_num_threads(1)
url, _, folder = sys.argv[1:]
ids = np.arange(40)
checkpoint.import_, checkpoint.import_table  # imported before the forks

def rows(step):
    return np.full((40, 4), step, np.float32)

def write(step):
    model = {"w": torch.full((2000,), float(step)), "b": torch.full((3,), float(step))}
    torch.save({"state_dict": model, "step": step}, f"{folder}/m.pt")
    np.savez(f"{folder}/t.npz", ids=ids, rows=rows(step))

def imported(step, left):
    write(step)
    table = wd.EmbeddingTable(4, optimizer="sgd", lr=0.1)
    checkpoint.import_table(f"{folder}/t.npz", table, ids="model/ids", rows="model/rows")
    store = open_store(url)
    place = store if left is None else Doomed(store, left)
    checkpoint.import_(f"{folder}/m.pt", place, chunk_bytes=4096, embeddings={"t": table})
    store.close()

def look(step):
    target = {"w": torch.zeros(2000), "b": torch.zeros(3)}
    table = wd.EmbeddingTable(4, optimizer="sgd", lr=0.1)
    found = checkpoint.load(url, model=target, embeddings={"t": table}).step
    assert all((value == found).all() for value in target.values()), target
    assert (table.core.lookup(ids, insert=False) == rows(found)).all()
    assert found in (force[0], step), (found, force, step)
    raise SystemExit(10 + found)

def code_of(step):
    def run():
        try:
            look(step)
        except SystemExit as end:
            import os
            os._exit(end.code)
    return child(run)

assert child(lambda: imported(0, None)) == 0
force, seen = [0], []
for left in range(0, 100, 3):
    step = left + 1
    code = child(lambda: imported(step, left))
    assert code in (0, -9), code
    found = code_of(step) - 10
    assert found >= 0
    seen.append([code, found == step])
    force[0] = found
    if code == 0:
        break
print(json.dumps(seen))
"""


@pytest.mark.usefixtures("forked")
def test_a_killed_import_changes_nothing(fresh: Fresh, tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    seen = json.loads(printed(SCRIPT, fresh("rocksdb"), tests, str(tmp_path)))
    assert [code for code, _ in seen[:-1]] == [-9] * (len(seen) - 1)
    assert len(seen) > 5
    new = [committed for _, committed in seen]
    assert new == sorted(new)  # once it was committed, it stays so
    assert new[-1]


EXPORT = """
import json, os, signal, sys
import torch
sys.path.append(sys.argv[1])
from support.doomed import child
from windeck import checkpoint
from windeck.checkpoint.safetensors import export, import_
from windeck.checkpoint.stores import open_store

folder, store = f"{sys.argv[2]}/out", open_store("memory://")
model = {f"w{i}": torch.full((30,), float(i)) for i in range(4)}
checkpoint.save(store, step=1, model=model)

def doomed(left):
    replace = os.replace
    def counted(*names):
        global left_over
        if left_over == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left_over -= 1
        replace(*names)
    global left_over
    left_over, os.replace = left, counted
    export(store, folder, layout="huggingface", shard_bytes=200)

seen = []
for left in range(10):
    code = child(lambda: doomed(left))
    names = sorted(os.listdir(folder))
    complete = [name for name in names if not name.endswith(".tmp")]
    seen.append([code, len(complete), "model.safetensors.index.json" in complete])
    if code == 0:
        break
import_(folder, store, namespace="again")
target = {name: torch.zeros(30) for name in model}
checkpoint.load(store, model=target, namespace="again")
assert all(torch.equal(target[name], model[name]) for name in model)
print(json.dumps([seen, sorted(os.listdir(folder))]))
"""


@pytest.mark.usefixtures("forked")
def test_a_killed_export_leaves_no_model(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    tests = str(Path(__file__).parents[2])
    seen, left = json.loads(printed(EXPORT, tests, str(tmp_path)))
    # Killed before each of the renames, of four parts and the index.
    assert seen == [[-9, count, False] for count in range(5)] + [[0, 5, True]]
    assert [name for name in left if name.endswith(".json")] == ["model.safetensors.index.json"]
