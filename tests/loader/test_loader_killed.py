"""Whole training runs in separate processes, killed with SIGKILL and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from models.oracle import Run, one_step, turned

HERE = Path(__file__).parents[1]
SIZE, EPOCHS = 103, 3
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
    "OMP_NUM_THREADS": "1",
}


def command(folder: Path, batch_size: int, *more: str, world: int | None = None) -> list[str]:
    launch = [sys.executable]
    if world is not None:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    wanted = [str(folder), f"--size={SIZE}", f"--epochs={EPOCHS}", f"--batch-size={batch_size}"]
    return [*launch, str(HERE / "support" / "trainee.py"), *wanted, *more]


def position_in(folder: Path) -> int:
    path = folder / "state.json"
    return int(json.loads(path.read_text())["position"]) if path.exists() else 0


def handed_out(folder: Path) -> dict[int, dict[int, list[int]]]:
    """Return step -> rank -> samples; a later run repeats steps that were not saved."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text().splitlines():
            step, began, samples = json.loads(line)
            found.setdefault((step, began), {})[int(path.stem.removeprefix("rank"))] = samples
    return {step: shares for (step, _), shares in sorted(found.items())}


def expected(legs: list[tuple[int, Run]]) -> dict[int, dict[int, list[int]]]:
    """Return the oracle's steps for legs (start position, configuration), to the end."""
    dealt: dict[int, dict[int, list[int]]] = {}
    position = 0
    for number, (_, run) in enumerate(legs):
        end = legs[number + 1][0] if number + 1 < len(legs) else SIZE * EPOCHS
        while position < end:
            shares, position = one_step(run, position)
            if position > SIZE * EPOCHS:
                break
            by_rank = {r: [turned(SIZE, p, 3) for p in share] for r, share in enumerate(shares)}
            dealt[len(dealt)] = by_rank
    return dealt


def kill_after(folder: Path, steps: int, batch_size: int, *more: str) -> None:
    """Start a run and kill it from outside after a number of steps."""
    with subprocess.Popen(
        command(folder, batch_size, *more), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            assert process.stdout.readline()
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("more", [(), pytest.param(("--drop-last",), marks=pytest.mark.slow)])
@pytest.mark.usefixtures("forked")
def test_killed_twice_and_resumed_with_other_batches(tmp_path: Path, more: tuple[str, ...]) -> None:
    legs = []
    for steps, batch_size in ((6, 10), (4, 7)):
        legs.append((position_in(tmp_path), Run(SIZE, batch_size, drop_last=bool(more))))
        kill_after(tmp_path, steps, batch_size, *more)
    legs.append((position_in(tmp_path), Run(SIZE, 12, drop_last=bool(more))))
    subprocess.run(command(tmp_path, 12, *more), check=True, env=ENVIRONMENT, timeout=300)
    assert handed_out(tmp_path) == expected(legs)


def ranks_killed_and_resumed(folder: Path, worlds: list[tuple[int, int, int | None]]) -> None:
    """Run legs (world size, batch size, step at which the last rank kills itself)."""
    legs = []
    for world, batch_size, die_at in worlds:
        legs.append((position_in(folder), Run(SIZE, batch_size, world)))
        more = [] if die_at is None else [f"--die-at={die_at}"]
        done = subprocess.run(
            command(folder, batch_size, *more, world=world),
            env=ENVIRONMENT,
            timeout=300,
            capture_output=True,
            text=True,
        )
        assert (done.returncode == 0) == (die_at is None), done.stderr
    found = handed_out(folder)
    assert found == expected(legs)
    everything = [s for shares in found.values() for share in shares.values() for s in share]
    assert sorted(everything) == sorted(list(range(SIZE)) * EPOCHS)


@pytest.mark.usefixtures("forked")
def test_two_ranks_killed_and_resumed_by_three_with_another_batch(tmp_path: Path) -> None:
    ranks_killed_and_resumed(tmp_path, [(2, 8, 9), (3, 5, None)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "worlds",
    [
        [(1, 16, 5), (2, 8, 12), (3, 5, None)],
        [(3, 4, 4), (1, 30, 6), (2, 1, None)],
        [(1, 103, None)],
        [(2, 50, 1), (3, 40, None)],
    ],
)
def test_ranks_come_and_go(tmp_path: Path, worlds: list[tuple[int, int, int | None]]) -> None:
    ranks_killed_and_resumed(tmp_path, worlds)
