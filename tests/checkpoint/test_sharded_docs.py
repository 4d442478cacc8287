"""The page on sharded checkpoints: its program runs under torchrun, its other code here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.pages import Page
from support.store_servers import need
from windeck import checkpoint

PAGE = Page("docs/sharded.md")


def torchrun(program: Path, ranks: int) -> str:
    here = str(Path(checkpoint.__file__).parents[2])  # also where PYTHONPATH is relative
    paths = os.pathsep.join([here, *sys.path])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(program)],
        cwd=program.parent, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("forked")
def test_the_program_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    need("rocksdb")
    program = tmp_path / "train.py"
    program.write_text(PAGE.blocks[0], encoding="utf-8")
    assert "rank 1 of 2: steps 0 to 3" in torchrun(program, 2)
    assert "rank 2 of 3: steps 3 to 6" in torchrun(program, 3)
    with checkpoint.open(f"rocksdb://{tmp_path}/runs/nine") as found:
        assert found.step == 6
        assert found.info("model/0.weight").shape == (96, 64)
        assert found.tensor("optimizer/state/0/step") == 6


@pytest.mark.usefixtures("forked")
def test_who_owns_nothing_saves_nothing(tmp_path: Path) -> None:
    need("rocksdb")
    program = tmp_path / "servers.py"
    program.write_text(PAGE.blocks[1], encoding="utf-8")
    torchrun(program, 3)
    with checkpoint.open(f"rocksdb://{tmp_path}/runs/servers") as found:
        assert torch.equal(found.tensor("model/table"), torch.ones(2000, 16))


def test_the_other_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    names = PAGE.run(only=slice(2, 3))
    with checkpoint.open(names["url"]) as found:
        assert torch.equal(found.tensor("model/w")[:, 0], torch.arange(2.0).repeat_interleave(5))


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
