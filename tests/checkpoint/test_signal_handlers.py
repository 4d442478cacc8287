"""Handlers of signals that save, at the instructions of saves, loads, and loops over streamed data.

No call may be found to hold what the handler needs: it saves, or is told to set a flag instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import handled_signals

TESTS = Path(__file__).parents[1]


def run(name: str, count: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "support.handled_signals", name, str(count)],
        capture_output=True,
        text=True,
        timeout=3000,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", handled_signals.SCENES)
def test_a_handler_that_saves_does_not_hang(name: str) -> None:
    called = int(run(name, 8).split()[-1])
    assert called >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", handled_signals.SCENES)
def test_a_handler_that_saves_does_not_hang_at_any_instruction(name: str) -> None:
    assert int(run(name, 100_000).split()[-1]) > 50
