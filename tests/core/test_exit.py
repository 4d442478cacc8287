"""The exit of the interpreter while daemon threads are in native code."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
import numpy as np
import windeck as wd
from windeck import _core

{setup}
begun = threading.Semaphore(0)

def repeat():
    while True:
        {call}
        begun.release()

for _ in range(3):
    threading.Thread(target=repeat, daemon=True).start()
for _ in range(6):
    begun.acquire()
"""

#: Calls that release the GIL for a while.
CALLS = {
    "gather": (
        "table = wd.Table.from_columns({'x': np.arange(1_000_000, dtype=np.float32)})\n"
        "windows = wd.Windows(table, context_length=64)\n"
        "samples = np.arange(50_000)",
        "windows.gather(samples)",
    ),
    "an order": ("order = wd.Permutation(1 << 30, seed=1)", "order.slice(0, 1_000_000)"),
    "a checksum": ("data = np.zeros(50_000_000, dtype=np.uint8)", "_core.crc32c(data)"),
    "a table": (
        "table = _core.EmbeddingCore(16)\nids = np.arange(100_000)",
        "table.lookup(ids, insert=True)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_daemon_threads_in_native_code_end_with_the_process(name: str) -> None:
    """Unwinding them would abort it: "terminate called without an active exception"."""
    setup, call = CALLS[name]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup, call=call)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
