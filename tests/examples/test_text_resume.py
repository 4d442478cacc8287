"""Runs over real token files on 4 ranks, killed at random, gone on with 1, 2, 3, 6 and 12.

Every rank is a process. SIGKILL comes at random moments; the run goes on from the last state that
all ranks had saved, and every batch that any rank ever logged has to be, token for token, what the
oracle says an uninterrupted run serves there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.text_mixtures import Mixed
from support.text_runs import SETTINGS, batch_of, batches, corpora_of, mixture_of, write_corpora

pytest.importorskip("torch")

HERE = Path(__file__).parents[1]
WORLDS = (4, 1, 2, 3, 6, 12)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    "OMP_NUM_THREADS": "1",
}


def start(folder: Path, leg: int, world: int, until: int) -> subprocess.Popen[str]:
    program = HERE / "support" / "killed_text_run.py"
    command = [sys.executable, str(program), str(folder), f"--leg={leg}"]
    return subprocess.Popen(
        [*command, f"--world={world}", f"--until={until}"],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def run_and_kill(folder: Path, leg: int, world: int, rng: Random) -> None:
    """One leg, all of whose ranks are killed, one after the other, at random moments."""
    with start(folder, leg, world, until=2**40) as launcher:
        assert launcher.stdout is not None
        ranks: list[int] = []
        steps, wanted = dict.fromkeys(range(world), 0), rng.randrange(6, 30)
        while not ranks or min(steps.values()) < wanted:
            first, *numbers = launcher.stdout.readline().split()
            if first == "ranks":
                ranks = [int(number) for number in numbers]
            else:
                steps[int(first)] += 1
        for rank in rng.sample(ranks, world):
            time.sleep(rng.random() * 0.01)
            os.kill(rank, signal.SIGKILL)
        launcher.stdout.read()
    assert launcher.returncode == 1


def last_state(folder: Path, leg: int, world: int) -> dict[str, Any]:
    """The last state that all ranks had reached; of one step all ranks saved the same."""
    states = [
        json.loads((folder / f"leg{leg}.rank{rank}.json").read_text()) for rank in range(world)
    ]
    by_step = {state["step"]: state for state in states}
    assert all(by_step[state["step"]] == state for state in states)
    return dict(by_step[min(by_step)])


def logged(path: Path) -> list[dict[str, Any]]:
    """The batches in a log; a line that a kill cut off is none."""
    whole = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


def check_leg(
    folder: Path, leg: int, world: int, began: dict[str, Any], served: Mixed, batch_size: int
) -> int:
    """Every batch of every rank against the oracle; the steps that were looked at."""
    logs = [logged(folder / f"leg{leg}.rank{rank}.jsonl") for rank in range(world)]
    dealt = batches(served, began["position"], batch_size, world)
    for number in range(max(len(log) for log in logs)):
        shares, _ = next(dealt)
        for rank, log in enumerate(logs):
            if number < len(log):
                expected = {"step": began["step"] + number, **batch_of(shares[rank])}
                assert log[number] == expected, f"leg {leg}, rank {rank}, step {number}"
    return min(len(log) for log in logs)


def interrupted(folder: Path, worlds: tuple[int, ...], seed: int) -> list[int]:
    """A run of one leg for each world size, all but the last killed; where it was taken up."""
    rng = Random(seed)
    corpora = corpora_of(seed)
    write_corpora(corpora, folder / "corpus")
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    served = mixture_of(SETTINGS, corpora)
    began: dict[str, Any] = {"position": 0, "step": 0}
    taken_up = []
    for leg, world in enumerate(worlds):
        batch_size = SETTINGS["batch_sizes"][leg]
        if leg < len(worlds) - 1:
            run_and_kill(folder, leg, world, rng)
        else:
            with start(folder, leg, world, began["position"] + 500) as launcher:
                assert launcher.stdout is not None
                launcher.stdout.read()
            assert launcher.returncode == 0
        state = last_state(folder, leg, world)
        steps = state["step"] - began["step"]
        assert check_leg(folder, leg, world, began, served, batch_size) >= steps > 0
        assert state["position"] == began["position"] + steps * batch_size * world
        began = state
        taken_up.append(state["position"])
        (folder / "resume.json").write_text(json.dumps(state))
    return taken_up


@pytest.mark.usefixtures("forked")
def test_killed_on_4_ranks_and_gone_on_with_1_2_3_6_and_12(tmp_path: Path) -> None:
    seed = 0
    stops = interrupted(tmp_path, WORLDS, seed)
    served = mixture_of(SETTINGS, corpora_of(seed))
    places = [served.at(position) for position in stops[:-1]]
    assert any(place.pieces()[0].start > 0 for place in places), "none stopped inside a document"
    assert any(place.sample > 0 for place in places), "none stopped inside an epoch"
    assert any(position % served.period for position in stops), "none stopped inside a period"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_any_worlds_in_any_order(tmp_path: Path, seed: int) -> None:
    worlds = Random(seed).sample(WORLDS, len(WORLDS))
    interrupted(tmp_path, tuple(worlds), seed)
