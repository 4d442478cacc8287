"""The demos run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Told(NamedTuple):
    """What one run of a demo said, and what it left."""

    code: int
    words: str
    errors: str
    out: Path


def demo(out: Path, *arguments: str) -> Told:
    """Runs `windeck demo` in a process of its own."""
    command = [sys.executable, "-m", "windeck", "demo", *arguments]
    command += ["--out", str(out), "--no-progress"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return Told(done.returncode, done.stdout, done.stderr, out)
