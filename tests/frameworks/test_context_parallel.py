"""The recipe for context parallelism in docs/frameworks.md: killed, resumed on other meshes."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from collections import Counter
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, embedding

import windeck as wd
from support.launched import launch
from support.real_corpus import sources, write
from support.recipes import blocks

pytest.importorskip("torch.distributed.device_mesh")

LENGTH, GLOBAL_BATCH, EOS = 64, 8, 256
CORPUS = Path("out/text/stdlib-corpus")
KEYS = ("inputs", "targets", "position_ids", "document_ids")

#: Put before the page's script.
BEFORE = """
import json, signal
torch.set_default_dtype(torch.float64)
def trained(step, part, columns, dp, cp):
    found = {key: value.tolist() for key, value in part.items()}
    place = {"step": step, "columns": columns.tolist(), "dp": dp.get_local_rank()}
    with open(f"log-{dist.get_rank()}", "a") as file:
        file.write(json.dumps({**found, **place}) + "\\n")
    if step == int(os.environ["KILL_AT"]) and dist.get_rank() == 1:
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
AFTER_STEP = "    optimizer.step()\n"
TRAINED = "    trained(loader.step, part, columns, dp, cp)\n"
LOADED = "check_shared(loader, cp)\n"
#: Put after the check under torchrun: mistakes that are noticed, and torch's own columns.
MISTAKES = """
def raised(kind, function):
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")
assert "2 ranks on the axis 'cp'" in raised(ValueError, lambda: wd.Loader(packed, batch_size=2))
per_process = wd.Loader(packed, batch_size=2, rank=dist.get_rank(), world_size=4)
assert "different batches" in raised(RuntimeError, lambda: check_shared(per_process, cp))
assert "8 chunks" not in raised(ValueError, lambda: balanced_columns(66, 0, 2))
if dist.get_rank() == 3:  # one rank is enough, as the import takes long
    from torch.distributed.tensor.experimental import context_parallel
    first = loader.peek()
    buffers = [first["inputs"].clone(), first["position_ids"].clone()]
    with context_parallel(cp, buffers=buffers, buffer_seq_dims=[1, 1]):
        for key, buffer in zip(("inputs", "position_ids"), buffers):
            assert torch.equal(buffer, first[key][:, columns])
"""
END = "dist.destroy_process_group()\n"
SAVED = 'if dist.get_rank() == 0:\n    torch.save(model.state_dict(), "trained.pt")\n'


def texts() -> list[bytes]:
    """Return the shortest files of Python's library, enough for some 14 global batches."""
    shortest = sorted((path.read_bytes() for path in chain(*sources().values())), key=len)
    sizes = accumulate(map(len, shortest))
    return [text for text, size in zip(shortest, sizes, strict=True) if size < 7500]


def prepare(folder: Path) -> wd.PackedSequences:
    """Write the corpus and the scripts; return the sequences."""
    for part in range(2):
        path = folder / CORPUS / "dataset=stdlib-short" / f"x.part{part}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        write("batches", path, texts()[part::2])
    (script,) = blocks("Context and tensor parallelism")
    for mark, after in ((AFTER_STEP, TRAINED), (LOADED, ""), (END, "")):
        assert script.count(mark) == 1
        script = script.replace(mark, mark + after)
    script = script.replace("shared = int", f"{BEFORE}\nshared = int", 1)
    script = script.replace(END, SAVED + END)
    (folder / "train.py").write_text(script)
    (folder / "first.py").write_text(script.replace(LOADED, LOADED + MISTAKES))
    documents = wd.Documents(folder / CORPUS)
    return wd.PackedSequences(
        documents, sequence_length=LENGTH, eos=EOS, order="mixed", keys=["document_ids"]
    )


def under_torchrun(folder: Path, shared: int, kill_at: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "KILL_AT": str(kill_at), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--nproc-per-node=4", "first.py", str(shared)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    # torchrun's own report may be lost: its agent may fail as it ends ranks that are gone.
    assert done.returncode, done.stderr
    assert (folder / "killed").exists(), done.stderr
    assert "AssertionError" not in done.stderr, done.stderr


def script(folder: Path, shared: int, kill_at: int) -> None:
    """Run the script in a rank that `launch` started."""
    os.chdir(folder)
    os.environ["KILL_AT"] = str(kill_at)
    sys.argv = ["train.py", str(shared)]
    runpy.run_path("train.py", run_name="__main__")


def batches(folder: Path, shared: int, steps: range) -> list[dict[str, Any]]:
    """Return the global batch of each step, put together from the slices of 4 ranks."""
    logs = []
    for rank in range(4):
        path = folder / f"log-{rank}"
        # A rank may have been killed while it wrote its last line.
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        logs.append({line["step"]: line for line in lines})
        path.unlink()
    found = []
    for step in steps:
        parts: dict[int, list[Any]] = {}
        for log in logs:
            parts.setdefault(log[step]["dp"], []).append(log[step])
        assert sorted(parts) == list(range(4 // shared))
        whole: dict[str, Any] = {key: [] for key in KEYS}
        for dp in sorted(parts):
            peers = parts[dp]
            assert len(peers) == shared
            # The columns of the ranks of one axis are all columns, once each.
            columns = list(chain(*(peer["columns"] for peer in peers)))
            assert sorted(columns) == list(range(LENGTH))
            for peer in peers:  # equal work: sums of columns are equal
                assert 2 * sum(peer["columns"]) == (LENGTH - 1) * len(peer["columns"])
            for key in KEYS:
                rows = torch.cat([torch.tensor(peer[key]) for peer in peers], 1)
                whole[key].append(rows[:, torch.tensor(columns).argsort()])
        found.append({key: torch.cat(rows) for key, rows in whole.items()})
    return found


def train_alone(steps: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Train the page's model on one rank with whole batches; return its weights."""
    torch.manual_seed(0)
    double = torch.float64
    tokens = torch.nn.Embedding(300, 8, dtype=double)
    out = torch.nn.Linear(8, 300, dtype=double)
    weights = [tokens.weight, out.weight, out.bias]
    waves = torch.outer(torch.arange(LENGTH).double(), 0.3 ** torch.arange(8).double()).sin()
    for batch in steps:
        hidden = tokens(batch["inputs"]) + embedding(batch["position_ids"], waves)
        loss = cross_entropy(out(hidden).flatten(0, 1), batch["targets"].flatten())
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data -= 0.5 * slope
    names = ("0.weight", "1.weight", "1.bias")
    return {name: weight.data for name, weight in zip(names, weights, strict=True)}


@pytest.mark.usefixtures("forked")
def test_meshes_are_killed_and_resumed_by_others(tmp_path: Path) -> None:
    packed = prepare(tmp_path)
    steps = len(packed) // GLOBAL_BATCH
    assert steps > 10
    # (2, 2) is saved at step 4 and killed at 6, (1, 4) saved at 8 and killed at 9, (4, 1) ends.
    under_torchrun(tmp_path, 2, kill_at=6)
    found = batches(tmp_path, 2, range(1, 5))
    codes = launch(4, script, tmp_path, 4, 9)
    assert -signal.SIGKILL in codes
    found += batches(tmp_path, 4, range(5, 9))
    assert launch(4, script, tmp_path, 1, 0) == [0] * 4
    found += batches(tmp_path, 1, range(9, steps + 1))

    # Every sequence of the epoch is served once, in order, by the ranks of the axis "dp".
    rows = packed.at_epoch(0, seed=42).gather(range(steps * GLOBAL_BATCH))
    assert len(found) == steps
    for key in ("inputs", "targets", "position_ids"):
        served = torch.cat([batch[key] for batch in found])
        assert torch.equal(served, torch.from_numpy(rows[key]))
    for batch in found[:4]:
        # Ids count within the batch of an axis; they change where positions begin again.
        changed = batch["document_ids"].diff(dim=1) != 0
        assert torch.equal(changed, batch["position_ids"][:, 1:] == 0)

    # Each token of the files was followed by its next one, once; a remainder was left out.
    pairs = Counter(pair for text in texts() for pair in pairwise([*text, EOS]))
    inputs, targets = (
        chain(*(batch[key].flatten().tolist() for batch in found)) for key in KEYS[:2]
    )
    trained = Counter(pair for pair in zip(inputs, targets, strict=True) if pair[0] != EOS)
    assert not trained - pairs
    tokens = sum(len(text) + 1 for text in texts())
    assert (pairs - trained).total() < tokens - steps * GLOBAL_BATCH * LENGTH
    assert (tokens - 1) // (GLOBAL_BATCH * LENGTH) == steps

    weights = torch.load(tmp_path / "trained.pt")
    for name, weight in train_alone(found).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-9)
