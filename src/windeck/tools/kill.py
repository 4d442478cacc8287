"""A training in a process of its own, killed without warning, and resumed in another.

The victim is not told when. It only waits before its last batch, so that a slow killer finds it.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from windeck.tools import stage, states, training
from windeck.tools.job import Job

#: What the processes write to their standard error.
WORDS = "errors.txt"

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
    """Acts 4 and 5: SIGKILL in the middle of an epoch, and a process that goes on from the state.

    Raises
    ------
    RuntimeError
        When one of the processes fails, with the last line it wrote.
    """
    files = [out / name for name in ("killed.samples", "resumed.samples", "state.pt", "job.json")]
    for file in files:
        file.unlink(missing_ok=True)
    log, resumed_log, state, description = files
    description.write_text(task.to_json())
    page.act("Kill", "the same training in a process of its own")
    with (
        page.bar("killed", task.steps) as bar,
        trainee(out, "--log", str(log), "--hold-at", str(task.steps - 1)) as victim,
    ):
        goal = max(1, round(0.57 * task.steps))
        while training.last_step(log) < goal or not state.exists():
            if victim.poll() is not None:
                raise RuntimeError(_last_words(out))
            bar.report(training.last_step(log), float("nan"))
            time.sleep(LOOK)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        bar.stopped(training.last_step(log))
    content = states.read(state)
    killed = Killed(log, resumed_log, state, training.last_step(log), int(content["step"]))
    page.line(
        "",
        f"SIGKILL {_place(killed.killed_step, per_epoch)}",
        f"last saved {killed.killed_step - killed.saved_step:,} batches before",
    )
    position = json.loads(content["loader"])["position"]
    page.act("Resume", f"a new process, at the one integer that is saved: position {position:,}")
    with (
        page.bar("resumed", task.steps) as bar,
        trainee(out, "--log", str(resumed_log), "--resume") as heir,
    ):
        while heir.poll() is None:
            bar.report(max(training.last_step(resumed_log), killed.saved_step), float("nan"))
            time.sleep(LOOK)
        bar.report(training.last_step(resumed_log), float("nan"))
    if heir.returncode:
        raise RuntimeError(_last_words(out))
    return killed


def trainee(out: Path, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A training process of its own, on the job and the state in `out`."""
    command = [sys.executable, "-m", "windeck.tools.training", str(out / "job.json")]
    command += ["--state", str(out / "state.pt"), *options]
    return running(command, out / WORDS)


@contextmanager
def running(command: Sequence[str], words: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes its errors to a file, and never outlives us."""
    with open(words, "wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _last_words(out: Path) -> str:
    """What a process that failed said last."""
    lines = (out / WORDS).read_text(errors="replace").strip().splitlines() or ["nothing"]
    return f"the training process failed, and said: {lines[-1]}"


def _place(step: int, per_epoch: int) -> str:
    """Where a step lies, in words a reader can check."""
    epoch, batch = divmod(step - 1, per_epoch)
    return f"after batch {batch + 1:,} of {per_epoch:,} in epoch {epoch + 1}"
