"""Loops over the loaders of adapters continue exactly after their process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import adapted_batches
from support.adapted_batches import EPOCHS, digest, loader

PROGRAM = Path(adapted_batches.__file__)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[1]), *sys.path]),
    "OMP_NUM_THREADS": "1",
}
#: The package that the loader of a library needs.
NEEDS = {
    "chronos2": "torch",
    "darts": "darts",
    "gluonts": "torch",
    "neuralforecast": "pandas",
    "pytorch_forecasting": "pytorch_forecasting",
    "time_series_library": "torch",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("library", NEEDS)
def test_killed_and_resumed_loops_serve_each_batch_once(library: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[library])
    batches = loader(library)
    expected = [digest(batch) for _ in range(EPOCHS) for batch in batches]
    assert len(set(expected)) == len(expected) == EPOCHS * len(batches)
    for kill_at in ("3", str(len(batches) + 2)):
        command = [sys.executable, str(PROGRAM), library, str(tmp_path), kill_at]
        assert subprocess.run(command, env=ENVIRONMENT).returncode == -signal.SIGKILL
    subprocess.run(command[:-1], env=ENVIRONMENT, check=True)
    assert (tmp_path / "digests").read_text().split() == expected
