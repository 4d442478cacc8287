"""The recipe for DistributedDataParallel in docs/frameworks.md, under torchrun with gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import windeck as wd
from support.recipes import blocks

#: Logs the samples of each step of a rank, and kills rank 1 at a step.
LOG = """
import json, signal
def trained(batch, step):
    samples = (batch["past_target"][:, 0, 0] * 503).round().int().tolist()
    with open(f"log-{dist.get_rank()}", "a") as file:
        file.write(json.dumps([step, samples]) + "\\n")
    if step == int(os.environ["KILL_AT"]) and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
AFTER = "        optimizer.step()\n"
SIZE, BATCH, EPOCHS = 480, 16, 2


def run(folder: Path, ranks: int, kill_at: int = 0) -> list[list[int]]:
    """Run the page's script; return the samples of each step, of all ranks in their order."""
    folder.mkdir(exist_ok=True)
    (script,) = blocks("DistributedDataParallel")
    assert script.count(AFTER) == 1
    script = script.replace("dist.init_process", LOG + "dist.init_process", 1)
    script = script.replace(AFTER, AFTER + "        trained(batch, loader.step)\n")
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", "train.py"],
        cwd=folder,
        env={**os.environ, "KILL_AT": str(kill_at), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == bool(kill_at), done.stderr
    logs = []
    for rank in range(ranks):
        log = folder / f"log-{rank}"
        logs.append(dict(json.loads(line) for line in log.read_text().splitlines()))
        log.unlink()
    steps = sorted(set.intersection(*map(set, logs)))
    return [sum((log[step] for log in logs), []) for step in steps]  # noqa: RUF017


@pytest.mark.usefixtures("forked")
def test_a_run_is_killed_and_resumed_by_another_number_of_ranks(tmp_path: Path) -> None:
    order = [
        int(sample)
        for epoch in range(EPOCHS)
        for sample in wd.Permutation(SIZE, seed=7, epoch=epoch).take(np.arange(SIZE))
    ]
    whole = run(tmp_path / "whole", 2)
    assert [sample for step in whole for sample in step] == order
    assert {len(step) for step in whole} == {2 * BATCH}
    # Saved at step 6, killed at step 8.
    first = run(tmp_path / "killed", 2, kill_at=8)[:6]
    rest = run(tmp_path / "killed", 3)
    assert {len(step) for step in rest} == {3 * BATCH}
    assert [sample for step in first + rest for sample in step] == order
