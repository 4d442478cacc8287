"""The instruction sets that the core finds are those that the kernel of the system reports."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

#: Flags of /proc/cpuinfo for each level; ``abm`` is lzcnt.
LEVELS = {
    "avx2": {"avx2", "bmi1", "bmi2", "popcnt", "f16c", "abm"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"},
}
PROGRAM = "import windeck; windeck.Permutation(1000, seed=1).slice(0, 1000)"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_that_the_processor_has_is_found(level: str) -> None:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        pytest.skip("needs /proc/cpuinfo")
    line = next(line for line in path.read_text().splitlines() if line.startswith("flags"))
    flags = set(line.split())
    has = LEVELS["avx2"] <= flags and LEVELS[level] <= flags
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "WINDECK_SIMD": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == has, done.stderr
