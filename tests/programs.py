"""Short programs, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def printed(program: str, *arguments: str, **environment: str) -> str:
    """What a program prints; AssertionError with its errors if it fails."""
    command = [sys.executable, "-c", program, *arguments]
    surroundings = {**os.environ, **environment}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_little_memory(program: str, url: str) -> None:
    """A program that saves to a store and loads prints by how many MiB its peak grew for each."""
    saved, loaded = map(float, printed(program, url).split())
    assert saved < 64
    if not url.startswith("leveldb:"):  # maps the files it reads from, which counts as resident
        assert loaded < 64


def assert_not_imported(heavy: set[str], *arguments: str) -> None:
    """`windeck ARGUMENTS` works, and imports none of these."""
    printed(
        f"""if True:
        import sys
        sys.argv = {["windeck", *arguments]!r}
        from windeck.tools.cli import main
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        heavy = {heavy!r} & set(sys.modules)
        assert not heavy, heavy
        """
    )
