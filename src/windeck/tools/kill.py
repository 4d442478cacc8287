"""A training in a process of its own, killed without warning, and resumed in another.

The victim is not told when. It only waits before its last batch, so that a slow killer finds it.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windeck.tools import stage, training
from windeck.tools.job import Job

#: Seconds between two looks at what a process has written.
LOOK = 0.02


@dataclass(frozen=True)
class Killed:
    """What a killed and a resumed process left behind."""

    log: Path
    resumed_log: Path
    state: Path
    killed_step: int
    saved_step: int


def kill_and_resume(task: Job, per_epoch: int, out: Path, page: stage.Page) -> Killed:
    """Act 4: SIGKILL in the middle of an epoch, and a new process that goes on from the state."""
    files = [out / name for name in ("killed.samples", "resumed.samples", "state.pt", "job.json")]
    for file in files:
        file.unlink(missing_ok=True)
    log, resumed_log, state, description = files
    description.write_text(task.to_json())
    common = ("--state", str(state))
    page.act("Kill", "the same training in a process of its own")
    with page.bar("killed", task.steps) as bar:
        victim = start(description, "--log", str(log), "--hold-at", str(task.steps - 1), *common)
        goal = max(1, round(0.57 * task.steps))
        follow(victim, log, bar, until=goal, state=state)
        victim.kill()
        victim.communicate()
        bar.stopped(training.last_step(log))
    if victim.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the victim ended by itself, with {victim.returncode}")
    content = training.read(state)
    killed = Killed(log, resumed_log, state, training.last_step(log), int(content["step"]))
    page.line(
        "",
        f"SIGKILL {_place(killed.killed_step, per_epoch)}",
        f"state of {killed.killed_step - killed.saved_step:,} batches before",
    )
    position = json.loads(content["loader"])["position"]
    page.act("Resume", f"a new process, at the one integer that is saved: position {position:,}")
    with page.bar("resumed", task.steps) as bar:
        heir = start(description, "--log", str(resumed_log), "--resume", *common)
        follow(heir, resumed_log, bar, until=None, state=state)
        bar.report(training.last_step(resumed_log), float("nan"))
    return killed


def _place(step: int, per_epoch: int) -> str:
    """Where a step lies, in words a reader can check."""
    epoch, batch = divmod(step - 1, per_epoch)
    return f"after batch {batch + 1:,} of {per_epoch:,} in epoch {epoch + 1}"


def start(description: Path, *options: str) -> subprocess.Popen[str]:
    """A training process of its own."""
    command: Sequence[str] = (
        *(sys.executable, "-m", "windeck.tools.training"),
        *(str(description), *options),
    )
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def follow(
    process: subprocess.Popen[str], log: Path, bar: stage.Bar, *, until: int | None, state: Path
) -> None:
    """Watches a process through its log, to its end or until it has come so far and saved once.

    Raises
    ------
    RuntimeError
        When the process fails, with the last line it wrote.
    """
    while process.poll() is None:
        step = training.last_step(log)
        bar.report(step, float("nan"))
        if until is not None and step >= until and state.exists():
            return
        time.sleep(LOOK)
    if process.returncode or until is not None:
        words = process.communicate()[1].strip().splitlines() or [f"exit {process.returncode}"]
        raise RuntimeError(f"the training process failed: {words[-1]}")
