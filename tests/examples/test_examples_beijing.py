"""A training killed again and again: it runs on real data, and would tell if it were wrong."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from support.real_data import real_data
from support.store_servers import need

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def real() -> Path:
    need("rocksdb")
    return real_data("beijing_pm25.parquet")


pytestmark = pytest.mark.usefixtures("forked")


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "beijing_job.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_a_few_rounds(real: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(str(real), "--rounds", "3", "--out", str(out), "--dice", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    assert "beijing_pm25.parquet · target pm25 · 32,128 windows" in words
    assert words.count("✔") == 5
    assert "✘" not in words
    assert "3 Killed 3 times with SIGKILL" in words
    assert sorted(path.name for path in out.glob("life*.log")) >= ["life001.log"]
    # The folder is full now: nothing of it is taken for a new run's.
    again = run(str(real), "--rounds", "1", "--out", str(out))
    assert (again.returncode, again.stdout) == (1, "")
    assert f"{out} is not empty, expected a new folder or an empty one" in again.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no.csv"], 1, "file 'no.csv' does not exist"),
        ([__file__], 1, f"{Path(__file__).name}' cannot be read as CSV: "),
        ([__file__, "--save-every", "0"], 2, "expected a whole number from 1 on, found '0'"),
        ([__file__, "--rounds", "-1"], 2, "expected a whole number from 0 on, found '-1'"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    need("rocksdb")
    done = run(*words, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("beijing_lives")


def test_what_is_wrong_is_seen(real: Path, tmp_path: Path, lives: ModuleType) -> None:
    options = argparse.Namespace(
        file=real, out=tmp_path / "out", rounds=0, batch_size=32, seed=3, save_every=2
    )
    show = lives.Lives(options)
    show.prepare()
    assert show.uninterrupted()
    assert len(show.reference) == show.steps == len(show.proofs) - 1
    show.kill("life001", random.Random(1), 0.0, show.steps)
    right, records = lives.Found(), show.records("life001")
    show.look("life001", right)
    assert not right.wrong_steps
    assert not right.wrong_checkpoints
    assert right.step == len(right.served[0]) > 0
    assert len(records) == right.step + right.again
    good = show.reference
    for field in ("loss", "start", "series", "state"):
        show.reference = good.copy()
        show.reference[field][right.step - 1] = good[field][right.step - 1] + 1
        found = lives.Found()
        show.look("life001", found)
        assert found.wrong_steps == ["life001: a step is not that of the uninterrupted run"]
        assert bool(found.wrong_checkpoints) == (field == "state")
    show.reference = good
    show.proofs[right.step] = "00" * 16
    found = lives.Found()
    show.look("life001", found)
    assert found.wrong_checkpoints == [f"life001: the checkpoint of step {right.step} is not right"]
    late = lives.Found(step=right.step + 1)
    show.look("life001", late)
    assert f"step {right.step} is in force, after {right.step + 1}" in late.wrong_checkpoints[-1]
